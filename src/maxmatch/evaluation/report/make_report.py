"""From a model and a split to a report: report.html, figures/ and analysis.json."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from maxmatch.core.files import read_metrics, sync, write_whole
from maxmatch.core.progress import Advance, quiet
from maxmatch.data.dataset import IMAGE, TEXT, Split
from maxmatch.evaluation.analysis import Analysis, analyse, caption_facets
from maxmatch.evaluation.encoding import EncodedSplit, Say, encode_items, left_out
from maxmatch.evaluation.metrics import choose_pair
from maxmatch.evaluation.report.contents import METHODS, Contents, Shown, shown_items
from maxmatch.evaluation.report.sections import page
from maxmatch.evaluation.slots import Attention, Projection, attention, project
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.inputs import FeatureReader, PixelReader

# A report on the disk: report.html, figures/ and analysis.json.

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
    from maxmatch.evaluation.report.figures import draw, render

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


# From a model and a split to a report: encode, measure, look, write.


@dataclass(frozen=True)
class ReportOptions:
    """What is to be measured and shown.

    similarity: None is the model's own. examples: queries and failures each way, and pairs whose attention is shown.
    projection: "tsne" or "umap".
    """

    similarity: str | None = None
    examples: int = 5
    projection: str = "tsne"
    seed: int = 0
    batch_size: int = 64


def make_report(
    model: SetEncoder,
    split: Split,
    visible: Split,
    folder: Path,
    wanted: ReportOptions,
    *,
    title: str,
    facts: Mapping[str, str],
    run: Path | None = None,
    say: Say = lambda line: None,
    advance: Advance = quiet,
) -> tuple[Analysis, Path]:
    """Analyse a model on a split and write the report; what was found, and where the page is.

    visible: the same split with its pictures, where `split` has features in their place; else the same one. run: the
    folder of the run that the model comes from, whose metrics.jsonl is drawn where there is one. advance: told how many
    groups more are encoded.
    """
    pair = choose_pair(model.towers)
    encoded = encode_items(model, split, batch_size=wanted.batch_size, advance=advance, report=left_out(say))
    say("measuring")
    similarity = wanted.similarity or model.similarity_name
    found = analyse(
        encoded,
        pair,
        similarity,
        options=model.similarity_options if similarity == model.similarity_name else {},
        facets=caption_facets(split, encoded, pair),
        examples=wanted.examples,
        worst=wanted.examples,
        seed=wanted.seed,
    )
    items = shown_items(visible, encoded)
    looks = _looks(model, found, items, encoded, wanted.examples, say)
    say("drawing")
    page = write_report(
        found,
        folder,
        title=title,
        facts=facts,
        items=items,
        projection=_projected(encoded, pair, wanted, say),
        attention=looks.attention,
        seen=looks.seen,
        records=[] if run is None else read_metrics(run),
    )
    return found, page


def check_installed(projection: str) -> None:
    """ImportError, with the cure, where figures cannot be drawn: said before anything is measured."""
    check_plots()
    package, extra = {"tsne": ("sklearn", "plots"), "umap": ("umap", "umap")}[projection]
    if find_spec(package) is None:
        raise ImportError(
            f"{METHODS[projection]} needs a package that is not installed: pip install 'maxmatch[{extra}]'"
        )


class _Looks(NamedTuple):
    attention: Attention | None
    seen: list[Image.Image | None]


def _looks(
    model: SetEncoder, found: Analysis, items: Mapping[str, Shown], encoded: EncodedSplit, count: int, say: Say
) -> _Looks:
    """What the slots look at in the images that are shown as examples, each with the first of its captions."""
    nothing = _Looks(None, [])
    if found.pair != (IMAGE, TEXT):
        return nothing
    reader = model.tower(IMAGE).reader
    groups, texts = encoded.groups[IMAGE].tolist(), encoded.groups[TEXT].tolist()
    images = [example.item for example in found.by_slot[0].examples][:count]
    captions = [items[TEXT].text(texts.index(groups[place])) for place in images]
    raw = [items[IMAGE].raw(place) for place in images]
    seen: list[Image.Image | None] = [None] * len(images)
    if isinstance(reader, PixelReader):
        if any(items[IMAGE].picture(place) is None for place in images):
            say("the pictures are not there: the report does not show what slots look at")
            return nothing
        seen = [reader.transform.seen(value) for value in raw]
    elif not isinstance(reader, FeatureReader):
        return nothing
    try:
        return _Looks(attention(model, raw, [caption for caption in captions if caption is not None]), seen)
    except ValueError as error:  # a head of another kind, that has no attention to show
        say(f"{error} The report does without it.")
        return nothing


def _projected(encoded: EncodedSplit, pair: tuple[str, str], wanted: ReportOptions, say: Say) -> Projection | None:
    """Vectors in the plane, where there are enough of them and what it takes is installed."""
    try:
        return project(encoded, pair, method=wanted.projection, seed=wanted.seed)
    except ValueError as error:
        say(f"{error} The report does without it.")
        return None
