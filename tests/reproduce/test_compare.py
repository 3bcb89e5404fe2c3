"""The table: the paper's rows, ours beside them, and what failed."""

import pytest

from maxmatch.evaluation.result_tables import render
from maxmatch.reproduce.compare import table, table_data
from maxmatch.reproduce.jobs import Outcome, ReproduceOptions, plan
from maxmatch.reproduce.targets import target_called

COLLAPSE = {
    "image_log_variance": -1.5,
    "text_log_variance": -2.25,
    "slots_used": 1.0,
    "pairing_stability": 0.97,
    "chance_rsum": 3.2,
}


def outcomes_for(made, figures, failed=()):
    return {
        job.folder: Outcome(None, "no room left on the disk")
        if place in failed
        else Outcome({"figures": {**figures(place), **COLLAPSE}, "split": "test", "images": 1000, "seconds": 3.0})
        for place, job in enumerate(made.jobs)
    }


def lines_of(made, outcomes):
    return render(table(made, outcomes)).splitlines()


def test_ours_stands_beside_the_papers_and_a_failure_is_explained(tmp_path):
    made = plan(target_called("ablation"), ReproduceOptions(["scenes"], tmp_path, quick=True))
    printed = lines_of(made, outcomes_for(made, lambda place: {"rsum": 100.0 + place}, failed=[3]))
    assert printed[3].split() == ["MIL", "✓", "✓", "438.98", "100.0", "-1.50", "-2.25", "100%", "97%"]
    assert printed[6].split()[-2:] == ["442.43", "failed"]
    assert printed[13].split()[-6:] == ["446.53", "110.0", "-1.50", "-2.25", "100%", "97%"]
    notes = "\n".join(printed[14:])
    assert (
        "Paper: on COCO. Ours: changes to the recipe scenes, split test (1,000 images, RSUM 3.2 by chance), one seed."
        in notes
    )
    assert "Smooth-Chamfer ✓ ✓ ✓: failed: no room left on the disk" in notes
    assert "It shows that all works, not which row is better" in notes


def test_several_seeds_are_a_mean_and_a_deviation_and_a_failed_one_is_left_out(tmp_path):
    made = plan(target_called("elements"), ReproduceOptions(["scenes"], tmp_path, seeds=3))
    outcomes = outcomes_for(made, lambda place: {"rsum": 100.0 + place**2, "image_slot_2_rsum": 7.0}, failed=[2])
    rows = table_data(made, outcomes)
    assert rows[0]["ours"]["rsum"] == {"mean": 100.5, "deviation": pytest.approx(0.7071, abs=1e-4), "seeds": [100, 101]}
    assert rows[0]["failed"] == ["no room left on the disk"]
    printed = lines_of(made, outcomes)
    assert "100.5 ± 0.7" in printed[3]
    assert printed[5].split()[:8] == ["image:", "only", "slot", "2", "389.97", "7.0", "±", "0.0"]
    assert "438.98" in printed[3]
    assert next(line for line in printed if line.startswith("image: log(Var.)")).split()[2:4] == ["-7.35", "-1.50"]


def test_of_one_seed_the_variance_has_two_decimals_too(tmp_path):
    made = plan(target_called("elements"), ReproduceOptions(["scenes"], tmp_path))
    printed = lines_of(made, outcomes_for(made, lambda place: {"rsum": 100.0}))
    assert next(line for line in printed if line.startswith("text: log(Var.)")).split()[2:4] == ["-7.35", "-2.25"]


def test_on_coco_1k_and_5k_are_compared_with_the_paper(tmp_path):
    made = plan(target_called("coco"), ReproduceOptions([f"region={tmp_path}"], tmp_path, seeds=2))
    figures = {"coco_1k_rsum": 530.0, "coco_5k_i2t_r1": 60.0, "coco_5k_t2i_r1": 40.0, "coco_5k_rsum": 440.0}
    printed = lines_of(made, outcomes_for(made, lambda place: figures))
    assert sum("±" in line for line in printed if "440.0" in line) == 4  # Set Div and MaxMatch, with Bi-GRU and BERT
    ensembles = [line for line in printed if line.startswith("MaxMatch†")]
    assert [line.split()[1:9] for line in ensembles] == [
        ["530.40", "61.9", "43.1", "442.66", "530.0", "60.0", "40.0", "440.0"],
        ["536.30", "65.4", "45.1", "452.70", "530.0", "60.0", "40.0", "440.0"],
    ]
    scan = next(line for line in printed if line.startswith("SCAN†"))
    assert scan.split()[1:] == ["507.90", "50.4", "38.6", "410.90"]
    assert "Not trained: no --data for coco_vsepp; no --data for coco_pvse; no --data for coco_resnet152" in "\n".join(
        printed
    )
    assert [line for line in printed if line == "Faster R-CNN + BERT"]


def test_a_table_without_figures_of_the_paper_has_no_columns_for_them(tmp_path):
    made = plan(target_called("sizes"), ReproduceOptions(["scenes"], tmp_path))
    figures = {"i2t_r1": 60.0, "t2i_r1": 40.0, "rsum": 440.0}
    printed = lines_of(made, outcomes_for(made, lambda place: {**figures, "rsum": 440.0 + place}, failed=[3]))
    assert printed[1].split()[:7] == ["set", "size", "i→t", "R@1", "t→i", "R@1", "RSUM"]
    assert printed[4].split()[:6] == ["K", "=", "2", "60.0", "40.0", "441.0"]
    assert printed[6].split() == ["K", "=", "8", "failed"]
    assert "paper_" not in "".join(column.name for column in table(made, outcomes_for(made, lambda _: figures)).columns)
    notes = "\n".join(printed[7:])
    assert "Paper: on" not in notes
    assert "Ours: changes to the recipe scenes, split test" in notes
