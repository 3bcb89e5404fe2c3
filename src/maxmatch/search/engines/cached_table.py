"""A small table cached in one file, read in milliseconds: a search starts without LanceDB, which takes seconds."""

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
from maxmatch.search.engine import Choose, Engine, Found, ItemRows
from maxmatch.search.filters import Condition, passes
from maxmatch.search.index_folder import TABLE

FILE = "items.copy.npz"
_PARTS = ("state", "ids", "metadata", "added", "vectors")
_MOST = 10_000  # items: beyond that the engine's own index is what makes a search fast
_VERSIONS = Path(TABLE) / "_versions"


class TableCache(NamedTuple):
    """The items of a table in one state."""

    state: str
    items: Found


def write_cache(engine: Engine, folder: Path) -> bool:
    """Cache a small table in its present state. False where it is too large, or was written to meanwhile."""
    state = state_of(folder)
    if state is None or not 0 < engine.count() <= _MOST:
        return False
    if isinstance(engine, CachedEngine) and engine.is_current():
        return True
    parts = _read(folder, *_PARTS)  # all of them: one may be damaged
    if parts is not None and parts[0].tobytes().decode() == state:
        return True
    found = list(engine.scan(_MOST, metadata=True))
    if not found or state_of(folder) != state:  # another process has written to it meanwhile
        return False
    ids = [name for each in found for name in each.ids]
    texts = [text for each in found for text in each.metadata or []]
    added = np.concatenate([each.added for each in found])
    vectors = np.concatenate([each.vectors for each in found])
    with whole(folder / FILE) as file:
        names, known = _bytes(json.dumps(ids)), _bytes(json.dumps(texts))
        np.savez(file, state=_bytes(state), ids=names, metadata=known, added=added, vectors=vectors)
    return True


def read_cache(folder: Path, width: int) -> TableCache | None:
    """The cache of a table, if it is of its present state and whole (each part has its checksum)."""
    parts = _read(folder, *_PARTS)
    if parts is None:
        return None
    state, ids, texts = parts[0].tobytes().decode(), *(json.loads(part.tobytes()) for part in parts[1:3])
    added, vectors = parts[3:]
    if state != state_of(folder) or vectors.shape != (len(ids), width) or not len(added) == len(ids) == len(texts):
        return None
    return TableCache(state, Found(ids, added, vectors, texts))


def _read(folder: Path, *names: str) -> list[np.ndarray] | None:
    """Parts of the cache; None where they cannot be read."""
    try:
        with (folder / FILE).open("rb") as file, np.load(file, allow_pickle=False) as parts:
            return [parts[name] for name in names]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def state_of(folder: Path) -> str | None:
    """Identifies a table's state: Lance writes a file for every version. None where there is no such table."""
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


class CachedEngine:
    """Reads come from the cache as long as the table is in the same state. Everything else opens the engine itself,
    which answers from then on.
    """

    def __init__(self, folder: Path, cache: TableCache, opens: Callable[[], Engine]) -> None:
        self.folder = folder
        self._cache = cache
        self._opens = opens

    @cached_property
    def inner(self) -> Engine:
        """The engine itself; where it cannot be opened, the cache continues to answer."""
        return self._opens()

    @property
    def opened(self) -> bool:
        """Whether the engine itself answers."""
        return "inner" in vars(self)

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self._cache.items.ids)}

    def is_current(self) -> bool:
        """Whether the cache still answers."""
        return not self.opened and state_of(self.folder) == self._cache.state

    @property
    def in_memory(self) -> bool:
        """Whether the engine itself keeps its items in memory."""
        return self.opened and self.inner.in_memory

    @in_memory.setter
    def in_memory(self, keep: bool) -> None:
        self.inner.in_memory = keep  # many searches are coming: opening the engine pays

    def version(self) -> Hashable:
        """The state of the cache; then the engine's."""
        return self._cache.state if self.is_current() else self.inner.version()

    def facts(self) -> dict[str, JsonValue]:
        """The engine's."""
        return self.inner.facts()

    def add(self, rows: ItemRows) -> None:
        """By the engine."""
        self.inner.add(rows)

    def upsert(self, rows: ItemRows) -> None:
        """By the engine."""
        self.inner.upsert(rows)

    def delete(self, ids: Sequence[str]) -> None:
        """By the engine."""
        self.inner.delete(ids)

    def scan(
        self, block: int, where: Condition | None = None, vectors: bool = True, metadata: bool = False
    ) -> Iterator[Found]:
        """Every item that passes, in blocks."""
        if not self.is_current():
            yield from self.inner.scan(block, where, vectors, metadata)
            return
        places = self._passing(where)
        for start in range(0, len(places), block):
            yield self._cache.items.at(places[start : start + block])

    def candidates(
        self, queries: np.ndarray, count: int, where: Condition | None = None, effort: float = 1, choose: Choose = None
    ) -> list[Found] | None:
        """None while the cache answers: it is small."""
        return None if self.is_current() else self.inner.candidates(queries, count, where, effort, choose)

    def fetch(self, ids: Sequence[str], vectors: bool = True, metadata: bool = False) -> Found:
        """Stored items by their ids."""
        if not self.is_current():
            return self.inner.fetch(ids, vectors, metadata)
        return self._cache.items.at([self._place_of[name] for name in ids if name in self._place_of])

    def count(self, where: Condition | None = None) -> int:
        """How many items there are, or pass."""
        return len(self._passing(where)) if self.is_current() else self.inner.count(where)

    def flush(self, thorough: bool = False) -> bool:
        """By the engine."""
        return self.inner.flush(thorough)

    def close(self) -> None:
        """Close the engine, if it was opened."""
        if self.opened:
            self.inner.close()

    def _passing(self, where: Condition | None) -> list[int]:
        texts = self._cache.items.metadata or []
        return [place for place, text in enumerate(texts) if where is None or passes(where, json.loads(text))]
