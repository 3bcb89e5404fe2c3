"""webdataset tars: pictures and captions of one base name are a sample.

    train-000000.tar, train-000001.tar, val-000000.tar      the split begins the name,
    train/000000.tar, val/000000.tar                        or is a folder

Captions are the lines of NAME.txt, or `caption` (or another name of `maxmatch.data.formats.columns`) in NAME.json,
whose other keys are metadata. The headers are read once; pictures only when they are asked for.
"""

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from maxmatch.core.files import whole
from maxmatch.core.progress import Advance, map_ahead, quiet
from maxmatch.data.dataset import IMAGE, DataError, LazyItems, Problem, Report, Split, give_up, refuse
from maxmatch.data.formats.columns import (
    CAPTION_COLUMNS,
    BadCell,
    TableRow,
    check_writable,
    find_columns,
    rows_of_split,
    split_name,
    splits_of_rows,
)
from maxmatch.data.formats.shared import (
    SUFFIXES,
    check_files,
    plain,
    read_item,
    write_folder,
)
from maxmatch.data.formats.tables import column_names

_BLOCK = 512
_OPEN_AT_ONCE = 64


class TarMember(NamedTuple):
    """A file within a tar."""

    tar: Path
    name: str
    offset: int
    size: int


class CutShort(DataError):
    """A tar that ends early or is damaged. The members before that are complete."""


def members(path: Path) -> Iterator[TarMember]:
    """The files in a tar, in order, their data skipped. Raises CutShort after the last that is whole, if the tar ends
    early or is damaged.
    """
    length = path.stat().st_size
    last = "its beginning"
    try:
        with tarfile.open(path, "r:", errors="replace") as tar:
            for info in tar:
                end = info.offset_data + info.size
                if end > length:
                    raise _cut(path, f"ends early, at byte {length}, within {info.name}, which extends to byte {end}")
                if info.isreg():
                    yield TarMember(path, info.name, info.offset_data, info.size)
                last = info.name
            _check_end(path, tar.offset, last)
    except tarfile.TarError as error:
        raise _cut(
            path, f"ends early or is damaged, at byte {length} of it or before, after {last} ({error})"
        ) from error


def _check_end(path: Path, offset: int, last: str) -> None:
    """A tar ends with blocks of zeros, which tell it from one that was cut between two files."""
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(_BLOCK)
    if len(block) < _BLOCK:
        raise _cut(path, f"ends early, at byte {offset + len(block)}, after {last}")
    if any(block):
        raise _cut(path, f"is damaged at byte {offset}, after {last}")


def _cut(path: Path, what: str) -> CutShort:
    cure = "Copy or download it again; a compressed tar has to be unpacked first."
    return CutShort(Problem(path, what, cure, fatal=True))


class TarItems(LazyItems):
    """The bytes of members, read when asked for, in any order, by any thread and any process it is sent to."""

    def __init__(self, found: Sequence[TarMember]) -> None:
        self._members = list(found)
        self._opened = lru_cache(_OPEN_AT_ONCE)(_Handle)

    def __len__(self) -> int:
        return len(self._members)

    def item(self, position: int) -> bytes:
        """The bytes of a member."""
        member = self._members[position]
        data = self._opened(member.tar).read(member.offset, member.size)
        if len(data) < member.size:
            what = f"{member.name} has {len(data)} bytes in place of {member.size}"
            raise DataError(Problem(member.tar, what, "It has changed since it was opened: read it again.", fatal=True))
        return data

    def where(self, index: int) -> Path:
        """The tar, and the member's name in it, as if it were a folder."""
        member = self._members[index]
        return member.tar / member.name

    def __getstate__(self) -> list[TarMember]:
        return self._members

    def __setstate__(self, state: list[TarMember]) -> None:
        self.__init__(state)  # type: ignore[misc]


class _Handle:
    """An open file. It is read without moving a position, so that threads and forked processes may share it, and
    closed when the last who reads it lets go.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at a place; fewer where the file ends."""
        return os.pread(self._descriptor, size, offset)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


_SPLIT = re.compile(r"(training|train|validation|valid|val|dev|testall|test)(?![a-z])", re.IGNORECASE)
_BRACES = re.compile(r"(.*)\{(\d+)\.\.(\d+)\}(.*\.tar)")
LOOKS_LIKE, KEEPS_METADATA = "tars like train-000000.tar", True


def recognises(path: Path) -> bool:
    """Whether this is a tar, a folder of them, or a name like train-{000000..000012}.tar."""
    return bool(tars_by_split(path))


def read(path: Path, report: Report = refuse) -> dict[str, Split]:
    """The splits of these tars; "train" where names do not say."""
    rows = [
        TableRow(tar / key, None, cells, split)
        for split, tars in tars_by_split(path).items()
        for tar in tars
        for key, cells in samples(tar, report)
    ]
    columns = find_columns(column_names(row.cells for row in rows))
    splits = {} if columns is None else splits_of_rows(rows, replace(columns, split=None), _locate, report, TarItems)
    if not splits:
        what = "no sample with a picture and a caption"
        give_up(report, Problem(path, what, "Expected members like 0001.jpg and 0001.txt or 0001.json."))
    return splits


def write(
    splits: Mapping[str, Split],
    path: Path,
    advance: Advance = quiet,
    workers: int = 1,
    max_samples: int = 10_000,
    max_bytes: int = 1 << 30,
) -> None:
    """Write a folder of tars for each split, each of at most so many samples, and of so many bytes unless a single
    sample is larger. An image is a sample, with all its captions in a .json.
    """
    check_writable(splits, "webdataset")
    check_files(splits)

    def fill(folder: Path) -> None:
        for name, split in splits.items():
            _write_split(split, folder / name, advance, workers, max_samples, max_bytes)

    write_folder(path, "webdataset", splits, fill, advance, max_samples=max_samples, max_bytes=max_bytes)


def _locate(row: TableRow, modality: str, cell: Any) -> tuple[str, TarMember]:
    assert isinstance(cell, TarMember)
    return row.file.relative_to(cell.tar.parent).as_posix(), cell


def tars_by_split(path: Path) -> dict[str, list[Path]]:
    """The tars by split."""
    found: dict[str, list[Path]] = {}
    if path.is_dir():
        files = sorted(path.glob("[!.]*.tar"))
        for tar in sorted(path.glob("[!.]*/[!.]*.tar")):
            found.setdefault(split_name(tar.parent.name), []).append(tar)
    elif braces := _BRACES.fullmatch(path.name):
        before, first, last, after = braces.groups()
        names = (f"{before}{number:0{len(first)}d}{after}" for number in range(int(first), int(last) + 1))
        files = [path.with_name(name) for name in names]
    else:
        files = [path] if path.suffix.lower() == ".tar" else []
    for tar in files:
        named = _SPLIT.match(tar.name)
        found.setdefault(split_name(named[1]) if named else "train", []).append(tar)
    return found


def samples(tar: Path, report: Report, bare: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """The samples of a tar, each with what a row of a table would hold. bare: a picture without a caption will do, and
    a caption without a picture.
    """
    if not tar.is_file():
        report(Problem(tar, "no such file", "Bring it back, or name the tars that there are.", fatal=True))
        return
    found: list[TarMember] = []
    cut = False
    try:
        found.extend(members(tar))
    except CutShort as error:
        report(error.problem)
        cut = True
    seen: set[str] = set()
    groups = [(key, list(parts)) for key, parts in groupby(found, key=_key) if key]
    with tar.open("rb") as file:
        for number, (key, parts) in enumerate(groups):
            try:
                if key in seen:
                    raise BadCell("a second sample of this name in one tar", "Give each its own name.")
                seen.add(key)
                yield key, _cells(parts, file, bare)
            except BadCell as bad:
                if not cut or number + 1 < len(groups):  # of the last, a part may lie beyond the cut
                    report(Problem(tar / key, bad.what, bad.cure))


def _key(member: TarMember) -> str:
    """What the members of a sample have in common: the name up to the first dot after the last slash."""
    folder, slash, name = member.name.removeprefix("./").lstrip("/").rpartition("/")
    base = name.partition(".")[0]
    return f"{folder}{slash}{base}" if base else ""


def _cells(parts: Sequence[TarMember], file: BinaryIO, bare: bool) -> dict[str, Any]:
    """What a row of a table would hold."""
    by_suffix: dict[str, TarMember] = {}
    for part in parts:
        suffix = part.name.rpartition("/")[2].partition(".")[2].lower()
        if by_suffix.setdefault(suffix, part) is not part:
            raise BadCell(f"two members .{suffix} in one sample", "Give each sample its own name.")
    picture = next((part for suffix, part in by_suffix.items() if f".{suffix}" in SUFFIXES), None)
    if picture is None and not (bare and by_suffix.keys() & {"txt", "json"}):
        raise BadCell(f"no picture, only {', '.join(by_suffix)}", f"Expected {', '.join(sorted(SUFFIXES))}.")
    cells: dict[str, Any] = _object(by_suffix["json"], file) if "json" in by_suffix else {}
    text = _text(by_suffix["txt"], file) if "txt" in by_suffix else ""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    name = next((name for known in CAPTION_COLUMNS for name in cells if name.lower() == known and cells[name]), None)
    captions = lines if name is None else cells.pop(name)
    if not captions and not (bare and picture is not None):
        raise BadCell("no caption", "Expected a .txt, or a .json with 'caption'.")
    if lines and captions not in (text.strip(), lines):
        raise BadCell("the captions in .txt and in .json differ", "Remove one of them.")
    others = {name: cell for name, cell in cells.items() if name.lower() not in ("image", "caption")}
    found = {"image": picture, "caption": captions or None}
    return {**{name: cell for name, cell in found.items() if cell is not None}, **others}


def _text(part: TarMember, file: BinaryIO) -> str:
    file.seek(part.offset)
    try:
        return file.read(part.size).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"byte {error.object[error.start]:#04x} at place {error.start + 1} of {part.name} is not UTF-8"
        raise BadCell(what, "Write it as UTF-8.") from None


def _object(part: TarMember, file: BinaryIO) -> dict[str, Any]:
    try:
        cells = json.loads(_text(part, file))
    except (ValueError, RecursionError) as error:
        raise BadCell(f"{part.name} is not whole JSON ({error})", "Write it again.") from None
    if not isinstance(cells, dict):
        raise BadCell(f"{part.name} is not a JSON object, {{…}}", "Write it so.")
    return cells


def _write_split(split: Split, folder: Path, advance: Advance, workers: int, max_samples: int, max_bytes: int) -> None:
    """Write the tars that are not there yet."""
    values = split[IMAGE].values
    shard = done = 0
    while (folder / _shard_name(shard)).exists():
        done += sum(1 for _ in members(folder / _shard_name(shard))) // 2  # a picture and a .json a sample
        shard += 1
    if done:
        advance(done)
    pictures = map_ahead(lambda number: read_item(values[number]), range(done, len(values)), workers)
    rows = islice(rows_of_split(split, {IMAGE: range(len(values))}, listed=True), done, None)
    samples = (_sample(cells, *picture) for cells, picture in zip(rows, pictures, strict=True))
    sample = next(samples, None)
    while sample is not None:
        with whole(folder / _shard_name(shard)) as file, tarfile.open(fileobj=file, mode="w") as tar:
            count = 0
            while sample is not None and (not count or (count < max_samples and _end(tar, sample) <= max_bytes)):
                for name, data in sample.items():
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
                count += 1
                advance(1)
                sample = next(samples, None)
        shard += 1


def _shard_name(number: int) -> str:
    return f"{number:06d}.tar"


def _sample(cells: dict[str, Any], picture: bytes, suffix: str) -> dict[str, bytes]:
    """The members of a sample."""
    name = f"{cells.pop('image'):08d}"
    return {f"{name}{suffix}": picture, f"{name}.json": json.dumps(cells, ensure_ascii=False, default=plain).encode()}


def _end(tar: tarfile.TarFile, sample: Mapping[str, bytes]) -> int:
    """How long the tar would be with this sample, end marks left aside."""
    blocks = (1 + -(-len(data) // tarfile.BLOCKSIZE) for data in sample.values())
    return tar.offset + sum(blocks) * tarfile.BLOCKSIZE
