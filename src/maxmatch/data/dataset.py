"""What every format is read into: the items of each modality, the group of each, and the problems found."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, overload

import numpy as np

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


class Padded(NamedTuple):
    """Features of several items: (items, most features, width), zero where an item has fewer; True where real."""

    values: np.ndarray
    mask: np.ndarray


class LazyItems(Sequence[Any]):
    """Items that are read when they are asked for, one by one; a slice of them is as lazy.

    handles: one per item, such as a path, a member of a tar or the number of a row. read: from a handle to its item.
    """

    def __init__(self, handles: Any, read: Callable[[Any], Any]) -> None:
        self.handles, self.read = handles, read

    def __len__(self) -> int:
        return len(self.handles)

    @overload
    def __getitem__(self, position: int) -> Any: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Any]: ...
    def __getitem__(self, position: int | slice) -> Any:
        if isinstance(position, slice):
            return pick(self, np.arange(len(self))[position])
        return self.read(self.handles[int(position)])  # NumPy's integers, too


class Rows(LazyItems):
    """Features of some items in one array, usually a memory map. Sent to another process, it is opened again there.

    Item i is row `numbers[i]` of an array (rows, features, width). Where items have different numbers of features, the
    array is (all features, width), and item i is array[starts[k]:starts[k + 1]], k = numbers[i].
    """

    def __init__(self, array: np.ndarray, numbers: np.ndarray, starts: np.ndarray | None = None) -> None:
        assert array.ndim == (3 if starts is None else 2)
        self.array, self.starts = array, starts
        self.handles = self.numbers = numbers

    @property
    def width(self) -> int:
        """Of each feature."""
        return int(self.array.shape[-1])

    @property
    def counts(self) -> np.ndarray:
        """How many features each item has."""
        if self.starts is None:
            return np.full(len(self), self.array.shape[1])
        counts: np.ndarray = np.diff(self.starts)[self.numbers]
        return counts

    def read(self, number: int) -> np.ndarray:
        """(features, width)"""
        rows = number if self.starts is None else slice(self.starts[number], self.starts[number + 1])
        return np.asarray(self.array[rows])

    def take(self, positions: Sequence[int] | np.ndarray) -> Padded:
        """A batch of items, padded to the longest."""
        numbers = self.numbers[np.asarray(positions, np.int64)]
        if self.starts is None:
            values = np.empty((len(numbers), *self.array.shape[1:]), self.array.dtype)
            runs = pairwise([0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)])
            _fill(self.array, [(values[begin:end], int(numbers[begin])) for begin, end in runs if begin < end])
            return Padded(values, np.ones(values.shape[:2], np.bool_))
        counts = self.starts[numbers + 1] - self.starts[numbers]
        mask = np.arange(counts.max(initial=0)) < counts[:, None]
        values = np.zeros((*mask.shape, self.width), self.array.dtype)
        pieces = zip(values, counts.tolist(), self.starts[numbers].tolist(), strict=True)
        _fill(self.array, [(value[:count], start) for value, count, start in pieces])
        return Padded(values, mask)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rows_again, (_map_arguments(self.array) or self.array, self.numbers, self.starts))


def pick(values: Sequence[Any], positions: np.ndarray) -> Sequence[Any]:
    """The items at some positions, of the same kind of sequence where that matters."""
    if isinstance(values, list | tuple):
        return [values[position] for position in positions]
    if isinstance(values, Rows):
        return Rows(values.array, values.numbers[positions], values.starts)
    if isinstance(values, LazyItems):
        return LazyItems(pick(values.handles, positions), values.read)
    return LazyItems(positions.tolist(), partial(getitem, values))


def same_item(a: Any, b: Any) -> bool:
    """Whether two items are the same: paths, bytes or arrays."""
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else bool(a == b)


def fresh(array: np.ndarray) -> np.ndarray:
    """A memory map opened again: what was read through it leaves the memory when it is dropped."""
    arguments = _map_arguments(array)
    return array if arguments is None else np.memmap(*arguments)


def _fill(array: np.ndarray, pieces: Sequence[tuple[np.ndarray, int]]) -> None:
    """Fill each piece with the rows of the array from some row on.

    From a file they are read, not copied through the memory map: that would read megabytes ahead for each row, and is
    about eight times slower when the file is not in memory.
    """
    arguments = _map_arguments(array)
    if arguments is None or not array.flags.c_contiguous or not hasattr(os, "preadv"):
        for piece, row in pieces:
            piece[...] = array[row : row + len(piece)]
        return
    name, _, _, begin, *_ = arguments
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    with open(name, "rb", buffering=0) as file:
        for piece, row in pieces:
            left, offset = piece.reshape(-1).view(np.uint8).data, begin + row * row_bytes
            while left:
                count = os.preadv(file.fileno(), [left], offset)
                if not count:
                    raise OSError(f"{name}: the file ends early; it was changed while it was read.")
                left, offset = left[count:], offset + count


def _map_arguments(array: np.ndarray) -> tuple[Any, ...] | None:
    """What `np.memmap` takes to open the array again; None where it is in memory, or is only a part of a file."""
    if not isinstance(array, np.memmap) or array.filename is None:
        return None
    if Path(array.filename).stat().st_size != array.offset + array.nbytes:
        return None
    order = "C" if array.flags.c_contiguous else "F"
    return str(array.filename), array.dtype.str, "r", array.offset, array.shape, order


def _rows_again(place: tuple[Any, ...] | np.ndarray, numbers: np.ndarray, starts: np.ndarray | None) -> Rows:
    return Rows(np.memmap(*place) if isinstance(place, tuple) else place, numbers, starts)


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
    """One split of a data set. Every modality has the same groups.

    sources: where several data sets were joined, the name of the one that each group comes from.
    """

    items: Mapping[str, Items]
    sources: np.ndarray | None = None

    def __post_init__(self) -> None:
        counts = {name: int(items.groups[-1]) + 1 if len(items) else 0 for name, items in self.items.items()}
        assert len(set(counts.values())) == 1, f"the modalities have different groups: {counts}"
        assert self.sources is None or len(self.sources) == self.size

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
    return Split(kept, None if split.sources is None else np.delete(split.sources, gone))


def without_items(split: Split, modality: str, places: Collection[int] | np.ndarray) -> Split:
    """The split without some items of a modality, and without the groups that have no other item of it."""
    items = split[modality]
    kept = np.setdiff1d(np.arange(len(items)), np.fromiter(places, np.int64))
    bare = np.setdiff1d(items.groups, items.groups[kept])
    left = without_groups(split, bare)
    return Split({**left.items, modality: _at(items, kept)}, left.sources)


def joined(datasets: Mapping[str, Dataset]) -> Dataset:
    """Several data sets in one, by name: each split has the groups of all that have it, in the order given. The id of
    an item is preceded by the name of its data set. Only modalities that all of them have are kept.
    """
    names = dict.fromkeys(name for dataset in datasets.values() for name in dataset.splits)
    splits = {}
    for name in names:
        parts = {source: dataset.splits[name] for source, dataset in datasets.items() if name in dataset.splits}
        first, *others = parts.values()
        kinds = [kind for kind in first.items if all(kind in other.items for other in others)]
        sizes = [part.size for part in parts.values()]
        items = {kind: _joined_items({source: part[kind] for source, part in parts.items()}, sizes) for kind in kinds}
        splits[name] = Split(items, np.repeat(np.array(list(parts)), sizes))
    path = Path(" and ".join(str(dataset.path) for dataset in datasets.values()))
    return Dataset(path, "several", splits)


def _joined_items(parts: Mapping[str, Items], sizes: Sequence[int]) -> Items:
    """sizes: how many groups each has."""
    before = np.cumsum([0, *sizes])
    groups = [items.groups + first for items, first in zip(parts.values(), before[:-1], strict=True)]
    ids = [f"{source}/{one}" for source, items in parts.items() for one in items.ids]
    values = [items.values for items in parts.values()]
    places = [(number, place) for number, part in enumerate(values) for place in range(len(part))]
    metadata = None
    if any(items.metadata is not None for items in parts.values()):
        metadata = [one for items in parts.values() for one in items.metadata or [{}] * len(items)]
    return Items(LazyItems(places, partial(_of_part, values)), np.concatenate(groups), ids, metadata)


def _of_part(parts: Sequence[Sequence[Any]], place: tuple[int, int]) -> Any:
    return parts[place[0]][place[1]]


def _at(items: Items, places: np.ndarray) -> Items:
    """The items at some places; the groups that are left are counted anew."""
    if len(places) == len(items):
        return items
    metadata = None if items.metadata is None else pick(items.metadata, places)
    groups = np.unique(items.groups[places], return_inverse=True)[1]
    return Items(pick(items.values, places), groups, pick(items.ids, places), metadata)
