"""The card of a trained model: its figures, and the command that trains it again."""

import json
import shlex

import numpy as np
import pytest
import torch
from small_runs import recipe_for, write_data

from maxmatch.data.load import read_dataset
from maxmatch.evaluation.encoding import encode_items
from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.matching.scoring import score_matrix
from maxmatch.model.checkpoint import load
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training.loop import train
from maxmatch.training.run import command

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("notes")
    recipe = recipe_for(write_data(place / "my data"), epochs=2)
    data = recipe.data.model_copy(update={"hold_out_words": ("thing5",), "licence": "Made up; free for all."})
    train(recipe.model_copy(update={"data": data}), place / "run", show_progress=False)
    return place


def test_the_card_of_the_best_epoch_has_its_figures_with_intervals(run):
    done = json.loads((run / "run" / "done.json").read_text())
    notes = load(run / "run" / "best").notes
    split = read_dataset(run / "my data").split("val")
    encoded = encode_items(load(run / "run" / "best"), split)
    scores = score_matrix(encoded.sets["image"], encoded.sets["text"])
    for found, groups, way in zip(
        ranks_both_ways(scores, encoded.groups["image"], encoded.groups["text"]),
        (encoded.groups["image"], encoded.groups["text"]),
        ("image to text", "text to image"),
        strict=True,
    ):
        (row,) = [line for line in notes.splitlines() if line.startswith(f"| {way} |")]
        for cell, level in zip(row.split("|")[2:5], (1, 5, 10), strict=True):
            hit = (found.ranks <= level).double().numpy()
            value, low, high = (float(word.strip("()")) for word in cell.replace(" to ", " ").split())
            assert value == pytest.approx(100 * hit.mean(), abs=0.051)
            assert low <= value <= high
            per_image = np.array([hit[groups.numpy() == image].mean() for image in range(16)])
            error = 100 * per_image.std() / 4
            assert (high - low) == pytest.approx(4 * error, abs=max(12.0, 2 * error))
    assert f"RSUM {done['rsum']:.1f} (" in notes
    assert "On the split `val`: 16 images and 32 texts" in notes


def test_the_cards_have_data_words_licence_and_epoch_but_no_folder_of_this_machine(run):
    for which in ("best", "last"):
        card = (run / "run" / which / "README.md").read_text()
        kept = load(run / "run" / which).notes
        assert "on the split `train` of `my data`" in kept
        assert "left out: thing5." in kept
        assert "## Licence\n\nMade up; free for all." in kept
        assert "## Limits" in kept
        assert str(run) not in card
    assert "weights after epoch 2 of 2" in load(run / "run" / "last").notes
    best = json.loads((run / "run" / "done.json").read_text())["best_epoch"]
    assert f"weights after epoch {best + 1:.0f} of 2" in load(run / "run" / "best").notes
    assert "How well it retrieves" not in load(run / "run" / "last").notes


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["data.path=data set.json", "seed=3"],
        ["train.schedule={name: step, every: 5}", "train.freeze.image.backbone=3", "train.lr=2e-4", "train.clip=null"],
        ['data.hold_out_words=[snow, "don\'t"]', "evaluate.similarities=[mil]", "train.lr_factors.set_module=null"],
        ["model.options.width=128", "train.crop_scale=[0.5, 1.0]", "data.licence='a: b # c'", "description=A new one"],
    ],
)
def test_the_command_trains_the_same_recipe(overrides):
    recipe = load_recipe("flickr8k_small", overrides)
    first, verb, name, *given = shlex.split(command(recipe))
    assert (first, verb, name) == ("maxmatch", "train", "flickr8k_small")
    assert load_recipe(name, given) == recipe
    assert len(given) <= len(overrides) + 1


def test_a_recipe_that_ships_is_trained_by_its_name_alone():
    for name in ("scenes", "ablation/04", "flickr8k_held_out", "coco_resnext101_bert", "f30k_pvse_maxmatch"):
        assert command(load_recipe(name)) == f"maxmatch train {name}"


def test_paths_are_named_without_their_folders_and_other_recipes_by_their_file(tmp_path):
    recipe = load_recipe(
        "flickr8k_small", [f"data.path={tmp_path}/dataset_flickr8k.json", f"data.features={tmp_path}/g"]
    )
    assert command(recipe) == "maxmatch train flickr8k_small data.path=dataset_flickr8k.json data.features=g"
    own = Recipe.model_validate({**recipe.model_dump(), "name": "mine"})
    assert command(own).startswith("maxmatch train recipe.yaml")
    whole = load_recipe("scenes").model_dump()
    whole["model"]["config"]["towers"]["text"]["set_size"] = 8
    changed = Recipe.model_validate(whole)
    assert load_recipe("scenes", shlex.split(command(changed))[3:]) == changed
