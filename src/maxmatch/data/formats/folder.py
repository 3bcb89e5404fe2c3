"""A plain folder of pictures, for search: no captions, one split "all"."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from maxmatch.core.progress import Advance, quiet
from maxmatch.data.dataset import IMAGE, Items, Problem, Report, Split, give_up, refuse
from maxmatch.data.formats.shared import EXPECTED, check_files, copy_all, write_folder
from maxmatch.model.picture_files import SUFFIXES

NAME = "all"
_JUNK = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "$recycle.bin", "@eadir"})
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
    files = (Path(entry.path) for entry in files_below(path, {}))
    return (file for file in files if file.suffix.lower() in SUFFIXES)


def files_below(folder: Path, closed: dict[Path, str]) -> Iterator[os.DirEntry[str]]:
    """The files in a folder and below it; hidden ones and what systems leave behind are left out. Links to folders are
    followed last, and each folder is listed once, so that a loop does no harm. closed: receives folders that cannot
    be listed, and why.
    """
    seen: set[tuple[int, int]] = set()
    waiting, links = [folder], list[Path]()
    while waiting or links:
        place = waiting.pop() if waiting else links.pop(0)
        try:
            known = os.stat(place)
            if (known.st_dev, known.st_ino) in seen:
                continue
            seen.add((known.st_dev, known.st_ino))
            with os.scandir(place) as entries:
                visible = sorted((one for one in entries if not _is_junk(one.name)), key=lambda one: one.name)
        except OSError as error:
            if place == folder:
                raise
            if not isinstance(error, FileNotFoundError):  # which went a moment ago
                closed[place] = error.strerror or str(error)
            continue
        for entry in visible:
            if _is_dir(entry):
                (links if entry.is_symlink() else waiting).append(Path(entry.path))
            else:
                yield entry


def _is_dir(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder; a link that cannot be followed may be one, which is seen when it is listed."""
    try:
        return entry.is_dir()
    except OSError:
        return True


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name.lower() in _JUNK
