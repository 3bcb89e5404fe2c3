"""Which of the paper's rows stand beside a result."""

from collections.abc import Iterable, Sequence

from maxmatch.evaluation.reported import OURS, ReportedTable, Row, tables

_BACKBONES = {  # by a part of a recipe's name
    "region_bigru": "Faster R-CNN + Bi-GRU",
    "region_bert": "Faster R-CNN + BERT",
    "resnet152_bigru": "Resnet152 + Bi-GRU",
}
_SIZES = {"flickr30k": 1000, "coco": 5000}
_COMPARED = (OURS, "Set Div")


def paper_rows(
    label: str | None, names: Iterable[str], images: int, split: str | None = None
) -> tuple[str, Sequence[Row]] | None:
    """The label of a table and the rows to show of it; None where there is nothing to compare with.

    label: as in the paper, "none" for no table; without one, it is seen from the names of recipes and data
    (f30k_region_bigru, …/coco), from the split, where it is known, and from the number of images: it must be the test
    split. Where a name tells
    the backbones, the rows with these are shown; else MaxMatch and Set Div with any.
    """
    if label == "none":
        return None
    said = " ".join(names).lower().replace("f30k", "flickr30k")
    if label is None:
        label = _recognised(said, images) if split is None or split.startswith("test") else None
        if label is None:
            return None
    table = _table(label)
    groups = [group for part, group in _BACKBONES.items() if part in said]
    shown = [row for row in table.rows if row.group in groups]
    if not shown:
        named = [row for row in table.rows if row.method in _COMPARED]
        shown = named or list(table.rows)
    return table.label, shown


def _table(label: str) -> ReportedTable:
    known = tables()
    if label not in known:
        raise ValueError(f"--paper: expected one of {', '.join(known)}, or none; got {label!r}.")
    return known[label]


def _recognised(said: str, images: int) -> str | None:
    """The table of the first known data among the names."""
    for data, size in _SIZES.items():
        if data in said and images == size:
            if "resnext" in said:
                return "tab:resnext"
            if "pvse" in said and data == "flickr30k":
                return "tab:PVSE"
            return {"flickr30k": "table:flickr30k", "coco": "table:mscoco"}[data]
    return None
