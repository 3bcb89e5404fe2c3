"""webdataset tars: pictures and captions of one base name are a sample.

    train-000000.tar, train-000001.tar, val-000000.tar      the split begins the name,
    train/000000.tar, val/000000.tar                        or is a folder

Captions are the lines of NAME.txt, or `caption` (or another name of `maxmatch.data.formats.columns`) in NAME.json,
whose other keys are metadata. The headers are read once; pictures only when they are asked for.
"""

import codecs
import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from maxmatch.core.files import whole
from maxmatch.core.progress import Advance, map_ahead, quiet
from maxmatch.data.dataset import IMAGE, DataError, LazyItems, Problem, Report, Split, give_up, refuse
from maxmatch.data.formats.columns import (
    CAPTION_COLUMNS,
    TableRow,
    find_columns,
    rows_of_split,
    split_name,
    splits_of_rows,
)
from maxmatch.data.formats.shared import (
    BadCell,
    check_files,
    check_writable,
    json_object,
    plain,
    read_item,
    utf8,
    write_folder,
)
from maxmatch.data.formats.tables import column_names
from maxmatch.model.picture_files import STILL_SUFFIXES

_BLOCK = 512
_MOST_SAMPLES, _MOST_BYTES = 10_000, 1 << 30  # of a tar


class TarMember(NamedTuple):
    """A file within a tar."""

    tar: Path
    name: str
    offset: int
    size: int


def members(path: Path) -> tuple[list[TarMember], Problem | None]:
    """The files in a tar, in order, their data skipped; and what is wrong where it ends early or is damaged, the
    members before being whole.
    """
    length = path.stat().st_size
    found: list[TarMember] = []
    last, wrong = "its beginning", ""
    try:
        with tarfile.open(path, "r:", errors="replace") as tar:
            for info in tar:
                end = info.offset_data + info.size
                if end > length:
                    wrong = f"ends early, at byte {length}, within {info.name}, which extends to byte {end}"
                    break
                if info.isreg():
                    found.append(TarMember(path, info.name, info.offset_data, info.size))
                last = info.name
            else:  # a tar ends with blocks of zeros, which tell it from one that was cut between two files
                with path.open("rb") as file:
                    file.seek(tar.offset)
                    block = file.read(_BLOCK)
                if len(block) < _BLOCK:
                    wrong = f"ends early, at byte {tar.offset + len(block)}, after {last}"
                elif any(block):
                    wrong = f"is damaged at byte {tar.offset}, after {last}"
    except tarfile.TarError as error:
        wrong = f"ends early or is damaged, at byte {length} of it or before, after {last} ({error})"
    cure = "Copy or download it again; a compressed tar has to be unpacked first."
    return found, Problem(path, wrong, cure, fatal=True) if wrong else None


def tar_items(found: Sequence[TarMember]) -> LazyItems:
    """The bytes of members, read when asked for."""
    return LazyItems(list(found), _bytes)


def _bytes(member: TarMember) -> bytes:
    with member.tar.open("rb", buffering=0) as file:
        file.seek(member.offset)
        data = file.read(member.size)
    if len(data) < member.size:
        what = f"{member.name} has {len(data)} bytes in place of {member.size}"
        raise DataError(Problem(member.tar, what, "It has changed since it was opened: read it again.", fatal=True))
    return data


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
    splits = {} if columns is None else splits_of_rows(rows, replace(columns, split=None), _locate, report, tar_items)
    if not splits:
        what = "no sample with a picture and a caption"
        give_up(report, Problem(path, what, "Expected members like 0001.jpg and 0001.txt or 0001.json."))
    return splits


def write(splits: Mapping[str, Split], path: Path, advance: Advance = quiet, workers: int = 1) -> None:
    """Write a folder of tars for each split, each of at most so many samples, and of so many bytes unless a single
    sample is larger. An image is a sample, with all its captions in a .json.
    """
    check_writable(splits, "webdataset")
    check_files(splits)

    def fill(folder: Path) -> None:
        for name, split in splits.items():
            _write_split(split, folder / name, advance, workers)

    write_folder(path, "webdataset", splits, fill, advance, max_samples=_MOST_SAMPLES, max_bytes=_MOST_BYTES)


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
    found, cut = members(tar)
    if cut is not None:
        report(cut)
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
                if cut is None or number + 1 < len(groups):  # of the last, a part may lie beyond the cut
                    report(bad.at(tar / key, None))


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
    picture = next((part for suffix, part in by_suffix.items() if f".{suffix}" in STILL_SUFFIXES), None)
    if picture is None and not (bare and by_suffix.keys() & {"txt", "json"}):
        raise BadCell(f"no picture, only {', '.join(by_suffix)}", f"Expected {', '.join(sorted(STILL_SUFFIXES))}.")

    def content(suffix: str) -> bytes:
        file.seek(by_suffix[suffix].offset)
        return file.read(by_suffix[suffix].size).removeprefix(codecs.BOM_UTF8)

    cells = json_object(content("json"), by_suffix["json"].name) if "json" in by_suffix else {}
    text = utf8(content("txt"), by_suffix["txt"].name) if "txt" in by_suffix else ""
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


def _write_split(split: Split, folder: Path, advance: Advance, workers: int) -> None:
    """Write the tars that are not there yet."""
    values = split[IMAGE].values
    shard = done = 0
    while (folder / _shard_name(shard)).exists():
        found, wrong = members(folder / _shard_name(shard))
        if wrong is not None:
            raise DataError(wrong)
        done += len(found) // 2  # a picture and a .json per sample
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
            while sample is not None and (not count or (count < _MOST_SAMPLES and _end(tar, sample) <= _MOST_BYTES)):
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
