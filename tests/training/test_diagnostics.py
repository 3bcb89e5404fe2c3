"""Training that does not work says so, within an epoch, with the cure; and --auto-recover applies it."""

import json
import math
import os
from contextlib import redirect_stderr
from itertools import pairwise

import pytest
import torch
from safetensors import safe_open
from small_runs import ended, kill_at, outcome, recipe_for, same, start, write_data

from maxmatch.core.files import read_metrics
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training import diagnostics, loop
from maxmatch.training import step as update
from maxmatch.training.loop import TrainingFailed, train
from maxmatch.training.state import States

TRIPLET_ALONE = {"con_weight": 0.0, "gd_weight": 0.0, "isd_weight": 0.0, "mmd_weight": 0.0, "div_weight": 0.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def more_data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("more"), train=120, val=24, captions=1, named=4)


def stuck(losses, steps=40, epoch=0, **objective):
    return diagnostics.stuck(recipe_for("nowhere", objective={**TRIPLET_ALONE, **objective}), epoch, losses, steps)


def test_a_loss_that_stands_at_twice_the_margin_is_called_stuck():
    assert stuck([0.4] * 20).kind == "stuck"
    assert stuck([0.9] * 5 + [0.401, 0.399] * 10).kind == "stuck"
    assert stuck([0.6] * 20, margin=0.3).kind == "stuck"


@pytest.mark.parametrize(
    ("losses", "options"),
    [
        ([0.4] * 19, {}),  # too short a time
        ([0.3] * 20, {}),  # it learns
        ([0.44 - 0.004 * step for step in range(20)], {}),  # it comes by
        ([0.4] * 20, {"margin": 0.3}),
        ([0.4] * 20, {"negatives": "mean"}),
        ([0.4] * 20, {"mean_negatives_epochs": 1}),
        ([0.4] * 20, {"triplet_weight": 0.0, "con_weight": 1.0}),
        ([0.0] * 20, {"margin": 0.0}),
        ([], {}),
    ],
)
def test_others_are_not(losses, options):
    assert stuck(losses, **options) is None


def test_with_several_pairs_of_modalities_all_must_stand():
    recipe = load_recipe("scenes", ['objective.pairs=[["image", "text"], ["text", "image"]]'])
    assert diagnostics.stuck(recipe, 9, [0.8] * 20, 40).kind == "stuck"
    assert diagnostics.stuck(recipe, 9, [0.4] * 20, 40) is None


def test_one_looks_no_further_back_than_an_epoch_that_is_long_enough():
    assert [diagnostics.watched_steps(steps) for steps in (3, 40, 100, 150, 567)] == [20, 20, 50, 75, 100]


def test_what_is_stuck_is_explained_and_the_cure_is_a_change_of_the_recipe():
    trouble = stuck([0.4] * 20, epoch=2)
    text = str(trouble)
    for part in (
        "0.4000 for 20 steps",
        "2 × margin = 0.4",
        "hardest",
        "objective.con_weight=0.1",
        "mean_negatives_epochs=5",
    ):
        assert part in text
    cured = load_recipe("coco_resnet152_bigru", trouble.changes).objective
    assert (cured.con_weight, cured.temperature, cured.mean_negatives_epochs) == (0.1, 0.05, 5)


def test_collapsed_sets_and_unused_slots_are_explained():
    recipe = recipe_for("nowhere")
    assert diagnostics.collapsed(recipe, -5.0, 4, "image") is None
    assert diagnostics.collapsed(recipe, -27.0, 1, "image") is None
    trouble = diagnostics.collapsed(recipe, -12.3, 4, "text")
    assert "texts -12.3" in str(trouble)
    assert "objective.gd_weight=0.2 objective.isd_weight=0.2" in str(trouble)
    cured = load_recipe("ablation/01", trouble.changes).objective
    assert (cured.gd_weight, cured.isd_weight) == (0.2, 0.2)
    assert diagnostics.unused(recipe, 1.0) is None
    trouble = diagnostics.unused(load_recipe("scenes_mil"), 0.25)
    assert "75 % of the slots never decide" in str(trouble)
    assert "model.similarity=maxmatch" in str(trouble)
    assert trouble.changes == ()  # another similarity is another experiment


def listened(recipe, folder, file, auto_recover):
    """A run, and what it says in a file."""
    with file.open("w") as said, redirect_stderr(said):
        train(recipe, folder, auto_recover=auto_recover)


@pytest.fixture(scope="module")
def stuck_runs(more_data, tmp_path_factory):
    """A run that really is stuck, as a plain recipe is on little data, left to itself and rescued: what they said, and
    their validation.
    """
    place = tmp_path_factory.mktemp("stuck")
    recipe = recipe_for(more_data, model={"depth": 4}, objective=TRIPLET_ALONE, epochs=3, batch_size=4, lr=0.1)
    both = [start(listened, recipe, place / str(rescue), place / f"said-{rescue}", rescue) for rescue in (False, True)]
    assert [ended(process) for process in both] == [0, 0]
    for rescue in (False, True):
        assert load_recipe(place / str(rescue) / "recipe.yaml") == recipe  # what was asked for stays on record
    return [((place / f"said-{rescue}").read_text(), place / str(rescue)) for rescue in (False, True)]


def test_a_run_that_is_really_stuck_reports_it_in_its_first_epoch(stuck_runs):
    said, folder = stuck_runs[0]
    first = said.split("epoch 2/3")[0]
    assert "! The triplet loss has stayed at 0.40" in first
    assert "objective.con_weight=0.1" in first
    assert "! The vectors of a set are nearly equal" in said
    assert [record["epoch"] for record in read_metrics(folder, "val")] == [0, 1, 2]
    assert (folder / "done.json").exists()


def test_auto_recover_brings_it_to_learn(stuck_runs):
    said, folder = stuck_runs[1]
    assert "! The triplet loss has stayed at 0.40" in said
    assert "  back to step 0, with objective.con_weight=0.1 objective.temperature=0.05" in said
    found = read_metrics(folder, "val")
    assert [record["epoch"] for record in found][:2] == [0, 0]
    assert [record["epoch"] for record in found][-3:] == [0, 1, 2]
    left_alone = max(record["rsum"] for record in read_metrics(stuck_runs[0][1], "val"))
    assert max(record["rsum"] for record in found[-3:]) > 1.2 * left_alone
    assert "contrastive" in read_metrics(folder, "train")[-1]


def stuck_until_cured(recipe, epoch, losses, steps):
    """In the second epoch, as long as there is no contrastive term."""
    if recipe.objective.con_weight or epoch != 1:
        return None
    return diagnostics.Diagnosis("stuck", "It stands still.", "Push.", ("objective.con_weight=0.2", "train.lr=1e-3"))


KILLS = {
    "before the recovery is saved": lambda: kill_at(States, "save", 6),
    "in the first step after it": lambda: kill_at(update, "gradients", 1),
    "some steps later": lambda: kill_at(update, "gradients", 4),
    "between the two names of the first state": lambda: kill_at(os, "replace", 3),
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
    epochs = [record["epoch"] for record in whole["metrics"] if record["kind"] == "val"]
    assert epochs == [0, 1, 0, 1, 2]  # what went wrong stays on record
    assert [record["lr"] for record in whole["metrics"] if record["kind"] == "train"] == [3e-3] * 6 + [1e-3] * 9
    for kill in KILLS:
        folder = tmp_path / ("new" if kill == "between the two names of the first state" else "run")
        assert ended(start(recovered, recipe, folder, kill)) == -9, kill
    for folder in ("new", "run"):
        assert ended(start(recovered, recipe, tmp_path / folder)) == 0
        assert same(outcome(tmp_path / folder), whole)


def test_a_state_after_a_recovery_is_newer_although_its_step_is_smaller(data, tmp_path, monkeypatch):
    monkeypatch.setattr(diagnostics, "stuck", stuck_until_cured)
    monkeypatch.setattr(update, "gradients", breaking_at(update.gradients, 7))
    recipe = recipe_for(data, objective=TRIPLET_ALONE, epochs=3)
    with pytest.raises(MemoryError):
        train(recipe, tmp_path / "run", auto_recover=True)
    newest = States(tmp_path / "run" / "states", 9).newest()
    with safe_open(newest, "pt") as file:
        progress = json.loads(file.metadata()["progress"])
    assert progress["step"] == 0
    assert progress["recoveries"] == [["objective.con_weight=0.2", "train.lr=1e-3"]]


def breaking_at(whole, call):
    calls = []

    def counted(*arguments):
        calls.append(1)
        if len(calls) == call:
            raise MemoryError
        return whole(*arguments)

    return counted


def poison(monkeypatch, step, above=2e-3):
    """At some step the weights become NaN, unless the learning rate is small enough."""
    whole = loop.set_learning_rates

    def setting(adam, train, at, steps):
        if at == step and train.lr > above:
            with torch.no_grad():
                adam.param_groups[0]["params"][0].fill_(math.nan)
        return whole(adam, train, at, steps)

    monkeypatch.setattr(loop, "set_learning_rates", setting)


@pytest.mark.parametrize("similarity", ["maxmatch", "smooth_chamfer", "mil"])
def test_nan_ends_the_run_with_an_explanation_and_leaves_the_last_good_state(
    data, tmp_path, monkeypatch, capsys, similarity
):
    poison(monkeypatch, 4)
    recipe = recipe_for(data, model={"similarity": similarity}, epochs=3)
    with pytest.raises(TrainingFailed, match=r"The loss is nan.*train\.lr=0\.0015.*train\.precision=fp32"):
        train(recipe, tmp_path / "run")
    assert "! The loss is nan" in capsys.readouterr().err
    newest = States(tmp_path / "run" / "states", 9).newest()
    assert newest.name == "state-0-00000003.safetensors"
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_nan_that_only_validation_sees_is_recognised_too(data, tmp_path, monkeypatch):
    whole = loop._validate

    def validate(recipe, parts, state, here):
        state.model.tower("text").head.slots.data.fill_(math.nan)
        return whole(recipe, parts, state, here)

    monkeypatch.setattr(loop, "_validate", validate)
    with pytest.raises(TrainingFailed, match="NaN or infinite"):
        train(recipe_for(data), tmp_path / "run")
    assert not (tmp_path / "run" / "best").exists()


def test_after_nan_the_run_restarts_from_a_good_state_with_half_the_learning_rate(data, tmp_path, monkeypatch, capsys):
    poison(monkeypatch, 4, above=1e-3)
    result = train(recipe_for(data, epochs=2, log_every=1), tmp_path / "run", auto_recover=True)
    said = capsys.readouterr().err
    assert said.count("! The loss is nan") == 2
    assert "with train.lr=0.0015" in said
    assert "with train.lr=0.00075" in said
    assert math.isfinite(result["rsum"])
    assert read_metrics(tmp_path / "run", "train")[-1]["lr"] == 0.00075


def test_a_run_that_cannot_recover_fails_after_three_attempts(data, tmp_path, monkeypatch, capsys):
    poison(monkeypatch, 4, above=0)
    with pytest.raises(TrainingFailed):
        train(recipe_for(data), tmp_path / "run", auto_recover=True)
    assert capsys.readouterr().err.count("  back to step") == 3


def test_unused_slots_are_said_and_training_goes_on_even_with_auto_recover(data, tmp_path, capsys, monkeypatch):
    whole = loop.measures
    monkeypatch.setattr(loop, "measures", lambda *arguments: whole(*arguments) | {"slots_used": 0.5})
    recipe = recipe_for(data, model={"similarity": "mil"}, epochs=2)
    train(recipe, tmp_path / "run", auto_recover=True)
    said = capsys.readouterr().err
    assert said.count("! 50 % of the slots never decide the score of a true pair") == 1, "said again while it lasts"
    assert [record["epoch"] for record in read_metrics(tmp_path / "run", "val")] == [0, 1]


def late_trouble(recipe, folder):
    diagnostics.stuck = _late
    train(recipe, folder, auto_recover=True)


def test_a_model_that_has_learned_is_worth_going_back_to(tmp_path):
    """The rescue does not throw away what was learned: it goes back to the best epoch, not to the start."""
    data = write_data(tmp_path / "data", train=120, val=60, captions=1, named=4)
    recipe = recipe_for(data, objective={"con_weight": 0.1, "gd_weight": 0.0}, epochs=5, batch_size=10, lr=1e-2)
    assert ended(start(late_trouble, recipe, tmp_path / "run")) == 0
    found = read_metrics(tmp_path / "run", "val")
    epochs = [record["epoch"] for record in found]
    at = next(place for place, (one, two) in enumerate(pairwise(epochs)) if two <= one) + 1
    best = max(range(at - 1), key=lambda place: found[place]["rsum"])
    assert found[best]["rsum"] > 3 * found[best]["chance_rsum"]
    assert epochs[at] == epochs[best] + 1 > 0


def _late(recipe, epoch, losses, steps):
    cured = recipe.objective.gd_weight
    return (
        None if cured or epoch < 3 else diagnostics.Diagnosis("stuck", "Late.", "Cure.", ("objective.gd_weight=0.1",))
    )
