"""How long work says how far it is."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]
"""From what is being done and how much of it there is to what to call with each piece that is done."""


@contextmanager
def no_progress(what: str, total: int) -> Iterator[Callable[[int], object]]:
    """No sign of it."""
    yield lambda count: None
