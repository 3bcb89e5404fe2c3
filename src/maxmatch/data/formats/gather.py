"""From rows to splits: the same image in several rows is one, and what belongs together is a group."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from maxmatch.data.formats.columns import BadCell, Columns, Found, Locate, Row, items_in, name_in, split_name
from maxmatch.data.items import IMAGE, TEXT, Items, Split
from maxmatch.data.problems import Report

_CURE = "Give each its own."


def gather(
    rows: Iterable[Row],
    columns: Columns,
    locate: Locate,
    report: Report,
    lazy: Callable[[list[Any]], Sequence[Any]] = list,
) -> dict[str, Split]:
    """The splits of these rows. Rows of the same image are one group, in order of first appearance, unless a column
    `group` says what belongs together. A row that cannot be used is reported and left out.

    lazy: what makes the images of a split, as `locate` gave them, into the values that the split holds.
    """
    rows = list(rows)
    columns = _settle_ids(columns, rows, locate)
    splits: dict[str, _Gathered] = {}
    varying: set[str] = set()
    for row in rows:
        try:
            name = row.split if columns.split is None else split_name(name_in(row, columns.split))
            items = items_in(row, columns, locate, report)
            group = items[IMAGE][0].key if columns.group is None else name_in(row, columns.group)
            gathered = splits.setdefault(name, _Gathered({modality: _Column() for modality in columns.values}))
            gathered.add(row, items, group, varying, report)
        except BadCell as bad:
            report(bad.at(row))
    return {name: split for name, gathered in splits.items() if (split := gathered.split(varying, lazy)).size}


def _settle_ids(columns: Columns, rows: Sequence[Row], locate: Locate) -> Columns:
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


@dataclass
class _Column:
    """The items of one modality, in order of appearance."""

    items: list[Found] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    by_key: dict[Any, int] = field(default_factory=dict)
    by_id: dict[str, int] = field(default_factory=dict)

    def place(self, item: Found, key: Any, name: str, group: int, row: Row) -> int:
        """The number of the item, which is new or has come before in the same group. `name`: its id, if it has none."""
        name = name if item.id is None else item.id
        number = self.by_key.get(key)
        if number is not None:
            first, known = self.rows[number], self.ids[number]
            if self.groups[number] != group:
                raise BadCell(f"{known!r} belongs to another group in {first.where}", "Put it into one of them.")
            if item.id not in (None, known):
                raise BadCell(f"the id {name!r} of what had the id {known!r} in {first.where}", "Give it one id.")
            return number
        if name in self.by_id:
            raise BadCell(f"the id {name!r} is that of another item in {self.rows[self.by_id[name]].where}", _CURE)
        number = self.by_key[key] = self.by_id[name] = len(self.items)
        self.items.append(item)
        self.ids.append(name)
        self.groups.append(group)
        self.rows.append(row)
        return number


@dataclass
class _Gathered:
    """A split while its rows come in."""

    columns: Mapping[str, _Column]
    groups: dict[str, int] = field(default_factory=dict)
    pairs: dict[tuple[int, int], Row] = field(default_factory=dict)
    captions: dict[int, int] = field(default_factory=dict)

    def add(
        self, row: Row, items: Mapping[str, list[Found]], group_key: str, varying: set[str], report: Report
    ) -> None:
        """Take a row in, and note the columns that vary among the rows of its image."""
        group = self.groups.setdefault(group_key, len(self.groups))
        found, images = items[IMAGE][0], self.columns[IMAGE]
        image = images.place(found, found.key, found.key, group, row)
        extras, first = found.extras, images.items[image].extras
        if extras != first:
            varying.update(name for name in extras.keys() | first.keys() if extras.get(name) != first.get(name))
        for modality, others in items.items():
            for item in others if modality != IMAGE else ():
                try:
                    if modality == TEXT:
                        self._add_caption(item, image, group, row)
                    else:
                        self.columns[modality].place(item, item.key, item.key, group, row)
                except BadCell as bad:
                    report(bad.at(row))

    def _add_caption(self, item: Found, image: int, group: int, row: Row) -> None:
        # Two captions of an image may read alike (some of COCO's do) if their ids say that they are two.
        key = (image, item.value) if item.id is None else item.id
        count = self.captions.get(image, 0)
        texts = self.columns[TEXT]
        number = texts.place(item, key, f"{self.columns[IMAGE].ids[image]}#{count}", group, row)
        if texts.items[number].value != item.value:
            raise BadCell(f"the id {item.id!r} is that of another caption in {texts.rows[number].where}", _CURE)
        if (image, number) in self.pairs:
            raise BadCell(
                f"the same image and caption as in {self.pairs[image, number].where}", "Remove one of the two."
            )
        self.pairs[image, number] = row
        self.captions[image] = count + 1

    def split(self, varying: set[str], lazy: Callable[[list[Any]], Sequence[Any]]) -> Split:
        """What came in, those of a group side by side. A group that lacks a modality has been reported, and is left
        out.
        """
        groups = {modality: np.array(column.groups, dtype=np.int64) for modality, column in self.columns.items()}
        whole = np.arange(len(self.groups))
        for numbers in groups.values():
            whole = np.intersect1d(whole, numbers)
        items = {}
        for modality, column in self.columns.items():
            order = np.argsort(groups[modality], kind="stable")
            order = order[np.isin(groups[modality][order], whole)]
            found = [column.items[number] for number in order]
            metadata = [_metadata(item, modality, varying) for item in found]
            values = [item.value for item in found]
            items[modality] = Items(
                values=lazy(values) if modality == IMAGE else values,
                groups=np.searchsorted(whole, groups[modality][order]),
                ids=[column.ids[number] for number in order],
                metadata=metadata if any(metadata) else None,
            )
        return Split(items)


def _metadata(item: Found, modality: str, varying: set[str]) -> dict[str, Any]:
    """What is known about an item: what its row says by itself, if that is about this modality, and what is its own."""
    if modality not in (IMAGE, TEXT):
        return dict(item.metadata)
    mine = {name: cell for name, cell in item.extras.items() if (name in varying) == (modality == TEXT)}
    return {**mine, **item.metadata}
