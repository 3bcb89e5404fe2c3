"""Modality loaders: one modality of a split, read for training, some of its items at a time."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from maxmatch.core.checks import as_tensor
from maxmatch.core.progress import Skipped
from maxmatch.core.types import Inputs
from maxmatch.data.augment import Augmentation
from maxmatch.data.dataset import Items, Split
from maxmatch.model.inputs import FeatureReader, PixelReader, Reader, TextReader

_TEXTS_AT_ONCE = 10_000
_log = logging.getLogger(__name__)


def log_skipped(item: Skipped) -> None:
    """The usual report: a warning in the log."""
    _log.warning("%s Its group is left out of training.", item)


@runtime_checkable
class ModalityLoader(Protocol):
    """How the items of one modality are read."""

    def read(self, places: np.ndarray, seed: int | None) -> tuple[Inputs, dict[int, str]]:
        """Those at some places, in that order; and of those that could not be read the place and the reason. What
        stands for them in the inputs means nothing.
        """
        ...


class PictureLoader:
    """Pictures, decoded one by one; with a crop, a random part of each, which depends on seed and place alone."""

    def __init__(self, items: Items, reader: PixelReader, crop: Augmentation | None) -> None:
        self.items, self.reader, self.crop = items, reader, crop

    def read(self, places: np.ndarray, seed: int | None) -> tuple[Inputs, dict[int, str]]:
        """Pixels (items, 3, size, size)."""
        size = self.crop.size if self.crop is not None else self.reader.transform.size
        pixels, failed = _each(self.items, places, lambda place: self._one(place, seed), torch.zeros(3, size, size))
        return self.reader.collate(pixels), failed

    def _one(self, place: int, seed: int | None) -> Tensor:
        source = self.items.values[place]
        if self.crop is None or seed is None:
            return self.reader.read(source)
        return self.crop(source, np.random.default_rng([seed, place]))


class FeatureLoader:
    """Features extracted beforehand, padded to the item that has most.

    In bulk where the values are an array (items, count, width), or have a method `take(places)` that gives such an
    array, or one and a mask of what is real in it, real features first; then as they are stored, in half precision too.
    One by one otherwise.
    """

    def __init__(self, items: Items, reader: FeatureReader) -> None:
        self.items, self.reader = items, reader
        width = _width(items)
        if width not in (None, reader.feature_width):
            raise ValueError(
                f"{items.ids[0]}: expected features of width {reader.feature_width}, got {width}. "
                "Take the features that the model was made for, or set feature_width."
            )

    def read(self, places: np.ndarray, seed: int | None = None) -> tuple[Inputs, dict[int, str]]:
        """Features (items, count, width)."""
        try:
            bulk = _take(self.items.values, places)
        except (ValueError, OSError):
            bulk = None  # one by one, it will turn out which it is
        except Exception as error:
            error.add_note(f"while reading {len(places)} items, {self.items.ids[int(places[0])]} the first of them")
            raise
        return self._one_by_one(places) if bulk is None else self._checked(*bulk, places)

    def counts(self) -> np.ndarray:
        """How many features each item has."""
        counts = np.ones(len(self.items), np.int64)
        for place in range(len(counts)):
            with suppress(ValueError, OSError):  # reported when it is read for its values
                counts[place] = len(self.items.values[place])
        return counts

    def _checked(
        self, values: np.ndarray, mask: np.ndarray | None, places: np.ndarray
    ) -> tuple[Inputs, dict[int, str]]:
        """The same checks as the reader's, all items at once."""
        assert values.ndim == 3
        assert values.shape[2] == self.reader.feature_width
        tensor = as_tensor(values.astype(values.dtype.newbyteorder("="), copy=False))
        tensor = tensor if tensor.is_floating_point() else tensor.float()
        real = torch.ones(values.shape[:2], dtype=torch.bool) if mask is None else as_tensor(mask)
        longest = int(real.sum(1).max()) if len(real) else 0
        tensor, real = tensor[:, :longest], real[:, :longest]
        failed = {int(places[row]): "no features." for row in (~real.any(1)).nonzero()[:, 0].tolist()}
        # A sum is finite where all its terms are, save for giants: only suspects are looked at closely.
        for row in (~torch.isfinite(tensor.sum((1, 2), dtype=torch.float32))).nonzero()[:, 0].tolist():
            if not bool(torch.isfinite(tensor[row]).all()):
                failed[int(places[row])] = "NaN or infinite values among its features. Extract them again."
        return Inputs(tensor, real), failed

    def _one_by_one(self, places: np.ndarray) -> tuple[Inputs, dict[int, str]]:
        features, failed = _each(
            self.items,
            places,
            lambda place: self.reader.read(self.items.values[place]),
            torch.zeros(1, self.reader.feature_width),
        )
        return self.reader.collate(features), failed


class TextLoader:
    """Texts, tokenised once and kept as one padded array. It is what a text encoder takes, on any device."""

    def __init__(self, ids: Tensor, lengths: np.ndarray) -> None:
        self.ids, self.lengths = ids, lengths
        self._lengths = torch.from_numpy(lengths).to(ids.device)

    def read(self, places: np.ndarray, seed: int | None = None) -> tuple[Inputs, dict[int, str]]:
        """Token ids (items, tokens), no wider than the longest text among them."""
        longest = int(self.lengths[places].max(initial=1))
        index = on_device(places, self.ids.device)
        mask = torch.arange(longest, device=self.ids.device) < self._lengths[index][:, None]
        return Inputs(self.ids[:, :longest].index_select(0, index).long(), mask), {}

    def to(self, device: torch.device) -> "TextLoader":
        """The same on a device."""
        return TextLoader(self.ids.to(device), self.lengths)


def tokenised(texts: Sequence[str], reader: TextReader) -> TextLoader:
    """All texts, tokenised. What is longer than the tokenizer's maximum is cut, with a warning."""
    parts = []
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        stop = min(start + _TEXTS_AT_ONCE, len(texts))
        ids, mask = reader.collate([reader.read(texts[place]) for place in range(start, stop)])
        assert mask is not None
        parts.append((ids.int(), mask.sum(1).numpy()))
    width = max((ids.shape[1] for ids, _ in parts), default=1)
    padding = int((reader.tokenizer.padding or {}).get("pad_id", 0))
    whole = torch.full((len(texts), width), padding, dtype=torch.int32)
    for start, (ids, _) in zip(range(0, len(texts), _TEXTS_AT_ONCE), parts, strict=True):
        whole[start : start + len(ids), : ids.shape[1]] = ids
    return TextLoader(whole, np.concatenate([lengths for _, lengths in parts]) if parts else np.zeros(0, np.int64))


def loader_for(
    modality: str, split: Split, readers: Mapping[str, Reader], crops: Mapping[str, Augmentation]
) -> ModalityLoader:
    """The loader of a modality, by the kind of reader that the model's tower has."""
    items, reader = split[modality], readers[modality]
    if modality in crops and not isinstance(reader, PixelReader):
        raise ValueError(f"crops: only pictures can be cropped, but {modality!r} is read by a {type(reader).__name__}.")
    if isinstance(reader, PixelReader):
        return PictureLoader(items, reader, crops.get(modality))
    if isinstance(reader, FeatureReader):
        return FeatureLoader(items, reader)
    if isinstance(reader, TextReader):
        return tokenised(items.values, reader)
    raise ValueError(f"readers: expected pictures, features or texts for {modality!r}, got {type(reader).__name__}.")


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A small array on the device, without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _each(
    items: Items, places: np.ndarray, read: Callable[[int], Tensor], instead: Tensor
) -> tuple[list[Tensor], dict[int, str]]:
    """What is read at each place, or `instead`; and why it could not be read. Whatever else goes wrong is a fault of
    the program, and stops it with the item's name.
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
    return results, failed


def _width(items: Items) -> int | None:
    """The width of the first item's features, if it is known."""
    with suppress(ValueError, OSError, IndexError):
        shape: tuple[int, ...] = getattr(items.values[0], "shape", ())
        return int(shape[1]) if len(shape) == 2 else None
    return None


def _take(values: Any, places: np.ndarray) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Values in bulk, and which of them are real; None where that is not possible."""
    if isinstance(values, np.ndarray):
        return (values[places], None) if values.ndim == 3 else None  # its own `take` is about single numbers
    if not hasattr(values, "take"):
        return None
    taken = values.take(places)
    return taken if isinstance(taken, tuple) else (taken, None)
