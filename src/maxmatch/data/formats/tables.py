"""A table of captions beside pictures: CSV, TSV, JSON lines or Parquet.

    captions.csv                    image, caption[, split, image_id, caption_id, group, …]
    train.csv val.csv test.csv      or one such table for each split
    images/…

A row is a caption, or an image with a list of them. The path of a picture counts from the table's folder and does not
leave it. `maxmatch.data.formats.columns` says what the columns may be called, and what becomes of others.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from maxmatch.data.formats.columns import BadCell, Columns, Row, find_columns, missing_columns, split_name
from maxmatch.data.formats.gather import gather
from maxmatch.data.formats.picture_files import check_files, copy_all
from maxmatch.data.formats.table_files import TABLES, value_of
from maxmatch.data.formats.table_writers import WRITERS, column_names
from maxmatch.data.formats.unfold import check_writable, unfold
from maxmatch.data.formats.writing import Advance, quietly, write_folder
from maxmatch.data.items import IMAGE, TEXT, Split
from maxmatch.data.problems import DataError, Problem, Report, give_up, refuse
from maxmatch.files import whole

_SPLIT_FILE = re.compile(r"(train|training|val|valid|validation|dev|test|testall)(-\d+-of-\d+)?")

Tables = Mapping[str, Sequence[Sequence[Path]]]
"""By split: the parts of its table. Of each part there may be several files that say the same."""


def recognises(path: Path) -> bool:
    """Whether this is a table, or a folder with one."""
    return bool(_candidates(path))


def read(
    path: Path,
    report: Report = refuse,
    images: Path | None = None,
    modalities: Mapping[str, str] | None = None,
) -> dict[str, Split]:
    """The splits of a table, "train" if it names none.

    images: the folder from which the paths of pictures count, if not the table's.
    modalities: the columns with the files of other modalities, e.g. {"audio": "audio_path"}.
    """
    files = _candidates(path)
    if not files:
        what, cure = "no table there", f"Expected a file that ends in {', '.join(TABLES)}, or a folder with one."
        give_up(report, Problem(path, what, cure))
    tables: dict[str, dict[str, list[Path]]] = {}
    for file in files:
        if match := _SPLIT_FILE.fullmatch(file.stem.lower()):
            tables.setdefault(split_name(match[1]), {}).setdefault(match[2] or "", []).append(file)
    if not tables:
        usable = [file for file in files if len(files) == 1 or _has_columns(file, modalities)]
        tables = {"train": {"": usable or files[:1]}}
    parts = {split: list(parts.values()) for split, parts in tables.items()}
    return read_tables(parts, report, images, modalities)


def read_tables(
    tables: Tables, report: Report, images: Path | None = None, modalities: Mapping[str, str] | None = None
) -> dict[str, Split]:
    """The splits of these tables, each of the split it is listed under unless a column says otherwise."""
    splits: dict[str, Split] = {}
    for name, parts in tables.items():
        one = partial(_read_files, split=name, report=report, images=images, modalities=modalities)
        for part in parts:
            for other in part[1:]:
                if not _agree(one(part[:1]), one([other])):
                    what, cure = f"holds other captions than {other.name} beside it", "Remove one, or give its path."
                    give_up(report, Problem(part[0], what, cure))
        found = one([part[0] for part in parts])
        if twice := splits.keys() & found.keys():
            what = f"holds rows of the split {min(twice)!r}, which has a table of its own"
            give_up(report, Problem(parts[0][0], what, "Move them there."))
        splits |= found
    return splits


def write(
    splits: Mapping[str, Split],
    path: Path,
    advance: Advance = quietly,
    workers: int = 1,
    kind: Literal["csv", "tsv", "jsonl", "parquet"] = "csv",
) -> None:
    """Write a folder with the table `captions.KIND`, one row for each caption, and copies of all pictures."""
    if kind not in WRITERS:
        raise ValueError(f"kind: expected one of {', '.join(WRITERS)}, got {kind!r}.")
    check_writable(splits, "table", modalities=None)
    check_files(splits)

    def fill(folder: Path) -> None:
        taken: dict[str, set[str]] = {}
        rows: list[dict[str, Any]] = []
        for name, split in splits.items():
            names: dict[str, list[str]] = {}
            for modality, items in split.items.items():
                if modality != TEXT:
                    place = "images" if modality == IMAGE else modality
                    others = taken.setdefault(place, set())
                    count = advance if modality == IMAGE else quietly
                    copies = copy_all(items, folder / place, others, workers, count, modality)
                    names[modality] = [f"{place}/{copy}" for copy in copies]
            rows += ({"split": name, **cells} for cells in unfold(split, names, listed=False))
        with whole(folder / f"captions.{kind}") as file:
            WRITERS[kind](file, rows)

    write_folder(path, "table", splits, fill, advance, kind=kind)


def tables_in(folder: Path) -> list[Path]:
    """The files in a folder that can be tables."""
    return sorted(file for file in folder.iterdir() if _is_table(file))


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES and not path.name.startswith(".") and path.is_file()


def _candidates(path: Path) -> list[Path]:
    return tables_in(path) if path.is_dir() else [path] if _is_table(path) else []


def _has_columns(file: Path, modalities: Mapping[str, str] | None) -> bool:
    """Whether this may be a table of captions, by its first row."""
    try:
        _, cells = next(TABLES[file.suffix.lower()](file, lambda problem: None), (0, {}))
    except DataError:
        return False
    return find_columns(cells, modalities) is not None


def _agree(a: Mapping[str, Split], b: Mapping[str, Split]) -> bool:
    """Whether two tables have the same captions for the same pictures, whatever else they say."""
    return a.keys() == b.keys() and all(
        list(a[name][modality].values) == list(b[name][modality].values)
        and np.array_equal(a[name][modality].groups, b[name][modality].groups)
        for name in a
        for modality in (IMAGE, TEXT)
    )


def _read_files(
    files: Sequence[Path], split: str, report: Report, images: Path | None, modalities: Mapping[str, str] | None
) -> dict[str, Split]:
    lines = {file: list(TABLES[file.suffix.lower()](file, report)) for file in files}
    names = column_names(cells for part in lines.values() for _, cells in part)
    if not names:
        what, cure = "no row that can be read", "Expected a line with the names of columns, and rows after it."
        give_up(report, Problem(files[0], what, cure))
    columns = find_columns(names, modalities)
    if columns is None:
        what, cure = missing_columns(names, modalities)
        give_up(report, Problem(files[0], what, cure))
    rows = []
    for file, part in lines.items():
        typed = partial(_typed, columns) if file.suffix.lower() in (".csv", ".tsv") else dict
        rows += [Row(file, line, typed(cells), split) for line, cells in part]
    # An image has several rows.
    inside = {file: cache(partial(path_inside, images or file.parent)) for file in files}

    def locate(row: Row, modality: str, cell: Any) -> tuple[str, Path]:
        return inside[row.file](cell) if isinstance(cell, str) else path_inside(row.file.parent, cell)

    splits = gather(rows, columns, locate, report)
    if not splits:
        give_up(report, Problem(files[0], "no row of it can be used", "See the problems before this one."))
    return splits


def _typed(columns: Columns, cells: Mapping[str, Any]) -> Mapping[str, Any]:
    """The cells of a file that knows only texts, metadata taken for what they say."""
    return {name: cell if name in columns.known else value_of(cell) for name, cell in cells.items()}


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
