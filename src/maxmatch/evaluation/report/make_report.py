"""From a model and a split to a report: report.html, figures/ and analysis.json."""

import base64
import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, StrictUndefined
from PIL import Image

from maxmatch import __version__
from maxmatch.core.files import read_metrics, sync, write_whole
from maxmatch.core.progress import Advance, quiet
from maxmatch.data.dataset import IMAGE, TEXT, Items, Split
from maxmatch.evaluation.analysis import Analysis, analyse, caption_facets
from maxmatch.evaluation.encoding import EncodedSplit, Say, encode_items, left_out
from maxmatch.evaluation.metrics import choose_pair
from maxmatch.evaluation.slots import Attention, Projection, attention, project
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.images import ImageError, load_image
from maxmatch.model.inputs import FeatureReader, PixelReader

# Items as a person sees them: pictures small, texts as they are, and names where there is nothing to see.

SIDE = 160
"""Pixels of a thumbnail's long side."""


@dataclass(frozen=True)
class DisplayedItems:
    """The items of one modality, by their places in an encoded split.

    values: the raw items of the data. place: for each encoded item its place in there. ids: the names of the encoded
    items.
    """

    values: Sequence[Any]
    place: Sequence[int]
    ids: Sequence[str]

    def raw(self, item: int) -> Any:
        """The item as the data has it."""
        return self.values[self.place[item]]

    def picture(self, item: int) -> Image.Image | None:
        """The picture, where it is one that can be opened; None for features and texts."""
        value = self.raw(item)
        pixels = isinstance(value, np.ndarray) and value.dtype == np.uint8
        if not (pixels or isinstance(value, Path | bytes | Image.Image)):
            return None
        try:
            return load_image(value, at_least=2 * SIDE)
        except (ImageError, OSError):
            return None

    def text(self, item: int) -> str | None:
        """The text, where it is one."""
        value = self.raw(item)
        return value if isinstance(value, str) else None


def displayed_items(split: Split, encoded: EncodedSplit) -> dict[str, DisplayedItems]:
    """The items of an encoded split as `split` has them, found by their names."""
    return {name: _displayed(split[name], encoded.ids[name]) for name in encoded.sets if encoded.ids.get(name)}


def _displayed(items: Items, ids: Sequence[str]) -> DisplayedItems:
    places: Mapping[str, int] = {str(name): place for place, name in enumerate(items.ids)}
    return DisplayedItems(items.values, [places[name] for name in ids], ids)


def thumbnail(picture: Image.Image, side: int = SIDE) -> bytes:
    """A small JPEG. A picture that is small already keeps its size."""
    small = picture.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    with io.BytesIO() as file:
        small.convert("RGB").save(file, "JPEG", quality=82, optimize=True)
        return file.getvalue()


# What a report is made from.

METHODS = {"tsne": "t-SNE", "umap": "UMAP"}


@dataclass(frozen=True)
class ReportContents:
    """All that a report shows; what is missing is left out of it.

    title: the model's name. facts: what was analysed, by name, for the head of the page. items: how the items of each
    modality are shown. seen: of each pair in `attention` the picture as the model sees it; None where that is no
    picture. records: those of the run's metrics.jsonl.
    """

    title: str
    analysis: Analysis
    facts: Mapping[str, str] = field(default_factory=dict)
    items: Mapping[str, DisplayedItems] = field(default_factory=dict)
    projection: Projection | None = None
    attention: Attention | None = None
    seen: Sequence[Image.Image | None] = ()
    records: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if self.attention is not None and len(self.seen) != len(self.attention.pairs):
            raise ValueError(
                f"seen: expected a picture, or None, for each of {len(self.attention.pairs)} pairs of `attention`, "
                f"got {len(self.seen)}."
            )


# The page: `report.html`, a template that escapes whatever it is given.

_DASH = "\u2060–\u2060"
"""A dash that no line ends at."""


def page(contents: ReportContents, pictures: Mapping[str, bytes]) -> str:
    """The whole page. pictures: the figures as PNG files, by name; those that are not there are left out."""
    found = contents.analysis
    style = _resource("style.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters.update(num=number, an=an)
    elements = [("all slots", found.elements.whole)]
    elements += [
        (f"{name} slot {slot} only", kept)
        for name in found.pair
        for slot, kept in enumerate(found.elements.kept[name], start=1)
    ]
    partners = enumerate(found.pairing.partner, start=1)
    looks = contents.attention
    overlaps = {} if looks is None else {"image": looks.image.mean_overlap, "text": looks.text.mean_overlap}

    @cache
    def display(modality: str, item: int) -> dict[str, str | None]:
        items = contents.items.get(modality)
        picture = None if items is None else items.picture(item)
        return {
            "text": None if items is None else items.text(item),
            "picture": None if picture is None else _data_uri(thumbnail(picture), "image/jpeg"),
        }

    return environment.from_string(_resource("report.html")).render(
        report=contents,
        analysis=found,
        titles=_titles(contents, pictures),
        pictures={name: _data_uri(content, "image/png") for name, content in pictures.items()},
        display=display,
        style=style,
        policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        set_sizes=sorted({found.set_sizes[name] for name in found.pair}),
        usual_partners=", ".join(f"{slot}{_DASH}{partner + 1}" for slot, partner in partners if partner >= 0),
        element_rows=elements,
        method=METHODS[contents.projection.method] if contents.projection is not None else "",
        overlaps=[f"{name} slots {overlap:.0%}" for name, overlap in overlaps.items() if overlap is not None],
        dash=_DASH,
        facts={**contents.facts, "MaxMatch": __version__},
    )


def _titles(contents: ReportContents, pictures: Mapping[str, bytes]) -> dict[str, str]:
    """The sections of a report, by the names that links have."""
    titles = {
        "retrieval": "Retrieval",
        "training": "Training" if "training" in pictures else "",
        "collapse": "Are the vectors of a set different?",
        "meeting": "Which slots meet",
        "elements": "What each slot is worth",
        "vectors": "Where the vectors lie" if contents.projection is not None else "",
        "facets": "Do slots specialise?" if contents.analysis.facets is not None else "",
        "by-slot": "What each slot finds",
        "attention": "What each slot looks at" if contents.attention is not None else "",
        "failures": "Where the model fails",
        "about": "About this report",
    }
    return {name: title for name, title in titles.items() if title}


def _resource(name: str) -> str:
    return files("maxmatch.evaluation.report").joinpath(name).read_text(encoding="utf-8")


def _data_uri(content: bytes, kind: str) -> str:
    """A file as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def number(value: float, form: str) -> str:
    """A number for people: with a real minus sign."""
    return format(value, form).replace("-", "−")


def an(noun: str) -> str:
    """A noun with its article."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


# A report on the disk: report.html, figures/ and analysis.json.

REPORT, FIGURES, NUMBERS = "report.html", "figures", "analysis.json"


def write_report(
    analysis: Analysis,
    folder: str | Path,
    *,
    title: str = "the model",
    facts: Mapping[str, str] | None = None,
    items: Mapping[str, DisplayedItems] | None = None,
    projection: Projection | None = None,
    attention: Attention | None = None,
    seen: Sequence[Image.Image | None] = (),
    records: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write report.html, figures/*.pdf and *.png, and analysis.json into a folder; the page's path.

    What an earlier report left there is replaced as a whole. The arguments are those of `ReportContents`.
    """
    check_plots()
    folder = Path(folder).expanduser()
    refuse_foreign(folder)
    contents = ReportContents(title, analysis, facts or {}, items or {}, projection, attention, seen, records)
    pictures = _write_figures(contents, folder)
    write_whole(folder / NUMBERS, json.dumps(numbers(contents), allow_nan=False) + "\n")
    write_whole(folder / REPORT, page(contents, pictures))
    return folder / REPORT


def numbers(contents: ReportContents) -> dict[str, Any]:
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
    """FileExistsError where something other than an earlier report would be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: is a file. Choose a folder with --out.")
    known = (folder / NUMBERS).exists()
    for name in (REPORT, FIGURES):
        if (folder / name).exists() and not known:
            raise FileExistsError(f"{folder / name}: exists, but no {NUMBERS}: not a report. Choose another --out.")


def _write_figures(contents: ReportContents, folder: Path) -> dict[str, bytes]:
    """Draw all figures into a temporary folder, then put it in place; the PNG files by name."""
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
    items = displayed_items(visible, encoded)
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
    """ImportError, with the cure, where figures cannot be drawn: checked before anything is measured."""
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
    model: SetEncoder, found: Analysis, items: Mapping[str, DisplayedItems], encoded: EncodedSplit, count: int, say: Say
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
            say("the pictures are missing: the report does not show what slots look at")
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
