"""How batches reach the model: what fits stays on the device, the rest is read from disk by workers."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from traceback import format_exc
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from maxmatch.core import machine
from maxmatch.core.devices import on_device
from maxmatch.core.progress import Skipped
from maxmatch.core.types import Batch, Inputs
from maxmatch.data.augment import Augmentation, PhraseMaker, ResidentPictures, SizeAugmentation
from maxmatch.data.dataset import Items, Split
from maxmatch.data.loaders import FeatureLoader, PackedItems, PictureLoader, loader_for, packed
from maxmatch.data.sampler import BatchPlan, random_words
from maxmatch.model.inputs import FeatureReader, PixelReader, Reader, TextReader, TokenStateReader

FeedName = Literal["auto", "resident", "mapped"]
_log = logging.getLogger(__name__)
_FRACTION = 0.5  # of the free memory that resident data may take
_SAMPLE = 64  # items whose size is measured, to estimate that of all
_TEXT_BYTES = 512  # a caption's tokens and length, generously
_MOST_WORKERS = 8
_AHEAD = 2  # batches that each worker prepares
_SHORT = 7 / 8  # of a batch's texts: the others are much longer


@runtime_checkable
class Feed(Protocol):
    """Batches from plans."""

    skipped: dict[str, Skipped]
    """The items that could not be read so far, by name: their modality and id."""

    def batches(self, plans: Iterable[BatchPlan]) -> Iterator[Batch]:
        """The batches, on the device, in the order of their plans."""
        ...


def log_skipped(item: Skipped) -> None:
    """The usual report: a warning in the log."""
    _log.warning("%s Its group is left out of training.", item)


def choose_feed(
    split: Split,
    readers: Mapping[str, Reader],
    device: torch.device | str,
    *,
    feed: FeedName = "auto",
    workers: int | None = None,
    captions: int | None = None,
    drop: Mapping[str, float] | None = None,
    phrases: float = 0.0,
    crops: Mapping[str, Augmentation] | None = None,
    picture_cache: Path | None = None,
    report: Callable[[Skipped], None] = log_skipped,
    say: Callable[[str], object] = _log.info,
) -> Feed:
    """A `ResidentFeed` where there are no pictures to decode and the data takes no more than half of the memory that is
    free on the device; else a `MappedFeed`. feed: which of the two, whatever the size; if asked for, pictures stay on
    the device too. `say` is called with the choice and its reason. The other options are those of the two feeds.
    """
    if feed not in ("auto", "resident", "mapped"):
        raise ValueError(f"feed: expected 'auto', 'resident' or 'mapped', got {feed!r}.")
    device = torch.device(device)
    if workers is None:
        workers = machine.usable_cores(_MOST_WORKERS)
    resident, why = _decide(split, readers, device, feed, workers)
    say(f"feed: {why}")
    options: dict[str, Any] = {
        "captions": captions, "drop": drop, "phrases": phrases, "crops": crops, "report": report,
    }  # fmt: skip
    if resident:
        return ResidentFeed(split, readers, device, threads=workers, picture_cache=picture_cache, **options)
    return MappedFeed(split, readers, device, workers=workers, **options)


def _decide(
    split: Split, readers: Mapping[str, Reader], device: torch.device, feed: FeedName, workers: int
) -> tuple[bool, str]:
    """Whether to keep the data on the device, and the reason."""
    by_workers = {0: "by this process", 1: "by 1 worker"}.get(workers, f"by {workers} workers")
    if feed == "resident":
        return True, "kept on the device, as asked for"
    if feed == "mapped":
        return False, f"read from disk {by_workers}, as asked for"
    if any(isinstance(reader, PixelReader) for reader in readers.values()):
        return False, f"pixels are decoded {by_workers}"
    size = sum(_bytes(split[modality], reader) for modality, reader in readers.items())
    free = free_memory(device)
    if free is None:
        return False, f"how much memory is free on {device} is not known: read from disk {by_workers}"
    place = "GPU memory" if device.type == "cuda" else "memory"
    if size <= _FRACTION * free:
        return True, f"{_gib(size)} fit into {_gib(free)} of free {place}: kept on the device"
    return False, (
        f"{_gib(size)} do not fit into {_FRACTION:.0%} of {_gib(free)} of free {place}: read from disk {by_workers}"
    )


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device, None where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return machine.free_memory() if device.type == "cpu" else None


def _bytes(items: Items, reader: Reader) -> int:
    """How much memory the items of a modality take, estimated from a sample."""
    if not isinstance(reader, FeatureReader):
        return len(items) * _TEXT_BYTES
    sizes = []
    for place in np.linspace(0, len(items) - 1, min(_SAMPLE, len(items)), dtype=np.int64):
        try:
            one = items.values[int(place)]
        except (ValueError, OSError):  # one that cannot be read takes no memory
            continue
        if not isinstance(one, Tensor | np.ndarray):
            reader.read(one)  # raises an error that tells what it expected
        sizes.append(one.nbytes)
    return int(np.mean(sizes) * len(items)) if sizes else 0


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


class _BatchResult(NamedTuple):
    """What is made of a plan."""

    batch: Batch | None
    seed: int | None
    skipped: list[Skipped]
    fault: str = ""
    """The traceback of an error that is not the data's."""


class _BatchMaker(Dataset[_BatchResult]):
    """Makes batches of plans; a copy of it lives in each worker. captions: at most so many texts of each group.
    by_length: whether the texts of a batch come in the order of their length, see `Batch.short`.
    """

    def __init__(
        self,
        split: Split,
        readers: Mapping[str, Reader],
        captions: int | None,
        device: torch.device,
        by_length: bool = False,
    ) -> None:
        absent = [modality for modality in readers if modality not in split.items]
        if absent:
            has, lacks = ", ".join(split.items), ", ".join(absent)
            raise ValueError(
                f"readers: this data has {has}, not {lacks}. Give data with all of them, as pictures with captions."
            )
        if captions is not None and captions < 1:
            raise ValueError(f"captions: expected at least 1 per group, or None for all; got {captions}.")
        self.items = {modality: split[modality] for modality in readers}
        self.loaders: dict[str, PictureLoader | FeatureLoader | PackedItems | ResidentPictures] = {}
        self.readable = np.ones(split.size, np.bool_)
        self._starts = {modality: items.starts for modality, items in self.items.items()}
        texts = (TextReader, TokenStateReader)
        self._most = {name: captions if isinstance(reader, texts) else None for name, reader in readers.items()}
        self._device = device
        self._by_length = [name for name, reader in readers.items() if by_length and isinstance(reader, TextReader)]

    def __getitem__(self, plan: BatchPlan) -> _BatchResult:
        """The batch of a plan. A fault is returned as text: ending workers after a raised one takes seconds each."""
        try:
            return self.make(plan)
        except Exception:
            return _BatchResult(None, plan.seed, [], f"a batch could not be made.\n{format_exc()}")

    def make(self, plan: BatchPlan) -> _BatchResult:
        """The batch of a plan, without the groups of which an item cannot be read."""
        inputs, groups, chosen, skipped, lost = {}, {}, {}, [], []
        for number, (modality, items) in enumerate(self.items.items()):
            most, seed = (None, 0) if plan.seed is None else (self._most[modality], plan.seed + number)
            places = places_of(self._starts[modality], plan.groups, most, seed)
            places = places[self.readable[items.groups[places]]]
            if modality in self._by_length:
                places = places[np.argsort(self._lengths(modality, places), kind="stable")]
            inputs[modality], failed = self.loaders[modality].read(places, plan.seed)
            groups[modality], chosen[modality] = items.groups[places], places
            skipped += _unreadable(modality, items, failed)
            lost += [items.groups[place] for place in failed]
        if lost:
            kept = {modality: ~np.isin(of, lost) for modality, of in groups.items()}
            inputs = {modality: _rows(inputs[modality], keep) for modality, keep in kept.items()}
            groups = {modality: of[kept[modality]] for modality, of in groups.items()}
            chosen = {modality: of[kept[modality]] for modality, of in chosen.items()}
        if not all(len(of) for of in groups.values()):
            return _BatchResult(None, plan.seed, skipped)
        owners, positions = (
            {name: on_device(of, self._device) for name, of in each.items()} for each in (groups, chosen)
        )
        short = {modality: self._short(modality, chosen[modality]) for modality in self._by_length}
        return _BatchResult(Batch(inputs, owners, positions, short=short), plan.seed, skipped)

    def _lengths(self, modality: str, places: np.ndarray) -> np.ndarray:
        loader = self.loaders[modality]
        assert isinstance(loader, PackedItems)
        lengths: np.ndarray = loader.counts[places]
        return lengths

    def _short(self, modality: str, places: np.ndarray) -> tuple[int, int]:
        """How many of the texts are short, and how long these are at most."""
        count = max(int(_SHORT * len(places)), 1)
        return count, int(self._lengths(modality, places[count - 1 : count])[0])


def _unreadable(modality: str, items: Items, failed: Mapping[int, str]) -> list[Skipped]:
    return [Skipped(f"{modality} {items.ids[place]}", why, place) for place, why in failed.items()]


def places_of(starts: np.ndarray, groups: np.ndarray, most: int | None, seed: int) -> np.ndarray:
    """The items of some groups: of each all, or as many as `most` at random; by group, in their own order.

    starts: where each group's items begin, see `Items.starts`.
    """
    counts = starts[groups + 1] - starts[groups]
    before = np.cumsum(counts) - counts
    number = np.arange(counts.sum()) - np.repeat(before, counts)  # of each item in its group
    items: np.ndarray = number + np.repeat(starts[groups], counts)
    if most is None or counts.max(initial=0) <= most:
        return items
    owner = np.repeat(np.arange(len(groups)), counts)
    shuffled = np.lexsort((random_words(len(items), seed), owner))  # within each group
    chosen: np.ndarray = items[np.sort(shuffled[number < most])]
    return chosen


def _rows(inputs: Inputs, keep: np.ndarray) -> Inputs:
    """Some items of a batch, no wider than the longest of them."""
    values, mask = inputs
    chosen = torch.from_numpy(keep)
    if mask is None:
        return Inputs(values[chosen], None)
    mask = mask[chosen]
    longest = int(mask.sum(1).max()) if len(mask) else 0
    return Inputs(values[chosen, :longest], mask[:, :longest])


def _by_length(asked: bool | None, device: torch.device) -> bool:
    return device.type == "cuda" if asked is None else asked


class _BaseFeed:
    """What both feeds do with the batches that are made: report what could not be read, leave out regions and words."""

    def __init__(
        self,
        maker: _BatchMaker,
        readers: Mapping[str, Reader],
        device: torch.device,
        drop: Mapping[str, float] | None,
        phrases: float,
        report: Callable[[Skipped], None],
    ) -> None:
        self.device = device
        self.skipped: dict[str, Skipped] = {}
        self._maker, self._report = maker, report
        self._changes: list[Callable[[Batch, int | None], Batch]] = []
        if phrases:
            self._changes.append(PhraseMaker(phrases, readers, device))
        if drop:
            self._changes.append(SizeAugmentation(drop, readers, device))

    def _note(self, skipped: Iterable[Skipped]) -> None:
        for item in skipped:
            if item.id not in self.skipped:
                self.skipped[item.id] = item
                self._report(item)

    def _finished(self, made: _BatchResult) -> Batch:
        """The batch that was made, augmented. ValueError where nothing of it could be read."""
        self._note(made.skipped)
        if made.fault:
            raise RuntimeError(made.fault)
        if made.batch is None:
            reasons = made.skipped or list(self.skipped.values())
            first = f" The first reason: {reasons[0]}" if reasons else ""
            raise ValueError(f"no group of a batch could be read.{first} Check the data with `maxmatch data check`.")
        batch = made.batch
        for change in self._changes:
            batch = change(batch, made.seed)
        return batch


class MappedFeed(_BaseFeed):
    """Pictures decoded, features read and texts looked up by `workers` processes (0: by this one, not ahead).

    readers: those of the model's towers, by modality. captions: at most so many texts per group, at random. drop:
    the share of regions or words that is left out, by modality. phrases: how many phrases of one to three words are
    added, as a share of the captions. crops: how pictures are cropped or mirrored at random,
    by modality; the others are read as for evaluation. by_length: whether the texts of a batch come in the order of
    their length, so that most can be encoded with little padding (see `Batch.short`); None: on a GPU.

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
        phrases: float = 0.0,
        crops: Mapping[str, Augmentation] | None = None,
        by_length: bool | None = None,
        report: Callable[[Skipped], None] = log_skipped,
    ) -> None:
        device = torch.device(device)
        maker = _BatchMaker(split, readers, captions, torch.device("cpu"), _by_length(by_length, device))
        super().__init__(maker, readers, device, drop, phrases, report)
        for modality, reader in readers.items():
            maker.loaders[modality] = loader_for(modality, split[modality], reader, (crops or {}).get(modality))
        self._plans = _Plans()
        self._loader = DataLoader(
            maker,
            batch_size=None,
            sampler=self._plans,
            num_workers=workers,
            prefetch_factor=_AHEAD if workers else None,
            persistent_workers=workers > 0,
            pin_memory=self.device.type == "cuda",
            collate_fn=_identity,
            generator=torch.Generator(),  # workers get a seed from it, which would else come from the global generator
        )

    def batches(self, plans: Iterable[BatchPlan]) -> Iterator[Batch]:
        """The batches, on the device, in the order of their plans. One such iterator at a time."""
        self._plans.current = plans
        for made in self._loader:
            if made.batch is not None:
                batch = made.batch.to(self.device, non_blocking=True)
                made = made._replace(batch=batch.map(_as_computed))
            yield self._finished(made)


def _as_computed(one: Tensor) -> Tensor:
    """Features travel as they are stored, and arrive in single precision; pictures with their channels last on a GPU,
    where convolutions are then up to three times as fast.
    """
    if not one.is_floating_point():
        return one
    last = one.dim() == 4 and one.device.type == "cuda"
    return one.to(torch.float32, memory_format=torch.channels_last if last else torch.preserve_format)


class _Plans:
    """What the loader iterates over: another sequence of plans each time, while its workers stay."""

    current: Iterable[BatchPlan] = ()

    def __iter__(self) -> Iterator[BatchPlan]:
        """The plans of this time."""
        return iter(self.current)


def _identity(made: Any) -> Any:
    return made


class ResidentFeed(_BaseFeed):
    """All features and captions on the device, copied there piece by piece; no work per item and no waiting afterwards.

    readers, captions, drop, crops, by_length, report, skipped: as for `MappedFeed`, and the batches are the same, but
    for the random parts of pictures (see `ResidentPictures`). threads: decode the pictures, once; processes, where
    there are many. picture_cache: a folder where decoded pictures are kept for the next training. What cannot be read
    is reported while copying.
    """

    def __init__(
        self,
        split: Split,
        readers: Mapping[str, Reader],
        device: torch.device | str,
        *,
        captions: int | None = None,
        drop: Mapping[str, float] | None = None,
        phrases: float = 0.0,
        crops: Mapping[str, Augmentation] | None = None,
        threads: int = 1,
        picture_cache: Path | None = None,
        by_length: bool | None = None,
        report: Callable[[Skipped], None] = log_skipped,
    ) -> None:
        device = torch.device(device)
        maker = _BatchMaker(split, readers, captions, device, _by_length(by_length, device))
        super().__init__(maker, readers, device, drop, phrases, report)
        for modality, reader in readers.items():
            items = split[modality]
            loader = loader_for(modality, items, reader, (crops or {}).get(modality))
            failed: dict[int, str] = {}
            if isinstance(loader, PictureLoader):
                kept = ResidentPictures(items, loader.reader, loader.crop, device, max(threads, 1), picture_cache)
                maker.loaders[modality], failed = kept, kept.failed
            elif isinstance(loader, FeatureLoader):
                maker.loaders[modality], failed = packed(loader, device)
            else:
                maker.loaders[modality] = PackedItems(loader.rows.to(device), loader.counts)
            maker.readable[items.groups[list(failed)]] = False
            self._note(_unreadable(modality, items, failed))

    def batches(self, plans: Iterable[BatchPlan]) -> Iterator[Batch]:
        """The batches, on the device, in the order of their plans."""
        for plan in plans:
            yield self._finished(self._maker.make(plan))
