"""Tables in every style, and results as tables and as data, with the paper's rows below."""

import json
from dataclasses import replace

import pytest
from made_splits import split_of

from maxmatch.evaluation.metrics import EvaluatedModel
from maxmatch.evaluation.paper import ReportedRow
from maxmatch.evaluation.result_tables import (
    Column,
    Table,
    as_data,
    captions_table,
    extended_table,
    rank_table,
    recall_table,
    render,
    sets_table,
)
from maxmatch.evaluation.significance import measure

NAMES = Column("model", "model")
RSUM = Column("RSUM", "rsum", ".2f")
TABLE = Table(
    [NAMES, *(Column(f"R@{k}", f"i2t_r{k}", ".1f", over="image to text") for k in (1, 5)), RSUM],
    [
        {"model": "run_1 & 50% of #2", "i2t_r1": 51.26, "i2t_r5": None, "rsum": 423.456},
        {"model": "b|c", "i2t_r1": "9.0 ± 1.0", "i2t_r5": 100, "rsum": float("nan"), "more": 1},
    ],
    notes=["R@5 of one model is not known."],
    rules=[1],
)


def test_text_has_aligned_columns_and_headings_over_what_they_span():
    assert render(TABLE).splitlines() == [
        "                    image to text",
        "model                    R@1    R@5    RSUM",
        "-----------------  ---------  -----  ------",
        "run_1 & 50% of #2       51.3         423.46",
        "-----------------  ---------  -----  ------",
        "b|c                9.0 ± 1.0  100.0",
        "R@5 of one model is not known.",
    ]
    assert render(Table([NAMES, RSUM], [])) == "model  RSUM\n-----  ----"


def test_a_wide_heading_above_makes_room_for_itself():
    table = Table([Column("a", "a", "d", over="a very wide heading"), Column("b", "b", "d")], [{"a": 1, "b": 2}])
    above, headings, _, row = render(table).splitlines()
    assert above == "a very wide heading"
    assert (len(headings), len(row)) == (len(above) + 3, len(above) + 3)


@pytest.mark.parametrize(("style", "above"), [("text", "All"), ("markdown", "## All\n"), ("latex", "% All")])
def test_a_title_stands_above_the_table(style, above):
    assert render(replace(TABLE, title="All"), style) == f"{above}\n{render(TABLE, style)}"


def test_markdown_escapes_the_bar_and_names_each_column_in_full():
    assert render(TABLE, "markdown").splitlines() == [
        "| model | image to text R@1 | image to text R@5 | RSUM |",
        "| :-- | --: | --: | --: |",
        "| run_1 & 50% of #2 | 51.3 |  | 423.46 |",
        "| b\\|c | 9.0 ± 1.0 | 100.0 |  |",
        "",
        "R@5 of one model is not known.",
    ]


def test_latex_is_a_booktabs_tabular_with_everything_escaped():
    assert render(TABLE, "latex").splitlines() == [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r" & \multicolumn{2}{c}{image to text} &  \\",
        r"\cmidrule(lr){2-3}",
        r"model & R@1 & R@5 & RSUM \\",
        r"\midrule",
        r"run\_1 \& 50\% of \#2 & 51.3 &  & 423.46 \\",
        r"\midrule",
        r"b|c & 9.0 $\pm$ 1.0 & 100.0 &  \\",
        r"\bottomrule",
        r"\end{tabular}",
        "% R@5 of one model is not known.",
    ]
    escaped = r"\textbackslash{}\{\textasciitilde{}\textasciicircum{}\$\textless{}\textgreater{}\} \\"
    assert escaped in render(Table([NAMES], [{"model": r"\{~^$<>}"}]), "latex")


def test_only_neighbours_with_equal_headings_share_one():
    columns = [Column(name, name, "d", over) for name, over in zip("abcd", ("x", "", "", "x"), strict=True)]
    assert r"\multicolumn{1}{c}{x} &  &  & \multicolumn{1}{c}{x} \\" in render(Table(columns, []), "latex")


# Results of models.

PAPER = [
    ReportedRow("MaxMatch", {"coco_5k_rsum": 452.6, "coco_5k_i2t_r1": 65.4}, group="Faster R-CNN + BERT", ensemble=True)
]


@pytest.fixture(scope="module")
def coco():
    """Two models and both together, measured as COCO is."""
    members = [
        EvaluatedModel("one", split_of(20, seed=0, noise=1.5)),
        EvaluatedModel("two", split_of(20, seed=9, noise=2.5), "mil"),
    ]
    lines, _ = measure([*([member] for member in members), members], draws=60, fold_size=4, extended_coco=False)
    return lines


def test_all_measures_are_tables_of_their_own_and_none_where_they_were_not_measured(coco):
    assert captions_table(coco) is sets_table(coco) is None
    members = [EvaluatedModel(name, split_of(20, seed=seed, noise=2.0)) for name, seed in (("one", 0), ("two", 9))]
    teams = [*([member] for member in members), members]
    lines, _ = measure(teams, draws=60, fold_size=4, extended_coco=False, measures="all")
    of_captions, of_sets = captions_table(lines), sets_table(lines)
    assert [row["gallery"] for row in of_captions.rows] == ["1K"] * 3 + ["5K"] * 3
    names = [column.name for column in of_captions.columns]
    assert "t2i_map_at_r" not in names
    for name in ("i2t_map_at_r", "i2t_coverage_20", "t2i_hardest_median_rank"):
        assert name in names
        assert of_captions.rows[4][name] == lines[1].result.figures[f"coco_5k_{name}"]
    difference = lines[1].against_first["coco_5k_"]["i2t_map_at_r"]
    assert (of_captions.rows[4]["p"], of_captions.rows[0].get("p")) == (difference.p, None)
    assert [row["model"] for row in of_sets.rows] == ["one", "two"]
    for slot in range(1, 5):
        assert Column(str(slot), f"text_slot_{slot}_share", ".0%", "share of text slots") in of_sets.columns


def test_a_table_has_a_row_for_each_protocol_and_the_figures_of_the_results(coco):
    table = recall_table(coco, PAPER)
    *rows, paper = table.rows
    assert [column.name for column in table.columns][:4] == ["model", "kind", "similarity", "gallery"]
    assert [row["kind"] for row in rows] == ["single", "single", "ensemble of 2"] * 2
    assert [row["gallery"] for row in rows] == ["1K"] * 3 + ["5K"] * 3
    for row, (prefix, line) in zip(rows, [(p, line) for p in ("coco_1k_", "coco_5k_") for line in coco], strict=True):
        assert row["model"] == line.result.name
        for name in ("i2t_r1", "t2i_r10", "rsum"):
            assert row[name] == line.result.figures[f"{prefix}{name}"]
        low, high = line.intervals[prefix]["rsum"]
        assert row["interval"] == f"{low:.1f} to {high:.1f}"
    assert not {"against_first", "p"} & rows[0].keys()
    difference = coco[1].against_first["coco_5k_"]["rsum"]
    expected = coco[1].result.figures["coco_5k_rsum"] - coco[0].result.figures["coco_5k_rsum"]
    assert difference.value == pytest.approx(expected)
    assert rows[4]["p"] == difference.p
    assert rows[4]["against_first"].startswith(f"{difference.value:+.1f} (")
    assert (paper["model"], paper["kind"], paper["gallery"]) == ("paper: MaxMatch", "ensemble", "5K")
    assert (paper["similarity"], paper["i2t_r1"], paper.get("i2t_r5")) == ("Faster R-CNN + BERT", 65.4, None)
    assert list(table.rules) == [3, 6]


def test_ranks_ties_and_collapse_have_a_table(coco):
    table, figures = rank_table(coco), coco[1].result.figures
    assert {"i2t_median_rank", "t2i_ties", "pairing_stability"} <= {column.name for column in table.columns}
    assert table.rows[4]["i2t_median_rank"] == figures["coco_5k_i2t_median_rank"]
    assert table.rows[4]["pairing_stability"] == figures["pairing_stability"]
    assert "pairing_stability" not in table.rows[2]  # an ensemble has no sets of its own


def test_plain_results_have_no_column_for_protocol_or_intervals():
    lines, _ = measure([[EvaluatedModel("one", split_of(6))]], draws=0)
    table = recall_table(lines)
    assert [column.name for column in table.columns][:4] == ["model", "kind", "similarity", "i2t_r1"]
    assert table.columns[-1].name == "rsum"
    assert render(table).count("\n") == 3


def test_the_data_for_machines_has_every_figure_interval_and_test(coco):
    data = json.loads(json.dumps(as_data(coco, PAPER, split="test")))
    assert data["split"] == "test"
    first, second, both = data["results"]
    assert first["coco_1k_rsum"] == coco[0].result.figures["coco_1k_rsum"]
    assert "against_first" not in first
    assert second["against_first"]["coco_5k_rsum"]["p"] == coco[1].against_first["coco_5k_"]["rsum"].p
    assert both["members"] == 2
    low, high = first["intervals"]["coco_1k_t2i_r5"]
    assert low <= first["coco_1k_t2i_r5"] <= high
    assert data["paper"][0]["coco_5k_rsum"] == 452.6


def test_cxc_and_eccv_have_a_table_where_they_were_measured(coco):
    assert extended_table(coco) is None
    figures = {"cxc_rsum": 300.0, "cxc_i2t_r1": 50.0, "cxc_t2i_r10": 70.0, "eccv_i2t_map_at_r": 30.0}
    result = coco[0].result
    table = extended_table([replace(coco[0], result=replace(result, figures={**result.figures, **figures})), coco[1]])
    names = [column.name for column in table.columns]
    assert names == ["model", "similarity", "cxc_i2t_r1", "cxc_t2i_r10", "eccv_i2t_map_at_r"]
    assert [[row[name] for name in names] for row in table.rows] == [["one", "maxmatch", 50.0, 70.0, 30.0]]
