"""Ctrl-C, SIGTERM, a full disk, a folder that cannot be written: nothing is lost, and it is said what to do."""

import errno
import os
import resource
import signal
from contextlib import suppress
from functools import partial

import pytest
from small_runs import command, ended, outcome, recipe_for, same, signal_at_step, start, waited_for, write_data

from maxmatch.core.files import METRICS
from maxmatch.model import checkpoint
from maxmatch.recipe.yaml_files import dump_recipe
from maxmatch.training import log, loop, state, step
from maxmatch.training.loop import Interrupted, stopping, train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def recipe(data):
    return recipe_for(data, epochs=3, size_augmentation=0.2, checkpoint_every=2)


@pytest.fixture(scope="module")
def uninterrupted(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(recipe, folder)
    return outcome(folder)


def weights(folder):
    return outcome(folder)["weights"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_the_command_saves_tells_how_to_resume_and_exits_130(number, recipe, uninterrupted, tmp_path):
    file, run, said = tmp_path / "tiny.yaml", tmp_path / "run", tmp_path / "said"
    file.write_text(dump_recipe(recipe))
    patch = partial(signal_at_step, number, 5)
    stopped = start(partial(command, patch=patch), said, "train", file, "--out", run)
    assert ended(stopped) == 130
    assert [path.name for path in state.States(run / "states", 9).all()][-1] == "state-0-00000005.safetensors"
    last = said.read_text().splitlines()[-1]
    assert last == f"{run}: interrupted at step 5; continue with --resume."
    assert ended(start(command, said, "train", file, "--out", run, "--resume")) == 0
    assert weights(run) == uninterrupted["weights"]
    assert said.read_text().splitlines()[-1].startswith(f"{run / 'best'}: epoch ")


def test_a_signal_from_outside_stops_a_run_whatever_it_does_just_then(recipe, uninterrupted, tmp_path):
    run = tmp_path / "run"
    file = tmp_path / "tiny.yaml"
    file.write_text(dump_recipe(recipe))
    process = start(command, tmp_path / "said", "train", file, "--out", run)
    assert waited_for((run / METRICS).exists, process)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    assert ended(process) in (130, 0, -signal.SIGTERM)  # the others where it was done already
    assert ended(start(command, tmp_path / "said", "train", file, "--out", run, "--resume")) == 0
    assert weights(run) == uninterrupted["weights"]


def test_the_second_signal_ends_the_program_at_once():
    found = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stopping() as stop:  # noqa: PT012 (it is about their order)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second signal was taken for the first")
    assert signal.getsignal(signal.SIGINT) is before
    signal.signal(signal.SIGINT, found)


def test_from_python_a_stop_is_a_keyboard_interrupt(recipe, uninterrupted, tmp_path, monkeypatch):
    monkeypatch.setattr(step, "gradients", step.gradients)  # put back afterwards
    signal_at_step(signal.SIGTERM, 3)
    with pytest.raises(Interrupted, match=r"interrupted at step 3"):
        train(recipe, tmp_path / "run")
    assert issubclass(Interrupted, KeyboardInterrupt)
    train(recipe, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == uninterrupted["weights"]


def limited(size, arm):
    """From some moment on no file can grow beyond a size: what a full disk is to those who write."""

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    arm(fill)


def when_state_is_written(call, fill):
    whole, calls = state.States.save, 0

    def save(*arguments):
        nonlocal calls
        calls += 1
        if calls == call:
            fill()
        return whole(*arguments)

    state.States.save = save


def when_checkpoint_is_written(fill):
    whole = checkpoint._write

    def write(*arguments):
        fill()
        whole(*arguments)

    checkpoint._write = write


def when_record_is_written(fill):
    whole = log.RunLog.record

    def record(self, *arguments):
        if self.records == 2:
            fill()
        whole(self, *arguments)

    log.RunLog.record = record


@pytest.mark.parametrize(
    ("arm", "size", "expected"),
    [
        (partial(when_state_is_written, 3), 5000, "the run's state could not be written"),
        (when_checkpoint_is_written, 5000, "the checkpoint could not be written"),
        (when_record_is_written, 300, "metrics.jsonl: could not be written"),
    ],
)
def test_a_full_disk_is_reported_and_the_run_can_be_resumed(arm, size, expected, recipe, uninterrupted, tmp_path):
    file, run, said = tmp_path / "tiny.yaml", tmp_path / "run", tmp_path / "said"
    file.write_text(dump_recipe(recipe))
    stopped = start(partial(command, patch=partial(limited, size, arm)), said, "train", file, "--out", run)
    assert ended(stopped) == 1
    last = said.read_text().splitlines()[-1]
    assert expected in last
    assert str(run) in last
    assert "space" in last
    assert "Traceback" not in said.read_text()
    assert not list(run.rglob("*writing*"))
    assert not list(run.glob(".*"))
    assert ended(start(command, said, "train", file, "--out", run, "--resume")) == 0
    assert same(outcome(run), uninterrupted)


def refuse(code, *arguments, **options):
    raise OSError(code, os.strerror(code), "x")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_state_that_cannot_be_written_leaves_the_earlier_ones_whole(
    code, recipe, uninterrupted, tmp_path, monkeypatch
):
    whole, calls = state.sync, 0

    def sync(path):
        nonlocal calls
        calls += 1
        refuse(code) if calls > 4 else whole(path)

    with monkeypatch.context() as patched:
        patched.setattr(state, "sync", sync)
        with pytest.raises(OSError, match="Earlier states are intact") as failed:
            train(recipe, tmp_path / "run")
    assert failed.value.errno == code
    found = state.States(tmp_path / "run" / "states", 9).all()
    assert [path.name for path in found] == ["state-0-00000000.safetensors", "state-0-00000002.safetensors"]
    train(recipe, tmp_path / "run", resume=True)
    assert same(outcome(tmp_path / "run"), uninterrupted)


def test_a_folder_in_which_nothing_can_be_written_is_named(recipe, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/run"):
        train(recipe, tmp_path / "file" / "run")
    monkeypatch.setattr(os, "replace", partial(refuse, errno.EROFS))
    with pytest.raises(OSError, match=r"run/recipe\.yaml: could not be written .*Read-only") as failed:
        train(recipe, tmp_path / "run")
    assert failed.value.errno == errno.EROFS


def test_a_state_that_is_not_whole_is_named_with_what_to_do(recipe, uninterrupted, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "finish", lambda *arguments: {})
    train(recipe, tmp_path / "run")
    monkeypatch.undo()
    newest = state.States(tmp_path / "run" / "states", 9).all()[-1]
    os.truncate(newest, 100)
    with pytest.raises(state.StateError, match=str(newest)):
        train(recipe, tmp_path / "run", resume=True)
    newest.unlink()
    train(recipe, tmp_path / "run", resume=True)
    assert same(outcome(tmp_path / "run"), uninterrupted)
