"""What an engine does for an index: store items durably, and find those whose vector is near.

An engine knows nothing of sets. An item is an id, one vector (the set's K vectors of width D one after the other: K·D
numbers) and metadata; the inner product of two such vectors is the sum of the cosines of slot i with slot i. `SetIndex`
checks all input, holds the writers' lock, and scores; an engine stores, filters and proposes. In an index of sets of
any size every item has its own number of vectors, and nothing is proposed.
"""

import hashlib
import heapq
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from pydantic import JsonValue

from maxmatch.search.filters import Condition, Value, check_kinds, condition_of

_SCAN_BLOCK = 4096


class Match(NamedTuple):
    """A slot of the query, the slot of the item that it was matched with, and their cosine."""

    query_slot: int
    item_slot: int
    cosine: float


@dataclass(frozen=True)
class Hit:
    """An item that was found."""

    id: str
    score: float
    """By the index's similarity."""
    matches: list[Match] = field(default_factory=list)
    """The best one-to-one matching of the query's vectors with the item's, by query slot. In an index of sets of any
    size that are compared by maxsim: each vector of the query with its best, so that the cosines add up to the score.
    """
    metadata: dict[str, JsonValue] = field(default_factory=dict)


Vectors = Any
"""Those of some items: an array (n, K·D), or a `RaggedArray` of rows of n_i·D where sets are of any size."""


@dataclass(frozen=True)
class Location:
    """Where an engine keeps its items, and in what form."""

    folder: Path
    """The index's folder. An engine on this machine keeps its files in it, under its own name."""
    width: int
    """Numbers in a vector: K·D; 0: each item has its own."""
    dtype: str = "float32"
    """The precision in which vectors are kept: float32 or float16."""
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """The engine's own, as given to `SetIndex.create(settings=…)` and kept in index.json: a URI, a type of index."""


class ItemRows(NamedTuple):
    """Items to store."""

    ids: list[str]
    """Distinct."""
    added: np.ndarray
    """int64, (n,): rises with every item that is ever added. Where scores are equal, the lower comes first."""
    vectors: Vectors
    """In the precision of the location, finite; each of the K vectors has unit length."""
    metadata: list[str]
    """A JSON object each, as text, to be returned unchanged; `where` sees its text, number and boolean values."""


_SHOWN = 64  # items whose keys an error names


class Found(NamedTuple):
    """Stored items."""

    ids: list[str]
    added: np.ndarray
    """int64, (n,)"""
    vectors: Vectors
    """In the precision of the location; (n, 0) where they were not asked for."""
    metadata: list[str] | None = None
    """The JSON texts, where they were asked for or came at no cost."""

    def at(self, places: Sequence[int] | np.ndarray) -> "Found":
        """Those at some places; their arrays are copies."""
        chosen = np.asarray(places, np.int64)
        texts = None if self.metadata is None else [self.metadata[place] for place in chosen.tolist()]
        return Found([self.ids[place] for place in chosen.tolist()], self.added[chosen], self.vectors[chosen], texts)


Choose = Callable[[list[np.ndarray]], list[np.ndarray]]
"""The vectors of each query's candidates, (n, K·D) -> the places of those that are wanted."""


class CandidateOptions(NamedTuple):
    """How an engine looks for candidates, and what it may leave out of its answer where that is less work."""

    effort: float = 1
    """1 is what the engine does by default. Twice the effort looks at about twice as much of its index and misses less.
    """
    wanted: int | None = None
    """How many of them the caller will keep: an engine that estimates closely, and has looked at as many items as were
    asked for, may return a few more than these. None: all.
    """
    choose: Choose | None = None
    """Which of them the caller will keep. None: all."""
    metadata: bool = True
    """False: the caller does not need them."""


USUAL = CandidateOptions()


@runtime_checkable
class Engine(Protocol):
    """What `SetIndex` calls.

    Writing calls are made by one process at a time, and are all or nothing: a process that is killed at any moment
    leaves the items as before the call or as after it; when a call has returned, its items survive. A reader sees what
    was acknowledged before its call began, whoever wrote it, and never a part of a write. No call changes arrays that
    it was given.

    Errors: OSError where the disk or the server fails (ConnectionError for a server that does not answer), with the
    state as it was before; ValueError where stored files are damaged, naming them.
    """

    in_memory: bool
    """Set it to keep the items in memory, if they fit, for many searches. It is True only where they are kept: then
    `candidates` compares all inner products, whatever the effort, and few are enough.
    """

    @property
    def sure_of_few(self) -> bool:
        """Whether its candidates miss hardly any where only some thousands of items pass a filter; else these are
        scanned.
        """

    def add(self, rows: ItemRows) -> None:
        """Store new items. None of the ids is stored yet: the index has checked."""

    def upsert(self, rows: ItemRows) -> None:
        """Store items; those whose id is stored already are replaced: vector, metadata and `added`."""

    def delete(self, ids: Sequence[str]) -> None:
        """Remove items. All of the ids are stored: the index has checked."""

    def scan(
        self, block: int, where: Condition | None = None, vectors: bool = True, metadata: bool = False
    ) -> Iterator[Found]:
        """Every item that passes the filter once, at most `block` at a time: one state of the items, whatever is
        written meanwhile.
        """

    def candidates(
        self, queries: np.ndarray, count: int, where: Condition | None = None, options: CandidateOptions = USUAL
    ) -> list[Found] | None:
        """For each query (q, K·D), float32, about `count` items whose vectors have the largest inner products with it.
        None where scanning all items is as fast, whatever the queries: none at all asks just this.

        In any order; fewer only where fewer items pass the filter, or where the engine's index finds no more. The
        filter is applied before the search, so that `count` items pass it.
        """

    def fetch(self, ids: Sequence[str], vectors: bool = True, metadata: bool = False) -> Found:
        """Stored items by their ids, in any order. An id that is not stored is left out."""

    def count(self, where: Condition | None = None) -> int:
        """How many items there are, or pass the filter."""

    def flush(self, thorough: bool = False) -> bool:
        """Arrange the stored items for fast search: merge small files, update the engine's index, retrain it where it
        no longer fits. Called after every write, when it does only what is worth its time; thorough does it all, and
        frees the space of what was removed. Changes no item. True if the index was retrained, so that its recall has to
        be measured again.
        """

    def version(self) -> Hashable:
        """Changes when items are added, replaced or removed, by any process."""

    def facts(self) -> dict[str, JsonValue]:
        """Version, kind of index, how many items are in it, bytes on the disk: for people."""

    def close(self) -> None:
        """Release files and connections."""


def proposes(engine: Engine) -> bool:
    """Whether the engine has candidates to propose, and a search need not scan."""
    return engine.candidates(np.empty((0, 0), np.float32), 1) is not None


def present(engine: Engine, ids: Sequence[str]) -> set[str]:
    """Which of the ids are stored."""
    return set(engine.fetch(ids, vectors=False).ids) if ids else set()


def metadata_of(engine: Engine, ids: Sequence[str]) -> dict[str, str]:
    """The metadata of stored items, as JSON text. An id that is not stored is left out."""
    found = engine.fetch(ids, vectors=False, metadata=True)
    return dict(zip(found.ids, found.metadata or [], strict=True))


def sample(engine: Engine, count: int, seed: int) -> Found:
    """Some items drawn at random, the same for the same seed and the same items; all of them if there are fewer."""

    def drawn(name: str) -> bytes:
        return hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()

    names = (name for found in engine.scan(_SCAN_BLOCK, vectors=False) for name in found.ids)
    return engine.fetch(heapq.nsmallest(count, names, key=drawn))


# The engines by name. Each is a module with `create(place)`, `open_engine(place)` and `check_files(place)`.


class EngineEntry(NamedTuple):
    """An engine: its module in `search/engines`, loaded when first used, and the extra that installs its library."""

    module: str
    extra: str
    options: dict[str, Any] = {}  # noqa: RUF012
    """Passed to the module's functions."""


ENGINES = {
    "lance": EngineEntry("lance", "search"),
    "exhaustive": EngineEntry("lance", "search", {"trained": False}),  # every search scans
    "milvus": EngineEntry("milvus", "milvus"),
}


def create_engine(name: str, place: Location) -> Engine:
    """An empty store. What a killed `create` left there is discarded."""
    engine: Engine = engine_function(name, "create")(place)
    return engine


def open_engine(name: str, place: Location) -> Engine:
    """The existing store; where a copy in one file is up to date, the copy, and the store once it is needed.

    FileNotFoundError or ConnectionError if there is none.
    """
    from maxmatch.search.engines.cached_table import CachedEngine, read_cache

    check_engine(name)

    def opened() -> Engine:
        engine: Engine = engine_function(name, "open_engine")(place)
        return engine

    cache = None if place.width == 0 else read_cache(place.folder, place.width)
    return opened() if cache is None else CachedEngine(place.folder, cache, opened)


def check_files(name: str, place: Location) -> None:
    """Look for damage that reading alone does not show; ValueError that names the file."""
    engine_function(name, "check_files")(place)


def check_engine(name: str) -> None:
    """ValueError if there is no such engine."""
    if name not in ENGINES:
        raise ValueError(f"engine: expected one of {', '.join(ENGINES)}, got {name!r}.")


def engine_function(name: str, what: str) -> Callable[..., Any]:
    """A function of an engine's module, with the options of the table."""
    check_engine(name)
    entry = ENGINES[name]
    try:
        module = import_module(f"maxmatch.search.engines.{entry.module}")
    except ImportError as error:
        if error.name is not None and error.name.startswith("maxmatch"):
            raise
        raise ImportError(f"engine {name!r} needs {error.name}: pip install 'maxmatch[{entry.extra}]'") from error
    return partial(getattr(module, what), **entry.options)


def checked_condition(
    where: str | Mapping[str, Value] | Condition | None, engine: Engine, seen: set[Condition]
) -> Condition | None:
    """A filter as given; one that a person wrote is checked against what the items have. seen: what any item has passed
    so far, which is not looked up again.
    """
    condition = condition_of(where)
    if condition is None or isinstance(where, Condition) or not engine.count():
        return condition

    def has_any(of_kind: Condition) -> bool:
        if of_kind not in seen and engine.count(of_kind):
            seen.add(of_kind)
        return of_kind in seen

    def known(asked: str) -> dict[str, bool]:
        keys: dict[str, bool] = {}
        spelt = {json.dumps(asked, ensure_ascii=ascii_only) for ascii_only in (True, False)}
        blocks = engine.scan(_SCAN_BLOCK, vectors=False, metadata=True)
        for place, text in enumerate(text for found in blocks for text in found.metadata or []):
            if place >= _SHOWN and asked in keys:
                break
            if place < _SHOWN or any(one in text for one in spelt):
                values = json.loads(text)
                for key in values if place < _SHOWN else values.keys() & {asked}:
                    keys[key] = keys.get(key, False) or values[key] is not None
        return keys

    check_kinds(condition, has_any, known)
    return condition
