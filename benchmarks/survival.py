"""Kill `maxmatch search` and `maxmatch serve` again and again while they work on a large library, and compare the index
with the folder: nothing is lost, and nothing stale after a minute.

    python -m benchmarks.survival PHOTOS [--count 20000] [--work FOLDER]

PHOTOS is a folder of pictures; `count` crops of them become a library of small JPEGs that all differ. It is indexed,
searched, watched, added to, thinned out and renamed in, with kill -9 in each. After every step the ids of the index are
the files of the folder, each with the hash of its file; of some the set is encoded again and compared. Twenty thousand
photos take two quiet cores about a quarter of an hour. The figures are printed as JSON, a line a step.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from maxmatch.core.files import content_hash
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.names import SHIPPED
from maxmatch.search.photos.reuse import HASH
from maxmatch.search.photos.sync import open_photos, place_of, walk

FOLDERS, SIDE, COMPARED = 40, 240, 40
COMMAND = [sys.executable, "-m", "maxmatch"]


def write_crops(sources: list[Path], folder: Path, count: int, in_folder: int) -> None:
    """Crops of at least half of each side, about as many of each source, so many in each folder."""
    random = Random(0)
    for place, source in enumerate(sources):
        with Image.open(source) as opened:
            picture = opened.convert("RGB")
        picture.thumbnail((2 * SIDE, 2 * SIDE))
        for number in range(place * count // len(sources), (place + 1) * count // len(sources)):
            width, height = (round(side * random.uniform(0.5, 1)) for side in picture.size)
            left, top = random.randint(0, picture.width - width), random.randint(0, picture.height - height)
            crop = picture.crop((left, top, left + width, top + height))
            crop.thumbnail((SIDE, SIDE))
            path = folder / f"{number // in_folder:03d}" / f"IMG_{number:05d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            crop.save(path, quality=random.randint(80, 90))


class Library:
    """A folder, its index, and commands on it that are killed."""

    def __init__(self, folder: Path, model: SetEncoder) -> None:
        self.folder = folder.resolve()
        self.model = model
        self.random = Random(1)

    def stored(self) -> dict[str, str]:
        """The photos in the index, and the hash of the file that each set was made of."""
        with open_photos(place_of(self.folder, self.model), self.model) as index:
            index.check_files()
            found: dict[str, str] = {}
            for block in index.engine.scan(4_096, vectors=False, metadata=True):
                found |= {n: json.loads(t)[HASH] for n, t in zip(block.ids, block.metadata or [], strict=True)}
            return found

    def check(self) -> int:
        """AssertionError unless the index is that of the folder; how many photos there are."""
        files = {name: content_hash(self.folder / name) for name in walk(self.folder).pictures}
        stored = self.stored()
        assert stored == files, (len(stored), len(files), sorted(set(stored.items()) ^ set(files.items()))[:3])
        chosen = self.random.sample(sorted(files), min(COMPARED, len(files)))
        expected = self.model.encode_images([self.folder / name for name in chosen], show_progress=False)
        with open_photos(place_of(self.folder, self.model), self.model) as index:
            kept = index.fetch(chosen)
        for name, vectors in zip(chosen, expected, strict=True):
            np.testing.assert_allclose(kept[name].numpy(), vectors.cpu().numpy(), atol=2e-3)
        return len(files)

    def search(self) -> tuple[float, str]:
        """Seconds of a search that is left alone, and what it said."""
        started = time.perf_counter()
        command = [*COMMAND, "search", "a dog on a beach", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() or "fit" in done.stderr
        return round(time.perf_counter() - started, 1), done.stderr.strip().splitlines()[-1] if done.stderr else ""

    def killed_search(self, after: float) -> None:
        """A search that is killed after so many seconds."""
        command = [*COMMAND, "search", "a dog", str(self.folder)]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(after)
        run.send_signal(signal.SIGKILL)
        run.wait()

    @contextmanager
    def served(self) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """A server, killed in the end, and its address."""
        run = subprocess.Popen(
            [*COMMAND, "serve", str(self.folder), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert run.stdout is not None
            address = run.stdout.readline().strip() + "api/v1/"
            assert address.startswith("http"), "the server did not start"
            yield run, address
        finally:
            run.send_signal(signal.SIGKILL)
            run.wait()

    def seen(self, address: str) -> set[str]:
        """All ids that the page reaches."""
        found: set[str] = set()
        more = True
        while more:
            answer = asked(f"{address}search?k=200&fold=false&offset={len(found)}")
            found |= {hit["item"]["id"] for hit in answer["hits"]}
            more = answer["more"]
        return found

    def until_right(self, address: str, patience: float = 600.0) -> float:
        """Seconds until a server shows exactly the photos of the folder."""
        started = time.monotonic()
        files = set(walk(self.folder).pictures)
        while time.monotonic() - started < patience:
            if asked(f"{address}gallery")["total"] == len(files) and self.seen(address) == files:
                return round(time.monotonic() - started, 1)
            time.sleep(1)
        raise AssertionError("the page is stale")


def asked(address: str) -> Any:
    """The answer of a server."""
    with urllib.request.urlopen(address, timeout=120) as answer:
        return json.load(answer)


def changes(library: Library, spare: Path) -> dict[str, Callable[[int], object]]:
    """What happens to a library: photos are added, deleted, and a folder of them is renamed; by a number."""
    folders = sorted(path for path in library.folder.iterdir() if path.is_dir())
    return {
        "add": lambda turn: shutil.copytree(spare / f"{turn:03d}", library.folder / f"new {turn}"),
        "delete": lambda turn: shutil.rmtree(folders[2 * turn]),
        "rename": lambda turn: folders[2 * turn + 1].rename(library.folder / f"renamed {turn}"),
    }


def survive(library: Library, spare: Path, say: Callable[..., None]) -> None:
    """All steps; an AssertionError where something is lost or stale."""
    kills, before = 0, 0
    started = time.perf_counter()
    for seconds in (15.0, 25.0, 40.0):
        library.killed_search(seconds)
        kills += 1
        now = len(library.stored())
        assert now >= before, "photos that were indexed are lost"
        before = now
    seconds, said = library.search()
    say("index", kills=kills, kept_after_kills=before, seconds=round(time.perf_counter() - started), said=said)
    say("index", photos=library.check())
    for _ in range(6):
        library.killed_search(library.random.uniform(0.1, 2.0))
    seconds, said = library.search()
    say("search", kills=6, seconds=seconds, said=said, photos=library.check())
    happen = changes(library, spare)
    with library.served() as (_, address):
        library.until_right(address)
        for name, change in happen.items():
            change(0)
            say("watch", change=name, seconds_until_seen=library.until_right(address))
    say("watch", kills=1, photos=library.check())
    for turn, (name, change) in enumerate(happen.items(), start=1):
        change(turn)
        for _ in range(3):
            library.killed_search(library.random.uniform(1.0, 6.0))
        with library.served() as (_, address):  # killed as soon as it answers, in the middle of its first look
            assert asked(f"{address}health")["status"] == "ok"
        with library.served() as (_, address):
            say(name, kills=5, seconds_until_seen=library.until_right(address), photos=library.check())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--work", type=Path, help="by default a temporary folder")
    given = parser.parse_args()
    started = time.perf_counter()

    def say(step: str, **figures: Any) -> None:
        print(json.dumps({"after_s": round(time.perf_counter() - started), "step": step, **figures}), flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")
        sources = [given.photos / name for name in walk(given.photos).pictures]
        every = work / "every"
        if not every.is_dir():
            in_folder = max(1, given.count // FOLDERS)
            write_crops(sources, every, given.count + 2 * in_folder, in_folder)
        library, spare = work / "library", work / "spare"
        spare.mkdir()
        every.rename(library)
        last = sorted(library.iterdir())[-2:]
        for turn, folder in enumerate(last):
            folder.rename(spare / f"{turn:03d}")
        say("made", photos=len(walk(library).pictures))
        survive(Library(library, SetEncoder.from_pretrained(SHIPPED)), spare, say)
        say("done")


if __name__ == "__main__":
    main()
