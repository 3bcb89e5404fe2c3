"""How sure a difference between two lines of a table is: from the ranks that jobs keep beside their results."""

import json

import numpy as np
import pytest
import torch

from maxmatch.core.types import Ranks
from maxmatch.evaluation.metrics import SearchRanks
from maxmatch.evaluation.metrics import figures as figures_of
from maxmatch.evaluation.result_tables import render
from maxmatch.reproduce.compare import compare_with_references, write
from maxmatch.reproduce.jobs import RESULT, Outcome, ReproduceOptions, plan
from maxmatch.reproduce.targets import target_called, targets
from maxmatch.reproduce.worker import RANKS, read_ranks, write_ranks

COLLAPSE = {"image_log_variance": -1.5, "text_log_variance": -2.25, "slots_used": 1.0, "pairing_stability": 0.97}


def search_of(easy, seed, images=40, captions=2):
    """What a model finds that answers so many queries at once."""
    generator = np.random.default_rng(seed)
    groups = torch.arange(images), torch.arange(images).repeat_interleave(captions)
    ranks = [
        torch.from_numpy(np.where(generator.random(len(side)) < easy, 1, generator.integers(1, 21, len(side))))
        for side in groups
    ]
    return SearchRanks(*(Ranks(side, torch.zeros_like(side)) for side in ranks), *groups)


def finish(job, search, split="test"):
    """As a job does, without training."""
    found = figures_of(search.i2t, search.t2i)
    digest = write_ranks(job.folder, search)
    job.finish(
        {
            "split": split,
            "images": len(search.image_groups),
            "figures": {**found, **COLLAPSE, "chance_rsum": 3.0},
            "ranks": digest,
            "seconds": 1.0,
        }
    )


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
    result = {"ranks": write_ranks(tmp_path, search)}
    found = read_ranks(tmp_path, result)
    assert torch.equal(found.i2t.ranks, search.i2t.ranks)
    assert torch.equal(found.t2i.ranks, search.t2i.ranks)
    assert torch.equal(found.image_groups, search.image_groups)
    assert torch.equal(found.text_groups, search.text_groups)
    assert [path.name for path in tmp_path.iterdir()] == [RANKS]
    write_ranks(tmp_path, search_of(0.5, 1))  # measured on another split since
    assert read_ranks(tmp_path, result) is None
    assert read_ranks(tmp_path, {}) is None
    assert read_ranks(tmp_path / "elsewhere", result) is None


def test_every_line_is_tested_against_the_maxmatch_line_and_the_table_says_so(tmp_path):
    made = plan(target_called("pvse"), ReproduceOptions(["scenes"], tmp_path, seeds=3))
    outcomes = finished(made, [0.2, 0.5, 0.5, 0.5, 0.5])
    tests = compare_with_references(made, outcomes)
    assert tests[4] is None  # MaxMatch itself
    for line, test in zip(made.lines[:4], tests, strict=False):
        ours, reference = (
            np.mean([rsum(outcomes[job.folder].result) for job in one.jobs]) for one in (line, made.lines[4])
        )
        assert test.rsum == pytest.approx(ours - reference)
        assert test.low < test.rsum < test.high
    assert tests[0].high < 0
    assert max(tests[0].p, tests[0].p_seeds) < 0.01
    assert min(test.p for test in tests[1:4]) > 0.01

    written = write(made, outcomes)
    printed = render(written.table).splitlines()
    assert printed[0].split()[-2:] == ["against", "MaxMatch"]
    shown = printed[3].split()
    assert shown[-6] == f"{tests[0].rsum:+.1f}"
    assert shown[-5:-2] == [f"{tests[0].low:+.1f}", "…", f"{tests[0].high:+.1f}"]
    assert shown[-2:] == [f"{tests[0].p:.4f}", f"{tests[0].p_seeds:.4f}"]
    assert printed[7].split()[-3:] == ["97%", "±", "0%"]  # nothing beside MaxMatch itself
    assert "paired test over images" in (tmp_path / "pvse.md").read_text()
    rows = json.loads((tmp_path / "pvse.json").read_text())["rows"]
    assert rows[0]["against_reference"] == pytest.approx(tests[0]._asdict())
    assert rows[4]["against_reference"] is None


def test_of_one_seed_images_are_tested_and_seeds_are_not(tmp_path):
    made = plan(target_called("sizes"), ReproduceOptions(["scenes"], tmp_path))
    outcomes = finished(made, [0.2, 0.4, 0.5, 0.5])
    tests = compare_with_references(made, outcomes)
    assert [test is None for test in tests] == [False, False, True, False]  # against K = 4
    assert tests[0].p_seeds is None
    assert "against K = 4" in render(write(made, outcomes).table)


def test_cells_without_ranks_leave_the_test_out_and_nothing_else(tmp_path):
    made = plan(target_called("sizes"), ReproduceOptions(["scenes"], tmp_path, seeds=2))
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
    made = plan(target_called("sizes"), ReproduceOptions(["scenes"], tmp_path, seeds=2))
    finished(made, [0.2, 0.4, 0.5, 0.5])
    (made.lines[0].jobs[0].folder / RESULT).unlink()
    for job in made.lines[1].jobs:
        finish(job, search_of(0.4, 1), split="val")
    for job in made.lines[3].jobs:
        finish(job, search_of(0.4, 1, images=39))
    outcomes = collected(made)
    first, *others = compare_with_references(made, outcomes)
    reference = np.mean([rsum(outcomes[job.folder].result) for job in made.lines[2].jobs])
    assert first.rsum == pytest.approx(rsum(outcomes[made.lines[0].jobs[1].folder].result) - reference)
    assert first.p_seeds is None
    assert others == [None, None, None]


def test_of_the_three_similarities_every_two_are_tested_below_the_table(tmp_path):
    made = plan(target_called("elements"), ReproduceOptions(["scenes"], tmp_path, seeds=2))
    notes = write(made, finished(made, [0.2, 0.4, 0.6])).table.notes
    starts = ("smooth-Chamfer against MIL: RSUM +", "MaxMatch against MIL: RSUM +", "MaxMatch against smooth-Chamfer: ")
    for start in starts:
        assert sum(note.startswith(start) for note in notes) == 1


def test_every_table_has_one_reference_in_each_group_that_is_trained():
    for target in targets().values():
        if target.kind != "figure":
            groups = {line.group for line in target.lines if line.recipe is not None}
            assert sorted(line.group for line in target.lines if line.reference) == sorted(groups)
