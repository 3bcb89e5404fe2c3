"""Finding the ten best of many sets: `python -m benchmarks.search`. Build time, disk, memory, latency, recall.

Each contender runs in a process of its own, on the same items. Memory is the highest resident size, of building and
searching together; for those that map files it counts what the system could take back.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.search_data import Data, prepare

_SIZE = 4
_SINGLE = 50
_ENOUGH_SECONDS = 60.0


def measure(name: str, data: Data, folder: Path) -> dict[str, float]:
    """Build, then ask one query after the other, then all at once."""
    from benchmarks.search_contenders import CONTENDERS

    begin = time.perf_counter()
    search = CONTENDERS[name](data, folder)
    built = time.perf_counter() - begin
    search(data.queries[:1])
    times, started = [], time.perf_counter()
    for query in data.queries[:_SINGLE]:
        begin = time.perf_counter()
        search(query[None])
        times.append(time.perf_counter() - begin)
        if time.perf_counter() - started > _ENOUGH_SECONDS:
            break
    begin = time.perf_counter()
    found = search(data.queries)
    together = time.perf_counter() - begin
    shares = [len(set(mine) & set(true)) / len(true) for mine, true in zip(found, data.truth.tolist(), strict=True)]
    ordered = sorted(times)
    return {
        "build_s": built,
        "disk_mb": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "p50_ms": 1e3 * statistics.median(ordered),
        "p95_ms": 1e3 * ordered[int(0.95 * (len(ordered) - 1))],
        "batch_qps": len(data.queries) / together,
        "recall": statistics.mean(shares),
    }


def _in_own_process(name: str, data: Data) -> dict[str, float] | None:
    with tempfile.TemporaryDirectory(dir=data.path.parent) as folder:
        np.savez(Path(folder) / "asked.npz", queries=data.queries, truth=data.truth)
        command = [sys.executable, "-m", "benchmarks.search", "--one", name, str(data.path), str(data.items), folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    for line in lines[:-1]:
        print(line, flush=True)
    return json.loads(lines[-1]) if done.returncode == 0 else None


def _one(name: str, path: str, items: str, folder: str) -> None:
    asked = np.load(Path(folder) / "asked.npz", allow_pickle=False)
    work = Path(folder) / "work"
    work.mkdir()
    print(json.dumps(measure(name, Data(Path(path), int(items), asked["queries"], asked["truth"]), work)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000], help="1000000 takes half an hour")
    parser.add_argument("--dim", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--sets", type=Path, help="real sets (n, 4, D), .npy or .safetensors: tiled and perturbed")
    parser.add_argument("--only", nargs="+", help="parts of contenders' names")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _one(*options.one)
        return
    from benchmarks.search_contenders import CONTENDERS
    from benchmarks.timing import describe_machine

    print(describe_machine())
    chosen = [name for name in CONTENDERS if not options.only or any(part in name for part in options.only)]
    for width in options.dim:
        for items in options.items:
            with tempfile.TemporaryDirectory(dir=options.folder) as place:
                data = prepare(Path(place), items, _SIZE, width, options.queries, options.sets)
                real = "real, tiled" if options.sets else "made up"
                print(f"\n{items:,} items × {_SIZE} × {width} ({real}), {options.queries} queries, the ten best")
                heads = "".join(
                    f"{head:>9}" for head in ("build s", "disk MB", "mem MB", "p50 ms", "p95 ms", "QPS", "recall")
                )
                print(f"  {'':<36}{heads}")
                for name in chosen:
                    row = _in_own_process(name, data)
                    if row is None:
                        print(f"  {name:<36}failed", flush=True)
                        continue
                    print(
                        f"  {name:<36}{row['build_s']:>9.1f}{row['disk_mb']:>9.0f}{row['memory_mb']:>9.0f}"
                        f"{row['p50_ms']:>9.1f}{row['p95_ms']:>9.1f}{row['batch_qps']:>9.1f}{row['recall']:>9.4f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
