"""How all figures look, and how they are written: a column of a paper wide, safe for the colour-blind, the same bytes
for the same numbers.
"""

import io
import warnings
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

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


def render(figure: Figure, kind: Literal["png", "pdf"], dpi: int = 200) -> bytes:
    """A figure as a file. Without the date and the version in it, so that it is the same every time."""
    unsaid = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    with rc_context(STYLE), io.BytesIO() as file, warnings.catch_warnings():
        # The font has no Chinese letters, for one: those words are in the report as text, and boxes in the figure.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it would move things a little with every drawing
        figure.savefig(file, format=kind, dpi=dpi, metadata=unsaid)
        return file.getvalue()
