"""Items in a Lance table in the index's folder: `items.lance`, written by LanceDB.

A table is versions of immutable files; a write makes new files and then a new version, so that a reader has one state
and a killed writer leaves the last. LanceDB does not wait for the disk: after each write its new files are synced here.
"""

import logging
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from maxmatch.core.ragged_array import RaggedArray
from maxmatch.search.engine import USUAL, CandidateOptions, Found, ItemRows, Location, Vectors
from maxmatch.search.engines.cached_table import versions_of
from maxmatch.search.engines.key_search import KeySearch
from maxmatch.search.engines.lance_files import (
    MOST_COLUMNS,
    bytes_on_disk,
    damaged,
    forget_removed,
    literals,
    metadata_columns,
    put_on_disk,
    reading,
    sql,
    storing,
)
from maxmatch.search.engines.lance_search import ANY_SIZE, Nearest, VectorIndex, found_in, lancedb_library, nearest
from maxmatch.search.filters import Condition
from maxmatch.search.index_folder import KEYS, TABLE, IndexFolderError, cure_of

_MOST_BYTES = 256 * 2**20
_BLOCK_BYTES = 32 * 2**20  # of sets of any size that are read at once


class TableState(NamedTuple):
    """What is known of a table: of at least that state."""

    state: object
    fits: bool
    indexed: bool


class ItemsInMemory:
    """Questions to a table that is searched often, answered without LanceDB as long as no new version of it is there: a
    call of LanceDB goes through other threads, which wait for a server's Python, several times as long as it takes.
    """

    def __init__(self, place: Location, table: Any, index: VectorIndex | None) -> None:
        self._place = place
        self._table = table
        self._index = index
        self._known: TableState | None = None
        self._items: tuple[object, Found] | None = None

    def known(self) -> TableState:
        """Whether all items fit into memory, and whether the index over the vectors has any."""
        known, state = self._known, self._state()
        if known is None or known.state != state:
            fits = self._bytes() <= _MOST_BYTES
            known = TableState(state, fits, self._index is not None and self._index.coverage().indexed > 0)
            self._known = known
        return known

    def _bytes(self) -> int:
        """What the vectors take in memory; of sets of any size at most about as much as the files."""
        if self._place.width == 0:
            return bytes_on_disk(self._place.folder / TABLE) * (2 if self._place.dtype == "float16" else 1)
        return int(self._table.count_rows()) * self._place.width * 4

    def block_of(self, most: int) -> int:
        """How many items to read at once, `most` where they are of one size."""
        if self._place.width != 0:
            return most
        return max(1, min(most, _BLOCK_BYTES * int(self._table.count_rows()) // max(1, self._bytes())))

    def items(self) -> Found:
        """All of them, with their metadata."""
        kept, state = self._items, self._state()  # looked at once: another thread may read a newer version
        if kept is None or kept[0] != state:
            # Not by batches, which end where a file does: a table that grew photo by photo has many small ones.
            columns = _columns_for(self._place, vectors=True, metadata=True)
            found = found_in(self._table.search().select(columns).to_arrow())
            kept = state, found._replace(vectors=_in_float32(found.vectors))
            self._items = kept
        return kept[1]

    def blocks(self, size: int) -> Iterator[Found]:
        """All of them, so many at a time."""
        ids, added, vectors, texts = self.items()
        assert texts is not None
        for start in range(0, len(ids), size):
            part = slice(start, start + size)  # no copies
            yield Found(ids[part], added[part], vectors[part], texts[part])

    def _state(self) -> object:
        return versions_of(self._place.folder) or self._table.version


def _in_float32(vectors: Vectors) -> Vectors:
    if isinstance(vectors, RaggedArray):
        return RaggedArray(np.array(vectors.flat(), np.float32), vectors.starts - vectors.starts[0])
    return np.array(vectors, np.float32)


_NAME = TABLE.removesuffix(".lance")
_OWN = ("id", "added", "vector", ANY_SIZE, "metadata")
_AT_ONCE = 1000  # ids in one filter
_MANY_FILES = 200
_KEPT = timedelta(minutes=10)  # how long what was replaced stays for those who are reading it
_FORMAT = (
    "2.1"  # of the files. In 2.2 a row of a column that is the same everywhere, as of no metadata, takes 4 ms to read
)
_CACHE_BYTES = 512 * 2**20  # at least
_KEYS_FROM = 10_000  # items
_log = logging.getLogger("maxmatch")


def create(place: Location, trained: bool = True) -> "LanceEngine":
    """An empty table in the folder."""
    _check_settings(place)
    session, database = _connect(place)
    number = pa.float32() if place.dtype == "float32" else pa.float16()
    vectors = pa.large_list(number) if place.width == 0 else pa.list_(number, place.width)
    kinds: list[pa.DataType] = [pa.string(), pa.int64(), vectors, pa.string()]
    names = ["id", "added", _vector_column(place), "metadata"]
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in zip(names, kinds, strict=True)])
    with storing(place.folder):
        left = "overwrite" if (place.folder / TABLE).exists() else "create"
        table = database.create_table(_NAME, schema=schema, mode=left)
    put_on_disk(place.folder / TABLE)
    return LanceEngine(place, table, session, trained)


def open_engine(place: Location, trained: bool = True) -> "LanceEngine":
    """The table of the folder."""
    path = place.folder / TABLE
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: missing; it holds the items of this index. Copy the whole folder.")
    session, database = _connect(place)
    with reading(path):
        table = database.open_table(_NAME)
        width = 0 if ANY_SIZE in table.schema.names else table.schema.field("vector").type.list_size
    if width != place.width:
        numbers = (f"{one or 'any number of'} numbers" for one in (width, place.width))
        raise ValueError(
            f"{path}: vectors of {next(numbers)}, but index.json has {next(numbers)}. They are of different "
            "indexes: copy the whole folder again."
        )
    return LanceEngine(place, table, session, trained)


def check_files(place: Location, trained: bool = True) -> None:
    """Compare every file with its checksum."""
    wrong = damaged(place.folder / TABLE)
    if wrong:
        names = ", ".join(map(str, wrong))
        raise IndexFolderError(f"{names}: changed since it was written. {cure_of(place.folder)}")


def _connect(place: Location) -> tuple[Any, Any]:
    """What is kept in memory, and the folder as a database."""
    lancedb = lancedb_library()
    session = lancedb.Session(index_cache_size_bytes=cache_bytes(place), metadata_cache_size_bytes=_CACHE_BYTES // 4)
    options = {"new_table_data_storage_version": _FORMAT}
    now = timedelta(0)
    return session, lancedb.connect(
        str(place.folder), read_consistency_interval=now, session=session, storage_options=options
    )


def _vector_column(place: Location) -> str:
    return "vector" if place.width else ANY_SIZE


def _columns_for(place: Location, vectors: bool, metadata: bool) -> list[str]:
    return ["id", "added", *([_vector_column(place)] if vectors else []), *(["metadata"] if metadata else [])]


def cache_bytes(place: Location) -> int:
    """How much of the index over the vectors is kept in memory: all of it, since a search looks at other parts each
    time, and one that is a little larger than its cache is read from the files again and again.
    """
    return max(_CACHE_BYTES, 3 * bytes_on_disk(place.folder / TABLE / "_indices") // 2)


def _check_settings(place: Location) -> None:
    """ValueError where a new index is given a setting that is not one of these, or a value that it cannot have."""
    names = ("index", "train_from", "keys_from")
    for name, value in place.settings.items():
        if name not in names:
            raise ValueError(f"settings: expected {', '.join(names[:-1])} or {names[-1]}, got {name!r}.")
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if name != "index" and not whole and not (name == "keys_from" and value is None):
            never = " (None: never)" if name == "keys_from" else ""
            raise ValueError(f"settings: {name}: expected a number of items{never}, got {value!r}.")


def _key_search(place: Location) -> KeySearch | None:
    """Searches by short keys; None where the settings want none."""
    first = place.settings.get("keys_from", _KEYS_FROM)
    return None if first is None else KeySearch(place.folder / KEYS, place.width, int(str(first)))


class LanceEngine:
    """The calls of `maxmatch.search.engine.Engine` on a Lance table. trained: with an index over the vectors, once
    there are enough of them.
    """

    def __init__(self, place: Location, table: Any, session: Any, trained: bool) -> None:
        self.place = place
        self.path = place.folder / TABLE
        self.table = table
        self.index = VectorIndex(table, place) if trained and place.width != 0 else None
        self._items = ItemsInMemory(place, table, self.index)
        self._keys = None if self.index is None else _key_search(place)
        self._session = session
        self._keep = False
        self._changed = 0  # rows, since the last flush

    @property
    def sure_of_few(self) -> bool:
        """By short keys, which are all looked at where few pass. The index looks at some of its cells."""
        return self._keys is not None and self._keys.answers(self._nearest, self._version())

    @property
    def in_memory(self) -> bool:
        """Whether the items are kept in memory: asked for, and they fit."""
        with reading(self.path):
            return self._keep and self._items.known().fits

    @in_memory.setter
    def in_memory(self, keep: bool) -> None:
        self._keep = keep

    def version(self) -> int:
        """The table's version."""
        with reading(self.path):
            return int(self.table.version)

    def facts(self) -> dict[str, JsonValue]:
        """Version, index, bytes."""
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
        if self._keys is not None:
            facts |= self._keys.facts(self._nearest, self._version())
        return facts

    def add(self, rows: ItemRows) -> None:
        """Store new items."""
        with self._writing(len(rows.ids)):
            self.table.add(self._batch(rows))

    def upsert(self, rows: ItemRows) -> None:
        """Store items, replacing those of the same ids."""
        with self._writing(2 * len(rows.ids)):
            merge = self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(self._batch(rows))

    def delete(self, ids: Sequence[str]) -> None:
        """Remove items."""
        with self._writing(len(ids)):
            self.table.delete(f"id IN ({literals(ids)})")

    def candidates(
        self, queries: np.ndarray, count: int, where: Condition | None = None, options: CandidateOptions = USUAL
    ) -> list[Found] | None:
        """The nearest items by their short keys, or by the index over the vectors; None where there is none. Where all
        items are in memory, by all inner products.
        """
        with reading(self.path):
            if self.index is None or not self._items.known().indexed:
                return None
            if not len(queries):
                return []
            items = self._items.items() if where is None and self.in_memory else None
        if items is not None:
            return nearest(queries, items, count)
        with reading(self.path):
            condition = None if where is None else self._sql(where)
            table = self._nearest
        passes = None if where is None or condition is None else (where, condition)
        if self._keys is not None and (found := self._by_keys(self._keys, queries, count, passes, options)) is not None:
            return found
        return table.search(queries, count, self.index.probes(options.effort), condition, options.choose)

    def _by_keys(
        self,
        keys: KeySearch,
        queries: np.ndarray,
        count: int,
        where: tuple[Condition, str] | None,
        options: CandidateOptions,
    ) -> list[Found] | None:
        """The nearest items by their short keys; None where there are none, or rows move twice meanwhile."""
        for _ in range(2):
            rows = keys.rows(self._nearest, self._version(), queries, count, options.effort, where, options.wanted)
            found = None if rows is None else self._nearest.among(rows, options.metadata)
            if rows is None or found is not None:
                return found
            keys.forget()
        return None

    def scan(
        self, block: int, where: Condition | None = None, vectors: bool = True, metadata: bool = False
    ) -> Iterator[Found]:
        """Every item that passes, in blocks. A small table is read once for all scans of one version."""
        with reading(self.path):
            block = self._items.block_of(block) if vectors else block
            if where is None and vectors and self._items.known().fits:
                yield from self._items.blocks(block)
                return
            search = self.table.search().select(_columns_for(self.place, vectors, metadata))
            if where is not None:
                search = search.where(self._sql(where))
            for batch in search.to_batches(batch_size=block):
                yield found_in(pa.Table.from_batches([batch]))

    def fetch(self, ids: Sequence[str], vectors: bool = True, metadata: bool = False) -> Found:
        """Stored items by their ids."""
        columns = _columns_for(self.place, vectors, metadata)
        with reading(self.path):
            if not (vectors or metadata) and len(ids) > max(_AT_ONCE, self.table.count_rows() // 20):
                return self._named(set(ids))
            batches = list(self._with_ids(ids, columns))
            schema = None if batches else pa.schema([self.table.schema.field(name) for name in columns])
            return found_in(pa.Table.from_batches(batches, schema=schema))

    def _named(self, names: set[str]) -> Found:
        """Those of many ids that are stored: reading all ids is less work than a filter for each."""
        table = self.table.search().select(["id", "added"]).to_arrow()
        return found_in(table.filter(pa.array([name in names for name in table["id"].to_pylist()], pa.bool_())))

    def count(self, where: Condition | None = None) -> int:
        """How many items there are, or pass."""
        known = None if where is None or self._keys is None else self._keys.counted(self._version(), where)
        if known is not None:
            return known
        with reading(self.path):
            return int(self.table.count_rows(None if where is None else self._sql(where)))

    def flush(self, thorough: bool = False) -> bool:
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
        if self._keys is not None:
            changed, self._changed = self._changed, 0
            try:
                trained |= self._keys.refresh(self._nearest, self.count(), changed, thorough)
            except OSError as error:  # they are a cache: what they would speed up works without them
                _log.warning("%s: not written: %s", self._keys.path, error)
        return trained

    def close(self) -> None:
        """Nothing is open."""

    def _version(self) -> Hashable:
        """Changes with every write, by any process."""
        return versions_of(self.place.folder) or self.version()

    @cached_property
    def _nearest(self) -> Nearest:
        return Nearest(self.place.folder, _NAME, self._session)

    @contextmanager
    def _writing(self, changed: int = 0) -> Iterator[None]:
        self._changed += changed
        with storing(self.place.folder):
            yield
            put_on_disk(self.path)

    def _batch(self, rows: ItemRows) -> pa.Table:
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
        vectors: Any
        if isinstance(rows.vectors, RaggedArray):
            offsets = pa.array(rows.vectors.starts - rows.vectors.starts[0], pa.int64())
            vectors = pa.LargeListArray.from_arrays(offsets, pa.array(rows.vectors.flat()))
        else:
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.vectors.ravel()), self.place.width)
        columns |= {"id": pa.array(rows.ids), "added": pa.array(rows.added), _vector_column(self.place): vectors}
        columns["metadata"] = pa.array(rows.metadata)
        empty = {field.name: pa.nulls(len(rows.ids), field.type) for field in schema if field.name not in columns}
        return pa.table([(columns | empty)[name] for name in schema.names], schema=schema)

    def _columns(self) -> list[str]:
        return [name for name in self.table.schema.names if name not in _OWN]

    def _sql(self, where: Condition) -> str:
        return sql(where, self._columns())

    def _with_ids(self, ids: Sequence[str], columns: list[str]) -> Iterator[Any]:
        for start in range(0, len(ids), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            yield from self.table.search().where(f"id IN ({literals(part)})").select(columns).to_batches()
