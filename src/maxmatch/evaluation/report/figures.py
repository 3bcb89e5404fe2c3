"""Figures of a report: pure functions of numbers, a column of a paper wide, safe for the colour-blind."""

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, product
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from PIL import Image

from maxmatch.evaluation.analysis import Analysis
from maxmatch.evaluation.slots import METHODS, Attention, Projection
from maxmatch.losses.objective import TERMS

# How all figures look, and how they are written: a column of a paper wide, safe for the colour-blind, the same bytes
# for the same numbers.

COLUMN, PAGE = 3.3, 6.8
"""Inches: one column of a paper, and both."""

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,  # whole TrueType fonts, as journals ask for
    "svg.hashsalt": "maxmatch",
}

# Okabe and Ito's colours, which everyone tells apart; yellow last, since it is faint on white.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#F0E442")
GREY = "#767676"


def slot_colours(count: int) -> list[str]:
    """A colour for each slot."""
    if count <= len(PALETTE):
        return list(PALETTE[:count])
    return [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0, 1, count))]


def slot_names(count: int) -> list[str]:
    """How slots are called in figures: from 1."""
    return [str(slot + 1) for slot in range(count)]


def plain(text: str) -> str:
    """A text of the data as it is: a dollar sign begins no formula."""
    return text.replace("$", r"\$")


def render(figure: Figure, kind: Literal["png", "pdf"]) -> bytes:
    """A figure as a file. Without the date and the version in it, so that it is the same every time."""
    unsaid = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    with rc_context(STYLE), io.BytesIO() as file, warnings.catch_warnings():
        # The font has no Chinese letters, for one: those words are in the report as text, and boxes in the figure.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it would move things a little with every drawing
        figure.savefig(file, format=kind, dpi=200, metadata=unsaid)
        return file.getvalue()


# Figures of matrices, shares and curves. Pure functions of numbers; slots are counted from 1.

_DASHES = ("-", "--", ":", "-.")
_MOST_ANNOTATED = 8  # more numbers than that in a row cannot be read at the width of a column
_LOSSES = {"loss": "total", **{name: term.label for name, term in TERMS.items()}}


@rc_context(STYLE)
def heatmap(cosines: Mapping[str, np.ndarray], rows: str = "image", columns: str = "text") -> Figure:
    """The mean cosine of every slot with every slot, for one model or several side by side (fig:heatmap)."""
    several = len(cosines) > 1
    low = min(0.0, *(float(values.min()) for values in cosines.values()))
    high = max(float(values.max()) for values in cosines.values())
    size = (PAGE, PAGE / len(cosines) + 0.4) if several else (COLUMN, 0.8 * COLUMN)
    figure = Figure(size, layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(1, len(cosines))))
    norm = Normalize(low, max(high, low + 0.1))
    for one, (name, values) in zip(axes, cosines.items(), strict=True):
        _matrix(one, values, norm, "viridis", "{:.2f}", f"{columns} slot", f"{rows} slot" if one is axes[0] else "")
        one.set_title(plain(name) if several else "")
    figure.colorbar(ScalarMappable(norm, "viridis"), ax=axes, label="mean cosine of true pairs", shrink=0.9, aspect=25)
    return figure


@rc_context(STYLE)
def pairing_shares(counts: np.ndarray, rows: str = "image", columns: str = "text") -> Figure:
    """In how many of 100 true pairs each slot is matched with each. counts: over all true pairs."""
    shares = 100 * counts * min(counts.shape) / max(counts.sum(), 1)
    (figure, axes), norm = _single(0.8 * COLUMN), Normalize(0, 100)
    _matrix(axes, shares, norm, "cividis", "{:.0f}", f"{columns} slot", f"{rows} slot")
    figure.colorbar(ScalarMappable(norm, "cividis"), ax=axes, label="matched, % of true pairs", shrink=0.9, aspect=25)
    return figure


@rc_context(STYLE)
def facet_scores(scores: np.ndarray, best: Sequence[int], facets: Sequence[str], slots: str = "image") -> Figure:
    """How clearly each slot (column) recognises captions about each facet (row). Framed: the best slot of a facet."""
    figure, axes = _single(0.9 + 0.26 * len(scores))
    norm = Normalize(min(0.0, float(scores.min())), max(float(scores.max()), 0.1))
    _matrix(axes, scores, norm, "cividis", "{:.2f}", f"{slots} slot", "caption about")
    axes.set_aspect("auto")
    axes.set_yticks(range(len(scores)), map(plain, facets))
    for row, slot in enumerate(best):
        axes.add_patch(Rectangle((slot - 0.47, row - 0.43), 0.94, 0.86, fill=False, edgecolor=PALETTE[4], lw=1.5))
    figure.colorbar(ScalarMappable(norm, "cividis"), ax=axes, label="standard score", aspect=25)
    return figure


@rc_context(STYLE)
def cosine_histogram(edges: np.ndarray, counts: Mapping[str, np.ndarray]) -> Figure:
    """How close the vectors of one set are to each other, by modality."""
    figure, axes = _single(2.2)
    for (name, values), colour, dashes in zip(counts.items(), PALETTE, _DASHES, strict=False):
        shares = 100 * values / max(values.sum(), 1)
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.25)
        axes.stairs(shares, edges, color=colour, linestyle=dashes, label=f"{name}s", linewidth=1.2)
    axes.set(xlabel="cosine of two vectors of one set", ylabel="share of pairs (%)", xlim=(edges[0], edges[-1]))
    axes.set_ylim(bottom=0)
    _legend_above(figure)
    return figure


@rc_context(STYLE)
def element_bars(kept: Mapping[str, np.ndarray], whole: float, chance: float) -> Figure:
    """RSUM when a side keeps one of its slots, against that of whole sets (table tab:5)."""
    figure, axes = _bars(kept, "slot that is kept", "RSUM (of 600)")
    axes.axhline(whole, color="black", linewidth=1, linestyle="--", zorder=0.5, label=f"all slots, {whole:.1f}")
    axes.axhline(chance, color=GREY, linewidth=1, linestyle=":", zorder=0.5, label=f"chance, {chance:.1f}")
    axes.set_ylim(0, 1.12 * max(whole, *(float(values.max()) for values in kept.values())))
    _legend_above(figure)
    return figure


@rc_context(STYLE)
def slot_usage(used: Mapping[str, np.ndarray]) -> Figure:
    """In how many of 100 true pairs each slot holds the largest cosine."""
    shares = {name: 100 * values for name, values in used.items()}
    figure, axes = _bars(shares, "slot", "holds the largest cosine,\n% of true pairs")
    axes.set(ylim=(0, 112), yticks=range(0, 101, 25))
    _legend_above(figure)
    return figure


@rc_context(STYLE)
def training_curves(records: Iterable[Mapping[str, Any]]) -> Figure | None:
    """RSUM, losses and circular variance over a run, from the records of its metrics.jsonl; None without any."""
    train, val = _by_step(records, "train"), _by_step(records, "val")
    known = {name for record in (*train.values(), *val.values()) for name, value in record.items() if value is not None}
    known_panels = ((_draw_rsum, {"rsum"}), (_draw_losses, set(_LOSSES)), (_draw_variance, _variances(known)))
    panels = [draw for draw, names in known_panels if names & known]
    if not panels:
        return None
    figure = Figure((COLUMN, 0.4 + 1.6 * len(panels)), layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(len(panels), 1, sharex=True)))
    for one, draw in zip(axes, panels, strict=True):
        draw(one, train if draw is _draw_losses else val)
        one.grid(axis="y", color="#dddddd", linewidth=0.5)
    axes[-1].set_xlabel("training step")
    axes[-1].set_xlim(left=0)
    axes[-1].xaxis.set_major_locator(MaxNLocator(5, integer=True))
    figure.align_ylabels(axes)
    return figure


def _draw_rsum(axes: Axes, val: Mapping[int, Mapping[str, Any]]) -> None:
    _line(axes, val, "rsum", "validation", PALETTE[0], marker="o", markersize=3)
    _line(axes, val, "chance_rsum", "chance", GREY, linestyle=":")
    axes.set_ylabel("RSUM (of 600)")
    axes.set_ylim(bottom=0)
    axes.legend(loc="center right")


def _draw_losses(axes: Axes, train: Mapping[int, Mapping[str, Any]]) -> None:
    styles = ("-", "--", "-.", ":")
    for place, (name, label) in enumerate(_LOSSES.items()):
        colour = "black" if name == "loss" else PALETTE[(place - 1) % 6]
        _line(axes, train, name, label, colour, linestyle=styles[place % len(styles)])
    axes.set_ylabel("loss (log scale)")
    axes.set_yscale("log")
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.06), ncols=2, columnspacing=1, borderaxespad=0)


def _draw_variance(axes: Axes, val: Mapping[int, Mapping[str, Any]]) -> None:
    names = _variances({name for record in val.values() for name in record})
    for place, name in enumerate(sorted(names)):
        modality = name.removesuffix("_log_variance")
        _line(axes, val, name, f"{modality}s", PALETTE[place], marker="os^"[place % 3], markersize=3)
    axes.set_ylabel("log circular\nvariance")
    axes.legend(loc="best")


def _variances(names: set[str]) -> set[str]:
    return {name for name in names if name.endswith("_log_variance")}


def _line(
    axes: Axes, records: Mapping[int, Mapping[str, Any]], name: str, label: str, colour: str, **style: Any
) -> None:
    """One curve; missing values are left out."""
    points = [(step, record[name]) for step, record in records.items() if record.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), color=colour, label=label, **style)


def _by_step(records: Iterable[Mapping[str, Any]], kind: str) -> dict[int, Mapping[str, Any]]:
    """The records of a kind by step, in order. Where a run went back, the later record of a step counts."""
    found = {int(record["step"]): record for record in records if record.get("kind") == kind}
    return dict(sorted(found.items()))


def _bars(heights: Mapping[str, np.ndarray], x: str, y: str) -> tuple[Figure, Axes]:
    """Bars of several modalities side by side, for each slot, with their numbers on top."""
    figure, axes = _single(2.4)
    width = 0.8 / len(heights)
    most = max(len(values) for values in heights.values())
    for place, (name, values) in enumerate(heights.items()):
        at = np.arange(len(values)) + (place - (len(heights) - 1) / 2) * width
        drawn = axes.bar(at, values, width * 0.94, color=PALETTE[place], label=f"{name}s")
        if most * len(heights) <= 2 * _MOST_ANNOTATED:
            for label in axes.bar_label(drawn, [f"{value:.0f}" for value in values], fontsize=6, padding=1):
                label.set_path_effects([withStroke(linewidth=1.5, foreground="white")])
    axes.set(xticks=range(most), xticklabels=slot_names(most), xlabel=x, ylabel=y)
    axes.tick_params(axis="x", length=0)
    return figure, axes


def _single(height: float) -> tuple[Figure, Axes]:
    """A figure of one column with one pair of axes."""
    figure = Figure((COLUMN, height), layout="constrained")
    return figure, figure.subplots()


def _legend_above(figure: Figure) -> None:
    figure.legend(loc="outside upper center", ncols=2, columnspacing=1.2)


def _matrix(axes: Axes, values: np.ndarray, norm: Normalize, colours: str, form: str, x: str, y: str) -> None:
    """A matrix as colours, with its numbers where they can be read."""
    image = axes.imshow(values, cmap=colours, norm=norm)
    axes.set_xticks(range(values.shape[1]), slot_names(values.shape[1]))
    axes.set_yticks(range(values.shape[0]), slot_names(values.shape[0]))
    axes.set(xlabel=x, ylabel=y)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if values.shape[1] > _MOST_ANNOTATED:
        return
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = image.cmap(norm(float(value)))
        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        text = form.format(value).replace("-", "−")
        axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=7)


# The validation of many runs in one figure.

_BLACK = "#000000"  # for the one that the others are compared with
_COLOURS = [colour for colour in PALETTE if colour != _BLACK]
_LONG = 6  # epochs from which on the second half is shown for itself


@rc_context(STYLE)
def validation_curves(runs: Mapping[str, Sequence[Mapping[int, float]]], reference: str | None = None) -> Figure:
    """Validation RSUM by epoch: for each name the mean over its seeds, and in a band one deviation to both sides.

    runs: by name, for each seed RSUM by epoch, counted from 1. Where seeds ended at different epochs, a point is the
    mean of those that came so far. reference: the name that is drawn in black, on top. Of long runs the second half,
    where the lines lie close together, stands beside the whole in a scale of its own.
    """
    last = max(epoch for seeds in runs.values() for seed in seeds for epoch in seed)
    begins = (0, last // 2) if last >= _LONG else (0,)
    figure = Figure((PAGE, 3.2 + 0.08 * len(runs)), layout="constrained")
    for axes, begin in zip(np.atleast_1d(figure.subplots(1, len(begins))), begins, strict=True):
        looks = cycle(product(_DASHES, _COLOURS))
        for name, seeds in runs.items():
            dashes, colour = ("-", _BLACK) if name == reference else next(looks)
            _draw(axes, seeds, begin, name, colour, dashes, 3 if name == reference else 2)
        axes.set(xlabel="epoch", ylabel="validation RSUM (of 600)")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, columnspacing=1.2, handlelength=2.4)
    return figure


@rc_context(STYLE)
def recall_curves(curves: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """R@K over K, for each direction a line per model. curves: by direction, by model R@1, R@2, … in per cent."""
    figure = Figure((PAGE, 2.8 + 0.08 * max(map(len, curves.values()))), layout="constrained")
    for axes, (way, models) in zip(np.atleast_1d(figure.subplots(1, len(curves))), curves.items(), strict=True):
        looks = cycle(product(_DASHES, _COLOURS))
        for name, curve in models.items():
            dashes, colour = next(looks)
            axes.plot(np.arange(1, len(curve) + 1), curve, color=colour, linestyle=dashes, lw=1, label=plain(name))
        axes.set(xlabel="K", ylabel="R@K (%)", title=way, xscale="log", ylim=(0, 100))
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, columnspacing=1.2, handlelength=2.4)
    return figure


def _draw(
    axes: Axes, seeds: Sequence[Mapping[int, float]], begin: int, name: str, colour: str, dashes: str, order: int
) -> None:
    """One line and its band, of the epochs after `begin`."""
    epochs = sorted({epoch for seed in seeds for epoch in seed if epoch > begin})
    values = [[seed[epoch] for seed in seeds if epoch in seed] for epoch in epochs]
    mean = np.array([np.mean(some) for some in values])
    spread = np.array([np.std(some, ddof=1) if len(some) > 1 else 0.0 for some in values])
    axes.plot(epochs, mean, color=colour, linestyle=dashes, linewidth=1, label=plain(name), zorder=order)
    if spread.any():
        axes.fill_between(epochs, mean - spread, mean + spread, color=colour, alpha=0.12, lw=0, zorder=order - 2)
    if len(epochs) == 1:  # a point, not a line
        axes.plot(epochs, mean, "o", color=colour, markersize=3, zorder=order)


# Figures of single items: where their vectors lie, and what each slot looks at.

_MARKERS = ("o", "x", "^", "s")
_TILES = 5  # in a row


@rc_context(STYLE)
def scatter(points: np.ndarray, slots: np.ndarray, modalities: Sequence[str], of: np.ndarray, method: str) -> Figure:
    """Vectors in the plane (fig:tsne). Colour: slot; dots: the first modality (images), crosses: the second (texts).

    of: for each point the place of its modality in `modalities`.
    """
    figure, axes = _single(3.3)
    count = int(slots.max()) + 1
    colours = slot_colours(count)
    size = 9 if len(points) <= 2_000 else 4
    for place in range(len(modalities)):
        for slot in range(count):
            chosen = points[(of == place) & (slots == slot)]
            axes.scatter(
                chosen[:, 0], chosen[:, 1], s=size, c=colours[slot], marker=_MARKERS[place], alpha=0.75,
                linewidths=0 if _MARKERS[place] == "o" else 0.7,
            )  # fmt: skip
    axes.set(xlabel=f"{method}, first coordinate", ylabel=f"{method}, second coordinate", xticks=[], yticks=[])
    axes.spines[:].set_visible(True)
    kinds = [
        Line2D([], [], color="black", linestyle="", marker=marker, markersize=3.5, label=f"{name}s")
        for name, marker in zip(modalities, _MARKERS, strict=False)
    ]
    hues = [
        Line2D([], [], color=colour, linestyle="", marker="s", markersize=4, label=f"slot {name}")
        for colour, name in zip(colours, slot_names(count), strict=True)
    ]
    figure.legend(
        handles=[*kinds, *hues], loc="outside upper center", ncols=min(5, -(-(count + 2) // 2)), columnspacing=1
    )
    return figure


@rc_context(STYLE)
def attention_on_picture(picture: Image.Image, attention: np.ndarray) -> Figure:
    """A picture, and beside it for each slot where in it the slot looks: the brighter, the more.

    attention: (K, rows, columns), over the whole picture.
    """
    tiles = len(attention) + 1
    shape = picture.height / picture.width
    across = max(1, min(tiles, round(_TILES * min(1, 1.5 * shape))))  # fewer where the picture is wider than 3:2
    down = -(-tiles // across)
    figure = Figure(
        (COLUMN, down * (COLUMN / across * shape + 0.2)),
        layout=ConstrainedLayoutEngine(w_pad=0.01, h_pad=0.01, wspace=0.02),
    )
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for one in axes:
        one.set_axis_off()
    axes[0].imshow(picture)
    axes[0].set_title("image", fontsize=7, pad=2)
    for slot, (one, weights) in enumerate(zip(axes[1:], attention, strict=False), start=1):
        one.imshow(overlay(picture, weights))
        one.set_title(f"slot {slot}", fontsize=7, pad=2)
    return figure


def overlay(picture: Image.Image, weights: np.ndarray) -> Image.Image:
    """A picture in grey under a film that is the brighter, the more weight lies there."""
    weights = weights.astype(np.float64)
    scaled = weights / max(float(weights.max()), 1e-12)
    smooth = Image.fromarray((255 * scaled).astype(np.uint8)).resize(picture.size, Image.Resampling.BICUBIC)
    level = np.asarray(smooth, np.float64) / 255
    film = np.asarray(colormaps["inferno"](level))[..., :3]
    grey = np.asarray(picture.convert("L"), np.float64)[..., None] / 255
    return Image.fromarray((255 * (0.45 * grey + 0.55 * film)).astype(np.uint8))


@rc_context(STYLE)
def attention_on_parts(parts: Sequence[str], attention: np.ndarray, label: str) -> Figure:
    """How much of its attention each slot (row) gives to each part (column): words, or regions of a picture."""
    count = len(parts)
    letters = max(len(part) for part in parts)
    height = max(0.9, 0.22 * len(attention))  # the label of the colours needs as much
    figure, axes = _single(height + 0.4 + 0.065 * letters)
    image = axes.imshow(100 * attention, cmap="cividis", vmin=0, aspect="auto")
    axes.set_xticks(range(count), map(plain, parts), rotation=90, fontsize=7 if count <= 20 else 5)
    axes.set_yticks(range(len(attention)), slot_names(len(attention)))
    axes.set(xlabel=label, ylabel="slot")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label="attention (%)", aspect=12)
    return figure


# All figures of a report, by the names of their files.


def draw(
    analysis: Analysis,
    title: str,
    projection: Projection | None = None,
    attention: Attention | None = None,
    seen: Sequence[Image.Image | None] = (),
    records: Iterable[Mapping[str, Any]] = (),
) -> Iterator[tuple[str, Figure]]:
    """Every figure that there are numbers for, one after the other. The arguments are those of `write_report`."""
    rows, columns = analysis.pair
    curves = training_curves(records)
    if curves is not None:
        yield "training", curves
    within = {name: np.array(found.counts) for name, found in analysis.within.items() if sum(found.counts)}
    if within:
        yield "within-sets", cosine_histogram(np.array(analysis.within[rows].edges), within)
    yield "heatmap", heatmap({title: analysis.between.true.numpy()}, rows, columns)
    yield "pairing", pairing_shares(analysis.pairing.counts.numpy(), rows, columns)
    yield "usage", slot_usage({name: np.array(shares) for name, shares in analysis.between.usage.items()})
    kept = {name: np.array(analysis.elements.rsum(name)) for name in analysis.pair}
    yield "elements", element_bars(kept, analysis.elements.whole["rsum"], analysis.chance["rsum"])
    for found in analysis.facets or ():
        yield f"facets-{found.modality}", facet_scores(found.scores, found.best, found.facets, found.modality)
    if projection is not None:
        yield "vectors", projected(projection, analysis.pair)
    explained = zip(attention.pairs, seen, strict=True) if attention is not None else ()
    for number, (pair, picture) in enumerate(explained, start=1):
        looks = pair.image_attention.numpy()
        if looks.ndim == 3 and picture is not None:
            yield f"attention-{number}-image", attention_on_picture(picture, looks)
        else:
            flat = looks.reshape(len(looks), -1)
            yield (
                f"attention-{number}-image",
                attention_on_parts(slot_names(flat.shape[1]), flat, "region of the image"),
            )
        yield f"attention-{number}-text", attention_on_parts(pair.words, pair.text_attention.numpy(), "word")


def projected(found: Projection, pair: tuple[str, str]) -> Figure:
    """A projection as a scatter plot."""
    of = np.array([pair.index(name) for name in found.modality])
    return scatter(found.points, np.array(found.slot), pair, of, METHODS[found.method])
