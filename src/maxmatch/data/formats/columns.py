"""Rows that name a picture and its captions: lines of a table, rows of a Hugging Face data set, samples in a tar.

A row holds one caption or a list of them. Beside these, a column `image.NAME` is metadata of the image and `text.NAME`
of the caption (a list, if the captions are one). Any other column that has no meaning here is metadata too: of the
image if it is the same in all rows of every image, and of the captions if not.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from maxmatch.data.items import IMAGE, TEXT
from maxmatch.data.problems import Problem, Report

IMAGE_COLUMNS = ("image", "file_name", "filename", "filepath", "path")
CAPTION_COLUMNS = ("caption", "captions", "text", "texts", "sentence", "sentences")
_SPLITS = {"training": "train", "dev": "val", "valid": "val", "validation": "val"}


class Row(NamedTuple):
    """One row, and where it is."""

    file: Path
    line: int | None
    cells: Mapping[str, Any]
    split: str = "train"
    """Where no column says otherwise."""

    @property
    def where(self) -> str:
        """The row in words."""
        return str(self.file) if self.line is None else f"line {self.line}"


@dataclass(frozen=True)
class Columns:
    """Which column holds what."""

    values: Mapping[str, str]
    """By modality."""
    ids: Mapping[str, str]
    """By modality, where there are any."""
    split: str | None
    group: str | None

    @cached_property
    def known(self) -> frozenset[str | None]:
        """The columns that are not metadata."""
        return frozenset({*self.values.values(), *self.ids.values(), self.split, self.group})


class Found(NamedTuple):
    """An item as a row has it."""

    key: Any
    """What identifies it: in rows with the same key it is the same item."""
    value: Any
    id: str | None
    metadata: Mapping[str, Any]
    extras: Mapping[str, Any]
    """What the row says beside, of which it is not yet known whether it is about the image or the caption."""


class BadCell(Exception):
    """A cell that cannot be used."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure

    def at(self, row: Row) -> Problem:
        """The problem that this is."""
        return Problem(row.file, self.what, self.cure, line=row.line)


Locate = Callable[[Row, str, Any], tuple[str, Any]]
"""From a row, a modality other than text and its cell to what identifies the item, and the item. Raises BadCell."""


def split_name(name: str) -> str:
    """The name of a split as this package spells it: dev, valid and validation are val."""
    name = name.strip().lower()
    return _SPLITS.get(name, name)


def find_columns(names: Collection[str], modalities: Mapping[str, str] | None = None) -> Columns | None:
    """Which of these columns hold the picture, the caption, their ids, the split and the group; nothing without the
    first two. Upper and lower case are alike. `modalities` has the columns of others, e.g. {"audio": "audio_path"}, or
    of these two if they are called something else.
    """
    by_name = {name.strip().lower(): name for name in reversed(list(names))}

    def first(*choices: str) -> str | None:
        return next((by_name[choice] for choice in choices if choice in by_name), None)

    values = {IMAGE: first(*IMAGE_COLUMNS), TEXT: first(*CAPTION_COLUMNS), **(modalities or {})}
    found = {modality: column for modality, column in values.items() if column is not None and column in names}
    if len(found) < len(values):
        return None
    ids = {IMAGE: first("image_id", "id"), TEXT: first("caption_id")}
    ids |= {name: first(f"{name}_id".lower()) for name in modalities or {}}
    return Columns(
        values=found,
        ids={name: column for name, column in ids.items() if column is not None},
        split=first("split"),
        group=first("group"),
    )


def missing_columns(names: Collection[str], modalities: Mapping[str, str] | None = None) -> tuple[str, str]:
    """What to say of a table in which `find_columns` finds nothing: what was found, and the cure."""
    wanted = {IMAGE: f"one of {', '.join(IMAGE_COLUMNS)}", TEXT: f"one of {', '.join(CAPTION_COLUMNS)}"}
    wanted |= modalities or {}
    found = ", ".join(map(str, names)) or "none"
    return (
        f"expected the columns {' and '.join(wanted.values())}; found {found[:200]}",
        "Name the columns in the first line, or rename them.",
    )


def name_in(row: Row, column: str) -> str:
    """A cell that has to be there: a split, a group."""
    cell = row.cells.get(column)
    if cell is None or isinstance(cell, list | dict) or not str(cell).strip():
        raise BadCell(f"the column {column!r} holds {_shown(cell)}", "Fill it in, or remove the whole column.")
    return str(cell)


def items_in(row: Row, columns: Columns, locate: Locate, report: Report) -> dict[str, list[Found]]:
    """The items of a row by modality, at least one each. A bad one among several is reported and left out; BadCell is
    raised where none is left.
    """
    known = columns.known
    extras: dict[str, Any] = {}
    claimed: dict[str, dict[str, str]] = {modality: {} for modality in columns.values}
    for column, cell in row.cells.items():
        if column not in known and cell is not None:
            modality, dot, name = column.partition(".")
            if dot and modality in claimed:
                claimed[modality][name] = column
            else:
                extras[column] = cell
    return {
        modality: _items_in(row, modality, columns, claimed[modality], extras, locate, report)
        for modality in columns.values
    }


def _items_in(
    row: Row,
    modality: str,
    columns: Columns,
    claimed: Mapping[str, str],
    extras: Mapping[str, Any],
    locate: Locate,
    report: Report,
) -> list[Found]:
    column, id_column = columns.values[modality], columns.ids.get(modality, "")
    cells = row.cells.get(column)
    if not isinstance(cells, list) or modality == IMAGE:
        key, found = (None, _text(column, cells)) if modality == TEXT else locate(row, modality, cells)
        own = {name: row.cells[column] for name, column in claimed.items()}
        return [Found(key, found, _id(row.cells.get(id_column)), own, extras)]
    ids = _spread(row, id_column, len(cells))
    metadata = {name: _spread(row, column, len(cells)) for name, column in claimed.items()}
    items = []
    for number, value in enumerate(cells):
        try:
            key, found = (None, _text(column, value)) if modality == TEXT else locate(row, modality, value)
        except BadCell as bad:
            report(bad.at(row))
            continue
        own = {name: values[number] for name, values in metadata.items() if values[number] is not None}
        items.append(Found(key, found, _id(ids[number]), own, extras))
    if not items:
        raise BadCell(f"nothing usable in the column {column!r}", "Fill it in, or remove the row.")
    return items


def _spread(row: Row, column: str, count: int) -> list[Any]:
    """What a column says about each of the items that the row lists."""
    values = row.cells.get(column)
    if values is None:
        return [None] * count
    if not isinstance(values, list) or len(values) != count:
        raise BadCell(
            f"the column {column!r} holds no list of {count}, one for each item", "Make it as long as theirs."
        )
    return values


def _id(cell: Any) -> str | None:
    return None if cell is None or cell == "" else str(cell)


def _text(column: str, cell: Any) -> str:
    if not isinstance(cell, str):
        raise BadCell(f"the column {column!r} holds {_shown(cell)}, not a text", "Write a caption there, or remove it.")
    if not cell.strip():
        raise BadCell("an empty caption", "Write one, or remove the row.")
    if not cell.isascii():
        try:
            cell.encode()
        except UnicodeEncodeError:
            raise BadCell(f"not a text that UTF-8 can hold: {cell!r}", "Escape both halves of the letter.") from None
    return cell


def _shown(cell: Any) -> str:
    return "nothing" if cell is None or cell == "" else repr(cell)[:60]
