"""What an index notes of a photo beside its set: the keys of its metadata, their values, and filters on them."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from PIL import Image, ImageFile
from pydantic import JsonValue

from maxmatch.model.images import MAX_PIXELS
from maxmatch.model.picture_files import opened
from maxmatch.search.filters import Begins, Comparison, Condition, Every, Missing, Some

Orientation = Literal["landscape", "portrait", "square"]

PATH, RELATIVE, NAME, FOLDER = "path", "relative_path", "name", "folder"
TAKEN, DATE, DATE_FROM = "taken", "date", "date_from"
WIDTH, HEIGHT, ORIENTATION = "width", "height", "orientation"
CAMERA, PLACE = "camera", "place"
BYTES, MODIFIED, SIZE, MTIME = "bytes", "modified", "size", "mtime"
KEYS = {
    *(PATH, RELATIVE, NAME, FOLDER, TAKEN, DATE, DATE_FROM, WIDTH, HEIGHT, ORIENTATION, CAMERA, PLACE),
    *(BYTES, SIZE, MODIFIED, MTIME),
}
_SQUARE = 1.05  # sides that differ by less look equal
_EXIF, _TAKEN_AT, _WRITTEN_AT, _TURN = 0x8769, 0x9003, 0x0132, 0x0112
_MAKE, _MODEL = 0x010F, 0x0110
_IPTC_PLACE = ((2, 92), (2, 90), (2, 95), (2, 101))  # sublocation, city, province, country


def photo_facts(path: Path, root: Path) -> dict[str, JsonValue]:
    """The facts of a photo in or under `root`, the same in the index of a folder and in one of `maxmatch encode`; only
    the head of the file is read.

    path: the whole one; relative_path: from `root`; name; folder: within `root`, "" for `root` itself; taken: local
    time as 2024-05-31T18:02:11 by EXIF, None where that has none; date: the same, else when the file was changed;
    date_from: "exif" or "file"; width, height: as the picture is seen upright; orientation; camera: by EXIF, and place:
    as it is written in the file (IPTC), None where it has none; bytes, size: of the file; modified: in nanoseconds,
    mtime: in seconds.
    """
    state = path.stat()
    with opened(path, MAX_PIXELS) as image:
        width, height = image.size
        notes = image.getexif()
        taken, camera, place = _taken(notes), camera_of(notes), place_of_photo(image)
        if notes.get(_TURN, 1) in (5, 6, 7, 8) and image.format != "TIFF":  # whose size is upright in Pillow
            width, height = height, width
    relative = path.relative_to(root)
    folder = relative.parent.as_posix()
    return {
        PATH: str(path),
        RELATIVE: relative.as_posix(),
        NAME: path.name,
        FOLDER: "" if folder == "." else folder,
        TAKEN: None if taken is None else taken.isoformat(timespec="seconds"),
        DATE: (taken or datetime.fromtimestamp(state.st_mtime)).isoformat(timespec="seconds"),
        DATE_FROM: "file" if taken is None else "exif",
        WIDTH: width,
        HEIGHT: height,
        ORIENTATION: orientation_of(width, height),
        CAMERA: camera,
        PLACE: place,
        BYTES: state.st_size,
        SIZE: state.st_size,
        MODIFIED: state.st_mtime_ns,
        MTIME: state.st_mtime,
    }


def orientation_of(width: int, height: int) -> Orientation:
    """How a picture of this size lies."""
    if max(width, height) < _SQUARE * min(width, height):
        return "square"
    return "landscape" if width > height else "portrait"


def facts_condition(
    folder: str | None = None,
    start: date | None = None,
    end: date | None = None,
    orientation: str | None = None,
    camera: str | None = None,
    place: str | None = None,
) -> Condition | None:
    """Photos in a folder or under it, taken from `start` to `end` (both days included), of one orientation, camera and
    place. Of one without `taken`, the time of its file counts.
    """
    parts: list[Condition] = []

    def dated(sign: Literal[">=", "<"], day: date) -> Condition:
        by_file = Every((Missing(TAKEN), Comparison(DATE, sign, day.isoformat())))
        return Some((Comparison(TAKEN, sign, day.isoformat()), by_file))

    if folder:
        parts.append(Some((Comparison(FOLDER, "=", folder), Begins(FOLDER, f"{folder}/"))))
    if start is not None:
        parts.append(dated(">=", start))
    if end is not None and end < date.max:
        parts.append(dated("<", end + timedelta(days=1)))
    wanted = ((ORIENTATION, orientation), (CAMERA, camera), (PLACE, place))
    parts += [Comparison(key, "=", value) for key, value in wanted if value]
    return None if not parts else parts[0] if len(parts) == 1 else Every(tuple(parts))


def _taken(notes: Image.Exif) -> datetime | None:
    """The camera's clock. Notes that make no sense count as none."""
    for value in (notes.get_ifd(_EXIF).get(_TAKEN_AT), notes.get(_WRITTEN_AT)):
        try:
            return datetime.strptime(str(value).strip("\0 "), "%Y:%m:%d %H:%M:%S")
        except ValueError:
            continue
    return None


def camera_of(notes: Mapping[int, Any]) -> str | None:
    """The maker and the model by EXIF: "Canon EOS 5D", once where the model names its maker."""
    make, model = text_of(notes.get(_MAKE)), text_of(notes.get(_MODEL))
    if make and model and not model.lower().startswith(make.split()[0].lower()):
        return f"{make} {model}"
    return model or make


def place_of_photo(image: Image.Image) -> str | None:
    """The place that a person or program wrote into the file (IPTC): "Colosseum, Rome, Lazio, Italy". Notes that make
    no sense count as none.
    """
    from PIL import IptcImagePlugin  # here: a search that reads no photo starts sooner

    notes: Mapping[Any, Any] = {}
    with suppress(Exception):  # what damaged notes make Pillow raise has no common class
        notes = (IptcImagePlugin.getiptcinfo(image) if isinstance(image, ImageFile.ImageFile) else None) or {}
    values = (notes.get(key) for key in _IPTC_PLACE)
    parts = [text_of(value) for value in values if isinstance(value, bytes)]
    return ", ".join(dict.fromkeys(part for part in parts if part)) or None


def text_of(value: Any) -> str | None:
    """A note as a text of at most 120 printable characters; None for others and for empty ones."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        return None
    return "".join(one for one in text if one.isprintable()).strip()[:120] or None
