"""`maxmatch`: results on stdout, logs on stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

Heavy modules are imported inside the commands, so that --help is fast.
"""

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from maxmatch import __version__
from maxmatch.cli import data, index
from maxmatch.cli.analyse import analyse
from maxmatch.cli.common import interrupt_watch
from maxmatch.cli.demo import demo
from maxmatch.cli.desktop import desktop
from maxmatch.cli.doctor import doctor
from maxmatch.cli.encode import encode
from maxmatch.cli.evaluate import evaluate
from maxmatch.cli.export import export
from maxmatch.cli.models import models
from maxmatch.cli.reproduce import reproduce
from maxmatch.cli.results import results
from maxmatch.cli.search import search
from maxmatch.cli.serve import serve
from maxmatch.cli.train import train
from maxmatch.core.machine import TORCHVISION_CURE, torchvision_caused

_WRITABLE = "Choose a folder that you may write to, or change its permissions."
_CURES = {
    errno.ENOSPC: "Free some space, or use another disk.",
    errno.EDQUOT: "Free some space, or use another disk.",
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EROFS: _WRITABLE,
    errno.EMFILE: "Allow more open files: ulimit -n 4096",
}

_HELP = """Search photos by text, and train and evaluate models that encode images and texts as sets of vectors.

  maxmatch search "two dogs in the snow" ~/Pictures

  maxmatch serve ~/Pictures --open

  maxmatch demo

Every command has help with examples: maxmatch search --help
"""

app = typer.Typer(
    name="maxmatch",
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(search)
app.command()(serve)
app.command()(desktop)
app.command()(demo)
app.command()(train)
app.command()(evaluate)
app.command()(results)
app.command()(analyse)
app.command()(reproduce)
app.command()(encode)
app.command()(export)
app.command()(models)
app.command()(doctor)
app.add_typer(data.app, name="data")
app.add_typer(index.app, name="index")


def _version(asked: bool) -> None:
    if asked:
        print(f"maxmatch {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the verb."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error becomes one line. MAXMATCH_DEBUG=1 shows the traceback."""
    # Threads that wait by spinning make training ten times slower on a busy machine. Torch's libraries read this when
    # they are loaded, which is later.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if not os.environ.get("MAXMATCH_DEBUG"):
        warnings.formatwarning = _warning_line
    with interrupt_watch() as was_interrupted:
        _run(arguments, was_interrupted)


def _warning_line(message: Warning | str, *_: object, **__: object) -> str:
    """A warning in one line, without the line of source that gave it."""
    return f"maxmatch: {message}\n"


def _run(arguments: Sequence[str] | None, was_interrupted: Callable[[], bool]) -> None:
    try:
        app(args=None if arguments is None else list(arguments), prog_name="maxmatch")
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        if os.environ.get("MAXMATCH_DEBUG"):
            traceback.print_exc()
        line = TORCHVISION_CURE if torchvision_caused(error) else _line(error)
        if was_interrupted() and not _is_ours(error):  # torch turns Ctrl-C into a RuntimeError while it reads weights
            print(f"maxmatch: interrupted ({line})", file=sys.stderr)
            raise SystemExit(130) from error
        print(f"maxmatch: {line}", file=sys.stderr)
        raise SystemExit(1) from error


def _line(error: Exception) -> str:
    """An error in one line: our own messages as they are, others with their type."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        if error.strerror != os.strerror(error.errno):
            return error.strerror
        names = "".join(f"{name}: " for name in (error.filename, error.filename2) if name is not None)
        return f"{names}{error.strerror.lower()}. {_CURES.get(error.errno, '')}".rstrip()
    if isinstance(error, MemoryError):
        return "Out of memory. Use smaller batches, or close other programs: see `maxmatch doctor`."
    text = str(error).strip()
    return text if _is_ours(error) and text else f"{type(error).__name__}: {text}"


def _is_ours(error: Exception) -> bool:
    """Whether its message is one of our own, or the system's."""
    # Our own ImportErrors tell what to install; Python's only name the module.
    return isinstance(error, ValueError | OSError) or (isinstance(error, ImportError) and error.name is None)


if __name__ == "__main__":
    main()
