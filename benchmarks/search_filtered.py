"""Searches with filters, and the first search after a write: short keys beside LanceDB's index, in turns.

    python -m benchmarks.search_filtered --sets images.npy --queries captions.npy --work FOLDER --items 100000

The sets are those of benchmarks/search.py. The index is built in the folder unless it is there. First every score that
a search finds is compared with that of the exact search; recall is of the ten best among the items that pass.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search_data import K_BEST
from benchmarks.search_sources import Tiled
from maxmatch import SetIndex
from maxmatch.search.engine import Hit
from maxmatch.search.engines.lance import LanceEngine

_CHUNK = 20_000
_SHARES = (100, 50, 10, 2)  # per cent of the items
_WAYS = ("short keys", "LanceDB")


def _built(folder: Path, source: Tiled, items: int) -> SetIndex:
    if folder.exists():
        return SetIndex.open(folder)
    index = SetIndex.create(folder, dim=source.width, set_size=source.size, stability=1.0)
    shares = np.random.default_rng(0).integers(100, size=items).tolist()
    for begin in range(0, items, _CHUNK):
        places = range(begin, min(items, begin + _CHUNK))
        facts = [{"share": shares[place]} for place in places]
        index.add([str(place) for place in places], source.items(begin, len(places)), facts, optimise=False)
    index.compact()
    return index


def _timed(call: Callable[[], list[list[Hit]]]) -> tuple[float, list[Hit]]:
    begin = time.perf_counter()
    (hits,) = call()
    return 1e3 * (time.perf_counter() - begin), hits


def _row(index: SetIndex, engine: Any, queries: np.ndarray, share: int, options: argparse.Namespace) -> str:
    where = None if share == 100 else f"share < {share}"
    truth = index.search(queries, k=K_BEST, where=where, exact=True)
    keys, cells = engine._keys, [f"{share} %"]
    firsts: dict[str, list[float]] = {way: [] for way in _WAYS}
    times: dict[str, list[float]] = {way: [] for way in _WAYS}
    shares: dict[str, list[float]] = {way: [] for way in _WAYS}
    for query, true in zip(queries, truth, strict=True):
        for way in _WAYS:
            engine._keys = keys if way == "short keys" else None
            settings: dict[str, Any] = {"where": where, "candidates": options.candidates, "effort": options.effort}
            took, hits = _timed(partial(index.search, query[None], K_BEST, **settings))
            (times if firsts[way] else firsts)[way].append(took)
            best = {hit.id: hit.score for hit in true}
            for hit in hits:
                assert abs(hit.score - best.get(hit.id, hit.score)) < 1e-5, "another score"
                assert hit.score <= true[0].score + 1e-5, "a better item was not found by the scan"
            shares[way].append(len(best.keys() & {hit.id for hit in hits}) / max(1, len(best)))
    engine._keys = keys
    for way in _WAYS:
        ordered = sorted(times[way])
        p95 = ordered[int(0.95 * (len(ordered) - 1))]
        cells.append(f"{firsts[way][0]:.0f}, {statistics.median(ordered):.1f}, {p95:.1f}")
        cells.append(f"{statistics.fmean(shares[way]):.4f}")
    return "| " + " | ".join(cells) + " |"


def _after_writes(index: SetIndex, source: Tiled, query: np.ndarray) -> dict[str, float]:
    """Milliseconds of the first search after each of some writes, and of the one after it."""
    took: dict[str, float] = {}
    new = source.items(10**8, 10)
    writes: dict[str, Callable[[], None]] = {
        "10 added": lambda: index.add([f"new {n}" for n in range(10)], new),
        "one replaced": lambda: index.upsert(["new 0"], new[1:2]),
        "10 removed": lambda: index.remove([f"new {n}" for n in range(10)]),
    }
    for name, write in writes.items():
        begin = time.perf_counter()
        write()
        took[f"{name}: the write"] = 1e3 * (time.perf_counter() - begin)
        took[f"{name}: the first search"] = _timed(partial(index.search, query[None], K_BEST))[0]
        took[f"{name}: the next"] = _timed(partial(index.search, query[None], K_BEST))[0]
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="a folder for the index")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--asked", type=int, default=100)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--effort", type=float, default=1.0)
    options = parser.parse_args()
    source = Tiled(options.sets, options.queries)
    with _built(options.work / f"filtered-{options.items}", source, options.items) as index:
        engine, queries = index.engine, source.queries(options.asked, options.items)
        assert isinstance(engine, LanceEngine)
        print(f"{options.items:,} × {source.size} × {source.width}: {source.title}\n")
        print(
            "| pass | short keys: first, p50, p95 ms | recall@10 | LanceDB: the same | recall@10 |",
            "|---|---|---|---|---|",
            sep="\n",
        )
        for share in _SHARES:
            print(_row(index, engine, queries, share, options), flush=True)
        print(
            "\n"
            + "\n".join(f"{name}: {took:.0f} ms" for name, took in _after_writes(index, source, queries[0]).items())
        )


if __name__ == "__main__":
    main()
