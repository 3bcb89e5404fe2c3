"""Candidates by short keys, for the rows that a table has now: `items.keys` beside it is a cache of keys.

The file may be older than the table. Rows that it lacks get keys when they are first seen, and are always looked at;
rows that are gone are passed over. An item is known by `added`, which is its own and changes when it is replaced. Where
the file is missing, damaged, of other items or far behind, there are no candidates here: the engine's index has them.
"""

import logging
import math
import threading
from collections.abc import Hashable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from maxmatch.core.machine import optional_module
from maxmatch.search.engines.short_keys import AT_ONCE, Keys, ShortKeys, empty_keys, read_keys, trained, write_keys
from maxmatch.search.filters import Condition

_LOOKED_AT = 65_536  # keys, with an effort of 1
_AT_LEAST = 16_384  # where few pass a filter: all of them
_FINER = 128  # at least so many of them are looked at more closely
_BEHIND = 10_000  # items that a file may lack, or a twentieth of what it has
_BESIDE = 15  # beside those that are wanted
_OF_COUNT = 6  # and at least a sixth of the candidates
_FILTERS = 16  # whose rows are remembered
_CHECKED = 16  # keys that are compared with their vectors when a file is read
_log = logging.getLogger("maxmatch")


@runtime_checkable
class TableRows(Protocol):
    """What is asked of a table. Its rows have numbers, which change when its files are merged."""

    def numbers(self, where: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Those of all rows that pass a filter in SQL, and their `added`."""

    def vectors(self, numbers: np.ndarray) -> np.ndarray | None:
        """Those of some rows, in their order; None where one is gone."""

    def blocks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """`added` and the vectors of all rows, so many at a time."""


class KeyedRows(NamedTuple):
    """Rows that are proposed to a query."""

    numbers: np.ndarray
    added: np.ndarray


class _Passing(NamedTuple):
    """The keys of rows that pass a filter."""

    places: np.ndarray
    """(n,) int32: where they are in the file, rising."""
    ends: np.ndarray
    """(cells + 1,): where those of each cell begin in `places`, and where the last end."""
    later: np.ndarray
    """(m,) int32: where they are among the later ones."""

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.places) + len(self.later)


class _Bound(NamedTuple):
    """The keys of one state of the table."""

    state: Hashable
    keys: ShortKeys
    later: Keys
    """Those of rows that the file lacks."""
    added: np.ndarray
    """`added` of the item of each key: first the file's, then the later ones."""
    numbers: np.ndarray
    """Of all rows, rising."""
    places: np.ndarray
    """The key of each of these rows."""
    rows: np.ndarray
    """The number of the row of each key."""
    all: _Passing
    filtered: dict[Condition, _Passing]

    def keys_at(self, places: np.ndarray) -> Keys:
        """Both keys at some places."""
        known = len(self.keys.added)
        in_file = places < known
        found = empty_keys(self.keys.directions, len(places))
        for out, first, later in zip(found, self.keys.keys, self.later, strict=True):
            out[in_file] = first[places[in_file]]
            out[~in_file] = later[places[~in_file] - known]
        return found


class KeySearch:
    """Searches by the short keys in a file, of a table that has at least `keys_from` rows."""

    def __init__(self, path: Path, width: int, keys_from: int) -> None:
        self.path = path
        self.width = width
        self.keys_from = keys_from
        self._lock = threading.Lock()
        self._outdated: int | None = None
        """How many rows the file lacks or has too many; None: not looked at yet."""
        self._read: tuple[Hashable, ShortKeys | None] = (None, None)
        self._bound: _Bound | None = None
        self._unusable: Hashable = None
        """The state in which there is nothing to search by."""

    @cached_property
    def _kernel(self) -> ModuleType | None:
        """The compiled code, loaded when there are keys: that takes longer than a search of few items."""
        return optional_module("maxmatch.search.engines.numba_keys")

    def rows(
        self,
        table: TableRows,
        version: Hashable,
        queries: np.ndarray,
        count: int,
        effort: float,
        where: tuple[Condition, str] | None,
        wanted: int | None,
    ) -> list[KeyedRows] | None:
        """For each query (q, width) rows of this version of the table whose vectors are likely to have the largest
        inner products with it: about `count`; if few of them are wanted, a few more than these. where: a filter, and
        the same in SQL.
        """
        bound = self._bound_to(table, version)
        if bound is None:
            return None
        passing = bound.all if where is None else self._passing(table, bound, *where)
        if passing is None:
            self.forget()
            return None
        most = count if wanted is None else min(count, max(wanted + _BESIDE, count // _OF_COUNT))
        coordinates, rest = bound.keys.directions.coordinates(queries)
        distances = bound.keys.distances(coordinates)
        weights = bound.keys.directions.weights(coordinates, rest)
        # Where a tenth passes, the best are in more cells, but not in ten times as many.
        share = passing.total / max(1, bound.all.total)
        looked_at = effort * max(min(_AT_LEAST, _LOOKED_AT), _LOOKED_AT * math.sqrt(share))
        sizes, found = np.diff(passing.ends), []
        for query, nearest in enumerate(np.argsort(distances, axis=1)):
            seen = np.cumsum(sizes[nearest])
            cells = np.sort(nearest[: np.searchsorted(seen, looked_at) + 1])
            places = self._best(bound, passing, weights.first[query], cells, max(count, _FINER))
            if len(places) > most:
                estimates = weights.estimates(query, bound.keys_at(places))
                places = places[np.argpartition(-estimates, most)[:most]]
            found.append(KeyedRows(bound.rows[places], bound.added[places]))
        return found

    def _best(
        self, bound: "_Bound", passing: "_Passing", query: np.ndarray, cells: np.ndarray, count: int
    ) -> np.ndarray:
        """The places of the best by the first keys, of those in some cells and of the later ones."""
        products, places = np.full(count, -(2**31), np.int32), np.full(count, -1, np.int64)
        first, later, ends = bound.keys.keys.first, bound.later.first, passing.ends
        whole = np.zeros(1, np.int64), np.full(1, len(passing.later))
        assert self._kernel is not None, "without it no keys are bound"
        keep_best = self._kernel.keep_best
        keep_best(first, passing.places, ends[cells], ends[cells + 1], query, 0, products, places)
        keep_best(later, passing.later, *whole, query, len(first), products, places)
        return places[places >= 0]

    def answers(self, table: TableRows, version: Hashable) -> bool:
        """Whether there are keys to search this version of the table by."""
        return self._bound_to(table, version) is not None

    def counted(self, version: Hashable, where: Condition) -> int | None:
        """How many rows pass a filter that was searched with in this version; None where none was."""
        bound = self._bound
        if bound is None or bound.state != self._state(version) or where not in bound.filtered:
            return None
        return bound.filtered[where].total

    def facts(self, table: TableRows, version: Hashable) -> dict[str, int]:
        """How many bytes a key has and how many items have one; nothing where there are none to search by."""
        bound = self._bound_to(table, version)
        return (
            {} if bound is None else {"keys": bound.all.total, "key_bytes": sum(part.shape[1] for part in bound.later)}
        )

    def forget(self) -> None:
        """The rows of the table have moved: look at them anew."""
        with self._lock:
            self._bound = None

    def refresh(self, table: TableRows, items: int, changed: int, thorough: bool) -> bool:
        """Bring the file up to date, where it is worth it or (thorough) in any case. True if it was trained anew: for
        the first time, or for twice as many items. Only the one who writes to the table may call this. changed: how
        many rows were added, replaced or removed since the last call.
        """
        if items < self.keys_from or self._kernel is None:
            return False
        with self._lock:
            old = self._file()
        if old is not None and items < 2 * old.trained_for:
            if not old.usable:
                return False
            self._outdated = None if self._outdated is None else self._outdated + changed
            if not thorough and self._outdated is not None and self._outdated <= _most_missing(old):
                return False
            if self._extend(table, old, thorough):
                return False
        numbers, _ = table.numbers()
        keys = trained(lambda places: _found(table, np.sort(numbers[places])), len(numbers), self.width)
        if keys.usable:
            keys = keys.holding(*_filled(keys, len(numbers), table.blocks(AT_ONCE)))
        write_keys(self.path, keys)
        self._outdated = 0
        return True

    def _extend(self, table: TableRows, old: ShortKeys, thorough: bool) -> bool:
        """Keys for the rows that the file lacks, in the same cells; without those of rows that are gone. False where
        the file is of another table.
        """
        numbers, added = table.numbers()
        places = _places(old.added, added)
        if not self._matches(table, old, numbers, places):
            return False
        there = np.zeros(len(old.added), bool)
        there[places[places >= 0]] = True
        missing = np.flatnonzero(places < 0)
        self._outdated = len(missing) + int((~there).sum())
        if self._outdated > (0 if thorough else _most_missing(old)):
            blocks = ((added[some], _found(table, numbers[some])) for some in _parts(missing))
            later, keys, cells = _filled(old, len(missing), blocks)
            parts = zip(old.keys.at(there), keys, strict=True)
            both = Keys(*(np.concatenate(part) for part in parts))
            cells = np.concatenate([old.cell_of_each()[there], cells])
            write_keys(self.path, old.holding(np.concatenate([old.added[there], later]), both, cells))
            self._outdated = 0
        return True

    def _state(self, version: Hashable) -> Hashable:
        return version, self._signature()

    def _signature(self) -> Hashable:
        try:
            seen = self.path.stat()
        except OSError:
            return None
        return seen.st_ino, seen.st_size, seen.st_mtime_ns

    def _file(self) -> ShortKeys | None:
        """What the file holds, read once; None where there is none, or a damaged one, of which is warned once."""
        signature = self._signature()
        if self._read[0] != signature or signature is None:
            self._read = signature, None
            try:
                self._read = signature, read_keys(self.path, self.width)
            except ValueError as error:
                self._refuse(error)
        return self._read[1]

    def _refuse(self, reason: object) -> None:
        self._read = self._read[0], None
        cure = "Searches are slower until the next write, or `compact`, builds it again"
        _log.warning("%s: not used: %s. %s.", self.path, reason, cure)

    def _bound_to(self, table: TableRows, version: Hashable) -> _Bound | None:
        """The keys for the present rows; None where there are none to search by."""
        state = self._state(version)
        bound = self._bound
        if bound is not None and bound.state == state:
            return bound
        if self._unusable == state:
            return None
        with self._lock:
            if self._bound is None or self._bound.state != state:  # else another thread has done it
                self._bound = self._bind(table, state, self._bound)
                self._unusable = state if self._bound is None else None
            return self._bound

    def _bind(self, table: TableRows, state: Hashable, before: _Bound | None) -> _Bound | None:
        keys = self._file()
        if keys is None or not keys.usable or not len(keys.added) or self._kernel is None:
            return None
        numbers, added = table.numbers()
        if not (numbers[1:] > numbers[:-1]).all():
            order = np.argsort(numbers)
            numbers, added = numbers[order], added[order]
        places = _places(keys.added, added)
        if (before is None or before.keys is not keys) and not self._matches(table, keys, numbers, places):
            return None
        missing = np.flatnonzero(places < 0)
        if len(missing) > _most_missing(keys) or np.bincount(places + 1)[1:].max(initial=0) > 1:
            return None
        known = before if before is not None and before.keys is keys else None
        later = self._later(table, keys, numbers[missing], added[missing], known)
        if later is None:
            return None
        places[missing] = len(keys.added) + np.arange(len(missing))
        rows = np.zeros(len(keys.added) + len(missing), np.uint64)
        rows[places] = numbers
        known_as = np.concatenate([keys.added, added[missing]])
        return _Bound(state, keys, later, known_as, numbers, places, rows, _passing_at(keys, places), {})

    def _later(
        self, table: TableRows, keys: ShortKeys, numbers: np.ndarray, added: np.ndarray, before: _Bound | None
    ) -> Keys | None:
        """The keys of rows that the file lacks; those that were seen before are not computed again."""
        later = empty_keys(keys.directions, len(added))
        at = np.full(len(added), -1) if before is None else _places(before.added[len(keys.added) :], added)
        if before is not None:
            for out, known in zip(later, before.later, strict=True):
                out[at >= 0] = known[at[at >= 0]]
        for some in _parts(np.flatnonzero(at < 0)):
            vectors = table.vectors(numbers[some])
            if vectors is None:
                return None
            for out, new in zip(later, keys.keyed(vectors)[0], strict=True):
                out[some] = new
        return later

    def _matches(self, table: TableRows, keys: ShortKeys, numbers: np.ndarray, places: np.ndarray) -> bool:
        """Whether keys are those of the table's vectors, by a few of them."""
        known = np.flatnonzero(places >= 0)
        if not len(known):
            return False
        some = np.unique(np.random.default_rng().choice(known, _CHECKED))
        vectors = table.vectors(numbers[some])
        if vectors is None:  # just now: looked at again when it is next searched
            return False
        apart = np.abs(keys.keyed(vectors)[0].first.astype(int) - keys.keys.first[places[some]])
        if apart.max() > 1:  # by rounding
            self._refuse("it is of other vectors")
            return False
        return True

    def _passing(self, table: TableRows, bound: _Bound, where: Condition, condition: str) -> _Passing | None:
        """The keys of rows that pass a filter, remembered for the next search; None where one has no key yet: the table
        was written to just now.
        """
        found = bound.filtered.get(where)
        if found is None:
            numbers, _ = table.numbers(condition)
            at = np.searchsorted(bound.numbers, numbers)
            if len(numbers) and (at.max() >= len(bound.numbers) or (bound.numbers[at] != numbers).any()):
                return None
            found = _passing_at(bound.keys, bound.places[at])
            while len(bound.filtered) >= _FILTERS:
                bound.filtered.pop(next(iter(bound.filtered)), None)
            bound.filtered[where] = found
        return found


def _found(table: TableRows, numbers: np.ndarray) -> np.ndarray:
    vectors = table.vectors(numbers)
    assert vectors is not None, "rows are gone although nobody else may write"
    return vectors


def _filled(
    keys: ShortKeys, items: int, blocks: Iterable[tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, Keys, np.ndarray]:
    """`added`, keys and cells of so many items, whose `added` and vectors come in blocks."""
    added, cells, found = np.empty(items, np.int64), np.empty(items, np.int64), empty_keys(keys.directions, items)
    begin = 0
    for block, vectors in blocks:
        part = slice(begin, begin + len(block))
        added[part] = block
        new, cells[part] = keys.keyed(vectors)
        found.first[part], found.finer[part] = new
        begin = part.stop
    return added, found, cells


def _parts(places: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(places), AT_ONCE):
        yield places[start : start + AT_ONCE]


def _most_missing(keys: ShortKeys) -> int:
    return max(_BEHIND, len(keys.added) // 20)


def _places(known: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Where each is among the known ones; -1 where it is not."""
    if not len(known):
        return np.full(len(asked), -1)
    order = np.argsort(known)
    rising = known[order]
    at = np.minimum(np.searchsorted(rising, asked), len(known) - 1)
    places: np.ndarray = np.where(rising[at] == asked, order[at], -1)
    return places


def _passing_at(keys: ShortKeys, places: np.ndarray) -> _Passing:
    """Of all keys those at some places: of the file, and after them the later ones."""
    known, ordered = len(keys.added), np.sort(places)
    in_file, later = np.split(ordered, [np.searchsorted(ordered, known)])
    return _Passing(in_file.astype(np.int32), np.searchsorted(in_file, keys.ends), (later - known).astype(np.int32))
