"""The files of indexed photos: what is noted in them, the files themselves, also as a zip file, and their folders."""

import io
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import Request
from fastapi.responses import FileResponse, JSONResponse
from PIL import Image
from starlette.types import Message, Receive, Scope, Send

from maxmatch.model.images import MAX_PIXELS
from maxmatch.model.picture_files import SUFFIXES, opened
from maxmatch.search.photos.facts import camera_of, place_of_photo, text_of
from maxmatch.server.api_schema import DetailsOut, Refusal, error_body, not_found
from maxmatch.server.security import LOOPBACK_NAMES, host_name, is_loopback

MOST_ZIPPED_BYTES = 4 * 10**9
_KEPT_FOR = 600.0  # seconds in which a prepared download can be fetched
_PREPARED = 32
_BLOCK = 2**18
# What browsers show; the rest is downloaded. Never SVG or HTML: these could run scripts.
_SHOWN_AS = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".bmp": "image/bmp",
    ".avif": "image/avif",
}
SHOWN_TYPES = frozenset(_SHOWN_AS.values())
_EXIF, _GPS = 0x8769, 0x8825
_LENS, _EXPOSURE, _APERTURE, _ISO, _FOCAL = 0xA434, 0x829A, 0x829D, 0x8827, 0x920A
_NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]')


def original_of(path: Path) -> Path:
    """The file of a photo, if it is one: a link that by now leads to something else than a picture is refused."""
    try:
        found = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise _missing() from None
    if not found.is_file() or found.suffix.lower() not in SUFFIXES or not os.access(found, os.R_OK):
        raise _missing()
    return found


def shown_type(path: Path) -> str | None:
    """The media type of a picture that browsers show; None for others."""
    return _SHOWN_AS.get(path.suffix.lower())


def _missing() -> Refusal:
    return not_found("The file of this picture is missing or cannot be read.")


class Original(FileResponse):
    """A file, or the parts of it that are asked for; parts that it does not have are refused as JSON, like all else."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        refused: Message | None = None

        async def checked(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] >= 400:
                refused = message
            if refused is None:
                await send(message)

        await super().__call__(scope, receive, checked)
        if refused is None:
            return
        if refused["status"] == 416:
            body = error_body("out_of_range", "Range: the file ends before these bytes.")
            headers = {name.decode(): value.decode() for name, value in refused["headers"] if name == b"content-range"}
        else:
            body, headers = error_body("bad_request", "Range: expected bytes of the file, as bytes=0-99."), {}
        await JSONResponse(body, refused["status"], headers)(scope, receive, send)


def details_of(path: Path, can_reveal: bool) -> DetailsOut:
    """What a photo's file says of where and how it was taken; only its head is read, and of a video its first frame."""
    notes: Mapping[int, Any] = {}
    exif, gps, place = notes, notes, None
    # What a damaged file, or damaged notes, make Pillow raise has no common class: then nothing is known.
    with suppress(Exception), opened(path, MAX_PIXELS) as image:
        # A PNG without notes would be decoded to look for some at its end.
        notes = Image.Exif() if image.format == "PNG" and "exif" not in image.info else image.getexif()
        exif, gps = notes.get_ifd(_EXIF), notes.get_ifd(_GPS)
        place = place_of_photo(image)
    latitude, longitude = _position(gps)
    return DetailsOut(
        path=str(path),
        shown=shown_type(path) is not None,
        can_reveal=can_reveal,
        camera=camera_of(notes),
        lens=text_of(exif.get(_LENS)),
        settings=_settings(exif),
        place=place,
        latitude=latitude,
        longitude=longitude,
    )


def _settings(exif: Mapping[int, Any]) -> str | None:
    """As "1/250 s, f/2.8, ISO 100, 35 mm"."""
    seconds, stop, focal = (_number(exif.get(key)) for key in (_EXPOSURE, _APERTURE, _FOCAL))
    iso = exif.get(_ISO)
    iso = _number(iso[0] if isinstance(iso, tuple) and iso else iso)
    parts = [
        seconds and (f"1/{round(1 / seconds)} s" if seconds < 0.4 else f"{seconds:g} s"),
        stop and f"f/{stop:g}",
        iso and f"ISO {iso:.0f}",
        focal and f"{focal:.0f} mm",
    ]
    return ", ".join(part for part in parts if part) or None


def _position(gps: Mapping[int, Any]) -> tuple[float, float] | tuple[None, None]:
    """Latitude and longitude in degrees; south and west are negative."""
    found = []
    for sign, value, negative, most in ((1, 2, "S", 90), (3, 4, "W", 180)):
        parts = gps.get(value)
        degrees = [_number(part, zero=True) for part in parts] if isinstance(parts, tuple) and len(parts) == 3 else []
        if len(degrees) != 3 or None in degrees:
            return None, None
        angle = sum((part or 0) / 60**place for place, part in enumerate(degrees))
        if angle > most:
            return None, None
        found.append(round(-angle if str(gps.get(sign, "")).strip("\0 ").upper() == negative else angle, 6))
    return (found[0], found[1]) if any(found) else (None, None)  # 0, 0 is what cameras without a position write


def _number(value: Any, zero: bool = False) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if 0 < number < 1e9 or (zero and number == 0) else None


class Download(NamedTuple):
    """Photos to be sent as one zip file: their names in it and their files."""

    files: list[tuple[str, Path]]
    size: int
    until: float


class Downloads:
    """Downloads that were asked for and are about to be fetched, under keys that cannot be guessed."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Download] = OrderedDict()

    def prepare(self, paths: Iterable[tuple[str, Path]]) -> tuple[str, Download]:
        """Photos by name and path, checked for their number and size; the key to fetch them by."""
        files, size = [], 0
        for name, path in zip_names(paths):
            try:
                found = original_of(path)
                size += found.stat().st_size
            except (Refusal, OSError):  # noted in the zip file
                found = path
            files.append((name, found))
        if size > MOST_ZIPPED_BYTES:
            most = f"{MOST_ZIPPED_BYTES / 1e9:.0f} GB"
            raise Refusal(413, "too_large", f"These photos have {size / 1e9:.1f} GB; one download has at most {most}.")
        key, made = secrets.token_hex(16), Download(files, size, time.monotonic() + _KEPT_FOR)
        self._known[key] = made
        while len(self._known) > _PREPARED:
            self._known.popitem(last=False)
        return key, made

    def get(self, key: str) -> Download:
        """A download that was prepared some minutes ago at most."""
        found = self._known.get(key)
        if found is None or found.until < time.monotonic():
            self._known.pop(key, None)
            raise not_found("This download is no longer prepared. Ask for it again.")
        return found


def zip_names(paths: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
    """Names that every system can unpack, each of them once: photo.jpg, photo (2).jpg."""
    used: set[str] = set()
    for name, path in paths:
        plain = _NOT_IN_NAMES.sub("_", name).strip(" .") or "photo"
        stem, suffix = os.path.splitext(plain)
        made, count = plain, 1
        while made.casefold() in used:
            count += 1
            made = f"{stem} ({count}){suffix}"
        used.add(made.casefold())
        yield made, path


def zipped(files: Sequence[tuple[str, Path]]) -> Iterator[bytes]:
    """A zip file of photos, piece by piece: no more than one block of it is in memory. A photo that is gone or cannot
    be read is left out, and named in a text file at the end; so is what has grown beyond the largest download.
    """
    pipe = _Pipe()
    missing, sent = [], 0
    with zipfile.ZipFile(pipe, "w") as archive:
        for name, path in files:
            try:
                if sent >= MOST_ZIPPED_BYTES:
                    raise _missing()
                source = original_of(path).open("rb")
            except (Refusal, OSError):
                missing.append(name)
                continue
            with source:
                about = zipfile.ZipInfo(name, _time_of(path))
                about.external_attr = 0o644 << 16
                with archive.open(about, "w", force_zip64=True) as entry:
                    while sent < MOST_ZIPPED_BYTES and (block := _read(source)):
                        sent += len(block)
                        entry.write(block)
                        yield pipe.taken()
        if missing:
            archive.writestr("missing photos.txt", "These could not be read:\n" + "\n".join(missing) + "\n")
    yield pipe.taken()


def _read(source: io.BufferedReader) -> bytes:
    try:
        return source.read(_BLOCK)
    except OSError:  # a disk that fails: the photo is cut short, the others are whole
        return b""


def _time_of(path: Path) -> tuple[int, int, int, int, int, int]:
    try:
        changed = datetime.fromtimestamp(path.stat().st_mtime)
    except (OSError, ValueError, OverflowError):
        changed = datetime(1980, 1, 1)
    changed = min(max(changed, datetime(1980, 1, 1)), datetime(2107, 12, 31))  # what a zip file can hold
    return (changed.year, changed.month, changed.day, changed.hour, changed.minute, changed.second)


class _Pipe(io.RawIOBase):
    """What is written, until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[bytes] = []

    def writable(self) -> bool:
        """It cannot be read, nor sought in: the zip file is written front to back."""
        return True

    def write(self, block: Any) -> int:
        """Keep a block."""
        self._blocks.append(bytes(block))
        return len(block)

    def taken(self) -> bytes:
        """What was written since the last time."""
        made = b"".join(self._blocks)
        self._blocks.clear()
        return made


# Showing a photo in the file manager opens a window on the machine that serves. So only a person who sits at that
# machine may ask for it: a request from this machine, under a name of this machine, that no proxy has passed on. The
# file manager is started without a shell, and gets a file that is in the index.

_PASSED_ON = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_SECONDS = 10


def is_local(request: Request) -> bool:
    """Whether a request comes from a person at this machine."""
    here = request.client is not None and is_loopback(request.client.host)
    named = host_name(request.headers.get("host", "")) in LOOPBACK_NAMES
    return here and named and not any(name in request.headers for name in _PASSED_ON)


def file_manager(path: Path) -> list[list[str]]:
    """Commands that show a file in its folder, the best first; none where there is no desktop."""
    if sys.platform == "darwin":
        return [["open", "-R", str(path)]]
    if sys.platform == "win32":
        return [["explorer", f"/select,{path}"]]
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return []
    selects = [
        "dbus-send", "--session", "--print-reply", "--dest=org.freedesktop.FileManager1", "--type=method_call",
        "/org/freedesktop/FileManager1", "org.freedesktop.FileManager1.ShowItems",
        f"array:string:{path.as_uri()}", "string:",
    ]  # fmt: skip
    commands = [selects, ["xdg-open", path.parent.as_uri()]]
    return [command for command in commands if shutil.which(command[0])]


def reveal(path: Path) -> None:
    """Show a file in the file manager of this machine."""
    for command in file_manager(path):
        nothing = subprocess.DEVNULL
        try:
            started = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
            failed = started.wait(_SECONDS)
        except subprocess.TimeoutExpired:  # some wait until their window is closed
            return
        except OSError:
            continue
        if not failed or sys.platform == "win32":  # whose explorer returns 1 when all went well
            return
    raise Refusal(409, "no_file_manager", "No file manager could be started on this machine.")
