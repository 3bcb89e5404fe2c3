"""How batches get to the model: from the device itself where the data fits there, else from the disk by workers."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from maxmatch import memory
from maxmatch.data.items import Items, Split
from maxmatch.data.mapped import MappedFeed
from maxmatch.data.resident import Progress, ResidentFeed
from maxmatch.data.sampler import Plan
from maxmatch.data.sides import Unreadable, log_unreadable
from maxmatch.data.transforms import Augmentation
from maxmatch.readers import FeatureReader, PixelReader, Reader
from maxmatch.types import Batch

FeedName = Literal["auto", "resident", "mapped"]
_log = logging.getLogger(__name__)
_SAMPLE = 64  # items, to tell how large all of them are
_TEXT_BYTES = 512  # a caption's tokens and length, generously
_MOST_WORKERS = 8


@runtime_checkable
class Feed(Protocol):
    """Batches from plans."""

    unreadable: dict[tuple[str, str], str]
    """Modality and id of every item that could not be read so far, and the reason."""

    def batches(self, plans: Iterable[Plan]) -> Iterator[Batch]:
        """The batches, on the device, in the order of their plans."""
        ...


def choose_feed(
    split: Split,
    readers: Mapping[str, Reader],
    device: torch.device | str,
    *,
    feed: FeedName = "auto",
    workers: int | None = None,
    captions: int | None = None,
    drop: Mapping[str, float] | None = None,
    crops: Mapping[str, Augmentation] | None = None,
    dtype: torch.dtype | None = None,
    fraction: float = 0.5,
    report: Callable[[Unreadable], None] = log_unreadable,
    progress: Progress | None = None,
    say: Callable[[str], object] = _log.info,
) -> Feed:
    """A `ResidentFeed` where there are no pictures to decode and the data takes no more than `fraction` of the memory
    that is free on the device; else a `MappedFeed`. feed: which of the two, whatever the size; asked for, pictures stay
    on the device too. `say` is told which it is, and why. The other options are those of the two feeds.
    """
    if feed not in ("auto", "resident", "mapped"):
        raise ValueError(f"feed: expected 'auto', 'resident' or 'mapped', got {feed!r}.")
    device = torch.device(device)
    workers = min(_MOST_WORKERS, _cores()) if workers is None else workers
    resident, why = _decide(split, readers, device, feed, dtype, fraction, workers)
    say(why)
    if resident:
        return ResidentFeed(
            split, readers, device, captions=captions, drop=drop, crops=crops, dtype=dtype, threads=workers,
            report=report, progress=progress,
        )  # fmt: skip
    return MappedFeed(split, readers, device, workers=workers, captions=captions, drop=drop, crops=crops, report=report)


def _decide(
    split: Split,
    readers: Mapping[str, Reader],
    device: torch.device,
    feed: FeedName,
    dtype: torch.dtype | None,
    fraction: float,
    workers: int,
) -> tuple[bool, str]:
    """Whether to keep the data on the device, and the line that says why."""
    by_workers = {0: "by this process", 1: "by 1 worker"}.get(workers, f"by {workers} workers")
    if feed == "resident":
        return True, "feed: kept on the device, as asked for"
    if feed == "mapped":
        return False, f"feed: read from disk {by_workers}, as asked for"
    if any(isinstance(reader, PixelReader) for reader in readers.values()):
        return False, f"feed: pixels are decoded {by_workers}"
    size = sum(_bytes(split[modality], reader, dtype) for modality, reader in readers.items())
    place = "GPU memory" if device.type == "cuda" else "memory"
    free = free_memory(device)
    if free is None:
        return False, f"feed: how much memory is free on {device} is not known: read from disk {by_workers}"
    if size <= fraction * free:
        return True, f"feed: {_gib(size)} fit into {_gib(free)} of free {place}: kept on the device"
    return False, (
        f"feed: {_gib(size)} do not fit into {fraction:.0%} of {_gib(free)} of free {place}: "
        f"read from disk {by_workers}"
    )


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device, None where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return memory.free_memory() if device.type == "cpu" else None


def _bytes(items: Items, reader: Reader, dtype: torch.dtype | None) -> int:
    """How much memory the items of a modality take, from a sample where nothing says so."""
    if not isinstance(reader, FeatureReader):
        return len(items) * _TEXT_BYTES
    sizes = []
    for place in np.linspace(0, len(items) - 1, min(_SAMPLE, len(items)), dtype=np.int64):
        try:
            one = items.values[int(place)]
        except (ValueError, OSError):  # one that cannot be read takes no room
            continue
        if not isinstance(one, Tensor | np.ndarray):
            reader.read(one)  # refuses it, and says what it expected
        sizes.append(int(np.prod(one.shape)) * (one.dtype.itemsize if dtype is None else dtype.itemsize))
    return int(np.mean(sizes) * len(items)) if sizes else 0


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
