from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from maxmatch.evaluation.report import figures as figures
from maxmatch.evaluation.report.figures import (
    COLUMN,
    PAGE,
    PALETTE,
    attention_on_parts,
    attention_on_picture,
    overlay,
    render,
    scatter,
    slot_colours,
    validation_curves,
)

COSINES = np.array([[0.9, -0.1, 0.2], [0.0, 0.8, 0.1]])
RECORDS = [
    {"kind": "train", "step": 10, "epoch": 0, "loss": 2.0, "triplet": 0.4, "mmd": None},
    {"kind": "train", "step": 20, "epoch": 0, "loss": 1.5, "triplet": 0.3, "mmd": None},
    {"kind": "val", "step": 20, "epoch": 0, "rsum": 50.0, "chance_rsum": 5.0, "image_log_variance": -0.5},
    {"kind": "val", "step": 40, "epoch": 1, "rsum": 80.0, "chance_rsum": 5.0, "image_log_variance": -0.4},
]


@pytest.fixture(scope="module")
def every_figure():
    edges = np.linspace(-1, 1, 11)
    points = np.random.default_rng(0).normal(size=(24, 2))
    return {
        "heatmap": figures.heatmap({"one": COSINES}),
        "heatmaps": figures.heatmap({"one": COSINES, "other": -COSINES}),
        "pairing": figures.pairing_shares(np.array([[5, 0], [1, 4]])),
        "histogram": figures.cosine_histogram(edges, {"image": np.arange(10), "text": np.arange(10)[::-1]}),
        "elements": figures.element_bars({"image": np.array([9.0, 8.0]), "text": np.array([7.0, 6.0])}, 10.0, 1.0),
        "usage": figures.slot_usage({"image": np.array([0.5, 0.5]), "text": np.array([1.0, 0.0])}),
        "facets": figures.facet_scores(COSINES, [0, 1], ["place", "cost in $ and more $"]),
        "training": figures.training_curves(RECORDS),
        "compared": validation_curves(
            {f"line {n} $": [{1: 10.0 + n, 2: 20.0}, {1: 12.0, 2: 24.0}] for n in range(12)}, "line 2 $"
        ),
        "scatter": scatter(points, np.arange(24) % 3, ("image", "text"), np.arange(24) // 12, "t-SNE"),
        "words": attention_on_parts(["a", "$5", "dog"], np.full((2, 3), 1 / 3), "word"),
    }


def labels_of(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_every_axis_is_labelled_and_every_figure_fits_a_column_or_a_page(every_figure):
    for name, figure in every_figure.items():
        shared = name in ("training", "heatmaps")
        for axes in figure.axes:
            assert axes.get_ylabel() or (name == "heatmaps" and axes is figure.axes[1]), name
            colour_bar = axes.get_label() == "<colorbar>"
            assert axes.get_xlabel() or colour_bar or (shared and axes is not figure.axes[-1]), name
        assert figure.get_figwidth() in (COLUMN, PAGE)


def test_no_text_is_cut_off_or_lies_on_another_of_the_same_axis(every_figure):
    for name, figure in every_figure.items():
        figure.draw_without_rendering()
        for axes in figure.axes:
            box = axes.get_tightbbox()
            assert min(box.x0, box.y0) >= -1, name
            assert box.x1 <= figure.bbox.width + 1, name
            assert box.y1 <= figure.bbox.height + 1, name
            ticks = [tick for tick in axes.get_xticklabels() if tick.get_text() and tick.get_visible()]
            boxes = [tick.get_window_extent() for tick in ticks]
            assert not any(one.overlaps(other) for one, other in pairwise(boxes)), name


def test_the_same_numbers_give_the_same_bytes_with_fonts_and_without_a_date():
    one, other = (figures.heatmap({"one": COSINES}) for _ in range(2))
    content = render(one, "pdf")
    assert content == render(other, "pdf")
    assert render(one, "png") == render(other, "png")
    assert content.startswith(b"%PDF")
    assert b"/FontFile2" in content
    assert b"/Type3" not in content
    assert b"CreationDate" not in content


def test_a_heatmap_says_each_number_and_large_ones_say_none():
    assert labels_of(figures.heatmap({"one": COSINES})) == ["0.90", "−0.10", "0.20", "0.00", "0.80", "0.10"]
    assert labels_of(figures.heatmap({"one": np.zeros((20, 20))})) == []


def test_models_side_by_side_share_one_scale(every_figure):
    first, second, _ = every_figure["heatmaps"].axes
    assert first.images[0].norm is second.images[0].norm
    assert [axes.get_title() for axes in (first, second)] == ["one", "other"]


def test_matrices_histograms_and_bars_show_what_they_are_given():
    pairing = figures.pairing_shares(np.array([[4, 0, 0], [0, 3, 1]]))  # one side has more slots
    assert labels_of(pairing) == ["100", "0", "0", "0", "75", "25"]
    histogram = figures.cosine_histogram(np.linspace(-1, 1, 5), {"image": np.array([1, 2, 3, 4])})
    assert histogram.axes[0].patches[0].get_data().values.tolist() == [10, 20, 30, 40]
    kept = {"image": np.array([9.0, 8.0, 1.0]), "text": np.array([7.0, 6.0, 2.0])}
    bars = figures.element_bars(kept, 10.0, 1.0).axes[0]
    assert [bar.get_height() for bar in bars.patches] == [9, 8, 1, 7, 6, 2]
    assert [line.get_ydata()[0] for line in bars.lines] == [10.0, 1.0]
    assert [tick.get_text() for tick in bars.get_xticklabels()] == ["1", "2", "3"]
    framed = figures.facet_scores(COSINES, [0, 1], ["place", "size"]).axes[0].patches
    assert [round(frame.get_x() + frame.get_width() / 2) for frame in framed] == [0, 1]


def test_curves_skip_missing_values_and_take_the_later_record_of_a_step():
    again = {**RECORDS[-1], "rsum": 90.0}
    figure = figures.training_curves([*RECORDS, again])
    rsum, losses, variance = figure.axes
    assert rsum.lines[0].get_xydata().tolist() == [[20, 50], [40, 90]]
    assert [line.get_label() for line in losses.lines] == ["total", "triplet"]
    assert [line.get_label() for line in variance.lines] == ["images"]
    assert len(figures.training_curves(RECORDS[:2]).axes) == 1
    assert len(figures.training_curves([{"kind": "val", "step": 1, "rsum": 2.0}]).axes) == 1
    assert figures.training_curves([]) is None


def test_curves_of_many_runs_are_means_over_seeds_with_a_band_of_their_deviation():
    runs = {"a": [{1: 10.0, 2: 20.0}, {1: 14.0, 2: 20.0, 3: 31.0}], "b": [{1: 5.0}]}
    axes = validation_curves(runs, "b").axes[0]
    first, second, point = axes.lines
    assert first.get_xydata().tolist() == [[1, 12], [2, 20], [3, 31]]
    corners = axes.collections[0].get_paths()[0].vertices.round(6).tolist()
    deviation = round(8**0.5, 6)
    assert [1, 12 - deviation] in corners
    assert [1, 12 + deviation] in corners
    assert len(axes.collections) == 1  # one seed has no band
    assert second.get_xydata().tolist() == point.get_xydata().tolist() == [[1, 5]]
    assert second.get_color() == "#000000" != first.get_color()
    assert second.get_zorder() > first.get_zorder()


def test_of_long_runs_the_second_half_stands_beside_the_whole():
    whole, half = validation_curves({"a": [{epoch: float(epoch) for epoch in range(1, 9)}]}).axes
    assert whole.lines[0].get_xdata().tolist() == list(range(1, 9))
    assert half.lines[0].get_xydata().tolist() == [[5, 5], [6, 6], [7, 7], [8, 8]]
    assert half.get_ylim()[0] > 4
    assert whole.lines[0].get_color() == half.lines[0].get_color()


def test_every_run_of_a_large_table_looks_different():
    lines = validation_curves({str(n): [{1: 1.0, 2: float(n)}] for n in range(28)}).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 28


def test_a_scatter_has_a_colour_for_each_slot_and_a_marker_for_each_modality():
    points = np.arange(16.0).reshape(8, 2)
    figure = scatter(points, np.array([0, 1] * 4), ("image", "text"), np.array([0] * 4 + [1] * 4), "t-SNE")
    drawn = figure.axes[0].collections
    assert [to_hex(one.get_facecolor()[0]) for one in drawn] == [PALETTE[0].lower(), PALETTE[1].lower()] * 2
    assert sum(len(one.get_offsets()) for one in drawn) == 8
    assert len(drawn[0].get_paths()[0].vertices) != len(drawn[2].get_paths()[0].vertices)
    assert len(figure.legends[0].texts) == 4


def test_any_number_of_slots_has_colours_of_its_own():
    for count in (1, 8, 9, 30):
        assert len(set(slot_colours(count))) == count


@pytest.mark.parametrize("slots", [1, 7])
def test_a_picture_has_a_tile_for_each_slot(slots):
    figure = attention_on_picture(Image.new("RGB", (30, 20), "red"), np.ones((slots, 2, 3)))
    titles = [axes.get_title() for axes in figure.axes if axes.images]
    assert titles == ["image", *(f"slot {slot + 1}" for slot in range(slots))]


def test_an_overlay_is_brightest_where_the_weight_is_and_dark_without_any():
    weights = np.array([[0.0, 0.0], [0.0, 1.0]])
    seen = np.asarray(overlay(Image.new("RGB", (40, 40), "grey"), weights)).sum(-1).astype(int)
    assert np.unravel_index(seen.argmax(), seen.shape) > (25, 25)
    assert seen[35, 35] > seen[5, 5] + 100
    assert overlay(Image.new("RGB", (8, 6)), np.zeros((2, 2))).size == (8, 6)
