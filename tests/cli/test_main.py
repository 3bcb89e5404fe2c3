import errno
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import typer

import maxmatch
from maxmatch.cli import main as command


@pytest.mark.parametrize("module", ["maxmatch", "maxmatch.cli.main"])
def test_the_version_is_printed_by_the_module_too(module):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(asked, capture_output=True, text=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == (f"maxmatch {maxmatch.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["doctr"], ["doctor", "--jsn"], ["doctor", "extra"]])
def test_wrong_use_ends_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(arguments)
    assert end.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err


def failing(monkeypatch, error):
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def verb() -> None:
        raise error

    monkeypatch.setattr(command, "app", app)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("a.jpg: not a picture."), 1, "maxmatch: a.jpg: not a picture.\n"),
        (FileNotFoundError("x: no such folder."), 1, "maxmatch: x: no such folder.\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "maxmatch: no space left on device. Free some space, or"),
        (
            PermissionError(errno.EACCES, "Permission denied", "out"),
            1,
            "maxmatch: out: permission denied. Choose a folder",
        ),
        (OSError(errno.ENOTEMPTY, "Directory not empty", "a", None, "b"), 1, "maxmatch: a: b: directory not empty.\n"),
        (OSError(errno.ENOSPC, "a: could not be written."), 1, "maxmatch: a: could not be written.\n"),
        (ImportError("--ray needs Ray: pip install it"), 1, "maxmatch: --ray needs Ray: pip install it\n"),
        (ModuleNotFoundError("No module named 'ray'", name="ray"), 1, "maxmatch: ModuleNotFoundError: No module"),
        (MemoryError(), 1, "maxmatch: Out of memory. Use smaller batches"),
        (KeyError("slots"), 1, "maxmatch: KeyError: 'slots'\n"),
        (RuntimeError("operator torchvision::nms does not exist"), 1, f"maxmatch: {command.TORCHVISION_CURE}\n"),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_an_error_becomes_one_line(monkeypatch, capsys, error, code, line):
    failing(monkeypatch, error)
    with pytest.raises(SystemExit) as end:
        command.main([])
    assert end.value.code == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert line is None or (printed.err == line if line.endswith("\n") else line in printed.err)
    assert printed.err.count("\n") <= 1


def test_a_warning_is_one_line_without_its_source(monkeypatch, capsys):
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def verb() -> None:
        print(warnings.formatwarning(UserWarning("a text is too long."), UserWarning, "text.py", 3, "x = 1"), end="")

    monkeypatch.setattr(command, "app", app)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # so that it is put back
    with pytest.raises(SystemExit):
        command.main([])
    assert capsys.readouterr().out == "maxmatch: a text is too long.\n"


def test_where_it_came_from_is_shown_when_asked_for(monkeypatch, capsys):
    monkeypatch.setenv("MAXMATCH_DEBUG", "1")
    failing(monkeypatch, ValueError("a.jpg: not a picture."))
    with pytest.raises(SystemExit):
        command.main([])
    assert "Traceback" in capsys.readouterr().err


def test_an_error_whose_causes_form_a_circle_is_reported_all_the_same(monkeypatch, capsys):
    error, inner = ConnectionError("http://localhost:1: does not answer."), OSError("unavailable")
    error.__cause__, inner.__context__ = inner, error
    failing(monkeypatch, error)
    with pytest.raises(SystemExit) as end:
        command.main([])
    assert end.value.code == 1
    assert capsys.readouterr().err == "maxmatch: http://localhost:1: does not answer.\n"


@pytest.mark.slow
def test_with_a_broken_torchvision_transformers_name_the_cure_and_other_models_work(tmp_path):
    """As it is beside a torch that it was not built for."""
    package, about = tmp_path / "torchvision", tmp_path / "torchvision-0.20.0.dist-info"
    package.mkdir()
    about.mkdir()
    (package / "__init__.py").write_text(
        "import torch\ntorch.library.register_fake('torchvision::nms')(lambda *arguments: None)\n"
    )
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.20.0\n")
    code = """
from tiny_models import tiny_model
tiny_model("region_bigru").encode_texts(["a dog"])
print("works")
tiny_model("region_bert")
"""
    paths = [tmp_path, Path(__file__).parents[1], *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "works\n", done.stderr
    assert done.stderr.splitlines()[-1] == f"ImportError: {command.TORCHVISION_CURE}"
