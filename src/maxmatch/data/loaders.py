"""Loaders: the items of one modality, read at some places. seed: of everything random about them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from maxmatch.core.checks import as_tensor
from maxmatch.core.devices import on_device
from maxmatch.core.types import Inputs
from maxmatch.data.augment import Augmentation, RandomCrop
from maxmatch.data.dataset import Items
from maxmatch.model.inputs import FeatureReader, PixelReader, Reader, TextReader

_TEXTS_AT_ONCE = 1_000  # padded together, and so not many
_CHUNK_BYTES = 2**28  # of features on their way to the device at once

Loaded = tuple[Inputs, dict[int, str]]
"""The inputs, and why an item could not be read, by its place; what the inputs hold for such an item means nothing."""


def loader_for(
    modality: str, items: Items, reader: Reader, crop: Augmentation | None
) -> "PictureLoader | FeatureLoader | PackedItems":
    """The loader of a modality, by the kind of reader that the model's tower has."""
    if crop is not None and not isinstance(reader, PixelReader):
        raise ValueError(f"crops: only pictures can be cropped, but {modality!r} is read by a {type(reader).__name__}.")
    if isinstance(reader, PixelReader):
        return PictureLoader(items, reader, crop)
    if isinstance(reader, FeatureReader):
        return FeatureLoader(items, reader)
    if isinstance(reader, TextReader):
        return tokenised(items.values, reader)
    raise ValueError(f"readers: expected pictures, features or texts for {modality!r}, got {type(reader).__name__}.")


class PictureLoader:
    """Pictures, decoded one by one; with a crop, a random part of each, which depends on seed and place alone."""

    def __init__(self, items: Items, reader: PixelReader, crop: Augmentation | None) -> None:
        self.items, self.reader, self.crop = items, reader, crop

    def read(self, places: np.ndarray, seed: int | None) -> Loaded:
        """Pixels (items, 3, size, size)."""

        def one(place: int) -> Tensor:
            source = self.items.values[place]
            if self.crop is None or seed is None:
                return self.reader.read(source)
            return self.crop(source, np.random.default_rng([seed, place]))

        crop = self.crop if seed is not None else None
        instead = torch.zeros(3, crop.size, crop.size) if isinstance(crop, RandomCrop) else self.reader.blank()
        return _one_by_one(self.items, self.reader, places, one, instead)


class FeatureLoader:
    """Features extracted beforehand, padded to the item that has most.

    In bulk where the values are an array (items, count, width), or have a method `take(places)` that gives such an
    array, or one and a mask of what is real in it, real features first; then as they are stored, in half precision too.
    One by one otherwise.
    """

    def __init__(self, items: Items, reader: FeatureReader) -> None:
        self.items, self.reader = items, reader
        try:
            shape: tuple[int, ...] = getattr(items.values[0], "shape", ())
        except (ValueError, OSError, IndexError):  # reported when it is fed
            shape = ()
        if len(shape) == 2 and shape[1] != reader.feature_width:
            raise ValueError(
                f"{items.ids[0]}: expected features of width {reader.feature_width}, got {shape[1]}. "
                "Take the features that the model was made for, or set feature_width."
            )

    def read(self, places: np.ndarray, seed: int | None = None, device: torch.device | None = None) -> Loaded:
        """Features (items, count, width); in bulk they go to the device, where they are checked."""
        try:
            bulk = self._take(places)
        except (ValueError, OSError):
            bulk = None  # which item it is shows one by one
        except Exception as error:
            error.add_note(f"while reading {len(places)} items, {self.items.ids[int(places[0])]} the first of them")
            raise
        if bulk is not None:
            return self._checked(*bulk, places, device)
        instead = torch.zeros(1, self.reader.feature_width)
        return _one_by_one(
            self.items, self.reader, places, lambda place: self.reader.read(self.items.values[place]), instead
        )

    def counts(self) -> np.ndarray:
        """How many features each item has."""
        counts = np.ones(len(self.items), np.int64)
        for place in range(len(counts)):
            with suppress(ValueError, OSError):  # reported when it is read for its values
                counts[place] = len(self.items.values[place])
        return counts

    def _take(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Values in bulk, and which of them are real; None where that is not possible."""
        values: Any = self.items.values
        if isinstance(values, np.ndarray):  # whose own `take` is about single numbers
            return (values[places], None) if values.ndim == 3 else None
        if not hasattr(values, "take"):
            return None
        taken = values.take(places)
        return taken if isinstance(taken, tuple) else (taken, None)

    def _checked(
        self, values: np.ndarray, mask: np.ndarray | None, places: np.ndarray, device: torch.device | None
    ) -> Loaded:
        """The same checks as the reader's, all items at once."""
        assert values.ndim == 3
        assert values.shape[2] == self.reader.feature_width
        tensor = as_tensor(values.astype(values.dtype.newbyteorder("="), copy=False))
        tensor = tensor if tensor.is_floating_point() else tensor.float()
        real = torch.ones(values.shape[:2], dtype=torch.bool) if mask is None else as_tensor(mask)
        longest = int(real.sum(1).max()) if len(real) else 0
        tensor, real = tensor[:, :longest].to(device), real[:, :longest]
        failed = {int(places[row]): "no features." for row in (~real.any(1)).nonzero()[:, 0].tolist()}
        # A sum is finite where all its terms are, save for giants: only suspects are looked at closely.
        for row in (~torch.isfinite(tensor.sum((1, 2), dtype=torch.float32))).nonzero()[:, 0].tolist():
            if not bool(torch.isfinite(tensor[row]).all()):
                failed[int(places[row])] = "NaN or infinite values among its features. Extract them again."
        return Inputs(tensor, real), failed


class PackedItems:
    """The token ids or features of all items, on any device: one after the other in `rows`, after a row of padding."""

    def __init__(self, rows: Tensor, counts: np.ndarray) -> None:
        self.rows, self.counts = rows, counts
        self._ends = np.cumsum(counts) + 1

    def read(self, places: np.ndarray, seed: int | None = None) -> Loaded:
        """(items, count, …), padded to the item that has most."""
        counts, ends, device = self.counts[places], self._ends[places], self.rows.device
        start, end = on_device(np.stack([ends - counts, ends]), device)[..., None]
        index = start + torch.arange(int(counts.max(initial=1)), device=device)
        mask = index < end
        values = self.rows.index_select(0, (index * mask).flatten()).view(*mask.shape, *self.rows.shape[1:])
        return Inputs(values.float() if values.is_floating_point() else values.long(), mask), {}


def tokenised(texts: Sequence[str], reader: TextReader) -> PackedItems:
    """All texts, tokenised. What is longer than the tokenizer's maximum is cut, with a warning."""
    padding = int((reader.tokenizer.padding or {}).get("pad_id", 0))
    rows, counts = [torch.tensor([padding], dtype=torch.int32)], [np.zeros(0, np.int64)]
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        stop = min(start + _TEXTS_AT_ONCE, len(texts))
        ids, mask = reader.collate([reader.read(texts[place]) for place in range(start, stop)])
        assert mask is not None
        rows.append(ids[mask].int())
        counts.append(mask.sum(1).numpy())
    return PackedItems(torch.cat(rows), np.concatenate(counts))


def packed(loader: FeatureLoader, device: torch.device) -> tuple[PackedItems, dict[int, str]]:
    """All features on the device, and why some cannot be read. The host never holds more than a piece of them."""
    counts, width = loader.counts(), loader.reader.feature_width
    rows = torch.zeros(1, width, device=device)
    failed: dict[int, str] = {}
    filled, step = 1, max(_CHUNK_BYTES // max(int(counts.max(initial=1)) * width * 4, 1), 1)
    for first in range(0, len(counts), step):
        places = np.arange(first, min(first + step, len(counts)))
        (values, _), bad = loader.read(places, device=device)
        failed |= bad
        here = torch.from_numpy(counts[places])
        # An item that could not be read has a place too, and may be the longest.
        values = pad(values, (0, 0, 0, max(int(here.max()) - values.shape[1], 0)))
        real = torch.arange(values.shape[1]) < here[:, None]
        piece = values.flatten(0, 1) if bool(real.all()) else values[real.to(values.device)]
        assert len(piece) == int(here.sum()), f"items from {first} on have other counts than their source says"
        if not first:
            rows = torch.zeros(1 + int(counts.sum()), width, dtype=piece.dtype, device=device)
        rows[filled : filled + len(piece)] = piece.to(device)
        filled += len(piece)
    return PackedItems(rows, counts), failed


def _one_by_one(
    items: Items, reader: Reader, places: np.ndarray, read: Callable[[int], Tensor], instead: Tensor
) -> Loaded:
    """What is read at each place, or `instead`; and why it could not be read. Any other error is a fault of the
    program, and stops it with the item's name.
    """
    results, failed = [], {}
    for place in places.tolist():
        try:
            results.append(read(place))
        except (ValueError, OSError) as error:
            failed[place] = str(error)
            results.append(instead)
        except Exception as error:
            error.add_note(f"while reading {items.ids[place]}")
            raise
    return reader.collate(results), failed
