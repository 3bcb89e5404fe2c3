"""A writer that is killed at any moment leaves every acknowledged item and no half one.

`python -m pytest tests/search/test_killed.py` kills ten; with KILLS=50 in the environment fifty, on each engine.
"""

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
from made_sets import ENGINES
from writer import STEPS, item, states

from maxmatch import SetIndex
from maxmatch.search.engine import check_files

KILLS = int(os.environ.get("KILLS", "10"))
_PATIENCE = 60.0


@pytest.fixture(scope="module")
def writer():
    """A process that starts writers."""
    import maxmatch

    path = str(Path(maxmatch.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "PASSIVE"}
    script = Path(__file__).with_name("writer.py")
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(_PATIENCE) == 0
    process.stdout.close()


def _lines(log):
    return log.read_text().splitlines() if log.exists() else []


def _kill_at(writer, folder, seed, moment):
    """Start a writer and kill it a while after it has begun its n-th step; the log that it left."""
    begun, wait = moment
    log = folder.parent / f"{folder.name}.log"
    writer.stdin.write(f"{folder} {seed}\n")
    writer.stdin.flush()
    pid = int(writer.stdout.readline())
    deadline = time.monotonic() + _PATIENCE
    while _lines(log).count("begin") <= begun and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(wait)
    os.kill(pid, signal.SIGKILL)
    assert writer.stdout.readline() == "gone\n"
    return _lines(log)


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


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "milvus"])
def test_a_killed_writer_leaves_all_that_was_acknowledged_and_nothing_half(name, writer, tmp_path):
    random = Random(0)
    for kill in range(KILLS if name == "lance" else max(1, KILLS // 5)):
        folder = tmp_path / f"{name}-{kill}"
        SetIndex.create(folder, dim=8, set_size=2, engine=name, settings=ENGINES[name])
        log = _kill_at(writer, folder, kill, (random.randrange(STEPS - 2), random.uniform(0, 0.03)))
        known, done = states(kill), log.count("end")
        under_way = log.count("begin") > done
        index = SetIndex.open(folder)
        held = _held(index)
        assert held in ([known[done], known[done + 1]] if under_way else [known[done]]), f"kill {kill}, step {done}"
        index.add(["after"], torch.stack([item("after", 0)]))
        index.compact()
        check_files(index.manifest.engine, index.engine.place)
        assert len(index) == len(held) + 1
        index.close()
