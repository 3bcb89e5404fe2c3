"""Attack a server with clients that never finish their requests, and measure what a good client notices.

    python -m benchmarks.slow_clients [--seconds 75] [--headers 300] [--uploads 50] [--descriptors 256] [--token]
                                     [--reopen 1]

`maxmatch serve` runs in a process of its own, with few file descriptors. Slow clients hold as many connections as they
can: some never finish their headers, others their uploads. Each sends a byte every two seconds, and opens a new
connection --reopen seconds after the server closed the old one. Meanwhile a good client, in a process of its own,
searches, each time over a new connection.

Printed as JSON: how many connections were held at most and how long, the server's memory, the size of its log, and the
good client's times and failures. Needs 1 GB of memory and the seconds given.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.serving import make_index, memory
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.names import SHIPPED

TOKEN = "0123456789abcdef0123"
PATIENCE = 10.0  # seconds after which the good client gives up


@dataclass
class Seen:
    """What the clients noticed."""

    open: int = 0
    most_open: int = 0
    closed: int = 0
    refused: int = 0
    longest: float = 0.0
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


async def slow(port: int, start: bytes, more: bytes, end: float, reopen: float, seen: Seen) -> None:
    """Hold a connection with half a request until the end; open another whenever it is closed."""
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 5)
        except OSError:  # TimeoutError is one
            seen.refused += 1
            await asyncio.sleep(min(0.5, reopen))
            continue
        opened = time.monotonic()
        seen.open += 1
        seen.most_open = max(seen.most_open, seen.open)
        gone = asyncio.create_task(_until_closed(reader))
        try:
            writer.write(start)
            while time.monotonic() < end and not gone.done():
                await asyncio.wait([gone], timeout=2)
                if not gone.done():
                    writer.write(more)
        except OSError:
            pass
        seen.longest = max(seen.longest, time.monotonic() - opened)
        seen.closed += gone.done()
        seen.open -= gone.done()  # what is still open at the end counts as held
        gone.cancel()
        if time.monotonic() < end:
            writer.close()
        await asyncio.sleep(reopen)


async def _until_closed(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(4096):
            pass
    except OSError:
        pass


def good(port: int, headers: str, seconds: float, answers: Any) -> None:
    """Search every 200 ms over a new connection, with different words; the times and failures."""
    seen = Seen()
    asyncio.run(_good(port, headers, time.monotonic() + seconds, seen))
    answers.put((seen.seconds, seen.failed))


async def _good(port: int, headers: str, end: float, seen: Seen) -> None:
    number = 0
    while time.monotonic() < end:
        number += 1
        started = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                await _search(port, headers, f"a dog {number}")
            seen.seconds.append(time.monotonic() - started)
        except (OSError, asyncio.IncompleteReadError) as error:
            seen.failed.append(repr(error))
            seen.seconds.append(PATIENCE)
        await asyncio.sleep(0.2)


async def _search(port: int, headers: str, text: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        path = f"/api/v1/search?q={text.replace(' ', '+')}&k=20"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}Connection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise OSError(head.split(b"\r\n")[0].decode())
        await reader.read()
    finally:
        writer.close()


async def attack(port: int, given: argparse.Namespace) -> Seen:
    """All clients at once."""
    host = f"POST /api/v1/search/image HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    half_header = f"{host}X-Slow: ".encode()
    form = "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 10000000\r\n\r\n"
    part = '--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
    half_upload = f"{host}{form}{part}".encode() + bytes(200_000)
    end, seen = time.monotonic() + given.seconds, Seen()
    await asyncio.gather(
        *(slow(port, half_header, b"a", end, given.reopen, seen) for _ in range(given.headers)),
        *(slow(port, half_upload, b"a", end, given.reopen, seen) for _ in range(given.uploads)),
    )
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--headers", type=int, default=300, help="clients with half a header")
    parser.add_argument("--uploads", type=int, default=50, help="clients with half an upload")
    parser.add_argument("--descriptors", type=int, default=256, help="file descriptors that the server may open")
    parser.add_argument("--reopen", type=float, default=1.0, help="seconds until a closed connection is opened again")
    parser.add_argument("--token", action="store_true", help="the server needs a token, which only the good client has")
    given = parser.parse_args()
    start = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_index(folder / "index", SetEncoder.from_pretrained(SHIPPED), 1000, "lance")
        command = [sys.executable, "-m", "maxmatch.cli.main", "serve", str(folder / "index"), "--port", "0"]
        command += ["--token", TOKEN] if given.token else []
        limited = ["sh", "-c", f'ulimit -n {given.descriptors}; exec "$@"', "serve"]
        with open(folder / "log", "wb") as log:
            server = subprocess.Popen([*limited, *command], stdout=subprocess.PIPE, stderr=log)
        try:
            assert server.stdout is not None
            port = urlsplit(server.stdout.readline().decode().strip()).port or 0
            before = memory(server.pid)
            headers = f"Authorization: Bearer {TOKEN}\r\n" if given.token else ""
            answers: Any = start.Queue()
            client = start.Process(target=good, args=(port, headers, given.seconds, answers))
            client.start()
            seen = asyncio.run(attack(port, given))
            seen.seconds, seen.failed = answers.get(timeout=60)
            client.join()
            print(json.dumps(report(seen, before, server.pid, folder / "log"), indent=2))
        finally:
            server.kill()
            server.wait()


def report(seen: Seen, before: float, server: int, log: Path) -> dict[str, Any]:
    """The numbers."""
    lines = log.read_bytes().splitlines()
    return {
        "held_at_most": seen.most_open,
        "held_at_the_end": seen.open,
        "closed_by_the_server": seen.closed,
        "longest_held_s": round(seen.longest, 1),
        "connects_failed": seen.refused,
        "server_descriptors": len(os.listdir(f"/proc/{server}/fd")),
        "memory_mb": [round(before), round(memory(server))],
        "log_bytes": log.stat().st_size,
        "log_lines": len(lines),
        "log_last": [line.decode(errors="replace")[:200] for line in lines[-3:]],
        "good_requests": len(seen.seconds),
        "good_failed": len(seen.failed),
        "good_failures": sorted(set(seen.failed)),
        "good_p50_ms": round(1000 * float(np.percentile(seen.seconds, 50))),
        "good_p95_ms": round(1000 * float(np.percentile(seen.seconds, 95))),
    }


if __name__ == "__main__":
    main()
