"""Files that hold a picture: the one list of formats, and how those that Pillow does not read are opened.

HEIC pictures, the previews inside camera RAW files and the first frames of videos are read by libraries that extras
install. Nothing is registered with Pillow, so that what it reads does not depend on what was imported.
"""

import io
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image


class PictureFormat(NamedTuple):
    """The suffixes of its files; what reads it beside Pillow: a package, and the extra that installs it."""

    suffixes: tuple[str, ...]
    package: str | None = None
    extra: str | None = None


HEIC, RAW, VIDEO = "HEIC", "RAW", "VIDEO"
_DEMUXERS = {
    "mov": (".mp4", ".m4v", ".mov", ".3gp"),
    "matroska": (".mkv", ".webm"),
    "avi": (".avi",),
    "mpegts": (".mts", ".m2ts"),
    "mpeg": (".mpg", ".mpeg"),
    "asf": (".wmv",),
}
FORMATS = {
    "JPEG": PictureFormat((".jpg", ".jpeg")),  # also MPO, several pictures in one file
    "PNG": PictureFormat((".png",)),
    "WEBP": PictureFormat((".webp",)),
    "GIF": PictureFormat((".gif",)),
    "BMP": PictureFormat((".bmp",)),
    "TIFF": PictureFormat((".tif", ".tiff")),
    "AVIF": PictureFormat((".avif",)),
    HEIC: PictureFormat((".heic", ".heif", ".hif"), "pillow_heif", "heic"),
    RAW: PictureFormat(
        (
            *(".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".sr2", ".srf", ".orf", ".rw2", ".raf", ".pef"),
            *(".srw", ".rwl", ".3fr", ".iiq", ".kdc", ".erf", ".mrw", ".x3f"),
        ),
        "rawpy",
        "raw",
    ),
    VIDEO: PictureFormat(tuple(suffix for suffixes in _DEMUXERS.values() for suffix in suffixes), "av", "video"),
}
"""By name, which for what Pillow reads is Pillow's. Pillow reads more, some of it by starting programs."""
PILLOW_FORMATS = [name for name, known in FORMATS.items() if known.package is None]
SUFFIXES = frozenset(suffix for known in FORMATS.values() for suffix in known.suffixes)
"""Of files in folders."""
STILL_SUFFIXES = frozenset(suffix for name in (*PILLOW_FORMATS, HEIC) for suffix in FORMATS[name].suffixes)
"""Of pictures that can be told by their first bytes alone, as in tars."""
_FORMAT_OF = {suffix: name for name, known in FORMATS.items() for suffix in known.suffixes}
_HEIC_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"mif1", b"msf1")
_AVIF_BRANDS = (b"avif", b"avis")
_DATE = 0x0132
_SECONDS = 10.0  # to find the first frame of a video
_VIDEO_DATES = ("com.apple.quicktime.creationdate", "creation_time")


class MissingReaderError(ValueError):
    """A picture whose format is read by a package that is not installed. cure: the command that installs it."""

    def __init__(self, format: str) -> None:
        known = FORMATS[format]
        super().__init__(f"{format} files are read by {known.package}, which is not installed")
        self.cure = f"Run: pip install 'maxmatch[{known.extra}]'"


class NotAFileError(ValueError):
    """A pipe, a socket or a device that is named as a picture."""


def is_read(suffix: str) -> bool:
    """Whether files with this suffix can be read here: of a known format, and what reads it is installed."""
    known = FORMATS.get(_FORMAT_OF.get(suffix.lower(), ""))
    return known is not None and (known.package is None or find_spec(known.package) is not None)


def not_read(names: Iterable[str]) -> str:
    """One line about files that need a package: "212 HEIC, 3 CR2 not read: pip install 'maxmatch[heic,raw]'"."""
    suffixes = Counter(Path(name).suffix.lower() for name in names)
    counts = ", ".join(f"{count:,} {suffix[1:].upper()}" for suffix, count in suffixes.most_common())
    extras = dict.fromkeys(str(FORMATS[_FORMAT_OF[suffix]].extra) for suffix, _ in suffixes.most_common())
    return f"{counts} not read: pip install 'maxmatch[{','.join(extras)}]'"


def format_of(source: str | Path | bytes) -> str | None:
    """HEIC by the first bytes, whatever the name; RAW and VIDEO by the suffix; None: Pillow finds out."""
    named = None if isinstance(source, bytes) else _FORMAT_OF.get(Path(source).suffix.lower())
    return named if named in (RAW, VIDEO) else HEIC if brand_of(source) in _HEIC_BRANDS else None


def is_avif(source: object) -> bool:
    """Whether a file or its bytes are an AVIF picture, whatever its name."""
    return isinstance(source, str | Path | bytes) and brand_of(source) in _AVIF_BRANDS


def brand_of(source: str | Path | bytes) -> bytes:
    """What kind of ISO media file it is by its first bytes; empty where it is none."""
    if isinstance(source, bytes):
        head = source[:12]
    else:
        refuse_pipe(source)
        with open(source, "rb") as file:
            head = file.read(12)
    return head[8:] if head[4:8] == b"ftyp" else b""


def refuse_pipe(path: str | Path) -> None:
    """NotAFileError for what would be waited for: a pipe, a socket or a device."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise NotAFileError("a pipe, socket or device, not a file")


@contextmanager
def opened(source: str | Path | bytes, max_pixels: int) -> Iterator[Image.Image]:
    """The picture in a file or its bytes, with EXIF where it has any; not decoded yet, but for a video's frame."""
    if not isinstance(source, bytes):
        refuse_pipe(source)
    format = format_of(source)
    if format is not None and find_spec(str(FORMATS[format].package)) is None:
        raise MissingReaderError(format)
    if format in (RAW, VIDEO):
        assert not isinstance(source, bytes)
        with _preview(Path(source)) if format == RAW else _first_frame(Path(source), max_pixels) as image:
            yield image
        return
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
        if format == HEIC:
            from pillow_heif import HeifImageFile

            read: Any = HeifImageFile
            with read(file) as image:
                yield image
        else:
            with Image.open(file) as image:
                yield image


def _preview(path: Path) -> Image.Image:
    """The preview that the camera stored in a RAW file, with its EXIF data."""
    import rawpy

    try:
        with rawpy.imread(str(path)) as raw:
            preview: Any = raw.extract_thumb()
            taken = raw.other.timestamp
    except rawpy.LibRawError as error:
        why = error.args[0] if error.args else error
        raise ValueError(why.decode(errors="replace") if isinstance(why, bytes) else str(why)) from error
    if preview.format == rawpy.ThumbFormat.BITMAP:
        return _dated(Image.fromarray(preview.data), taken)
    return Image.open(io.BytesIO(preview.data), formats=PILLOW_FORMATS)


def _first_frame(path: Path, max_pixels: int) -> Image.Image:
    """The first frame of a video, upright."""
    import av

    try:
        return _decoded(path, max_pixels)
    except av.FFmpegError as error:
        raise ValueError(error.strerror) from error


def _decoded(path: Path, max_pixels: int) -> Image.Image:
    """The first frame. The container is the one of the file's suffix: a playlist, which may name other files and
    addresses, is none of them.
    """
    import av

    demuxer = next(name for name, suffixes in _DEMUXERS.items() if path.suffix.lower() in suffixes)
    only_here = {"protocol_whitelist": "file"}
    with av.open(str(path), format=demuxer, options=only_here, metadata_errors="ignore") as container:
        if not container.streams.video:
            raise ValueError("there is no video in it")
        stream = container.streams.video[0]
        pixels = stream.codec_context.width * stream.codec_context.height
        if pixels > max_pixels:
            raise Image.DecompressionBombError(f"a video ({pixels} pixels)")
        stream.thread_type = "NONE"  # a decoder with threads waits for more frames before it gives the first
        until = time.monotonic() + _SECONDS
        for packet in container.demux(stream):
            frame: Any
            for frame in packet.decode():
                image = frame.to_image().rotate(frame.rotation, expand=True)
                return _dated(image, _video_date(container.metadata))
            if time.monotonic() > until:
                raise ValueError(f"no frame of the video within {_SECONDS:g} seconds")
    raise ValueError("no frame of the video can be decoded")


def _video_date(metadata: dict[str, str]) -> datetime | None:
    """When a video was taken, local time: of the camera where it notes its zone, else of this machine."""
    for name in _VIDEO_DATES:
        try:
            known = datetime.fromisoformat(metadata[name])
        except (KeyError, ValueError):
            continue
        return known.replace(tzinfo=None) if name == _VIDEO_DATES[0] else known.astimezone().replace(tzinfo=None)
    return None


def _dated(image: Image.Image, taken: datetime | None) -> Image.Image:
    """The picture with this date in its EXIF data."""
    if taken is not None and taken.year > 1970:  # a clock that was never set
        image.getexif()[_DATE] = taken.strftime("%Y:%m:%d %H:%M:%S")
    return image
