"""The figure of many runs beside each other. Pure functions of numbers."""

from collections.abc import Mapping, Sequence
from itertools import cycle, product

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from maxmatch.report.figures_style import PAGE, PALETTE, STYLE, plain

_BLACK = "#000000"  # for the one that the others are compared with
_COLOURS = [colour for colour in PALETTE if colour != _BLACK]
_DASHES = ("-", "--", ":", "-.")


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
        axes.set_xlabel("epoch")
        axes.set_ylabel("validation RSUM (of 600)")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
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
    if len(epochs) == 1:  # which is no line
        axes.plot(epochs, mean, "o", color=colour, markersize=3, zorder=order)
