"""Tables, texts and tars whose rows hold pictures, captions or both. Whatever else a row says is metadata."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from maxmatch.data.formats.columns import CAPTION_COLUMNS, IMAGE_COLUMNS, BadCell
from maxmatch.data.formats.lines import read_lines
from maxmatch.data.formats.shards import samples, tars_by_split
from maxmatch.data.formats.table_files import TABLES, value_of
from maxmatch.data.formats.tables import path_inside
from maxmatch.data.formats.tars import Member, TarItems
from maxmatch.data.items import IMAGE, TEXT
from maxmatch.data.problems import DataError, Problem, Report
from maxmatch.search.listing import LeftOut, Listing, noting, plain

_COLUMNS = {IMAGE: IMAGE_COLUMNS, TEXT: CAPTION_COLUMNS}
_IDS = {IMAGE: ("image_id", "id"), TEXT: ("caption_id", "text_id", "id")}


class _Row(NamedTuple):
    where: str
    """For messages, and for the ids of captions that have none."""
    file: Path
    line: int | None
    cells: Mapping[str, Any]


def list_lines(path: Path) -> Listing:
    """A caption a line, known by the number of the line. Metadata: `text`."""
    left_out: list[LeftOut] = []
    report = noting(left_out)
    texts: dict[str, str] = {}
    for number, line in read_lines(path, report):
        if line is not None and not line.strip():
            report(Problem(path, "an empty line", "Write a caption there, or remove it.", number))
        elif line is not None:
            texts[str(number)] = line.strip()
    if not texts:
        raise DataError(Problem(path, "no caption in it", "Expected a text on each line.", fatal=True))
    metadata = [{"text": text} for text in texts.values()]
    return Listing(path, "lines", TEXT, list(texts.values()), list(texts), metadata, left_out)


def list_table(path: Path, modality: str | None = None) -> Listing:
    """The pictures of a table, or its captions. A picture that several rows name is taken once, with what the first of
    them says; its path counts from the table's folder. Captions keep `text` among their metadata.
    """
    left_out: list[LeftOut] = []
    report = noting(left_out)
    suffix = path.suffix.lower()
    rows = [_Row(str(line), path, line, cells) for line, cells in TABLES[suffix](path, report)]
    if suffix in (".csv", ".tsv"):
        untyped = {column for row in rows[:1] for column in row.cells if _role(column) is not None}
        rows = [row._replace(cells=_typed(row.cells, untyped)) for row in rows]
    columns = {column: None for row in rows for column in row.cells}
    chosen = _chosen(path, columns, modality)
    if chosen == TEXT:
        return _captions(path, "table", rows, left_out, report)

    def locate(cell: Any) -> tuple[str, Path]:
        return path_inside(path.parent, cell)

    return _pictures(path, "table", rows, locate, list, left_out, report)


def list_tars(path: Path, modality: str | None = None) -> Listing:
    """The pictures in tars, or their captions. A sample may have either alone."""
    left_out: list[LeftOut] = []
    report = noting(left_out)
    rows = []
    for tars in tars_by_split(path).values():
        for tar in tars:
            for key, cells in samples(tar, report, bare=True):
                rows.append(_Row(f"{tar.name}/{key}", tar / key, None, {**cells, "sample": f"{tar.name}/{key}"}))
    columns = {column: None for row in rows for column in row.cells}
    chosen = _chosen(path, columns, modality)
    if chosen == TEXT:
        return _captions(path, "webdataset", rows, left_out, report)

    def locate(cell: Any) -> tuple[str, Member]:
        if not isinstance(cell, Member):
            raise BadCell("a sample without a picture", "Add it, or leave the sample out.")
        return f"{cell.tar.name}/{cell.name}", cell

    return _pictures(path, "webdataset", rows, locate, TarItems, left_out, report)


def _pictures(
    path: Path,
    format: str,
    rows: Sequence[_Row],
    locate: Callable[[Any], tuple[str, Any]],
    lazy: Callable[[list[Any]], Sequence[Any]],
    left_out: list[LeftOut],
    report: Report,
) -> Listing:
    column, id_column = _columns_of(rows, IMAGE)
    values: dict[str, Any] = {}
    ids: dict[str, str] = {}
    metadata = []
    for row in rows:
        try:
            key, value = locate(row.cells.get(column))
        except BadCell as bad:
            report(Problem(row.file, bad.what, bad.cure, row.line))
            continue
        if key in values:
            continue
        name = str(row.cells.get(id_column) or key)
        first = ids.setdefault(name, key)
        if first != key:
            what, cure = f"the id {name!r} is that of {first!r}, too", "Give each picture its own."
            report(Problem(row.file, what, cure, row.line))
            continue
        values[key] = value
        others = {name: plain(cell) for name, cell in row.cells.items() if name not in (column, id_column)}
        if isinstance(value, Path):
            others = {**others, "path": str(value), **_stat(value)}
        metadata.append(others)
    return Listing(path, format, IMAGE, lazy(list(values.values())), list(ids), metadata, left_out)


def _captions(path: Path, format: str, rows: Sequence[_Row], left_out: list[LeftOut], report: Report) -> Listing:
    column, id_column = _columns_of(rows, TEXT)
    values: dict[str, str] = {}
    metadata = []
    for row in rows:
        cells = row.cells.get(column)
        own = row.cells.get(id_column)
        others = {
            name: plain(str(cell.name) if isinstance(cell, Member) else cell)
            for name, cell in row.cells.items()
            if name not in (column, id_column)
        }
        listed = isinstance(cells, list)
        for number, cell in enumerate(cells if isinstance(cells, list) else [cells]):
            if not isinstance(cell, str) or not cell.strip():
                found = "nothing" if cell is None or cell == "" else json.dumps(plain(cell))[:60]
                what = f"the column {column!r} holds {found}, not a caption"
                report(Problem(row.file, what, "Write one, or leave the row out.", row.line))
                continue
            named = own[number] if isinstance(own, list) and number < len(own) else own
            name = f"{row.where}#{number}" if listed and not isinstance(own, list) else str(named or row.where)
            if name in values:
                what, cure = f"the id {name!r} came before", "Give each caption its own."
                report(Problem(row.file, what, cure, row.line))
                continue
            values[name] = cell.strip()
            metadata.append({**others, "text": cell.strip()})
    return Listing(path, format, TEXT, list(values.values()), list(values), metadata, left_out)


def _chosen(path: Path, columns: Iterable[str], modality: str | None) -> str:
    """Which of the two a table is read for: what was asked, or else pictures before captions."""
    there = {role for column in columns if (role := _role(column)) is not None}
    if not there or (modality is not None and modality not in there):
        wanted = [modality] if modality in _COLUMNS else list(_COLUMNS)
        expected = " or ".join(f"a column with each {name} ({', '.join(_COLUMNS[name])})" for name in wanted)
        found = ", ".join(columns) or "none that can be read"
        what = f"expected {expected}; found {found[:200]}"
        raise DataError(Problem(path, what, "Rename the column, or choose --modality.", fatal=True))
    return modality or (IMAGE if IMAGE in there else TEXT)


def _role(column: str) -> str | None:
    """Which modality a column holds, by its name."""
    name = column.strip().lower()
    return next((modality for modality, names in _COLUMNS.items() if name in names), None)


def _columns_of(rows: Iterable[_Row], modality: str) -> tuple[str, str]:
    """The columns of the items and of their ids; "" where there is none."""
    by_name = {column.strip().lower(): column for row in rows for column in row.cells}

    def first(names: Sequence[str]) -> str:
        return next((by_name[name] for name in names if name in by_name), "")

    return first(_COLUMNS[modality]), first(_IDS[modality])


def _typed(cells: Mapping[str, Any], untyped: set[str]) -> dict[str, Any]:
    """The cells of a file that knows only texts, metadata taken for what they say."""
    return {name: cell if name in untyped else value_of(cell) for name, cell in cells.items()}


def _stat(path: Path) -> dict[str, object]:
    try:
        known = path.stat()
    except OSError:
        return {}
    return {"size": known.st_size, "mtime": known.st_mtime}
