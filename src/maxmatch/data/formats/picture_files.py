"""The files of pictures: their kinds, names that are safe anywhere, and reading and copying them in threads."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from maxmatch.data.formats.writing import whole_file
from maxmatch.data.items import IMAGE
from maxmatch.data.problems import DataError, Problem

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
_BEGINNINGS = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp"}
_TIFF = (b"II*\x00", b"MM\x00*")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 80

T = TypeVar("T")
U = TypeVar("U")


def read_item(value: Any, modality: str = IMAGE) -> tuple[bytes, str]:
    """The bytes of a picture (or of another file), and the suffix of a file that holds them."""
    if isinstance(value, bytes):
        return value, _suffix(value, modality)
    if not isinstance(value, str | Path):
        raise ValueError(features_refused(value, modality))
    path = Path(value)
    try:
        data = path.read_bytes()
    except OSError as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else f"not readable ({error.strerror})"
        raise DataError(Problem(path, what, "Bring it back, or take its captions out.", fatal=True)) from error
    suffix = path.suffix.lower()
    return data, suffix if suffix in SUFFIXES or (modality != IMAGE and suffix) else _suffix(data, modality)


def features_refused(value: Any, modality: str) -> str:
    """The message for what is neither a file nor the bytes of one."""
    return (
        f"{modality}: expected files (paths or bytes), got {type(value).__name__}. "
        "Arrays of features are written in the format 'precomp'."
    )


def safe_stems(ids: Iterable[str], taken: set[str]) -> Iterator[str]:
    """A file's name, without suffix, for each id: letters, digits, - and _, unlike all others and those taken already,
    also where upper and lower case are the same.
    """
    for name in ids:
        base = name.replace("\\", "/").rsplit("/", 1)[-1]
        if Path(base).suffix.lower() in SUFFIXES:
            base = base[: base.rindex(".")]
        stem = base = _UNSAFE.sub("-", base).strip("-")[:_LONGEST_NAME] or "item"
        number = 1
        while stem.lower() in taken:
            number += 1
            stem = f"{base}-{number}"
        taken.add(stem.lower())
        yield stem


def copied(values: Sequence[Any], stems: Sequence[str], folder: Path, modality: str, workers: int) -> Iterator[str]:
    """Write each item to a file of its own and say its name. A file that is there already and is the same is kept."""

    def copy(number: int) -> str:
        data, suffix = read_item(values[number], modality)
        path = folder / f"{stems[number]}{suffix}"
        if not (path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data):
            with whole_file(path) as file:
                file.write(data)
        return path.name

    return in_order(copy, range(len(values)), workers)


def in_order(function: Callable[[T], U], items: Iterable[T], workers: int) -> Iterator[U]:
    """The function of each item, in order, computed in threads that run no more than a few items ahead."""
    waiting: deque[Future[U]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= 4 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _suffix(data: bytes, modality: str) -> str:
    """The suffix that fits these bytes, as far as that can be seen."""
    if data.startswith(_TIFF):
        return ".tif"
    other = ".jpg" if modality == IMAGE else ".bin"
    return next((suffix for beginning, suffix in _BEGINNINGS.items() if data.startswith(beginning)), other)
