"""The command line, run in this process."""

from typing import NamedTuple

import pytest

from maxmatch.cli.main import main


class Said(NamedTuple):
    """The exit code of a command and what it said: the result and the rest."""

    code: int
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> Said:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return Said(end.value.code or 0, said.out, said.err)
