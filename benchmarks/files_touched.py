"""How many of the package's files run in a small training, a second search and an evaluation.

`python -m benchmarks.files_touched [--list] [--source OTHER/src]`

A file counts if one of its functions is called, other than while a module is being imported, in the command's own
process or in one that it starts. "path" counts the files that run below the walk's main function (one epoch of
training; encoding and measuring of an evaluation), without the command line and without loading model and data. The
fewer files on the path of the data, the less there is to read before a change.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

# Put on the path of every process, so that Python runs it first.
TRACER = """
import inspect, os, sys, threading

package = os.path.join(os.environ["TOUCHED_SOURCE"], "maxmatch") + os.sep
record, path = os.environ["TOUCHED_RECORD"], set(os.environ["TOUCHED_PATH"].split())
done, known = set(), {"all": set(), "path": set()}

def seen(frame, event, argument):
    code, name = frame.f_code, frame.f_code.co_filename
    if event != "call" or name in done:
        return
    if not name.startswith(package):
        done.add(name)
    elif code.co_flags & inspect.CO_OPTIMIZED:  # neither a module nor a class
        kinds = {"all"}
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
                return  # an import
            if frame.f_code.co_name in path:
                kinds.add("path")
            frame = frame.f_back
        for kind in kinds:
            if name not in known[kind]:
                known[kind].add(name)
                with open(record, "a") as file:
                    file.write(f"{kind} {name[len(package):]}\\n")
        if not path or "path" in kinds:
            done.add(name)

threading.setprofile(seen)
sys.setprofile(seen)
"""


class Walk(NamedTuple):
    """A command, the functions its path lies below (none: all of it), and how many files at most should be on it."""

    command: list[str]
    functions: str
    goal: int


SMALL = ["width=16", "set_size=4", "word_width=16", "feature_width=32", "heads=2", "head_width=8"]
RECIPE = ["f30k_region_bigru", "data.path=data", "data.min_count=1", "train.epochs=1", "train.batch_size=16"]
WALKS = {
    "a training": Walk(
        ["train", *RECIPE, *[f"model.options.{one}" for one in SMALL], "--out", "run"], "train_epoch", 45
    ),
    "a first search": Walk(["search", "a dog", "photos"], "", 20),
    "a second search": Walk(["search", "a dog", "photos"], "", 20),
    "an evaluation": Walk(["evaluate", "run"], "encode_split measure", 18),
}


def write_features(folder: Path) -> None:
    """A precomp folder of random region features with captions."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for split, images in (("train", 48), ("dev", 16), ("test", 16)):
        np.save(folder / f"{split}_ims.npy", generator.normal(size=(images, 4, 32)).astype("float32"))
        words = [" ".join(f"word{n}" for n in generator.integers(0, 9, 4)) for _ in range(images * 5)]
        (folder / f"{split}_caps.txt").write_text("\n".join(words) + "\n")


def write_photos(folder: Path) -> None:
    """A few photos of noise."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(generator.integers(0, 256, (64, 96, 3), dtype=np.uint8)).save(folder / f"{number}.png")


def touched(source: Path, folder: Path, walk: Walk) -> dict[str, list[str]]:
    """The package's files that a command runs: all of them, and those on its path."""
    record = folder / "record"
    record.write_text("")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder / "tracer"), str(source)]),
        "TOUCHED_SOURCE": str(source),
        "TOUCHED_RECORD": str(record),
        "TOUCHED_PATH": walk.functions,
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    command = [sys.executable, "-m", "maxmatch.cli.main", *walk.command]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(walk.command)}: {done.stdout}{done.stderr}")
    lines = sorted({line for line in record.read_text().splitlines() if walk.functions or line.startswith("all ")})
    found: dict[str, list[str]] = {"all": [], "path": []}
    for kind, file in map(str.split, lines):
        found[kind].append(file)
    return found if walk.functions else {"all": found["all"], "path": found["all"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the files")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src", help="another checkout's src")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tracer").mkdir()
        (folder / "tracer" / "sitecustomize.py").write_text(TRACER)
        write_features(folder / "data")
        write_photos(folder / "photos")
        found = {what: touched(options.source.resolve(), folder, walk) for what, walk in WALKS.items()}
    print(f"{'':18}{'command':>8}{'path':>8}{'goal':>8}")
    for what, files in found.items():
        print(f"{what:18}{len(files['all']):8}{len(files['path']):8}{WALKS[what].goal:8}")
    if options.list:
        for what, files in found.items():
            print(f"\n{what} (on its path: *)")
            print("\n".join(f"  {'*' if file in files['path'] else ' '} {file}" for file in files["all"]))


if __name__ == "__main__":
    main()
