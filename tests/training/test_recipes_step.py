"""Every recipe that ships builds, encodes and takes a step in its first and last epoch; its model made small."""

import json

import pytest
import torch
from tiny_models import HEAD, SIZES, D, images_for, texts, tokenizer_for

from maxmatch.core.types import Batch
from maxmatch.model.build import build_model
from maxmatch.model.config import SetPrediction
from maxmatch.recipe.yaml_files import list_recipes, load_recipe
from maxmatch.training.optim import freeze_for, set_learning_rates
from maxmatch.training.state import new_state
from maxmatch.training.step import criterion_for, make_step

STEPS = 10  # in an epoch


def stand_in(name):
    """The recipe with its model made small: same parts, same set size, other widths."""
    recipe = load_recipe(name)
    if recipe.model.preset is None:
        return recipe  # small as it is
    options = {**HEAD, **SIZES[recipe.model.preset]}
    if recipe.model.options.get("head", "set") != "set":
        options = {key: value for key, value in options.items() if key not in SetPrediction.model_fields}
    return load_recipe(name, [f"model.options={json.dumps(options)}"])


def batch_for(model, seed):
    """Three pictures with two captions each."""
    image, text = model.tower("image").reader, model.tower("text").reader
    groups = torch.arange(3)
    inputs = {
        "image": image.collate([image.read(one) for one in images_for(model, 3, seed)]),
        "text": text.collate([text.read(one) for one in texts(6, seed)]),
    }
    return Batch(inputs, {"image": groups, "text": groups.repeat_interleave(2)})


NEW = [name for name, _ in list_recipes() if load_recipe(name).model.start is None]  # the others: test_start.py


@pytest.mark.parametrize("name", NEW)
def test_every_recipe_builds_encodes_and_takes_two_steps(name):
    recipe, full = stand_in(name), load_recipe(name).model.resolved()
    train, config = recipe.train, recipe.model.resolved()
    parts = [[(t.encoder.name, t.head.name, t.set_size) for t in each.towers.values()] for each in (config, full)]
    assert parts[0] == parts[1]
    model = build_model(config, {"text": tokenizer_for(config)}, pretrained=False, seed=recipe.seed)
    images, captions = model.encode_images(images_for(model, 2)), model.encode_texts(texts(3))
    sizes, width = [tower.set_size for tower in full.towers.values()], D if recipe.model.preset else full.width
    assert (images.shape, captions.shape) == ((2, sizes[0], width), (3, sizes[1], width))
    assert torch.isfinite(model.similarity(images, captions)).all()
    state = new_state(model, train)
    for epoch in (0, train.epochs - 1):
        frozen = list(freeze_for(model.train(), train, epoch))
        set_learning_rates(state.adam, train, epoch * STEPS, STEPS)
        criterion = criterion_for(recipe, epoch)
        step = make_step(state, criterion, clip=train.clip)
        before = {key: value.clone() for key, value in model.named_parameters()}
        terms = step(batch_for(model, epoch), epoch)
        assert torch.isfinite(terms.total)
        weights = {key for key, weight in criterion.options.items() if key.endswith("_weight") and weight}
        assert len(terms.computed()) == 1 + len(weights)
        moved = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
        # At the end of a schedule a step may be less than the last digit of a number near 5.
        moved |= {key for key, value in model.named_parameters() if not value.ndim and value.grad}
        for group in state.groups:
            tower, _, kind = group.name.partition(".")
            still = kind == "backbone" and tower in frozen
            assert bool(moved & group.parameters.keys()) != still, f"{group.name} in epoch {epoch + 1}"
        for tower in frozen:
            assert not any(key.startswith(f"towers.{tower}.encoder.backbone.") for key in moved)
    assert criterion.options["negatives"] == recipe.objective.negatives
