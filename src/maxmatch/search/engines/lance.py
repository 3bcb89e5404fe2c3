"""Items in a Lance table in the index's folder: `items.lance`, written by LanceDB.

A table is versions of immutable files; a write makes new files and then a new version, so that a reader has one state
and a killed writer leaves the last. LanceDB does not wait for the disk: after each write its new files are synced here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from maxmatch.search.engine import Choose, Found, Place, Rows
from maxmatch.search.engines.held import Held
from maxmatch.search.engines.lance_errors import reading, storing
from maxmatch.search.engines.lance_files import bytes_on_disk, damaged, forget_removed, put_on_disk
from maxmatch.search.engines.lance_filter import MOST_COLUMNS, literals, metadata_columns, sql
from maxmatch.search.engines.lance_index import VectorIndex
from maxmatch.search.engines.lance_library import lancedb_library
from maxmatch.search.engines.lance_nearest import Nearest
from maxmatch.search.engines.lance_rows import found_in
from maxmatch.search.engines.products import nearest
from maxmatch.search.folder import TABLE
from maxmatch.search.manifest import IndexFolderError
from maxmatch.search.where import Condition

_NAME = TABLE.removesuffix(".lance")
_FOUND = ["id", "added", "vector"]
_AT_ONCE = 1000  # ids in one filter
_MANY_FILES = 200
_KEPT = timedelta(minutes=10)  # how long what was replaced stays for those who are reading it
_FORMAT = (
    "2.1"  # of the files. In 2.2 a row of a column that is the same everywhere, as of no metadata, takes 4 ms to read
)
_CACHE_BYTES = 512 * 2**20  # at least


def create(place: Place, trained: bool = True) -> "LanceEngine":
    """An empty table in the folder."""
    session, database = _connect(place)
    vectors = pa.list_(pa.float32() if place.dtype == "float32" else pa.float16(), place.width)
    fields: list[pa.Field[Any]] = [
        pa.field("id", pa.string(), nullable=False),
        pa.field("added", pa.int64(), nullable=False),
        pa.field("vector", vectors, nullable=False),
        pa.field("metadata", pa.string(), nullable=False),
    ]
    with storing(place.folder):
        left = "overwrite" if (place.folder / TABLE).exists() else "create"
        table = database.create_table(_NAME, schema=pa.schema(fields), mode=left)
    put_on_disk(place.folder / TABLE)
    return LanceEngine(place, table, session, trained)


def open_engine(place: Place, trained: bool = True) -> "LanceEngine":
    """The table of the folder."""
    path = place.folder / TABLE
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: missing; it holds the items of this index. Copy the whole folder.")
    session, database = _connect(place)
    with reading(path):
        table = database.open_table(_NAME)
        found = table.schema.field("vector").type
    if found.list_size != place.width:
        raise ValueError(
            f"{path}: vectors of {found.list_size} numbers, but index.json says {place.width}. They are of different "
            "indexes: copy the whole folder again."
        )
    return LanceEngine(place, table, session, trained)


def _connect(place: Place) -> tuple[Any, Any]:
    """What is kept in memory, and the folder as a database."""
    lancedb = lancedb_library()
    session = lancedb.Session(index_cache_size_bytes=cache_bytes(place), metadata_cache_size_bytes=_CACHE_BYTES // 4)
    options = {"new_table_data_storage_version": _FORMAT}
    now = timedelta(0)
    return session, lancedb.connect(
        str(place.folder), read_consistency_interval=now, session=session, storage_options=options
    )


def cache_bytes(place: Place) -> int:
    """How much of the index over the vectors is kept in memory: all of it, since a search looks at other parts each
    time, and one that is a little larger than its cache is read from the files again and again.
    """
    return max(_CACHE_BYTES, 3 * bytes_on_disk(place.folder / TABLE / "_indices") // 2)


class LanceEngine:
    """The calls of `maxmatch.search.engine.Engine` on a Lance table. trained: with an index over the vectors, once
    there are enough of them.
    """

    def __init__(self, place: Place, table: Any, session: Any, trained: bool) -> None:
        self.place = place
        self.path = place.folder / TABLE
        self.table = table
        self.index = VectorIndex(table, place) if trained else None
        self._items = Held(place, table, self.index)
        self._session = session
        self._hold = False

    @property
    def approximate(self) -> bool:
        """Whether there is an index over the vectors."""
        with reading(self.path):
            return self._items.known().indexed

    @property
    def held(self) -> bool:
        """Whether candidates are those of all inner products."""
        with reading(self.path):
            return self._hold and self._items.known().fits

    def add(self, rows: Rows) -> None:
        """Store new items."""
        with self._writing():
            self.table.add(self._batch(rows))

    def upsert(self, rows: Rows) -> None:
        """Store items, replacing those of the same ids."""
        with self._writing():
            merge = self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(self._batch(rows))

    def delete(self, ids: Sequence[str]) -> None:
        """Remove items."""
        with self._writing():
            self.table.delete(f"id IN ({literals(ids)})")

    def present(self, ids: Sequence[str]) -> set[str]:
        """Which of the ids are stored."""
        with reading(self.path):
            if len(ids) > max(_AT_ONCE, self.table.count_rows() // 20):  # then reading all ids is less work
                wanted = set(ids)
                batches = self.table.search().select(["id"]).to_batches()
                return {name for batch in batches for name in batch["id"].to_pylist() if name in wanted}
            return {name for batch in self._with_ids(ids, ["id"]) for name in batch["id"].to_pylist()}

    def candidates(
        self, queries: np.ndarray, count: int, where: Condition | None = None, effort: float = 1, choose: Choose = None
    ) -> list[Found]:
        """The nearest items by the index over the vectors; where all are in memory, by all inner products."""
        assert self.index is not None
        with reading(self.path):
            items = self._items.items() if where is None and self.held else None
        if items is not None:
            return nearest(queries, items, count)
        with reading(self.path):
            condition = None if where is None else self._sql(where)
            table = self._nearest
        return table.search(queries, count, self.index.probes(effort), condition, choose)

    def scan(self, block: int, where: Condition | None = None) -> Iterator[Found]:
        """Every item that passes, in blocks. A small table is read once for all scans of one version."""
        with reading(self.path):
            search = self.table.search().select(_FOUND)
            if where is not None:
                search = search.where(self._sql(where))
            elif self._items.known().fits:
                yield from self._items.blocks(block)
                return
            for batch in search.to_batches(batch_size=block):
                yield found_in(pa.Table.from_batches([batch]))

    def metadata(self, ids: Sequence[str]) -> dict[str, str]:
        """The JSON texts of stored items."""
        with reading(self.path):
            found: dict[str, str] = {}
            for batch in self._with_ids(ids, ["id", "metadata"]):
                found.update(zip(batch["id"].to_pylist(), batch["metadata"].to_pylist(), strict=True))
            return found

    def fetch(self, ids: Sequence[str]) -> Found:
        """Stored items by their ids."""
        with reading(self.path):
            batches = list(self._with_ids(ids, _FOUND))
            schema = None if batches else pa.schema([self.table.schema.field(name) for name in _FOUND])
            return found_in(pa.Table.from_batches(batches, schema=schema))

    def sample(self, count: int, seed: int) -> Found:
        """Items drawn by their place in the table."""
        with reading(self.path):
            total = self.table.count_rows()
            places = np.sort(np.random.default_rng(seed).permutation(total)[:count])
            return found_in(self.table.take_offsets(places.tolist()).select(_FOUND).to_arrow())

    def count(self, where: Condition | None = None) -> int:
        """How many items there are, or pass."""
        with reading(self.path):
            return int(self.table.count_rows(None if where is None else self._sql(where)))

    def version(self) -> int:
        """The table's version."""
        with reading(self.path):
            return int(self.table.version)

    def optimise(self, thorough: bool = False) -> bool:
        """Merge small files, keep the indexes up to date."""
        with self._writing():
            files = self.table.stats()["fragment_stats"]["num_fragments"]
            trained = self.index is not None and self.index.train_if_worth_it(self.table.count_rows())
            if trained:
                from lancedb.index import BTree

                self.table.create_index("id", config=BTree(), replace=True)
            if thorough or files > _MANY_FILES or (self.index is not None and self.index.is_behind()):
                self.table.optimize(cleanup_older_than=_KEPT)
        if thorough:
            forget_removed(self.path)
        return trained

    def hold(self, on: bool = True) -> None:
        """Search in memory."""
        self._hold = on

    def check(self) -> None:
        """Compare every file with its checksum."""
        wrong = damaged(self.path)
        if wrong:
            names = ", ".join(map(str, wrong))
            raise IndexFolderError(f"{names}: changed since it was written. Restore it from a copy.")

    def info(self) -> dict[str, JsonValue]:
        """Version, index, room."""
        with reading(self.path):
            facts: dict[str, JsonValue] = {
                "library": f"lancedb {lancedb_library().__version__}",
                "version": self.table.version,
                "files": self.table.stats()["fragment_stats"]["num_fragments"],
                "bytes": bytes_on_disk(self.path),
                "metadata_columns": [*self._columns()],
            }
            if self.index is not None:
                coverage = self.index.coverage()
                facts |= {"index": self.index.kind, "indexed": coverage.indexed, "not_yet_indexed": coverage.beside}
            return facts

    def close(self) -> None:
        """Nothing is held."""

    @cached_property
    def _nearest(self) -> Nearest:
        return Nearest(self.place.folder, _NAME, self._session)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with storing(self.place.folder):
            yield
            put_on_disk(self.path)

    def _batch(self, rows: Rows) -> pa.Table:
        """The rows as the table has them, once it has a column for each key of their metadata."""
        columns = metadata_columns(rows.metadata)
        schema = self.table.schema
        new = [pa.field(name, column.type) for name, column in columns.items() if name not in schema.names]
        if len(schema.names) + len(new) > MOST_COLUMNS:
            raise ValueError(
                f"metadata: more than {MOST_COLUMNS} different keys. Keys are for what items have in common: put the "
                "rest into a list or a mapping under one key."
            )
        if new:
            self.table.add_columns(new)
            schema = self.table.schema
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.vectors.ravel()), self.place.width)
        columns |= {"id": pa.array(rows.ids), "added": pa.array(rows.added), "vector": vectors}
        columns["metadata"] = pa.array(rows.metadata)
        empty = {field.name: pa.nulls(len(rows.ids), field.type) for field in schema if field.name not in columns}
        return pa.table([(columns | empty)[name] for name in schema.names], schema=schema)

    def _columns(self) -> list[str]:
        return [name for name in self.table.schema.names if name not in (*_FOUND, "metadata")]

    def _sql(self, where: Condition) -> str:
        return sql(where, self._columns())

    def _with_ids(self, ids: Sequence[str], columns: list[str]) -> Iterator[Any]:
        for start in range(0, len(ids), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            yield from self.table.search().where(f"id IN ({literals(part)})").select(columns).to_batches()
