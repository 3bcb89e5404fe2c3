"""Ctrl-C and SIGTERM: the step at work is finished and the state saved before the program ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopFlag:
    """Whether someone asked to stop."""

    asked: bool = False


@contextmanager
def stopping() -> Iterator[StopFlag]:
    """Note the first signal; the second one ends the program at once, as without us."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield flag
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        flag.asked = True
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
