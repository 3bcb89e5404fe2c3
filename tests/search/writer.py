"""A process that has loaded everything and forks children for tests: `python writer.py`, then a line for each child.

`plan FOLDER SEED`: carry out `plan(SEED)` in the index until it is killed, noting every step before and after it.
`full FOLDER`: write while no file may grow. `quiet FOLDER`: search in a way of which LanceDB would warn.
Children write to the folder's log. The child's number is printed when it has begun, and "gone" when it has ended.
"""

import os
import sys
from pathlib import Path
from random import Random

import torch

STEPS = 40


def item(name: str, version: int) -> torch.Tensor:
    """The set of an item, which tells its version."""
    generator = torch.Generator().manual_seed(1000 * version + sum(map(ord, name)))
    return torch.nn.functional.normalize(torch.randn(2, 8, generator=generator), dim=-1)


def plan(seed: int) -> list[tuple[str, list[str]]]:
    """What the child does: steps (what, with which items) that fit what is there by then."""
    random, there, steps = Random(seed), set[str](), []
    for step in range(STEPS):
        what = random.choice(["add", "add", "upsert", "remove", "compact"])
        if what == "remove" and len(there) < 8:
            what = "add"
        if what == "add":
            names = [f"{step}-{n}" for n in range(8)]
            there |= set(names)
        elif what == "upsert":
            names = [*sorted(random.sample(sorted(there), min(4, len(there)))), f"{step}-new"]
            there |= set(names)
        elif what == "remove":
            names = sorted(random.sample(sorted(there), 6))
            there -= set(names)
        else:
            names = []
        steps.append((what, names))
    return steps


def states(seed: int) -> list[dict[str, int]]:
    """What the index holds before each step and after the last: id -> version."""
    held: dict[str, int] = {}
    result = [dict(held)]
    for version, (what, names) in enumerate(plan(seed)):
        for name in names:
            if what == "remove":
                del held[name]
            else:
                held[name] = version
        result.append(dict(held))
    return result


def carry_out(folder: Path, seed: str) -> None:
    """Carry out the plan."""
    index = SetIndex.open(folder)
    for version, (what, names) in enumerate(plan(int(seed))):
        os.write(1, b"begin\n")
        if what == "compact":
            index.compact()
        elif what == "remove":
            index.remove(names)
        else:
            sets = torch.stack([item(name, version) for name in names])
            (index.add if what == "add" else index.upsert)(names, sets, [{"version": version}] * len(names))
        os.write(1, b"end\n")


def fill_disk(folder: Path) -> None:
    """No file may grow beyond 20 kB: to a program that is what a full disk is, a write that fails halfway."""
    index = SetIndex.open(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    many = torch.nn.functional.normalize(torch.ones(500, 2, 64), dim=-1)
    for write in (index.add, index.upsert):
        try:
            write([f"new {n}" for n in range(500)], many)
        except OSError as error:
            os.write(1, f"{error}\n".encode())
    index.add(["small"], many[:1])
    os.write(1, f"{len(index)}\n".encode())


def search_quietly(folder: Path) -> None:
    """Of which LanceDB would warn: the distance is not asked for."""
    found = SetIndex.open(folder).engine.table.search([0.5**0.5] * 128).select(["id"]).to_list()
    os.write(1, f"{len(found)}\n".encode())


if __name__ == "__main__":
    import resource
    import warnings

    from maxmatch import SetIndex
    from maxmatch.search.engines.lance_search import lancedb_library

    lancedb_library()
    warnings.simplefilter("ignore")  # forks are an experiment to LanceDB; nothing of it runs here before one
    torch.set_num_threads(1)
    jobs = {"plan": carry_out, "full": fill_disk, "quiet": search_quietly}
    print("ready", flush=True)
    for line in sys.stdin:
        job, place, *more = line.split()
        child = os.fork()
        if child == 0:
            log = os.open(f"{place}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            try:
                jobs[job](Path(place), *more)
            finally:
                os._exit(0)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)
