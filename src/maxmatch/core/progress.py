"""Long work: the callback that reports progress, the bar that shows it, and items that had to be skipped."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

Advance = Callable[[int], object]
"""Called with the number of items done since the last call."""

Bar = Callable[[str, int], AbstractContextManager[Advance]]
"""Makes a progress bar from what is being done and how much of it there is: `bar` or `no_bar`."""


def quiet(count: int) -> None:
    """The `Advance` that reports nothing."""


@contextmanager
def no_bar(what: str, total: int) -> Iterator[Advance]:
    """The `Bar` that shows nothing."""
    yield quiet


@contextmanager
def bar(what: str, total: int, show: bool | None = None) -> Iterator[Advance]:
    """A progress bar on stderr. show: None shows it in a terminal only, and removes it at the end."""
    from tqdm import tqdm

    unit = "B" if what == "bytes" else ""
    disable = None if show is None else not show
    with tqdm(total=total, desc=what, unit=unit, unit_scale=bool(unit), disable=disable, leave=bool(show)) as shown:
        yield shown.update


@dataclass(frozen=True)
class Skipped:
    """An item that was left out because it could not be read.

    id: its name. reason: why, as whole sentences. index: its position in the input, -1 where it has none.
    """

    id: str
    reason: str
    index: int = -1

    def __str__(self) -> str:
        return f"{self.id}: {self.reason}"
