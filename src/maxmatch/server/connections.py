"""Connections: how long a client may keep the server waiting, how many connections there are, and what is logged of it.

uvicorn itself waits for the rest of a request for ever, and takes connections until no file descriptor is left.
"""

import asyncio
import logging
import time
from collections import Counter
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

_log = logging.getLogger("maxmatch.connections")
_MOST = 512
_LOGGED_EVERY = 60.0  # seconds
_HELD = 64 * 2**10  # bytes, at most, of what is written in one go
_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class JoinedWrites:
    """A transport that sends what is written in one go as one piece: the head of a response with its body, so that the
    client is woken once.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send the data, with what follows before the event loop turns to something else."""
        if data and not self._held:
            self._loop.call_soon(self.flush)
        self._held += data
        if len(self._held) >= _HELD:
            self.flush()

    def flush(self) -> None:
        """Send what is held."""
        if self._held:
            data, self._held = self._held, bytearray()
            self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        """How many bytes were not sent yet."""
        return len(self._held) + self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Close the connection when all is sent."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection now."""
        self.flush()
        self._transport.abort()


class Connection(H11Protocol):
    """A connection of uvicorn's that is closed when its client takes too long.

    When there are too many connections, one is closed: of the address that keeps the server waiting with most of them,
    the one that does so longest. A client that sends its request at once is answered, however many others do not.
    """

    header_seconds = 10.0
    body_seconds = 20.0
    body_rate = 32 * 2**10
    """Bytes: for each so many received, the body gets a second more."""
    reading_seconds = 30.0
    """For 64 kB of the response."""

    _phase: tuple[str, object] | None = None
    """What the client is waited for, and in which request; None while the server works on the answer."""
    _since = 0.0
    _received = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new client: the server waits for its request."""
        super().connection_made(transport)
        self._joined = JoinedWrites(transport, self.loop)
        self.transport = self._joined  # type: ignore[assignment]
        self._look()
        limit = self.limit_concurrency
        while limit is not None and len(self.connections) >= limit:
            waiting = [one for one in self.connections if isinstance(one, Connection) and one._phase is not None]
            of_address = Counter(one._address for one in waiting)
            slowest = min(waiting, key=lambda one: (-of_address[one._address], one._since), default=self)
            _log.warning("%d connections at once: closed the one that kept the server waiting longest", limit)
            slowest._drop()

    def data_received(self, data: bytes) -> None:
        """More of a request."""
        super().data_received(data)
        self._look(len(data))

    def on_response_complete(self) -> None:
        """The answer is written, perhaps not yet sent."""
        self._joined.flush()
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        """The client has read most of it."""
        super().resume_writing()
        self._phase = None
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._stop_timer()
        super().connection_lost(exc)

    def _look(self, received: int = 0) -> None:
        """Note what the client is waited for now, and since when."""
        phase = self._waiting_for()
        if phase != self._phase:
            self._phase, self._since, self._received = phase, time.monotonic(), 0
            self._stop_timer()
        self._received += received
        if phase is not None and self._timer is None:
            self._timer = self.loop.call_later(self._seconds_left(), self._check)

    def _waiting_for(self) -> tuple[str, object] | None:
        if self.transport.get_write_buffer_size():
            return ("reading the answer", self.cycle)
        if self.conn.their_state is h11.SEND_BODY:
            return ("the body", self.cycle)
        if self.conn.their_state is h11.IDLE:
            return ("the headers", self.cycle)
        return None

    def _seconds_left(self) -> float:
        assert self._phase is not None
        limits = {
            "the headers": self.header_seconds,
            "the body": self.body_seconds + self._received / self.body_rate,
            "reading the answer": self.reading_seconds,
        }
        return self._since + limits[self._phase[0]] - time.monotonic()

    def _check(self) -> None:
        """Close the connection if its client is still waited for and has no time left."""
        self._timer = None
        self._look()
        if self._phase is None or self._seconds_left() > 0:
            return
        what = self._phase[0]
        _log.warning("%s: closed, %s took too long", self._address, what)
        if what != "reading the answer" and (self.cycle is None or not self.cycle.response_started):
            self.transport.write(_TIMEOUT)
        self._drop()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else "a client"

    def _drop(self) -> None:
        self._phase = None
        self._stop_timer()
        self.connections.discard(self)  # now, not when the event loop comes to it: others are counted before
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Seldom(logging.Filter):
    """The same event is logged once a minute, with the number of those in between; OSErrors without a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log this one."""
        event = str(record.msg).split("\n", 1)[0]
        now = time.monotonic()
        if now - self._last.get(event, -_LOGGED_EVERY) < _LOGGED_EVERY:
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return False
        self._last[event] = now
        text = record.getMessage()
        if record.exc_info and isinstance(record.exc_info[1], OSError):
            text = f"{text.splitlines()[0]} ({record.exc_info[1]})"
            record.exc_info = None
        more = self._left_out.pop(event, 0)
        record.msg, record.args = f"{text} (and {more:,} more since it was last logged)" if more else text, ()
        return True


def server_config(app: ASGIApp, host: str, **more: Any) -> uvicorn.Config:
    """How uvicorn runs the application: with time limits, and fewer connections than the process may open files."""
    for name in ("uvicorn.error", "asyncio", _log.name):
        logger = logging.getLogger(name)
        if not any(isinstance(one, Seldom) for one in logger.filters):
            logger.addFilter(Seldom())
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a line for each malformed form: a 400 is enough
    most = most_connections()
    return uvicorn.Config(
        app,
        host=host,
        http=Connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=most,
        backlog=most // 4,  # so many are accepted before one can be closed
        h11_max_incomplete_event_size=64 * 2**10,  # the longest q and folder, written as %E2%82%AC…
        **more,
    )


def most_connections() -> int:
    """How many connections there may be: a third of the files that this process may open, at most 512."""
    try:
        import resource
    except ImportError:  # Windows
        return _MOST
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if files == resource.RLIM_INFINITY else max(8, min(_MOST, files // 3))
