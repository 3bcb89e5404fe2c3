"""What is said on stderr while work goes on."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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

    tqdm.write("\n".join(map(plain, f"maxmatch: {line}".split("\n"))), file=sys.stderr)


def plain(text: str) -> str:
    """A text that commands a terminal to nothing: a file's name may hold any character, escape sequences too."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
