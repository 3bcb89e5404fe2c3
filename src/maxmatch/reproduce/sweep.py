"""Many jobs, some at a time, each in a process of its own; one that fails does not stop the others."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxmatch.reproduce.jobs import LOG, Job
from maxmatch.reproduce.worker import SAID

_LOOK_EVERY = 0.1  # seconds
_STOP_WITHIN = 60.0  # seconds to save a state, before a process is killed


@dataclass(frozen=True)
class Outcome:
    """What came of a job: its result, or why there is none. again: whether it was done before."""

    result: Mapping[str, Any] | None
    failure: str = ""
    again: bool = False


ReportJob = Callable[[Job, Outcome], object]


def sweep(jobs: Sequence[Job], at_once: int, device: str | None, report: ReportJob) -> dict[Path, Outcome]:
    """Do all jobs, in their order; an ensemble when its members are done. What came of each, by folder.

    A job with a result is not done again. report is called for each job as it ends. Interrupted, all processes save
    their states and end; the next call goes on from there.
    """
    outcomes: dict[Path, Outcome] = {}

    def note(job: Job, outcome: Outcome) -> None:
        outcomes[job.folder] = outcome
        report(job, outcome)

    waiting, running = [], dict[Path, tuple[Job, subprocess.Popen[bytes]]]()
    for job in jobs:
        result = job.result()
        if result is None:
            waiting.append(job)
        else:
            note(job, Outcome(result, again=True))
    try:
        while waiting or running:
            for job in [job for job in waiting if len(running) < at_once or _lost(job, outcomes)]:
                if _lost(job, outcomes):
                    waiting.remove(job)
                    note(job, Outcome(None, "one of its models failed"))
                elif len(running) < at_once and _ready(job, outcomes):
                    waiting.remove(job)
                    running[job.folder] = job, start(job, device)
            for job, process in list(running.values()):
                if process.poll() is not None:
                    _stop([process])
                    del running[job.folder]
                    note(job, _outcome(job, process.returncode))
            if running:
                time.sleep(_LOOK_EVERY)
    finally:
        _stop([process for _, process in running.values()])
    return outcomes


def start(job: Job, device: str | None) -> subprocess.Popen[bytes]:
    """The process of a job. It ends when its standard input does, so also when this process is killed."""
    job.write()
    environment = dict(os.environ)
    if device == "cpu":
        # One thread each, whatever the number of jobs: more would add numbers up in another order.
        environment.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "maxmatch.reproduce.worker", str(job.folder), *([device] if device else [])]
    with (job.folder / LOG).open("wb") as log:
        # Ctrl-C in a terminal goes to a whole session. In one of their own they hear it from us, once.
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )


def _ready(job: Job, outcomes: Mapping[Path, Outcome]) -> bool:
    return all(member == job.folder or member in outcomes for member in job.members)


def _lost(job: Job, outcomes: Mapping[Path, Outcome]) -> bool:
    return any(member in outcomes and outcomes[member].result is None for member in job.members)


def _outcome(job: Job, code: int) -> Outcome:
    result = job.result()
    if code == 0 and result is not None:
        return Outcome(result)
    if code < 0:
        return Outcome(None, f"killed by signal {-code}; for want of memory, perhaps: try fewer --jobs")
    if code == 130:
        return Outcome(None, "interrupted; run the command again to go on")
    said = (job.folder / LOG).read_text(encoding="utf-8", errors="replace").strip()
    _, marked, reason = said.rpartition(SAID)
    lines = (reason if marked else said).strip().splitlines() or [f"ended with exit code {code} and no result"]
    return Outcome(None, f"{lines[0] if marked else lines[-1]} ({job.folder / LOG})")


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes by closing their input, and wait until they have saved."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    last = time.monotonic() + _STOP_WITHIN
    for process in processes:
        try:
            process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
