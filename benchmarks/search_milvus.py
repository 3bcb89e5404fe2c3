"""SetIndex on a Milvus server, for the search benchmark: one of PyPI's `milvus`, started here with its own settings, or
the one whose address MAXMATCH_MILVUS_URI gives.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from benchmarks.search_data import Data
from maxmatch import SetIndex

Search = Callable[[np.ndarray], list[list[int]]]


def milvus(kind: str, consistency: str) -> Callable[[Data, Path], Search]:
    """Build on an index of that kind. What the server holds is printed: it is no part of this process or folder."""

    def build(data: Data, folder: Path) -> Search:
        size, width = data.queries.shape[1:]
        store = folder.parent / "milvus"
        uri = os.environ.get("MAXMATCH_MILVUS_URI")
        server = None
        if uri is None:
            from milvus import MilvusServer, MilvusServerConfig

            server = MilvusServer(MilvusServerConfig(data_dir=str(store)))  # stops with this process
            server.start()
            uri = f"http://127.0.0.1:{server.listen_port}"
        settings: dict[str, JsonValue] = {"uri": uri, "index": kind, "consistency": consistency, "timeout": 600}
        index = SetIndex.create(
            folder / "index", dim=width, set_size=size, engine="milvus", stability=1.0, settings=settings
        )
        begin = time.perf_counter()
        for start, sets in data.chunks():
            index.add([str(start + place) for place in range(len(sets))], sets, optimise=False)
        stored = time.perf_counter() - begin
        index.compact()
        print(f"    stored in {stored:.1f} s, {index.manifest.tuning}", flush=True)
        print(f"    {index.engine.info()}", flush=True)
        if server is not None:
            print(f"    server: {_memory(server.server_proc.pid)}, {_bytes(store / 'data') / 2**20:.0f} MB", flush=True)

        def search(queries: np.ndarray) -> list[list[int]]:
            assert server is None or server.running  # which holds on to it: without a name it would be stopped
            return [[int(hit.id) for hit in hits] for hits in index.search(queries, k=10)]

        return search

    return build


def _memory(process: int) -> str:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return ", ".join(" ".join(line.split()) for line in lines if line.startswith(("VmRSS", "VmHWM")))


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
