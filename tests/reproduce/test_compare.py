"""Tables: the paper's rows and ours beside them, what failed, how sure a difference is, and the curves of a table."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from finished_jobs import COLLAPSE, finish, search_of

from maxmatch.core.files import METRICS
from maxmatch.evaluation.result_tables import render
from maxmatch.reproduce import compare
from maxmatch.reproduce.compare import compare_with_references, curves, draw_curves, table, table_data, write
from maxmatch.reproduce.targets import RESULT, ReproduceOptions, plan, target_called, targets
from maxmatch.reproduce.worker import PAIRS, RANKS, Outcome, read_ranks, write_ranks


def plan_of(target, folder, *, data="scenes", **options):
    return plan(target_called(target), ReproduceOptions([data], folder, **options))


def line_by_line(made):
    """All jobs, each once, in the order of the table's lines."""
    return list({job.folder: job for line in made.lines for job in line.jobs}.values())


def outcomes_for(made, figures, failed=()):
    about = {"split": "test", "images": 1000, "seconds": 3.0}
    results = [{"figures": {**figures(n), **COLLAPSE, "chance_rsum": 3.2}, **about} for n in range(len(made.jobs))]
    return {
        job.folder: Outcome(None, "no room left on the disk") if n in failed else Outcome(results[n])
        for n, job in enumerate(line_by_line(made))
    }


def lines_of(made, outcomes):
    return render(table(made, outcomes, table_data(made, outcomes))).splitlines()


def test_ours_stands_beside_the_papers_and_a_failure_is_explained(tmp_path):
    made = plan_of("ablation", tmp_path, quick=True)
    printed = lines_of(made, outcomes_for(made, lambda place: {"rsum": 100.0 + place}, failed=[3]))
    assert printed[3].split() == ["MIL", "✓", "✓", "438.98", "100.0", "-1.50", "-2.25", "100%", "97%"]
    assert printed[6].split()[-2:] == ["442.43", "failed"]
    assert printed[13].split()[-6:] == ["446.53", "110.0", "-1.50", "-2.25", "100%", "97%"]
    notes = "\n".join(printed[14:])
    assert "Ours: changes to the recipe scenes, split test (1,000 images, RSUM 3.2 by chance), one seed." in notes
    assert "Smooth-Chamfer ✓ ✓ ✓: failed: no room left on the disk" in notes
    assert "It shows that all works, not which row is better" in notes


def test_a_row_of_the_paper_without_its_word_vectors_is_marked_below_the_table(tmp_path):
    made = plan_of("flickr30k", tmp_path, data=f"region={tmp_path}", quick=True)
    notes = "\n".join(lines_of(made, outcomes_for(made, lambda place: {"rsum": 100.0})))
    assert notes.count("f30k_region_bigru: not as in the paper") == 1
    assert "data.word_vectors" in notes
    given = plan_of("flickr30k", tmp_path, data=f"region={tmp_path}", changes=["data.word_vectors=glove.txt"])
    assert not given.departures
    assert not plan_of("ablation", tmp_path, quick=True).departures, "scenes are not the paper's"


def test_several_seeds_are_a_mean_and_a_deviation_and_a_failed_one_is_left_out(tmp_path):
    made = plan_of("elements", tmp_path, seeds=3)
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
    made = plan_of("elements", tmp_path)
    printed = lines_of(made, outcomes_for(made, lambda place: {"rsum": 100.0}))
    assert next(line for line in printed if line.startswith("text: log(Var.)")).split()[2:4] == ["-7.35", "-2.25"]


def test_on_coco_1k_and_5k_are_compared_with_the_paper(tmp_path):
    made = plan_of("coco", tmp_path, data=f"region={tmp_path}", seeds=2)
    figures = {"coco_1k_rsum": 530.0, "coco_5k_i2t_r1": 60.0, "coco_5k_t2i_r1": 40.0, "coco_5k_rsum": 440.0}
    printed = lines_of(made, outcomes_for(made, lambda place: figures))
    assert (
        sum("±" in line for line in printed if "440.0" in line) == 6
    )  # VSE∞, Set Div and MaxMatch, with Bi-GRU and BERT
    ensembles = [line for line in printed if line.startswith("MaxMatch†")]
    assert [line.split()[1:9] for line in ensembles] == [
        ["530.40", "61.9", "43.1", "442.66", "530.0", "60.0", "40.0", "440.0"],
        ["536.30", "65.4", "45.1", "452.70", "530.0", "60.0", "40.0", "440.0"],
    ]
    scan = next(line for line in printed if line.startswith("SCAN†"))
    assert scan.split()[1:] == ["507.90", "50.4", "38.6", "410.90"]
    assert any(line.startswith("Not trained: no --data for coco_vsepp; no --data for coco_pvse; ") for line in printed)
    assert "Faster R-CNN + BERT" in printed


def test_a_table_without_figures_of_the_paper_has_no_columns_for_them(tmp_path):
    made = plan_of("sizes", tmp_path)
    figures = {"i2t_r1": 60.0, "t2i_r1": 40.0, "rsum": 440.0}
    printed = lines_of(made, outcomes_for(made, lambda place: {**figures, "rsum": 440.0 + place}, failed=[3]))
    assert printed[1].split()[:7] == ["set", "size", "i→t", "R@1", "t→i", "R@1", "RSUM"]
    assert printed[4].split()[:6] == ["K", "=", "2", "60.0", "40.0", "441.0"]
    assert printed[6].split() == ["K", "=", "8", "failed"]
    assert "paper" not in printed[0]
    notes = "\n".join(printed[7:])
    assert "Paper: on" not in notes
    assert "Ours: changes to the recipe scenes, split test" in notes


# Tests between lines, from the ranks that jobs keep beside their results.


def finished(made, easy):
    """A table whose models are all there. easy: by line."""
    for place, line in enumerate(made.lines):
        for seed, job in enumerate(line.jobs):
            finish(job, search_of(easy[place], 10 * place + seed))
    return collected(made)


def collected(made):
    return {job.folder: Outcome(job.result()) for job in made.jobs}


def rsum(result):
    return result["figures"]["rsum"]


def test_ranks_come_back_as_they_were_and_only_with_their_result(tmp_path):
    search = search_of(0.5, 0)
    result = write_ranks(tmp_path, search)
    found = read_ranks(tmp_path, result)
    for side in ("i2t", "t2i"):
        assert torch.equal(getattr(found, side).ranks, getattr(search, side).ranks)
    assert torch.equal(found.image_groups, search.image_groups)
    assert torch.equal(found.text_groups, search.text_groups)
    for ours, expected in zip(found.pairs, search.pairs, strict=True):
        assert torch.equal(ours, expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == [PAIRS, RANKS]
    write_ranks(tmp_path, search_of(0.5, 1))  # measured on another split since
    assert read_ranks(tmp_path, result) is None
    assert read_ranks(tmp_path, {}) is None
    assert read_ranks(tmp_path / "elsewhere", result) is None


def test_a_result_without_the_ranks_of_all_true_pairs_still_has_those_of_the_best(tmp_path):
    search = search_of(0.5, 0)
    kept = write_ranks(tmp_path, search)
    (tmp_path / PAIRS).unlink()
    for result in (kept, {"ranks": kept["ranks"]}):  # as an older version wrote it
        found = read_ranks(tmp_path, result)
        assert found.pairs is None
        assert torch.equal(found.i2t.ranks, search.i2t.ranks)
    write_ranks(tmp_path, search_of(0.5, 0, further=3))  # the same best answers, other pairs
    assert read_ranks(tmp_path, kept).pairs is None


def test_every_line_is_tested_against_the_maxmatch_line_and_the_table_says_so(tmp_path):
    made = plan_of("pvse", tmp_path, seeds=3)
    outcomes = finished(made, [0.2, 0.5, 0.5, 0.5, 0.5])
    tests = compare_with_references(made, outcomes)
    assert tests[4] is None  # MaxMatch itself
    *means, reference = [np.mean([rsum(outcomes[job.folder].result) for job in line.jobs]) for line in made.lines]
    for mean, test in zip(means, tests, strict=False):
        assert test.difference == pytest.approx(mean - reference)
        assert test.low < test.difference < test.high
    assert tests[0].high < 0
    assert max(tests[0].p, tests[0].p_seeds) < 0.01
    assert min(test.p for test in tests[1:4]) > 0.01

    written = write(made, outcomes)
    printed = render(written.table).splitlines()
    assert printed[0].split()[-2:] == ["against", "MaxMatch"]
    shown = printed[3].split()
    assert shown[-6] == f"{tests[0].difference:+.1f}"
    assert shown[-5:-2] == [f"{tests[0].low:+.1f}", "…", f"{tests[0].high:+.1f}"]
    assert shown[-2:] == [f"{tests[0].p:.4f}", f"{tests[0].p_seeds:.4f}"]
    assert printed[7].split()[-3:] == ["97%", "±", "0%"]  # nothing beside MaxMatch itself
    assert "paired test over images" in (tmp_path / "pvse.md").read_text()
    rows = json.loads((tmp_path / "pvse.json").read_text())["rows"]
    written = {"rsum": tests[0].difference, **asdict(tests[0])}
    del written["difference"]
    assert rows[0]["against_reference"] == pytest.approx(written)
    assert rows[4]["against_reference"] is None


def test_of_one_seed_images_are_tested_and_seeds_are_not(tmp_path):
    made = plan_of("sizes", tmp_path)
    outcomes = finished(made, [0.2, 0.4, 0.5, 0.5])
    tests = compare_with_references(made, outcomes)
    assert [test is None for test in tests] == [False, False, True, False]  # against K = 4
    assert tests[0].p_seeds is None
    assert "against K = 4" in render(write(made, outcomes).table)


def test_cells_without_ranks_leave_the_test_out_and_nothing_else(tmp_path):
    made = plan_of("sizes", tmp_path, seeds=2)
    outcomes = finished(made, [0.2, 0.4, 0.5, 0.5])
    (made.lines[1].jobs[0].folder / RANKS).unlink()
    tests = compare_with_references(made, outcomes)
    assert [test is None for test in tests] == [False, True, True, False]
    assert render(write(made, outcomes).table).splitlines()[4].split()[-3:] == ["97%", "±", "0%"]
    for job in made.lines[2].jobs:  # of the reference: nothing is known of any
        (job.folder / RANKS).unlink()
    assert not any(compare_with_references(made, outcomes))
    assert "against" not in render(write(made, outcomes).table)


def test_a_failed_seed_is_left_out_and_other_queries_are_not_compared(tmp_path):
    made = plan_of("sizes", tmp_path, seeds=2)
    finished(made, [0.2, 0.4, 0.5, 0.5])
    (made.lines[0].jobs[0].folder / RESULT).unlink()
    for job in made.lines[1].jobs:
        finish(job, search_of(0.4, 1), split="val")
    for job in made.lines[3].jobs:
        finish(job, search_of(0.4, 1, images=39))
    outcomes = collected(made)
    first, *others = compare_with_references(made, outcomes)
    reference = np.mean([rsum(outcomes[job.folder].result) for job in made.lines[2].jobs])
    assert first.difference == pytest.approx(rsum(outcomes[made.lines[0].jobs[1].folder].result) - reference)
    assert first.p_seeds is None
    assert others == [None, None, None]


def test_of_the_three_similarities_every_two_are_tested_below_the_table(tmp_path):
    made = plan_of("elements", tmp_path, seeds=2)
    notes = write(made, finished(made, [0.2, 0.4, 0.6])).table.notes
    starts = ("smooth-Chamfer against MIL: RSUM +", "MaxMatch against MIL: RSUM +", "MaxMatch against smooth-Chamfer: ")
    for start in starts:
        assert sum(note.startswith(start) for note in notes) == 1


def test_every_table_has_one_reference_in_each_group_that_is_trained():
    for target in targets().values():
        if target.kind != "figure":
            groups = {line.group for line in target.lines if line.recipe is not None}
            assert sorted(line.group for line in target.lines if line.reference) == sorted(groups)


# The curves of a table's models, from what their runs wrote down.


def run_of(job, values):
    """The records of a run whose validations gave these values."""
    records = [{"kind": "train", "step": 1, "epoch": 0, "loss": 1.0}]
    records += [{"kind": "val", "step": 9 + n, "epoch": n, "rsum": value} for n, value in enumerate(values)]
    job.folder.mkdir(parents=True)
    (job.folder / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records) + '{"kind": "va')


def made_table(tmp_path, failed=()):
    made = plan_of("ablation", tmp_path, seeds=2)
    for place, job in enumerate(line_by_line(made)):
        run_of(job, [10.0 + place, None, 30.0 + place])
    return made, {
        job.folder: Outcome(None if place in failed else {"figures": {}})
        for place, job in enumerate(line_by_line(made))
    }


def test_each_line_has_a_curve_of_every_seed_that_did_not_fail(tmp_path):
    found = curves(*made_table(tmp_path, failed=[1, 2, 3]))
    assert found["MIL (Div, MMD)"] == [{1: 10.0, 3: 30.0}]
    assert "Smooth-Chamfer (Div, MMD)" not in found
    assert found["Maximal Pair Assignment (Div, MMD, GD, ISD)"] == [{1: 30.0, 3: 50.0}, {1: 31.0, 3: 51.0}]
    assert len(found) == 10


def test_an_ensemble_has_no_curve_and_groups_are_named(tmp_path):
    made = plan_of("flickr30k", tmp_path, data=f"region={tmp_path}", seeds=2)
    singles = [job for job in made.jobs if len(job.members) == 1]
    for job in singles:
        run_of(job, [1.0])
    found = curves(made, {job.folder: Outcome({"figures": {}}) for job in made.jobs})
    assert sum(len(seeds) for seeds in found.values()) == len(singles)
    assert "Faster R-CNN + BERT: MaxMatch" in found
    assert not any("†" in name for name in found)


def test_the_picture_lies_beside_the_table_and_is_left_out_if_it_cannot_be_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("maxmatch.evaluation.report.figures.render", lambda figure, kind: kind.encode())
    made, outcomes = made_table(tmp_path)
    path = draw_curves(made, outcomes)
    assert path == tmp_path / "ablation-curves.png"
    assert path.read_bytes() == b"png"
    assert draw_curves(made, {folder: Outcome(None) for folder in outcomes}) is None
    monkeypatch.setattr(compare, "find_spec", lambda name: None)
    assert draw_curves(made, outcomes) is None
