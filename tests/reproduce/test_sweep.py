"""Many models: some at a time, each in its own process, whatever becomes of the others."""

import subprocess
import sys
import time

import pytest

from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.reproduce import jobs as module
from maxmatch.reproduce.jobs import LOG, ensemble, single, sweep
from maxmatch.reproduce.worker import alone

RECIPE = load_recipe("scenes", ["data.path=here"])


@pytest.fixture
def jobs(tmp_path):
    seeds = (RECIPE.model_copy(update={"seed": seed}) for seed in range(4))
    return [single(tmp_path, recipe, None, "plain") for recipe in seeds]


@pytest.fixture
def processes(monkeypatch):
    """In place of training: programs by the seed of the job, 0 to write a result. Those that were started, in order."""
    started, programs = [], {}

    def start(job, device):
        started.append(job.recipes[-1].seed)
        job.folder.mkdir(exist_ok=True)
        program = programs.get(job.folder)
        if program is None:
            job.finish({"figures": {"rsum": float(job.recipes[-1].seed)}, "seconds": 0.0})
        with (job.folder / LOG).open("wb") as log:
            return subprocess.Popen([sys.executable, "-c", program or "pass"], stdin=subprocess.PIPE, stderr=log)

    monkeypatch.setattr(module, "start", start)
    return started, programs


def test_all_are_done_in_order_and_reported(jobs, processes):
    reported = []
    outcomes = sweep(jobs, 2, None, lambda job, outcome: reported.append(job.folder))
    assert processes[0] == [0, 1, 2, 3]
    assert [outcomes[job.folder].result["figures"]["rsum"] for job in jobs] == [0.0, 1.0, 2.0, 3.0]
    assert sorted(reported) == sorted(job.folder for job in jobs)


def test_what_is_finished_is_not_done_again(jobs, processes):
    jobs[1].finish({"figures": {"rsum": 7.0}})
    outcomes = sweep(jobs, 1, None, lambda job, outcome: None)
    assert processes[0] == [0, 2, 3]
    assert outcomes[jobs[1].folder].again
    assert outcomes[jobs[1].folder].result["figures"]["rsum"] == 7.0
    sweep(jobs, 1, None, lambda job, outcome: None)
    assert processes[0] == [0, 2, 3]


def test_no_more_than_so_many_run_at_once(jobs, processes, monkeypatch):
    for job in jobs:
        processes[1][job.folder] = "import time; time.sleep(0.3); raise SystemExit(1)"
    begin, most = time.monotonic(), []
    whole = module.start
    alive = []

    def start(job, device):
        alive[:] = [process for process in alive if process.poll() is None]
        alive.append(whole(job, device))
        most.append(len(alive))
        return alive[-1]

    monkeypatch.setattr(module, "start", start)
    sweep(jobs, 2, None, lambda job, outcome: None)
    assert max(most) == 2
    assert time.monotonic() - begin > 0.6


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (
            "import sys; print('Traceback …\\nmaxmatch: here: no such file.\\nMake it.', file=sys.stderr); sys.exit(1)",
            "here: no such file.",
        ),
        ("raise KeyError('x')", "KeyError: 'x'"),
        ("raise SystemExit(3)", "ended with exit code 3 and no result"),
        ("pass", "ended with exit code 0 and no result"),
        ("raise SystemExit(130)", "interrupted; run the command again to resume"),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9, perhaps out of memory: try fewer --jobs"),
    ],
)
def test_one_that_fails_says_why_and_does_not_stop_the_others(program, reason, jobs, processes):
    processes[1][jobs[1].folder] = program
    outcomes = sweep(jobs, 2, None, lambda job, outcome: None)
    assert outcomes[jobs[1].folder].result is None
    assert outcomes[jobs[1].folder].failure.split(" (")[0] == reason
    assert [outcomes[job.folder].result is not None for job in jobs] == [True, False, True, True]


def test_an_ensemble_waits_for_its_members_and_is_lost_with_them(jobs, processes, tmp_path):
    started, programs = processes
    both, lost = ensemble(tmp_path, (jobs[0], jobs[1])), ensemble(tmp_path, (jobs[2], jobs[3]))
    programs[jobs[2].folder] = "raise SystemExit(1)"
    outcomes = sweep([*jobs, both, lost], 4, None, lambda job, outcome: None)
    assert started == [0, 1, 2, 3, 1]
    assert outcomes[both.folder].result is not None
    assert outcomes[lost.folder].failure == "one of its models failed"


def test_interrupted_it_ends_its_processes_through_their_input(jobs, processes):
    for job in jobs:
        processes[1][job.folder] = "import sys, pathlib; sys.stdin.read(); sys.stderr.write('saved')"
    whole, seen = module.time.sleep, []

    def interrupt(seconds):
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt
        whole(seconds)

    module.time.sleep = interrupt
    try:
        with pytest.raises(KeyboardInterrupt):
            sweep(jobs, 2, None, lambda job, outcome: None)
    finally:
        module.time.sleep = whole
    assert [(job.folder / LOG).exists() and (job.folder / LOG).read_text() for job in jobs[:2]] == ["saved", "saved"]


def test_a_process_asks_itself_to_stop_when_the_one_that_started_it_is_gone():
    program = (
        "import signal, time\n"
        "from maxmatch.reproduce.worker import end_with_the_parent\n"
        "signal.signal(signal.SIGTERM, lambda *_: exit(7))\n"
        "end_with_the_parent()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(30) == 7
    process.stdout.close()


def test_two_processes_do_not_work_in_one_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("maxmatch.reproduce.worker._PATIENCE", 0.3)
    with (
        alone(tmp_path / "run"),
        pytest.raises(ValueError, match="another process is writing there"),
        alone(tmp_path / "run"),
    ):
        pass
    with alone(tmp_path / "run"):
        pass


def test_a_process_as_users_have_it_fails_with_its_reason(jobs):
    outcomes = sweep(jobs[:1], 1, "nonsense", lambda job, outcome: None)
    failure = outcomes[jobs[0].folder].failure
    assert "nonsense" in failure
    assert failure.endswith(f"({jobs[0].folder / LOG})")
