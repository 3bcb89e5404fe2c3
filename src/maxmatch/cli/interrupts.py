"""Ctrl-C: known of even where a library makes an error of its own of it, and said what became of the work."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from maxmatch.cli.progress import say


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """What says whether Ctrl-C was pressed meanwhile. Who handles it stays as it is: Python writes the number of each
    signal to a socket besides.
    """
    ours, pythons = socket.socketpair()
    with ours, pythons:
        ours.setblocking(False)
        pythons.setblocking(False)
        try:
            before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
        except ValueError:  # not in the main thread, which alone hears of signals
            yield lambda: False
            return

        def was_pressed() -> bool:
            try:
                return signal.SIGINT in ours.recv(4096)
            except BlockingIOError:
                return False

        try:
            yield was_pressed
        finally:
            signal.set_wakeup_fd(before)


@contextmanager
def going_on(what: object) -> Iterator[None]:
    """Work that the same command takes up again: whoever interrupts it is told so."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"{what}: interrupted; what is done is kept. Go on with the same command.")
        raise
