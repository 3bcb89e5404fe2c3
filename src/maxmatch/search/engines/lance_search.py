"""Searches in a Lance table: LanceDB's index over its vectors, and the rows of candidates with their names."""

import os
from collections.abc import Coroutine, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from maxmatch.core.ragged_array import RaggedArray
from maxmatch.search.engine import Choose, Found, Location, Vectors
from maxmatch.search.engines.key_search import KeyedRows
from maxmatch.search.engines.lance_files import reading

_AHEAD_BYTES = 64 * 2**20
ANY_SIZE = "vectors"
"""The column of sets of any size: of one named `vector` LanceDB wants vectors of one length."""


def lancedb_library() -> ModuleType:
    """The module. A scan of it would read ahead by 2 GiB; and of its own inner workings it would warn, in thousands of
    lines while a million items are indexed.
    """
    os.environ.setdefault("LANCE_DEFAULT_IO_BUFFER_SIZE", str(_AHEAD_BYTES))
    os.environ.setdefault("LANCEDB_LOG", "error")
    import lancedb

    return lancedb


def found_in(table: Any) -> Found:
    """The items of a table, their metadata too where it has them."""
    texts = table["metadata"].to_pylist() if "metadata" in table.column_names else None
    return Found(table["id"].to_pylist(), table["added"].to_numpy(), vectors_in(table), texts)


def vectors_in(table: Any) -> Vectors:
    """The vectors of a table, (n, width), or rows of their own lengths; (n, 0) where it has none."""
    column = next((name for name in table.column_names if name in ("vector", ANY_SIZE)), None)
    if column is None:
        return np.empty((len(table), 0), np.float32)
    vectors = table[column].combine_chunks()
    flat: np.ndarray = vectors.flatten().to_numpy(zero_copy_only=False)
    if pa.types.is_large_list(vectors.type):
        starts = vectors.offsets.to_numpy()
        return RaggedArray(flat, starts - starts[0])
    return flat.reshape(len(vectors), vectors.type.list_size)


# Kinds of Lance's index over the vectors, and their classes in LanceDB.
KINDS = {"ivf_rq": "IvfRq", "ivf_pq": "IvfPq", "ivf_sq": "IvfSq", "ivf_flat": "IvfFlat"}
_TRAIN_FROM = 10_000  # items; below, a scan is as fast
_PARTITION = 4_000  # items in one
_PROBES = 16
_UNINDEXED = 10_000  # items beside the index that a search scans
_PREFIX = "vector_"


class Coverage(NamedTuple):
    """Of how many items the index knows, how many were added since, and for how many it was trained."""

    indexed: int
    beside: int
    trained_for: int


class VectorIndex:
    """The index over the vectors of one table. Its name tells for how many items it was trained, `vector_1000000`; it
    is retrained when there are twice as many.
    """

    def __init__(self, table: Any, place: Location) -> None:
        self.table = table
        self.kind = str(place.settings.get("index", "ivf_rq"))
        self.train_from = int(str(place.settings.get("train_from", _TRAIN_FROM)))
        if self.kind not in KINDS:
            raise ValueError(f"settings: index: expected one of {', '.join(KINDS)}, got {self.kind!r}.")

    def coverage(self) -> Coverage:
        """What it covers; zeros where there is none."""
        found = self._found()
        if not found:
            return Coverage(0, 0, 0)
        newest = max(found, key=lambda index: index.created_at)
        return Coverage(newest.num_indexed_rows, newest.num_unindexed_rows, int(newest.name.removeprefix(_PREFIX)))

    def train_if_worth_it(self, items: int) -> bool:
        """Train it for the first time, or anew where there are twice as many items as then. True if it was."""
        from lancedb import index

        if items < max(self.train_from, 2 * self.coverage().trained_for):
            return False
        old, name = self._found(), f"{_PREFIX}{items}"
        # Vectors of one length: the nearest are those with the largest inner product.
        config = getattr(index, KINDS[self.kind])(distance_type="l2", num_partitions=max(1, items // _PARTITION))
        self.table.create_index("vector", config=config, name=name, replace=True)
        for other in old:
            if other.name != name:
                self.table.drop_index(other.name)
        return True

    def is_behind(self) -> bool:
        """Whether so many items are beside it that a search suffers."""
        coverage = self.coverage()
        return coverage.indexed > 0 and coverage.beside > max(_UNINDEXED, coverage.indexed // 20)

    def probes(self, effort: float) -> int:
        """How many partitions a search looks at."""
        return max(1, round(_PROBES * effort))

    def _found(self) -> list[Any]:
        return [index for index in self.table.list_indices() if index.name.startswith(_PREFIX)]


_NAMES = ["id", "added", "metadata"]


class Nearest:
    """Searches by one table's index over the vectors.

    Ids and metadata of a hundred candidates take as long to read as their vectors do, since each of these columns is
    looked up and decoded by itself. So vectors come first, with the numbers of their rows; then the names of the few
    that score best. LanceDB's asynchronous calls are used: the others ask for the table's schema three times a search.
    """

    def __init__(self, folder: Path, name: str, session: Any) -> None:
        lancedb: Any = lancedb_library()
        from lancedb.background_loop import LOOP

        async def opened() -> Any:
            now = timedelta(0)
            database = await lancedb.connect_async(str(folder), read_consistency_interval=now, session=session)
            return await database.open_table(name)

        self._loop: Any = LOOP
        self._path = folder / f"{name}.lance"
        self._table = self._run(opened())

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        with reading(self._path):
            return self._loop.run(call)

    def search(
        self, queries: np.ndarray, count: int, probes: int, where: str | None, choose: Choose | None
    ) -> list[Found]:
        """For each query the nearest items that pass the filter, with names; of those, the wanted ones."""
        if choose is not None:
            tables = [_once(table) for table in self._nearest(queries, count, probes, where, ["_rowid", "vector"])]
            found = self._named(tables, choose([vectors for _, vectors in tables]))
            if found is not None:
                return found
        return [found_in(table) for table in self._nearest(queries, count, probes, where, ["vector", *_NAMES])]

    def among(self, rows: Sequence[KeyedRows], metadata: bool) -> list[Found] | None:
        """For each query its candidates, by the numbers of their rows. None where a row is gone, or has another number
        by now.
        """
        every = np.unique(np.concatenate([each.numbers for each in rows]))
        table = self._taken(every, ["vector", "id", *(["metadata"] if metadata else [])])
        if table is None:
            return None
        ids: Any = table["id"].to_pylist()
        texts: Any = table["metadata"].to_pylist() if metadata else None
        items = Found(ids, np.empty(len(every), np.int64), vectors_in(table), texts)
        return [items.at(np.searchsorted(every, numbers))._replace(added=added) for numbers, added in rows]

    def _taken(self, numbers: np.ndarray, columns: list[str]) -> pa.Table | None:
        """Some rows by their numbers, in their order; None where one is gone."""
        if not len(numbers):
            schema = self._run(self._table.schema())
            return pa.schema([schema.field(name) for name in columns]).empty_table()

        async def taken() -> Any:
            return await self._table.take_row_ids(numbers.tolist()).select(["_rowid", *columns]).to_arrow()

        table: pa.Table = self._run(taken())
        found = table["_rowid"].to_numpy()
        if len(found) < len(numbers):
            return None
        if np.array_equal(found, numbers):
            return table
        return table.take(np.argsort(found)[np.argsort(np.argsort(numbers))])

    def numbers(self, where: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of all rows that pass, and their `added`."""

        async def asked() -> Any:
            query = self._table.query().select(["_rowid", "added"])
            return await (query if where is None else query.where(where)).to_arrow()

        table = self._run(asked())
        return table["_rowid"].to_numpy(), table["added"].to_numpy()

    def vectors(self, numbers: np.ndarray) -> np.ndarray | None:
        """The vectors of some rows, in their order; None where one is gone."""
        table = self._taken(numbers, ["vector"])
        return None if table is None else vectors_in(table)

    def blocks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """`added` and the vectors of all rows, so many at a time."""

        async def begun() -> Any:
            return await self._table.query().select(["added", "vector"]).to_batches(max_batch_length=size)

        async def following(reader: Any) -> Any:
            return await anext(reader, None)

        reader = self._run(begun())
        while (batch := self._run(following(reader))) is not None:
            table = pa.Table.from_batches([batch])
            yield table["added"].to_numpy(), vectors_in(table)

    def _nearest(
        self, queries: np.ndarray, count: int, probes: int, where: str | None, columns: list[str]
    ) -> list[pa.Table]:
        """A table for each query."""

        async def asked() -> Any:
            query = self._table.query().nearest_to(list(queries)).column("vector").distance_type("l2")
            query = query.nprobes(probes).limit(count).select([*columns, "_distance"])
            return await (query if where is None else query.where(where)).to_arrow()

        table = self._run(asked())
        if len(queries) == 1:
            return [table]
        rows = table["query_index"].to_numpy()
        order = np.argsort(rows, kind="stable")
        ends = np.searchsorted(rows[order], np.arange(len(queries) + 1))
        table = table.take(order)
        return [table.slice(begin, end - begin) for begin, end in pairwise(ends)]

    def _named(
        self, tables: Sequence[tuple[np.ndarray, np.ndarray]], wanted: Sequence[np.ndarray]
    ) -> list[Found] | None:
        """Rows and vectors of each query's candidates, the wanted ones with their names. None where one has no longer
        the number that it had: someone has replaced, removed or moved it in between.
        """
        rows = np.unique(np.concatenate([numbers[places] for (numbers, _), places in zip(tables, wanted, strict=True)]))

        async def taken() -> Any:
            return await self._table.take_row_ids(rows.tolist()).select(["_rowid", *_NAMES]).to_arrow()

        names = self._run(taken())
        if len(names) < len(rows):
            return None
        order = np.argsort(names["_rowid"].to_numpy())
        ids, texts = (names[column].take(order).to_pylist() for column in ("id", "metadata"))
        added = names["added"].to_numpy()[order]
        found = []
        for (numbers, vectors), places in zip(tables, wanted, strict=True):
            at = np.searchsorted(rows, numbers[places])
            found.append(
                Found([ids[place] for place in at], added[at], vectors[places], [texts[place] for place in at])
            )
        return found


def _once(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of rows and vectors, each row once: an index that is being renewed may name one twice."""
    rows, places = np.unique(table["_rowid"].to_numpy(), return_index=True)
    return rows, vectors_in(table)[places]


def nearest(queries: np.ndarray, items: Found, count: int) -> list[Found]:
    """For each query (q, K·D), of items in memory the `count` with the largest inner products; all if there are fewer.

    All products and their order are in memory at once: q × items × 16 bytes.
    """
    count = min(count, len(items.ids))
    if not count:
        return [items for _ in queries]
    import torch

    from maxmatch.matching.products import products_with_few

    asked = torch.from_numpy(np.ascontiguousarray(queries, np.float32))
    products = products_with_few(torch.from_numpy(items.vectors), asked).T.contiguous().numpy()
    return [items.at(places) for places in np.sort(np.argpartition(products, -count)[:, -count:])]
