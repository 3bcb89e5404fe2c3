"""How time and memory grow: all pairs by K and by D, a search by the number of items and of queries.

    python -m benchmarks.growth --work FOLDER [--only K D items queries] [--seconds 200] [--most 1000000]
    python -m benchmarks.growth --gpu [--only K D items queries] [--seconds 60]

Each row is measured in a process of its own and kept in FOLDER/growth.jsonl, so that the next call goes on where the
last one ended, after --seconds or otherwise. Then all tables are printed as Markdown. Before a row is timed, its first
scores are compared with SciPy's matching in float64. --most 10000000 adds ten million sets of 4 × 64 in float16, mapped
from a file of 5 GB in FOLDER.

`memory` is what the process holds beyond the sets themselves and outside of files, at most. `product` is the time of
the bare matrix product of the same vectors, `reading` that of adding up all numbers of the gallery once.

--gpu: larger sizes, one after the other in this process; nothing is kept. `memory` is then what is allocated beyond the
sets. Ten million sets take 5 GB there.
"""

import argparse
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from benchmarks.timing import describe_machine, time_each
from maxmatch import score_matrix, top_hits

_DRAWN = 50_000  # sets that are drawn; more are the same again
SIZES, WIDTHS = (1, 2, 4, 8, 16), (64, 128, 256, 512, 1024)
ITEMS, QUERIES = (10_000, 100_000, 1_000_000, 10_000_000), (1, 4, 10, 30, 100)
TABLES = {
    "K": ("200 × 1,000 sets, D = 256, float32: `score_matrix`", "ms", "ns per pair", "× product"),
    "D": ("200 × 5,000 sets, K = 4, float32: `score_matrix`", "ms", "ns per pair", "× product"),
    "items": ("one query, K = 4, D = 64: `top_hits(10)`; 10⁷ in float16, mapped", "ms", "ns per item", "× reading"),
    "queries": ("100,000 sets, K = 4, D = 256, float32: `top_hits(10)`", "ms", "ms per query", "–"),
}  # fmt: skip

GPU_VALUES: dict[str, tuple[int, ...]] = {
    "K": (1, 2, 4, 8), "D": WIDTHS, "items": ITEMS, "queries": (1, 4, 10, 30, 100, 1000)
}  # fmt: skip
GPU_TABLES = {
    "K": ("2,000 × 10,000 sets, D = 256, float32: `score_matrix`", "ms", "ns per pair", "× product"),
    "D": ("2,000 × 10,000 sets, K = 4, float32: `score_matrix`", "ms", "ns per pair", "× product"),
    "items": ("one query, K = 4, D = 64, float16: `top_hits(10)`", "ms", "ns per item", "× reading"),
    "queries": ("a million sets, K = 4, D = 256, float16: `top_hits(10)`", "ms", "ms per query", "–"),
}


class Peak:
    """The largest memory of this process outside of files, in bytes, looked at every millisecond."""

    def __enter__(self) -> "Peak":
        self.bytes, self._ended = anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._ended.wait(0.001):
            self.bytes = max(self.bytes, anonymous())

    def __exit__(self, *problem: object) -> None:
        self._ended.set()
        self._thread.join()


def anonymous() -> int:
    """Memory of this process outside of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def sets_of(count: int, size: int, width: int, seed: int) -> torch.Tensor:
    """Random sets (count, K, D) of unit vectors; from some number on the first ones again."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(min(count, _DRAWN), size, width, generator=generator)
    drawn = torch.nn.functional.normalize(drawn, dim=-1)
    return drawn if count <= _DRAWN else drawn.repeat(-(-count // _DRAWN), 1, 1)[:count].contiguous()


def mapped(folder: Path, count: int, size: int, width: int) -> np.ndarray:
    """The same sets in float16, mapped from a file, which is written once."""
    path = folder / f"sets_{count}x{size}x{width}.npy"
    if not path.exists():
        part = sets_of(_DRAWN, size, width, 1).numpy().astype(np.float16)
        partial = path.with_suffix(".partial")
        made = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float16, shape=(count, size, width))
        for start in range(0, count, _DRAWN):
            made[start : start + _DRAWN] = part[: count - start]
        made.flush()
        del made
        os.replace(partial, path)
    found: np.ndarray = np.load(path, mmap_mode="r")
    return found


def exact(a: torch.Tensor, b: torch.Tensor) -> float:
    """The score of one pair of sets: (1/K) Σ (exp(matched cosine) − 1), by SciPy in float64."""
    cosines = a.double().numpy() @ b.double().numpy().T
    return float(np.expm1(cosines[linear_sum_assignment(cosines, maximize=True)]).mean())


def best_of(work: Callable[[], object], seconds: float = 1.0) -> float:
    """The shortest of several times, in ms; one warms up."""
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 30):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


def measure(table: str, value: int, folder: Path) -> dict[str, Any]:
    """One row: time, memory, and the bare product of all vectors, or reading all of them once."""
    size, width = (value, 256) if table == "K" else (4, value if table == "D" else 64 if table == "items" else 256)
    rows = {"K": 200, "D": 200, "items": 1, "queries": value}[table]
    columns = {"K": 1000, "D": 5000, "items": value, "queries": 100_000}[table]
    queries = sets_of(rows, size, width, 0)
    gallery: Any = mapped(folder, columns, size, width) if columns > 10**6 else sets_of(columns, size, width, 1)
    search = table in ("items", "queries")
    work = (lambda: top_hits(queries, gallery, 10)) if search else (lambda: score_matrix(queries, gallery))
    found: Any = work()
    at = found.indices[0].tolist() if search else range(3)
    scores = found.scores[0] if search else found[0]
    for place, row in enumerate(at):
        one = torch.from_numpy(np.array(gallery[row], np.float32)) if isinstance(gallery, np.ndarray) else gallery[row]
        assert abs(exact(queries[0], one) - float(scores[place])) < 1e-4, (table, value, place)
    del found
    before = anonymous()
    with Peak() as peak:
        work()
    row = {"table": table, "value": value, "ms": best_of(work), "memory_mb": (peak.bytes - before) / 2**20}
    pairs = rows * columns
    row["each"] = row["ms"] * (1e6 / pairs if table != "queries" else 1 / rows)
    row["beside"] = None
    if table == "items" and columns <= 10**6:  # NumPy adds up float16 more slowly than it reads it
        row["beside"] = best_of(gallery.sum)
    elif not search:
        a, b = queries.flatten(0, 1), gallery.flatten(0, 1)
        row["beside"] = best_of(lambda: [part @ b.T for part in torch.split(a, 2**22 // len(b))])
    return row


def measure_on_gpu(table: str, value: int, device: str = "cuda", share: int = 1) -> dict[str, Any]:
    """The same on a GPU; share: a part of the rows and columns, to try it without one."""
    size, width = (value, 256) if table == "K" else (4, value if table == "D" else 64 if table == "items" else 256)
    rows = {"K": 2000 // share, "D": 2000 // share, "items": 1, "queries": value}[table]
    columns = {"K": 10_000, "D": 10_000, "items": value, "queries": 1_000_000}[table] // share
    search = table in ("items", "queries")
    dtype = torch.float16 if search else torch.float32
    queries = sets_of(rows, size, width, 0).to(device, dtype)
    drawn = sets_of(min(columns, _DRAWN), size, width, 1).to(device, dtype)
    gallery = drawn.repeat(-(-columns // len(drawn)), 1, 1)[:columns]

    def work() -> Any:
        return top_hits(queries, gallery, 10) if search else score_matrix(queries, gallery)

    found = work()
    at = found.indices[0].tolist() if search else range(3)
    scores = found.scores[0] if search else found[0]
    for place, row in enumerate(at):
        assert abs(exact(queries[0].cpu(), gallery[row].cpu()) - float(scores[place])) < 1e-4, (table, value, place)
    del found
    before = torch.cuda.memory_allocated()  # 0 without a GPU
    if gallery.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    work()
    peak = torch.cuda.max_memory_allocated()
    a, b = queries.flatten(0, 1), gallery.flatten(0, 1)
    ours, beside = map(min, time_each([work, gallery.view(torch.int32).sum if search else lambda: a @ b.T], 10))
    each = ours / rows if table == "queries" else ours * 1e6 / (rows * columns)
    row = {"table": table, "value": value, "ms": ours, "each": each, "memory_mb": (peak - before) / 2**20}
    return row | {"beside": None if table == "queries" else beside}


def row_in_process(table: str, value: int, folder: Path, answers: "multiprocessing.queues.Queue[Any]") -> None:
    answers.put(measure(table, value, folder))


def ratio_of(row: dict[str, Any]) -> str:
    """Its time as a multiple of what it is compared with."""
    return f"{row['ms'] / row['beside']:.2f}" if row["beside"] else "–"


def printed(rows: list[dict[str, Any]], tables: dict[str, tuple[str, str, str, str]]) -> str:
    """All tables as Markdown."""
    lines = []
    for table, (title, *columns) in tables.items():
        of_table = sorted((row for row in rows if row["table"] == table), key=lambda row: row["value"])
        if of_table:
            unit, each, ratio = columns
            lines += ["", title, "", f"| {table} | {unit} | {each} | {ratio} | memory, MB |", "|---|---|---|---|---|"]
            lines += [
                f"| {row['value']:,} | {row['ms']:,.1f} | {row['each']:,.3g} | {ratio_of(row)} "
                f"| {row['memory_mb']:,.0f} |"
                for row in of_table
            ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--work", type=Path, help="a folder for what was measured, and large files")
    where.add_argument("--gpu", action="store_true")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--seconds", type=float, help="no row is begun after so many; default 200, on a GPU 60")
    parser.add_argument("--most", type=int, default=1_000_000, help="items")
    given = parser.parse_args()
    seconds = given.seconds or (60.0 if given.gpu else 200.0)
    if given.gpu:
        began, rows = time.monotonic(), []
        for table, value in [(one, value) for one in given.only for value in GPU_VALUES[one]]:
            if time.monotonic() - began < seconds:
                rows.append(measure_on_gpu(table, value))
                print(json.dumps(rows[-1]), flush=True)  # should a later one fail
            else:
                print(f"{table} = {value}: left out, --seconds {seconds:g} are over")
        print(describe_machine())
        print(printed(rows, GPU_TABLES))
        return
    given.work.mkdir(parents=True, exist_ok=True)
    file, started = given.work / "growth.jsonl", time.monotonic()
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    values = {"K": SIZES, "D": WIDTHS, "items": [n for n in ITEMS if n <= given.most], "queries": QUERIES}
    known = {(row["table"], row["value"]) for row in rows}
    start = multiprocessing.get_context("spawn")
    for table, value in [(one, value) for one in given.only for value in values[one]]:
        if (table, value) in known or time.monotonic() - started > seconds:
            continue
        answers: Any = start.Queue()
        process = start.Process(target=row_in_process, args=(table, value, given.work, answers))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"{table} = {value}: failed, see above.")
        rows.append(answers.get())
        with file.open("a") as kept:
            kept.write(json.dumps(rows[-1]) + "\n")
    print(f"{os.cpu_count()} cores, torch {torch.__version__}")
    print(printed(rows, TABLES))


if __name__ == "__main__":
    main()
