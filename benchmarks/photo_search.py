"""Measure what one user waits for: the first `maxmatch search` in a folder of photos, later ones, and a server.

    python -m benchmarks.photo_search [--model FOLDER] [--photos 1000]

Photos are JPEGs of twelve million pixels, as from a phone: twenty different ones, each in many copies with other bytes
at their end, so that each is read and encoded. The server gets a folder of as many small images that all differ. All
commands run as a user runs them, start-up included. Of the first search the processor time is given too, which other
work on the machine hardly changes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
from PIL import Image

from maxmatch.model.names import SHIPPED

DIFFERENT = 20
SIZE = (4000, 3000)
AGAIN, ASKED = 5, 50


def write_photos(folder: Path, count: int) -> None:
    """Soft shapes with some grain: about as many bytes per pixel as a photo."""
    folder.mkdir()
    for number in range(count):
        path = folder / f"IMG_{number:05d}.jpg"
        if number >= DIFFERENT:
            picture = (folder / f"IMG_{number % DIFFERENT:05d}.jpg").read_bytes()
            path.write_bytes(picture + str(number).encode())  # what follows a picture's end is not looked at
            continue
        generator = np.random.default_rng(number)
        shapes = Image.fromarray(generator.integers(0, 256, (30, 40, 3), np.uint8)).resize(
            SIZE, Image.Resampling.BICUBIC
        )
        grain = Image.fromarray(generator.integers(0, 256, (SIZE[1] // 2, SIZE[0] // 2, 3), np.uint8)).resize(SIZE)
        Image.blend(shapes, grain, 0.08).save(path, quality=88)


def write_small(folder: Path, count: int) -> None:
    """Images that all differ."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(count):
        shapes = Image.fromarray(generator.integers(0, 256, (6, 8, 3), np.uint8))
        shapes.resize((320, 240), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")


def photo_search(folder: Path, model: str, count: int) -> dict[str, Any]:
    """Seconds of the first and later searches; milliseconds of a search with the server running."""
    write_photos(folder, count)
    size = sum(path.stat().st_size for path in folder.iterdir()) / count / 2**20
    print(f"{count} photos of {size:.1f} MB written", file=sys.stderr, flush=True)
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder.with_name("cache")), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "maxmatch.cli.main"]
    named = ["--model", model]

    def search(text: str) -> float:
        started = time.perf_counter()
        done = subprocess.run(
            [*command, "search", text, str(folder), *named, "--all"],  # nothing fits: these are no photos
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 10, done.stdout
        seconds = time.perf_counter() - started
        print(f"maxmatch search: {seconds:.1f} s", file=sys.stderr, flush=True)
        return seconds

    first = search("two dogs in the snow")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    again = [search(f"a man on a beach {number}") for number in range(AGAIN)]
    # Near-duplicates are shown as one, so with copies the server would search all photos to find ten that differ.
    different = folder.with_name("different")
    write_small(different, count)
    server = subprocess.Popen(
        [*command, "serve", str(different), *named, "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address, "the server did not start"
        asked = [_ask(address, f"a woman with a red hat {number}") for number in range(ASKED)]
    finally:
        server.terminate()
        server.wait(30)
    return {
        "photos": count,
        "megabytes_each": round(size, 1),
        "first_search_s": round(first, 1),
        "first_search_cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "second_search_s": [round(seconds, 2) for seconds in again],
        "served_p50_ms": round(1000 * float(np.percentile(asked[1:], 50)), 1),
        "served_p95_ms": round(1000 * float(np.percentile(asked[1:], 95)), 1),
    }


def _ask(address: str, text: str) -> float:
    started = time.perf_counter()
    with urlopen(f"{address}api/v1/search?{urlencode({'q': text, 'k': 20, 'all': 'true'})}", timeout=60) as answer:
        assert json.load(answer)["hits"]
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SHIPPED, help="the folder of a checkpoint")
    parser.add_argument("--photos", type=int, default=1000)
    given = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(photo_search(Path(folder) / "photos", given.model, given.photos), indent=2))


if __name__ == "__main__":
    main()
