"""The contenders of the search benchmark: each is built in one process, and opened and searched in another."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.search_data import K_BEST, Data, recall_of
from benchmarks.search_ours import Search, build_index, open_index
from maxmatch import similarity, top_hits

_ENOUGH = 0.99  # recall@10 required when choosing settings
_LADDER = 9
_TUNED_WITH = 100

Find = Callable[[np.ndarray, int, int], list[np.ndarray]]
"""Queries, number of candidates, effort -> the positions of each query's candidates."""


class Contender(NamedTuple):
    """Two functions: build writes to a folder; open returns the search, with the settings of a variant."""

    build: Callable[[Data, Path], dict[str, Any]]
    open: Callable[[Data, Path, str], Search]
    variants: tuple[str, ...] = ("",)
    most: int | None = None
    """The maximum number of items."""
    server: bool = False
    """Whether it needs a Milvus server, whose address is in the folder."""
    in_memory: bool = False
    """Whether it holds all vectors in memory, so that memory grows with the items."""
    gpu: bool = False
    """Whether it needs a GPU."""


def _index(engine: str, most: int | None = None, **options: Any) -> Contender:
    variants = ("",) if engine == "exhaustive" else ("as it chose", "after verify")
    server = engine == "milvus"
    return Contender(
        lambda data, folder: build_index(data, folder, engine, **options), open_index, variants, most, server, server
    )


def _milvus(kind: str, most: int | None = None) -> Contender:
    return _index("milvus", most, settings={"index": kind, "consistency": "Bounded", "timeout": 600})


def _open_map(data: Data, folder: Path, variant: str) -> Search:
    items = data.mapped()
    return lambda queries: top_hits(torch.from_numpy(queries), items, K_BEST).indices.tolist()


def _open_on_gpu(data: Data, folder: Path, variant: str) -> Search:
    """All items on the GPU, in the precision of the file."""
    items = torch.cat([torch.from_numpy(sets).to("cuda", _precision(data)) for _, sets in data.chunks()])

    def search(queries: np.ndarray) -> list[list[int]]:
        return top_hits(torch.from_numpy(queries).to(items), items, K_BEST).indices.tolist()

    return search


def _precision(data: Data) -> torch.dtype:
    return torch.float16 if data.dtype == np.float16 else torch.float32


def _faiss(description: str, most: int | None = None) -> Contender:
    """FAISS on the flattened sets, with exact scores for as many candidates as a recall of .99 needs."""

    def build(data: Data, folder: Path) -> dict[str, Any]:
        import faiss

        begin = time.perf_counter()
        size, width = data.queries.shape[1:]
        text = description.format(lists=max(16, data.items // 2000))
        index = faiss.index_factory(size * width, text, faiss.METRIC_INNER_PRODUCT)
        if not index.is_trained:
            step = max(1, data.items // 60_000)
            index.train(np.ascontiguousarray(data.mapped()[::step].reshape(-1, size * width), np.float32))
        for _, sets in data.chunks():
            index.add(sets.reshape(len(sets), -1))
        faiss.write_index(index, str(folder / "faiss"))
        built = time.perf_counter() - begin
        return {"build_s": built, **_choose(data, folder, _find(index))}

    def open_(data: Data, folder: Path, variant: str) -> Search:
        import faiss

        return _searching(data, folder, _find(faiss.read_index(str(folder / "faiss"))))

    return Contender(build, open_, most=most, in_memory=True)


def _usearch(most: int | None = None) -> Contender:
    """usearch's graph of the flattened sets in 8 bits, mapped from its file, with exact scores for its candidates."""

    def build(data: Data, folder: Path) -> dict[str, Any]:
        from usearch.index import Index

        begin = time.perf_counter()
        size, width = data.queries.shape[1:]
        index = Index(ndim=size * width, metric="ip", dtype="i8", connectivity=16, expansion_add=64)
        for start, sets in data.chunks():
            index.add(np.arange(start, start + len(sets)), _in_bytes(sets))
        index.save(folder / "usearch")
        built = time.perf_counter() - begin
        return {"build_s": built, **_choose(data, folder, _find_usearch(folder))}

    def open_(data: Data, folder: Path, variant: str) -> Search:
        return _searching(data, folder, _find_usearch(folder))

    return Contender(build, open_, most=most, in_memory=True)


def _in_bytes(sets: np.ndarray) -> np.ndarray:
    """Flattened, in 8 bits: vectors of unit length whose numbers are hardly ever larger than a third."""
    numbers = np.rint(sets.reshape(len(sets), -1) * (3 * 127))
    return np.asarray(np.clip(numbers, -127, 127), np.int8)


def _find_usearch(folder: Path) -> Find:
    from usearch.index import Index

    index: Any = Index.restore(folder / "usearch", view=True)

    def find(queries: np.ndarray, candidates: int, effort: int) -> list[np.ndarray]:
        index.expansion_search = max(candidates, 4 * effort)
        found = index.search(_in_bytes(queries), candidates, threads=1 if len(queries) == 1 else 0)
        return list(found.keys.astype(np.int64).reshape(len(queries), -1))

    return find


def _hnswlib(most: int | None = None) -> Contender:
    """hnswlib's graph of the flattened sets, with exact scores for its candidates."""

    def build(data: Data, folder: Path) -> dict[str, Any]:
        import hnswlib

        begin = time.perf_counter()
        size, width = data.queries.shape[1:]
        index = hnswlib.Index(space="ip", dim=size * width)
        index.init_index(max_elements=data.items, M=16, ef_construction=64)
        for start, sets in data.chunks():
            index.add_items(sets.reshape(len(sets), -1), np.arange(start, start + len(sets)))
        index.save_index(str(folder / "hnswlib"))
        built = time.perf_counter() - begin
        return {"build_s": built, **_choose(data, folder, _find_hnswlib(data, folder))}

    def open_(data: Data, folder: Path, variant: str) -> Search:
        return _searching(data, folder, _find_hnswlib(data, folder))

    return Contender(build, open_, most=most, in_memory=True)


def _find_hnswlib(data: Data, folder: Path) -> Find:
    import hnswlib

    size, width = data.queries.shape[1:]
    index = hnswlib.Index(space="ip", dim=size * width)
    index.load_index(str(folder / "hnswlib"))

    def find(queries: np.ndarray, candidates: int, effort: int) -> list[np.ndarray]:
        index.set_ef(max(candidates, 4 * effort))
        return list(index.knn_query(queries.reshape(len(queries), -1), candidates)[0].astype(np.int64))

    return find


def _find(index: Any) -> Find:
    import faiss

    def find(queries: np.ndarray, candidates: int, effort: int) -> list[np.ndarray]:
        if isinstance(index, faiss.IndexHNSW):
            index.hnsw.efSearch = max(candidates, 4 * effort)
        else:
            faiss.extract_index_ivf(index).nprobe = effort
        _, found = index.search(queries.reshape(len(queries), -1), candidates)
        return [places[places >= 0] for places in found]

    return find


def _build_maxsim(data: Data, folder: Path) -> dict[str, Any]:
    """LanceDB's own multi-vector search (MaxSim), with exact scores for its candidates."""
    import lancedb
    import pyarrow as pa
    from lancedb.index import IvfPq

    started = time.perf_counter()
    size, width = data.queries.shape[1:]
    one = pa.list_(pa.float32(), width)
    schema: Any = pa.schema([("place", pa.int64()), ("vectors", pa.list_(one))])
    table = lancedb.connect(folder).create_table("items", schema=schema)
    for begin, sets in data.chunks():
        inner = pa.FixedSizeListArray.from_arrays(pa.array(sets.reshape(-1)), width)
        vectors = pa.ListArray.from_arrays(pa.array(np.arange(len(sets) + 1, dtype=np.int32) * size), inner)
        table.add(pa.table([pa.array(np.arange(begin, begin + len(sets))), vectors], schema=schema))
    table.create_index("vectors", config=IvfPq(distance_type="cosine", num_sub_vectors=width // 16))
    built = time.perf_counter() - started
    return {"build_s": built, **_choose(data, folder, _find_maxsim(folder))}


def _find_maxsim(folder: Path) -> Find:
    import lancedb

    table = lancedb.connect(folder).open_table("items")

    def find(queries: np.ndarray, candidates: int, effort: int) -> list[np.ndarray]:
        found = []
        for query in queries:
            asked: Any = table.search(query, vector_column_name="vectors")
            asked = asked.distance_type("cosine").nprobes(2 * effort).limit(candidates).select(["place", "_distance"])
            found.append(asked.to_arrow()["place"].to_numpy())
        return found

    return find


def _choose(data: Data, folder: Path, find: Find) -> dict[str, Any]:
    """The cheapest settings that reach the recall, each twice as costly as the one before, and a note of them."""
    queries, truth = data.tuning[:_TUNED_WITH], data.tuning_truth[:_TUNED_WITH]
    items = data.mapped()
    for step in range(_LADDER):
        candidates, effort = 5 * K_BEST * 2 ** ((step + 1) // 2), 8 * 2 ** (step // 2)
        found = [_rerank(*pair, items) for pair in zip(queries, find(queries, candidates, effort), strict=True)]
        if recall_of(found, truth) >= _ENOUGH:
            break
    (folder / "settings.json").write_text(json.dumps([candidates, effort]))
    return {"settings": {"": f"{candidates} candidates, effort {effort}"}}


def _searching(data: Data, folder: Path, find: Find) -> Search:
    candidates, effort = json.loads((folder / "settings.json").read_text())
    items = data.mapped()
    return lambda queries: [
        _rerank(*pair, items) for pair in zip(queries, find(queries, candidates, effort), strict=True)
    ]


def _rerank(query: np.ndarray, places: np.ndarray, items: np.ndarray) -> list[int]:
    scores = similarity.maxmatch(torch.from_numpy(query[None]), torch.from_numpy(items[places]).float())[0]
    return [int(places[place]) for place in scores.topk(min(K_BEST, len(places))).indices]


CONTENDERS: dict[str, Contender] = {  # in the order in which they run: the most important first
    "top_hits on a memory map": Contender(lambda data, folder: {}, _open_map),
    "top_hits on a GPU": Contender(lambda data, folder: {}, _open_on_gpu, gpu=True),
    "SetIndex, short keys": _index("lance"),
    "SetIndex, LanceDB IVF_RQ": _index("lance", settings={"keys_from": None}),
    "SetIndex, float16, short keys": _index("lance", dtype="float16"),
    "SetIndex, LanceDB float16 IVF_RQ": _index("lance", dtype="float16", settings={"keys_from": None}),
    "FAISS IVF, 8 bits": _faiss("IVF{lists},SQ8"),
    "SetIndex, Milvus HNSW": _milvus("HNSW"),
    "FAISS HNSW32": _faiss("HNSW32,Flat"),
    "usearch, 8 bits": _usearch(),
    "hnswlib": _hnswlib(),
    "LanceDB MaxSim": Contender(
        _build_maxsim, lambda data, folder, variant: _searching(data, folder, _find_maxsim(folder))
    ),
    "SetIndex, Milvus IVF_SQ8": _milvus("IVF_SQ8"),
    "FAISS IVF, RaBitQ": _faiss("IVF{lists},RaBitQ"),
    "FAISS IVF, fp16": _faiss("IVF{lists},SQfp16"),
    "SetIndex, LanceDB IVF_SQ": _index("lance", 100_000, settings={"index": "ivf_sq", "keys_from": None}),
    "SetIndex, LanceDB IVF_FLAT": _index("lance", 100_000, settings={"index": "ivf_flat", "keys_from": None}),
    "SetIndex, exhaustive": _index("exhaustive", 100_000),
}
