"""Run `maxmatch encode` on 10,000 files, some of them bad, and kill it repeatedly.

    python -m benchmarks.encoding_files

Of every 50 files, one each is empty, truncated, not an image, 30,000 × 30,000 pixels by its header, a broken link, and
a text file. The command first runs without interruption. Then, with another output folder, it is killed (SIGKILL) at
random moments and restarted until it finishes. The benchmark asserts that the resulting files are the same, that every
bad file is listed, and that nothing is encoded twice.
"""

import argparse
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.timing import describe_machine
from maxmatch.model.build import build_model
from maxmatch.model.presets import PRESETS
from maxmatch.model.text import word_tokenizer

_THERE = re.compile(r"([\d,]+) of [\d,]+ are there already")


def write_files(folder: Path, count: int, size: int) -> set[str]:
    """Write the files. Returns the names of those that cannot be encoded."""
    generator = np.random.default_rng(0)
    bad = set()
    for number in range(count):
        path = folder / str(number % 100) / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = number % 50
        if kind < 6:
            path = path.with_suffix(".txt") if kind == 5 else path
            bad.add(path.relative_to(folder).as_posix())
        if kind == 4:
            path.symlink_to(folder / "nowhere.jpg")
            continue
        if kind in (0, 2, 3, 5):
            path.write_bytes({0: b"", 2: b"no picture", 3: _huge(), 5: b"text"}[kind])
            continue
        pixels = generator.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((size, size + number % 32)).save(path)
        if kind == 1:
            path.write_bytes(path.read_bytes()[:400])
    return bad


def _huge() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def make_model(folder: Path) -> None:
    """Save a small network with random weights, so that everything but the network is measured."""
    options = {"width": 64, "image_size": 64, "word_width": 16, "pretrained": False}
    backbone = {"depths": [1, 1], "hidden_sizes": [16, 24], "embedding_size": 8}
    config = PRESETS["resnet152_bigru"](**options, backbone=backbone, heads=2, head_width=16)
    tokenizer = word_tokenizer(["a dog"], min_count=1, max_length=8)
    build_model(config, {"text": tokenizer}, seed=0).save_pretrained(folder)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def _batches(folder: Path) -> int:
    """The number of batches of the current shard that are on disk."""
    return len(list(folder.glob(".shard-*")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=224, help="pixels on a side")
    parser.add_argument("--model", help="the folder of a model; default: a small random one")
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        begin = time.monotonic()
        bad = write_files(root / "files", options.files, options.size)
        print(f"{options.files:,} files written in {time.monotonic() - begin:.0f} s, {len(bad):,} of them bad")
        if options.model is None:
            make_model(root / "model")
        command = [sys.executable, "-m", "maxmatch.cli.main", "encode", options.model or str(root / "model")]
        command += [str(root / "files"), "--dtype", "fp32", "--json", "--out"]
        begin = time.monotonic()
        done = subprocess.run([*command, str(root / "straight")], capture_output=True, text=True, check=True)
        straight = time.monotonic() - begin
        facts = json.loads(done.stdout)
        listed = {json.loads(line)["id"] for line in (root / "straight" / "skipped.jsonl").read_text().splitlines()}
        assert listed == bad, "not exactly the bad files are listed"
        assert facts["encoded"] == options.files - len(bad)
        print(f"uninterrupted: {straight:.0f} s with start-up, {facts['encoded'] / straight:.0f} images/s")
        moments = random.Random(0)
        kept: list[int] = []
        begin = time.monotonic()
        while True:
            process = subprocess.Popen([*command, str(root / "killed")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if len(kept) < options.kills:
                enough = _batches(root / "killed") + moments.randint(3, 60)
                while process.poll() is None and _batches(root / "killed") < enough:
                    time.sleep(0.01)
                process.send_signal(signal.SIGKILL)
            said = process.communicate()[1].decode()
            found = _THERE.search(said)
            kept.append(int(found[1].replace(",", "")) if found else 0)
            if process.returncode == 0:
                break
            assert process.returncode == -signal.SIGKILL, said
        assert len(kept) > 1, "it was done before it could be killed"
        print(f"killed {len(kept) - 1} times: {time.monotonic() - begin:.0f} s; found at each start: {kept}")
        assert kept == sorted(kept), "something that was kept is gone"
        assert content(root / "killed") == content(root / "straight"), "not what the undisturbed run made"
        print("the same files, to the bit; every place of the source was encoded once")


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
