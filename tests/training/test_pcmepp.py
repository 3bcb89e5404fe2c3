"""PCME++ by recipe: it learns, its a and b are learned without weight decay, and what does not fit is refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import recipe_for, together
from test_distributed import GROUPS, batch_of
from tiny_models import D, tokenizer_for

from maxmatch import SetEncoder
from maxmatch.core.files import read_metrics
from maxmatch.evaluation.runs import analyse_run, evaluate_runs
from maxmatch.model.build import build_model
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import RecipeError, load_recipe
from maxmatch.reproduce.targets import single
from maxmatch.reproduce.worker import work
from maxmatch.training import distributed as ours
from maxmatch.training.loop import train
from maxmatch.training.optim import optimiser, parameter_groups
from maxmatch.training.prepare import describe
from maxmatch.training.step import criterion_for, gradients

LOSS = load_recipe("flickr8k_pcmepp").objective.model_dump()


def pcmepp(data, objective=None, model=None, **options):
    small = recipe_for(data, **options).model_dump()
    head = {"head": "gaussian", "set_size": 2, "width": D, "word_width": 10, "feature_width": 12}
    small["model"] = {"preset": "region_bigru", "options": head, "similarity": "csd", **(model or {})}
    small["objective"] = {**LOSS, **(objective or {})}
    return Recipe.model_validate(small)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    place = tmp_path_factory.mktemp("pcmepp") / "run"
    train(pcmepp(data, epochs=25, lr=1e-2, weight_decay=0.1, ema=0.9), place)
    return place


def test_a_run_learns_and_can_be_evaluated(run):
    result = json.loads((run / "done.json").read_text())
    assert result["rsum"] > result["chance_rsum"] + 200
    losses = [line for line in read_metrics(run) if line["kind"] == "train"]
    assert losses[-1]["pair_bce"] < losses[0]["pair_bce"]
    assert all("gaussian_kl" in line for line in losses)
    found = evaluate_runs(run, split="val", draws=0, say=lambda line: None)
    assert found.results[0].figures["rsum"] == pytest.approx(result["rsum"])
    assert found.results[0].similarity == "csd"
    for other in ("maxmatch", "all"):
        with pytest.raises(ValueError, match="makes sets that csd alone compares, got 'maxmatch'"):
            evaluate_runs(run, split="val", draws=0, similarity=other, say=lambda line: None)


def test_a_table_has_its_figures_without_those_of_slots(data, tmp_path):
    job = single(tmp_path, pcmepp(data, epochs=1), None, "plain")
    work(job, "cpu")
    figures = job.result()["figures"]
    assert {"rsum", "i2t_map_at_r"} <= figures.keys()
    assert figures["image_bytes_float16"] == 2 * 2 * D
    assert [name for name in figures if "slot" in name or "variance" in name or "pairing" in name] == []


def test_a_report_about_slots_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match=r"a report is about the slots of sets.*maxmatch evaluate"):
        analyse_run(run, split="val", out=tmp_path / "report", say=lambda line: None)


def test_scale_and_shift_were_learned_and_variances_are_those_of_items(run):
    model = SetEncoder.from_pretrained(run / "best")
    assert model.match.scale.item() != 5.0
    assert model.match.shift.item() != 5.0
    assert model.config.pairing is None
    certainty = model.encode_texts(["thing1", "thing1 thing2 thing3", "thing4 thing5"])[:, 1, -2]
    assert len(set(certainty.tolist())) == 3


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(data, tmp_path, monkeypatch):
    recipe = pcmepp(data, epochs=2)
    train(recipe, tmp_path / "whole")
    from maxmatch.training import loop

    def fail(self, good):
        whole(self, good)
        raise MemoryError

    whole = loop.Trainer._end_epoch
    monkeypatch.setattr(loop.Trainer, "_end_epoch", fail)
    with pytest.raises(MemoryError):
        train(recipe, tmp_path / "parts")
    monkeypatch.setattr(loop.Trainer, "_end_epoch", whole)
    train(recipe, tmp_path / "parts", resume=True)
    weights = [load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "parts")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_weight_decay_spares_scale_and_shift(data):
    recipe = pcmepp(data, weight_decay=0.1)
    config = recipe.model.resolved()
    groups = parameter_groups(build_model(config, {"text": tokenizer_for(config)}), recipe.train)
    assert [group.name for group in groups if not group.decays] == ["match"]
    assert list(groups[-1].parameters) == ["match.scale", "match.shift"]
    decays = [group["weight_decay"] for group in optimiser(groups, recipe.train).param_groups]
    assert decays == [0.1] * (len(groups) - 1) + [0.0]
    assert any(line.split()[:2] == ["match", "2"] and line.split()[-1] == "0" for line in describe(recipe).splitlines())


def test_scale_and_shift_can_learn_faster_than_the_rest(data):
    whole = pcmepp(data).model_dump()
    recipe = Recipe.model_validate({**whole, "train": {**whole["train"], "lr_factors": {"match": 30.0}}})
    config = recipe.model.resolved()
    groups = parameter_groups(build_model(config, {"text": tokenizer_for(config)}), recipe.train)
    assert {group.name: group.factor for group in groups if group.factor != 1} == {"match": 30.0}
    with pytest.raises(RecipeError, match="learns no scale and shift"):
        load_recipe("flickr8k_maxmatch", ["train.lr_factors={match: 10}"])


def test_the_first_epochs_may_have_no_pseudo_positives(data):
    recipe = pcmepp(data, objective={"plain_bce_epochs": 2})
    assert [criterion_for(recipe, epoch).options["pseudo_positives"] for epoch in range(4)] == [0.0, 0.0, 0.1, 0.1]
    noted = [line.split()[0] for line in describe(recipe).splitlines() if "no pseudo-positives" in line]
    assert noted == ["1", "2"]


def step_of(chunks, folder):
    recipe = pcmepp("nowhere", model={}, batch_size=8)
    with ours.processes("cpu") as here:
        config = recipe.model.resolved()
        # In evaluation mode, where neither dropout nor BatchNorm depends on who shares a batch.
        model = build_model(config, {"text": tokenizer_for(config)}, seed=3).double().eval()
        mine = np.array_split(np.arange(GROUPS), here.world)[here.rank].tolist()
        terms = gradients(model, batch_of(model, mine, 0), criterion_for(recipe, 0), 0, chunks=chunks)
        ours.add_gradients(model)
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        save_file({"loss": terms.total, **found}, folder / f"{here.rank}-of-{here.world}-{chunks}")


def test_two_processes_and_chunks_have_the_gradients_of_one(tmp_path):
    step_of(1, tmp_path)
    step_of(3, tmp_path)
    assert together(step_of, 1, tmp_path) == [0, 0]
    alone, chunks, first, second = (
        load_file(tmp_path / name) for name in ("0-of-1-1", "0-of-1-3", "0-of-2-1", "1-of-2-1")
    )
    assert {"match.scale", "match.shift"} < alone.keys()
    assert float(alone["match.scale"]) != 0
    for name, value in alone.items():
        for other in (chunks, first, second):
            torch.testing.assert_close(other[name], value, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.similarity=maxmatch"], "maxmatch does not compare what the 'gaussian' head"),
        (["model.options.set_size=4"], "a Gaussian is a set of 2 vectors"),
        (["objective.isd_weight=0.1"], "a Gaussian has no slots to keep apart"),
        (["objective.caption_matching_weight=0.1"], "a Gaussian has no slots to keep apart"),
        (["evaluate.similarities=[csd, maxmatch]"], "maxmatch does not compare"),
        (["train.freeze={image: always}"], "a frozen tower is encoded once"),
        (["objective.bce_weight=0"], "nothing ranks the pairs"),
        (["objective.label_smoothing=0.5"], "less than 0.5"),
        (["model.options.heads=4"], "unknown key 'heads'"),
    ],
)
def test_a_recipe_whose_parts_do_not_fit_is_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("flickr8k_pcmepp", changes)


def test_the_loss_of_gaussians_is_refused_for_sets():
    for change in ("objective.bce_weight=1", "objective.kl_weight=1e-4"):
        with pytest.raises(RecipeError, match="takes Gaussian heads"):
            load_recipe("flickr8k_maxmatch", [change])
    with pytest.raises(RecipeError, match="csd"):
        load_recipe("flickr8k_maxmatch", ["evaluate.similarities=[csd]"])


def test_epochs_without_pseudo_positives_are_refused_where_there_are_none():
    with pytest.raises(RecipeError, match=r"plain_bce_epochs: of no use without objective.bce_weight"):
        load_recipe("flickr8k_maxmatch", ["objective.plain_bce_epochs=3"])
