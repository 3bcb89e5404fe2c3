"""What formats share: numbered lines, picture files, and data sets that are written whole or not at all."""

import codecs
import hashlib
import json
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch.core.files import is_draft, lock, sync, whole, write_whole
from maxmatch.core.progress import Advance, map_ahead
from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Problem, Report, Split, give_up, refuse
from maxmatch.model.picture_files import FORMATS, SUFFIXES, format_of, is_avif

_BREAK = re.compile(r"\s*[\r\n]\s*")
_SPLIT_NAME = re.compile(r"\w+")


def raw_lines(path: Path, report: Report = refuse) -> Iterator[tuple[int, bytes]]:
    """Each line with its number, counted from 1, and its end, without the file's byte-order mark. UTF-16 is refused."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                give_up(report, Problem(path, "the text is UTF-16, expected UTF-8", "Save it as UTF-8.", 1))
            yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def read_lines(path: Path, report: Report = refuse) -> Iterator[tuple[int, str | None]]:
    r"""Each line with its number, counted from 1, without its end (\n or \r\n) and the file's byte-order mark.

    A line that is not UTF-8 is reported and comes as None, so that those after it keep their places.
    """
    for number, line in raw_lines(path, report):
        try:
            yield number, utf8(line.rstrip(b"\r\n"))
        except BadCell as bad:
            report(bad.at(path, number))
            yield number, None


class BadCell(Exception):
    """A line, or a cell of a row, that cannot be used; without a full stop, as in `Problem`."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.what, self.cure = what, cure

    def at(self, file: Path, line: int | None) -> Problem:
        """The problem that this is."""
        return Problem(file, self.what, self.cure, line)


def utf8(data: bytes, of: str = "the line") -> str:
    """The text in these bytes. Raises BadCell."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        what = f"not UTF-8: the byte 0x{data[error.start]:02x} at place {error.start + 1} of {of}"
        cure = "Save the file as UTF-8; if it is Latin-1: iconv -f latin1 -t utf-8 FILE > NEW."
        raise BadCell(what, cure) from None


def json_object(data: bytes, of: str = "the line") -> dict[str, Any]:
    """The JSON object in these bytes. Raises BadCell."""
    text = utf8(data, of)
    try:
        cells = json.loads(text)
    except (ValueError, RecursionError) as error:
        cure = "It may be cut short: write it again, or remove it."
        raise BadCell(f"not a whole JSON object in {of} ({error})", cure) from None
    if not isinstance(cells, dict):
        raise BadCell(f"expected a JSON object, {{…}}, in {of}, found {text.strip()[:40]}", "Write one object there.")
    return cells


def path_inside(folder: Path, cell: Any) -> tuple[str, Path]:
    """A file by its path from a folder, which it must not leave: the path as one writes it, and the file."""
    if not isinstance(cell, str) or not cell.strip() or "\0" in cell:
        raise BadCell(f"expected the path of a file, found {cell!r}"[:100], "Fill it in, or remove the row.")
    if "://" in cell:
        raise BadCell(f"{cell!r} is an address: nothing is fetched", "Fetch the files, and give their paths.")
    path = posixpath.normpath(cell)
    slashes = posixpath.normpath(cell.replace("\\", "/"))
    if slashes.startswith(("/", "../")) or slashes in (".", "..") or re.match("[A-Za-z]:", slashes):
        raise BadCell(
            f"{cell!r} leaves the folder {folder}", "Move the file into it, or name its folder in the option 'images'."
        )
    return path, folder / path


def one_line(text: str) -> str:
    """The text without space around it, and with a space for each line break in it."""
    text = text.strip()
    return _BREAK.sub(" ", text) if "\n" in text or "\r" in text else text


def check_writable(
    splits: Mapping[str, Split],
    format: str,
    names: Collection[str] | None = None,
    others: bool = False,
    pairs: bool = False,
) -> None:
    """Refuse what a format of pictures and captions cannot hold.

    names: the splits that it knows, if not any. others: whether it holds other modalities, too. pairs: whether each
    group has exactly one picture, and captions that are not empty.
    """
    if not splits:
        raise ValueError(f"{format}: no split to write.")
    for name, split in splits.items():
        if names is not None and name not in names:
            raise ValueError(f"split {name!r}: {format} knows {', '.join(names)}. Rename it, or leave it out.")
        if not _SPLIT_NAME.fullmatch(name):
            raise ValueError(f"split {name!r}: expected a name of letters, digits and _. Rename it.")
        if not {IMAGE, TEXT} <= set(split.items) or (not others and len(split.items) > 2):
            raise ValueError(
                f"split {name!r} has {', '.join(split.items)}: {format} holds {IMAGE} and {TEXT}. "
                "Pictures alone are written as 'folder', other modalities as 'table'."
            )
        if pairs and len(split[IMAGE]) != split.size:
            raise ValueError(
                f"split {name!r} has {len(split[IMAGE])} images in {split.size} groups: {format} holds one per group. "
                "Choose another format."
            )
        if pairs and not split.size:
            raise ValueError(f"split {name!r} is empty. Leave it out.")
        for caption, text in zip(split[TEXT].ids, split[TEXT].values, strict=True) if pairs else ():
            if not text.strip():
                raise ValueError(f"split {name!r}, caption {caption!r} is empty: leave it out, or write one.")


MANIFEST = "maxmatch.json"
PARTIAL = ".partial"
_SAMPLE = 16  # items by which is judged whether two data sets are the same, where all would take too long


def write_folder(
    path: Path,
    format: str,
    splits: Mapping[str, Split],
    fill: Callable[[Path], None],
    advance: Advance,
    **options: object,
) -> None:
    """Have `fill` fill a folder, which gets the name `path` when all is done. Where the same data are there already,
    nothing happens. The folder is a hidden one beside its place, `.NAME.partial`, in which every file is complete:
    after an interruption it holds what was done until then.

    options: whatever else decides what the files will be.
    """
    path = path.expanduser().resolve()
    manifest = _manifest(format, splits, options)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        if not path.is_dir() or _content(path) != manifest["content"]:
            raise FileExistsError(f"{path}: is there and holds something else. Give a new folder, or remove this one.")
        advance(sum(len(split[IMAGE]) for split in splits.values()))
        return
    draft = path.with_name(f".{path.name}{PARTIAL}")
    if draft.exists() and _content(draft) != manifest["content"]:
        _discard(draft)
    draft.mkdir(parents=True, exist_ok=True)
    if not (draft / MANIFEST).exists():
        write_whole(draft / MANIFEST, json.dumps(manifest, indent=2))
    with (draft / MANIFEST).open("r+b") as file:
        lock(file, path)
        fill(draft)
        for folder, _, _ in os.walk(draft):
            sync(Path(folder))
        if path.exists():
            path.rmdir()
        os.rename(draft, path)
    sync(path.parent)


def plain(value: object) -> Any:
    """What JSON does not know, as what it does: numpy's numbers and arrays."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise ValueError(f"metadata: expected texts, numbers, lists and dicts, got {type(value).__name__}. Convert it.")


def _discard(draft: Path) -> None:
    """Remove what a write of other data left behind; never a folder that is somebody's own."""
    if _content(draft) is None and any(not is_draft(other.name, MANIFEST) for other in draft.iterdir()):
        raise FileExistsError(f"{draft}: expected what an interrupted write left behind. Move it elsewhere.")
    shutil.rmtree(draft)


def _look(items: Items) -> list[object]:
    """What tells items other than texts from others: the size of every file, or the content of a few."""
    numbers = range(len(items))
    if len(items) and not isinstance(items.values[0], Path):
        numbers = np.unique(np.linspace(0, len(items) - 1, _SAMPLE).astype(np.int64)).tolist()
    return [_mark(items.values[number]) for number in numbers]


def _mark(value: object) -> object:
    if isinstance(value, Path):
        return value.stat().st_size if value.is_file() else None
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else str(value)


def _content(folder: Path) -> str | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return str(manifest["content"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _manifest(format: str, splits: Mapping[str, Split], options: Mapping[str, object]) -> dict[str, Any]:
    """The manifest of a folder. Its `content` differs where texts, ids, groups or metadata do, or the sizes of
    files, or some of the features, at the price of a look at each file.
    """
    digest = hashlib.sha256()

    def take(*parts: object) -> None:
        digest.update(json.dumps(parts, default=plain).encode() + b"\n")

    take(format, sorted(options.items()))
    for name, split in splits.items():
        for modality, items in split.items.items():
            take(name, modality, len(items), list(items.ids), items.groups, items.metadata and list(items.metadata))
            take(list(items.values) if modality == TEXT else _look(items))
    return {
        "written_by": "maxmatch",
        "format": format,
        "splits": {
            name: {modality: len(items) for modality, items in split.items.items()} for name, split in splits.items()
        },
        "content": digest.hexdigest(),
    }


EXPECTED = f"Expected files of these formats: {', '.join(FORMATS)}. Convert others."
_BEGINNINGS = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp"}
_BEGINNINGS |= dict.fromkeys((b"II*\x00", b"MM\x00*"), ".tif")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 80


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
    for name in map_ahead(copy, range(len(items)), workers):
        names.append(name)
        advance(1)
    return names


def _suffix(data: bytes, modality: str) -> str:
    """The suffix that fits these bytes, as far as that can be seen."""
    other = ".avif" if is_avif(data) else ".heic" if format_of(data) else ".jpg" if modality == IMAGE else ".bin"
    return next((suffix for beginning, suffix in _BEGINNINGS.items() if data.startswith(beginning)), other)
