"""What a run does from its first epoch to its last."""

import json
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import breaking_at_step, outcome, recipe_for, same, write_data

from maxmatch import SetEncoder, similarity
from maxmatch.core.files import read_metrics
from maxmatch.training import loop
from maxmatch.training.loop import train
from maxmatch.training.state import States


@pytest.fixture
def states_kept(monkeypatch):
    """Finishing leaves the states where they are."""
    monkeypatch.setattr(States, "clear", lambda self: None)


def states_of(run):
    """Step and tensors of every state that is there."""
    return {int(path.stem.split("-")[2]): load_file(path) for path in States(run, 9).all()}


def test_a_frozen_backbone_stays_exactly_as_it_is_and_then_learns(pictures, tmp_path, states_kept):
    recipe = recipe_for(
        pictures,
        "resnet152_bigru",
        epochs=3,
        batch_size=6,
        weight_decay=0.1,
        ema=0.9,
        freeze={"image.backbone": 2},
        keep_checkpoints=9,
        workers=0,
    )
    train(recipe, tmp_path / "run")
    states = states_of(tmp_path / "run")
    assert list(states) == [0, 2, 4, 6]
    frozen = [name for name in states[0] if "encoder.backbone." in name and not name.startswith("adam/")]
    assert any("running_mean" in name for name in frozen)
    assert any(name.startswith("average/") for name in frozen)
    for step in (2, 4):
        assert all(torch.equal(states[step][name], states[0][name]) for name in frozen)
        assert not any(name.startswith("adam/") and "encoder.backbone." in name for name in states[step])
    moved = [name for name in frozen if not torch.equal(states[6][name], states[0][name])]
    assert len(moved) > 0.9 * len(frozen)
    slots = "model/towers.image.head.slots"
    assert not torch.equal(states[2][slots], states[0][slots])


def test_negatives_and_learning_rates_follow_the_recipe(data, tmp_path, monkeypatch):
    negatives, whole = [], loop.criterion_for
    monkeypatch.setattr(loop, "criterion_for", lambda *given: negatives.append(whole(*given)) or negatives[-1])
    recipe = recipe_for(
        data,
        objective={"mean_negatives_epochs": 2},
        epochs=4,
        lr=1e-3,
        schedule={"name": "step", "every": 2},
        log_every=1,
    )
    train(recipe, tmp_path / "run")
    assert [criterion.options["negatives"] for criterion in negatives] == ["mean", "mean", "hardest", "hardest"]
    rates = [record["lr"] for record in read_metrics(tmp_path / "run", "train")]
    assert rates == pytest.approx([1e-3] * 6 + [1e-4] * 6)


def test_the_best_checkpoint_is_of_the_best_epoch_and_its_measures_are_the_result(data, tmp_path):
    result = train(recipe_for(data, epochs=4, lr=1e-2), tmp_path / "run")
    found = [record["rsum"] for record in read_metrics(tmp_path / "run", "val")]
    assert len(found) == 4
    assert result["best_epoch"] == found.index(max(found))
    assert result["rsum"] == pytest.approx(max(found), abs=1e-3)
    assert json.loads((tmp_path / "run" / "done.json").read_text()) == result
    model = SetEncoder.from_pretrained(tmp_path / "run" / "best")
    pictures = list(np.load(data / "dev_ims.npy"))
    captions = (data / "dev_caps.txt").read_text().splitlines()
    scores = similarity.maxmatch(model.encode_images(pictures), model.encode_texts(captions))
    own = torch.arange(16).repeat_interleave(2)
    rsum = 0.0
    for level in (1, 5, 10):
        top = scores.topk(level, dim=1).indices
        rsum += 100 * float((own[top] == torch.arange(16)[:, None]).any(1).double().mean())
        top = scores.T.topk(level, dim=1).indices
        rsum += 100 * float((top == own[:, None]).any(1).double().mean())
    assert result["rsum"] == pytest.approx(rsum)


def test_without_a_validation_split_the_last_model_is_the_best(tmp_path):
    recipe = recipe_for(write_data(tmp_path / "data", val=0), epochs=3, early_stop=1)
    result = train(recipe, tmp_path / "run")
    assert result["best_epoch"] == 2
    assert "rsum" not in result
    ends = outcome(tmp_path / "run")
    assert ends["weights"]["best"] == ends["weights"]["last"]
    assert {record["kind"] for record in ends["metrics"]} == {"train"}


def test_the_average_is_what_is_validated_and_kept(data, tmp_path, states_kept):
    recipe = recipe_for(data, epochs=1, ema=0.9)
    train(recipe, tmp_path / "run")
    (state,) = (tensors for step, tensors in states_of(tmp_path / "run").items() if step)
    for which in ("best", "last"):
        for name, value in load_file(tmp_path / "run" / which / "model.safetensors").items():
            if value.is_floating_point() and not name.endswith("head.slots"):  # they are put in another order
                assert torch.equal(value, state[f"average/{name}"])
    assert not torch.equal(state["average/towers.image.head.slots"], state["model/towers.image.head.slots"])


def validating(monkeypatch, rsums):
    """Validation finds these, one after the other."""
    whole, coming = loop.measures, iter(rsums)
    monkeypatch.setattr(loop, "measures", lambda *arguments: whole(*arguments) | {"rsum": float(next(coming))})


def test_training_stops_early_after_so_many_epochs_without_a_better_one(data, tmp_path, monkeypatch):
    validating(monkeypatch, [10, 30, 20, 29, 31, 1])
    result = train(recipe_for(data, epochs=6, early_stop=2), tmp_path / "run")
    assert result["best_epoch"] == 1
    assert [record["epoch"] for record in read_metrics(tmp_path / "run", "val")] == [0, 1, 2, 3]


@pytest.mark.parametrize(("epochs", "validated"), [(7, [1, 3, 5]), (3, [1, 2])])
def test_epochs_without_validation_do_not_count_as_worse_and_the_last_is_validated(
    epochs, validated, data, tmp_path, monkeypatch
):
    validating(monkeypatch, [10, 30, 20, 40])
    result = train(recipe_for(data, epochs=epochs, early_stop=1, validate_every=2), tmp_path / "run")
    assert [record["epoch"] for record in read_metrics(tmp_path / "run", "val")] == validated
    assert result["best_epoch"] == validated[1]


def test_a_run_that_stopped_early_and_was_killed_does_not_train_on_when_resumed(data, tmp_path, monkeypatch):
    recipe = recipe_for(data, epochs=6, early_stop=1)
    with monkeypatch.context() as patched:
        validating(patched, [30, 20, 40])
        patched.setattr(loop, "finish", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "run")
    result = train(recipe, tmp_path / "run", resume=True)
    assert result["best_epoch"] == 0
    assert [record["epoch"] for record in read_metrics(tmp_path / "run", "val")] == [0, 1]


def test_states_can_be_written_less_often_than_after_each_epoch(data, tmp_path):
    train(recipe_for(data, epochs=2), tmp_path / "often")
    recipe = recipe_for(data, epochs=2, checkpoint_seconds=1000)
    with breaking_at_step(5):
        train(recipe, tmp_path / "run")
    assert [path.name for path in States(tmp_path / "run", 9).all()] == ["state-0-00000000.safetensors"]
    assert not (tmp_path / "run" / "best").exists()
    train(recipe, tmp_path / "run", resume=True)
    assert same(outcome(tmp_path / "run"), outcome(tmp_path / "often"))


@pytest.mark.parametrize("feed", ["mapped", "resident"])
def test_a_run_interrupted_at_every_step_sees_the_same_batches(feed, data, tmp_path):
    options = {"size_augmentation": 0.3, "batch_captions": 1, "feed": feed}
    recipe = recipe_for(data, epochs=1, workers=0, checkpoint_every=1, **options)
    train(recipe, tmp_path / "whole")
    for _ in range(2):
        with breaking_at_step(2):
            train(recipe, tmp_path / "run", resume=True)
    train(recipe, tmp_path / "run", resume=True)
    assert same(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))


def test_the_same_recipe_and_seed_give_the_same_run_and_another_seed_another(data, tmp_path):
    recipe = recipe_for(data, "region_bert", epochs=1, size_augmentation=0.2)
    started = time.monotonic()
    result = train(recipe, tmp_path / "one")
    assert 0 < result["seconds"] < time.monotonic() - started
    train(recipe, tmp_path / "two")
    train(recipe.model_copy(update={"seed": 1}), tmp_path / "other")
    assert same(outcome(tmp_path / "one"), outcome(tmp_path / "two"))
    assert outcome(tmp_path / "other")["weights"] != outcome(tmp_path / "one")["weights"]
