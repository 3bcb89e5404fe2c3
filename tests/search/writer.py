"""A process that writes in an index until it is killed: `python writer.py`, then lines «folder seed» on its input.

For each line it forks a child that carries out `plan(seed)` and notes every step before and after it in the folder's
log; the child's number is printed. One process that has loaded everything, so that a test may kill many.
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


def work(folder: Path, seed: int) -> None:
    """Carry out the plan."""
    from maxmatch import SetIndex

    index = SetIndex.open(folder)
    log = os.open(folder.parent / f"{folder.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for version, (what, names) in enumerate(plan(seed)):
        os.write(log, b"begin\n")
        if what == "compact":
            index.compact()
        elif what == "remove":
            index.remove(names)
        else:
            sets = torch.stack([item(name, version) for name in names])
            (index.add if what == "add" else index.upsert)(names, sets, [{"version": version}] * len(names))
        os.write(log, b"end\n")


if __name__ == "__main__":
    import warnings

    import lancedb  # noqa: F401

    import maxmatch.search.set_index  # noqa: F401

    warnings.simplefilter("ignore")  # forks are an experiment to LanceDB; nothing of it runs here before one
    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        place, number = line.split()
        child = os.fork()
        if child == 0:
            try:
                work(Path(place), int(number))
            finally:
                os._exit(0)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)
