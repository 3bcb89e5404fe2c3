"""All pictures in a folder and those below it. What is no picture is named, but for what systems leave behind."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from maxmatch.data.formats.picture_files import EXPECTED, SUFFIXES
from maxmatch.data.items import IMAGE
from maxmatch.data.problems import DataError, Problem
from maxmatch.search.intake import is_text
from maxmatch.search.listing import LeftOut, Listing

_LONGEST = 1024  # characters of an id that an index keeps
_JUNK = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "$recycle.bin", "@eadir"})


class Walked(NamedTuple):
    """What is below a folder. pictures: by their paths from the folder. closed: the folders that cannot be listed, and
    why; nothing is known of what is in them.
    """

    pictures: dict[str, os.DirEntry[str]]
    left_out: list[LeftOut]
    closed: dict[Path, str]


def list_pictures(folder: Path) -> Listing:
    """The pictures by their paths from the folder, in the order of these. Metadata: `path`, `size` and `mtime` (seconds
    since 1970).
    """
    found, left_out, closed = walk(folder)
    for place, why in closed.items():
        left_out.append(LeftOut(ascii(str(place)), f"a folder that cannot be read ({why}). Permit it."))
    if not found:
        raise no_pictures(folder, {str(place): why for place, why in closed.items()})
    names = sorted(found)
    paths = [folder / name for name in names]
    metadata = [{"path": str(path), **_stat(found[name])} for path, name in zip(paths, names, strict=True)]
    return Listing(folder, "folder", IMAGE, paths, names, metadata, sorted(left_out, key=lambda one: one.id))


def no_pictures(folder: Path, closed: Mapping[str, str]) -> DataError:
    """What is said of a folder in which nothing was found. closed: the folders that cannot be read, and why."""
    if closed:
        place, why = next(iter(closed.items()))
        return DataError(Problem(folder, f"no pictures that can be read: {place} ({why})", "Permit it."))
    return DataError(Problem(folder, "no pictures in it", EXPECTED))


def walk(folder: Path) -> Walked:
    """The pictures of a folder and those below it. Links to folders are followed, each folder once, so that a loop does
    no harm.
    """
    found, left_out, closed = walked = Walked({}, [], {})
    for entry in _files(folder, closed):
        name = Path(entry.path).relative_to(folder).as_posix()
        suffix = Path(name).suffix.lower()
        if not is_text(name):
            left_out.append(LeftOut(ascii(name), "its name is not UTF-8. Rename the file."))
        elif len(name) > _LONGEST:
            left_out.append(LeftOut(name, f"its path has more than {_LONGEST:,} characters. Move the file up."))
        elif suffix not in SUFFIXES:
            left_out.append(LeftOut(name, f"no picture by its name, which ends in {suffix or 'nothing'}."))
        else:
            found[name] = entry
    return walked


def _files(folder: Path, closed: dict[Path, str]) -> Iterator[os.DirEntry[str]]:
    """The files below a folder, those behind links last: a folder keeps the name that it has by itself."""
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


def _stat(entry: os.DirEntry[str]) -> dict[str, object]:
    """Size and time of change, as they were before the file is read; nothing where it cannot be."""
    try:
        known = entry.stat()
    except OSError:
        return {}
    return {"size": known.st_size, "mtime": known.st_mtime}
