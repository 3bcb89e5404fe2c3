"""Tiny runs: data in which pictures and captions show the same things, recipes, and processes to run and kill."""

import json
import multiprocessing
import os
import signal
import socket
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import FEATURES, HEAD, SIZES

from maxmatch.core.files import METRICS
from maxmatch.recipe.schema import Recipe
from maxmatch.training import step as update

THINGS = 24
REGIONS = 4


def write_data(folder, train=48, val=16, captions=2, seed=0, noise=0.05, named=REGIONS - 1):
    """A precomp folder. A picture has four things, one a region; a caption names some of them in any order."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    looks = generator.normal(size=(THINGS, FEATURES))
    for split, count in (("train", train), ("dev", val)):
        if not count:
            continue
        shown = np.array([generator.choice(THINGS, REGIONS, replace=False) for _ in range(count)])
        pictures = looks[shown] + noise * generator.normal(size=(count, REGIONS, FEATURES))
        lines = [
            " ".join(f"thing{n}" for n in generator.permutation(things)[:named])
            for things in shown
            for _ in range(captions)
        ]
        np.save(folder / f"{split}_ims.npy", pictures.astype("float32"))
        (folder / f"{split}_caps.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_pictures(folder, train=12, val=6, size=72):
    """A table of captions and pictures, each of one colour; one to three captions name it."""
    folder.mkdir(parents=True)
    generator, rows = np.random.default_rng(0), ["image,caption,split"]
    for number in range(train + val):
        colour = generator.integers(0, 256, 3)
        Image.fromarray(np.full((size, size + number, 3), colour, np.uint8)).save(folder / f"{number}.png")
        words = " ".join(f"{name}{value // 64}" for name, value in zip("rgb", colour, strict=True))
        split = "train" if number < train else "val"
        rows += [f"{number}.png,{words} {place},{split}" for place in range(1 + number % 3)]
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")
    return folder


def recipe_for(data, preset="region_bigru", *, model=None, objective=None, **train):
    """A recipe for a tiny model. model: options of the preset; the rest are those of training."""
    options = {**HEAD, **SIZES[preset], "depth": 1, **(model or {})}
    similarity = options.pop("similarity", "maxmatch")
    tokenizer = {"tokenizer": "wordpiece", "vocabulary_size": 100} if preset.endswith("bert") else {"min_count": 1}
    return Recipe.model_validate(
        {
            "name": "tiny",
            "data": {"path": str(data), "max_length": 24, **tokenizer},
            "model": {"preset": preset, "options": options, "similarity": similarity},
            "objective": {"con_weight": 0.1, "temperature": 0.05, **(objective or {})},
            "train": {"epochs": 3, "batch_size": 16, "lr": 3e-3, "schedule": "constant", **train},
        }
    )


def without_dropout(recipe):
    """The same recipe with a model in which nothing is random."""

    def still(value, key=""):
        if isinstance(value, dict):
            return {name: still(inner, name) for name, inner in value.items()}
        return 0.0 if key in ("dropout", "hidden_dropout_prob", "attention_probs_dropout_prob") else value

    whole = recipe.model.resolved().model_dump(mode="json")
    for tower in whole["towers"].values():
        backbone = tower["encoder"].get("backbone") or {}
        if (backbone.get("config") or {}).get("model_type") == "bert":
            backbone["config"] |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    model = {"config": still(whole), "similarity": recipe.model.similarity}
    return Recipe.model_validate({**recipe.model_dump(), "model": model})


def outcome(folder):
    """All that a finished run leaves behind, except times."""
    done = json.loads((folder / "done.json").read_text())
    records = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return {
        "weights": {name: (folder / name / "model.safetensors").read_bytes() for name in ("best", "last")},
        "config": {name: (folder / name / "config.json").read_text() for name in ("best", "last")},
        "done": {name: value for name, value in done.items() if name != "seconds"},
        "metrics": [{key: value for key, value in one.items() if key != "items_per_second"} for one in records],
    }


def same(one, other):
    """Whether two runs came to the same; what differs is named, since the weights are too long to be printed."""
    assert one["metrics"] == other["metrics"]
    assert one["done"] == other["done"]
    assert one["config"] == other["config"]
    differing = [name for name in one["weights"] if one["weights"][name] != other["weights"][name]]
    assert not differing
    return True


_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["maxmatch.cli.main", "maxmatch.training.loop", "pytest", "scipy.optimize", "torch._dynamo"]  # which AdamW imports
)


def start(function, *arguments):
    """A process of its own that calls a function; the package is imported once for all of them."""
    process = _PROCESSES.Process(target=_call, args=(function, arguments))
    process.start()
    return process


def ended(process, within=60):
    """How a process ended: its exit code, −9 if it was killed."""
    process.join(within)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"a process did not end within {within} seconds")
    return process.exitcode


def together(function, *arguments, world=2):
    """The function in several processes that know of each other, as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [start(_as_rank, rank, world, port, function, arguments) for rank in range(world)]
    return [ended(process) for process in ranks]


def _call(function, arguments):
    torch.set_num_threads(1)
    function(*arguments)


def _as_rank(rank, world, port, function, arguments):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    function(*arguments)


def before_call(owner, name, number, action):
    """Do something before the n-th call of a function; it gets the function and its arguments."""
    whole, calls = getattr(owner, name), 0

    def counted(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == number:
            action(whole, *arguments, **options)
        return whole(*arguments, **options)

    setattr(owner, name, counted)


def kill_at(owner, name, call, before=None):
    """Kill this process in the n-th call of a function; `before` gets the function and its arguments first."""

    def kill(*arguments, **options):
        if before is not None:
            before(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    before_call(owner, name, call, kill)


def half_written(save_file, tensors, path, **options):
    """As a file looks when the process dies while it is written."""
    save_file(tensors, path, **options)
    os.truncate(path, Path(path).stat().st_size // 2)


def signal_at_step(number, step):
    """A signal arrives in the middle of a step."""
    before_call(update, "gradients", step, lambda *arguments: os.kill(os.getpid(), number))


@contextmanager
def breaking_at_step(step):
    """Training ends with an error in the middle of a step."""

    def fail(*arguments):
        raise MemoryError

    whole = update.gradients
    before_call(update, "gradients", step, fail)
    try:
        with pytest.raises(MemoryError):
            yield
    finally:
        update.gradients = whole


def command(output, *arguments, patch=None):
    """`maxmatch` with these arguments, what it says written to a file. patch: called first."""
    from maxmatch.cli.main import main

    with Path(output).open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if patch is not None:
        patch()
    main([str(argument) for argument in arguments])


def waited_for(condition, process, within=30):
    """Whether something came to be while a process was at work."""
    last = time.monotonic() + within
    while time.monotonic() < last and process.exitcode is None:
        if condition():
            return True
        time.sleep(0.01)
    return condition()
