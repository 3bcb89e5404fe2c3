"""A plain folder of pictures, for search: no captions, one split "all"."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from maxmatch.core.progress import Advance, quiet
from maxmatch.data.dataset import IMAGE, Items, Problem, Report, Split, give_up, refuse
from maxmatch.data.formats.shared import EXPECTED, SUFFIXES, check_files, copy_all, write_folder

NAME = "all"
LOOKS_LIKE, KEEPS_METADATA = "pictures", False


def recognises(path: Path) -> bool:
    """Whether there is a picture anywhere in the folder."""
    return path.is_dir() and next(_pictures(path), None) is not None


def read(path: Path, report: Report = refuse) -> dict[str, Split]:
    """All pictures in the folder and in those below it, by name; what is hidden is left out."""
    pictures = sorted(_pictures(path))
    if not pictures:
        give_up(report, Problem(path, "no pictures in it", EXPECTED))
    ids = [picture.relative_to(path).as_posix() for picture in pictures]
    return {NAME: Split({IMAGE: Items(pictures, np.arange(len(pictures)), ids)})}


def write(splits: Mapping[str, Split], path: Path, advance: Advance = quiet, workers: int = 1) -> None:
    """Copy the pictures of all splits into a folder. Only pictures: captions would be lost, and are refused."""
    for name, split in splits.items():
        if set(split.items) != {IMAGE}:
            raise ValueError(
                f"split {name!r} has {', '.join(split.items)}: a plain folder holds pictures only. "
                "Write a 'table', an 'imagefolder' or 'webdataset' shards."
            )

    check_files(splits)

    def fill(folder: Path) -> None:
        taken: set[str] = set()
        for split in splits.values():
            copy_all(split[IMAGE], folder, taken, workers, advance)

    write_folder(path, "folder", splits, fill, advance)


def _pictures(path: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                yield Path(folder) / name
