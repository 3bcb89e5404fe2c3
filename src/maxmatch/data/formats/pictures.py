"""Pictures written into a folder, a file each, with names that hold their ids."""

import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

from maxmatch.data.files import draft

_UNSAFE = re.compile(r'[\x00-\x1f\x7f"%*/:<>?\\|]|^\.|[. ]$')  # what some file system does not allow in a name
_LONGEST = 200  # bytes of a name; 255 is what file systems take, and a draft's name is longer
_BEGINNINGS = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"RIFF": ".webp", b"BM": ".bmp"}


def save_pictures(
    pictures: Iterable[tuple[str, Any]], folder: Path, advance: Callable[[int], None], workers: int = 1
) -> list[str]:
    """Write each picture, an id with a path or with bytes, to the folder, and say what the files are called.

    What an interrupted call has written is kept. The files are on the disk for good when the call returns.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    taken: set[str] = set()
    under_way: deque[Future[None]] = deque()
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        for name, value in pictures:  # not read in the threads: an archive can be read at one place at a time
            if not isinstance(value, Path | bytes):
                raise ValueError(
                    f"image {name!r}: expected a picture, the path of a file or bytes, got {type(value).__name__}. "
                    "Features have no pictures: choose a format of features instead."
                )
            names.append(_file_name(name, value, taken))
            under_way.append(pool.submit(_save, value, folder / names[-1]))
            if len(under_way) > 4 * workers:
                under_way.popleft().result()
                advance(1)
        for saved in under_way:
            saved.result()
            advance(1)
    if hasattr(os, "sync"):
        os.sync()  # once for all: to wait for each small file takes minutes
    return names


def _file_name(name: str, value: Path | bytes, taken: set[str]) -> str:
    """The id, what no file system would refuse in it, and the kind of picture. No two differ only in case."""
    suffix = value.suffix if isinstance(value, Path) else _kind(value)
    stem = _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)
    if len(stem.encode()) > _LONGEST or stem.casefold() in taken:
        stem = sha256(name.encode()).hexdigest()
    taken.add(stem.casefold())
    return stem + suffix


def _kind(data: bytes) -> str:
    return next((suffix for start, suffix in _BEGINNINGS.items() if data.startswith(start)), ".img")


def _save(value: Path | bytes, path: Path) -> None:
    """Write a picture, unless it is there: a file of the same size, for it got its name when it was whole."""
    if isinstance(value, Path) and not value.is_file():
        raise FileNotFoundError(f"{value}: no such picture. See what else is missing with: maxmatch data check")
    size = len(value) if isinstance(value, bytes) else value.stat().st_size
    if path.is_file() and path.stat().st_size == size:
        return
    if isinstance(value, bytes):
        draft(path).write_bytes(value)
    else:
        shutil.copyfile(value, draft(path))
    os.replace(draft(path), path)
