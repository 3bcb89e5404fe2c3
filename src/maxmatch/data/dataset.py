"""What every format is read into: the items of each modality, the group of each, and the problems found."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, overload

import numpy as np

from maxmatch.core.progress import Advance, quiet

_SHOWN = 5  # problems that are printed; the rest is counted


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a data set. Its text is "file:line: what. cure"."""

    file: Path
    what: str
    """What was found, and what was expected; without a full stop."""
    cure: str
    """What to do, as a whole sentence."""
    line: int | None = None
    """Counted from 1: the line of a text file, the row of a table or an array."""
    fatal: bool = False
    """Whether a file, a split or everything is lost because of it. Otherwise one item is left out, or is merely worth a
    look."""

    def __str__(self) -> str:
        where = str(self.file) if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.what}. {self.cure}"


class DataError(ValueError):
    """Data that cannot be used as it is."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


Report = Callable[[Problem], None]
"""Called by a reader with each problem. Where the call returns, the reader leaves out what is bad and continues; where
it cannot, it raises DataError with the same problem."""


def refuse(problem: Problem) -> None:
    """The strictest report: the first problem ends the reading."""
    raise DataError(problem)


def give_up(report: Report, problem: Problem) -> NoReturn:
    """Report a problem that makes reading impossible, and raise it."""
    problem = replace(problem, fatal=True)
    report(problem)
    raise DataError(problem)


@contextmanager
def report_first(say: Callable[[str], object]) -> Iterator[Report]:
    """A report that prints the first problems and counts the others; what is raised as well is not printed twice."""
    count = 0
    fatal: list[Problem] = []

    def report(problem: Problem) -> None:
        nonlocal count
        if problem.fatal:
            fatal.append(problem)
            return
        count += 1
        if count <= _SHOWN:
            say(str(problem))

    yield report
    for problem in fatal:
        say(str(problem))
    if count > _SHOWN:
        say(f"… and {count - _SHOWN} more problems. `maxmatch data check` lists them all.")


ZEROS = "all values are zero"
_CHUNK_BYTES = 4 * 2**20  # little enough to stay in a processor's cache
_MAPPED_BYTES = 64 * 2**20
_PROBE = 64  # values at the start of a row, on one page of the disk, that tell two rows apart almost always


class Padded(NamedTuple):
    """Features of several items: (items, most features, width), zero where an item has fewer; True where real."""

    values: np.ndarray
    mask: np.ndarray


class LazyItems(Sequence[Any], ABC):
    """Items that are read when they are asked for, one by one; a slice of them is as lazy."""

    @abstractmethod
    def item(self, position: int) -> Any:
        """One of the items."""

    @overload
    def __getitem__(self, position: int) -> Any: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Any]: ...
    def __getitem__(self, position: int | slice) -> Any:
        if isinstance(position, slice):
            return pick(self, np.arange(len(self))[position])
        return self.item(int(position))  # NumPy's integers, too


class Rows(LazyItems):
    """Some rows of an array (rows, features, width). Item i is row `numbers[i]`, an array (features, width).

    The array is usually a memory map. Sent to another process, it is opened again there and not copied.
    """

    def __init__(self, array: np.ndarray, numbers: np.ndarray) -> None:
        assert array.ndim == 3
        self.array, self.numbers = array, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def width(self) -> int:
        """Of each feature."""
        return int(self.array.shape[2])

    def item(self, position: int) -> np.ndarray:
        """(features, width)"""
        return np.asarray(self.array[self.numbers[position]])

    def take(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """A batch of items: (items, features, width)."""
        numbers = self.numbers[np.asarray(positions, np.int64)]
        values = np.empty((len(numbers), *self.array.shape[1:]), self.array.dtype)
        runs = pairwise([0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)])
        _fill(self.array, [(values[begin:end], int(numbers[begin])) for begin, end in runs if begin < end])
        return values

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rows_again, (_place(self.array), self.numbers))


class RaggedRows(LazyItems):
    """Items of different numbers of features. Item i is array[starts[k]:starts[k + 1]], k = numbers[i]."""

    def __init__(self, array: np.ndarray, starts: np.ndarray, numbers: np.ndarray) -> None:
        assert array.ndim == 2
        self.array, self.starts, self.numbers = array, starts, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def width(self) -> int:
        """Of each feature."""
        return int(self.array.shape[1])

    def item(self, position: int) -> np.ndarray:
        """(features, width)"""
        number = self.numbers[position]
        return np.asarray(self.array[self.starts[number] : self.starts[number + 1]])

    def take(self, positions: Sequence[int] | np.ndarray) -> Padded:
        """A batch of items, padded to the longest."""
        numbers = self.numbers[np.asarray(positions, np.int64)]
        counts = self.starts[numbers + 1] - self.starts[numbers]
        mask = np.arange(counts.max(initial=0)) < counts[:, None]
        values = np.zeros((*mask.shape, self.array.shape[1]), self.array.dtype)
        pieces = zip(values, counts.tolist(), self.starts[numbers].tolist(), strict=True)
        _fill(self.array, [(value[:count], start) for value, count, start in pieces])
        return Padded(values, mask)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_ragged_again, (_place(self.array), self.starts, self.numbers))


class Picked(LazyItems):
    """Some items of a sequence."""

    def __init__(self, values: Sequence[Any], numbers: np.ndarray) -> None:
        self.values, self.numbers = values, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def item(self, position: int) -> Any:
        """One of them."""
        return self.values[int(self.numbers[position])]


def pick(values: Sequence[Any], positions: np.ndarray) -> Sequence[Any]:
    """The items at some positions, of the same kind of sequence where that matters."""
    if isinstance(values, list | tuple):
        return [values[position] for position in positions]
    if isinstance(values, Rows):
        return Rows(values.array, values.numbers[positions])
    if isinstance(values, RaggedRows):
        return RaggedRows(values.array, values.starts, values.numbers[positions])
    return Picked(values, positions)


def bad_rows(rows: Rows | RaggedRows, chunk: int = _CHUNK_BYTES, advance: Advance = quiet) -> Iterator[tuple[int, str]]:
    """The items that hold NaN or infinite values, or nothing but zeros: the number in the file, counted from 0, and
    what is wrong. Reads the file once, in its order, and holds no more than a few times `chunk` bytes. advance is
    called with the number of rows that were looked at.
    """
    unsigned = np.dtype(f"u{rows.array.dtype.itemsize}")
    infinity = np.array(np.inf, rows.array.dtype.newbyteorder("=")).view(unsigned) << unsigned.type(1)
    for numbers, values, mask in _chunks(rows, chunk):
        # A number's bits without its sign are 0 for zero, and no less than infinity's for infinity and NaN.
        bits = values.view(unsigned)
        bits <<= unsigned.type(1)
        largest = bits.max(axis=2)
        for place in np.flatnonzero((largest >= infinity).any(axis=1) | (largest == 0).all(axis=1)):
            bad = int((largest[place] >= infinity).sum())
            what = f"NaN or infinite values in {bad} of {mask[place].sum()} features" if bad else ZEROS
            yield int(numbers[place]), what
        advance(len(numbers))


def _chunks(rows: Rows | RaggedRows, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The rows in the order of the file: their numbers, features (items, features, width), and which are real."""
    numbers = np.unique(rows.numbers)
    size = rows.array.shape[1] if isinstance(rows, Rows) else int(np.diff(rows.starts).max(initial=1))
    step = max(1, chunk // max(1, size * rows.array.shape[-1] * rows.array.dtype.itemsize))
    for begin in range(0, len(numbers), step):
        part, array = numbers[begin : begin + step], fresh(rows.array)
        if isinstance(rows, Rows):
            values = Rows(array, part).take(range(len(part)))
            mask = np.ones(values.shape[:2], np.bool_)
        else:
            values, mask = RaggedRows(array, rows.starts, part).take(range(len(part)))
        yield part, np.ascontiguousarray(values, values.dtype.newbyteorder("=")), mask


def repeated(array: np.ndarray, thorough: bool = True) -> np.ndarray:
    """Which rows are the same, bit by bit, as the row before. Unless thorough, only their beginnings are compared;
    otherwise whole rows too, where the beginnings agree.
    """
    same = np.zeros(len(array), np.bool_)
    step = max(1, min(4096, _MAPPED_BYTES // max(array[:1].nbytes, 1)))
    for begin in range(0, len(array) - 1, step):
        part = fresh(array)[begin : begin + step + 1]
        probes = np.ascontiguousarray(part.reshape(len(part), -1)[:, :_PROBE]).view(np.uint8)
        alike = np.flatnonzero((probes[1:] == probes[:-1]).all(axis=1))
        if thorough:
            alike = alike[[part[place].tobytes() == part[place + 1].tobytes() for place in alike]]
        same[begin + 1 + alike] = True
    return same


def fresh(array: np.ndarray) -> np.ndarray:
    """A memory map opened again: what was read through it leaves the memory when it is dropped."""
    return _opened(_place(array))


def _fill(array: np.ndarray, pieces: Sequence[tuple[np.ndarray, int]]) -> None:
    """Fill each piece with the rows of the array from some row on.

    From a file they are read, not copied through the memory map: that would read megabytes ahead for each row, and is
    about eight times slower when the file is not in memory.
    """
    place = _place(array)
    if not isinstance(place, _Place) or place.order != "C" or not hasattr(os, "preadv"):
        for piece, row in pieces:
            piece[...] = array[row : row + len(piece)]
        return
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    with open(place.file, "rb", buffering=0) as file:
        for piece, row in pieces:
            left, offset = piece.reshape(-1).view(np.uint8).data, place.offset + row * row_bytes
            while left:
                count = os.preadv(file.fileno(), [left], offset)
                if not count:
                    raise OSError(f"{place.file}: the file ends early; it was changed while it was read.")
                left, offset = left[count:], offset + count


class _Place(NamedTuple):
    """Where a memory map lies on the disk."""

    file: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    order: Literal["C", "F"]


def _place(array: np.ndarray) -> _Place | np.ndarray:
    """Where the array lies; the array itself where it is in memory, or is only a part of a file."""
    if not isinstance(array, np.memmap) or array.filename is None:
        return array
    if Path(array.filename).stat().st_size != array.offset + array.nbytes:
        return array
    order: Literal["C", "F"] = "C" if array.flags.c_contiguous else "F"
    return _Place(str(array.filename), array.dtype.str, array.offset, array.shape, order)


def _opened(place: _Place | np.ndarray) -> np.ndarray:
    if not isinstance(place, _Place):
        return place
    return np.memmap(place.file, place.dtype, "r", place.offset, place.shape, place.order)


def _rows_again(place: _Place | np.ndarray, numbers: np.ndarray) -> Rows:
    return Rows(_opened(place), numbers)


def _ragged_again(place: _Place | np.ndarray, starts: np.ndarray, numbers: np.ndarray) -> RaggedRows:
    return RaggedRows(_opened(place), starts, numbers)


IMAGE, TEXT = "image", "text"


@dataclass(frozen=True)
class Items:
    """The items of one modality, those of a group side by side.

    A group is what belongs together: a picture and its captions, and whatever other modality describes the same thing.
    Between two modalities, items of one group are true pairs and all others are not.

    values: the raw items as `SetEncoder.encode` takes them: the `Path` or the bytes of a picture, a text, an array of
    features. Indexing reads one item from the disk, where it lies there; nothing is read before.
    groups: the group of each item, ascending from 0, none left out.
    ids: the name of each item in its source (COCO's image and caption ids, file names); no two are the same.
    metadata: whatever else the source holds about each item.
    """

    values: Sequence[Any]
    groups: np.ndarray
    ids: Sequence[str]
    metadata: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        assert len(self.values) == len(self.groups) == len(self.ids)
        assert self.metadata is None or len(self.metadata) == len(self.values)
        steps = np.diff(self.groups, prepend=0)
        assert not len(steps) or (self.groups[0] == 0 and steps.min() >= 0 and steps.max() <= 1), "groups have gaps"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def starts(self) -> np.ndarray:
        """Where each group begins, and at the end how many items there are: group g is starts[g]:starts[g + 1]."""
        counts = np.bincount(self.groups) if len(self.groups) else np.zeros(0, np.int64)
        return np.concatenate([[0], np.cumsum(counts)])


@dataclass(frozen=True)
class Split:
    """One split of a data set. Every modality has the same groups."""

    items: Mapping[str, Items]

    def __post_init__(self) -> None:
        counts = {name: int(items.groups[-1]) + 1 if len(items) else 0 for name, items in self.items.items()}
        assert len(set(counts.values())) == 1, f"the modalities have different groups: {counts}"

    def __getitem__(self, modality: str) -> Items:
        if modality not in self.items:
            raise ValueError(f"modality: this data has {', '.join(self.items)}, got {modality!r}.")
        return self.items[modality]

    @property
    def size(self) -> int:
        """How many groups there are."""
        items = next(iter(self.items.values()))
        return int(items.groups[-1]) + 1 if len(items) else 0


@dataclass(frozen=True)
class Dataset:
    """A data set as it was found on the disk: splits by name ("train", "val", "test", …)."""

    path: Path
    format: str
    splits: Mapping[str, Split] = field(default_factory=dict)

    def split(self, name: str) -> Split:
        """A split by its name."""
        if name not in self.splits:
            raise ValueError(f"{self.path}: has the splits {', '.join(self.splits)}, not {name!r}.")
        return self.splits[name]


def first_of_each(dataset: Dataset, modality: str, most: int) -> Dataset:
    """The data set with the first so many items of a modality in each group."""
    splits = {}
    for name, split in dataset.splits.items():
        items = split.items.get(modality)
        if items is not None:
            place = np.arange(len(items)) - items.starts[items.groups]
            split = Split({**split.items, modality: _at(items, np.flatnonzero(place < most))})
        splits[name] = split
    return replace(dataset, splits=splits)


def without_groups(split: Split, groups: Collection[int] | np.ndarray) -> Split:
    """The split without some groups."""
    gone = np.fromiter(groups, np.int64)
    kept = {}
    for name, items in split.items.items():
        kept[name] = _at(items, np.flatnonzero(~np.isin(items.groups, gone)))
    return Split(kept)


def without_items(split: Split, modality: str, places: Collection[int] | np.ndarray) -> Split:
    """The split without some items of a modality, and without the groups that have no other item of it."""
    items = split[modality]
    kept = np.setdiff1d(np.arange(len(items)), np.fromiter(places, np.int64))
    bare = np.setdiff1d(items.groups, items.groups[kept])
    return Split({**without_groups(split, bare).items, modality: _at(items, kept)})


def _at(items: Items, places: np.ndarray) -> Items:
    """The items at some places; the groups that are left are counted anew."""
    if len(places) == len(items):
        return items
    metadata = None if items.metadata is None else pick(items.metadata, places)
    groups = np.unique(items.groups[places], return_inverse=True)[1]
    return Items(pick(items.values, places), groups, pick(items.ids, places), metadata)
