"""What is wrong with data: where, what, and what to do about it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

_SHOWN = 5  # problems that are said; the rest is counted


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a data set. Its text is "file:line: what. cure"."""

    file: Path
    what: str
    """What was found, and what was expected; without a full stop."""
    cure: str
    """What to do, as a whole sentence."""
    line: int | None = None
    """Counted from 1: the line of a text file, the row of a table or an array."""
    fatal: bool = False
    """Whether a file, a split or everything is lost because of it. Otherwise one item is left out, or is merely worth a
    look."""

    def __str__(self) -> str:
        where = str(self.file) if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.what}. {self.cure}"


class DataError(ValueError):
    """Data that cannot be used as it is."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


Report = Callable[[Problem], None]
"""What a reader does with a problem. After a call that returns, it leaves out what is bad and goes on; where it cannot,
it raises DataError with the same problem by itself."""


def refuse(problem: Problem) -> None:
    """The strictest report: the first problem ends the reading."""
    raise DataError(problem)


def give_up(report: Report, problem: Problem) -> NoReturn:
    """Say what makes reading impossible, and end it."""
    problem = replace(problem, fatal=True)
    report(problem)
    raise DataError(problem)


@contextmanager
def saying_the_first(say: Callable[[str], object]) -> Iterator[Report]:
    """A report that says the first problems and counts the others; what is raised as well is not said twice."""
    count = 0
    fatal: list[Problem] = []

    def report(problem: Problem) -> None:
        nonlocal count
        if problem.fatal:
            fatal.append(problem)
            return
        count += 1
        if count <= _SHOWN:
            say(str(problem))

    yield report
    for problem in fatal:
        say(str(problem))
    if count > _SHOWN:
        say(f"… and {count - _SHOWN} more problems. `maxmatch data check` lists them all.")
