"""A table cached in one file, or two where it is large, read in milliseconds: a search starts without LanceDB, which
takes seconds.
"""

import hashlib
import json
import mmap
import os
import zipfile
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import JsonValue

from maxmatch.core.files import whole
from maxmatch.search.engine import USUAL, CandidateOptions, Engine, Found, ItemRows
from maxmatch.search.filters import Condition, passes
from maxmatch.search.index_folder import TABLE

FILE = "items.copy.npz"
VECTORS = "items.copy.vectors"
_PARTS = ("state", "ids", "metadata", "added", "vectors")
_BESIDE = ("state", "ids", "texts", "ends", "added", "dtype")
_MOST = 4_000  # items in one file, each part of it with a checksum
_MOST_BESIDE = 250_000  # items whose vectors are in a file beside it, of which a search reads block by block
_BLOCK = 4_096
_VERSIONS = Path(TABLE) / "_versions"


class TextsOf(Sequence[str]):
    """Many texts as one block of bytes, each decoded when it is asked for."""

    def __init__(self, block: bytes, ends: np.ndarray) -> None:
        self._block = block
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, place: int) -> str:  # type: ignore[override]  # no slices
        start = int(self._ends[place - 1]) if place else 0
        return self._block[start : int(self._ends[place])].decode()


class MappedVectors:
    """Vectors in a file, read as they are asked for. Its end tells of which state of the table they are."""

    def __init__(self, file: BufferedReader, state: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        count, width = shape
        size = count * width * dtype.itemsize
        if os.fstat(file.fileno()).st_size != size + len(state):
            raise ValueError("vectors of another table")
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._map[size:] != state.encode():
            raise ValueError("vectors of another state of the table")
        self._all = np.frombuffer(self._map, dtype, count * width).reshape(shape)

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        first, last = (int(places[0]), int(places[-1])) if len(places) else (0, -1)
        in_order = last - first == len(places) - 1 and bool((np.diff(places) == 1).all())
        found = np.array(self._all[first : last + 1] if in_order else self._all[places])
        if hasattr(mmap, "MADV_DONTNEED"):  # what was read stays in the system's cache, not in this process
            self._map.madvise(mmap.MADV_DONTNEED)
        return found


class TableCache(NamedTuple):
    """The items of a table in one state."""

    state: str
    ids: list[str]
    added: np.ndarray
    vectors: np.ndarray | MappedVectors
    texts: Sequence[str]

    def at(self, places: Sequence[int] | np.ndarray, vectors: bool, metadata: bool) -> Found:
        """The items at some places."""
        chosen = np.asarray(places, np.int64)
        at = chosen.tolist()
        known = self.vectors[chosen] if vectors else np.empty((len(chosen), 0), np.float32)
        texts = [self.texts[place] for place in at] if metadata else None
        return Found([self.ids[place] for place in at], self.added[chosen], known, texts)


def write_cache(engine: Engine, folder: Path) -> bool:
    """Cache a table in its present state. False where it is too large, or was written to meanwhile."""
    state = state_of(folder)
    count = 0 if state is None else engine.count()
    if state is None or not 0 < count <= _MOST_BESIDE:
        return False
    if isinstance(engine, CachedEngine) and engine.is_current():
        return True
    beside = count > _MOST
    parts = _read(folder, *(_BESIDE if beside else _PARTS))  # all of them: one may be damaged
    if parts is not None and parts[0].tobytes().decode() == state and (not beside or _ends_with(folder, state)):
        return True
    if beside:
        return _write_beside(engine, folder, state)
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
    (folder / VECTORS).unlink(missing_ok=True)
    return True


def _write_beside(engine: Engine, folder: Path, state: str) -> bool:
    """Cache a large table: its vectors in a file beside the rest."""
    ids: list[str] = []
    texts: list[bytes] = []
    added: list[np.ndarray] = []
    dtype = "float32"
    with suppress(_Overtaken), whole(folder / VECTORS) as file:
        for found in engine.scan(_BLOCK, metadata=True):
            ids += found.ids
            texts += [text.encode() for text in found.metadata or []]
            added.append(np.array(found.added))  # a view would keep all of the block in memory
            dtype = found.vectors.dtype.name
            file.write(np.ascontiguousarray(found.vectors).data)
        file.write(state.encode())
        if state_of(folder) != state:
            raise _Overtaken
    if state_of(folder) != state:
        return False
    with whole(folder / FILE) as file:
        names, block = _bytes(json.dumps(ids)), np.frombuffer(b"".join(texts), np.uint8)
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        kind, order = _bytes(dtype), np.concatenate(added)
        np.savez(file, state=_bytes(state), ids=names, texts=block, ends=ends, added=order, dtype=kind)
    return True


def _ends_with(folder: Path, state: str) -> bool:
    """Whether the vectors beside the rest are of this state."""
    with suppress(OSError), (folder / VECTORS).open("rb") as file:
        file.seek(-len(state), os.SEEK_END)
        return file.read() == state.encode()
    return False


class _Overtaken(Exception):
    """Another process has written to the table meanwhile."""


def read_cache(folder: Path, width: int) -> TableCache | None:
    """The cache of a table, if it is of its present state and whole (each part has its checksum, but for vectors that
    are in a file beside the rest).
    """
    parts = _read(folder, *_PARTS)
    if parts is None:
        return _read_beside(folder, width)
    state, ids, texts = parts[0].tobytes().decode(), *(json.loads(part.tobytes()) for part in parts[1:3])
    added, vectors = parts[3:]
    if state != state_of(folder) or vectors.shape != (len(ids), width) or not len(added) == len(ids) == len(texts):
        return None
    return TableCache(state, ids, added, vectors, texts)


def _read_beside(folder: Path, width: int) -> TableCache | None:
    parts = _read(folder, *_BESIDE)
    if parts is None:
        return None
    state, ids = parts[0].tobytes().decode(), json.loads(parts[1].tobytes())
    block, ends, added, dtype = parts[2:]
    if state != state_of(folder) or not len(added) == len(ids) == len(ends):
        return None
    try:
        with (folder / VECTORS).open("rb") as file:
            vectors = MappedVectors(file, state, (len(ids), width), np.dtype(dtype.tobytes().decode()))
    except (OSError, ValueError, TypeError):
        return None
    return TableCache(state, ids, added, vectors, TextsOf(block.tobytes(), ends))


def _read(folder: Path, *names: str) -> list[np.ndarray] | None:
    """Parts of the cache; None where they cannot be read."""
    try:
        with (folder / FILE).open("rb") as file, np.load(file, allow_pickle=False) as parts:
            if not all(name in parts for name in names):
                return None
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
        opened = self._opens()
        vars(self).pop("_place_of", None)
        self._cache = TableCache(self._cache.state, [], np.empty(0, np.int64), np.empty((0, 0), np.float32), [])
        return opened

    @property
    def opened(self) -> bool:
        """Whether the engine itself answers."""
        return "inner" in vars(self)

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self._cache.ids)}

    def is_current(self) -> bool:
        """Whether the cache still answers."""
        return not self.opened and state_of(self.folder) == self._cache.state

    @property
    def sure_of_few(self) -> bool:
        """While the cache answers, all are scanned."""
        return not self.is_current() and self.inner.sure_of_few

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
        places, cache = self._passing(where), self._cache  # which a write meanwhile replaces
        for start in range(0, len(places), block):
            yield cache.at(places[start : start + block], vectors, metadata)

    def candidates(
        self, queries: np.ndarray, count: int, where: Condition | None = None, options: CandidateOptions = USUAL
    ) -> list[Found] | None:
        """None while the cache answers: it is scanned."""
        if self.is_current():
            return None
        return self.inner.candidates(queries, count, where, options)

    def fetch(self, ids: Sequence[str], vectors: bool = True, metadata: bool = False) -> Found:
        """Stored items by their ids."""
        if not self.is_current():
            return self.inner.fetch(ids, vectors, metadata)
        return self._cache.at([self._place_of[name] for name in ids if name in self._place_of], vectors, metadata)

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

    def _passing(self, where: Condition | None) -> Sequence[int]:
        if where is None:
            return range(len(self._cache.ids))
        return [place for place, text in enumerate(self._cache.texts) if passes(where, json.loads(text))]
