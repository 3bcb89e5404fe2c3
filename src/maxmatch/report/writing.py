"""A report on the disk: report.html, figures/ and analysis.json."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

from maxmatch.evaluation.analysis import Analysis
from maxmatch.evaluation.attention import Attention
from maxmatch.evaluation.projection import Projection
from maxmatch.files import sync, write_whole
from maxmatch.report.contents import Contents
from maxmatch.report.html import page
from maxmatch.report.shown import Shown

REPORT, FIGURES, NUMBERS = "report.html", "figures", "analysis.json"


def write_report(
    analysis: Analysis,
    folder: str | Path,
    *,
    title: str = "the model",
    facts: Mapping[str, str] | None = None,
    items: Mapping[str, Shown] | None = None,
    projection: Projection | None = None,
    attention: Attention | None = None,
    seen: Sequence[Image.Image | None] = (),
    records: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write report.html, figures/*.pdf and *.png, and analysis.json into a folder; the page's path.

    What an earlier report left there is replaced as a whole. The arguments are those of `Contents`.
    """
    check_plots()
    folder = Path(folder).expanduser()
    refuse_foreign(folder)
    contents = Contents(title, analysis, facts or {}, items or {}, projection, attention, seen, records)
    pictures = _write_figures(contents, folder)
    write_whole(folder / NUMBERS, json.dumps(numbers(contents), allow_nan=False) + "\n")
    write_whole(folder / REPORT, page(contents, pictures))
    return folder / REPORT


def numbers(contents: Contents) -> dict[str, Any]:
    """All numbers of a report, as JSON has them: those of the analysis, and what else was measured."""
    found: dict[str, Any] = {"title": contents.title, "facts": dict(contents.facts), **contents.analysis.to_json()}
    if contents.projection is not None:
        found["projection"] = {**asdict(contents.projection), "points": contents.projection.points.tolist()}
    if contents.attention is not None:
        both = {"image": contents.attention.image, "text": contents.attention.text}
        found["attention"] = {
            name: {"entropy": one.entropy, "spread": one.spread, "overlap": one.overlap.tolist()}
            for name, one in both.items()
        }
    return found


def check_plots() -> None:
    """ImportError, with the cure, where figures cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise ImportError("figures need matplotlib, which is not installed: pip install 'maxmatch[plots]'")


def refuse_foreign(folder: Path) -> None:
    """FileExistsError where something that is no report of ours would be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: is a file. Choose a folder with --out.")
    known = (folder / NUMBERS).exists()
    for name in (REPORT, FIGURES):
        if (folder / name).exists() and not known:
            raise FileExistsError(f"{folder / name}: is there already, but no {NUMBERS} of ours. Choose another --out.")


def _write_figures(contents: Contents, folder: Path) -> dict[str, bytes]:
    """Draw all figures into a folder beside its place, then put it there; the PNG files by name."""
    from maxmatch.report.drawing import draw
    from maxmatch.report.figures_style import render

    draft = folder / f".{FIGURES}.part"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        pictures = {}
        for name, figure in draw(contents):
            pictures[name] = render(figure, "png")
            (draft / f"{name}.png").write_bytes(pictures[name])
            (draft / f"{name}.pdf").write_bytes(render(figure, "pdf"))
        for file in draft.iterdir():
            sync(file)
        shutil.rmtree(folder / FIGURES, ignore_errors=True)
        os.replace(draft, folder / FIGURES)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError):
            text = f"{folder / FIGURES}: could not be written ({error}). Free some space or permit it."
            raise OSError(error.errno, text) from error
        raise
    sync(folder)
    return pictures
