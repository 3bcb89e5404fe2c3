"""Time several functions in one run and print the results."""

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One line of the table: what ran, how long it took, and its ratio to the baseline."""

    what: str
    ms: float
    ratio: float | None = None
    goal: float | None = None
    note: str = ""


def describe_machine() -> str:
    """The versions and devices that the numbers belong to."""
    parts = [
        f"Python {platform.python_version()}",
        f"torch {torch.__version__}",
        f"{torch.get_num_threads()} CPU threads",
    ]
    if torch.cuda.is_available():
        import triton

        parts += [torch.cuda.get_device_name(), f"triton {triton.__version__}"]
    return ", ".join(parts)


def time_each(works: list[Work], repeats: int = 7, pause: float = 0) -> list[list[float]]:
    """Milliseconds of each function, interleaved so that a slow moment of the machine affects all of them.

    pause: seconds before each. For milliseconds after an operation torch's threads spin, and keep a core from the next.
    """
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, measured in zip(works, times, strict=True):
            time.sleep(pause)
            measured.append(_one(work))
    return times


def _one(work: Work) -> float:
    if torch.cuda.is_available():
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(stop))
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def recorded(work: Work) -> Work:
    """The same as a CUDA graph: without the host."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def print_kernels(what: str, work: Work, shown: int = 10, runs: int = 1) -> None:
    """What the GPU was busy with in one run, by the profiler: the kernels that took most. The mean of several runs."""
    work()
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(runs):
                work()
            torch.cuda.synchronize()
        kernels = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
    except (RuntimeError, AssertionError) as error:  # where the machine cannot
        print(f"no profile: {error}")
        return
    total, count = (
        sum(found) / runs for found in ([k.self_device_time_total for k in kernels], [k.count for k in kernels])
    )
    print(f"\n{what}: {count:.0f} launches and copies, {total / 1e3:.3f} ms on the GPU")
    for kernel in kernels[:shown]:
        ms, calls = kernel.self_device_time_total / 1e3 / runs, kernel.count / runs
        print(f"  {ms:8.3f} ms  {calls:5.1f} ×  {kernel.key[:90]}", flush=True)


def rows_against(
    baseline: Work, named: Mapping[str, tuple[Work, float | None]], title: str, repeats: int = 7, pause: float = 0
) -> list[Row]:
    """One row for the baseline and one per function: its best run, since a busy machine only adds time. Its note has
    the ratio of the medians.
    """
    base, *others = time_each([baseline, *(work for work, _ in named.values())], repeats, pause)
    rows = [Row(title, min(base), 1.0)]
    for (what, (_, goal)), times in zip(named.items(), others, strict=True):
        note = f"medians {median(times) / median(base):.2f}×"
        rows.append(Row(what, min(times), min(times) / min(base), goal, note))
    return rows


def print_rows(heading: str, rows: list[Row]) -> None:
    """Print one block of the table."""
    print(f"\n{heading}")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:8.2f}×"
        goal = (
            "" if row.goal is None else f"  goal ≤ {row.goal:g}× {'met' if (row.ratio or 0) <= row.goal else 'NOT MET'}"
        )
        note = f"  {row.note}" if row.note else ""
        print(f"  {row.what:<58}{row.ms:12.3f} ms{ratio}{goal}{note}", flush=True)
