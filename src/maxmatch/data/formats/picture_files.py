"""The files of pictures: their kinds, names that are safe anywhere, and reading and copying them in threads."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from maxmatch.data.formats.writing import Advance
from maxmatch.data.items import IMAGE, TEXT, Items, Split
from maxmatch.data.problems import DataError, Problem
from maxmatch.files import whole

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
EXPECTED = f"Expected files that end in {', '.join(sorted(SUFFIXES))}; convert others, such as HEIC."
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
    path = Path(value)
    try:
        data = path.read_bytes()
    except OSError as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else f"not readable ({error.strerror})"
        raise DataError(Problem(path, what, "Bring it back, or take its captions out.", fatal=True)) from error
    suffix = path.suffix.lower()
    return data, suffix if suffix in SUFFIXES or (modality != IMAGE and suffix) else _suffix(data, modality)


def check_files(splits: Mapping[str, Split]) -> None:
    """Refuse items, other than texts, that are neither files nor the bytes of files: features, mostly."""
    for name, split in splits.items():
        for modality, items in split.items.items():
            first = items.values[0] if modality != TEXT and len(items) else b""
            if not isinstance(first, str | bytes | Path):
                raise ValueError(
                    f"split {name!r}: {modality}: expected files (paths or bytes), got {type(first).__name__}. "
                    "Arrays of features are written in the format 'precomp' or 'features'."
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


def copy_all(
    items: Items, folder: Path, taken: set[str], workers: int, advance: Advance, modality: str = IMAGE
) -> list[str]:
    """Write each item to a file of its own, named after its id, and say what the files are called. A file that is there
    already and is the same is kept. taken: names that others have, to which these are added.
    """
    stems = list(safe_stems(items.ids, taken))

    def copy(number: int) -> str:
        data, suffix = read_item(items.values[number], modality)
        path = folder / f"{stems[number]}{suffix}"
        if not (path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data):
            with whole(path) as file:
                file.write(data)
        return path.name

    names = []
    for name in in_order(copy, range(len(items)), workers):
        names.append(name)
        advance(1)
    return names


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
