"""What is said on stderr while work goes on: bars, and the first problems."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxmatch.data.problems import Problem

_SHOWN = 5  # problems that are said; the rest is counted


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """What to call with the number of things done. Nothing is shown where stderr is no terminal."""
    from tqdm import tqdm

    big = what == "bytes"
    with tqdm(total=total, desc=what, unit="B" if big else "", unit_scale=big, disable=None, leave=False) as shown:
        yield shown.update


def cores() -> int:
    """How many threads or processes to use: one for each core that there is, and no more than eight."""
    return min(8, os.cpu_count() or 1)


def say(line: str) -> None:
    """A line on stderr that no bar runs into."""
    from tqdm import tqdm

    tqdm.write(f"maxmatch: {line}", file=sys.stderr)


@contextmanager
def problems_on_stderr() -> Iterator[Callable[["Problem"], None]]:
    """A report that says the first problems and counts the others."""
    count = 0

    def report(problem: "Problem") -> None:
        nonlocal count
        count += 1
        if count <= _SHOWN and not problem.fatal:  # what is fatal is raised as well
            say(str(problem))

    yield report
    if count > _SHOWN:
        say(f"… and {count - _SHOWN} more problems. `maxmatch data check` lists them all.")
