"""Results as tables and as data, and the paper's rows beside them."""

import json

import pytest
from made_splits import split_of

from maxmatch.evaluation.metrics import EvaluatedModel
from maxmatch.evaluation.paper import ReportedRow, paper_rows, tables
from maxmatch.evaluation.result_tables import as_data, extended_table, rank_table, recall_table, render
from maxmatch.evaluation.runs import measure

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
    lines, _ = measure([*([member] for member in members), members], draws=60, fold_size=4)
    return lines


def test_every_line_says_whether_it_is_one_model_or_an_ensemble(coco):
    assert [line.result.kind for line in coco] == ["single", "single", "ensemble of 2"]
    table = recall_table(coco)
    kinds = [row[1] for row in table.rows]
    assert kinds == ["single", "single", "ensemble of 2"] * 2


def test_a_table_has_a_row_for_each_protocol_and_the_figures_of_the_results(coco):
    table = recall_table(coco)
    names = [column.name for column in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    assert [row["gallery"] for row in rows] == ["1K"] * 3 + ["5K"] * 3
    for row, (prefix, line) in zip(rows, [(p, line) for p in ("coco_1k_", "coco_5k_") for line in coco], strict=True):
        assert row["model"] == line.result.name
        for name in ("i2t_r1", "t2i_r10", "rsum"):
            assert row[name] == line.result.figures[f"{prefix}{name}"]
        low, high = line.intervals[prefix]["rsum"]
        assert row["rsum_interval"] == f"{low:.1f} to {high:.1f}"
    assert (rows[0]["against_first"], rows[0]["p"]) == (None, None)
    difference = coco[1].against_first["coco_5k_"]
    assert difference.rsum == pytest.approx(
        coco[1].result.figures["coco_5k_rsum"] - coco[0].result.figures["coco_5k_rsum"]
    )
    assert rows[4]["p"] == difference.p
    assert rows[4]["against_first"].startswith(f"{difference.rsum:+.1f} (")


def test_the_papers_rows_stand_below_those_of_their_protocol(coco):
    table = recall_table(coco, PAPER)
    assert [row[0] for row in table.rows][-1] == "paper: MaxMatch"
    assert len(table.rows) == 7
    assert table.rows[-1][1:6] == ["ensemble", "Faster R-CNN + BERT", "5K", 65.4, None]
    assert list(table.rules) == [3, 6]


def test_ranks_ties_and_collapse_have_a_table(coco):
    table = rank_table(coco)
    names = [column.name for column in table.columns]
    row = dict(zip(names, table.rows[4], strict=True))
    assert row["i2t_median_rank"] == coco[1].result.figures["coco_5k_i2t_median_rank"]
    assert row["pairing_stability"] == coco[1].result.figures["pairing_stability"]
    assert table.rows[2][-1] is None  # an ensemble has no sets of its own
    assert extended_table(coco) is None


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
    assert second["against_first"]["coco_5k_rsum"]["p"] == coco[1].against_first["coco_5k_"].p
    assert both["members"] == 2
    low, high = first["intervals"]["coco_1k_t2i_r5"]
    assert low <= first["coco_1k_t2i_r5"] <= high
    assert data["paper"][0]["coco_5k_rsum"] == 452.6


def test_cxc_and_eccv_have_a_table_where_they_were_measured(coco):
    from dataclasses import replace

    figures = {"cxc_rsum": 300.0, "cxc_i2t_r1": 50.0, "cxc_t2i_r10": 70.0, "eccv_i2t_map_at_r": 30.0}
    result = coco[0].result
    lines = [replace(coco[0], result=replace(result, figures={**result.figures, **figures})), coco[1]]
    table = extended_table(lines)
    assert [column.name for column in table.columns[2:]] == ["cxc_i2t_r1", "cxc_t2i_r10", "eccv_i2t_map_at_r"]
    assert [list(row) for row in table.rows] == [["one", "maxmatch", 50.0, 70.0, 30.0]]


# --- which rows of the paper -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "images", "label", "backbones"),
    [
        (["f30k_region_bigru", "data/precomp"], 1000, "table:flickr30k", {"Faster R-CNN + Bi-GRU"}),
        (["coco_region_bert_setdiv"], 5000, "table:mscoco", {"Faster R-CNN + BERT"}),
        (["mine", "/data/flickr30k"], 1000, "table:flickr30k", None),
        (["coco_resnext101_bert"], 5000, "tab:resnext", None),
        (["f30k_pvse_maxmatch"], 1000, "tab:PVSE", None),
    ],
)
def test_the_table_is_seen_from_the_names_of_recipe_and_data(names, images, label, backbones):
    found, rows = paper_rows(None, names, images)
    assert found == label
    assert rows
    if backbones is None:
        assert {row.method for row in rows} <= {"MaxMatch", "Set Div"}
    else:
        assert {row.group for row in rows} == backbones
        assert len(rows) > 4


@pytest.mark.parametrize(
    ("names", "images"), [(["scenes"], 1000), (["f30k_region_bigru"], 1014), (["coco"], 1000), ([""], 5000)]
)
def test_other_data_and_other_splits_have_no_table(names, images):
    assert paper_rows(None, names, images) is None


def test_a_table_can_be_asked_for_or_left_out():
    assert paper_rows("table_abl", ["scenes"], 7)[0] == "table_abl"
    assert paper_rows("none", ["f30k_region_bigru"], 1000) is None
    assert len(paper_rows("table_abl", [], 7)[1]) <= len(tables()["table_abl"].rows)
    with pytest.raises(ValueError, match=r"table:flickr30k.*'table:9'"):
        paper_rows("table:9", [], 7)
