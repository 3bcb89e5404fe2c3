"""From splits to rows, the way back of `gather`: what is written so is read as the same."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from maxmatch.data.items import IMAGE, TEXT, Split

_COLUMNS = {IMAGE: "image", TEXT: "caption"}
_SPLIT_NAME = re.compile(r"\w+")


def unfold(split: Split, names: Mapping[str, Sequence[Any]], listed: bool) -> Iterator[dict[str, Any]]:
    """The rows of a split: one for each caption, or, `listed`, one for each image with all its captions in a list.

    names: what stands for each item in its column, for the modalities other than text.
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


def check_writable(splits: Mapping[str, Split], format: str, modalities: Sequence[str] | None = (IMAGE, TEXT)) -> None:
    """Refuse what a format of pictures and captions cannot hold. `modalities`: those it can, if not any."""
    for name, split in splits.items():
        if not _SPLIT_NAME.fullmatch(name):
            raise ValueError(f"split {name!r}: expected a name of letters, digits and _. Rename it.")
        for modality in (IMAGE, TEXT):
            if modality not in split.items:
                raise ValueError(
                    f"split {name!r} has no {modality}: the format {format!r} holds pictures with captions. "
                    "Pictures alone are written as 'folder'."
                )
        for modality in split.items:
            if modalities is not None and modality not in modalities:
                raise ValueError(
                    f"split {name!r}: the format {format!r} holds {' and '.join(modalities)}, not {modality}. "
                    "Other modalities are written as 'table'."
                )
