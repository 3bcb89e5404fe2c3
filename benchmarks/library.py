"""Measure how long a second `maxmatch search` takes in a large folder of photos, start-up included, and how much memory
it and `maxmatch serve` take.

    python -m benchmarks.library [--photos 1000 10000 100000] [--work FOLDER] [--again 7] [--serve]

The photos are small JPEGs (hard links of a few, under different names in many folders). Their sets are random, and are
written to the folder's index as an indexing would write them, but without encoding: 100,000 photos take minutes, not
hours. Then `maxmatch search` runs as a user runs it; the least of several runs counts, since other work on the machine
only ever adds to it. Memory is the peak of the process. --serve: a server is asked for everything the page asks for
(searches by words, names and parts, long lists, filters, months, thumbnails); its memory is read at the start and at
the end, and its peak.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from maxmatch.model.names import SHIPPED, AnyModel

PER_FOLDER = 500
_BLOCK = 2_000
_LINKS = 20_000  # of one file; file systems allow some ten thousand


def write_folder(folder: Path, count: int) -> None:
    """Pictures in folders of 500."""
    generator = np.random.default_rng(0)
    made: list[Path] = []
    for number in range(count):
        path = folder / f"{number // PER_FOLDER:03d}" / f"IMG_{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % _LINKS == 0:
            Image.fromarray(generator.integers(0, 256, (30, 40, 3), np.uint8)).save(path)
            made.append(path)
        else:
            os.link(made[-1], path)


def write_index(folder: Path, model: AnyModel) -> None:
    """Random sets for all photos of a folder, with the facts that an indexing notes."""
    from maxmatch.search.engines.cached_table import write_cache
    from maxmatch.search.photos import sync as photos
    from maxmatch.search.photos.facts import photo_facts

    folder = folder.resolve()
    generator = np.random.default_rng(1)
    with photos.open_photos(photos.place_of(folder, model), model) as index:
        names = photos.walk(folder).pictures
        for start in range(0, len(names), _BLOCK):
            part = names[start : start + _BLOCK]
            shape = (len(part), index.manifest.set_size or 1, index.manifest.dim)
            sets = generator.standard_normal(shape, np.float32)
            sets /= np.linalg.norm(sets, axis=2, keepdims=True)
            index.add(part, sets, [photo_facts(folder / name, folder) for name in part], optimise=False)
        index.compact()
        write_cache(index.engine, index.folder)


_RUN = """
import sys
from pathlib import Path
from maxmatch.cli.main import main
try:
    main()
finally:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    print(line.split()[1], file=sys.stderr)
"""


def second_search(folders: Sequence[Path], environment: dict[str, str], again: int) -> dict[str, Any]:
    """Seconds of a search on the clock and of the processor, and the peak memory of the process in MB."""
    seconds, spent, peak = [], [], 0.0
    for number in range(again):
        command = [sys.executable, "-c", _RUN, "search", f"a man on a beach {number}", *map(str, folders)]
        before, started = os.times(), time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - started)
        after = os.times()
        spent.append(after.children_user + after.children_system - before.children_user - before.children_system)
        assert len(done.stdout.split()) == 10 or "fit" in done.stderr, done  # to random sets nothing may seem to fit
        peak = max(peak, int(done.stderr.split()[-1]) / 1024)
    return {"least_s": round(min(seconds), 2), "least_cpu_s": round(min(spent), 2), "peak_mb": round(peak)}


QUESTIONS = (
    "gallery",
    "timeline",
    "search",
    "search?offset=50000&k=200",
    "search?q=a+dog",
    "search?q=a+dog&all=true&offset=60000&k=200",
    "search?q=a+cat&all=true&offset=200&fold=false",
    "search?q=IMG_004321",
    "search?q=a+dog+-people&all=true&offset=2000",
    "search?q=a+boat&sort=date",
    "search?folder=007",
    "search?q=a+tree&folder=007&all=true",
    "search?from=2020-01-01&orientation=landscape&offset=9000",
)


def serving(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """The memory of a server in MB: once it has looked through the folder, after all questions twice, and its peak."""
    command = [sys.executable, "-m", "maxmatch", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stdout is not None
        try:
            address = run.stdout.readline().strip() + "api/v1/"
            time.sleep(20)  # it looks for new photos meanwhile
            started = memory(run.pid)["VmRSS"]
            for question in QUESTIONS * 2:
                with urllib.request.urlopen(address + question, timeout=120) as answer:
                    answered = json.load(answer)
            for hit in answered["hits"][:20]:
                urllib.request.urlopen(f"{address}items/{hit['item']['key']}/thumbnail").close()
            after = memory(run.pid)
        finally:
            run.terminate()
    return {"started_mb": started, "after_mb": after["VmRSS"], "peak_mb": after["VmHWM"]}


def memory(process: int) -> dict[str, int]:
    """What Linux says of a process, in MB."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return {line.split(":")[0]: int(line.split()[1]) // 1024 for line in lines if line.endswith(" kB")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--work", type=Path, help="kept and used again; by default a temporary folder")
    parser.add_argument("--again", type=int, default=7)
    parser.add_argument("--serve", action="store_true", help="also measure the memory of a server")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")
        for count in given.photos:
            folder = work / f"photos-{count}"
            if not folder.is_dir():
                from maxmatch.model.encoder import SetEncoder

                write_folder(folder, count)
                write_index(folder, SetEncoder.from_pretrained(SHIPPED))
            print(json.dumps({"photos": count, **second_search([folder], dict(os.environ), given.again)}), flush=True)
            if given.serve:
                print(json.dumps({"photos": count, "serve": serving(folder, dict(os.environ))}), flush=True)


if __name__ == "__main__":
    main()
