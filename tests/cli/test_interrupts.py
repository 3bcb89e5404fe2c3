"""Ctrl-C ends a command, and says what became of the work; errors that are ours are still said."""

import contextlib
import signal
import threading

import pytest
import typer

from maxmatch.cli import main as command
from maxmatch.cli.common import interrupt_watch, resumable


@pytest.fixture(autouse=True)
def heard():
    """Ctrl-C raises KeyboardInterrupt, as in a terminal: in the background of a shell it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pressed():
    """Ctrl-C, of which a library makes nothing."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def ends(monkeypatch, capsys, verb):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(verb)
    monkeypatch.setattr(command, "app", app)
    with pytest.raises(SystemExit) as end:
        command.main([])
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("is_pressed", "error", "code", "line"),
    [
        (True, RuntimeError("shapes"), 130, "interrupted (RuntimeError: shapes)"),  # what a library makes of it
        (True, ValueError("model.json: not a model."), 1, "model.json: not a model."),  # ours
        (False, RuntimeError("shapes"), 1, "RuntimeError: shapes"),
    ],
)
def test_what_a_library_makes_of_it_is_no_failure(monkeypatch, capsys, is_pressed, error, code, line):
    def verb() -> None:
        if is_pressed:
            pressed()
        raise error

    assert ends(monkeypatch, capsys, verb) == (code, f"maxmatch: {line}\n")


def test_an_interruption_tells_how_to_continue(monkeypatch, capsys):
    def verb() -> None:
        with resumable("sets"):
            signal.raise_signal(signal.SIGINT)

    code, said = ends(monkeypatch, capsys, verb)
    assert code == 130
    assert said.startswith("maxmatch: sets: interrupted; finished work is kept.")


def test_other_signals_and_an_earlier_press_do_not_count():
    pressed()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    with interrupt_watch() as was_pressed:
        assert not was_pressed()
        signal.raise_signal(signal.SIGUSR1)
        assert not was_pressed()
        pressed()
        assert was_pressed()
    signal.signal(signal.SIGUSR1, before)


def test_a_watch_inside_another_one_and_one_in_another_thread():
    with interrupt_watch() as outer:
        with interrupt_watch() as inner:
            pressed()
            assert inner()
        assert not outer()
        pressed()
        assert outer()
    found = []

    def work():
        with interrupt_watch() as was_pressed:
            found.append(was_pressed())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("maxmatch.data.convert.convert", ["convert", "a", "b", "--to", "karpathy"]),
        ("maxmatch.data.scenes.generate", ["scenes", "b", "--images", "10"]),
    ],
)
def test_commands_on_data_tell_how_to_continue(what, words, monkeypatch, capsys):
    monkeypatch.setattr(what, lambda *given, **options: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit) as end:
        command.main(["data", *words])
    assert end.value.code == 130
    assert "b: interrupted; finished work is kept. Run the same command again" in capsys.readouterr().err
