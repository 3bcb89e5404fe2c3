"""How batches reach the model: from the device where the data fits there, else from the disk by workers."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from traceback import format_exc
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from maxmatch.core import machine
from maxmatch.core.progress import Advance, Skipped, quiet
from maxmatch.core.types import Batch, Inputs
from maxmatch.data.augment import Augmentation, SizeAugmentation
from maxmatch.data.dataset import Items, Split
from maxmatch.data.device_feed import ResidentFeed
from maxmatch.data.modality import ModalityLoader, log_skipped, side_for
from maxmatch.data.sampler import BatchPlan, Selection
from maxmatch.model.inputs import FeatureReader, PixelReader, Reader

# Feeding from the disk: worker processes read whole batches ahead, and the device copies them from pinned memory.


class MappedFeed:
    """Pictures decoded, features read and texts looked up by `workers` processes (0: by this one, not ahead).

    readers: those of the model's towers, by modality. captions: at most so many texts a group, chosen at random. drop:
    the share of regions or words that is left out, by modality. crops: how pictures are cropped or mirrored at random,
    by modality; the others are read as for evaluation.

    A batch is a function of its plan alone; how many workers there are changes nothing. A group with an item that
    cannot be read is left out of its batch, and the item is reported the first time; `skipped` keeps all such items, by
    name. Only a batch of which nothing is left stops the feed.
    """

    def __init__(
        self,
        split: Split,
        readers: Mapping[str, Reader],
        device: torch.device | str,
        *,
        workers: int = 4,
        captions: int | None = None,
        drop: Mapping[str, float] | None = None,
        crops: Mapping[str, Augmentation] | None = None,
        report: Callable[[Skipped], None] = log_skipped,
        ahead: int = 2,
    ) -> None:
        self.device = torch.device(device)
        self.skipped: dict[str, Skipped] = {}
        self._report = report
        self._augment = SizeAugmentation(drop or {}, readers, self.device)
        selection = Selection(split, readers, captions)
        sides = {modality: side_for(modality, split, readers, crops or {}) for modality in readers}
        self._plans = _Plans()
        self._loader = DataLoader(
            _Maker(selection, sides, {modality: split[modality] for modality in readers}),
            batch_size=None,
            sampler=self._plans,
            num_workers=workers,
            prefetch_factor=ahead if workers else None,
            persistent_workers=workers > 0,
            pin_memory=self.device.type == "cuda",
            collate_fn=_as_it_is,
            generator=torch.Generator(),  # workers get a seed from it, which would else come from the global generator
        )

    def batches(self, plans: Iterable[BatchPlan]) -> Iterator[Batch]:
        """The batches, on the device, in the order of their plans. One such iterator at a time."""
        self._plans.current = plans
        for made in self._loader:
            for item in made.skipped:
                if item.id not in self.skipped:
                    self.skipped[item.id] = item
                    self._report(item)
            if made.fault:
                raise RuntimeError(made.fault)
            if made.batch is None:
                raise ValueError(
                    f"no group of a batch could be read. The first reason: {made.skipped[0]} "
                    "Check the data with `maxmatch data check`."
                )
            yield self._augment(_single(made.batch.to(self.device, non_blocking=True)), made.seed)


class _Made(NamedTuple):
    """What a worker makes of a plan."""

    batch: Batch | None
    seed: int | None
    skipped: list[Skipped]
    fault: str = ""
    """Why the program cannot go on."""


class _Plans:
    """What the loader iterates over: another sequence of plans each time, while its workers stay."""

    current: Iterable[BatchPlan] = ()

    def __iter__(self) -> Iterator[BatchPlan]:
        """The plans of this time."""
        return iter(self.current)


class _Maker(Dataset[_Made]):
    """Makes batches of plans; a copy of it lives in each worker."""

    def __init__(self, selection: Selection, sides: Mapping[str, ModalityLoader], items: Mapping[str, Items]) -> None:
        self.selection, self.sides, self.items = selection, sides, items

    def __getitem__(self, plan: BatchPlan) -> _Made:
        """The batch of a plan. A fault travels as a text: one that a worker raises costs seconds a worker to end it."""
        try:
            return self._make(plan)
        except Exception:
            return _Made(None, plan.seed, [], f"a batch could not be made.\n{format_exc()}")

    def _make(self, plan: BatchPlan) -> _Made:
        places = self.selection(plan)
        inputs, skipped, lost = {}, [], np.zeros(0, np.int64)
        for modality, side in self.sides.items():
            items = self.items[modality]
            inputs[modality], failed = side.read(places[modality], plan.seed)
            skipped += [Skipped(f"{modality} {items.ids[place]}", why, place) for place, why in failed.items()]
            lost = np.union1d(lost, items.groups[list(failed)])
        groups = {modality: self.selection.groups[modality][places[modality]] for modality in inputs}
        if len(lost):
            kept = {modality: ~np.isin(groups[modality], lost) for modality in inputs}
            if not all(keep.any() for keep in kept.values()):
                return _Made(None, plan.seed, skipped)
            inputs = {modality: _rows(inputs[modality], keep) for modality, keep in kept.items()}
            groups = {modality: groups[modality][keep] for modality, keep in kept.items()}
        tensors = {modality: torch.from_numpy(of) for modality, of in groups.items()}
        return _Made(Batch(inputs, tensors), plan.seed, skipped)


def _rows(inputs: Inputs, keep: np.ndarray) -> Inputs:
    """Some items of a batch, no wider than the longest of them."""
    values, mask = inputs
    chosen = torch.from_numpy(keep)
    if mask is None:
        return Inputs(values[chosen], None)
    mask = mask[chosen]
    longest = int(mask.sum(1).max())
    return Inputs(values[chosen, :longest], mask[:, :longest])


def _single(batch: Batch) -> Batch:
    """Features in single precision. They travel as they are stored."""
    inputs = {
        name: Inputs(values.float() if values.is_floating_point() else values, mask)
        for name, (values, mask) in batch.inputs.items()
    }
    return Batch(inputs, batch.groups)


def _as_it_is(made: Any) -> Any:
    return made


# How batches get to the model: from the device itself where the data fits there, else from the disk by workers.

FeedName = Literal["auto", "resident", "mapped"]
_log = logging.getLogger(__name__)
_SAMPLE = 64  # items, to tell how large all of them are
_TEXT_BYTES = 512  # a caption's tokens and length, generously
_MOST_WORKERS = 8


@runtime_checkable
class Feed(Protocol):
    """Batches from plans."""

    skipped: dict[str, Skipped]
    """The items that could not be read so far, by name: their modality and id."""

    def batches(self, plans: Iterable[BatchPlan]) -> Iterator[Batch]:
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
    report: Callable[[Skipped], None] = log_skipped,
    advance: Advance = quiet,
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
            report=report, advance=advance,
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
    return machine.free_memory() if device.type == "cpu" else None


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
