"""How many queries a server answers, alone and together: 32 clients, 10,000 indexed items, batched against unbatched.

    python -m benchmarks.serving --model FOLDER [--items 10000] [--clients 32] [--seconds 60]

Two servers in processes of their own, one that answers queries together and one that answers each alone, get the same
queries in turns, so that both meet the same noise. No two queries are the same: nothing is answered from memory. First
both must give the same answers.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

from maxmatch.model import SetEncoder
from maxmatch.search.index import SetIndex

WORDS = """a the two three red blue green yellow white small large dog cat bird man woman child people beach snow street
house tree car bus boat running sitting standing holding playing on in under behind beside near with without"""
ROUNDS = 6


@dataclass
class Tally:
    """What the clients of one server saw."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0
    spent: float = 0.0
    memory: list[float] = field(default_factory=list)


def make_index(folder: Path, model: SetEncoder, items: int, engine: str) -> None:
    """Random sets around a few hundred centres, as pictures of a few hundred things would be."""
    generator = torch.Generator().manual_seed(0)
    size = model.set_sizes["image"]
    centres = torch.randn(300, size, model.dim, generator=generator)
    index = SetIndex.create(folder, dim=model.dim, set_size=size, model=model, engine=engine)
    for start in range(0, items, 2000):
        count = min(2000, items - start)
        chosen = centres[torch.randint(300, (count,), generator=generator)]
        sets = chosen + 0.7 * torch.randn(count, size, model.dim, generator=generator)
        ids = [f"{start + place:06d}.jpg" for place in range(count)]
        facts = [
            {"name": name, "folder": f"folder {n % 20}", "taken": f"20{n % 24:02d}-01-01"} for n, name in enumerate(ids)
        ]
        index.add(ids, torch.nn.functional.normalize(sets, dim=-1), facts, optimise=False)
    index.compact()
    index.close()


def serve(folder: Path, model: str, batch: int, port: "multiprocessing.queues.Queue[int]") -> None:
    """One server, until it is told to stop."""
    import uvicorn

    from maxmatch.server.app import create_app

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    app = create_app(SetIndex.open(folder), SetEncoder.from_pretrained(model), Path, batch=batch)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False))

    async def announced() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.05)
        port.put(server.servers[0].sockets[0].getsockname()[1])
        await serving

    asyncio.run(announced())


def queries(seed: int) -> Any:
    """Texts without end, no two the same."""
    generator, words = random.Random(seed), WORDS.split()
    number = 0
    while True:
        number += 1
        yield " ".join(generator.choices(words, k=generator.randrange(3, 12))) + f" {seed} {number}"


async def load(address: str, clients: int, seconds: float, seed: int, tally: Tally) -> None:
    """So many clients that ask one query after the other."""
    end = time.perf_counter() + seconds

    async def client(texts: Any) -> None:
        async with httpx.AsyncClient(base_url=address, timeout=60) as http:
            while time.perf_counter() < end:
                started = time.perf_counter()
                try:
                    answer = await http.get("/api/v1/search", params={"q": next(texts), "k": 20})
                    tally.errors += answer.status_code != 200 or len(answer.json()["hits"]) != 20
                except httpx.HTTPError:
                    tally.errors += 1
                tally.seconds.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(client(queries(1000 * seed + number)) for number in range(clients)))
    tally.spent += time.perf_counter() - started


def memory(process: int) -> float:
    """Resident memory of a process in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def same_answers(addresses: list[str]) -> None:
    """Both servers find the same."""
    for text in ("a dog", "two people on a beach", "a red bus"):
        found = []
        for address in addresses:
            hits = httpx.get(f"{address}/api/v1/search", params={"q": text, "k": 20}, timeout=60).json()["hits"]
            found.append([(hit["item"]["id"], round(hit["score"], 4)) for hit in hits])
        assert found[0] == found[1], f"the servers answer {text!r} differently"


def report(tallies: dict[str, Tally]) -> dict[str, Any]:
    """The numbers of both, and their ratio."""
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
            "memory_mb_first": round(tally.memory[0]),
            "memory_mb_last": round(tally.memory[-1]),
        }
    table["ratio"] = round(table["batched"]["queries_per_s"] / table["unbatched"]["queries_per_s"], 2)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a checkpoint's folder")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each of the two servers")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--engine", default="lance")
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    start = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        make_index(index, SetEncoder.from_pretrained(given.model), given.items, given.engine)
        servers, addresses = [], []
        for batch in (given.batch, 1):
            port: Any = start.Queue()
            server = start.Process(target=serve, args=(index, given.model, batch, port))
            server.start()
            servers.append(server)
            addresses.append(f"http://127.0.0.1:{port.get(timeout=300)}")
        try:
            same_answers(addresses)
            tallies = {"batched": Tally(), "unbatched": Tally()}
            for turn in range(ROUNDS):
                for tally, server, address in zip(tallies.values(), servers, addresses, strict=True):
                    asyncio.run(load(address, given.clients, given.seconds / ROUNDS, turn, tally))
                    assert server.pid is not None
                    tally.memory.append(memory(server.pid))
            print(json.dumps({"items": given.items, "clients": given.clients, **report(tallies)}, indent=2))
        finally:
            for server in servers:
                server.terminate()
                server.join(30)


if __name__ == "__main__":
    main()
