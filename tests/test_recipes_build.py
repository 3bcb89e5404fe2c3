"""Every recipe that ships builds: its model made small, with random weights."""

import json

import pytest
import torch
from tiny_models import HEAD, SIZES, D, images_for, texts, tokenizer_for

from maxmatch.model.build import build_model
from maxmatch.model.config import SetPrediction
from maxmatch.recipe.yaml_files import list_recipes, load_recipe

NAMES = [name for name, _ in list_recipes()]


def stand_in(name):
    """The recipe with its model made small: same parts, same set size, other widths."""
    recipe = load_recipe(name)
    if recipe.model.preset is None:
        return recipe  # small as it is
    options = {**HEAD, **SIZES[recipe.model.preset]}
    if recipe.model.options.get("head") == "pie":
        options = {key: value for key, value in options.items() if key not in SetPrediction.model_fields}
    return load_recipe(name, [f"model.options={json.dumps(options)}"])


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_builds_with_a_small_stand_in_and_encodes(name):
    recipe = stand_in(name)
    config = recipe.model.resolved()
    full = load_recipe(name).model.resolved()
    assert [(t.encoder.name, t.head.name, t.set_size) for t in config.towers.values()] == [
        (t.encoder.name, t.head.name, t.set_size) for t in full.towers.values()
    ]
    model = build_model(config, {"text": tokenizer_for(config)}, pretrained=False, seed=recipe.seed)
    images, captions = model.encode_images(images_for(model, 2)), model.encode_texts(texts(3))
    sizes = [tower.set_size for tower in full.towers.values()]
    width = D if recipe.model.preset else full.width
    assert (images.shape, captions.shape) == ((2, sizes[0], width), (3, sizes[1], width))
    scores = model.similarity(images, captions)
    assert scores.shape == (2, 3)
    assert torch.isfinite(scores).all()
