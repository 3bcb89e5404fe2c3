"""Learning is real: every kind of objective in the recipes makes 32 pictures and captions find each other."""

import pytest
import torch
from small_runs import recipe_for, without_dropout, write_data

from maxmatch.data.sampler import BatchPlan
from maxmatch.evaluation.encoding import encode_split, in_order
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import list_recipes, load_recipe
from maxmatch.training.diagnostics import measures
from maxmatch.training.distributed import Processes
from maxmatch.training.prepare import prepare
from maxmatch.training.state import new_state
from maxmatch.training.step import criterion_for, make_step

ITEMS, MOST_STEPS = 32, 300
AT_LAST = 10**6  # an epoch after the schedule of negatives


def objectives():
    """The first recipe of each head, set size, similarity and kind of negatives and diversity."""
    different = {}
    for name, _ in list_recipes():
        recipe = load_recipe(name)
        tower, loss = recipe.model.resolved().towers["image"], recipe.objective
        kind = (tower.head.name, tower.set_size, recipe.model.similarity, loss.negatives, loss.diversity)
        kind += (loss.triplet_reduction,)
        if recipe.model.head is None:  # sets on a trained model: tests/training/test_sets_on_a_model.py
            different.setdefault(kind, name)
    return different


OBJECTIVES = objectives()


def stand_in(name, data):
    """A tiny model of regions and a Bi-GRU with the recipe's head, set size, similarity and loss."""
    recipe = load_recipe(name)
    tower = recipe.model.resolved().towers["image"]
    name = tower.head.name
    head = {"heads": 2, "head_width": 16, "depth": 1} if name == "set" else {"head": name}
    model = {"width": 64, "word_width": 16, "feature_width": 12, "set_size": tower.set_size, **head}
    small = recipe_for(data).model_dump()
    small["model"] = {"preset": "region_bigru", "options": model, "similarity": recipe.model.similarity}
    small["objective"] = recipe.objective.model_dump()
    small["train"] |= {"lr": 1e-2, "batch_size": ITEMS}
    return without_dropout(Recipe.model_validate(small))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("pairs"), train=ITEMS, val=0, captions=1, named=4)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", OBJECTIVES.values())
def test_the_objective_of_every_recipe_overfits(name, pairs):
    recipe = stand_in(name, pairs)
    parts = prepare(recipe, Processes(0, 1, torch.device("cpu")), lambda line: None)
    model = parts.model.train()
    step = make_step(new_state(model, recipe.train), criterion_for(recipe, AT_LAST), clip=1.0)
    (plan,) = in_order(ITEMS, ITEMS)
    (batch,) = parts.feed.batches([BatchPlan(plan.groups, 0)])

    def measured():
        return measures(encode_split(model, parts.feed, ITEMS, ITEMS), ("image", "text"), recipe.similarities[0])

    before = measured()
    model.train()
    for number in range(1, MOST_STEPS + 1):
        step(batch, number)
        if number % 20 == 0:
            found = measured()
            if found["i2t_r1"] == found["t2i_r1"] == 100.0:
                break
    assert (found["i2t_r1"], found["t2i_r1"]) == (100.0, 100.0), found
    assert found["chance_i2t_r1"] < 4
    assert max(before["i2t_r1"], before["t2i_r1"]) < 30


def test_all_similarities_and_heads_of_the_paper_are_among_them():
    heads = {(head, size) for head, size, *_ in OBJECTIVES}
    assert heads == {("set", 4), ("gpo", 1), ("global", 1), ("pie", 2), ("pie", 4), ("gaussian", 2)}
    assert {kind[2] for kind in OBJECTIVES} == {"maxmatch", "smooth_chamfer", "mil", "paired", "sinkhorn", "csd"}
