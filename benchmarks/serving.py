"""Measure how long users wait: with many concurrent clients of a server, and for a folder of photos.

    python -m benchmarks.serving [--model FOLDER] [--seconds 60] [--items 10000] [--clients 32] [--photos 1000]

Under load: two servers in separate processes, one that batches queries and one that answers them one by one, get the
same queries in turns, so that both see the same noise. No two queries are the same, so no cache answers them.
First both must give the same answers. Then what one user sees (`benchmarks.photo_search`): the first and the second
`maxmatch search` in a folder of photos, and a server of such a folder. `--clients 1 32 256` asks the first server only:

    python -m benchmarks.serving --items 1000000 --work FOLDER --clients 1 32 256 --seconds 24 --photos 0

`--index-device cuda --device cuda` is a server with a GPU.

The clients share the cores with the server; client_cpu_ms is what they take per query, and cores_of_others how many
cores other programs took meanwhile. Needs two quiet cores, 3 GB of memory, 300 MB of disk and about five minutes; a
million items need 13 GB of disk and take some more minutes. Without --model, the model that ships is used. cpu_ms is
the server's CPU time per query, which other load on the machine hardly changes, and per_core how many queries a second
of it answers.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import platform
import queue
import random
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.photo_search import photo_search
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.names import SHIPPED
from maxmatch.search.set_index import SetIndex

WORDS = """a the two three red blue green yellow white small large dog cat bird man woman child people beach snow street
house tree car bus boat running sitting standing holding playing on in under behind beside near with without"""
ROUNDS = 6
TEXTS = 20_000
NOISE = 0.1  # of the length of a vector
AT_ONCE = 10_000  # items


@dataclass
class Tally:
    """What the clients of one server measured."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0
    spent: float = 0.0
    cpu: float = 0.0
    client_cpu: float = 0.0
    busy: float = 0.0
    """CPU time of all programs."""
    memory: list[float] = field(default_factory=list)


def make_index(folder: Path, model: SetEncoder, items: int, engine: str) -> None:
    """Sets like those of images that two texts describe, with a little noise."""
    generator = torch.Generator().manual_seed(0)
    size = model.set_sizes["image"]
    index = SetIndex.create(folder, dim=model.dim, set_size=size, model=model, engine=engine)
    spoken = model.encode_texts(itertools.islice(queries(-1), min(items, TEXTS)), show_progress=False)
    for start in range(0, items, AT_ONCE):
        places = torch.arange(start, min(start + AT_ONCE, items))
        others = torch.randint(len(spoken), places.shape, generator=generator)
        noise = torch.randn(len(places), size, model.dim, generator=generator) / model.dim**0.5
        sets = torch.nn.functional.normalize(spoken[places % len(spoken)] + spoken[others] + NOISE * noise, dim=-1)
        ids = [f"{place:06d}.jpg" for place in places.tolist()]
        facts = [
            {"name": name, "folder": f"folder {n % 20}", "taken": f"20{n % 24:02d}-01-01"} for n, name in enumerate(ids)
        ]
        index.add(ids, sets, facts, optimise=False)
    index.compact()
    index.close()


def serve(
    folder: Path,
    model: str,
    batch: int,
    device: str | None,
    index_device: str | None,
    port: "multiprocessing.queues.Queue[int]",
) -> None:
    """Run one server until it is told to stop."""
    import uvicorn

    from maxmatch.server.app import create_app
    from maxmatch.server.connections import server_config

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    app = create_app(SetIndex.open(folder, index_device), SetEncoder.from_pretrained(model, device), Path, batch=batch)
    server = uvicorn.Server(server_config(app, "127.0.0.1", port=0))

    async def announced() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.05)
        port.put(server.servers[0].sockets[0].getsockname()[1])
        await serving

    asyncio.run(announced())


def port_of(server: multiprocessing.process.BaseProcess, port: "multiprocessing.queues.Queue[int]") -> int:
    """Where a server listens, once it does. One that has failed is not waited for."""
    for _ in range(300):
        with suppress(queue.Empty):
            return port.get(timeout=1)
        if not server.is_alive():
            break
    raise SystemExit("A server has not started: see above.")


def queries(seed: int) -> Iterator[str]:
    """An endless stream of texts, no two the same."""
    generator, words = random.Random(seed), WORDS.split()
    number = 0
    while True:
        number += 1
        yield " ".join(generator.choices(words, k=generator.randrange(3, 12))) + f" {seed} {number}"


class Client:
    """One connection: sends a query, waits for its answer, sends the next. Plain sockets: a library, or reading
    every answer's JSON, would take as much of the cores as the server.
    """

    def __init__(self, port: int, texts: Iterator[str]) -> None:
        self.texts = texts
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end = f" HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
        self.began = 0.0
        self.answer = bytearray()
        self.length = 0

    def send(self) -> None:
        """Ask the next query."""
        self.answer.clear()
        self.length = 0
        self.began = time.perf_counter()
        self.socket.sendall(f"GET /api/v1/search?q={next(self.texts).replace(' ', '+')}&k=20&all=1{self.end}".encode())

    def is_answered(self) -> bool:
        """Read what is there; whether the answer is whole."""
        data = self.socket.recv(2**18)
        assert data, "the server has closed a connection"
        self.answer += data
        if not self.length and (head := self.answer.find(b"\r\n\r\n")) > 0:
            field = self.answer.index(b"content-length: ") + len(b"content-length: ")
            self.length = head + 4 + int(self.answer[field : self.answer.index(b"\r", field)])
        return bool(self.length) and len(self.answer) == self.length

    def hits(self) -> list[Any]:
        """What was found."""
        status, body = self.answer.split(b" ", 2)[1], self.answer.partition(b"\r\n\r\n")[2]
        return list(json.loads(body)["hits"]) if status == b"200" else []


def load(port: int, clients: int, seconds: float, seed: int, tally: Tally) -> None:
    """Concurrent clients in one thread. The first answer to each, and every hundredth, is read and must be whole."""
    waiting = selectors.DefaultSelector()
    everyone = [Client(port, queries(1000 * seed + number)) for number in range(clients)]
    for client in everyone:
        waiting.register(client.socket, selectors.EVENT_READ, client)
    started = time.perf_counter()
    busy = len(everyone)
    for client in everyone:
        client.send()
    count = 0
    while busy:
        for key, _ in waiting.select():
            client = key.data
            if not client.is_answered():
                continue
            now = time.perf_counter()
            tally.seconds.append(now - client.began)
            count += 1
            if count <= clients or count % 100 == 0:
                tally.errors += len(client.hits()) != 20
            else:
                tally.errors += not client.answer.startswith(b"HTTP/1.1 200")
            if now - started < seconds:
                client.send()
            else:
                busy -= 1
    tally.spent += time.perf_counter() - started
    for client in everyone:
        client.socket.close()
    waiting.close()


def memory(process: int) -> float:
    """Resident memory of a process in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(process: int) -> float:
    """CPU time of a process, all threads together."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """CPU time of all programs on this machine, since it was started."""
    times = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = times[3:5]
    return (sum(times) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def same_answers(ports: list[int]) -> None:
    """Check that both servers return the same hits, for many queries at once."""
    expected: list[set[str]] = []
    texts = list(itertools.islice(queries(0), 20))
    for port in ports:
        asked = [Client(port, iter([text])) for text in texts]
        for client in asked:
            client.send()
        found = []
        for client in asked:
            while not client.is_answered():
                pass
            found.append({hit["item"]["key"] for hit in client.hits()})
            client.socket.close()
        expected = expected or found
        same = sum(len(one & other) for one, other in zip(found, expected, strict=True)) / (20 * len(texts))
        assert same >= 0.95, f"of what one server finds the other finds {same:.0%}"


def report(tallies: dict[str, Tally]) -> dict[str, Any]:
    """The numbers of one or both servers, and their ratio."""
    table: dict[str, Any] = {}
    for name, tally in tallies.items():
        p50, p95, p99 = (1000 * np.percentile(tally.seconds, q) for q in (50, 95, 99))
        table[name] = {
            "queries_per_s": round(len(tally.seconds) / tally.spent, 1),
            "p50_ms": round(p50),
            "p95_ms": round(p95),
            "p99_ms": round(p99),
            "errors": tally.errors,
            "queries": len(tally.seconds),
            "cpu_ms": round(1000 * tally.cpu / len(tally.seconds), 1),
            "per_core": round(len(tally.seconds) / tally.cpu),
            "client_cpu_ms": round(1000 * tally.client_cpu / len(tally.seconds), 2),
            "cores_of_others": round(max(0.0, tally.busy - tally.cpu - tally.client_cpu) / tally.spent, 2),
            "memory_mb": [round(value) for value in tally.memory],
        }
    if "unbatched" not in table:
        return table
    table["ratio"] = round(table["batched"]["queries_per_s"] / table["unbatched"]["queries_per_s"], 2)
    table["cpu_ratio"] = round(table["unbatched"]["cpu_ms"] / table["batched"]["cpu_ms"], 2)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SHIPPED, help="the folder of a checkpoint")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[32])
    parser.add_argument("--seconds", type=float, default=60.0, help="per server")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--engine", default="lance")
    parser.add_argument("--device", help="where queries are encoded")
    parser.add_argument("--index-device", help="keep all items there, such as cuda, and score all of them")
    parser.add_argument("--work", type=Path, help="keep the index in this folder, and use the one that is there")
    parser.add_argument("--photos", type=int, default=1000, help="in the folder to search; 0 skips this part")
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    start = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        index = (given.work or Path(folder)) / f"index-{given.items}"
        if not index.with_suffix(".made").exists():
            make_index(index, SetEncoder.from_pretrained(given.model), given.items, given.engine)
            index.with_suffix(".made").touch()
        servers, ports = [], []
        several = len(given.clients) > 1
        try:
            for batch in (given.batch,) if several else (given.batch, 1):
                port: Any = start.Queue()
                server = start.Process(
                    target=serve, args=(index, given.model, batch, given.device, given.index_device, port)
                )
                server.start()
                servers.append(server)
                ports.append(port_of(server, port))
            same_answers(ports)
            for clients in given.clients:
                tallies = {"batched": Tally()} if several else {"batched": Tally(), "unbatched": Tally()}
                for turn in range(ROUNDS):
                    for tally, server, one in zip(tallies.values(), servers, ports, strict=True):
                        assert server.pid is not None
                        before, own, all_of_it = cpu_seconds(server.pid), time.process_time(), busy_seconds()
                        load(one, clients, given.seconds / ROUNDS, 1000 * clients + turn, tally)
                        tally.cpu += cpu_seconds(server.pid) - before
                        tally.client_cpu += time.process_time() - own
                        tally.busy += busy_seconds() - all_of_it
                        tally.memory.append(memory(server.pid))
                print(json.dumps({"items": given.items, "clients": clients, **report(tallies)}, indent=2))
        finally:
            for server in servers:
                server.terminate()
                server.join(30)
                server.kill()  # one that does not end would keep this process from ending
        if given.photos:
            print(json.dumps(photo_search(Path(folder) / "photos", given.model, given.photos), indent=2))


if __name__ == "__main__":
    main()
