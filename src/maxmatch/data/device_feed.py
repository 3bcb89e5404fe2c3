"""Feeding from the device: features, pictures and tokenised captions lie there, and batches are made by indexing."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import grid_sample

from maxmatch.core.progress import Advance, Skipped, map_ahead, quiet
from maxmatch.core.types import Batch, Inputs
from maxmatch.data.augment import Augmentation, RandomCrop, RandomMirror, SizeAugmentation, crop_box
from maxmatch.data.dataset import Items, Split
from maxmatch.data.modality import FeatureSide, TextSide, log_skipped, on_device, side_for
from maxmatch.data.sampler import BatchPlan, Selection
from maxmatch.model.images import Source
from maxmatch.model.inputs import PixelReader, Reader

# Pictures that are decoded once and stay on the device, where random parts of them are cut out: fine-tuning a small
# network is then no longer a matter of decoding.

_CHUNK = 512  # pictures on their way to the device at once


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
        decoded = map_ahead(lambda place: _bytes(look, items.values[place]), range(len(items)), threads)
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


def _bytes(look: Callable[[Source], Image.Image], source: Source) -> UInt8[np.ndarray, "S S 3"] | str:
    """A picture's pixels, or why there are none."""
    try:
        return np.asarray(look(source))
    except (ValueError, OSError) as error:
        return str(error)


_CHUNK_BYTES = 2**28  # bytes that are on their way to the device at once


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
        self._sides: dict[str, _Features | ResidentPictures | TextSide] = {}
        for modality, reader in readers.items():
            side = side_for(modality, split, readers, crops or {})
            if isinstance(side, TextSide):
                self._sides[modality] = side.to(self.device)
                continue
            if isinstance(reader, PixelReader):
                crop = (crops or {}).get(modality)
                pictures = ResidentPictures(split[modality], reader, crop, self.device, max(threads, 1), advance)
                self._sides[modality], failed = pictures, pictures.failed
            else:
                assert isinstance(side, FeatureSide)
                self._sides[modality], failed = _copied(side, self.device, dtype, advance)
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
            inputs[modality], _ = self._sides[modality].read(places[keep], plan.seed)
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
    side: FeatureSide, device: torch.device, dtype: torch.dtype | None, advance: Advance
) -> tuple[_Features, dict[int, str]]:
    """All features on the device, and what could not be read. The host never holds more than a piece of them."""
    counts = side.counts()
    ends, width = np.cumsum(counts), side.reader.feature_width
    step = max(_CHUNK_BYTES // max(int(counts.max(initial=1)) * width * 4, 1), 1)
    rows: Tensor | None = None
    failed: dict[int, str] = {}
    for first in range(0, len(counts), step):
        places = np.arange(first, min(first + step, len(counts)))
        (values, _), bad = side.read(places)
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
                    f"dtype: features of {side.items.ids[min(overflown)]} are too large for {dtype}. "
                    "Take torch.bfloat16, or None to keep them as they are."
                )
        advance(len(places))
    if rows is None:
        rows = torch.zeros(0, width, dtype=dtype or torch.float32, device=device)
    return _Features(rows, counts), failed
