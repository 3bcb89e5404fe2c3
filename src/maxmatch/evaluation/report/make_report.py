"""An analysis as a folder: report.html (a Jinja2 template), figures/ and analysis.json. An evaluation as one page."""

import base64
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import DictLoader, Environment, StrictUndefined
from PIL import Image

from maxmatch import __version__
from maxmatch.core.array_checks import UsageError
from maxmatch.core.files import whole, write_whole
from maxmatch.evaluation.analysis import Analysis
from maxmatch.evaluation.encoding import GetItem
from maxmatch.evaluation.result_tables import Table, written
from maxmatch.evaluation.slots import METHODS, Attention, Projection
from maxmatch.evaluation.weak_spots import WAYS, recall_curve
from maxmatch.model.images import ImageError, load_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from maxmatch.evaluation.runs import Evaluation

REPORT, FIGURES, NUMBERS = "report.html", "figures", "analysis.json"


def write_report(
    analysis: Analysis,
    folder: str | Path,
    *,
    title: str = "the model",
    facts: Mapping[str, str] | None = None,
    items: Mapping[str, GetItem] | None = None,
    projection: Projection | None = None,
    attention: Attention | None = None,
    seen: Sequence[Image.Image | None] = (),
    records: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write report.html, figures/*.pdf and *.png, and analysis.json into a folder; the page's path.

    What an earlier report left there is replaced as a whole; what is missing is left out. title: the model's name.
    facts: what was analysed, by name. items: by modality, see `raw_items`. seen: of each pair in `attention` the
    part of the picture that the model sees, or None. records: those of the run's metrics.jsonl.
    """
    check_plots()
    from maxmatch.evaluation.report.figures import draw

    folder = Path(folder).expanduser()
    refuse_foreign(folder)
    facts = dict(facts or {})
    pictures = _write_figures(folder, draw(analysis, title, projection, attention, seen, records))
    numbers: dict[str, Any] = {"title": title, "facts": facts, **analysis.to_json()}
    if projection is not None:
        numbers["projection"] = {**asdict(projection), "points": projection.points.tolist()}
    if attention is not None:
        numbers["attention"] = {
            name: {"entropy": one.entropy, "spread": one.spread, "overlap": one.overlap.tolist()}
            for name, one in attention.sides.items()
        }
    write_whole(folder / NUMBERS, json.dumps(numbers, allow_nan=False) + "\n")
    write_whole(folder / REPORT, page(analysis, pictures, title, facts, items or {}, projection, attention))
    return folder / REPORT


def check_plots() -> None:
    """ImportError, with the cure, if figures cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise ImportError("figures need matplotlib, which is not installed: pip install 'maxmatch[plots]'")


def refuse_foreign(folder: Path) -> None:
    """FileExistsError if something other than an earlier report would be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: is a file. Choose a folder with --out.")
    known = (folder / NUMBERS).exists()
    for name in (REPORT, FIGURES):
        if (folder / name).exists() and not known:
            raise FileExistsError(f"{folder / name}: exists, but no {NUMBERS}: not a report. Choose another --out.")


def _write_figures(folder: Path, figures: Iterable[tuple[str, "Figure"]]) -> dict[str, bytes]:
    """Write every figure as PNG and PDF, and remove those of an earlier report; the PNG files by name."""
    from maxmatch.evaluation.report.figures import render

    # Drawn first, written then: a figure that cannot be drawn leaves an earlier report as it was.
    files = {f"{name}.{kind}": render(figure, kind) for name, figure in figures for kind in ("png", "pdf")}
    try:
        for name, content in files.items():
            with whole(folder / FIGURES / name) as file:
                file.write(content)
        for old in (folder / FIGURES).glob("*.p[dn][fg]"):
            if old.name not in files:
                old.unlink()
    except OSError as error:
        text = f"{folder / FIGURES}: could not be written ({error}). Free some space or permit it."
        raise OSError(error.errno, text) from error
    return {name.removesuffix(".png"): content for name, content in files.items() if name.endswith(".png")}


# The page: `report.html`, a template that escapes whatever it is given.

_DASH = "\u2060–\u2060"
"""A dash that no line ends at."""


def page(
    analysis: Analysis,
    pictures: Mapping[str, bytes],
    title: str,
    facts: Mapping[str, str],
    items: Mapping[str, GetItem],
    projection: Projection | None,
    attention: Attention | None,
) -> str:
    """The whole page. pictures: the figures as PNG files, by name; those that are not there are left out."""
    elements = [("all slots", analysis.elements.whole)]
    elements += [
        (f"{name} slot {slot} only", kept)
        for name in analysis.pair
        for slot, kept in enumerate(analysis.elements.kept[name], start=1)
    ]
    partners = enumerate(analysis.pairing.partner, start=1)
    overlaps = {name: one.mean_overlap for name, one in attention.sides.items()} if attention is not None else {}
    titles = {
        "retrieval": "Retrieval",
        "training": "Training" if "training" in pictures else "",
        "collapse": "Are the vectors of a set different?",
        "meeting": "Which slots meet",
        "elements": "What each slot is worth",
        "vectors": "Where the vectors lie" if projection is not None else "",
        "facets": "Do slots specialise?" if analysis.facets is not None else "",
        "by-slot": "What each slot finds",
        "attention": "What each slot looks at" if attention is not None else "",
        "failures": "Where the model fails",
        "about": "About this report",
    }

    return render_page(
        _resource("report.html"),
        title=title,
        analysis=analysis,
        attention=attention,
        titles={name: text for name, text in titles.items() if text},
        pictures={name: data_uri(content, "image/png") for name, content in pictures.items()},
        display=_display(items),
        set_sizes=sorted(set(analysis.set_sizes.values())),
        usual_partners=", ".join(f"{slot}{_DASH}{partner + 1}" for slot, partner in partners if partner >= 0),
        element_rows=elements,
        method=METHODS[projection.method] if projection is not None else "",
        overlaps=[f"{name} slots {overlap:.0%}" for name, overlap in overlaps.items() if overlap is not None],
        dash=_DASH,
        facts={**facts, "MaxMatch": __version__},
    )


def _display(items: Mapping[str, GetItem]) -> Callable[[str, int], dict[str, str | None]]:
    """How a page shows an item of a modality: its text, or a small picture."""

    @cache
    def display(modality: str, item: int) -> dict[str, str | None]:
        value = items[modality](item) if modality in items else None
        small = _thumbnail(value)
        return {
            "text": value if isinstance(value, str) else None,
            "picture": None if small is None else data_uri(small, "image/jpeg"),
        }

    return display


def render_page(template: str, **values: Any) -> str:
    """A page that stands alone, from a Jinja2 template. `style` is that of all reports; `policy` allows no other."""
    style = _resource("style.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    shared = DictLoader({"head.html": _resource("head.html")})
    environment = Environment(
        loader=shared, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters.update(num=number, an=an)
    return environment.from_string(template).render(style=style, policy=policy, **values)


def _resource(name: str) -> str:
    return files("maxmatch.evaluation.report").joinpath(name).read_text(encoding="utf-8")


def data_uri(content: bytes, kind: str) -> str:
    """A file as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def number(value: float, form: str) -> str:
    """A number for people: with a real minus sign."""
    return format(value, form).replace("-", "−")


def an(noun: str) -> str:
    """A noun with its article."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


# Items as a person sees them: pictures small, texts as they are.

SIDE = 160
"""Pixels of a thumbnail's long side."""


def picture_of(value: Any) -> Image.Image | None:
    """An item as a picture; None for features and texts, and if it cannot be opened."""
    pixels = isinstance(value, np.ndarray) and value.dtype == np.uint8
    if not (pixels or isinstance(value, Path | bytes | Image.Image)):
        return None
    try:
        return load_image(value, at_least=4 * SIDE)
    except (ImageError, OSError):
        return None


def _thumbnail(value: Any) -> bytes | None:
    """A small JPEG of an item. A picture that is small already keeps its size."""
    picture = picture_of(value)
    if picture is None:
        return None
    small = picture.copy()
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    with io.BytesIO() as file:
        small.convert("RGB").save(file, "JPEG", quality=82, optimize=True)
        return file.getvalue()


# An evaluation as one page: tables, recall at every depth, and the worst queries with their pictures.

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

    sides = {"t2i": ("text", "image"), "i2t": ("image", "text")}
    worst = [
        (line.result.name, [(WAYS[way], *sides[way], cases) for way, cases in some.items() if cases])
        for line, some in zip(found.lines, found.worst, strict=bool(found.worst))
    ]
    about = ", ".join(f"{name}: {value}" for name, value in found.about.items())
    text = render_page(
        _resource("evaluation.html"),
        title=f"How well {' and '.join(dict.fromkeys(line.result.name for line in found.lines))} retrieve",
        curves=data_uri(render(recall_curves(curves), "png"), "image/png"),
        tables=[_cells(table) for table in found.tables(cases=False)],
        worst=worst,
        display=_display(found.items),
        version=__version__,
        about=about,
    )
    write_whole(path, text)
    return path


def _cells(table: Table) -> Mapping[str, Any]:
    """A table for the template: its cells as text."""
    return {"title": table.title, "columns": table.columns, "rows": written(table), "notes": table.notes}
