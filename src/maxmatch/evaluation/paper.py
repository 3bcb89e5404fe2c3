"""The figures that the paper reports, as data, to compare ours with.

Each table is a CSV file in `paper_tables/`, its cells exactly as printed ("-" where the paper has none). In the
paper some cells do not sum to the RSUM in their row: we compute it from the cells, and keep the printed one too.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from maxmatch.core.array_checks import UsageError
from maxmatch.recipe.schema import Recipe

RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10")
LOSSES = ("Div", "MMD", "GD", "ISD")
OURS = "MaxMatch"
_TABLES = {  # by the label in the paper: file, what it shows
    "table:flickr30k": ("flickr30k", "Recall@K (%) and RSUM on Flickr30k"),
    "table:mscoco": ("mscoco", "Recall@K (%) and RSUM on COCO, 1K (average of five folds) and 5K"),
    "table_abl": ("ablation", "Similarities and losses, RSUM on COCO 5K"),
    "tab:5": ("elements", "RSUM on COCO 5K with one vector of the sets kept; log circular variance on Flickr30k"),
    "tab:resnext": ("resnext", "Recall@K (%) and RSUM with ResNeXt-101 and BERT"),
    "tab:PVSE": ("pvse", "Recall@K (%) and RSUM on Flickr30k with PVSE's architecture"),
}


@dataclass(frozen=True)
class ReportedRow:
    """One line of a table; of tab:5 one cell and what it stands for.

    figures are named as everywhere (`i2t_r1`, …, `rsum`, on COCO with `coco_1k_` or `coco_5k_` before them, and
    `log_variance`); a figure that the paper does not give is not there.
    """

    method: str
    figures: Mapping[str, float]
    """With RSUM as the sum of the recalls, where the paper gives them."""
    printed_rsum: Mapping[str, float] = field(default_factory=dict)
    """RSUM as the paper prints it, by its name in figures."""
    group: str = ""
    """The heading above the row: backbones, test set; in tab:5 the modality."""
    ensemble: bool = False
    """Marked †: two models, their scores averaged."""
    external: bool = False
    """Marked ‡: uses external data."""
    cross_attention: bool | None = None
    """Column CA; None if the table has none."""
    losses: tuple[str, ...] | None = None
    """Which of Div, MMD, GD, ISD a row of table_abl has."""
    slot: int | None = None
    """The one vector of the set that is kept in tab:5, counted from 1; None for all."""


@dataclass(frozen=True)
class ReportedTable:
    """A table of the paper."""

    label: str
    """As in the paper's source."""
    caption: str
    rows: tuple[ReportedRow, ...]


class Disagreement(NamedTuple):
    """A printed RSUM that is not the sum of the cells of its row."""

    label: str
    row: ReportedRow
    name: str
    """rsum, coco_1k_rsum or coco_5k_rsum."""
    printed: float
    summed: float
    by_rounding: bool
    """Whether recalls that were rounded after they were summed can explain it."""


@cache
def tables() -> Mapping[str, ReportedTable]:
    """All tables of the paper, by their labels."""
    return {
        label: ReportedTable(label, caption, tuple(_row(cells) for cells in _cells(file)))
        for label, (file, caption) in _TABLES.items()
    }


def disagreements() -> list[Disagreement]:
    """The printed RSUMs that are not the sum of their cells, in the paper's order."""
    found = []
    for label, (file, _) in _TABLES.items():
        for cells in _cells(file):
            row = _row(cells)
            for name, printed in row.printed_rsum.items():
                summed = row.figures[name]
                # Each recall and their sum may be off by half of its last place; "91" among tenths is 91.0.
                places = [max(1, len(cells[one].partition(".")[2])) for one in (*_recalls(name), name)]
                if round(abs(summed - printed), 4):
                    explained = round(abs(summed - printed), 4) <= sum(0.5 * 0.1**place for place in places)
                    found.append(Disagreement(label, row, name, printed, summed, explained))
    return found


def _cells(file: str) -> Iterator[dict[str, str]]:
    """The lines of a table by column, figures under their full names; those without a value are left out."""
    text = files("maxmatch.evaluation").joinpath("paper_tables", f"{file}.csv").read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        protocol = line.pop("protocol", "")
        prefix = f"{protocol}_" if protocol else ""
        figures = (*RECALLS, "rsum")
        yield {f"{prefix}{key}" if key in figures else key: cell for key, cell in line.items() if cell not in ("", "-")}


def _row(cells: Mapping[str, str]) -> ReportedRow:
    names = (*RECALLS, "rsum", "log_variance")
    figures = {name: float(cell) for name, cell in cells.items() if name.endswith(names)}
    printed = {
        name: value
        for name, value in figures.items()
        if name.endswith("rsum") and all(one in figures for one in _recalls(name))
    }
    figures |= {name: round(sum(figures[one] for one in _recalls(name)), 4) for name in printed}
    return ReportedRow(
        cells["method"],
        figures,
        printed,
        cells.get("group", ""),
        ensemble="ensemble" in cells,
        external="external" in cells,
        cross_attention=cells["cross_attention"] == "✓" if "cross_attention" in cells else None,
        losses=tuple(name for name in LOSSES if name in cells) or None,
        slot=int(cells["slot"]) if "slot" in cells else None,
    )


def _recalls(rsum: str) -> list[str]:
    """The names of the recalls that an RSUM is the sum of."""
    return [rsum.replace("rsum", name) for name in RECALLS]


# What a recipe of the paper leaves out, and which of the paper's rows are printed below a result.

_RECIPES = ("coco_", "f30k_", "ablation/")  # how the names of the paper's recipes begin


def departures(recipe: Recipe) -> list[str]:
    """What a recipe of the paper lacks that the paper used: pretrained weights, and the word vectors of a Bi-GRU (of
    which VSE++ and VSE∞ have none). Nothing for any other recipe.
    """
    if not recipe.name.startswith(_RECIPES):
        return []
    encoders = {name: tower.encoder for name, tower in recipe.model.resolved().towers.items()}
    lines = [
        f"not as in the paper: the {name} backbone starts with random weights (model.options.pretrained=true)"
        for name, encoder in encoders.items()
        if not getattr(getattr(encoder, "backbone", None), "pretrained", True)
    ]
    words = [encoder for encoder in encoders.values() if encoder.name == "gru" and encoder.word_init == "normal"]
    if words and recipe.data.word_vectors is None:
        lines.append(
            "not as in the paper: words start at random instead of GloVe (data.word_vectors=glove.840B.300d.txt)"
        )
    return lines


_BACKBONES = {  # by a part of a recipe's name
    "region_bigru": "Faster R-CNN + Bi-GRU",
    "region_bert": "Faster R-CNN + BERT",
    "resnet152_bigru": "Resnet152 + Bi-GRU",
}
_SIZES = {"flickr30k": 1000, "coco": 5000}
_MAIN = {"flickr30k": "table:flickr30k", "coco": "table:mscoco"}
_COMPARED = (OURS, "Set Div")


def check_label(label: str | None) -> None:
    """Refuse what is neither the label of a table, nor "none", nor None."""
    if label not in (None, "none", *tables()):
        raise UsageError(f"paper: expected one of {', '.join(tables())}, or none; got {label!r}.")


def paper_rows(
    label: str | None, names: Iterable[str], images: int, split: str | None = None
) -> tuple[str, Sequence[ReportedRow]] | None:
    """The label of a table and the rows to print of it; None if there is nothing to compare with.

    label: as in the paper, "none" for no table. Without one, the table is recognised by the names of recipes and data
    (f30k_region_bigru, …/coco), the number of images and the split, which must be the test split. Where a name tells
    the backbones, the rows with these are taken; else MaxMatch and Set Div with any.
    """
    check_label(label)
    text = " ".join(names).lower().replace("f30k", "flickr30k")
    known = (data for data, size in _SIZES.items() if data in text and images == size)
    if label is None and (split is None or split.startswith("test")) and (data := next(known, None)):
        pvse = "pvse" in text and data == "flickr30k"
        label = "tab:resnext" if "resnext" in text else "tab:PVSE" if pvse else _MAIN[data]
    if label is None or label == "none":
        return None
    table = tables()[label]
    groups = [group for part, group in _BACKBONES.items() if part in text]
    rows = [row for row in table.rows if row.group in groups]
    rows = rows or [row for row in table.rows if row.method in _COMPARED]
    return table.label, rows or table.rows
