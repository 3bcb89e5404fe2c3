"""The paper's figures: each table whole, cells as printed, RSUM from the cells."""

import math

import pytest

from maxmatch.evaluation.paper import LOSSES, RECALLS, disagreements, tables

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


def test_no_row_stands_twice_in_a_table():
    for table in tables().values():
        rows = [(row.group, row.method, row.ensemble, row.losses, row.slot) for row in table.rows]
        assert len(set(rows)) == len(rows), table.label


def test_recalls_are_per_cent_and_grow_with_the_number_of_answers():
    for table in tables().values():
        for row in table.rows:
            for prefix in ("", "coco_1k_", "coco_5k_"):
                for way in ("i2t", "t2i"):
                    found = [row.figures.get(f"{prefix}{way}_r{level}") for level in (1, 5, 10)]
                    known = [recall for recall in found if recall is not None]
                    assert known == sorted(known), (table.label, row)
                    assert all(0 < recall < 100 for recall in known)


def test_rsum_is_the_sum_of_the_cells_wherever_there_are_any():
    checked = 0
    for table in tables().values():
        for row in table.rows:
            for name in row.printed_rsum:
                prefix = name.removesuffix("rsum")
                cells = [row.figures[f"{prefix}{recall}"] for recall in RECALLS]
                assert math.isclose(row.figures[name], sum(cells), abs_tol=1e-9)
                checked += 1
    assert checked == 27 + 2 * 25 + 9 + 6


@pytest.mark.parametrize(
    ("label", "asked", "name", "value"),
    [
        ("table:flickr30k", {"group": RESNET, "method": "VSE++"}, "i2t_r1", 52.9),
        ("table:flickr30k", {"group": BERT, "ensemble": True}, "t2i_r10", 93.2),
        ("table:flickr30k", {"group": BERT, "ensemble": True}, "rsum", 527.1),
        ("table:mscoco", {"group": RESNET}, "coco_1k_i2t_r1", 74.54),
        ("table:mscoco", {"group": BIGRU, "ensemble": True}, "coco_5k_i2t_r5", 86.86),
        ("table:mscoco", {"group": BERT}, "coco_5k_rsum", 446.4),
        ("tab:5", {"group": "image", "method": "Smooth Chamfer", "slot": 1}, "coco_5k_rsum", 212.12),
        ("tab:5", {"group": "text", "slot": 4}, "coco_5k_rsum", 443.78),
        ("tab:5", {"group": "circular variance", "method": "MIL"}, "log_variance", -7.35),
        ("tab:resnext", {"group": "MS-COCO 5K Test Images"}, "coco_5k_t2i_r1", 52.18),
        ("tab:resnext", {"group": "Flickr30k Test Images", "method": "Set Div"}, "t2i_r5", 94.0),
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
    assert {row.method for row in table.rows if row.cross_attention} == {
        "SCAN",
        "CAAN",
        "SGRAF",
        "NAAF",
        "CHAN",
        "CODER",
    }
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
