"""The command line, run in this process."""

from typing import NamedTuple

import pytest

from maxmatch.cli.main import main


class CommandResult(NamedTuple):
    """The exit code of a command, and what it printed on stdout and stderr."""

    code: int
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> CommandResult:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return CommandResult(end.value.code or 0, printed.out, printed.err)
