"""The nearest vectors of a Lance table; names only of those that are wanted.

Ids and metadata of a hundred candidates take as long to read as their vectors do, since each of these columns is looked
up and decoded by itself. So vectors come first, with the numbers of their rows; then the names of the few that score
best. LanceDB's asynchronous calls are used: the others ask for the table's schema three times a search.
"""

from collections.abc import Coroutine, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from maxmatch.search.engine import Choose, Found
from maxmatch.search.engines.lance_errors import reading
from maxmatch.search.engines.lance_library import lancedb_library
from maxmatch.search.engines.lance_rows import found_in, vectors_in

_NAMES = ["id", "added", "metadata"]


class Nearest:
    """Searches by one table's index over the vectors."""

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

    def search(self, queries: np.ndarray, count: int, probes: int, where: str | None, choose: Choose) -> list[Found]:
        """For each query the nearest items that pass the filter, with names; of those, the wanted ones."""
        if choose is not None:
            tables = [_once(table) for table in self._nearest(queries, count, probes, where, ["_rowid", "vector"])]
            found = self._named(tables, choose([vectors for _, vectors in tables]))
            if found is not None:
                return found
        return [found_in(table) for table in self._nearest(queries, count, probes, where, ["vector", *_NAMES])]

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
