"""Thumbnails of indexed pictures, and pictures that come with a request: limited before they are decoded."""

import io
import secrets
import threading
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from PIL import Image
from pydantic import BeforeValidator
from torch import Tensor

from maxmatch.model.images import ImageError, load_image
from maxmatch.server.api_schema import Refusal, not_found

# Small pictures of the indexed ones, made when first asked for and kept in memory up to a bound.

# A parameter of an address comes as text.
Size = Annotated[Literal[160, 320, 640, 1280], BeforeValidator(int)]
"""The longest side."""
_KEPT_BYTES = 96 * 2**20
_AT_ONCE = 2  # a large picture takes hundreds of megabytes while it is decoded


class Thumbnails:
    """WebP pictures, upright, without the notes of the original (place, camera)."""

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._known: OrderedDict[tuple[str, int, int, int], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._decoding = threading.Semaphore(_AT_ONCE)

    def make(self, path: Path, size: int) -> bytes:
        """The thumbnail of a file as it is now. FileNotFoundError, ImageError."""
        try:
            state = path.stat()
        except OSError as error:
            raise FileNotFoundError(f"{path}: no such file.") from error
        name = (str(path), state.st_mtime_ns, state.st_size, size)
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                self._known.move_to_end(name)
                return known
        with self._decoding:
            made = webp(load_image(path, at_least=size), size)
        with self._lock:
            if name not in self._known:
                self._known[name] = made
                self._bytes += len(made)
            while self._bytes > self._kept_bytes and self._known:
                self._bytes -= len(self._known.popitem(last=False)[1])
        return made


def webp(picture: Image.Image, size: int) -> bytes:
    """A picture with this longest side, or its own if that is smaller."""
    small = picture.copy()
    small.thumbnail((size, size), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "WEBP", quality=82, method=2)
    return file.getvalue()


# Pictures that come with a request: limited before they are decoded, and kept in memory for a while.

# What a browser shows. Pillow knows more formats, some of which start programs or are rarely looked after.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "MPO")
LARGEST_SIDE = 768
"""Of what is kept of a picture: no model looks more closely."""
_KEPT = 24


@dataclass(frozen=True)
class Upload:
    """A picture that was sent: made smaller, upright, and its set."""

    picture: Image.Image
    vectors: Tensor
    """(K, D)"""


def read_upload(data: bytes, max_pixels: int) -> Image.Image:
    """The picture upright, in RGB, no larger than is needed. Refused: what is no picture, damaged, or too large."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                if image.width * image.height > max_pixels:
                    raise _too_many_pixels(max_pixels)
                image.draft("RGB", (LARGEST_SIDE, LARGEST_SIDE))
                picture = load_image(image, max_pixels=max_pixels)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise _too_many_pixels(max_pixels) from None
        except (Refusal, MemoryError):
            raise
        except ImageError:
            raise _no_picture("The picture is damaged or cut short.") from None
        except Exception:  # what a damaged file makes Pillow raise has no common class
            raise _no_picture("This is no picture that can be read.") from None
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    return picture


class Uploads:
    """The last pictures that were sent, in memory only, under keys that cannot be guessed."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._known: OrderedDict[str, Upload] = OrderedDict()

    def keep(self, upload: Upload) -> str:
        """Its key. The one that was not used for longest is forgotten."""
        key = secrets.token_hex(16)
        self._known[key] = upload
        while len(self._known) > self._kept:
            self._known.popitem(last=False)
        return key

    def get(self, key: str) -> Upload:
        """The picture of a key, while it is kept."""
        found = self._known.get(key)
        if found is None:
            raise not_found("The server no longer has the picture that was searched with. Send it again.")
        self._known.move_to_end(key)
        return found


def _too_many_pixels(limit: int) -> Refusal:
    return Refusal(413, "too_large", f"The picture has more than {limit // 1_000_000} million pixels. Make it smaller.")


def _no_picture(what: str) -> Refusal:
    return Refusal(415, "no_picture", f"{what} Send a JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF file.")
