"""A run that is killed and resumed, wherever it was, comes to the same end as one that was left alone."""

import os

import numpy as np
import torch
from small_runs import ended, half_written, kill_at, outcome, recipe_for, same, start
from tiny_models import D, tiny_config

from maxmatch.model import checkpoint
from maxmatch.model.config import ModelConfig
from maxmatch.recipe.schema import Recipe
from maxmatch.training import log, loop, run, state
from maxmatch.training import step as update
from maxmatch.training.loop import train


def everything_on(pictures):
    """Whatever a state has to hold: dropout, size augmentation, average, schedules, freezing, chunks."""
    image, text = tiny_config("resnext101_bert").towers["image"], tiny_config("region_bigru").towers["text"]
    recipe = recipe_for(
        pictures,
        "resnet152_bigru",
        objective={"mean_negatives_epochs": 1},
        epochs=5,
        batch_size=4,
        lr=1e-3,
        schedule="cosine",
        warmup_steps=2,
        freeze={"image.backbone": 2},
        lr_factors={"image.backbone": 0.5},
        size_augmentation=0.2,
        batch_captions=1,
        ema=0.9,
        accumulate=2,
        clip=0.5,
        weight_decay=1e-3,
        checkpoint_every=2,
        log_every=3,
        workers=0,
    )
    config = ModelConfig(width=D, towers={"image": image, "text": text})  # without transformers, which load slowly
    return Recipe.model_validate(recipe.model_dump() | {"model": {"config": config.model_dump()}})


def half_a_record(whole, log, kind, step, epoch, values):
    log._file.write('{"kind": "train", "st')
    log._file.flush()


# Where a run is killed, in order, and within which of the next calls. After each it is resumed. The last ones are
# those of finishing, which comes once.
MOMENTS = [
    ("the first state, before it has its name", lambda n: kill_at(os, "replace", 2), 1),
    ("a step", lambda n: kill_at(update, "gradients", n), 6),
    ("a step, after the weights were changed", lambda n: kill_at(torch.optim.AdamW, "step", n, before=_called), 3),
    ("a state being written", lambda n: kill_at(state, "save_file", n, before=half_written), 2),
    ("a state written, not renamed", lambda n: kill_at(state, "sync", n, before=_called), 3),
    ("a record being written", lambda n: kill_at(log.RunLog, "record", n, before=half_a_record), 3),
    ("validation", lambda n: kill_at(loop, "measures", 1), 1),
    ("between the best checkpoint and the state", lambda n: kill_at(state, "_tensors", n), 2),
    ("the last checkpoint being written", lambda n: kill_at(checkpoint, "save_file", 1, half_written), 1),
    ("the best checkpoint being put in its place", lambda n: _kill_in_finish(lambda: kill_at(os, "rename", 3)), 1),
    ("between the checkpoints and the result", lambda n: kill_at(run, "write_whole", 1), 1),
    ("the states being removed", lambda n: kill_at(state.States, "clear", 1), 1),
]


def _called(whole, *arguments, **options):
    whole(*arguments, **options)


def _kill_in_finish(arm):
    whole = loop.finish

    def armed(*arguments):
        arm()
        return whole(*arguments)

    loop.finish = armed


def killed_run(recipe, folder, moment, call):
    MOMENTS[moment][1](call)
    train(recipe, folder, resume=True)


def test_a_run_killed_and_resumed_a_dozen_times_equals_the_uninterrupted_one(pictures, tmp_path):
    recipe, draw = everything_on(pictures), np.random.default_rng(0)
    assert ended(start(train, recipe, tmp_path / "whole")) == 0
    for moment, (name, _, most) in enumerate(MOMENTS):
        process = start(killed_run, recipe, tmp_path / "run", moment, int(draw.integers(1, most + 1)))
        assert ended(process) == -9, f"not killed at: {name}"
    assert ended(start(resumed, recipe, tmp_path / "run")) == 0
    assert same(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))
    assert [path.name for path in (tmp_path / "run" / "states").iterdir()] == [".lock"]


def resumed(recipe, folder):
    train(recipe, folder, resume=True)
