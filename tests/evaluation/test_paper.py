"""The paper's figures: each table whole, cells as printed, RSUM from the cells; which rows are shown below ours."""

import math

import pytest

from maxmatch.evaluation.paper import LOSSES, RECALLS, check_label, departures, disagreements, paper_rows, tables
from maxmatch.recipe.yaml_files import load_recipe

BERT, BIGRU, RESNET = "Faster R-CNN + BERT", "Faster R-CNN + Bi-GRU", "Resnet152 + Bi-GRU"


def find(table, method="MaxMatch", group="", ensemble=False, slot=None):
    """The one row of a method, or None."""
    wanted = (method, group, ensemble, slot)
    return next((row for row in table.rows if (row.method, row.group, row.ensemble, row.slot) == wanted), None)


def test_every_table_of_the_paper_is_there_with_all_its_rows():
    sizes = {label: len(table.rows) for label, table in tables().items()}
    assert sizes == {
        "table:flickr30k": 27,
        "table:mscoco": 26,
        "table_abl": 11,
        "tab:5": 33,
        "tab:resnext": 9,
        "tab:PVSE": 6,
    }
    assert all(table.label == label and table.caption for label, table in tables().items())
    assert sum(len(row.figures) for table in tables().values() for row in table.rows) == 705 - 2 * 5  # less PCME's "-"


def test_rows_are_distinct_and_recalls_grow_with_the_number_of_answers():
    for table in tables().values():
        rows = [(row.group, row.method, row.ensemble, row.losses, row.slot) for row in table.rows]
        assert len(set(rows)) == len(rows), table.label
        for row in table.rows:
            for start in ("i2t", "t2i", "coco_1k_i2t", "coco_1k_t2i", "coco_5k_i2t", "coco_5k_t2i"):
                known = [row.figures[name] for level in (1, 5, 10) if (name := f"{start}_r{level}") in row.figures]
                assert known == sorted(known), (table.label, row)
                assert all(0 < recall < 100 for recall in known)


def test_rsum_is_the_sum_of_the_cells_wherever_there_are_any():
    rows = [row for table in tables().values() for row in table.rows]
    for row in rows:
        for name in row.printed_rsum:
            cells = [row.figures[name.replace("rsum", recall)] for recall in RECALLS]
            assert math.isclose(row.figures[name], sum(cells), abs_tol=1e-9)
    assert sum(len(row.printed_rsum) for row in rows) == 27 + 2 * 25 + 9 + 6


@pytest.mark.parametrize(
    ("label", "asked", "name", "value"),
    [
        ("table:flickr30k", {"group": RESNET, "method": "VSE++"}, "i2t_r1", 52.9),
        ("table:flickr30k", {"group": BERT, "ensemble": True}, "rsum", 527.1),
        ("table:mscoco", {"group": RESNET}, "coco_1k_i2t_r1", 74.54),
        ("table:mscoco", {"group": BERT}, "coco_5k_rsum", 446.4),
        ("tab:5", {"group": "image", "method": "Smooth Chamfer", "slot": 1}, "coco_5k_rsum", 212.12),
        ("tab:5", {"group": "circular variance", "method": "MIL"}, "log_variance", -7.35),
        ("tab:resnext", {"group": "MS-COCO 5K Test Images"}, "coco_5k_t2i_r1", 52.18),
        ("tab:PVSE", {"method": "MaxMatch + PVSE"}, "i2t_r1", 65.4),
    ],
)
def test_known_cells_are_found_by_group_and_method(label, asked, name, value):
    row = find(tables()[label], **asked)
    assert row is not None
    assert row.figures[name] == value


def test_what_the_paper_does_not_give_is_not_there():
    pcme = find(tables()["table:mscoco"], "PCME", RESNET)
    assert pcme.figures == {
        "coco_1k_i2t_r1": 68.8,
        "coco_1k_t2i_r1": 54.6,
        "coco_5k_i2t_r1": 44.2,
        "coco_5k_t2i_r1": 31.9,
    }
    assert find(tables()["table:mscoco"], "CLIP", RESNET) is None


def test_marks_are_kept():
    table = tables()["table:flickr30k"]
    cora = find(table, "CORA", BERT, ensemble=True)
    assert cora.external
    assert not cora.cross_attention
    cross = {"SCAN", "CAAN", "SGRAF", "NAAF", "CHAN", "CODER"}
    assert {row.method for row in table.rows if row.cross_attention} == cross
    assert [row.cross_attention for row in tables()["tab:PVSE"].rows] == [None] * 6


def test_the_ablation_has_its_losses():
    rows = tables()["table_abl"].rows
    assert [row.method for row in rows] == ["MIL"] + ["Smooth-Chamfer"] * 5 + ["Maximal Pair Assignment"] * 5
    assert rows[0].losses == ("Div", "MMD")
    assert rows[8].losses == ("ISD",)
    assert rows[10].losses == LOSSES
    assert [row.figures["coco_5k_rsum"] for row in rows][::5] == [438.98, 444.10, 446.53]


def test_the_printed_sums_that_are_not_those_of_their_cells_are_known():
    found = disagreements()
    assert len(found) == 26
    beyond_rounding = [
        (one.label, one.row.group, one.row.method, one.row.ensemble, one.name, one.printed, one.summed)
        for one in found
        if not one.by_rounding
    ]
    assert beyond_rounding == [
        ("table:flickr30k", BERT, "MV-VSE", True, "rsum", 517.5, 517.9),
        ("table:mscoco", RESNET, "MaxMatch", False, "coco_1k_rsum", 506.75, 506.35),
        ("table:mscoco", BIGRU, "MaxMatch", False, "coco_5k_rsum", 436.1, 437.4),
        ("table:mscoco", BIGRU, "MaxMatch", True, "coco_5k_rsum", 443.1, 442.66),
        ("table:mscoco", BERT, "Set Div", False, "coco_1k_rsum", 529.1, 526.4),
        ("tab:resnext", "MS-COCO 1K Test Images", "MaxMatch", False, "coco_1k_rsum", 547.84, 548.34),
        ("tab:resnext", "Flickr30k Test Images", "VSE∞", False, "rsum", 550.9, 549.9),
    ]


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
        check_label("table:9")
    with pytest.raises(ValueError, match="'table:9'"):
        paper_rows("table:9", [], 7)


VECTORS = "data.word_vectors=glove.840B.300d.txt"


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("f30k_region_bigru", [], ["data.word_vectors"]),
        ("coco_resnet152_bigru_setdiv", [], ["data.word_vectors"]),
        ("f30k_region_bigru", [VECTORS], []),
        ("coco_region_bert", [], []),
        ("ablation/07", ["model.options.pretrained=false"], ["model.options.pretrained"]),
        ("f30k_resnet152_bigru", ["model.options.pretrained=false"], ["model.options.pretrained", "data.word_vectors"]),
        ("f30k_vsepp", [], []),  # whose words are learned from the captions alone
        ("coco_vseinf_region_bigru", [], []),  # likewise
        ("flickr8k_maxmatch", ["model.options.pretrained=false"], []),  # not the paper's
    ],
)
def test_what_a_recipe_of_the_paper_lacks_is_named(name, changes, named):
    lines = departures(load_recipe(name, changes))
    assert len(lines) == len(named)
    assert all(key in line for key, line in zip(named, lines, strict=True))
