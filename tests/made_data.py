"""Small data of known content, what readers make of bad data, and processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from maxmatch.data.dataset import IMAGE, TEXT, Items, Rows, Split

WORDS = [
    "a dog",
    "two cats on a mat",
    "ein größeres Haus",
    "犬が走る",
    "a man's hat — red",
    "no, really?",
    "naïve café",
]


def captions(count, start=0):
    return [f"{WORDS[n % len(WORDS)]} {n}" for n in range(start, start + count)]


def features(count, regions=3, width=4, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=(count, regions, width)).astype(dtype)


def mapped(folder, array):
    """The array as a memory map."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "rows.npy", array)
    return np.load(folder / "rows.npy", mmap_mode="r")


def ragged_rows(array, counts, numbers):
    return Rows(array, np.array(numbers), np.concatenate([[0], np.cumsum(counts)]))


def split(values, per_image, ids=None, start=0):
    """Images with so many captions each (a number, or one for each image)."""
    counts = [per_image] * len(values) if isinstance(per_image, int) else per_image
    owners = np.repeat(np.arange(len(values)), counts)
    values = list(values) if isinstance(values, np.ndarray) else values
    images = Items(values, np.arange(len(values)), ids or [str(start + n) for n in range(len(values))])
    texts = Items(captions(len(owners), start), owners, [str(1000 + start + n) for n in range(len(owners))])
    return Split({IMAGE: images, TEXT: texts})


def content(split, ids=True):
    """All that a split holds, as plain values that can be compared."""
    plain = {}
    for name, items in split.items.items():
        values = [_plain(value) for value in items.values]
        plain[name] = (values, items.groups.tolist(), list(items.ids) if ids else None)
    return plain


def contents(splits):
    return {name: content(part) for name, part in splits.items()}


def _plain(value):
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    return value.read_bytes() if isinstance(value, Path) else value


def environment():
    """For another process, that finds what this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def run(code, *arguments):
    """Another process, in which the package is imported as users import it."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)


def interrupting(after):
    """What is told of progress, and interrupts the work when it is told for the so-many-th time."""
    told = []

    def advance(count):
        told.append(count)
        if len(told) == after:
            raise KeyboardInterrupt

    return advance


def peak_megabytes():
    """The most memory that this process has had in use at once. Not what its parent had, as `ru_maxrss` may say."""
    status = Path("/proc/self/status")
    if status.is_file():
        return (
            int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) // 1024
        )
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 2**20  # bytes on macOS
