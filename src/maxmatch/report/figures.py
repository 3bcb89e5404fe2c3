"""Figures of matrices, shares and curves. Pure functions of numbers; slots are counted from 1."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from maxmatch.report.figures_style import COLUMN, GREY, PAGE, PALETTE, STYLE, plain, slot_names

_MOST_ANNOTATED = 8  # more numbers than that in a row cannot be read at the width of a column
_LOSSES = {
    "loss": "total",
    "triplet": "triplet",
    "contrastive": "contrastive",
    "global_discriminative": "global discriminative",
    "intra_set_divergence": "intra-set divergence",
    "mmd": "MMD",
    "diversity": "diversity",
}


@rc_context(STYLE)
def heatmap(cosines: Mapping[str, np.ndarray], rows: str = "image", columns: str = "text") -> Figure:
    """The mean cosine of every slot with every slot, for one model or several side by side (fig:heatmap)."""
    names = list(cosines)
    low = min(0.0, *(float(values.min()) for values in cosines.values()))
    high = max(float(values.max()) for values in cosines.values())
    norm = Normalize(low, max(high, low + 0.1))
    width = COLUMN if len(names) == 1 else PAGE
    height = 0.8 * width if len(names) == 1 else width / len(names) + 0.4
    figure = Figure((width, height), layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(1, len(names))))
    for place, (one, name) in enumerate(zip(axes, names, strict=True)):
        _matrix(one, cosines[name], norm, "viridis", "{:.2f}")
        one.set_xlabel(f"{columns} slot")
        if place == 0:
            one.set_ylabel(f"{rows} slot")
        if len(names) > 1:
            one.set_title(plain(name))
    figure.colorbar(ScalarMappable(norm, "viridis"), ax=axes, label="mean cosine of true pairs", shrink=0.9, aspect=25)
    return figure


@rc_context(STYLE)
def pairing_shares(counts: np.ndarray, rows: str = "image", columns: str = "text") -> Figure:
    """In how many of 100 true pairs each slot is matched with each. counts: over all true pairs."""
    shares = 100 * counts * min(counts.shape) / max(counts.sum(), 1)
    figure = Figure((COLUMN, 0.8 * COLUMN), layout="constrained")
    axes = figure.subplots()
    norm = Normalize(0, 100)
    _matrix(axes, shares, norm, "cividis", "{:.0f}")
    axes.set_xlabel(f"{columns} slot")
    axes.set_ylabel(f"{rows} slot")
    figure.colorbar(ScalarMappable(norm, "cividis"), ax=axes, label="matched, % of true pairs", shrink=0.9, aspect=25)
    return figure


@rc_context(STYLE)
def facet_scores(scores: np.ndarray, best: Sequence[int], facets: Sequence[str], slots: str = "image") -> Figure:
    """How clearly each slot (column) recognises captions about each facet (row). Framed: the best slot of a facet."""
    figure = Figure((COLUMN, 0.9 + 0.26 * len(scores)), layout="constrained")
    axes = figure.subplots()
    norm = Normalize(min(0.0, float(scores.min())), max(float(scores.max()), 0.1))
    _matrix(axes, scores, norm, "cividis", "{:.2f}", aspect="auto")
    axes.set_yticks(range(len(scores)), map(plain, facets))
    axes.set_xlabel(f"{slots} slot")
    axes.set_ylabel("caption about")
    for row, slot in enumerate(best):
        axes.add_patch(Rectangle((slot - 0.47, row - 0.43), 0.94, 0.86, fill=False, edgecolor=PALETTE[4], lw=1.5))
    figure.colorbar(ScalarMappable(norm, "cividis"), ax=axes, label="standard score", aspect=25)
    return figure


@rc_context(STYLE)
def cosine_histogram(edges: np.ndarray, counts: Mapping[str, np.ndarray]) -> Figure:
    """How close the vectors of one set are to each other, by modality."""
    figure = Figure((COLUMN, 2.2), layout="constrained")
    axes = figure.subplots()
    for (name, values), colour, dashes in zip(counts.items(), PALETTE, ("-", "--", ":", "-."), strict=False):
        shares = 100 * values / max(values.sum(), 1)
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.25)
        axes.stairs(shares, edges, color=colour, linestyle=dashes, label=_plural(name), linewidth=1.2)
    axes.set_xlabel("cosine of two vectors of one set")
    axes.set_ylabel("share of pairs (%)")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)
    _legend_above(figure, 2)
    return figure


@rc_context(STYLE)
def element_bars(kept: Mapping[str, np.ndarray], whole: float, chance: float | None = None) -> Figure:
    """RSUM when a side keeps one of its slots, against that of whole sets (table tab:5)."""
    figure = _bars(kept, "slot that is kept", "RSUM (of 600)", ".0f")
    axes = figure.axes[0]
    axes.axhline(whole, color="black", linewidth=1, linestyle="--", zorder=0.5, label=f"all slots, {whole:.1f}")
    if chance is not None:
        axes.axhline(chance, color=GREY, linewidth=1, linestyle=":", zorder=0.5, label=f"chance, {chance:.1f}")
    axes.set_ylim(0, 1.12 * max(whole, *(float(values.max()) for values in kept.values())))
    _legend_above(figure, 2)
    return figure


@rc_context(STYLE)
def slot_usage(used: Mapping[str, np.ndarray]) -> Figure:
    """In how many of 100 true pairs each slot holds the largest cosine."""
    shares = {name: 100 * values for name, values in used.items()}
    figure = _bars(shares, "slot", "holds the largest cosine,\n% of true pairs", ".0f")
    figure.axes[0].set_ylim(0, 112)
    figure.axes[0].set_yticks(range(0, 101, 25))
    _legend_above(figure, 2)
    return figure


@rc_context(STYLE)
def training_curves(records: Iterable[Mapping[str, Any]]) -> Figure | None:
    """RSUM, losses and circular variance over a run, from the records of its metrics.jsonl; None without any."""
    train, val = _by_step(records, "train"), _by_step(records, "val")
    known = {name for record in (*train.values(), *val.values()) for name, value in record.items() if value is not None}
    wanted = ((_draw_rsum, {"rsum"}), (_draw_losses, set(_LOSSES)), (_draw_variance, _variances(known)))
    panels = [draw for draw, names in wanted if names & known]
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
        colour = "black" if name == "loss" else (*PALETTE[:6],)[place - 1]
        _line(axes, train, name, label, colour, linestyle=styles[place % len(styles)])
    axes.set_ylabel("loss (log scale)")
    axes.set_yscale("log")
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.06), ncols=2, columnspacing=1, borderaxespad=0)


def _draw_variance(axes: Axes, val: Mapping[int, Mapping[str, Any]]) -> None:
    names = _variances({name for record in val.values() for name in record})
    for place, name in enumerate(sorted(names)):
        modality = name.removesuffix("_log_variance")
        _line(axes, val, name, _plural(modality), PALETTE[place], marker="os^"[place % 3], markersize=3)
    axes.set_ylabel("log circular\nvariance")
    axes.legend(loc="best")


def _variances(names: set[str]) -> set[str]:
    return {name for name in names if name.endswith("_log_variance")}


def _line(
    axes: Axes, records: Mapping[int, Mapping[str, Any]], name: str, label: str, colour: str, **style: Any
) -> None:
    """One curve; what is missing, or no number, is left out."""
    points = [(step, record[name]) for step, record in records.items() if record.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), color=colour, label=label, **style)


def _by_step(records: Iterable[Mapping[str, Any]], kind: str) -> dict[int, Mapping[str, Any]]:
    """The records of a kind by step, in order. Where a run went back, the later record of a step counts."""
    found = {int(record["step"]): record for record in records if record.get("kind") == kind}
    return dict(sorted(found.items()))


def _bars(heights: Mapping[str, np.ndarray], x: str, y: str, form: str) -> Figure:
    """Bars of several modalities beside each other, for each slot, with their numbers on top."""
    figure = Figure((COLUMN, 2.4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(heights)
    most = max(len(values) for values in heights.values())
    for place, (name, values) in enumerate(heights.items()):
        at = np.arange(len(values)) + (place - (len(heights) - 1) / 2) * width
        drawn = axes.bar(at, values, width * 0.94, color=PALETTE[place], label=_plural(name))
        if most * len(heights) <= 2 * _MOST_ANNOTATED:
            said = axes.bar_label(drawn, [format(float(value), form) for value in values], fontsize=6, padding=1)
            for label in said:
                label.set_path_effects([withStroke(linewidth=1.5, foreground="white")])
    axes.set_xticks(range(most), slot_names(most))
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.tick_params(axis="x", length=0)
    return figure


def _legend_above(figure: Figure, columns: int) -> None:
    figure.legend(loc="outside upper center", ncols=columns, columnspacing=1.2)


def _matrix(axes: Axes, values: np.ndarray, norm: Normalize, colours: str, form: str, aspect: str = "equal") -> None:
    """A matrix as colours, with its numbers where they can be read. What is no number stays empty."""
    shown = axes.imshow(values, cmap=colours, norm=norm, aspect="auto" if aspect == "auto" else "equal")
    axes.set_xticks(range(values.shape[1]), slot_names(values.shape[1]))
    axes.set_yticks(range(values.shape[0]), slot_names(values.shape[0]))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if values.shape[1] > _MOST_ANNOTATED:
        return
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = shown.cmap(norm(float(value)))
            ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
            text = form.format(value).replace("-", "−")
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=7)


def _plural(modality: str) -> str:
    return f"{modality}s"
