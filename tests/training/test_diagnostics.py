"""Training that does not work reports the cause and the cure within an epoch; --auto-recover applies the cure."""

import json
import math
import os

import pytest
import torch
from safetensors import safe_open
from small_runs import breaking_at_step, ended, kill_at, outcome, recipe_for, same, start, write_data

from maxmatch.core.files import read_metrics
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training import diagnostics, loop
from maxmatch.training import step as update
from maxmatch.training.loop import TrainingFailed, train
from maxmatch.training.state import States

TRIPLET_ALONE = {"con_weight": 0.0, "gd_weight": 0.0, "isd_weight": 0.0, "mmd_weight": 0.0, "div_weight": 0.0}
NEAR_CHANCE, LEARNS = {"rsum": 8.4, "chance_rsum": 3.2}, {"rsum": 70.0, "chance_rsum": 3.2}
TWO_PAIRS = {"pairs": [["image", "text"], ["text", "image"]]}


def epochs_validated(folder):
    return [record["epoch"] for record in read_metrics(folder, "val")]


def test_validation_ranks_with_the_options_of_training():
    pair, generator = ("image", "text"), torch.Generator().manual_seed(0)
    sets = {name: torch.nn.functional.normalize(torch.randn(20, 4, 6, generator=generator), dim=-1) for name in pair}
    encoded = EncodedSplit(sets, {name: torch.arange(20) for name in pair})
    best, default = (diagnostics.measures(encoded, pair, "top_k", options) for options in ({"k": 1}, None))
    mil = diagnostics.measures(encoded, pair, "mil")
    assert (best["rsum"], best["i2t_mean_rank"]) == (mil["rsum"], mil["i2t_mean_rank"])
    assert best["i2t_mean_rank"] != default["i2t_mean_rank"]


def stuck(losses, steps=40, epoch=0, found=None, **objective):
    recipe = recipe_for("nowhere", objective={**TRIPLET_ALONE, **objective})
    return diagnostics.stuck(recipe, epoch, losses, steps, found or {})


@pytest.mark.parametrize(
    ("losses", "options", "expected"),
    [
        ([0.4] * 20, {}, True),
        ([0.9] * 5 + [0.401, 0.399] * 10, {}, True),
        ([0.6] * 20, {"margin": 0.3}, True),
        ([0.8] * 20, TWO_PAIRS, True),
        ([0.4] * 20, TWO_PAIRS, False),  # one of them learns
        ([0.4] * 19, {}, False),  # too few steps
        ([0.3] * 20, {}, False),  # it learns
        ([0.44 - 0.004 * step for step in range(20)], {}, False),  # it passes by
        ([0.4] * 20, {"margin": 0.3}, False),
        ([0.4] * 20, {"negatives": "mean"}, False),
        ([0.4] * 20, {"mean_negatives_epochs": 1}, False),
        ([0.4] * 20, {"triplet_weight": 0.0, "con_weight": 1.0}, False),
        ([0.0] * 20, {"margin": 0.0}, False),
    ],
)
def test_a_triplet_loss_that_stays_at_twice_the_margin_is_stuck(losses, options, expected):
    assert (stuck(losses, **options) is not None) == expected


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([12.8] * 20, True),  # 2 × 0.2 × 32 pairs
        ([12.8] * 19 + [4.0], True),  # the last batch of an epoch is smaller
        ([0.4] * 20, False),
        ([9.0] * 20, False),  # it learns
        ([12.8] * 10 + [4.0] * 10, False),
    ],
)
def test_a_sum_is_stuck_at_twice_the_margin_for_each_pair(losses, expected):
    objective = {**TRIPLET_ALONE, "triplet_reduction": "sum"}
    recipe = recipe_for("nowhere", objective=objective, batch_size=32, batch_captions=1)
    for found, reported in (({}, expected), (NEAR_CHANCE, expected), (LEARNS, False)):
        assert (diagnostics.stuck(recipe, 0, losses, 40, found) is not None) == reported


def test_a_model_that_ranks_well_above_chance_passes_by_twice_the_margin():
    """RSUM on Flickr8k's validation photos: VSE++ stuck under the hardest negatives, and its recipe passing by."""
    assert stuck([0.4] * 20, found=NEAR_CHANCE) is not None
    assert stuck([0.4] * 20, found=LEARNS) is None


@pytest.mark.parametrize(
    ("losses", "objective", "expected"),
    [
        ([0.402], {}, True),
        ([0.399, 0.4], {}, True),  # a little below is near enough
        ([0.336], {}, False),
        ([0.402], {"mean_negatives_epochs": 3}, None),
        ([0.402], {"triplet_weight": 0.0, "con_weight": 0.1}, None),
        ([], {}, None),
        ([12.9, 8.0], {"triplet_reduction": "sum"}, True),  # 2 × 0.2 × 32 pairs, and windows with a smaller batch
        ([0.402], {"triplet_reduction": "sum"}, False),
    ],
)
def test_a_training_ends_stuck_at_twice_the_margin_or_above_in_its_last_epoch(losses, objective, expected):
    recipe = recipe_for("nowhere", objective={**TRIPLET_ALONE, **objective}, batch_size=32, batch_captions=1)
    assert diagnostics.ended_stuck(recipe, 2, losses) is expected


def test_a_sum_over_all_captions_says_nothing_where_their_number_is_not_known():
    recipe = recipe_for("nowhere", objective={**TRIPLET_ALONE, "triplet_reduction": "sum"}, batch_size=32)
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"captions_per_image": None})})
    for loss in (0.4, 9.0, 12.8):
        assert diagnostics.ended_stuck(recipe, 2, [loss] * 20) is None
        assert diagnostics.stuck(recipe, 2, [loss] * 20, 40, NEAR_CHANCE) is None


def test_half_an_epoch_is_watched_but_at_least_20_steps_and_at_most_100():
    assert [diagnostics.watched_steps(steps) for steps in (3, 40, 100, 150, 567)] == [20, 20, 50, 75, 100]


def test_a_diagnosis_explains_itself_and_its_cure_changes_the_recipe():
    trouble = stuck([0.4] * 20, epoch=2)
    for part in ("0.4000 for 20 steps", "2 × margin = 0.4", "objective.con_weight=0.1", "mean_negatives_epochs=5"):
        assert part in str(trouble)
    cured = load_recipe("coco_resnet152_bigru", trouble.changes).objective
    assert (cured.con_weight, cured.temperature, cured.mean_negatives_epochs) == (0.1, 0.05, 5)
    recipe = recipe_for("nowhere")
    assert diagnostics.collapsed(recipe, -5.0, 4, "image") is None
    assert diagnostics.collapsed(recipe, -27.0, 1, "image") is None
    trouble = diagnostics.collapsed(recipe, -12.3, 4, "text")
    assert "texts -12.3" in str(trouble)
    cured = load_recipe("ablation/01", trouble.changes).objective
    assert (cured.gd_weight, cured.isd_weight) == (0.2, 0.2)
    assert diagnostics.unused(recipe, 1.0) is None
    trouble = diagnostics.unused(load_recipe("scenes_mil"), 0.25)
    assert "75 % of the slots never decide" in str(trouble)
    assert trouble.changes == ()  # another similarity is another experiment


@pytest.mark.usefixtures("without_shape_checks")
def test_a_run_that_is_really_stuck_reports_it_and_auto_recover_makes_it_learn(tmp_path, capsys):
    """The triplet loss alone on little data."""
    data = write_data(tmp_path / "data", train=120, val=24, captions=1, named=4)
    recipe = recipe_for(data, model={"depth": 4}, objective=TRIPLET_ALONE, epochs=2, batch_size=4, lr=0.1)
    train(recipe, tmp_path / "run", auto_recover=True)
    log = capsys.readouterr().err
    assert "! The triplet loss has stayed at 0.40" in log
    assert "! The vectors of a set are nearly equal" in log
    assert "  back to step 0, with objective.con_weight=0.1 objective.temperature=0.05" in log
    assert epochs_validated(tmp_path / "run")[:2] == [0, 0]
    assert epochs_validated(tmp_path / "run")[-2:] == [0, 1]
    stuck, *later = [record["rsum"] for record in read_metrics(tmp_path / "run", "val")]
    assert max(later) > 1.2 * stuck
    assert load_recipe(tmp_path / "run" / "recipe.yaml") == recipe  # the recipe that was asked for stays on record


@pytest.mark.parametrize(("rsum", "reported"), [(100.0, 1), (400.0, 0)])
def test_a_run_at_twice_the_margin_is_judged_when_it_is_validated_and_reported_once(
    rsum, reported, data, tmp_path, monkeypatch, capsys
):
    whole, judge, judged = loop.measures, diagnostics.stuck, []
    monkeypatch.setattr(loop, "measures", lambda *a: whole(*a) | {"rsum": rsum, "chance_rsum": 100.0})

    def at_twice_the_margin(recipe, epoch, losses, steps, found):
        judged.append(epoch)
        return judge(recipe, epoch, [0.4] * 20, steps, found)

    monkeypatch.setattr(diagnostics, "stuck", at_twice_the_margin)
    train(recipe_for(data, objective=TRIPLET_ALONE, epochs=5, validate_every=2), tmp_path / "run")
    assert judged == [1, 3, 4]
    assert capsys.readouterr().err.count("! The triplet loss has stayed at 0.40") == reported


def stuck_until_cured(recipe, epoch, losses, steps, found):
    """In the second epoch, as long as there is no contrastive term."""
    if recipe.objective.con_weight or epoch != 1:
        return None
    return diagnostics.Diagnosis("stuck", "It stands still.", "Push.", ("objective.con_weight=0.2", "train.lr=1e-3"))


KILLS = {
    "between the two names of the first state": lambda: kill_at(os, "replace", 3),
    "before the recovery is saved": lambda: kill_at(States, "save", 6),
    "in the first step after it": lambda: kill_at(update, "gradients", 1),
    "in finishing": lambda: kill_at(States, "clear", 1),
}


def recovered(recipe, folder, kill=None):
    diagnostics.stuck = stuck_until_cured
    if kill is not None:
        KILLS[kill]()
    train(recipe, folder, resume=True, auto_recover=True)


def test_a_recovered_run_can_be_killed_anywhere(data, tmp_path):
    recipe = recipe_for(data, objective=TRIPLET_ALONE, epochs=3, checkpoint_every=2, log_every=1, ema=0.9)
    assert ended(start(recovered, recipe, tmp_path / "whole")) == 0
    whole = outcome(tmp_path / "whole")
    assert epochs_validated(tmp_path / "whole") == [0, 1, 0, 1, 2]  # what went wrong stays on record
    assert [record["lr"] for record in whole["metrics"] if record["kind"] == "train"] == [3e-3] * 6 + [1e-3] * 9
    for kill in KILLS:
        assert ended(start(recovered, recipe, tmp_path / "run", kill)) == -9, kill
    assert ended(start(recovered, recipe, tmp_path / "run")) == 0
    assert same(outcome(tmp_path / "run"), whole)


def test_a_state_after_a_recovery_is_newer_although_its_step_is_smaller(data, tmp_path, monkeypatch):
    monkeypatch.setattr(diagnostics, "stuck", stuck_until_cured)
    with breaking_at_step(7):
        train(recipe_for(data, objective=TRIPLET_ALONE, epochs=3), tmp_path / "run", auto_recover=True)
    with safe_open(States(tmp_path / "run", 9).all()[-1], "pt") as file:
        progress = json.loads(file.metadata()["progress"])
    assert progress["step"] == 0
    assert progress["recoveries"] == [["objective.con_weight=0.2", "train.lr=1e-3"]]


def poison(monkeypatch, step, above=2e-3):
    """At some step the weights become NaN, unless the learning rate is small enough."""
    whole = loop.set_learning_rates

    def setting(adam, train, at, steps):
        if at == step and train.lr > above:
            with torch.no_grad():
                adam.param_groups[0]["params"][0].fill_(math.nan)
        return whole(adam, train, at, steps)

    monkeypatch.setattr(loop, "set_learning_rates", setting)


@pytest.mark.parametrize("similarity", ["maxmatch", "smooth_chamfer"])
def test_nan_ends_the_run_with_an_explanation_and_leaves_the_last_good_state(
    data, tmp_path, monkeypatch, capsys, similarity
):
    poison(monkeypatch, 4)
    recipe = recipe_for(data, model={"similarity": similarity}, epochs=2)
    with pytest.raises(TrainingFailed, match=r"The loss is nan.*train\.lr=0\.0015.*train\.precision=fp32"):
        train(recipe, tmp_path / "run")
    assert "! The loss is nan" in capsys.readouterr().err
    assert States(tmp_path / "run", 9).all()[-1].name == "state-0-00000003.safetensors"
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_nan_that_only_validation_sees_ends_the_run_too(data, tmp_path, monkeypatch):
    whole = loop.encode_split

    def encode(model, *arguments):
        model.tower("text").head.slots.data.fill_(math.nan)
        return whole(model, *arguments)

    monkeypatch.setattr(loop, "encode_split", encode)
    with pytest.raises(TrainingFailed, match="NaN or infinite"):
        train(recipe_for(data), tmp_path / "run")
    assert not (tmp_path / "run" / "best").exists()


def test_after_nan_the_run_restarts_from_a_good_state_with_half_the_learning_rate(data, tmp_path, monkeypatch, capsys):
    poison(monkeypatch, 4, above=1e-3)
    result = train(recipe_for(data, epochs=2, log_every=1), tmp_path / "run", auto_recover=True)
    log = capsys.readouterr().err
    assert log.count("! The loss is nan") == 2
    assert "with train.lr=0.0015" in log
    assert math.isfinite(result["rsum"])
    assert read_metrics(tmp_path / "run", "train")[-1]["lr"] == 0.00075


def test_a_run_that_cannot_recover_fails_after_three_attempts(data, tmp_path, monkeypatch, capsys):
    poison(monkeypatch, 1, above=0)
    with pytest.raises(TrainingFailed):
        train(recipe_for(data), tmp_path / "run", auto_recover=True)
    assert capsys.readouterr().err.count("  back to step") == 3


def test_unused_slots_are_reported_once_and_training_continues(data, tmp_path, capsys, monkeypatch):
    whole = loop.measures
    monkeypatch.setattr(loop, "measures", lambda *arguments: whole(*arguments) | {"slots_used": 0.5})
    train(recipe_for(data, model={"similarity": "mil"}, epochs=2), tmp_path / "run", auto_recover=True)
    assert capsys.readouterr().err.count("! 50 % of the slots never decide the score of a true pair") == 1
    assert epochs_validated(tmp_path / "run") == [0, 1]


@pytest.mark.parametrize(("rsums", "back_to"), [([150, 400, 100], 2), ([1, 2, 3], 0)])
def test_a_recovery_goes_back_to_the_best_epoch_if_it_is_well_above_chance(rsums, back_to, data, tmp_path, monkeypatch):
    """What was learned is not thrown away."""
    whole, coming = loop.measures, iter([*rsums, *[50] * 9])
    monkeypatch.setattr(loop, "measures", lambda *a: whole(*a) | {"rsum": float(next(coming)), "chance_rsum": 100.0})
    late = diagnostics.Diagnosis("stuck", "Late.", "Cure.", ("objective.gd_weight=0.3",))
    monkeypatch.setattr(
        diagnostics,
        "stuck",
        lambda recipe, epoch, *rest: late if epoch == 2 and recipe.objective.gd_weight != 0.3 else None,
    )
    train(recipe_for(data, epochs=3), tmp_path / "run", auto_recover=True)
    assert epochs_validated(tmp_path / "run") == [0, 1, 2, *range(back_to, 3)]
