"""Clients that do not finish what they begin are let go, and keep nobody else waiting."""

import asyncio
import logging
import socket
import time
import urllib.request

import pytest
from served import Running, app_of

from maxmatch.server import connections
from maxmatch.server.connections import Connection, JoinedWrites, Seldom, most_connections

HEAD = b"POST /api/v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = b'{"parts": [{"text": "a dog"}], "k": 3}'
LENGTH = b"Content-Length: %d\r\n\r\n" % len(BODY)


@pytest.fixture(scope="module")
def running(gallery):
    server = Running(app_of(gallery))
    yield server
    server.stop()


@pytest.fixture
def events(monkeypatch):
    """What is logged of connections."""
    seen = []
    monkeypatch.setattr(logging.getLogger("maxmatch.connections"), "filters", [lambda record: seen.append(record)])
    return seen


def connect(running, data, small=False):
    client = socket.socket()
    if small:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", running.port))
    client.settimeout(30)
    client.sendall(data)
    return client


def rest(client):
    """What comes until the server closes the connection."""
    with client:
        parts = []
        try:
            while part := client.recv(65536):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)


def answered(running):
    with urllib.request.urlopen(f"{running.address}/api/v1/search?q=a+dog&k=3", timeout=30) as answer:
        return answer.status == 200


@pytest.mark.parametrize("sent", [b"", b"GE", HEAD, HEAD + b"X-Slow: a"])
def test_half_headers_are_not_waited_for(running, events, monkeypatch, sent):
    monkeypatch.setattr(Connection, "header_seconds", 0.2)
    clients = [connect(running, sent) for _ in range(3)]
    assert answered(running)
    for client in clients:
        assert rest(client).startswith(b"HTTP/1.1 408 ")
    assert len(events) == 3
    assert not any(record.exc_info for record in events)


@pytest.mark.parametrize("sent", [LENGTH, LENGTH + BODY[:9], b"Transfer-Encoding: chunked\r\n\r\n4\r\n{"])
def test_half_bodies_are_not_waited_for(running, events, monkeypatch, sent):
    monkeypatch.setattr(Connection, "body_seconds", 0.2)
    client = connect(running, HEAD + sent)
    assert answered(running)
    assert rest(client).startswith(b"HTTP/1.1 408 ")
    assert len(events) == 1


def test_malformed_forms_are_refused_and_not_logged(running, caplog):
    """Anyone could fill the log with them."""
    form = b'--x\r\nContent-Disposition\r: form-data; name="file"\r\n\r\n--x--\r\n'
    head = HEAD.replace(b"/search", b"/search/image").replace(b"application/json", b"multipart/form-data; boundary=x")
    client = connect(running, head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(form) + form)
    assert rest(client).startswith(b"HTTP/1.1 400 ")
    assert caplog.records == []


def test_what_follows_a_refusal_is_not_waited_for(running, events, monkeypatch):
    """The refusal comes before the body, which is then sent slowly."""
    monkeypatch.setattr(Connection, "body_seconds", 0.2)
    foreign = b"Origin: http://evil.example\r\n"
    client = connect(running, HEAD + foreign + b"Content-Length: 60000\r\n\r\n" + bytes(9))
    assert rest(client).startswith(b"HTTP/1.1 403 ")


def test_a_body_that_keeps_coming_gets_more_time(running, monkeypatch):
    monkeypatch.setattr(Connection, "body_seconds", 0.0)
    monkeypatch.setattr(Connection, "body_rate", 0.01)  # a byte gives 100 seconds
    client = connect(running, HEAD + LENGTH)
    client.sendall(BODY[:9])
    assert answered(running)
    client.sendall(BODY[9:])
    with client:
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_answers_that_are_not_read_are_given_up(running, events, monkeypatch):
    monkeypatch.setattr(Connection, "reading_seconds", 0.2)
    asked = b"GET /static/style.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    client = connect(running, b"", small=True)
    client.settimeout(0.2)
    with client:
        for _ in range(1000):  # until even the kernel's buffers are full
            try:
                client.sendall(asked * 100)
            except (TimeoutError, ConnectionError):
                break
        client.settimeout(30)
        wait_for(lambda: events)
    assert answered(running)


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_many_idle_connections_leave_room_for_a_request(gallery, events, monkeypatch):
    monkeypatch.setattr(connections, "_MOST", 8)
    running = Running(app_of(gallery))
    try:
        idle = [connect(running, HEAD) for _ in range(40)]
        assert answered(running)
        assert len(running.server.server_state.connections) <= 8
        assert len(events) >= 32
        for client in idle:
            client.close()
    finally:
        running.stop()


def test_a_connection_stays_open_for_a_second_request(running):
    client = connect(running, HEAD + LENGTH + BODY)
    with client:
        for _ in range(3):
            answer = b""
            while b'"took_ms"' not in answer:
                answer += client.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 ")
            client.sendall(HEAD + LENGTH + BODY)


@pytest.mark.parametrize(("files", "most"), [(256, 85), (1024, 341), (20_000, 512), (-1, 512), (12, 8)])
def test_connections_are_fewer_than_the_files_that_may_be_open(monkeypatch, files, most):
    resource = pytest.importorskip("resource", reason="only POSIX systems limit the files of a process")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    assert most_connections() == most


def test_an_event_is_logged_once_in_a_while_and_without_a_traceback(caplog):
    logger = logging.getLogger("tests.seldom")
    seldom = Seldom()
    logger.addFilter(seldom)
    for _ in range(500):
        try:
            raise OSError(24, "Too many open files")
        except OSError:
            logger.exception("accept failed\nsocket: <%s>", "x")
    logger.warning("another event")
    assert [record.getMessage() for record in caplog.records] == [
        "accept failed ([Errno 24] Too many open files)",
        "another event",
    ]
    seldom._last.clear()
    logger.warning("another event")
    logger.error("accept failed\nsocket: <%s>", "x")
    assert "499 more" in caplog.messages[-1]
    assert "Traceback" not in caplog.text


class Sent(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self):
        super().__init__()
        self.done = []

    def write(self, data):
        self.done.append(bytes(data))

    def close(self):
        self.done.append("closed")

    def abort(self):
        self.done.append("aborted")

    def get_write_buffer_size(self):
        return 7

    def is_closing(self):
        return False


def test_what_is_written_in_one_go_is_sent_as_one_piece_and_nothing_is_kept_back():
    async def run():
        sent = Sent()
        joined = JoinedWrites(sent, asyncio.get_running_loop())
        joined.write(b"head ")
        joined.write(b"")
        joined.write(b"body")
        assert (sent.done, joined.get_write_buffer_size()) == ([], 16)
        await asyncio.sleep(0)
        assert (sent.done, joined.get_write_buffer_size()) == ([b"head body"], 7)
        joined.write(b"a")
        joined.write(b"b" * connections._HELD)  # more than is held
        assert sent.done[1:] == [b"a" + b"b" * connections._HELD]
        for end in (joined.close, joined.abort):
            joined.write(b"last")
            end()
        await asyncio.sleep(0)
        assert sent.done[2:] == [b"last", "closed", b"last", "aborted"]
        assert joined.is_closing() is False

    asyncio.run(run())
