"""What the search benchmark compares: each builds from the items, and then finds ten for each query."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.search_data import Data
from maxmatch import SetIndex, similarity, top_hits

Search = Callable[[np.ndarray], list[list[int]]]
Build = Callable[[Data, Path], Search]
_PROPOSED = 100


def _index(engine: str, **options: Any) -> Build:
    def build(data: Data, folder: Path) -> Search:
        size, width = data.queries.shape[1:]
        index = SetIndex.create(folder / "index", dim=width, set_size=size, engine=engine, stability=1.0, **options)
        for begin, sets in data.chunks():
            index.add([str(begin + place) for place in range(len(sets))], sets, optimise=False)
        index.compact()
        print(f"    {index.manifest.tuning}", flush=True)
        return lambda queries: [[int(hit.id) for hit in hits] for hits in index.search(queries, k=10)]

    return build


def _memory_map(data: Data, folder: Path) -> Search:
    """No index at all: `top_hits` on the file of items."""
    items = data.mapped()
    return lambda queries: top_hits(torch.from_numpy(queries), items, 10).indices.tolist()


def _faiss(description: str, effort: int) -> Build:
    """FAISS on the flattened sets, its candidates scored exactly."""

    def build(data: Data, folder: Path) -> Search:
        import faiss

        size, width = data.queries.shape[1:]
        description_ = description.format(lists=max(16, data.items // 2000))
        index = faiss.index_factory(size * width, description_, faiss.METRIC_INNER_PRODUCT)
        if not index.is_trained:
            step = max(1, data.items // 60_000)
            index.train(np.ascontiguousarray(data.mapped()[::step].reshape(-1, size * width)))
        for _, sets in data.chunks():
            index.add(sets.reshape(len(sets), -1))
        faiss.ParameterSpace().set_index_parameter(index, "efSearch" if "HNSW" in description else "nprobe", effort)
        faiss.write_index(index, str(folder / "faiss"))
        items = data.mapped()

        def search(queries: np.ndarray) -> list[list[int]]:
            _, found = index.search(queries.reshape(len(queries), -1), _PROPOSED)
            return [_rerank(query, places[places >= 0], items) for query, places in zip(queries, found, strict=True)]

        return search

    return build


def _maxsim(data: Data, folder: Path) -> Search:
    """LanceDB's own search of many vectors an item (MaxSim), its hundred best scored exactly."""
    import lancedb
    import pyarrow as pa
    from lancedb.index import IvfPq

    size, width = data.queries.shape[1:]
    one = pa.list_(pa.float32(), width)
    schema: Any = pa.schema([("place", pa.int64()), ("vectors", pa.list_(one))])
    table = lancedb.connect(folder).create_table("items", schema=schema)
    for begin, sets in data.chunks():
        inner = pa.FixedSizeListArray.from_arrays(pa.array(sets.reshape(-1)), width)
        vectors = pa.ListArray.from_arrays(pa.array(np.arange(len(sets) + 1, dtype=np.int32) * size), inner)
        table.add(pa.table([pa.array(np.arange(begin, begin + len(sets))), vectors], schema=schema))
    table.create_index("vectors", config=IvfPq(distance_type="cosine", num_sub_vectors=width // 16))
    items = data.mapped()

    def search(queries: np.ndarray) -> list[list[int]]:
        found = []
        for query in queries:
            asked: Any = table.search(query, vector_column_name="vectors")
            asked = asked.distance_type("cosine").nprobes(32)
            places = asked.limit(_PROPOSED).select(["place", "_distance"]).to_arrow()["place"].to_numpy()
            found.append(_rerank(query, places, items))
        return found

    return search


def _rerank(query: np.ndarray, places: np.ndarray, items: np.ndarray) -> list[int]:
    scores = similarity.maxmatch(torch.from_numpy(query[None]), torch.from_numpy(items[places]))[0]
    return [int(places[place]) for place in scores.topk(min(10, len(places))).indices]


CONTENDERS: dict[str, Build] = {
    "top_hits on a memory map": _memory_map,
    "SetIndex, exhaustive": _index("exhaustive"),
    "SetIndex, LanceDB IVF_RQ": _index("lance"),
    "SetIndex, LanceDB IVF_RQ, float16": _index("lance", dtype="float16"),
    "SetIndex, LanceDB IVF_PQ": _index("lance", settings={"index": "ivf_pq"}),
    "SetIndex, LanceDB IVF_SQ": _index("lance", settings={"index": "ivf_sq"}),
    "SetIndex, LanceDB IVF_FLAT": _index("lance", settings={"index": "ivf_flat"}),
    "FAISS HNSW32": _faiss("HNSW32,Flat", 128),
    "FAISS IVF": _faiss("IVF{lists},Flat", 16),
    "FAISS IVF, 8 bits": _faiss("IVF{lists},SQ8", 16),
    "LanceDB MaxSim": _maxsim,
}
