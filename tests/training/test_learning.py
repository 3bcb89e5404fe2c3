"""Learning is real: every objective that a recipe has brings 64 pictures and captions together, each with its own."""

import json

import pytest
import torch
from small_runs import ended, recipe_for, start, without_dropout, write_data

from maxmatch.data.sampler import BatchPlan
from maxmatch.evaluation.encoding import encode_split, in_order
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import list_recipes, load_recipe
from maxmatch.training.diagnostics import measures
from maxmatch.training.distributed import Processes
from maxmatch.training.optim import optimiser, parameter_groups
from maxmatch.training.prepare import prepare
from maxmatch.training.step import criterion_for, make_step

ITEMS, MOST_STEPS = 64, 300
AT_LAST = 10**6  # an epoch in which the schedule of negatives has come to its end


def objectives():
    """Of every head, set size, similarity and choice of loss terms that recipes have, the first one."""
    different = {}
    for name, _ in list_recipes():
        recipe = load_recipe(name)
        tower, loss = recipe.model.resolved().towers["image"], recipe.objective
        terms = [bool(getattr(loss, f"{term}_weight")) for term in ("triplet", "gd", "isd", "mmd", "div", "con")]
        kind = (tower.head.name, tower.set_size, recipe.model.similarity, loss.negatives, loss.diversity, *terms)
        different.setdefault(kind, name)
    return list(different.values())


def stand_in(name, data):
    """A tiny model of regions and a Bi-GRU with the recipe's head, set size, similarity and loss."""
    recipe = load_recipe(name)
    tower = recipe.model.resolved().towers["image"]
    head = {"head": "pie"} if tower.head.name == "pie" else {"heads": 2, "head_width": 16, "depth": 1}
    model = {"width": 64, "word_width": 16, "feature_width": 12, "set_size": tower.set_size, **head}
    small = recipe_for(data).model_dump()
    small["model"] = {"preset": "region_bigru", "options": model, "similarity": recipe.model.similarity}
    small["objective"] = recipe.objective.model_dump()
    small["train"] |= {"lr": 1e-2, "batch_size": ITEMS}
    return without_dropout(Recipe.model_validate(small))


def overfitted(recipe):
    """Steps and measures when each of the items finds its own, or when it takes too long."""
    parts = prepare(recipe, Processes(0, 1, torch.device("cpu")), lambda line: None)
    model = parts.model.train()
    groups = parameter_groups(model, recipe.train)
    adam = optimiser(groups, recipe.train)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    step = make_step(model, groups, adam, scaler, criterion_for(recipe, AT_LAST), clip=1.0)
    (plan,) = in_order(ITEMS, ITEMS)
    (batch,) = parts.feed.batches([BatchPlan(plan.groups, 0)])
    for number in range(1, MOST_STEPS + 1):
        step(batch, number)
        if not number % 10:
            found = measures(encode_split(model, parts.feed, ITEMS, ITEMS), ("image", "text"), recipe.similarities[0])
            if found["i2t_r1"] == found["t2i_r1"] == 100.0:
                break
    return {"steps": number, **found}


def overfit_all(names, data, file):
    file.write_text(json.dumps({name: overfitted(stand_in(name, data)) for name in names}))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    place = tmp_path_factory.mktemp("overfit")
    data = write_data(place / "data", train=ITEMS, val=0, captions=1, named=4)
    names = objectives()
    shares = [start(overfit_all, names[share::2], data, place / f"{share}.json") for share in range(2)]
    assert [ended(process, within=300) for process in shares] == [0, 0]
    return json.loads((place / "0.json").read_text()) | json.loads((place / "1.json").read_text())


@pytest.mark.parametrize("name", objectives())
def test_the_objective_of_every_recipe_overfits(name, results):
    found = results[name]
    assert (found["i2t_r1"], found["t2i_r1"]) == (100.0, 100.0), found
    assert found["chance_i2t_r1"] < 2
    assert found["steps"] > 10


def test_all_similarities_and_heads_of_the_paper_are_among_them():
    chosen = {load_recipe(name).model.similarity for name in objectives()}
    assert chosen == {"maxmatch", "smooth_chamfer", "mil"}
    assert {f"ablation/{row:02}" for row in range(1, 12)} <= set(objectives())
    heads = [load_recipe(name).model.resolved().towers["text"] for name in objectives()]
    assert {(tower.head.name, tower.set_size) for tower in heads} == {("set", 4), ("set", 1), ("pie", 2), ("pie", 4)}
