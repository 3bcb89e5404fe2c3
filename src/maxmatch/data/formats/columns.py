"""Rows that name a picture and its captions: read into splits, and splits written as rows.

Rows are lines of a table, rows of a Hugging Face data set, or samples in a tar. A row holds one caption or a list of
them. A column `image.NAME` is metadata of the image, and `text.NAME` of the caption (a list, if the captions are one).
Any other column that has no meaning here is metadata too: of the image if it is the same in all rows of every image,
else of the captions.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maxmatch.data.dataset import IMAGE, TEXT, Items, Problem, Report, Split, give_up
from maxmatch.data.formats.shared import BadCell

IMAGE_COLUMNS = ("image", "file_name", "filename", "filepath", "path")
CAPTION_COLUMNS = ("caption", "captions", "text", "texts", "sentence", "sentences")
_SPLITS = {"training": "train", "dev": "val", "valid": "val", "validation": "val"}


class TableRow(NamedTuple):
    """One row, and where it is."""

    file: Path
    line: int | None
    cells: Mapping[str, Any]
    split: str = "train"
    """Where no column names another."""

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


class RowItem(NamedTuple):
    """An item as a row has it."""

    key: Any
    """What identifies it: in rows with the same key it is the same item."""
    value: Any
    id: str | None
    metadata: Mapping[str, Any]
    extras: Mapping[str, Any]
    """The row's other cells: whether they are about the image or the caption is not known yet."""


Locate = Callable[[TableRow, str, Any], tuple[str, Any]]
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


def needed_columns(
    names: Collection[str], file: Path, report: Report, modalities: Mapping[str, str] | None = None
) -> Columns:
    """The columns of a table, as `find_columns` finds them; gives up where they are missing."""
    columns = find_columns(names, modalities)
    if columns is None:
        wanted = {IMAGE: f"one of {', '.join(IMAGE_COLUMNS)}", TEXT: f"one of {', '.join(CAPTION_COLUMNS)}"}
        wanted |= modalities or {}
        found = ", ".join(map(str, names)) or "none"
        what = f"expected the columns {' and '.join(wanted.values())}; found {found[:200]}"
        give_up(report, Problem(file, what, "Name the columns in the first line, or rename them."))
    return columns


def name_in(row: TableRow, column: str) -> str:
    """A cell that has to be there: a split, a group."""
    cell = row.cells.get(column)
    if cell is None or isinstance(cell, list | dict) or not str(cell).strip():
        raise BadCell(f"the column {column!r} holds {_shown(cell)}", "Fill it in, or remove the whole column.")
    return str(cell)


def items_in(row: TableRow, columns: Columns, locate: Locate, report: Report) -> dict[str, list[RowItem]]:
    """The items of a row by modality, at least one each. A bad one among several is reported and left out; BadCell is
    raised where none is left.
    """
    extras: dict[str, Any] = {}
    claimed: dict[str, dict[str, str]] = {modality: {} for modality in columns.values}
    for column, cell in row.cells.items():
        if column not in columns.known and cell is not None:
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
    row: TableRow,
    modality: str,
    columns: Columns,
    claimed: Mapping[str, str],
    extras: Mapping[str, Any],
    locate: Locate,
    report: Report,
) -> list[RowItem]:
    column = columns.values[modality]
    whole = row.cells.get(column)
    listed = whole if isinstance(whole, list) and modality != IMAGE else None
    cells = [whole] if listed is None else listed

    def spread(column: str | None) -> list[Any]:
        """The cells of a column, one for each item."""
        values = None if column is None else row.cells.get(column)
        if listed is None or values is None:
            return [values] * len(cells)
        if not isinstance(values, list) or len(values) != len(cells):
            what = f"the column {column!r} holds no list of {len(cells)}, one for each item"
            raise BadCell(what, "Make it as long as theirs.")
        return values

    ids = spread(columns.ids.get(modality))
    metadata = {name: spread(column) for name, column in claimed.items()}
    items = []
    for number, cell in enumerate(cells):
        try:
            key, value = (None, caption_text(column, cell)) if modality == TEXT else locate(row, modality, cell)
        except BadCell as bad:
            if listed is None:
                raise
            report(bad.at(row.file, row.line))
            continue
        own = {name: values[number] for name, values in metadata.items() if values[number] is not None}
        items.append(RowItem(key, value, None if ids[number] in (None, "") else str(ids[number]), own, extras))
    if not items:
        raise BadCell(f"nothing usable in the column {column!r}", "Fill it in, or remove the row.")
    return items


def caption_text(column: str, cell: Any) -> str:
    """A cell that has to be a caption."""
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


_CURE = "Give each its own."


def splits_of_rows(
    rows: Iterable[TableRow],
    columns: Columns,
    locate: Locate,
    report: Report,
    lazy: Callable[[list[Any]], Sequence[Any]] = list,
) -> dict[str, Split]:
    """The splits of these rows. Rows of the same image are one group, in order of first appearance, unless a column
    `group` tells what belongs together; where it is empty, it tells nothing. A row that cannot be used is reported and
    left out.

    lazy: what makes the images of a split, as `locate` gave them, into the values that the split holds.
    """
    rows = list(rows)
    columns = _settle_ids(columns, rows, locate)
    splits: dict[str, _SplitBuilder] = defaultdict(lambda: _SplitBuilder(columns.values))
    varying: set[str] = set()
    for row in rows:
        try:
            name = row.split if columns.split is None else split_name(name_in(row, columns.split))
            items = items_in(row, columns, locate, report)
            group: Any = (IMAGE, items[IMAGE][0].key)
            if columns.group is not None and row.cells.get(columns.group) not in (None, ""):
                group = name_in(row, columns.group)
            splits[name].add(row, items, group, varying, report)
        except BadCell as bad:
            report(bad.at(row.file, row.line))
    return {name: split for name, gathered in splits.items() if (split := gathered.split(varying, lazy)).size}


def _settle_ids(columns: Columns, rows: Sequence[TableRow], locate: Locate) -> Columns:
    """A column `id` is that of the image, unless it tells rows of one image apart: then it is that of the caption."""
    column = columns.ids.get(IMAGE)
    if column is None or column.strip().lower() != "id" or TEXT in columns.ids:
        return columns
    seen: dict[str, Any] = {}
    for row in rows:
        try:
            key, _ = locate(row, IMAGE, row.cells.get(columns.values[IMAGE]))
        except BadCell:
            continue  # reported when the row is gathered
        if seen.setdefault(key, row.cells.get(column)) != row.cells.get(column):
            ids = {name: other for name, other in columns.ids.items() if name != IMAGE}
            return replace(columns, ids={**ids, TEXT: column})
    return columns


class _Placed(NamedTuple):
    """An item of a split, and the row in which it came first."""

    item: RowItem
    id: str
    group: int
    row: TableRow


class _Column:
    """The items of one modality, in order of appearance."""

    def __init__(self) -> None:
        self.by_key: dict[Any, _Placed] = {}
        self.by_id: dict[str, _Placed] = {}

    def place(self, item: RowItem, key: Any, name: str, group: int, row: TableRow) -> _Placed:
        """The item, which is new or has come before in the same group. name: its id, if it has none."""
        name = name if item.id is None else item.id
        known = self.by_key.get(key)
        if known is None:
            if name in self.by_id:
                raise BadCell(f"the id {name!r} is that of another item in {self.by_id[name].row.where}", _CURE)
            known = self.by_key[key] = self.by_id[name] = _Placed(item, name, group, row)
        elif known.group != group:
            raise BadCell(f"{known.id!r} belongs to another group in {known.row.where}", "Put it into one of them.")
        elif item.id not in (None, known.id):
            raise BadCell(f"the id {name!r} of what had the id {known.id!r} in {known.row.where}", "Give it one id.")
        return known


class _SplitBuilder:
    """A split while its rows come in."""

    def __init__(self, modalities: Iterable[str]) -> None:
        self.columns = {modality: _Column() for modality in modalities}
        self.groups: dict[Any, int] = {}
        self.pairs: dict[tuple[str, str], TableRow] = {}
        self.captions: Counter[str] = Counter()  # of each image

    def add(
        self, row: TableRow, items: Mapping[str, list[RowItem]], group_key: Any, varying: set[str], report: Report
    ) -> None:
        """Take a row in, and note the columns that vary among the rows of its image."""
        group = self.groups.setdefault(group_key, len(self.groups))
        found = items[IMAGE][0]
        image = self.columns[IMAGE].place(found, found.key, found.key, group, row)
        extras, first = found.extras, image.item.extras
        if extras != first:
            varying.update(name for name in extras.keys() | first.keys() if extras.get(name) != first.get(name))
        for modality, others in items.items():
            for item in others if modality != IMAGE else ():
                try:
                    if modality == TEXT:
                        self._add_caption(item, image.id, group, row)
                    else:
                        self.columns[modality].place(item, item.key, item.key, group, row)
                except BadCell as bad:
                    report(bad.at(row.file, row.line))

    def _add_caption(self, item: RowItem, image: str, group: int, row: TableRow) -> None:
        # Two captions of an image may read alike (some of COCO's do) if their ids say that they are two.
        key = (image, item.value) if item.id is None else item.id
        caption = self.columns[TEXT].place(item, key, f"{image}#{self.captions[image]}", group, row)
        if caption.item.value != item.value:
            raise BadCell(f"the id {item.id!r} is that of another caption in {caption.row.where}", _CURE)
        if before := self.pairs.get((image, caption.id)):
            raise BadCell(f"the same image and caption as in {before.where}", "Remove one of the two.")
        self.pairs[image, caption.id] = row
        self.captions[image] += 1

    def split(self, varying: set[str], lazy: Callable[[list[Any]], Sequence[Any]]) -> Split:
        """What came in, those of a group side by side. A group that lacks a modality has been reported, and is left
        out.
        """
        placed = {
            modality: sorted(column.by_key.values(), key=lambda one: one.group)
            for modality, column in self.columns.items()
        }
        whole = sorted(set.intersection(*({one.group for one in column} for column in placed.values())))
        numbers = {group: number for number, group in enumerate(whole)}
        items = {}
        for modality, column in placed.items():
            found = [one for one in column if one.group in numbers]
            metadata = [_metadata(one.item, modality, varying) for one in found]
            values = [one.item.value for one in found]
            items[modality] = Items(
                values=lazy(values) if modality == IMAGE else values,
                groups=np.array([numbers[one.group] for one in found], np.int64),
                ids=[one.id for one in found],
                metadata=metadata if any(metadata) else None,
            )
        return Split(items)


def _metadata(item: RowItem, modality: str, varying: set[str]) -> dict[str, Any]:
    """What is known about an item: the row's other cells, if they are about this modality, and its own."""
    if modality not in (IMAGE, TEXT):
        return dict(item.metadata)
    mine = {name: cell for name, cell in item.extras.items() if (name in varying) == (modality == TEXT)}
    return {**mine, **item.metadata}


_COLUMNS = {IMAGE: "image", TEXT: "caption"}


def rows_of_split(split: Split, names: Mapping[str, Sequence[Any]], listed: bool) -> Iterator[dict[str, Any]]:
    """The rows of a split: one for each caption, or, `listed`, one for each image with all its captions in a list.

    names: the cell of each item in its column, for the modalities other than text.
    A group of several images has a number in the column `group`; its captions are repeated where they are fewer.
    """
    starts = {modality: items.starts for modality, items in split.items.items()}
    grouped = len(split[IMAGE]) > split.size
    for group in range(split.size):
        spans = {modality: range(start[group], start[group + 1]) for modality, start in starts.items()}
        for number in range(len(spans[IMAGE]) if listed else max(map(len, spans.values()))):
            cells: dict[str, Any] = {"group": str(group)} if grouped else {}
            for modality, span in spans.items():
                one = span[min(number, len(span) - 1)]
                cells |= _cells(split, modality, span if listed and modality != IMAGE else one, names)
            yield cells


def _cells(split: Split, modality: str, chosen: int | range, names: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The columns of one modality in a row that has one item of it, or several."""
    items, column = split[modality], _COLUMNS.get(modality, modality)
    values = items.values if modality == TEXT else names[modality]
    if isinstance(chosen, int):
        metadata = dict(items.metadata[chosen]) if items.metadata else {}
        own = {column: values[chosen], f"{column}_id": items.ids[chosen]}
    else:
        every = [items.metadata[number] for number in chosen] if items.metadata else []
        keys = dict.fromkeys(key for known in every for key in known)
        metadata = {key: [known.get(key) for known in every] for key in keys}
        own = {column: [values[number] for number in chosen], f"{column}_id": [items.ids[number] for number in chosen]}
    return own | {f"{modality}.{key}": value for key, value in metadata.items()}
