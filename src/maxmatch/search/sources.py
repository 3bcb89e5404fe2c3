"""From whatever lies on the disk to a list of items to encode, each with its id and metadata."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maxmatch.core.progress import Skipped
from maxmatch.data.dataset import IMAGE, TEXT, DataError, Items, Problem, Report, pick
from maxmatch.data.formats.columns import CAPTION_COLUMNS, IMAGE_COLUMNS, BadCell
from maxmatch.data.formats.folder import files_below
from maxmatch.data.formats.shared import EXPECTED, SUFFIXES, read_lines
from maxmatch.data.formats.tables import TABLES, path_inside, tables_in, value_of
from maxmatch.data.formats.webdataset import TarItems, TarMember, samples, tars_by_split
from maxmatch.data.load import FORMATS, read_dataset, recognise
from maxmatch.search.index_folder import is_text

# What is to be encoded: the items of a source in a fixed order, each with its id and what is known about it.


@dataclass(frozen=True)
class Listing:
    """The items of one modality of a source.

    values: as `SetEncoder.encode` takes them; indexing reads one. metadata: texts, numbers, lists and dicts.
    left_out: what was found and cannot be listed: files that are no pictures, bad rows of a table.
    """

    path: Path
    format: str
    modality: str
    values: Sequence[Any]
    ids: Sequence[str]
    metadata: Sequence[Mapping[str, Any]]
    left_out: Sequence[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert len(self.values) == len(self.ids) == len(self.metadata)
        seen: set[str] = set()
        for name in self.ids:
            if name in seen:
                what = f"the id {name!r} comes twice"
                raise DataError(Problem(self.path, what, "Give each item its own id.", fatal=True))
            seen.add(name)

    def __len__(self) -> int:
        return len(self.values)

    def digest(self) -> str:
        """Identifies the source: the ids in their order, and texts themselves."""
        known = hashlib.sha256(json.dumps([self.modality, len(self)]).encode())
        for place, name in enumerate(self.ids):
            known.update(json.dumps([name, self.values[place] if self.modality == TEXT else None]).encode())
        return known.hexdigest()


def noting(left_out: list[Skipped]) -> Report:
    """A report of problems that notes what is left out; what is fatal is raised by the reader itself."""

    def report(problem: Problem) -> None:
        where = str(problem.file) if problem.line is None else f"{problem.file}:{problem.line}"
        left_out.append(Skipped(where, f"{problem.what}. {problem.cure}"))

    return report


def plain(value: Any) -> Any:
    """Metadata as JSON holds it: numpy's numbers as Python's, NaN as nothing, and what JSON does not know as text."""
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, str | int) else str(value)


# All pictures in a folder and those below it. What is no picture is named, but for what systems leave behind.

_LONGEST = 1024  # characters of an id that an index keeps


class Walked(NamedTuple):
    """What is below a folder. pictures: by their paths from the folder. closed: the folders that cannot be listed, and
    why; nothing is known of what is in them.
    """

    pictures: dict[str, os.DirEntry[str]]
    left_out: list[Skipped]
    closed: dict[Path, str]


def list_pictures(folder: Path) -> Listing:
    """The pictures by their paths from the folder, in the order of these. Metadata: `path`, `size` and `mtime` (seconds
    since 1970).
    """
    found, left_out, closed = walk(folder)
    for place, why in closed.items():
        left_out.append(Skipped(ascii(str(place)), f"a folder that cannot be read ({why}). Allow reading it."))
    if not found:
        raise no_pictures(folder, {str(place): why for place, why in closed.items()})
    names = sorted(found)
    paths = [folder / name for name in names]
    metadata = [{"path": str(path), **_stat(found[name])} for path, name in zip(paths, names, strict=True)]
    return Listing(folder, "folder", IMAGE, paths, names, metadata, sorted(left_out, key=lambda one: one.id))


def no_pictures(folder: Path, closed: Mapping[str, str]) -> DataError:
    """The error for a folder without pictures. closed: the folders that cannot be read, and why."""
    if closed:
        place, why = next(iter(closed.items()))
        return DataError(Problem(folder, f"no pictures that can be read: {place} ({why})", "Allow reading it."))
    return DataError(Problem(folder, "no pictures in it", EXPECTED))


def walk(folder: Path) -> Walked:
    """The pictures of a folder and those below it. Links to folders are followed, each folder once, so that a loop does
    no harm.
    """
    found, left_out, closed = walked = Walked({}, [], {})
    for entry in files_below(folder, closed):
        name = Path(entry.path).relative_to(folder).as_posix()
        suffix = Path(name).suffix.lower()
        if not is_text(name):
            left_out.append(Skipped(ascii(name), "its name is not UTF-8. Rename the file."))
        elif len(name) > _LONGEST:
            left_out.append(Skipped(name, f"its path has more than {_LONGEST:,} characters. Move the file up."))
        elif suffix not in SUFFIXES:
            left_out.append(Skipped(name, f"not a picture: its name ends in {suffix or 'nothing'}."))
        else:
            found[name] = entry
    return walked


def _stat(entry: os.DirEntry[str]) -> dict[str, object]:
    """Size and time of change, as they were before the file is read; nothing where it cannot be."""
    try:
        known = entry.stat()
    except OSError:
        return {}
    return {"size": known.st_size, "mtime": known.st_mtime}


# Tables, texts and tars whose rows hold pictures, captions or both. Everything else in a row is metadata.

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
    left_out: list[Skipped] = []
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
    """The pictures of a table, or its captions. A picture that several rows name is taken once, with the metadata of
    the first; its path counts from the table's folder. Captions keep `text` among their metadata.
    """
    left_out: list[Skipped] = []
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
    left_out: list[Skipped] = []
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

    def locate(cell: Any) -> tuple[str, TarMember]:
        if not isinstance(cell, TarMember):
            raise BadCell("a sample without a picture", "Add it, or leave the sample out.")
        return f"{cell.tar.name}/{cell.name}", cell

    return _pictures(path, "webdataset", rows, locate, TarItems, left_out, report)


def _pictures(
    path: Path,
    format: str,
    rows: Sequence[_Row],
    locate: Callable[[Any], tuple[str, Any]],
    lazy: Callable[[list[Any]], Sequence[Any]],
    left_out: list[Skipped],
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
            others = {**others, "path": str(value), **_file_stat(value)}
        metadata.append(others)
    return Listing(path, format, IMAGE, lazy(list(values.values())), list(ids), metadata, left_out)


def _captions(path: Path, format: str, rows: Sequence[_Row], left_out: list[Skipped], report: Report) -> Listing:
    column, id_column = _columns_of(rows, TEXT)
    values: dict[str, str] = {}
    metadata = []
    for row in rows:
        cells = row.cells.get(column)
        own = row.cells.get(id_column)
        others = {
            name: plain(str(cell.name) if isinstance(cell, TarMember) else cell)
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


def _file_stat(path: Path) -> dict[str, object]:
    try:
        known = path.stat()
    except OSError:
        return {}
    return {"size": known.st_size, "mtime": known.st_mtime}


# From whatever lies on the disk to a list of items to encode.

LINES = "lines"
_TEXT_FILES = (".txt", ".text")


def list_source(
    source: str | Path,
    modality: str | None = None,
    format: str | None = None,
    splits: Sequence[str] | None = None,
) -> Listing:
    """The items of a folder of pictures, a table, webdataset's tars, a text file with a caption a line, or a data set
    in any other format of `maxmatch.data.load`.

    modality: pictures come before captions where there are both. splits: only these, where the format has any.
    """
    path = Path(source).expanduser().absolute()
    kind = format or _kind(path)
    if kind not in (LINES, *FORMATS):
        raise ValueError(f"format: expected one of {', '.join((LINES, *FORMATS))}, got {kind!r}.")
    try:
        listing = _listed(path, kind, modality, splits)
    except DataError as error:
        if format is not None or kind == "folder" or not path.is_dir():
            raise
        cure = f"{error.problem.cure} It was read as {kind!r}; --format folder takes all pictures in it."
        raise DataError(replace(error.problem, cure=cure)) from error
    if modality is not None and listing.modality != modality:
        what = f"holds {_words(listing.modality)}, and --modality asks for {_words(modality)}"
        raise DataError(Problem(path, what, "Leave the option out, or give another source.", fatal=True))
    if not len(listing):
        reason = f"; the first reason: {listing.left_out[0].reason}" if listing.left_out else ""
        raise DataError(Problem(path, f"nothing to encode in it{reason.rstrip('.')}", "Give another source."))
    return listing


def _kind(path: Path) -> str:
    """The format. A folder of photos stays one, whatever tables lie beside them, unless a table names the pictures."""
    if path.is_file() and path.suffix.lower() in _TEXT_FILES:
        return LINES
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        what, cure = "a picture; expected a folder of them", "Give its folder, or a table that names it."
        raise DataError(Problem(path, what, cure, fatal=True))
    if path.is_dir() and not any(path.iterdir()):
        raise DataError(Problem(path, "the folder is empty", "Check the path, or put pictures there.", fatal=True))
    if not path.is_dir():
        return recognise(path)
    kind = next((name for name, format in FORMATS.items() if name != "folder" and format.recognises(path)), "folder")
    if kind in ("table", "imagefolder"):
        named = _table_in(path) is not None
        return "table" if named else "folder" if kind == "table" else kind
    return kind


def _table_in(folder: Path) -> Path | None:
    """The table in a folder that names pictures."""
    for file in tables_in(folder):
        try:
            _, cells = next(TABLES[file.suffix.lower()](file, lambda problem: None), (0, {}))
        except DataError:
            continue
        if any(column.strip().lower() in IMAGE_COLUMNS for column in cells):
            return file
    return None


def _listed(path: Path, kind: str, modality: str | None, splits: Sequence[str] | None) -> Listing:
    if kind not in (LINES, "table", "folder", "webdataset"):
        return _of_dataset(path, kind, modality, splits)
    if splits:
        raise ValueError(f"split: {path} is read as {kind!r}, which is read whole. Leave it out.")
    if kind == LINES:
        return list_lines(path)
    if kind == "folder":
        if not path.is_dir():
            raise DataError(Problem(path, "no such folder", "Check the path.", fatal=True))
        return list_pictures(path)
    if kind == "webdataset":
        return list_tars(path, modality)
    table = _table_in(path) if path.is_dir() else path
    if table is None or table.suffix.lower() not in TABLES or not table.is_file():
        what, cure = "no table of pictures or captions", f"Give a file that ends in {', '.join(TABLES)}."
        raise DataError(Problem(path, what, cure, fatal=True))
    return list_table(table, modality)


def _of_dataset(path: Path, kind: str, modality: str | None, names: Sequence[str] | None) -> Listing:
    """The items of the splits of a data set, one split after the other."""
    left_out: list[Skipped] = []
    dataset = read_dataset(path, kind, noting(left_out))
    chosen = {name: dataset.split(name) for name in names or dataset.splits}
    modality = modality or (IMAGE if all(IMAGE in split.items for split in chosen.values()) else TEXT)
    parts = {name: split[modality] for name, split in chosen.items()}
    counted = sum(len(set(part.ids)) for part in parts.values())
    clash = len({one for part in parts.values() for one in part.ids}) < counted
    ids = [f"{name}/{one}" if clash else one for name, part in parts.items() for one in part.ids]
    metadata = [known for name, part in parts.items() for known in _metadata(part, name, modality)]
    values = _Joined([part.values for part in parts.values()])
    return Listing(path, kind, modality, values, ids, metadata, left_out)


def _metadata(items: Items, split: str, modality: str) -> list[Mapping[str, Any]]:
    known: list[Mapping[str, Any]] = []
    for place in range(len(items)):
        own = {name: plain(value) for name, value in (items.metadata[place] if items.metadata else {}).items()}
        value = items.values[place] if modality == TEXT or isinstance(items.values, list) else None
        if modality == TEXT:
            own["text"] = value
        elif isinstance(value, Path):
            own["path"] = str(value)
        known.append({**own, "split": split})
    return known


class _Joined(Sequence[Any]):
    """Several sequences as one, none of them read before it is asked for."""

    def __init__(self, parts: Sequence[Sequence[Any]]) -> None:
        self._places = [(number, place) for number, part in enumerate(parts) for place in range(len(part))]
        self._parts = parts

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:
        number, inside = self._places[place]
        return self._parts[number][inside]


def _words(modality: str) -> str:
    return {IMAGE: "pictures", TEXT: "captions"}.get(modality, modality)


def without(listing: Listing, ids: Collection[str]) -> Listing:
    """The listing without some items."""
    kept = [place for place, name in enumerate(listing.ids) if name not in ids]
    values, names = pick(listing.values, np.array(kept, np.int64)), [listing.ids[place] for place in kept]
    return replace(listing, values=values, ids=names, metadata=[listing.metadata[place] for place in kept])
