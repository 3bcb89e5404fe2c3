"""A writer that is killed at any moment, or finds the disk full, leaves every acknowledged item and no half one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from made_data import environment
from made_sets import ENGINES, unit_sets
from writer import STEPS, item, states

from maxmatch import SetIndex
from maxmatch.search.engine import check_files

_PATIENCE = 60.0


@pytest.fixture(scope="module")
def writer():
    """A process that starts writers."""
    variables = {**environment(), "OMP_WAIT_POLICY": "PASSIVE"}
    variables.pop("LANCEDB_LOG", None)
    command = [sys.executable, str(Path(__file__).with_name("writer.py"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=variables, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()
        assert process.wait(_PATIENCE) == 0


def _begin(writer, job, folder, *more):
    """The number of a child, and where it writes what it does."""
    writer.stdin.write(" ".join(map(str, (job, folder, *more))) + "\n")
    writer.stdin.flush()
    return int(writer.stdout.readline()), Path(f"{folder}.log")


def _lines(writer, job, folder):
    """What a child has written once it has ended."""
    _, log = _begin(writer, job, folder)
    assert writer.stdout.readline() == "gone\n"
    return log.read_text().splitlines()


def _kill_at(writer, folder, seed, moment):
    """Start a writer and kill it a while after it has begun its n-th step; the log that it left."""
    begun, wait = moment
    pid, log = _begin(writer, "plan", folder, seed)
    deadline = time.monotonic() + _PATIENCE
    while (not log.exists() or log.read_text().count("begin") <= begun) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(wait)
    os.kill(pid, signal.SIGKILL)
    assert writer.stdout.readline() == "gone\n"
    return log.read_text()


def _held(index):
    """id -> version, with every vector and all metadata compared with what was written."""
    held = {}
    for block in index.engine.scan(1000, metadata=True):
        texts = dict(zip(block.ids, block.metadata, strict=True))
        for name, vector in zip(block.ids, block.vectors, strict=True):
            version = int(texts[name].removeprefix('{"version": ').removesuffix("}"))
            assert name not in held
            assert np.array_equal(vector.reshape(2, 8), item(name, version).numpy())
            held[name] = version
    return held


@pytest.mark.parametrize(
    ("kills", "set_size"),
    [(3, 2), (2, None), pytest.param(50, 2, marks=pytest.mark.slow), pytest.param(10, None, marks=pytest.mark.slow)],
)
def test_a_killed_writer_leaves_all_that_was_acknowledged_and_nothing_half(kills, set_size, writer, tmp_path):
    random = Random(0)
    for kill in range(kills):
        folder = tmp_path / str(kill)
        SetIndex.create(folder, dim=8, set_size=set_size, settings=ENGINES["lance"]).close()
        log = _kill_at(writer, folder, kill, (random.randrange(STEPS - 2), random.uniform(0, 0.03)))
        known, done = states(kill), log.count("end")
        under_way = log.count("begin") > done
        with SetIndex.open(folder) as index:
            held = _held(index)
            assert held in ([known[done], known[done + 1]] if under_way else [known[done]]), f"kill {kill}, step {done}"
            index.add(["after"], torch.stack([item("after", 0)]))
            index.compact()
            check_files(index.manifest.engine, index.engine.place)
            assert len(index) == len(held) + 1


@pytest.fixture
def wide(tmp_path):
    """The folder of an index of one item of 2 × 64 numbers."""
    with SetIndex.create(tmp_path / "index", dim=64, set_size=2) as index:
        index.add(["old"], unit_sets(1, 2, 64))
    return index.folder


def test_a_full_disk_is_reported_and_the_old_state_stays(writer, wide):
    first, second, count = _lines(writer, "full", wide)
    for line in (first, second):
        assert f"{wide}: could not be written" in line
        assert "Nothing was changed. Free some space" in line
    assert count == "2"
    with SetIndex.open(wide) as again:
        check_files(again.manifest.engine, again.engine.place)
        assert {hit.id for hit in again.search(unit_sets(1, 2, 64))[0]} == {"old", "small"}


def test_lancedb_keeps_its_inner_workings_to_itself(writer, wide):
    assert _lines(writer, "quiet", wide) == ["1"]
