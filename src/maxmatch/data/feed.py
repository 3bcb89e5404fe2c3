"""How batches reach the model: from the device where the data fits there, else from the disk by workers."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from traceback import format_exc
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import grid_sample
from torch.utils.data import DataLoader, Dataset

from maxmatch.core import machine
from maxmatch.core.progress import Advance, Skipped, map_ahead, quiet
from maxmatch.core.types import Batch, Inputs
from maxmatch.data.augment import Augmentation, RandomCrop, RandomMirror, SizeAugmentation, crop_box
from maxmatch.data.dataset import Items, Split
from maxmatch.data.modality import FeatureLoader, ModalityLoader, TextLoader, loader_for, log_skipped, on_device
from maxmatch.data.sampler import BatchPlan, Selection
from maxmatch.model.images import Source
from maxmatch.model.inputs import FeatureReader, PixelReader, Reader

FeedName = Literal["auto", "resident", "mapped"]
_log = logging.getLogger(__name__)
_SAMPLE = 64  # items, to tell how large all of them are
_TEXT_BYTES = 512  # a caption's tokens and length, generously
_MOST_WORKERS = 8
_CHUNK = 512  # pictures on their way to the device at once
_CHUNK_BYTES = 2**28  # of features, likewise


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
    on the device too. `say` is called with the choice and its reason. The other options are those of the two feeds.
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
    """Whether to keep the data on the device, and a line that gives the reason."""
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
        sizes.append(int(np.prod(one.shape)) * (one.dtype.itemsize if dtype is None else dtype.itemsize))
    return int(np.mean(sizes) * len(items)) if sizes else 0


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


class MappedFeed:
    """Pictures decoded, features read and texts looked up by `workers` processes (0: by this one, not ahead).

    readers: those of the model's towers, by modality. captions: at most so many texts per group, at random. drop:
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
        loaders = {modality: loader_for(modality, split, readers, crops or {}) for modality in readers}
        self._plans = _Plans()
        self._loader = DataLoader(
            _BatchMaker(selection, loaders, {modality: split[modality] for modality in readers}),
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


class _MadeBatch(NamedTuple):
    """What a worker makes of a plan."""

    batch: Batch | None
    seed: int | None
    skipped: list[Skipped]
    fault: str = ""
    """The traceback of an error that is not the data's."""


class _Plans:
    """What the loader iterates over: another sequence of plans each time, while its workers stay."""

    current: Iterable[BatchPlan] = ()

    def __iter__(self) -> Iterator[BatchPlan]:
        """The plans of this time."""
        return iter(self.current)


class _BatchMaker(Dataset[_MadeBatch]):
    """Makes batches of plans; a copy of it lives in each worker."""

    def __init__(self, selection: Selection, loaders: Mapping[str, ModalityLoader], items: Mapping[str, Items]) -> None:
        self.selection, self.loaders, self.items = selection, loaders, items

    def __getitem__(self, plan: BatchPlan) -> _MadeBatch:
        """The batch of a plan. A fault is returned as text: ending workers after a raised one takes seconds each."""
        try:
            return self._make(plan)
        except Exception:
            return _MadeBatch(None, plan.seed, [], f"a batch could not be made.\n{format_exc()}")

    def _make(self, plan: BatchPlan) -> _MadeBatch:
        places = self.selection(plan)
        inputs, skipped, lost = {}, [], np.zeros(0, np.int64)
        for modality, loader in self.loaders.items():
            items = self.items[modality]
            inputs[modality], failed = loader.read(places[modality], plan.seed)
            skipped += [Skipped(f"{modality} {items.ids[place]}", why, place) for place, why in failed.items()]
            lost = np.union1d(lost, items.groups[list(failed)])
        groups = {modality: self.selection.groups[modality][places[modality]] for modality in inputs}
        if len(lost):
            kept = {modality: ~np.isin(groups[modality], lost) for modality in inputs}
            if not all(keep.any() for keep in kept.values()):
                return _MadeBatch(None, plan.seed, skipped)
            inputs = {modality: _rows(inputs[modality], keep) for modality, keep in kept.items()}
            groups = {modality: groups[modality][keep] for modality, keep in kept.items()}
        tensors = {modality: torch.from_numpy(of) for modality, of in groups.items()}
        return _MadeBatch(Batch(inputs, tensors), plan.seed, skipped)


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


class ResidentPictures:
    """The pictures of a split as bytes on the device.

    Without crops, exactly what evaluation sees, mirrored or not. For random crops a picture is kept as the square in
    its middle (squashed, where the model squashes), a seventh larger than what the model sees, and the parts are cut
    from that square: what is left and right of it in a wide picture is never seen, as in evaluation.
    """

    def __init__(
        self, items: Items, reader: PixelReader, augmentation: Augmentation | None, device: torch.device, threads: int,
        advance: Advance = quiet,
    ) -> None:  # fmt: skip
        self.augmentation, self.transform = augmentation, reader.transform
        self.failed: dict[int, str] = {}
        cut = isinstance(augmentation, RandomCrop)
        side = self.transform.kept_side if cut else self.transform.size
        self.pixels = torch.zeros(len(items), side, side, 3, dtype=torch.uint8, device=device)
        look = self.transform.square if cut else self.transform.seen
        decoded = map_ahead(lambda place: _pixels(look, items.values[place]), range(len(items)), threads)
        for first in range(0, len(items), _CHUNK):
            read = list(islice(decoded, _CHUNK))
            self.failed |= {first + place: why for place, why in enumerate(read) if isinstance(why, str)}
            good = [np.zeros((side, side, 3), np.uint8) if isinstance(one, str) else one for one in read]
            self.pixels[first : first + len(read)] = torch.from_numpy(np.stack(good)).to(device)
            advance(len(read))
        self._mean = torch.tensor(self.transform.mean, device=device)[:, None, None]
        self._std = torch.tensor(self.transform.std, device=device)[:, None, None]

    def read(self, places: np.ndarray, seed: int | None = None) -> tuple[Inputs, dict[int, str]]:
        """Pixels (items, 3, size, size), as the network takes them; parts and mirroring depend on seed and place."""
        index = torch.from_numpy(np.ascontiguousarray(places)).to(self.pixels.device)
        # Channels stay last in memory: that is how convolutions are fastest.
        pixels = self.pixels.index_select(0, index).movedim(3, 1).float() / 255
        if seed is not None and self.augmentation is not None:
            boxes, mirrored = self._drawn(places, seed)
            pixels = cut_out(pixels, boxes, mirrored, self.transform.size)
        elif isinstance(self.augmentation, RandomCrop):
            pixels = self._middle(pixels)
        return Inputs((pixels - self._mean) / self._std, None), {}

    def _drawn(self, places: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The part of each picture, and whether it is mirrored."""
        side = self.pixels.shape[1]
        boxes, mirrored = np.zeros((len(places), 4)), np.zeros(len(places), bool)
        assert isinstance(self.augmentation, RandomCrop | RandomMirror)
        for row, place in enumerate(places.tolist()):
            generator = np.random.default_rng([seed, place])
            boxes[row] = (0, 0, side, side)
            if isinstance(self.augmentation, RandomCrop):
                boxes[row] = crop_box(side, side, self.augmentation.scale, self.augmentation.ratio, generator)
            mirrored[row] = generator.random() < self.augmentation.flip
        return boxes, mirrored

    def _middle(self, pixels: Tensor) -> Tensor:
        first = (pixels.shape[2] - self.transform.size) // 2
        return pixels[:, :, first : first + self.transform.size, first : first + self.transform.size]


def cut_out(
    pictures: Float[Tensor, "B C S S"], boxes: np.ndarray, mirrored: np.ndarray, size: int
) -> Float[Tensor, "B C {size} {size}"]:
    """A part of each picture, as a square of `size` pixels, by bilinear interpolation.

    boxes: left, top, right, bottom of each, in pixels.
    """
    box = torch.from_numpy(boxes).to(pictures.device, torch.float32)
    flip = torch.from_numpy(mirrored).to(pictures.device)
    middle = (torch.arange(size, device=pictures.device) + 0.5) / size  # of each pixel, as a share of the part
    across = torch.where(flip[:, None], 1 - middle, middle)
    x = box[:, :1] + across * (box[:, 2:3] - box[:, :1])
    y = box[:, 1:2] + middle * (box[:, 3:] - box[:, 1:2])
    side = pictures.shape[2]
    grid = torch.stack(
        [(2 * x / side - 1)[:, None, :].expand(-1, size, -1), (2 * y / side - 1)[:, :, None].expand(-1, -1, size)], -1
    )
    return grid_sample(pictures, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _pixels(look: Callable[[Source], Image.Image], source: Source) -> UInt8[np.ndarray, "S S 3"] | str:
    """A picture's pixels, or why there are none."""
    try:
        return np.asarray(look(source))
    except (ValueError, OSError) as error:
        return str(error)


class ResidentFeed:
    """All features and captions on the device, copied there piece by piece; no work per item and no waiting afterwards.

    readers, captions, drop, crops, report, skipped: as for `MappedFeed`, and the batches are the same, but for the
    random parts of pictures (see `ResidentPictures`). dtype: what the features are kept in (None: as they are stored,
    torch.float16 or torch.bfloat16 to halve float32); batches have them in float32. threads: decode the pictures, once.
    What cannot be read is reported while copying.
    """

    def __init__(
        self,
        split: Split,
        readers: Mapping[str, Reader],
        device: torch.device | str,
        *,
        captions: int | None = None,
        drop: Mapping[str, float] | None = None,
        crops: Mapping[str, Augmentation] | None = None,
        dtype: torch.dtype | None = None,
        threads: int = 1,
        report: Callable[[Skipped], None] = log_skipped,
        advance: Advance = quiet,
    ) -> None:
        self.device = torch.device(device)
        self.skipped: dict[str, Skipped] = {}
        self._augment = SizeAugmentation(drop or {}, readers, self.device)
        self._selection = Selection(split, readers, captions)
        self._readable = np.ones(split.size, dtype=bool)
        self._loaders: dict[str, _Features | ResidentPictures | TextLoader] = {}
        for modality, reader in readers.items():
            loader = loader_for(modality, split, readers, crops or {})
            if isinstance(loader, TextLoader):
                self._loaders[modality] = loader.to(self.device)
                continue
            if isinstance(reader, PixelReader):
                crop = (crops or {}).get(modality)
                pictures = ResidentPictures(split[modality], reader, crop, self.device, max(threads, 1), advance)
                self._loaders[modality], failed = pictures, pictures.failed
            else:
                assert isinstance(loader, FeatureLoader)
                self._loaders[modality], failed = _copied(loader, self.device, dtype, advance)
            self._readable[split[modality].groups[list(failed)]] = False
            for place, reason in failed.items():
                item = Skipped(f"{modality} {split[modality].ids[place]}", reason, place)
                self.skipped[item.id] = item
                report(item)

    def batches(self, plans: Iterable[BatchPlan]) -> Iterator[Batch]:
        """The batches, on the device, in the order of their plans."""
        for plan in plans:
            yield self._augment(self._batch(plan), plan.seed)

    def _batch(self, plan: BatchPlan) -> Batch:
        inputs, groups = {}, {}
        for modality, places in self._selection(plan).items():
            of = self._selection.groups[modality][places]
            keep = self._readable[of]
            if not keep.any():
                first = next(iter(self.skipped.values()))
                raise ValueError(f"no group of a batch could be read. The first reason: {first}")
            inputs[modality], _ = self._loaders[modality].read(places[keep], plan.seed)
            groups[modality] = on_device(of[keep], self.device)
        return Batch(inputs, groups)


class _Features:
    """The features of all items one after the other, without padding: an item's are at start to start + count."""

    def __init__(self, rows: Tensor, counts: np.ndarray) -> None:
        self.rows, self.counts = rows, counts
        self.starts = np.cumsum(counts) - counts

    def read(self, places: np.ndarray, seed: int | None = None) -> tuple[Inputs, dict[int, str]]:
        """Features (items, count, width), padded to the item that has most."""
        counts, device = self.counts[places], self.rows.device
        longest = int(counts.max(initial=1))
        start, count = on_device(np.stack([self.starts[places], counts]), device)[..., None]
        column = torch.arange(longest, device=device)
        index, mask = start + torch.minimum(column, count - 1), column < count
        values = self.rows.index_select(0, index.flatten()).view(len(places), longest, -1).float()
        if counts.min(initial=longest) < longest:
            values = values.masked_fill(~mask[..., None], 0.0)
        return Inputs(values, mask), {}


def _copied(
    loader: FeatureLoader, device: torch.device, dtype: torch.dtype | None, advance: Advance
) -> tuple[_Features, dict[int, str]]:
    """All features on the device, and what could not be read. The host never holds more than a piece of them."""
    counts = loader.counts()
    ends, width = np.cumsum(counts), loader.reader.feature_width
    step = max(_CHUNK_BYTES // max(int(counts.max(initial=1)) * width * 4, 1), 1)
    rows: Tensor | None = None
    failed: dict[int, str] = {}
    for first in range(0, len(counts), step):
        places = np.arange(first, min(first + step, len(counts)))
        (values, _), bad = loader.read(places)
        failed |= bad
        here = torch.from_numpy(counts[places])
        # An item that could not be read has a place too, and may be the longest.
        values = torch.nn.functional.pad(values, (0, 0, 0, max(int(here.max()) - values.shape[1], 0)))
        real = torch.arange(values.shape[1]) < here[:, None]
        piece = values.flatten(0, 1) if bool(real.all()) else values[real]
        kept = piece.to(device).to(dtype or piece.dtype)
        if rows is None:
            rows = torch.zeros(int(ends[-1]), width, dtype=kept.dtype, device=device)
        begin = int(ends[first] - counts[first])
        assert len(kept) == int(here.sum()), f"items {first} to {places[-1]} have other counts than their source says"
        rows[begin : begin + len(kept)] = kept
        if not bool(torch.isfinite(kept.sum(dtype=torch.float32))):
            finite = torch.isfinite(kept).all(1).cpu().numpy()
            overflown = set(np.repeat(places, counts[places])[~finite].tolist()) - set(bad)
            if overflown:
                raise ValueError(
                    f"dtype: features of {loader.items.ids[min(overflown)]} are too large for {dtype}. "
                    "Take torch.bfloat16, or None to keep them as they are."
                )
        advance(len(places))
    if rows is None:
        rows = torch.zeros(0, width, dtype=dtype or torch.float32, device=device)
    return _Features(rows, counts), failed
