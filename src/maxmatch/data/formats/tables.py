"""A table of captions beside pictures: CSV, TSV, JSON lines or Parquet.

    captions.csv                    image, caption[, split, image_id, caption_id, group, …]
    train.csv val.csv test.csv      or one such table for each split
    images/…

A row is a caption, or an image with a list of them. Paths of pictures are relative to the table's folder and must not
leave it. `maxmatch.data.formats.columns` lists the names of columns, and what becomes of others.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from maxmatch.core.files import whole
from maxmatch.core.progress import Advance, quiet
from maxmatch.data.dataset import IMAGE, TEXT, DataError, Problem, Report, Split, give_up, refuse
from maxmatch.data.formats.columns import (
    IMAGE_COLUMNS,
    Columns,
    TableRow,
    find_columns,
    needed_columns,
    rows_of_split,
    split_name,
    splits_of_rows,
)
from maxmatch.data.formats.shared import (
    BadCell,
    check_files,
    check_writable,
    copy_all,
    json_object,
    path_inside,
    plain,
    raw_lines,
    utf8,
    write_folder,
)

if TYPE_CHECKING:
    import pyarrow as pa


_JSON_BEGINS = frozenset('"[{-0123456789tfn')
_EMPTY = ("an empty line", "Remove it.")

Lines = Iterator[tuple[int, dict[str, Any]]]


def json_lines(path: Path, report: Report) -> Lines:
    """The objects of a file with one per line."""
    for number, line in enumerate(_text_lines(path, report), start=1):
        try:
            if not line.strip():
                raise BadCell(*_EMPTY)
            yield number, json_object(line)
        except BadCell as bad:
            report(bad.at(path, number))


def csv_lines(path: Path, report: Report, delimiter: str = ",") -> Lines:
    """The records of a file of fields separated by commas (or tabs), each with the line it begins in. A field may hold
    line breaks between quotes.
    """
    lines = _text_lines(path, report)
    names: list[str] | None = None
    for first, last, cells, error in _records(lines, delimiter):
        number = first
        try:
            for number in range(first, last + 1):
                utf8(lines[number - 1])
            number = first
            if error is not None:
                what = f"a quote is left open, or stands within a field ({error})"
                raise BadCell(what, "Close it; within a field write it twice, and quote the field.")
            if not cells:
                raise BadCell(*_EMPTY)
            if names is None:
                if twice := {name for name in cells if name.strip() and cells.count(name) > 1}:
                    raise BadCell(f"the columns {', '.join(sorted(twice))} come twice", "Rename one of each.")
                names = [name.strip() for name in cells]
            elif len(cells) != len(names):
                what = f"{len(cells)} fields, where the first line has {len(names)}"
                raise BadCell(what, "Quote a field that holds the separator.")
            else:
                yield first, {name: cell for name, cell in zip(names, cells, strict=True) if name}
        except BadCell as bad:
            if names is None:
                give_up(report, bad.at(path, number))
            report(bad.at(path, number))


def parquet_lines(path: Path, report: Report) -> Lines:
    """The rows of a Parquet file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError(f"{path}: Parquet needs pyarrow. Run: pip install 'maxmatch[data]'") from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for column in file.schema_arrow:
                kinds = (pa.types.is_struct, pa.types.is_binary, pa.types.is_large_binary)
                if column.name.lower() in IMAGE_COLUMNS and any(holds(column.type) for holds in kinds):
                    what = f"the column {column.name!r} holds {column.type}, not the paths of pictures"
                    cure = "Load it with datasets.load_dataset, and give that to `huggingface.from_loaded`."
                    give_up(report, Problem(path, what, cure))
            for batch in file.iter_batches(batch_size=1024):
                for cells in batch.to_pylist():
                    number += 1
                    yield number, cells
    except (pa.ArrowException, OSError) as error:
        cure = "It may be cut short: copy or write it again."
        give_up(report, Problem(path, f"not a readable Parquet file ({error})", cure))


TABLES: dict[str, Callable[[Path, Report], Lines]] = {
    ".csv": csv_lines,
    ".tsv": partial(csv_lines, delimiter="\t"),
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".parquet": parquet_lines,
}


def cell_of(value: Any) -> str:
    """How a CSV file holds metadata: a text as it is, anything else, and a text that looks like it, as JSON."""
    if isinstance(value, str) and value and value_of(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def value_of(cell: str) -> Any:
    """The metadata in a cell of a CSV file: None if empty, parsed if it is written exactly as JSON, else its text."""
    if not cell:
        return None
    if cell[0] not in _JSON_BEGINS:
        return cell
    try:
        value = json.loads(cell, parse_constant=_not_json)
        return value if json.dumps(value, ensure_ascii=False) == cell else cell
    except (ValueError, RecursionError):
        return cell


def _not_json(name: str) -> None:
    raise ValueError(name)  # Python would take NaN and Infinity


def _text_lines(path: Path, report: Report) -> list[bytes]:
    """The lines with their ends, less the empty lines at the end."""
    lines = [line for _, line in raw_lines(path, report)]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _records(lines: Sequence[bytes], delimiter: str) -> Iterator[tuple[int, int, list[str], csv.Error | None]]:
    """Records with their first and last line, or the error of a malformed one, after which reading continues
    with the line after that one's first: a quote left open would swallow the rest of the file.
    """
    start = 0
    while start < len(lines):
        texts = (lines[number].decode("utf-8", "surrogateescape") for number in range(start, len(lines)))
        reader = csv.reader(texts, delimiter=delimiter, strict=True)
        begun = start
        try:
            for cells in reader:
                yield begun + 1, start + reader.line_num, cells, None
                begun = start + reader.line_num
            return
        except csv.Error as error:
            yield begun + 1, begun + 1, [], error
            start = begun + 1


TableRows = Sequence[Mapping[str, Any]]


def column_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """All columns of these rows, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def write_csv(file: BinaryIO, rows: TableRows, delimiter: str = ",") -> None:
    """Fields separated by commas (or tabs), quoted where they have to be. Metadata that is no text is JSON."""
    names = column_names(rows)
    special = re.compile(rf'[{delimiter}"\r\n]')

    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"' if special.search(cell) else cell

    def field(name: str, value: Any) -> str:
        if value is None:
            return ""
        return quoted(cell_of(_plain(value)) if "." in name else value)

    file.write((delimiter.join(map(quoted, names)) + "\n").encode())
    for row in rows:
        file.write((delimiter.join(field(name, row.get(name)) for name in names) + "\n").encode())


def write_jsonl(file: BinaryIO, rows: TableRows) -> None:
    """One JSON object per line."""
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False, default=plain).encode() + b"\n")


def write_parquet(file: BinaryIO, rows: TableRows) -> None:
    """A Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    columns = {name: arrow_column(name, [row.get(name) for row in rows]) for name in column_names(rows)}
    parquet.write_table(pa.table(columns), file)


def arrow_column(name: str, values: Sequence[Any]) -> "pa.Array[Any]":
    """These values as a column of one type, if there is one that keeps them as they are."""
    import pyarrow as pa

    values = [_plain(value) for value in values]
    try:
        column: pa.Array[Any] = pa.array(values)
        if column.to_pylist() == values:
            return column
    except (pa.ArrowException, OverflowError):
        pass
    kinds = ", ".join(sorted({type(value).__name__ for value in values}))
    raise ValueError(
        f"the column {name!r} holds values of different kinds ({kinds}), which Parquet and Arrow do not. "
        "Write a table of the kind 'csv' or 'jsonl'."
    )


def _plain(value: Any) -> Any:
    """Without numpy's numbers and arrays."""
    return json.loads(json.dumps(value, default=plain)) if not isinstance(value, str | int | float | None) else value


WRITERS: dict[str, Callable[[BinaryIO, TableRows], None]] = {
    "csv": write_csv,
    "tsv": partial(write_csv, delimiter="\t"),
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


_SPLIT_FILE = re.compile(r"(train|training|val|valid|validation|dev|test|testall)(-\d+-of-\d+)?")

Tables = Mapping[str, Sequence[Sequence[Path]]]
"""By split: the parts of its table. Of each part there may be several files that say the same."""
LOOKS_LIKE, KEEPS_METADATA = "captions.csv, .tsv, .jsonl or .parquet", True


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
    """The splits of these tables, each of the split it is listed under unless a column names another."""
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
    advance: Advance = quiet,
    workers: int = 1,
    kind: Literal["csv", "tsv", "jsonl", "parquet"] = "csv",
) -> None:
    """Write a folder with the table `captions.KIND`, one row for each caption, and copies of all pictures."""
    if kind not in WRITERS:
        raise ValueError(f"kind: expected one of {', '.join(WRITERS)}, got {kind!r}.")
    check_writable(splits, "table", others=True)
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
                    count = advance if modality == IMAGE else quiet
                    copies = copy_all(items, folder / place, others, workers, count, modality)
                    names[modality] = [f"{place}/{copy}" for copy in copies]
            rows += ({"split": name, **cells} for cells in rows_of_split(split, names, listed=False))
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
    columns = needed_columns(names, files[0], report, modalities)
    rows = []
    for file, part in lines.items():
        typed = partial(_typed, columns) if file.suffix.lower() in (".csv", ".tsv") else dict
        rows += [TableRow(file, line, typed(cells), split) for line, cells in part]
    # An image has several rows.
    inside = {file: cache(partial(path_inside, images or file.parent)) for file in files}

    def locate(row: TableRow, modality: str, cell: Any) -> tuple[str, Path]:
        return inside[row.file](cell) if isinstance(cell, str) else path_inside(row.file.parent, cell)

    splits = splits_of_rows(rows, columns, locate, report)
    if not splits:
        give_up(report, Problem(files[0], "no row of it can be used", "See the problems before this one."))
    return splits


def _typed(columns: Columns, cells: Mapping[str, Any]) -> Mapping[str, Any]:
    """The cells of a file that stores only text; metadata are parsed as JSON where possible."""
    return {name: cell if name in columns.known else value_of(cell) for name, cell in cells.items()}
