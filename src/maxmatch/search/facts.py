"""What an index notes of a photo beside its set: the keys of its metadata, and filters on them."""

from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Literal

from PIL import Image
from pydantic import JsonValue

from maxmatch.search.where import Begins, Comparison, Condition, Every, Some

Orientation = Literal["landscape", "portrait", "square"]

NAME, FOLDER, TAKEN = "name", "folder", "taken"
WIDTH, HEIGHT, ORIENTATION = "width", "height", "orientation"
BYTES, MODIFIED = "bytes", "modified"
_SQUARE = 1.05  # sides that differ by less look equal
_EXIF, _TAKEN_AT, _WRITTEN_AT, _TURN = 0x8769, 0x9003, 0x0132, 0x0112


def photo_facts(path: Path, root: Path) -> dict[str, JsonValue]:
    """The facts of a photo in or under `root`; only the head of the file is read.

    name; folder: within `root`, "" for `root` itself; taken: local time as 2024-05-31T18:02:11, by EXIF, else when the
    file was changed; width, height: as the picture is seen upright; orientation; bytes; modified: in nanoseconds.
    """
    state = path.stat()
    with Image.open(path) as image:
        width, height = image.size
        notes = image.getexif()
        taken = _taken(notes)
        if notes.get(_TURN, 1) in (5, 6, 7, 8):
            width, height = height, width
    folder = path.parent.relative_to(root).as_posix()
    return {
        NAME: path.name,
        FOLDER: "" if folder == "." else folder,
        TAKEN: (taken or datetime.fromtimestamp(state.st_mtime)).isoformat(timespec="seconds"),
        WIDTH: width,
        HEIGHT: height,
        ORIENTATION: orientation_of(width, height),
        BYTES: state.st_size,
        MODIFIED: state.st_mtime_ns,
    }


def orientation_of(width: int, height: int) -> Orientation:
    """How a picture of this size lies."""
    if max(width, height) < _SQUARE * min(width, height):
        return "square"
    return "landscape" if width > height else "portrait"


def facts_condition(
    folder: str | None = None, start: date | None = None, end: date | None = None, orientation: str | None = None
) -> Condition | None:
    """Photos in a folder or under it, taken from `start` to `end` (both days included), of one orientation."""
    parts: list[Condition] = []
    if folder:
        parts.append(Some((Comparison(FOLDER, "=", folder), Begins(FOLDER, f"{folder}/"))))
    if start is not None:
        parts.append(Comparison(TAKEN, ">=", start.isoformat()))
    if end is not None and end < date.max:
        parts.append(Comparison(TAKEN, "<", (end + timedelta(days=1)).isoformat()))
    if orientation is not None:
        parts.append(Comparison(ORIENTATION, "=", orientation))
    return None if not parts else parts[0] if len(parts) == 1 else Every(tuple(parts))


def _taken(notes: Image.Exif) -> datetime | None:
    """The camera's clock. Notes that make no sense count as none."""
    for value in (notes.get_ifd(_EXIF).get(_TAKEN_AT), notes.get(_WRITTEN_AT)):
        try:
            return datetime.strptime(str(value).strip("\0 "), "%Y:%m:%d %H:%M:%S")
        except ValueError:
            continue
    return None
