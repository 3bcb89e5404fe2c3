"""Reading many items: threads read the next batches while the model works, and a bar shows the progress."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from maxmatch.core.progress import Skipped, bar, map_ahead
from maxmatch.model.images import ImageError

_LONG_WORK = 1_000  # items, from which on a progress bar is shown
_PLAIN = (ImageError, FileNotFoundError, PermissionError)  # errors made of a message alone
_READERS = 4  # batches read at once while the model works


@runtime_checkable
class Reads(Protocol):
    """What is used of a `Reader` here. What it collates may be tensors or arrays: this module does not import torch."""

    def read(self, item: Any, /) -> Any:
        """One item, checked."""
        ...

    def collate(self, items: Sequence[Any], /) -> Any:
        """A batch of items that were read."""
        ...


@runtime_checkable
class MeasuredReads(Reads, Protocol):
    """One that knows how long an item is, without reading it."""

    def length(self, item: Any, /) -> int:
        """Roughly."""
        ...


class ReadBatch(NamedTuple):
    """What was read of some items: where they stand in the input, the encoder's inputs, and what could not be read."""

    places: list[int]
    inputs: Any
    """What the reader has collated; None where nothing could be read."""
    skipped: list[Skipped]


def _read(reader: Reads, items: Sequence[Any], places: Sequence[int], skip: bool) -> ReadBatch:
    """A batch of items; those that cannot be read are named."""
    good, skipped = {}, []
    for place in places:
        try:
            good[place] = reader.read(items[place])
        except (ValueError, OSError) as error:
            if not skip:
                kind = type(error) if type(error) in _PLAIN else ValueError
                raise kind(f"item {place}: {error}") from error
            skipped.append(Skipped(f"item {place}", str(error), place))
    return ReadBatch(list(good), reader.collate(list(good.values())) if good else None, skipped)


def read_ahead(
    reader: Reads, items: Sequence[Any], batches: Sequence[Sequence[int]], skip: bool, workers: int | None = None
) -> Iterator[ReadBatch]:
    """The batches in order, the next few being read in `workers` threads while the model works on one."""
    if len(batches) < 2:  # nothing to read meanwhile
        yield from (_read(reader, items, places, skip) for places in batches)
        return
    workers = workers or min(_READERS, os.cpu_count() or 1)
    yield from map_ahead(lambda places: _read(reader, items, places, skip), batches, workers, ahead=1)


def checked_items(items: Iterable[Any], batch_size: int, errors: str) -> list[Any]:
    """The items given to `encode`, as a list. ValueError where they are not a list of items."""
    # uint8 of height × width × channels is one picture, not a list of its rows.
    picture = str(getattr(items, "dtype", "")).endswith("uint8") and tuple(items.shape[2:]) in ((3,), (4,))  # type: ignore[attr-defined]
    listed = hasattr(items, "__iter__") or hasattr(items, "__getitem__")
    if isinstance(items, str | bytes | Path) or picture or not listed:
        raise ValueError(f"items: expected a list, got one {type(items).__name__}. For one item use [item].")
    if errors not in ("raise", "skip"):
        raise ValueError(f"errors: expected 'raise' or 'skip', got {errors!r}.")
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}.")
    return list(items)


def in_batches(
    reader: MeasuredReads, items: Sequence[Any], modality: str, batch_size: int, show: bool | None, skip: bool,
    work: Callable[[list[int], Any], object],
) -> tuple[list[int], list[Skipped]]:  # fmt: skip
    """Read all items and call `work` with the places and the inputs of each batch; items of similar length share one.

    Returns which were read, and which were not.
    """
    order = sorted(range(len(items)), key=lambda place: -reader.length(items[place]))
    places = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    skipped: list[Skipped] = []
    shown = False if show is None and len(items) <= _LONG_WORK else show
    with bar(modality, len(items), shown) as advance:
        for batch in read_ahead(reader, items, places, skip):
            if batch.inputs is not None:
                work(batch.places, batch.inputs)
            skipped += batch.skipped
            advance(len(batch.places) + len(batch.skipped))
    lost = {item.index for item in skipped}
    return [place for place in range(len(items)) if place not in lost], sorted(
        skipped, key=lambda item: item.index or 0
    )
