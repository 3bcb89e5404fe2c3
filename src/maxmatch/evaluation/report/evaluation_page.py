"""An evaluation as one HTML page: tables, recall at every depth, and the worst queries with their pictures."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from maxmatch import __version__
from maxmatch.core.array_checks import UsageError
from maxmatch.core.files import write_whole
from maxmatch.evaluation.report.make_report import check_plots, data_uri, render_page, resource, thumbnail
from maxmatch.evaluation.result_tables import Table, written
from maxmatch.evaluation.weak_spots import WAYS, recall_curve

if TYPE_CHECKING:
    from maxmatch.evaluation.runs import Evaluation

_DEPTH = 100  # of the curves


def check_page(path: str | Path) -> None:
    """Refuse a page that cannot be written, before anything is measured."""
    check_plots()
    if Path(path).suffix not in (".html", ".htm"):
        raise UsageError(f"page: expected a name that ends in .html, got {path}.")


def write_page(found: "Evaluation", path: str | Path) -> Path:
    """Write an evaluation as a page that needs nothing else; an older one is replaced. Its path."""
    check_page(path)
    from maxmatch.evaluation.report.figures import recall_curves, render

    path = Path(path).expanduser()
    size = min(_DEPTH, found.about["images"], found.about["captions"])
    curves: dict[str, dict[str, np.ndarray]] = {label: {} for label in WAYS.values()}
    for line in found.lines:
        *_, galleries = line.result.galleries.values()
        for way, label in WAYS.items():
            name = f"{line.result.name}, {line.result.similarity}"
            curves[label][name] = recall_curve(galleries, way, size)

    @cache
    def display(modality: str, item: int) -> dict[str, str | None]:
        value = found.items[modality](item) if modality in found.items else None
        small = thumbnail(value)
        return {
            "text": value if isinstance(value, str) else None,
            "picture": None if small is None else data_uri(small, "image/jpeg"),
        }

    sides = {"t2i": ("text", "image"), "i2t": ("image", "text")}
    worst = [
        (line.result.name, [(WAYS[way], *sides[way], cases) for way, cases in some.items() if cases])
        for line, some in zip(found.lines, found.worst, strict=bool(found.worst))
    ]
    about = ", ".join(f"{name}: {value}" for name, value in found.about.items())
    text = render_page(
        resource("evaluation.html"),
        title=f"How well {' and '.join(dict.fromkeys(line.result.name for line in found.lines))} retrieve",
        curves=data_uri(render(recall_curves(curves), "png"), "image/png"),
        tables=[_cells(table) for table in found.tables(cases=False)],
        worst=worst,
        display=display,
        version=__version__,
        about=about,
    )
    write_whole(path, text)
    return path


def _cells(table: Table) -> Mapping[str, Any]:
    """A table for the template: its cells as text."""
    return {"title": table.title, "columns": table.columns, "rows": written(table), "notes": table.notes}
