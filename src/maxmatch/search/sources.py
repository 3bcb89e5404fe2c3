"""From whatever lies on the disk to a list of items to encode."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch.data.formats.columns import IMAGE_COLUMNS
from maxmatch.data.formats.picture_files import SUFFIXES
from maxmatch.data.formats.table_files import TABLES
from maxmatch.data.formats.tables import tables_in
from maxmatch.data.items import IMAGE, TEXT, Items
from maxmatch.data.problems import DataError, Problem
from maxmatch.data.reading import FORMATS, read_dataset, recognise
from maxmatch.data.rows import pick
from maxmatch.search.listing import LeftOut, Listing, noting, plain
from maxmatch.search.picture_folder import list_pictures
from maxmatch.search.table_rows import list_lines, list_table, list_tars

LINES = "lines"
_TEXT_FILES = (".txt", ".text")


def list_source(
    source: str | Path,
    modality: str | None = None,
    format: str | None = None,
    splits: Sequence[str] | None = None,
) -> Listing:
    """The items of a folder of pictures, a table, webdataset's tars, a text file with a caption a line, or a data set
    in any other format of `maxmatch.data.reading`.

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
    left_out: list[LeftOut] = []
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
