"""Figures of single items: where their vectors lie, and what each slot looks at."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from PIL import Image

from maxmatch.report.figures_style import COLUMN, STYLE, plain, slot_colours, slot_names

_MARKERS = ("o", "x", "^", "s")
_TILES = 5  # in a row


@rc_context(STYLE)
def scatter(points: np.ndarray, slots: np.ndarray, modalities: Sequence[str], of: np.ndarray, method: str) -> Figure:
    """Vectors in the plane (fig:tsne). Colour: slot; dots: the first modality (images), crosses: the second (texts).

    of: for each point the place of its modality in `modalities`.
    """
    figure = Figure((COLUMN, 3.3), layout="constrained")
    axes = figure.subplots()
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
    axes.set_xlabel(f"{method}, first coordinate")
    axes.set_ylabel(f"{method}, second coordinate")
    axes.set_xticks([])
    axes.set_yticks([])
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
def attention_on_picture(picture: Image.Image, attention: np.ndarray, name: str = "image") -> Figure:
    """A picture, and beside it for each slot where in it the slot looks: the brighter, the more.

    attention: (K, rows, columns), over the whole picture.
    """
    tiles = len(attention) + 1
    across = min(tiles, _TILES)
    down = -(-tiles // across)
    shape = picture.height / picture.width
    figure = Figure(
        (COLUMN, down * (COLUMN / across * shape + 0.2)),
        layout=ConstrainedLayoutEngine(w_pad=0.01, h_pad=0.01, wspace=0.02),
    )
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for one in axes:
        one.set_axis_off()
    axes[0].imshow(picture)
    axes[0].set_title(plain(name), fontsize=7, pad=2)
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
    figure = Figure((COLUMN, height + 0.4 + 0.065 * letters), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(100 * attention, cmap="cividis", vmin=0, aspect="auto")
    axes.set_xticks(range(count), map(plain, parts), rotation=90, fontsize=7 if count <= 20 else 5)
    axes.set_yticks(range(len(attention)), slot_names(len(attention)))
    axes.set_ylabel("slot")
    axes.set_xlabel(label)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(shown, ax=axes, label="attention (%)", aspect=12)
    return figure
