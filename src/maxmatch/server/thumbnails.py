"""Small pictures of the indexed ones, made when first asked for and kept in memory up to a bound."""

import io
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Annotated, Literal

from PIL import Image
from pydantic import BeforeValidator

from maxmatch.images import load_image

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
