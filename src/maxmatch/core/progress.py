"""Long work: a function of many items computed ahead, progress and its bar, and items that had to be skipped."""

import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

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


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, *, ahead: int = 4, processes: bool = False
) -> Generator[Result, None, None]:
    """The function of each item, in order, computed by threads or processes while the caller uses the results.

    ahead: how many items per worker are begun before the first of their results is asked for. processes: they are
    started afresh, so that a script that asks for them needs `if __name__ == "__main__":`; one is as good as none.
    """
    if processes and workers < 2:
        yield from map(function, items)
        return
    with _pool(workers, processes) as pool:
        begun: deque[Future[Result]] = deque()
        try:
            for item in items:
                begun.append(pool.submit(function, item))
                if len(begun) > ahead * workers:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _pool(workers: int, processes: bool) -> Executor:
    if not processes:
        return ThreadPoolExecutor(workers)
    # Ctrl-C is for the parent alone: a worker would only add its own traceback.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    return ProcessPoolExecutor(workers, get_context("spawn"), initializer=signal.signal, initargs=ignore)
