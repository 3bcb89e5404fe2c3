"""Ctrl-C, SIGTERM, a full disk, a folder that cannot be written: nothing is lost, and the message tells what to do."""

import errno
import os
import resource
import signal
from contextlib import suppress
from functools import partial

import pytest
from small_runs import before_call, command, ended, outcome, recipe_for, same, signal_at_step, start, waited_for

from maxmatch.core.files import METRICS
from maxmatch.model import checkpoint
from maxmatch.recipe.yaml_files import dump_recipe
from maxmatch.training import log, loop, state, step
from maxmatch.training.loop import Interrupted, stopping, train


@pytest.fixture(scope="module")
def recipe(data):
    return recipe_for(data, epochs=2, size_augmentation=0.2, checkpoint_every=2)


@pytest.fixture(scope="module")
def uninterrupted(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(recipe, folder)
    return outcome(folder)


@pytest.fixture
def run(recipe, tmp_path):
    """Starts `maxmatch train` in a process; its output is in `output`."""
    (tmp_path / "tiny.yaml").write_text(dump_recipe(recipe))

    def started(*more, patch=None):
        arguments = ("train", tmp_path / "tiny.yaml", "--out", tmp_path / "run", *more)
        return start(partial(command, patch=patch), tmp_path / "output", *arguments)

    return started


def states_in(run):
    return [path.name for path in state.States(run, 9).all()]


def test_ctrl_c_saves_the_state_tells_how_to_resume_and_exits_130(run, uninterrupted, tmp_path):
    assert ended(run(patch=partial(signal_at_step, signal.SIGINT, 5))) == 130
    assert states_in(tmp_path / "run")[-1] == "state-0-00000005.safetensors"
    last = (tmp_path / "output").read_text().splitlines()[-1]
    assert last == f"{tmp_path / 'run'}: interrupted at step 5; continue with --resume."
    assert ended(run("--resume")) == 0
    assert outcome(tmp_path / "run")["weights"] == uninterrupted["weights"]
    assert (tmp_path / "output").read_text().splitlines()[-1].startswith(f"{tmp_path / 'run' / 'best'}: epoch ")


def test_a_signal_at_any_time_stops_a_run_that_can_be_resumed(run, uninterrupted, tmp_path):
    process = run()
    assert waited_for((tmp_path / "run" / METRICS).exists, process)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    assert ended(process) in (130, 0, -signal.SIGTERM)  # the others if it had already finished
    assert ended(run("--resume")) == 0
    assert outcome(tmp_path / "run")["weights"] == uninterrupted["weights"]


def test_the_second_signal_ends_the_program_at_once():
    found = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stopping() as stop:  # noqa: PT012 (their order matters)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second signal was taken for the first")
    assert signal.getsignal(signal.SIGINT) is before
    signal.signal(signal.SIGINT, found)


def test_from_python_a_stop_is_a_keyboard_interrupt(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(step, "gradients", step.gradients)  # restored afterwards
    signal_at_step(signal.SIGTERM, 1)
    with pytest.raises(Interrupted, match=r"interrupted at step 1"):
        train(recipe, tmp_path / "run")
    assert issubclass(Interrupted, KeyboardInterrupt)


FULL_DISK = {  # when it becomes full, and the size beyond which no file can grow then
    "the run's state could not be written": (lambda fill: before_call(state.States, "save", 2, fill), 5000),
    "the checkpoint could not be written": (lambda fill: before_call(checkpoint, "_write", 1, fill), 5000),
    "metrics.jsonl: could not be written": (lambda fill: before_call(log.RunLog, "record", 3, fill), 300),
}


def fill_disk(message):
    arm, size = FULL_DISK[message]
    limit = (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    arm(lambda *call: resource.setrlimit(resource.RLIMIT_FSIZE, limit))


@pytest.mark.parametrize("message", FULL_DISK)
def test_a_full_disk_is_reported_and_the_run_can_be_resumed(message, run, uninterrupted, tmp_path):
    assert ended(run(patch=partial(fill_disk, message))) == 1
    output = (tmp_path / "output").read_text()
    last = output.splitlines()[-1]
    assert message in last
    assert str(tmp_path / "run") in last
    assert "space" in last
    assert "Traceback" not in output
    assert not list((tmp_path / "run").rglob("*writing*"))
    assert not list((tmp_path / "run").glob(".*"))
    assert ended(run("--resume")) == 0
    assert same(outcome(tmp_path / "run"), uninterrupted)


def refuse(code, *arguments, **options):
    raise OSError(code, os.strerror(code), "x")


def test_a_state_that_cannot_be_written_leaves_the_earlier_ones_whole(recipe, uninterrupted, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(state, "sync", state.sync)  # restored afterwards
        before_call(state, "sync", 5, partial(refuse, errno.EROFS))
        with pytest.raises(OSError, match="Earlier states are intact") as failed:
            train(recipe, tmp_path / "run")
    assert failed.value.errno == errno.EROFS
    assert states_in(tmp_path / "run") == ["state-0-00000000.safetensors", "state-0-00000002.safetensors"]
    train(recipe, tmp_path / "run", resume=True)
    assert same(outcome(tmp_path / "run"), uninterrupted)


def test_a_folder_that_cannot_be_written_is_named(recipe, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/run"):
        train(recipe, tmp_path / "file" / "run")
    monkeypatch.setattr(os, "replace", partial(refuse, errno.EROFS))
    with pytest.raises(OSError, match=r"run/recipe\.yaml: could not be written .*Read-only") as failed:
        train(recipe, tmp_path / "run")
    assert failed.value.errno == errno.EROFS


def test_a_damaged_state_is_named_and_the_one_before_it_can_be_resumed(recipe, uninterrupted, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(loop, "finish", lambda *arguments: {})
        patched.setattr(state.States, "clear", lambda self: None)
        train(recipe, tmp_path / "run")
    newest = tmp_path / "run" / "states" / states_in(tmp_path / "run")[-1]
    os.truncate(newest, 100)
    with pytest.raises(state.StateError, match=str(newest)):
        train(recipe, tmp_path / "run", resume=True)
    newest.unlink()
    train(recipe, tmp_path / "run", resume=True)
    assert same(outcome(tmp_path / "run"), uninterrupted)
