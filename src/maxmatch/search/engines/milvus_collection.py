"""What a collection on a Milvus server is like: its fields, its index, and how hard a search looks."""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import JsonValue

from maxmatch.files import write_whole
from maxmatch.search.engine import Place
from maxmatch.search.engines.milvus_server import FILE, Server, chosen_collection, noted_collection
from maxmatch.search.engines.milvus_where import FIELD

if TYPE_CHECKING:
    from pymilvus import MilvusClient

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


def kind_of_index(settings: Mapping[str, JsonValue]) -> str:
    """The kind of index that the settings name: HNSW, unless they say otherwise."""
    kind = settings.get("index", "HNSW")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"index: expected one of {', '.join(KINDS)}, got {kind!r}.")
    return kind


def make_collection(place: Place, server: Server, client: "MilvusClient") -> str:
    """A new, empty collection, noted in the folder; what a process that was killed meanwhile has left is dropped."""
    if place.width > WIDEST:
        raise ValueError(
            f"sets of {place.width} numbers: Milvus takes at most {WIDEST} a vector. "
            "Use the engine lance, or fewer or narrower vectors a set."
        )
    kind, chosen, note = kind_of_index(place.settings), chosen_collection(place), place.folder / FILE
    with server.talking():
        if note.is_file():
            client.drop_collection(noted_collection(place), timeout=server.seconds)
        name = chosen or f"maxmatch_{uuid4().hex}"
        if client.has_collection(name, timeout=server.seconds):
            raise ValueError(f"{server.uri}: there is a collection {name} already. Choose another name, or drop it.")
        # First the note, then the collection: one that nobody uses is found again and dropped.
        write_whole(note, json.dumps({"collection": name}) + "\n")
        index = client.prepare_index_params()
        index.add_index("vector", index_type=kind, metric_type="IP", params=KINDS[kind][0])
        client.create_collection(
            name,
            schema=_schema(place, client),
            index_params=index,
            consistency_level="Strong",
            num_shards=place.settings.get("shards", 1),
            timeout=server.seconds,
        )
    return name


def check_collection(place: Place, server: Server, client: "MilvusClient", name: str) -> None:
    """Refuse a collection that is not there, or not of the index's form."""
    with server.talking(name):
        if not client.has_collection(name, timeout=server.seconds):
            raise FileNotFoundError(
                f"{server.uri}: there is no collection {name}. Mend the address, or restore the server's data."
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


def keeps_half(place: Place, client: "MilvusClient") -> bool:
    """Whether vectors are kept in half precision: Milvus can from 2.4 on. Before, float16 is kept as float32."""
    major, minor = (int(part) for part in re.findall(r"\d+", client.get_server_version())[:2])
    return place.dtype == "float16" and (major, minor) >= (2, 4)


def _schema(place: Place, client: "MilvusClient") -> Any:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=_ID_BYTES)
    schema.add_field("added", DataType.INT64)
    schema.add_field("draw", DataType.INT64)
    half = keeps_half(place, client)
    schema.add_field("vector", DataType.FLOAT16_VECTOR if half else DataType.FLOAT_VECTOR, dim=place.width)
    schema.add_field("metadata", DataType.VARCHAR, max_length=LONGEST)
    schema.add_field(FIELD, DataType.JSON)
    return schema
