"""What an engine does for an index: store items durably, and find those whose vector is near."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from pydantic import JsonValue

from maxmatch.search.filters import Condition

# What a search gives.


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
    """The best one-to-one matching of the query's vectors with the item's, by query slot."""
    metadata: dict[str, JsonValue] = field(default_factory=dict)


# What an engine does for an index: keep items for good, and find those whose vector is near.
#
# An engine knows nothing of sets. An item is an id, one vector (the set's K vectors of width D one after the other,
# so
# K·D numbers) and metadata; the inner product of two such vectors is the sum of the cosines of slot i with slot i.
# `SetIndex` checks all input, holds the lock of writers, and scores; an engine stores, filters and proposes.


@dataclass(frozen=True)
class Location:
    """Where an engine keeps its items, and of what form they are."""

    folder: Path
    """The index's folder. An engine on this machine keeps its files in it, under its own name."""
    width: int
    """Numbers in a vector: K·D."""
    dtype: str = "float32"
    """In what precision vectors are kept: float32 or float16."""
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """The engine's own, as given to `SetIndex.create(settings=…)` and kept in index.json: a URI, a type of index."""


class ItemRows(NamedTuple):
    """Items to store."""

    ids: list[str]
    """Distinct."""
    added: np.ndarray
    """int64, (n,): rises with every item that is ever added. Where scores are equal, the lower comes first."""
    vectors: np.ndarray
    """(n, K·D), in the precision of the place, finite; every K-th part is of unit length."""
    metadata: list[str]
    """A JSON object each, as text, to be given back as it is; `where` sees its text, number and boolean values."""


class Found(NamedTuple):
    """Items that were found, with what it takes to score them."""

    ids: list[str]
    added: np.ndarray
    """int64, (n,)"""
    vectors: np.ndarray
    """(n, K·D), in the precision of the place."""
    metadata: list[str] | None = None
    """The JSON texts, where they came at no cost; else None, and `metadata(ids)` gives them."""


Choose = Callable[[list[np.ndarray]], list[np.ndarray]] | None
"""The vectors of each query's candidates, (n, K·D) -> the places of those that are wanted; None: all are."""


@runtime_checkable
class Engine(Protocol):
    """The calls that `SetIndex` makes.

    Writing calls are made by one process at a time, and are all or nothing: a process that is killed at any moment
    leaves the items as before the call or as after it; when a call has returned, its items survive. What a reader sees
    is what was acknowledged before its call began, whoever wrote it, and never a part of a write. No call changes
    arrays that it was given.

    Errors: OSError where the disk or the server fails (ConnectionError for a server that does not answer), with the
    state as it was before; ValueError where stored files are damaged, naming them.
    """

    @property
    def approximate(self) -> bool:
        """Whether `candidates` is faster than scanning all items. If not, the index scans, and never asks for them."""

    def add(self, rows: ItemRows) -> None:
        """Store new items. None of the ids is stored yet: the index has looked."""

    def upsert(self, rows: ItemRows) -> None:
        """Store items; those whose id is stored already are replaced, vector, metadata and `added`."""

    def delete(self, ids: Sequence[str]) -> None:
        """Remove items. All of the ids are stored: the index has looked."""

    def present(self, ids: Sequence[str]) -> set[str]:
        """Which of the ids are stored."""

    def candidates(
        self, queries: np.ndarray, count: int, where: Condition | None = None, effort: float = 1, choose: Choose = None
    ) -> list[Found]:
        """For each query (q, K·D), float32, about `count` items whose vectors have the largest inner products with it.

        In any order; fewer only where fewer items pass the filter, or where the engine's index finds no more. Only
        items that pass the filter, and `count` of those: it is applied before, not after. effort: 1 is what the engine
        does by default; twice the effort looks at about twice as much of its index and misses less.
        choose: an engine to which it is less work may give only those that are wanted of them.
        """

    def scan(self, block: int, where: Condition | None = None) -> Iterator[Found]:
        """Every item that passes the filter once, at most `block` at a time: one state of the items, whatever is
        written meanwhile.
        """

    def metadata(self, ids: Sequence[str]) -> dict[str, str]:
        """The metadata of stored items, as JSON text. An id that was removed meanwhile is left out."""

    def fetch(self, ids: Sequence[str]) -> Found:
        """Stored items by their ids, in any order. An id that is not stored is left out."""

    def sample(self, count: int, seed: int) -> Found:
        """Some items drawn at random, the same for the same seed and the same items; all of them if there are fewer."""

    def count(self, where: Condition | None = None) -> int:
        """How many items there are, or pass the filter."""

    def version(self) -> Hashable:
        """What is another value after items were added, replaced or removed, by whomever."""

    def optimise(self, thorough: bool = False) -> bool:
        """Put the stored items in order for fast search: merge small files, bring the engine's index up to date, train
        it anew where it no longer fits. Called after every write, when it does only what is worth its time; thorough
        does it all, and frees the room of what was removed. Changes no item. True if the index was trained anew, so
        that its recall is to be measured again.
        """

    def hold(self, on: bool = True) -> None:
        """From now on keep the items in memory, if they fit, for one who searches often; or no longer."""

    @property
    def held(self) -> bool:
        """Whether they are, and `candidates` those of all inner products, whatever the effort: few then suffice."""

    def check(self) -> None:
        """Look for damage that reading alone does not show; ValueError that names the file. A server checks itself."""

    def info(self) -> dict[str, JsonValue]:
        """What a person wants to know: version, kind of index, how many items are in it, bytes on the disk."""

    def close(self) -> None:
        """Let go of files and connections."""


@runtime_checkable
class EngineMaker(Protocol):
    """A module of `search.engines` has two functions: `create` and `open_engine`, with the same arguments."""

    def __call__(self, place: Location) -> Engine:
        """`create` makes an empty store (what a `create` that was killed has left there is discarded); `open_engine`
        opens one that is there, and raises FileNotFoundError or ConnectionError, saying where it looked, if it is not.
        """
