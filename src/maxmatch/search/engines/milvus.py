"""The engine for those who outgrow one machine: a collection on a Milvus server, whose URI the settings give.

    SetIndex.create(folder, dim, set_size, engine="milvus", settings={"uri": "http://localhost:19530"})

A write is acknowledged when it is in the server's log, which survives the server. One call is one message of at most
32 MB, which is stored as a whole or not at all; a longer call is several, and a process that is killed between two of
them leaves whole items of the first. A scan while somebody else writes sees each item that is there throughout once,
and one that is added, replaced or removed meanwhile as before or as after.
"""

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import urlsplit
from uuid import uuid4

import grpc
import numpy as np
from pydantic import Field, JsonValue, ValidationError, field_validator
from pymilvus import DataType, MilvusClient
from pymilvus.exceptions import MilvusException

from maxmatch.core.files import write_whole
from maxmatch.core.manifest import problems
from maxmatch.model.config import ConfigPart
from maxmatch.search.engine import USUAL, CandidateOptions, Found, ItemRows, Location
from maxmatch.search.filters import (
    Among,
    Begins,
    Comparison,
    Condition,
    Every,
    Missing,
    Not,
    Operator,
    Some,
    Value,
    kind_of,
)

TOKEN = "MAXMATCH_MILVUS_TOKEN"
FILE = "milvus.json"
"""In the index's folder: which collection holds its items."""


class Server(ConfigPart):
    """The settings of an index on a Milvus server: its address and options."""

    uri: Annotated[str, Field(validate_default=True)] = ""
    timeout: Annotated[float, Field(gt=0, strict=True)] = 60.0
    """Seconds to wait for an answer."""
    consistency: Literal["Strong", "Session", "Bounded", "Eventually"] = "Strong"
    """How fresh an answer must be."""
    collection: str | None = None
    index: Literal["HNSW", "DISKANN", "IVF_FLAT", "IVF_SQ8", "AUTOINDEX", "FLAT"] = "HNSW"
    shards: Annotated[int, Field(ge=1, le=16, strict=True)] = 1

    @field_validator("collection")
    @classmethod
    def _is_name(cls, collection: str | None) -> str | None:
        if collection is not None and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,254}", collection):
            raise ValueError(f"expected letters, digits and _, not a digit first, got {collection!r}.")
        return collection

    @field_validator("uri", mode="before")
    @classmethod
    def _is_address(cls, uri: Any) -> Any:
        parts = urlsplit(uri) if isinstance(uri, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected the address of a Milvus server, as http://localhost:19530, got {uri!r}.")
        if parts.username or parts.password:
            raise ValueError(f"a password would be written to the folder. Leave it out, and set {TOKEN} instead.")
        return uri

    @contextmanager
    def talking(self, collection: str | None = None) -> Iterator[None]:
        """Errors of the client become one line each, with what to do."""
        try:
            yield
        except (MilvusException, grpc.RpcError) as error:
            self._explain(error, collection)

    def _explain(self, error: Any, collection: str | None) -> NoReturn:
        of_client = isinstance(error, MilvusException)
        code = error.code if of_client else error.code()
        reason = " ".join(str(error.message if of_client else error.details()).split())[:300]
        if code == grpc.StatusCode.UNAUTHENTICATED or "auth check fail" in reason:
            raise ConnectionError(
                f"{self.uri}: the Milvus server refused the login ({reason}). Set {TOKEN} to user:password or a token."
            ) from error
        if isinstance(code, grpc.StatusCode) or re.search("(?i)timeout|fail connecting|unavailable|deadline", reason):
            raise ConnectionError(
                f"{self.uri}: the Milvus server does not answer ({reason}). "
                "Start it, or correct the address or the network; what was acknowledged is kept."
            ) from error
        where = self.uri if collection is None else f"{self.uri}, collection {collection}"
        raise OSError(f"{where}: the Milvus server refused ({reason}).") from error

    def connect(self) -> MilvusClient:
        """A connection. ConnectionError if nobody answers."""
        # The client logs every error with its stack before it raises it; the error alone is enough.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        with self.talking():
            return MilvusClient(uri=self.uri, token=os.environ.get(TOKEN, ""), timeout=min(self.timeout, 10.0))


def server_of(place: Location) -> Server:
    """The server that the settings name."""
    try:
        return Server.model_validate(dict(place.settings))
    except ValidationError as error:
        raise ValueError(problems(error)) from error


def noted_collection(place: Location) -> str:
    """The name of the collection, as the folder has it."""
    path = place.folder / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not there. It names the collection on the Milvus server; restore it.")
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["collection"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{path}: expected {{"collection": "…"}}. Restore it from a copy.') from error


# Filters in the language of Milvus.
#
# What a filter can see of an item's metadata is kept in a JSON field of its own: the kind of a value is a part of its
# key, and numbers are float64. So a comparison meets values of its own kind only, whatever a version of Milvus makes of
# others. What Milvus makes of `not` before a comparison with a key that an item lacks differs between versions, too:
# `not` is moved inwards, to stand before `exists` alone.

FIELD = "filter"
_LETTER = {"text": "t", "number": "n", "boolean": "b"}
_OPPOSITE: dict[Operator, Operator] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def filterable(metadata: str) -> dict[str, Value]:
    """Of metadata, a JSON object as text, what filters can see: {"n:year": 2020.0, "t:album": "Rome"}."""
    return {
        f"{_LETTER[kind]}:{_plain(key)}": float(value) if kind == "number" else value
        for key, value in json.loads(metadata).items()
        if (kind := kind_of(value)) is not None
    }


def expression(condition: Condition, holds: bool = True) -> str:
    """The expression for what passes a condition, or (holds=False) for what does not."""
    match condition:
        case Not(inner):
            return expression(inner, not holds)
        case Every(parts) | Some(parts):
            word = " and " if isinstance(condition, Every) == holds else " or "
            return "(" + word.join(expression(part, holds) for part in parts) + ")"
        case Missing(key):
            there = [_there(_path(key, kind), not holds) for kind in _LETTER]
            return "(" + (" and " if holds else " or ").join(there) + ")"
        case Begins(key, text):
            end = _after_all_that_begin_with(text)
            low = Comparison(key, ">=", text)
            return expression(low if end is None else Every((low, Comparison(key, "<", end))), holds)
        case Among(key, values):
            return expression(Some(tuple(Comparison(key, "=", value) for value in values)), holds)
        case Comparison(key, operator, value):
            kind = kind_of(value)
            assert kind is not None
            path = _path(key, kind)
            if not holds:
                return f"({_compared(path, _OPPOSITE[operator], value)} or {_there(path, False)})"
            return _compared(path, operator, value)


def quoted(text: str) -> str:
    """A text between quotes."""
    return json.dumps(text, ensure_ascii=False)


def _compared(path: str, operator: Operator, value: Value) -> str:
    if operator == "!=" and isinstance(value, bool):
        operator, value = "=", not value
    if operator == "!=":  # which may hold for an item without the key
        return f"({path} < {_literal(value)} or {path} > {_literal(value)})"
    return f"{path} {'==' if operator == '=' else operator} {_literal(value)}"


def _there(path: str, holds: bool) -> str:
    """In brackets: `exists` binds weaker than `or`."""
    return f"(exists {path})" if holds else f"(not (exists {path}))"


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quoted(value) if isinstance(value, str) else repr(float(value))


def _path(key: str, kind: str) -> str:
    return f'{FIELD}["{_LETTER[kind]}:{_plain(key)}"]'


def _plain(key: str) -> str:
    """A key without the characters that mean something in a path or between quotes."""
    return re.sub(r"[^\w .-]", lambda found: f"%{ord(found[0]):x};", key)


def _after_all_that_begin_with(text: str) -> str | None:
    """The least text above all that begin so, by code point; None where there is none above."""
    stem = text.rstrip("\U0010ffff")
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # surrogates are no characters


WIDEST = 32_768
LONGEST = 65_535  # bytes of a text
MOST_FOUND = 16_384  # of one search, or of one page
_ID_BYTES = 4096  # 1,024 characters

# Kind of index -> how it is built, and how a search for `count` items looks with an effort of 1 at least as hard as
# what finds 99 in 100 of them on our embeddings. Cells are those of one segment, of which a search visits all.
_CELLS = 1024
_Looking = Callable[[int, float], dict[str, int]]


def _list(name: str) -> _Looking:
    """How long the list of the best is that a walk along a graph keeps."""
    return lambda count, effort: {name: min(32_768, max(count, math.ceil(max(2 * count, 64) * effort)))}


def _cells(count: int, effort: float) -> dict[str, int]:
    return {"nprobe": max(1, min(_CELLS, math.ceil(32 * effort)))}


KINDS: dict[str, tuple[dict[str, int], _Looking]] = {
    "HNSW": ({"M": 16, "efConstruction": 200}, _list("ef")),
    "DISKANN": ({}, _list("search_list")),
    "IVF_FLAT": ({"nlist": _CELLS}, _cells),
    "IVF_SQ8": ({"nlist": _CELLS}, _cells),
    "AUTOINDEX": ({}, lambda count, effort: {}),
    "FLAT": ({}, lambda count, effort: {}),
}


def make_collection(place: Location, server: Server, client: MilvusClient) -> str:
    """A new, empty collection, noted in the folder; what a process that was killed meanwhile has left is dropped."""
    if place.width > WIDEST:
        raise ValueError(
            f"sets of {place.width} numbers: Milvus takes at most {WIDEST} per vector. "
            "Use the engine lance, or fewer or narrower vectors per set."
        )
    note = place.folder / FILE
    with server.talking():
        if note.is_file():
            client.drop_collection(noted_collection(place), timeout=server.timeout)
        name = server.collection or f"maxmatch_{uuid4().hex}"
        if client.has_collection(name, timeout=server.timeout):
            raise ValueError(f"{server.uri}: there is a collection {name} already. Choose another name, or drop it.")
        # First the note, then the collection: one that nobody uses is found again and dropped.
        write_whole(note, json.dumps({"collection": name}) + "\n")
        index = client.prepare_index_params()
        index.add_index("vector", index_type=server.index, metric_type="IP", params=KINDS[server.index][0])
        client.create_collection(
            name,
            schema=_schema(place, client),
            index_params=index,
            consistency_level="Strong",
            num_shards=server.shards,
            timeout=server.timeout,
        )
    return name


def check_collection(place: Location, server: Server, client: MilvusClient, name: str) -> None:
    """Refuse a collection that is not there, or not of the index's form."""
    with server.talking(name):
        if not client.has_collection(name, timeout=server.timeout):
            raise FileNotFoundError(
                f"{server.uri}: there is no collection {name}. Correct the address, or restore the server's data."
            )
        found = {field["name"]: field for field in client.describe_collection(name)["fields"]}
        kind = client.describe_index(name, "vector") or {}
    wanted = {field.name: field for field in _schema(place, client).fields}
    for title, field in wanted.items():
        there = found.get(title)
        if there is None or there["type"] != field.dtype:
            came = "none" if there is None else there["type"].name
            raise ValueError(
                f"{server.uri}, collection {name}: expected a field {title} of type {field.dtype.name}, found {came}. "
                "It was not made by this index; open the right one."
            )
    width = int(found["vector"]["params"]["dim"])
    if width != place.width or kind.get("metric_type") != "IP":
        raise ValueError(
            f"{server.uri}, collection {name}: expected vectors of {place.width} numbers compared by IP, found "
            f"{width} and {kind.get('metric_type')}. It was not made by this index; open the right one."
        )


def keeps_half(place: Location, client: MilvusClient) -> bool:
    """Whether vectors are kept in half precision: Milvus can from 2.4 on. Before, float16 is kept as float32."""
    major, minor = (int(part) for part in re.findall(r"\d+", client.get_server_version())[:2])
    return place.dtype == "float16" and (major, minor) >= (2, 4)


def _schema(place: Location, client: MilvusClient) -> Any:
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=_ID_BYTES)
    schema.add_field("added", DataType.INT64)
    schema.add_field("draw", DataType.INT64)
    half = keeps_half(place, client)
    schema.add_field("vector", DataType.FLOAT16_VECTOR if half else DataType.FLOAT_VECTOR, dim=place.width)
    schema.add_field("metadata", DataType.VARCHAR, max_length=LONGEST)
    schema.add_field(FIELD, DataType.JSON)
    return schema


_MESSAGE_BYTES = 32 * 2**20  # the server takes and gives 64 MB at most
_QUERIES = 16_384  # of one search
_IDS = 1000  # in one expression
_CIRCLE = 2**62
_SETTLING = 24 * 3600.0  # seconds


def create(place: Location) -> "Milvus":
    """An empty collection."""
    server = server_of(place)
    client = server.connect()
    return Milvus(place, server, client, make_collection(place, server, client))


def open_engine(place: Location) -> "Milvus":
    """The collection that the folder names."""
    server, name = server_of(place), noted_collection(place)
    client = server.connect()
    check_collection(place, server, client, name)
    with server.talking(name):
        client.load_collection(name, timeout=server.timeout)
    return Milvus(place, server, client, name)


def check_files(place: Location) -> None:
    """A server checks its own files."""


class Milvus:
    """Items on a Milvus server."""

    def __init__(self, place: Location, server: Server, client: MilvusClient, collection: str) -> None:
        self.place = place
        self.server = server
        self.client = client
        self.collection = collection
        with server.talking(collection):
            self.half = keeps_half(place, client)
        self._item_bytes = place.width * (2 if self.half else 4) + 256
        self._newest = time.time_ns() - 60 * 10**9  # clocks of others may be behind

    sure_of_few = False

    @property
    def in_memory(self) -> bool:
        """Never here, whatever is asked for: `candidates` are those of the server's index."""
        return False

    @in_memory.setter
    def in_memory(self, keep: bool) -> None:
        pass

    def _talking(self) -> AbstractContextManager[None]:
        return self.server.talking(self.collection)

    def version(self) -> tuple[int, int]:
        """How many items there are, and when the last was added: what is replaced counts as added anew."""
        rows = self._query(f"added > {self._newest}", ["added"], limit=MOST_FOUND)
        self._newest = max([self._newest, *(int(row["added"]) for row in rows)])
        return self.count(), self._newest

    def facts(self) -> dict[str, JsonValue]:
        """Where the items are, and how many of them are in the index."""
        with self._talking():
            index = self.client.describe_index(self.collection, "vector")
            version = self.client.get_server_version()
        return {
            "server": self.server.uri,
            "version": version,
            "collection": self.collection,
            "index": self.server.index,
            "indexed": int(index.get("indexed_rows", 0)),
            "stored_as": "float16" if self.half else "float32",
        }

    def add(self, rows: ItemRows) -> None:
        """Store new items."""
        self.upsert(rows)  # for an answer may be lost, and the call repeated: adding would then store them twice

    def upsert(self, rows: ItemRows) -> None:
        """Store items; those whose id is stored already are replaced."""
        for name, text in zip(rows.ids, rows.metadata, strict=True):
            if len(text.encode()) > LONGEST:
                raise ValueError(
                    f"metadata of {name!r}: {len(text.encode())} bytes as JSON, but Milvus takes at most {LONGEST}. "
                    "Keep the long texts elsewhere, under the id."
                )
        vectors = rows.vectors.astype(np.float16 if self.half else np.float32, copy=False)
        with self._talking():
            for part in self._parts(rows):
                items = [
                    {
                        "id": rows.ids[place],
                        "added": int(rows.added[place]),
                        "draw": _draw(rows.ids[place]),
                        "vector": vectors[place],
                        "metadata": rows.metadata[place],
                        FIELD: filterable(rows.metadata[place]),
                    }
                    for place in part
                ]
                self.client.upsert(self.collection, items, timeout=self.server.timeout)

    def _parts(self, rows: ItemRows) -> Iterator[range]:
        """The places of as many rows as go into a message, metadata counted twice as it is stored."""
        start, size = 0, 0
        for place, text in enumerate(rows.metadata):
            more = self._item_bytes + 2 * len(text.encode()) + 4 * len(rows.ids[place])
            if size + more > _MESSAGE_BYTES and place > start:
                yield range(start, place)
                start, size = place, 0
            size += more
        yield range(start, len(rows.ids))

    def delete(self, ids: Sequence[str]) -> None:
        """Remove items."""
        with self._talking():
            for start in range(0, len(ids), _IDS):
                part = _among(ids[start : start + _IDS])
                self.client.delete(self.collection, filter=part, timeout=self.server.timeout)

    def fetch(self, ids: Sequence[str], vectors: bool = True, metadata: bool = False) -> Found:
        """Stored items by their ids."""
        together = max(1, min(_IDS, _MESSAGE_BYTES // self._row_bytes(vectors, metadata)))
        parts = (ids[start : start + together] for start in range(0, len(ids), together))
        rows = [row for part in parts for row in self._query(_among(part), _fields(vectors, metadata))]
        return self._found(rows, vectors, metadata)

    def candidates(
        self, queries: np.ndarray, count: int, where: Condition | None = None, options: CandidateOptions = USUAL
    ) -> list[Found] | None:
        """For each query about `count` items with large inner products: 16,384 at most, the most that Milvus finds."""
        count = min(count, MOST_FOUND)
        together = min(_QUERIES, _MESSAGE_BYTES // (count * self._item_bytes))
        if together == 0:  # not even one query's vectors fit into an answer
            found = self._search(queries, count, where, options.effort, ["id"], max(1, _MESSAGE_BYTES // (count * 256)))
            return [self.fetch([hit["id"] for hit in hits]) for hits in found]
        # A strongly consistent read waits some 0.4 s for the server's clock: of few items the metadata come along.
        few = options.metadata and len(queries) * count * LONGEST <= _MESSAGE_BYTES // 2
        hits = self._search(queries, count, where, options.effort, _fields(metadata=few), together)
        return [self._found([hit["entity"] for hit in one], metadata=few) for one in hits]

    def _search(
        self, queries: np.ndarray, count: int, where: Condition | None, effort: float, fields: list[str], together: int
    ) -> Iterator[list[Any]]:
        vectors = queries.astype(np.float16 if self.half else np.float32, copy=False)
        for start in range(0, len(vectors), together):
            with self._talking():
                yield from self.client.search(
                    self.collection,
                    list(vectors[start : start + together]),
                    limit=count,
                    filter="" if where is None else expression(where),
                    output_fields=fields,
                    search_params={"metric_type": "IP", "params": KINDS[self.server.index][1](count, effort)},
                    anns_field="vector",
                    **self._reading(),
                )

    def scan(
        self, block: int, where: Condition | None = None, vectors: bool = True, metadata: bool = False
    ) -> Iterator[Found]:
        """Every item that passes the filter once, in the order of their hashes."""
        # By arcs of the circle of hashes, which hold about as many items each: the pages of Milvus are in no order that
        # it promises, and the client's iterator writes ids into expressions without minding their quotes.
        page = max(1, min(MOST_FOUND, _MESSAGE_BYTES // self._row_bytes(vectors, metadata)))
        arcs = math.ceil(1.25 * self.count(where) / page) or 1
        passing = "" if where is None else f" and {expression(where)}"
        for arc in range(arcs):
            span = f"draw >= {_CIRCLE * arc // arcs} and draw < {_CIRCLE * (arc + 1) // arcs}"
            rows = self._query(span + passing, _fields(vectors, metadata))
            for start in range(0, len(rows), block):
                yield self._found(rows[start : start + block], vectors, metadata)

    def count(self, where: Condition | None = None) -> int:
        """How many items there are, or pass the filter."""
        passing = "" if where is None else expression(where)
        return int(self._query(passing, ["count(*)"])[0]["count(*)"])

    def flush(self, thorough: bool = False) -> bool:
        """Thorough: close the segments that grow, have small ones merged, and wait until the index covers all. Milvus
        does the same by itself, when it thinks it is time.
        """
        if not thorough:
            return False
        deadline = time.monotonic() + _SETTLING
        with self._talking():
            self.client.flush(self.collection, timeout=self.server.timeout)
            self.client.compact(self.collection, timeout=self.server.timeout)  # which continues in the background
            while int(self.client.describe_index(self.collection, "vector").get("pending_index_rows", 0)):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{self.server.uri}, collection {self.collection}: the index is not built after "
                        f"{_SETTLING / 3600:.0f} hours. The server continues; see its log and load."
                    )
                time.sleep(0.2)
        return True

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def _query(self, passing: str, fields: list[str], **options: Any) -> Any:
        with self._talking():
            return self.client.query(
                self.collection, filter=passing, output_fields=fields, **{**self._reading(), **options}
            )

    def _reading(self) -> dict[str, Any]:
        return {"consistency_level": self.server.consistency, "timeout": self.server.timeout}

    def _row_bytes(self, vectors: bool, metadata: bool) -> int:
        """At most, in an answer."""
        return 256 + (self._item_bytes if vectors else 0) + (LONGEST if metadata else 0)

    def _found(self, rows: Sequence[Mapping[str, Any]], vectors: bool = True, metadata: bool = False) -> Found:
        found = np.empty((len(rows), self.place.width if vectors else 0), np.float16 if self.half else np.float32)
        for place, row in enumerate(rows if vectors else ()):
            found[place] = _numbers(row["vector"])
        added = np.array([row["added"] for row in rows], np.int64)
        texts = [row["metadata"] for row in rows] if metadata else None
        return Found([row["id"] for row in rows], added, found.astype(self.place.dtype, copy=False), texts)


def _fields(vectors: bool = True, metadata: bool = False) -> list[str]:
    return ["id", "added", *(["vector"] if vectors else []), *(["metadata"] if metadata else [])]


def _among(ids: Sequence[str]) -> str:
    return f"id in [{', '.join(map(quoted, ids))}]"


def _draw(name: str) -> int:
    """Where on the circle of hashes an id is."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) % _CIRCLE


def _numbers(value: Any) -> Any:
    """A vector as it comes: numbers, or the bytes of half ones, which some versions of the client put in a list."""
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        value = value[0]
    return np.frombuffer(value, np.float16) if isinstance(value, bytes) else value
