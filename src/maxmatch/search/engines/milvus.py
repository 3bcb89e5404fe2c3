"""The engine for those who outgrow one machine: a collection on a Milvus server, whose URI the settings give.

    SetIndex.create(folder, dim, set_size, engine="milvus", settings={"uri": "http://localhost:19530"})

A write is acknowledged when it is in the server's log, which survives the server. One call is one message of at most
32 MB, which is stored as a whole or not at all; a longer call is several, and a process that is killed between two of
them leaves whole items of the first. A scan while somebody else writes sees each item that is there throughout once,
and one that is added, replaced or removed meanwhile as before or as after.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import JsonValue

from maxmatch.search.engine import Choose, Found, Place, Rows
from maxmatch.search.engines.milvus_collection import (
    KINDS,
    LONGEST,
    MOST_FOUND,
    check_collection,
    keeps_half,
    kind_of_index,
    make_collection,
)
from maxmatch.search.engines.milvus_server import Server, noted_collection, server_of
from maxmatch.search.engines.milvus_where import FIELD, expression, filterable, quoted
from maxmatch.search.where import Condition

if TYPE_CHECKING:
    from pymilvus import MilvusClient

_MESSAGE_BYTES = 32 * 2**20  # the server takes and gives 64 MB at most
_QUERIES = 16_384  # of one search
_IDS = 1000  # in one expression
_CIRCLE = 2**62
_SETTLING = 24 * 3600.0  # seconds
_SCORED = ["id", "added", "vector"]


def create(place: Place) -> "Milvus":
    """An empty collection."""
    server = server_of(place)
    client = server.connect()
    return Milvus(place, server, client, make_collection(place, server, client))


def open_engine(place: Place) -> "Milvus":
    """The collection that the folder names."""
    server, name = server_of(place), noted_collection(place)
    client = server.connect()
    check_collection(place, server, client, name)
    with server.talking(name):
        client.load_collection(name, timeout=server.seconds)
    return Milvus(place, server, client, name)


class Milvus:
    """Items on a Milvus server."""

    approximate, held = True, False

    def __init__(self, place: Place, server: Server, client: "MilvusClient", collection: str) -> None:
        self.place = place
        self.server = server
        self.client = client
        self.collection = collection
        self.kind = kind_of_index(place.settings)
        with server.talking(collection):
            self.half = keeps_half(place, client)
        self._item_bytes = place.width * (2 if self.half else 4) + 256
        self._newest = time.time_ns() - 60 * 10**9  # clocks of others may be behind
        self._page = max(1, min(MOST_FOUND, _MESSAGE_BYTES // self._item_bytes))

    @contextmanager
    def _talking(self) -> Iterator[None]:
        with self.server.talking(self.collection):
            yield

    def add(self, rows: Rows) -> None:
        """Store new items."""
        self.upsert(rows)  # for an answer may be lost, and the call repeated: adding would then store them twice

    def upsert(self, rows: Rows) -> None:
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
                self.client.upsert(self.collection, items, timeout=self.server.seconds)

    def _parts(self, rows: Rows) -> Iterator[range]:
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
                self.client.delete(self.collection, filter=part, timeout=self.server.seconds)

    def present(self, ids: Sequence[str]) -> set[str]:
        """Which of the ids are stored."""
        return {row["id"] for row in self._get(ids, ["id"])}

    def metadata(self, ids: Sequence[str]) -> dict[str, str]:
        """The metadata of stored items."""
        return {row["id"]: row["metadata"] for row in self._get(ids, ["id", "metadata"])}

    def fetch(self, ids: Sequence[str]) -> Found:
        """Stored items by their ids."""
        return self._found(self._get(ids, _SCORED))

    def candidates(
        self, queries: np.ndarray, count: int, where: Condition | None = None, effort: float = 1, choose: Choose = None
    ) -> list[Found]:
        """For each query about `count` items with large inner products: 16,384 at most, the most that Milvus finds."""
        count = min(count, MOST_FOUND)
        together = min(_QUERIES, _MESSAGE_BYTES // (count * self._item_bytes))
        if together == 0:  # not even one query's vectors fit into an answer
            found = self._search(queries, count, where, effort, ["id"], max(1, _MESSAGE_BYTES // (count * 256)))
            return [self._found(self._get([hit["id"] for hit in hits], _SCORED)) for hits in found]
        # A strongly consistent read waits some 0.4 s for the server's clock: of few items the metadata come along.
        few = len(queries) * count * LONGEST <= _MESSAGE_BYTES // 2
        fields = [*_SCORED, "metadata"] if few else _SCORED
        hits = self._search(queries, count, where, effort, fields, together)
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
                    search_params={"metric_type": "IP", "params": KINDS[self.kind][1](count, effort)},
                    anns_field="vector",
                    **self._reading(),
                )

    def scan(self, block: int, where: Condition | None = None) -> Iterator[Found]:
        """Every item that passes the filter once, in the order of their hashes."""
        # By arcs of the circle of hashes, which hold about as many items each: the pages of Milvus are in no order that
        # it promises, and the client's iterator writes ids into expressions without minding their quotes.
        arcs = math.ceil(1.25 * self.count(where) / self._page) or 1
        passing = "" if where is None else f" and {expression(where)}"
        for arc in range(arcs):
            rows = self._query(_arc(_CIRCLE * arc // arcs, _CIRCLE * (arc + 1) // arcs) + passing, _SCORED)
            for start in range(0, len(rows), block):
                yield self._found(rows[start : start + block])

    def sample(self, count: int, seed: int) -> Found:
        """Some items: those whose hashes come next from a place on the circle of hashes that the seed draws."""
        start = int(np.random.default_rng(seed).integers(_CIRCLE))
        share = (count + 2 * math.sqrt(count) + 2) / max(1, self.count())
        step = min(_CIRCLE, math.ceil(_CIRCLE * share))
        ahead: dict[str, int] = {}
        for near in range(0, _CIRCLE, step):
            far = min(_CIRCLE, near + step)
            for turn in (0, _CIRCLE):
                for row in self._query(_arc(start + near - turn, start + far - turn), ["id", "draw"]):
                    ahead[row["id"]] = (row["draw"] - start) % _CIRCLE
            if len(ahead) >= count:
                break
        chosen = sorted(ahead, key=lambda name: (ahead[name], name))[:count]
        return self._found(self._get(chosen, _SCORED))

    def count(self, where: Condition | None = None) -> int:
        """How many items there are, or pass the filter."""
        passing = "" if where is None else expression(where)
        return int(self._query(passing, ["count(*)"])[0]["count(*)"])

    def version(self) -> tuple[int, int]:
        """How many items there are, and when the last was added: what is replaced counts as added anew."""
        rows = self._query(f"added > {self._newest}", ["added"], limit=MOST_FOUND)
        self._newest = max([self._newest, *(int(row["added"]) for row in rows)])
        return self.count(), self._newest

    def optimise(self, thorough: bool = False) -> bool:
        """Thorough: close the segments that grow, have small ones merged, and wait until the index covers all. Milvus
        does the same by itself, when it thinks it is time.
        """
        if not thorough:
            return False
        deadline = time.monotonic() + _SETTLING
        with self._talking():
            self.client.flush(self.collection, timeout=self.server.seconds)
            self.client.compact(self.collection, timeout=self.server.seconds)  # which goes on by itself
            while int(self.client.describe_index(self.collection, "vector").get("pending_index_rows", 0)):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{self.server.uri}, collection {self.collection}: the index is not built after "
                        f"{_SETTLING / 3600:.0f} hours. The server goes on with it; look at its log and its load."
                    )
                time.sleep(0.2)
        return True

    def hold(self, on: bool = True) -> None:
        """They are in the server's."""

    def check(self) -> None:
        """A server looks after its own files."""

    def info(self) -> dict[str, JsonValue]:
        """Where the items are, and how many of them are in the index."""
        with self._talking():
            index = self.client.describe_index(self.collection, "vector")
            version = self.client.get_server_version()
        return {
            "server": self.server.uri,
            "version": version,
            "collection": self.collection,
            "index": self.kind,
            "indexed": int(index.get("indexed_rows", 0)),
            "stored_as": "float16" if self.half else "float32",
        }

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def _query(self, passing: str, fields: list[str], **options: Any) -> Any:
        with self._talking():
            return self.client.query(
                self.collection, filter=passing, output_fields=fields, **{**self._reading(), **options}
            )

    def _reading(self) -> dict[str, Any]:
        return {"consistency_level": self.server.consistency, "timeout": self.server.seconds}

    def _get(self, ids: Sequence[str], fields: list[str]) -> list[dict[str, Any]]:
        """The items of these ids that are there, in the order of the ids."""
        largest = self._item_bytes if "vector" in fields else LONGEST if "metadata" in fields else 1
        together = max(1, min(_IDS, _MESSAGE_BYTES // largest))
        parts = (ids[start : start + together] for start in range(0, len(ids), together))
        by_id = {row["id"]: row for part in parts for row in self._query(_among(part), fields)}
        return [by_id[name] for name in ids if name in by_id]

    def _found(self, rows: Sequence[Mapping[str, Any]], metadata: bool = False) -> Found:
        vectors = np.empty((len(rows), self.place.width), np.float16 if self.half else np.float32)
        for place, row in enumerate(rows):
            vectors[place] = _numbers(row["vector"])
        added = np.array([row["added"] for row in rows], np.int64)
        texts = [row["metadata"] for row in rows] if metadata else None
        return Found([row["id"] for row in rows], added, vectors.astype(self.place.dtype, copy=False), texts)


def _among(ids: Sequence[str]) -> str:
    return f"id in [{', '.join(map(quoted, ids))}]"


def _arc(start: int, end: int) -> str:
    """The items on a part of the circle of hashes, as far as it lies between 0 and its end."""
    return f"draw >= {min(max(0, start), _CIRCLE)} and draw < {min(max(0, end), _CIRCLE)}"


def _draw(name: str) -> int:
    """Where on the circle of hashes an id is."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) % _CIRCLE


def _numbers(value: Any) -> Any:
    """A vector as it comes: numbers, or the bytes of half ones, which some versions of the client put in a list."""
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        value = value[0]
    return np.frombuffer(value, np.float16) if isinstance(value, bytes) else value
