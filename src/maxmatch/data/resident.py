"""Feeding from the device: features, pictures and tokenised captions lie there, and batches are made by indexing."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from maxmatch.data.augment import SizeAugmentation
from maxmatch.data.items import Split
from maxmatch.data.resident_pictures import ResidentPictures
from maxmatch.data.sampler import Plan
from maxmatch.data.selection import Selection
from maxmatch.data.sides import FeatureSide, TextSide, Unreadable, log_unreadable, on_device, side_for
from maxmatch.data.transforms import Augmentation
from maxmatch.readers import PixelReader, Reader
from maxmatch.types import Batch, Inputs

_CHUNK = 2**28  # bytes that are on their way to the device at once

Progress = Callable[[int, int], object]
"""Told how many items are on the device, and how many there are."""


class ResidentFeed:
    """All features and captions on the device, copied there piece by piece; no work per item and no waiting afterwards.

    readers, captions, drop, crops, report, unreadable: as for `MappedFeed`, and the batches are the same, but for the
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
        report: Callable[[Unreadable], None] = log_unreadable,
        progress: Progress | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.unreadable: dict[tuple[str, str], str] = {}
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
                pictures = ResidentPictures(split[modality], reader, crop, self.device, max(threads, 1), progress)
                self._sides[modality], failed = pictures, pictures.failed
            else:
                assert isinstance(side, FeatureSide)
                self._sides[modality], failed = _copied(side, self.device, dtype, progress)
            self._readable[split[modality].groups[list(failed)]] = False
            for place, reason in failed.items():
                item = Unreadable(modality, str(split[modality].ids[place]), reason)
                self.unreadable[item.modality, item.id] = reason
                report(item)

    def batches(self, plans: Iterable[Plan]) -> Iterator[Batch]:
        """The batches, on the device, in the order of their plans."""
        for plan in plans:
            yield self._augment(self._batch(plan), plan.seed)

    def _batch(self, plan: Plan) -> Batch:
        inputs, groups = {}, {}
        for modality, places in self._selection(plan).items():
            of = self._selection.groups[modality][places]
            keep = self._readable[of]
            if not keep.any():
                first = next(iter(self.unreadable.items()))
                raise ValueError(
                    f"no group of a batch could be read. The first reason: {Unreadable(*first[0], first[1])}"
                )
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
    side: FeatureSide, device: torch.device, dtype: torch.dtype | None, progress: Progress | None
) -> tuple[_Features, dict[int, str]]:
    """All features on the device, and what could not be read. The host never holds more than a piece of them."""
    counts = side.counts()
    ends, width = np.cumsum(counts), side.reader.feature_width
    step = max(_CHUNK // max(int(counts.max(initial=1)) * width * 4, 1), 1)
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
        if progress is not None:
            progress(int(places[-1]) + 1, len(counts))
    if rows is None:
        rows = torch.zeros(0, width, dtype=dtype or torch.float32, device=device)
    return _Features(rows, counts), failed
