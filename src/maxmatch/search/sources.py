"""From whatever lies on the disk to a list of items to encode, each with its id and metadata."""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maxmatch.core.progress import Skipped
from maxmatch.data.dataset import IMAGE, TEXT, DataError, Problem, Report, pick
from maxmatch.data.formats.columns import CAPTION_COLUMNS, IMAGE_COLUMNS
from maxmatch.data.formats.folder import files_below
from maxmatch.data.formats.shared import BadCell, path_inside, read_lines
from maxmatch.data.formats.tables import TABLES, tables_in, value_of
from maxmatch.data.formats.webdataset import TarMember, samples, tar_items, tars_by_split
from maxmatch.data.load import FORMATS, read_dataset, recognise
from maxmatch.model.picture_files import SUFFIXES, not_read
from maxmatch.search.photos.facts import photo_facts
from maxmatch.search.photos.sync import no_pictures, walk

LINES = "lines"
AUDIO = "audio"


@dataclass(frozen=True)
class Listing:
    """The items of one modality of a source, in a fixed order.

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


def list_pictures(folder: Path) -> Listing:
    """The pictures by their paths from the folder, in the order of these. Metadata: those of `photo_facts`."""
    names, left_out, closed, unread, _ = walk(folder)
    left_out += [Skipped(name, f"{not_read([name])}.") for name in unread]
    for place, why in closed.items():
        left_out.append(Skipped(ascii(str(place)), f"a folder that cannot be read ({why}). Allow reading it."))
    if not names:
        raise no_pictures(folder, {str(place): why for place, why in closed.items()}, unread)
    paths = [folder / name for name in names]
    left_out.sort(key=lambda one: one.id)
    return Listing(folder, "folder", IMAGE, paths, names, _PhotoFacts(folder, paths), left_out)


def list_sounds(folder: Path) -> Listing:
    """The .wav files in a folder and below it, by their paths from it, in the order of these."""
    closed: dict[Path, str] = {}
    found = (Path(entry.path) for entry in files_below(folder, closed))
    paths = sorted(path for path in found if path.suffix.lower() == ".wav")
    if not paths:
        raise DataError(
            Problem(folder, "no sounds in it", "Expected files that end in .wav; convert others.", fatal=True)
        )
    left_out = [Skipped(ascii(str(place)), f"a folder that cannot be read ({why}).") for place, why in closed.items()]
    ids = [path.relative_to(folder).as_posix() for path in paths]
    return Listing(folder, "folder", AUDIO, paths, ids, [_file_facts(path) for path in paths], left_out)


class _PhotoFacts(Sequence[Mapping[str, Any]]):
    """The facts of pictures; what is in a file is read when it is asked for, its size and time before that."""

    def __init__(self, folder: Path, paths: Sequence[Path]) -> None:
        self._folder = folder
        self._paths = paths
        self._files = [_file_facts(path) for path in paths]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: Any) -> Any:
        try:
            return {**photo_facts(self._paths[place], self._folder), **self._files[place]}
        except Exception:  # what a damaged file makes Pillow raise has no common class
            return self._files[place]


def _file_facts(path: Path) -> dict[str, Any]:
    """Path, size and time of change, as they were before the file is read; the path alone where it cannot be."""
    try:
        known = path.stat()
    except OSError:
        return {"path": str(path)}
    return {"path": str(path), "size": known.st_size, "mtime": known.st_mtime}


def list_lines(path: Path) -> Listing:
    """One caption per line, known by the number of the line. Metadata: `text`."""
    left_out: list[Skipped] = []
    report = noting(left_out)
    texts: dict[str, str] = {}
    for number, line in read_lines(path, report):
        if line is not None and not line.strip():
            report(Problem(path, "an empty line", "Write a caption there, or remove it.", number))
        elif line is not None:
            texts[str(number)] = line.strip()
    if not texts:
        first = f" ({str(left_out[0]).rstrip('.')})" if left_out else ""
        raise DataError(Problem(path, f"no caption in it{first}", "Expected a text on each line.", fatal=True))
    metadata = [{"text": text} for text in texts.values()]
    return Listing(path, LINES, TEXT, list(texts.values()), list(texts), metadata, left_out)


# Tables and tars whose rows hold pictures, captions or both. Everything else in a row is metadata.

_COLUMNS = {IMAGE: IMAGE_COLUMNS, TEXT: CAPTION_COLUMNS}
_IDS = {IMAGE: ("image_id", "id"), TEXT: ("caption_id", "text_id", "id")}


class _Row(NamedTuple):
    where: str
    """For messages, and for the ids of captions that have none."""
    file: Path
    line: int | None
    cells: Mapping[str, Any]


def list_table(path: Path, modality: str | None = None) -> Listing:
    """The pictures of a table, or its captions. Paths of pictures count from the table's folder."""
    left_out: list[Skipped] = []
    suffix = path.suffix.lower()
    untyped = suffix in (".csv", ".tsv")  # all cells are text: metadata are parsed as JSON where possible
    rows = [
        _Row(str(line), path, line, {name: _typed(name, cell) if untyped else cell for name, cell in cells.items()})
        for line, cells in TABLES[suffix](path, noting(left_out))
    ]
    return _list_rows(path, "table", rows, modality, lambda cell: path_inside(path.parent, cell), list, left_out)


def _typed(column: str, cell: Any) -> Any:
    return cell if any(column.strip().lower() in names for names in _COLUMNS.values()) else value_of(cell)


def list_tars(path: Path, modality: str | None = None) -> Listing:
    """The pictures in tars, or their captions. A sample may have either alone."""
    left_out: list[Skipped] = []
    rows = [
        _Row(f"{tar.name}/{key}", tar / key, None, {**cells, "sample": f"{tar.name}/{key}"})
        for tars in tars_by_split(path).values()
        for tar in tars
        for key, cells in samples(tar, noting(left_out), bare=True)
    ]

    def locate(cell: Any) -> tuple[str, TarMember]:
        if not isinstance(cell, TarMember):
            raise BadCell("a sample without a picture", "Add it, or leave the sample out.")
        return f"{cell.tar.name}/{cell.name}", cell

    return _list_rows(path, "webdataset", rows, modality, locate, tar_items, left_out)


def _list_rows(
    path: Path,
    format: str,
    rows: Sequence[_Row],
    modality: str | None,
    locate: Callable[[Any], tuple[str, Any]],
    lazy: Callable[[list[Any]], Sequence[Any]],
    left_out: list[Skipped],
) -> Listing:
    """The pictures or the captions of rows: what was asked for, or else pictures before captions.

    locate: the name and the value of a picture, from its cell. lazy: from all values to a sequence that reads them.
    """
    by_name = {column.strip().lower(): column for row in rows for column in row.cells}
    there = [one for one, names in _COLUMNS.items() if by_name.keys() & set(names)]
    if not there or (modality is not None and modality not in there):
        wanted = [modality] if modality in _COLUMNS else list(_COLUMNS)
        expected = " or ".join(f"a column with each {name} ({', '.join(_COLUMNS[name])})" for name in wanted)
        found = ", ".join(by_name.values()) or "none that can be read"
        what = f"expected {expected}; found {found[:200]}"
        raise DataError(Problem(path, what, "Rename the column, or choose --modality.", fatal=True))
    modality = modality or there[0]
    column, id_column = (
        next((by_name[name] for name in names if name in by_name), "") for names in (_COLUMNS[modality], _IDS[modality])
    )
    report = noting(left_out)
    if modality == TEXT:
        texts, metadata = _captions(rows, column, id_column, report)
        return Listing(path, format, TEXT, list(texts.values()), list(texts), metadata, left_out)
    ids, values, metadata = _pictures(rows, column, id_column, locate, report)
    return Listing(path, format, IMAGE, lazy(values), ids, metadata, left_out)


def _pictures(
    rows: Iterable[_Row], column: str, id_column: str, locate: Callable[[Any], tuple[str, Any]], report: Report
) -> tuple[list[str], list[Any], list[dict[str, Any]]]:
    """Ids, values and metadata. A picture that several rows name is taken once, with the metadata of the first."""
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
        metadata.append({**others, **_file_facts(value)} if isinstance(value, Path) else others)
    return list(ids), list(values.values()), metadata


def _captions(
    rows: Iterable[_Row], column: str, id_column: str, report: Report
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Captions by their ids, and their metadata, which keep `text`."""
    values: dict[str, str] = {}
    metadata = []
    for row in rows:
        cells, own = row.cells.get(column), row.cells.get(id_column)
        others = {
            name: plain(cell.name if isinstance(cell, TarMember) else cell)
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
    return values, metadata


def list_source(
    source: str | Path,
    modality: str | None = None,
    format: str | None = None,
    splits: Sequence[str] | None = None,
) -> Listing:
    """The items of a folder of pictures (or of sounds, where modality is "audio"), a table, webdataset's tars, a text
    file with one caption per line, or a data set in any other format of `maxmatch.data.load`.

    modality: pictures come before captions where there are both. splits: only these, where the format has any.
    """
    path = Path(source).expanduser().absolute()
    if modality == AUDIO and format in (None, "folder") and path.is_dir():
        return list_sounds(path)
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
        words = {IMAGE: "pictures", TEXT: "captions"}
        held, asked = (words.get(one, one) for one in (listing.modality, modality))
        what = f"holds {held}, and --modality asks for {asked}"
        raise DataError(Problem(path, what, "Leave the option out, or give another source.", fatal=True))
    if not len(listing):
        reason = f"; the first reason: {listing.left_out[0].reason}" if listing.left_out else ""
        raise DataError(Problem(path, f"nothing to encode in it{reason.rstrip('.')}", "Give another source."))
    return listing


def _kind(path: Path) -> str:
    """The format. A folder of photos stays one, whatever tables lie beside them, unless a table names the pictures."""
    if path.is_file() and path.suffix.lower() in (".txt", ".text"):
        return LINES
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        what, cure = "a picture; expected a folder of them", "Give its folder, or a table that names it."
        raise DataError(Problem(path, what, cure, fatal=True))
    if path.is_dir() and not any(path.iterdir()):
        raise DataError(Problem(path, "the folder is empty", "Check the path, or put pictures there.", fatal=True))
    if not path.is_dir():
        return recognise(path)
    kind = next((name for name, format in FORMATS.items() if name != "folder" and format.recognises(path)), "folder")
    if kind in ("table", "imagefolder") and _table_in(path) is not None:
        return "table"
    return "folder" if kind == "table" else kind


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
    metadata = [
        {**plain(part.metadata[place] if part.metadata else {}), **_facts(part.values, place, modality), "split": name}
        for name, part in parts.items()
        for place in range(len(part))
    ]
    values = _Joined([part.values for part in parts.values()])
    return Listing(path, kind, modality, values, ids, metadata, left_out)


def _facts(values: Sequence[Any], place: int, modality: str) -> dict[str, Any]:
    """A text, or the path of a picture; pictures and features themselves are not read."""
    if modality == TEXT:
        return {"text": values[place]}
    return {"path": str(values[place])} if isinstance(values, list) and isinstance(values[place], Path) else {}


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


def without(listing: Listing, ids: Collection[str]) -> Listing:
    """The listing without some items."""
    kept = [place for place, name in enumerate(listing.ids) if name not in ids]
    values, names = pick(listing.values, np.array(kept, np.int64)), [listing.ids[place] for place in kept]
    return replace(listing, values=values, ids=names, metadata=[listing.metadata[place] for place in kept])
