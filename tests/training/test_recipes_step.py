"""Every recipe that ships takes a step at its beginning and one at its end, its model made small."""

import pytest
import torch
from test_recipes_build import NAMES, stand_in
from tiny_models import images_for, texts, tokenizer_for

from maxmatch.core.types import Batch
from maxmatch.model.build import build_model
from maxmatch.training.optim import freeze_for, optimiser, parameter_groups, set_learning_rates
from maxmatch.training.step import criterion_for, make_step

STEPS = 10  # in an epoch


def batch_for(model, seed):
    """Three pictures with two captions each."""
    image, text = model.tower("image").reader, model.tower("text").reader
    groups = torch.arange(3)
    inputs = {
        "image": image.collate([image.read(one) for one in images_for(model, 3, seed)]),
        "text": text.collate([text.read(one) for one in texts(6, seed)]),
    }
    return Batch(inputs, {"image": groups, "text": groups.repeat_interleave(2)})


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_takes_two_steps(name):
    recipe = stand_in(name)
    train, config = recipe.train, recipe.model.resolved()
    model = build_model(config, {"text": tokenizer_for(config)}, pretrained=False, seed=recipe.seed)
    groups = parameter_groups(model, train)
    adam = optimiser(groups, train)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for epoch in (0, train.epochs - 1):
        frozen = list(freeze_for(model.train(), train, epoch))
        set_learning_rates(adam, train, epoch * STEPS, STEPS)
        criterion = criterion_for(recipe, epoch)
        step = make_step(model, groups, adam, scaler, criterion, clip=train.clip)
        before = {key: value.clone() for key, value in model.named_parameters()}
        terms = step(batch_for(model, epoch), epoch)
        assert torch.isfinite(terms.total)
        weights = {key for key, weight in criterion.options.items() if key.endswith("_weight") and weight}
        assert len([term for term in vars(terms).values() if term is not None]) == 1 + len(weights)
        moved = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
        for group in groups:
            tower, kind = group.name.split(".")
            still = kind == "backbone" and tower in frozen
            assert bool(moved & group.parameters.keys()) != still, f"{group.name} in epoch {epoch + 1}"
        for tower in frozen:
            assert not any(key.startswith(f"towers.{tower}.encoder.backbone.") for key in moved)
    assert criterion.options["negatives"] == recipe.objective.negatives
