"""One row of the search benchmark: built in one process and searched in another, whose memory is measured here.

Those processes run `python -m benchmarks.search_rows build|serve NAME ITEMS DATA FOLDER [VARIANT]`.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.search_data import Data, load, recall_of
from benchmarks.search_ours import PROCESS

_SINGLE = 100
_WARM = 10
_ENOUGH_SECONDS = 60.0
_AT_ONCE_SECONDS = 3.0  # a batch is repeated until this much time has passed
_LOOK_SECONDS = 0.02
_PEAKS = {"VmHWM": "peak_mb", "RssAnon": "anon_mb"}


class TooLong(Exception):
    """A process was stopped at the time limit."""


def run_row(name: str, items: int, data: Path, folder: Path, seconds: float) -> dict[str, dict[str, Any]]:
    """Measure each variant of a contender within the time limit, then delete what was built."""
    from benchmarks.search_contenders import CONTENDERS
    from benchmarks.search_milvus import running, stored

    contender = CONTENDERS[name]
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"
    work.mkdir(parents=True)
    arguments = [name, str(items), str(data), str(work)]
    program = data.parent / "milvus"
    begin = time.monotonic()
    deadline = begin + seconds
    try:
        with running(folder, program) if contender.server else nullcontext() as server:
            built, memory = _in_own_process(["build", *arguments], deadline, server)
        built |= {f"build_{what}": value for what, value in memory.items()}
        built["disk_mb"] = _megabytes(stored(folder) if contender.server else work)
        rows = {}
        for variant in contender.variants:
            # Restart the server so that its memory is that of searching, without leftovers from building.
            with running(folder, program) if contender.server else nullcontext() as server:
                served, memory = _in_own_process(["serve", *arguments, variant], deadline, server)
            settings = built.get("settings", {}).get(variant, "")
            rows[variant] = {**built, **served, **memory, "settings": settings}
        took = time.monotonic() - begin
        return {variant: {**row, "took_s": took, "in_memory": contender.in_memory} for variant, row in rows.items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_own_process(
    arguments: list[str], deadline: float, server: int | None
) -> tuple[dict[str, Any], dict[str, float]]:
    """The last line printed and the peak memory; if a server holds the index, that of the server and of the process."""
    command = [sys.executable, "-m", "benchmarks.search_rows", *arguments]
    own: dict[str, float] = {}
    held: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            _look(process.pid, own)
            if server is not None:
                _look(server, held)
            if time.monotonic() > deadline:
                process.kill()
                raise TooLong
            time.sleep(_LOOK_SECONDS)
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found, own if server is None else {**held, "client_peak_mb": own["peak_mb"]}


def _look(process: int | str, peaks: dict[str, float]) -> None:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # it has just exited
        return
    for line in lines:
        name, _, value = line.partition(":")
        if name in _PEAKS:
            peaks[_PEAKS[name]] = max(peaks.get(_PEAKS[name], 0.0), int(value.split()[0]) / 2**10)


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def _measure(search: Any, data: Data, server: Path) -> dict[str, float]:
    """Measure one query after the other, then all at once.

    CPU time is that of this process and the server, which the load of other processes hardly changes.
    """
    queries, warm = data.queries, data.tuning
    search(warm[:1])
    started = time.perf_counter()
    for query in warm[1:_WARM]:
        search(query[None])
        if time.perf_counter() - started > _ENOUGH_SECONDS / 10:
            break
    times, started, used = [], time.perf_counter(), _cpu_seconds(server)
    for query in queries[:_SINGLE]:
        begin = time.perf_counter()
        search(query[None])
        times.append(time.perf_counter() - begin)
        if time.perf_counter() - started > _ENOUGH_SECONDS:
            break
    alone = (_cpu_seconds(server) - used) / len(times)
    begin, rounds, used = time.perf_counter(), 0, _cpu_seconds(server)
    while rounds == 0 or time.perf_counter() - begin < _AT_ONCE_SECONDS:
        found = search(queries)
        rounds += 1
    together = (time.perf_counter() - begin) / rounds
    used = (_cpu_seconds(server) - used) / rounds / len(queries)
    ordered = sorted(times)
    return {
        "singles": len(ordered),
        "asked": min(_SINGLE, len(queries)),
        "p50_ms": 1e3 * statistics.median(ordered),
        "p95_ms": 1e3 * ordered[int(0.95 * (len(ordered) - 1))],
        "batch_s": together,
        "batch_qps": len(queries) / together,
        "cpu_ms": 1e3 * alone,
        "batch_cpu_ms": 1e3 * used,
        "recall": recall_of(found, data.truth),
    }


def _cpu_seconds(server: Path) -> float:
    """CPU time of this process, and of the server whose process id is in the file, if the file exists."""
    used = time.process_time()
    if server.exists():
        fields = Path(f"/proc/{server.read_text()}/stat").read_text().rpartition(")")[2].split()
        used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def _main(arguments: Sequence[str]) -> dict[str, Any]:
    from benchmarks.search_contenders import CONTENDERS

    phase, name, items, data_folder, work, *variant = arguments
    data, folder, contender = load(Path(data_folder), int(items)), Path(work), CONTENDERS[name]
    libraries: dict[str, float] = {}
    _look("self", libraries)
    begin = time.perf_counter()
    if phase == "build":
        facts = contender.build(data, folder)
        return {"build_s": time.perf_counter() - begin, **facts}
    search = contender.open(data, folder, variant[0])
    opened = time.perf_counter() - begin
    before = {"libraries_mb": libraries["peak_mb"], "open_s": opened}
    return {**before, **_measure(search, data, folder.parent / PROCESS)}


if __name__ == "__main__":
    print(json.dumps(_main(sys.argv[1:])))
