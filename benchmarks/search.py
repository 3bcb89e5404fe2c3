"""Compare ways to find the ten best of many sets: build time, disk, memory, latency, throughput and recall.

    python -m benchmarks.search --sets images.npy --queries captions.npy --work FOLDER

Real sets (n, 4, D) of images and captions, in .npy files or folders written by `maxmatch encode`, are tiled and
perturbed to each size (see benchmarks/search_sources.py); give several files for several widths. Without them,
synthetic sets are used.

Every contender is built in one process and searched in another, which opens what was built. Settings (candidates and
effort) are chosen with other queries than those measured. First the exact answers are compared with a search of all
permutations, and the exact search of each index with the answers. Each row is written to a JSON file in the folder when
it is done. After a stop or a kill, the same command resumes. At the end it prints the whole table as Markdown
(`python -m benchmarks.search_table FOLDER` prints the rows so far).

The most important contenders come first, each at all sizes. The benchmark stops after --most-minutes, a row after
--row-minutes. A row that was stopped, or that would take longer judging by the size before, is reported as such. With
--half, items are rounded to float16, so that the file that everything is built from, and that is scanned, is half as
large.
"""

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.search_contenders import CONTENDERS, Contender
from benchmarks.search_data import ITEMS, prepare
from benchmarks.search_rows import TooLong, run_row
from benchmarks.search_sources import Made, Source, Tiled
from benchmarks.search_table import table
from maxmatch.core.files import write_whole

_SIZE = 4
_ROOM_MB = 2048  # to leave free on disk and in memory
_LEAST_SECONDS = 20.0  # with less time left, no row is started


def _left_out(contender: Contender, items: int, before: list[dict[str, Any]], seconds: float, work: Path) -> str | None:
    """Why a row is not run: what it would take, estimated from the rows of smaller sizes, the next smaller one first.

    Building, scans and batches of queries are assumed to grow with the items. Start-up and single queries, which have
    their own time limit, are not.
    """
    if contender.most is not None and items > contender.most:
        return f"compared up to {contender.most:,} items"
    if contender.gpu and not torch.cuda.is_available():
        return "no GPU here"
    if seconds < _LEAST_SECONDS:
        return "no time was left"
    if not before:
        return None
    smaller = before[0]
    if smaller["left_out"] is not None:
        return "left out at a smaller size"
    more = items / smaller["items"]
    growing = smaller["build_s"] + smaller.get("verify_s", 0.0) + 2 * smaller["batch_s"]
    expected = smaller["took_s"] + (more - 1) * growing
    if expected > seconds:
        return f"would take about {expected / 60:.0f} minutes, {seconds / 60:.0f} were left for it"
    free = shutil.disk_usage(work).free / 2**20 - _ROOM_MB
    disk = more * smaller.get("disk_before_cleaning_mb", smaller["disk_mb"])
    if disk > free:
        return f"would take {disk / 2**10:.0f} GB on the disk, of which {free / 2**10:.0f} are free"
    memory = _memory_for(items, before) if smaller["in_memory"] else 0.0
    if memory > _memory_mb() - _ROOM_MB:
        return f"would take {memory / 2**10:.0f} GB of memory"
    return None


def _memory_for(items: int, before: list[dict[str, Any]]) -> float:
    """Extrapolate linearly from two smaller sizes, since even an empty server takes much; from one, in proportion."""
    took = [(row["items"], max(row["anon_mb"], row["build_anon_mb"])) for row in before[:2] if row["rows"]]
    (size, memory), (less, base) = took if len(took) == 2 else (took[0], (0, 0.0))
    return float(memory + (items - size) * (memory - base) / (size - less))


def _memory_mb() -> float:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) / 2**10


def _source(options: argparse.Namespace, width: int) -> Callable[[int], Source]:
    """The source of items for the width at that position and a number of items."""
    if options.sets is None:
        return lambda items: Made(_SIZE, options.dim[width], items)
    if options.queries and len(options.queries) != len(options.sets):
        raise SystemExit("--queries: as many files as --sets has")
    tiled = Tiled(options.sets[width], options.queries[width] if options.queries else None)
    return lambda items: tiled


def _run_width(options: argparse.Namespace, source: Callable[[int], Source], end: float) -> None:
    """Run all missing rows of one width until the deadline: one contender at all sizes, then the next."""
    names = [name for name in CONTENDERS if not options.only or any(part in name for part in options.only)]
    dtype = np.dtype(np.float16 if options.half else np.float32)
    titles: dict[int, str] = {}
    width = source(0).width
    rows = [(name, items) for name in names for items in sorted(options.items)]
    missing = [(name, items) for name, items in rows if not _done(options, width, items, name)]
    for items in sorted({items for _, items in missing}):
        begin, made = time.monotonic(), source(items)
        titles[items] = prepare(_place(options, width, items), made, items, options.asked, options.tuning, dtype)
        took = f"made in {time.monotonic() - begin:.0f} s"
        print(f"{items:,} × {made.size} × {width}: {titles[items]} ({took})", file=sys.stderr, flush=True)
    for name, items in missing:
        _run_one(options, name, items, width, titles[items], min(60 * options.row_minutes, end - time.monotonic()))
    if not options.keep_items:
        for items in titles:
            (_place(options, width, items) / ITEMS).unlink()


def _run_one(options: argparse.Namespace, name: str, items: int, width: int, title: str, seconds: float) -> None:
    """Write one row, or the reason why it was skipped, to a file."""
    path = _path(options, width, items, name)
    reason = _left_out(CONTENDERS[name], items, _before(options, width, items, name), seconds, options.work)
    rows: dict[str, Any] = {}
    if reason is None:
        try:
            rows = run_row(name, items, path.parent, path.with_suffix(""), seconds)
        except TooLong:
            reason = f"not done within {seconds / 60:.1f} minutes"
        except (RuntimeError, AssertionError) as error:
            reason, seconds = f"FAILED ({error})", 0.0  # 0 seconds: it will be tried again
    facts = {"name": name, "items": items, "width": width, "title": title, "rows": rows}
    missing = CONTENDERS[name].gpu and not rows  # there may be a GPU next time
    facts |= {"left_out": reason, "bound": 0.0 if missing else seconds / 60}
    write_whole(path, json.dumps(facts, indent=1) + "\n")
    for variant, row in rows.items():
        short = {key: round(value, 3) for key, value in row.items() if isinstance(value, float)}
        print(f"  {name} {variant}, {items:,}: {short} {row['settings']}", file=sys.stderr, flush=True)
    if reason:
        print(f"  {name}, {items:,}: skipped, {reason}", file=sys.stderr, flush=True)


def _done(options: argparse.Namespace, width: int, items: int, name: str) -> bool:
    """Whether a row exists, or was skipped under a time limit at least as long as now."""
    path = _path(options, width, items, name)
    facts = json.loads(path.read_text()) if path.exists() else {"rows": {}, "bound": 0}
    return bool(facts["rows"]) or facts["bound"] >= options.row_minutes


def _before(options: argparse.Namespace, width: int, items: int, name: str) -> list[dict[str, Any]]:
    """The existing rows of the smaller sizes, the largest first."""
    rows = []
    for other in sorted((size for size in options.items if size < items), reverse=True):
        path = _path(options, width, other, name)
        if path.exists():
            facts: dict[str, Any] = json.loads(path.read_text())
            rows.append(facts | next(iter(facts["rows"].values()), {}))
    return rows


def _place(options: argparse.Namespace, width: int, items: int) -> Path:
    return Path(options.work) / f"{width}-{items}"


def _path(options: argparse.Namespace, width: int, items: int, name: str) -> Path:
    return _place(options, width, items) / (re.sub("[^a-z0-9]+", "-", name.lower()) + ".json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, nargs="+", help="sets of images, one file or folder per width")
    parser.add_argument("--queries", type=Path, nargs="+", help="sets of captions, likewise")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the rows and temporary files")
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--dim", type=int, nargs="+", default=[256, 1024], help="widths of synthetic sets")
    parser.add_argument("--asked", type=int, default=300, help="queries to measure")
    parser.add_argument("--tuning", type=int, default=200, help="other queries, used to choose settings")
    parser.add_argument("--most-minutes", type=float, default=180, help="time limit in total")
    parser.add_argument("--row-minutes", type=float, default=45, help="time limit per row; longer ones are skipped")
    parser.add_argument("--half", action="store_true", help="round items to float16")
    parser.add_argument("--only", nargs="+", help="parts of contenders' names")
    parser.add_argument("--keep-items", action="store_true", help="keep the file of items when a size is done")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.most_minutes
    for width in range(len(options.sets or options.dim)):
        _run_width(options, _source(options, width), end)
    print(table(options.work))


if __name__ == "__main__":
    main()
