"""A copy of a small table in one file, read in milliseconds: a search starts without LanceDB, which takes seconds."""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import JsonValue

from maxmatch.core.files import whole
from maxmatch.search.engine import Choose, Engine, Found, ItemRows, Location
from maxmatch.search.filters import Condition, passes
from maxmatch.search.index_folder import TABLE

FILE = "items.copy.npz"
_MOST = 10_000  # items: from there on the engine's own index is what makes a search fast
_VERSIONS = Path(TABLE) / "_versions"


class Copy(NamedTuple):
    """The items of a table in one state."""

    state: str
    items: Found
    texts: list[str]


def keep_copy(engine: Engine, folder: Path) -> bool:
    """Write a copy of a small table, unless there is one of its present state. False where it is not worth it, or the
    table was written to meanwhile.
    """
    state = state_of(folder)
    if state is None or engine.approximate or not 0 < engine.count() <= _MOST:
        return False
    noted = _read(folder, "state")
    if noted is not None and noted[0].tobytes().decode() == state:
        return True
    found = list(engine.scan(_MOST))
    if not found:  # another process has removed them all meanwhile
        return False
    ids = [name for each in found for name in each.ids]
    known = engine.metadata(ids)
    if state_of(folder) != state or len(known) != len(ids):
        return False
    added = np.concatenate([each.added for each in found])
    vectors = np.concatenate([each.vectors for each in found])
    names, texts = _bytes(json.dumps(ids)), _bytes(json.dumps([known[name] for name in ids]))
    with whole(folder / FILE) as file:
        np.savez(file, state=_bytes(state), ids=names, metadata=texts, added=added, vectors=vectors)
    return True


def read_copy(folder: Path, width: int) -> Copy | None:
    """The copy of a table, if it is of its present state and whole (each part has its checksum)."""
    parts = _read(folder, "state", "ids", "metadata", "added", "vectors")
    if parts is None:
        return None
    state, ids, texts = parts[0].tobytes().decode(), *(json.loads(part.tobytes()) for part in parts[1:3])
    added, vectors = parts[3:]
    if state != state_of(folder) or vectors.shape != (len(ids), width) or not len(added) == len(ids) == len(texts):
        return None
    return Copy(state, Found(ids, added, vectors), texts)


def _read(folder: Path, *names: str) -> list[np.ndarray] | None:
    """Parts of the copy; None where they cannot be read."""
    try:
        with (folder / FILE).open("rb") as file, np.load(file, allow_pickle=False) as parts:
            return [parts[name] for name in names]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def state_of(folder: Path) -> str | None:
    """What a table's state is known by: Lance writes a file for every version. None where there is no such table."""
    known = []
    try:
        with os.scandir(folder / _VERSIONS) as entries:
            for entry in entries:
                if entry.name.endswith(".manifest"):
                    with suppress(FileNotFoundError):  # cleared away just now
                        seen = entry.stat()
                        known.append((entry.name, seen.st_size, seen.st_mtime_ns))
    except OSError:
        return None
    return hashlib.sha256(json.dumps(sorted(known)).encode()).hexdigest() if known else None


def versions_of(folder: Path) -> frozenset[str]:
    """The names of a table's versions: at most a few of them change with a write, and none without one."""
    try:
        return frozenset(name for name in os.listdir(folder / _VERSIONS) if name.endswith(".manifest"))
    except OSError:
        return frozenset()


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


class CopiedEngine:
    """The calls of `maxmatch.search.engine.Engine`: what is read comes from the copy, as long as it is of the table's
    state. Whatever it cannot answer opens the engine itself, which answers from then on.
    """

    def __init__(self, place: Location, copy: Copy, opens: Callable[[Location], Engine]) -> None:
        self.place = place
        self._copy = copy
        self._opens = opens
        self._opened = False

    @cached_property
    def inner(self) -> Engine:
        """The engine itself."""
        engine = self._opens(self.place)
        self._opened = True  # not before: where it cannot be opened, the copy goes on answering
        return engine

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self._copy.items.ids)}

    def _current(self) -> bool:
        """Whether the copy still answers."""
        return not self._opened and state_of(self.place.folder) == self._copy.state

    @property
    def approximate(self) -> bool:
        """Not where there is a copy: it is of few items."""
        return not self._current() and self.inner.approximate

    @property
    def held(self) -> bool:
        """Only what the engine holds itself."""
        return self._opened and self.inner.held

    def add(self, rows: ItemRows) -> None:
        """By the engine."""
        self.inner.add(rows)

    def upsert(self, rows: ItemRows) -> None:
        """By the engine."""
        self.inner.upsert(rows)

    def delete(self, ids: Sequence[str]) -> None:
        """By the engine."""
        self.inner.delete(ids)

    def present(self, ids: Sequence[str]) -> set[str]:
        """Which of the ids are stored."""
        return self._place_of.keys() & set(ids) if self._current() else self.inner.present(ids)

    def candidates(
        self, queries: np.ndarray, count: int, where: Condition | None = None, effort: float = 1, choose: Choose = None
    ) -> list[Found]:
        """By the engine."""
        return self.inner.candidates(queries, count, where, effort, choose)

    def scan(self, block: int, where: Condition | None = None) -> Iterator[Found]:
        """Every item that passes, in blocks."""
        if not self._current():
            yield from self.inner.scan(block, where)
            return
        places = self._passing(where)
        for start in range(0, len(places), block):
            yield self._at(places[start : start + block])

    def metadata(self, ids: Sequence[str]) -> dict[str, str]:
        """The JSON texts of stored items."""
        if not self._current():
            return self.inner.metadata(ids)
        return {name: self._copy.texts[self._place_of[name]] for name in ids if name in self._place_of}

    def fetch(self, ids: Sequence[str]) -> Found:
        """Stored items by their ids."""
        if not self._current():
            return self.inner.fetch(ids)
        return self._at([self._place_of[name] for name in ids if name in self._place_of])

    def sample(self, count: int, seed: int) -> Found:
        """By the engine."""
        return self.inner.sample(count, seed)

    def count(self, where: Condition | None = None) -> int:
        """How many items there are, or pass."""
        return len(self._passing(where)) if self._current() else self.inner.count(where)

    def version(self) -> Hashable:
        """The state that the copy is of; then the engine's."""
        return self._copy.state if self._current() else self.inner.version()

    def optimise(self, thorough: bool = False) -> bool:
        """By the engine."""
        return self.inner.optimise(thorough)

    def hold(self, on: bool = True) -> None:
        """By the engine, which answers from then on: one who searches often does not mind its start."""
        self.inner.hold(on)

    def check(self) -> None:
        """By the engine."""
        self.inner.check()

    def info(self) -> dict[str, JsonValue]:
        """By the engine."""
        return self.inner.info()

    def close(self) -> None:
        """Close the engine, if it was opened."""
        if self._opened:
            self.inner.close()

    def _passing(self, where: Condition | None) -> list[int]:
        if where is None:
            return list(range(len(self._copy.texts)))
        return [place for place, text in enumerate(self._copy.texts) if passes(where, json.loads(text))]

    def _at(self, places: list[int]) -> Found:
        """The items at some places; their arrays are not the copy's own, which no caller may change."""
        ids, added, vectors, _ = self._copy.items
        return Found([ids[place] for place in places], added[places], vectors[places])
