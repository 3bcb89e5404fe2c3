"""SetIndex in the search benchmark: build it, compare its exact search with the answers, and note its settings."""

import json
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search_data import K_BEST, Data
from maxmatch import SetIndex
from maxmatch.search.engine import proposes
from maxmatch.search.engines.lance import LanceEngine
from maxmatch.search.index_folder import read_manifest, write_manifest

Search = Callable[[np.ndarray], list[list[int]]]
MILVUS = "milvus.txt"
"""The file next to a contender's folder that holds the address of the server."""
PROCESS = "milvus.pid"
"""The file that holds the process id of the server."""
_COMPARED = 5  # queries
_MOST_OVER_NETWORK = 100_000  # the most items to transfer from a Milvus server for an exact search


def build_index(data: Data, folder: Path, engine: str, **options: Any) -> dict[str, Any]:
    """Build and compact the index, then let `verify` find settings with real queries."""
    size, width = data.queries.shape[1:]
    if engine == "milvus":
        uri = (folder.parent / MILVUS).read_text()
        options["settings"] = {**options["settings"], "uri": uri}
    index = SetIndex.create(folder / "index", dim=width, set_size=size, engine=engine, stability=1.0, **options)
    begin = time.perf_counter()
    for start, sets in data.chunks():
        index.add([str(start + place) for place in range(len(sets))], sets, optimise=False)
    stored = time.perf_counter() - begin
    index.compact()
    facts: dict[str, Any] = {"stored_s": stored, "build_s": time.perf_counter() - begin}
    if isinstance(index.engine, LanceEngine):
        facts["disk_before_cleaning_mb"] = _megabytes(folder)
        # `compact` keeps files ten minutes for other readers; there are none here.
        with warnings.catch_warnings(action="ignore"):
            index.engine.table.optimize(cleanup_older_than=timedelta(0))
    facts["exact"] = _compare(index, data)
    if proposes(index.engine):
        chosen = {"as it chose": index.manifest.tuning}
        begin = time.perf_counter()
        chosen["after verify"] = index.verify(data.tuning).chosen
        facts["verify_s"] = time.perf_counter() - begin
        settings = {name: (each.candidates, each.effort) for name, each in chosen.items() if each is not None}
        (folder / "settings.json").write_text(json.dumps(settings))
        facts["settings"] = {
            name: f"{candidates} candidates, effort {effort:g}" for name, (candidates, effort) in settings.items()
        }
    index.close()
    return facts


def open_index(data: Data, folder: Path, variant: str) -> Search:
    """Open it again with one of the noted settings."""
    server = folder.parent / MILVUS
    if server.exists():  # restarted, perhaps at another address
        manifest = read_manifest(folder / "index")
        settings = {**manifest.settings, "uri": server.read_text()}
        write_manifest(folder / "index", manifest.model_copy(update={"settings": settings}))
    index = SetIndex.open(folder / "index")
    candidates, effort = json.loads((folder / "settings.json").read_text())[variant] if variant else (None, None)

    def search(queries: np.ndarray) -> list[list[int]]:
        found = index.search(queries, k=K_BEST, candidates=candidates, effort=effort)
        return [[int(hit.id) for hit in hits] for hits in found]

    return search


def _compare(index: SetIndex, data: Data) -> str:
    """Check the exact search: the score at each position, and ids unless scores are equal up to rounding."""
    if index.manifest.engine == "milvus" and data.items > _MOST_OVER_NETWORK:
        return f"not compared: over {_MOST_OVER_NETWORK:,} items would come over the network"
    tolerance = 1e-5 if index.manifest.dtype == "float32" else 2e-3
    found = index.search(data.queries[:_COMPARED], k=K_BEST, exact=True)
    for hits, truth, scores in zip(found, data.truth, data.scores, strict=False):
        np.testing.assert_allclose([hit.score for hit in hits], scores, atol=tolerance)
        apart = np.abs(np.diff(scores, prepend=np.inf, append=-np.inf)) > 2 * tolerance
        sure = apart[:-1] & apart[1:]
        assert [int(hit.id) for hit, one in zip(hits, sure, strict=True) if one] == truth[sure].tolist()
    return "equal"


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
