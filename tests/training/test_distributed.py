"""Several processes learn what one learns from the same batches."""

import json
import os
import signal
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import command, outcome, recipe_for, signal_at_step, together, without_dropout, write_data
from tiny_models import CAPTIONS, FEATURES, tokenizer_for

from maxmatch.core.types import Batch
from maxmatch.matching import SIMILARITIES
from maxmatch.model.build import build_model
from maxmatch.recipe.yaml_files import dump_recipe
from maxmatch.training import distributed as ours
from maxmatch.training import loop
from maxmatch.training.distributed import add_gradients, fewest, first_alone, gather, same_everywhere
from maxmatch.training.loop import train
from maxmatch.training.state import new_state
from maxmatch.training.step import Criterion, gradients, make_step

GROUPS = 7
ALL_TERMS = {"gd_weight": 0.1, "isd_weight": 0.1, "mmd_weight": 0.1, "div_weight": 0.1, "con_weight": 0.1}


def new_model():
    config = without_dropout(recipe_for("nowhere")).model.resolved()
    return build_model(config, {"text": tokenizer_for(config)}, seed=3).double().train()


def batch_of(model, groups, seed):
    """Pictures of some of the groups with all their captions, one to five each; the same in every process."""
    generator = np.random.default_rng([seed, 1])
    regions = [generator.normal(size=(int(generator.integers(1, 6)), FEATURES)) for _ in range(GROUPS)]
    words = " ".join(CAPTIONS).split()
    texts = [
        [" ".join(generator.choice(words, int(generator.integers(1, 9)))) for _ in range(int(generator.integers(1, 6)))]
        for _ in range(GROUPS)
    ]
    image, text = model.tower("image").reader, model.tower("text").reader
    pictures = image.collate([image.read(regions[group].astype("float32")) for group in groups])
    captions = text.collate([text.read(one) for group in groups for one in texts[group]])
    pictures = pictures._replace(values=pictures.values.double())
    owners = torch.tensor([group for group in groups for _ in texts[group]])
    return Batch({"image": pictures, "text": captions}, {"image": torch.tensor(groups), "text": owners})


def learn(negatives, chunks, folder, steps):
    """Some steps, alone or with others; writes the first loss and gradient, and the last weights."""
    criterion = Criterion(SIMILARITIES["maxmatch"], [("image", "text")], {**ALL_TERMS, "negatives": negatives})
    with ours.processes("cpu") as here:
        mine = np.array_split(np.arange(GROUPS), here.world)[here.rank].tolist()
        model = new_model()
        terms = gradients(model, batch_of(model, mine, 0), criterion, 0, chunks=chunks)
        add_gradients(model)
        found = {f"gradient {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        recipe = recipe_for("nowhere", lr=1e-3, weight_decay=1e-2).train
        step = make_step(new_state(model, recipe), criterion, chunks=chunks, clip=1.0)
        for number in range(steps):
            step(batch_of(model, mine, number), number)
        save_file({"loss": terms.total, **found, **model.state_dict()}, folder / f"{here.rank}-of-{here.world}")


def test_two_processes_have_the_gradients_and_the_weights_of_one(tmp_path):
    assert together(learn, "hardest", 1, tmp_path, 8, world=1) == [0]
    assert together(learn, "hardest", 1, tmp_path, 8) == [0, 0]
    alone = load_file(tmp_path / "0-of-1")
    for rank in (0, 1):
        here = load_file(tmp_path / f"{rank}-of-2")
        assert alone.keys() == here.keys()
        for name, value in alone.items():
            torch.testing.assert_close(here[name], value, rtol=0, atol=1e-6, msg=name)
    start = new_model().state_dict()
    assert sum(float((alone[name] - start[name]).abs().max()) > 1e-3 for name in start) > len(start) / 2


def test_three_processes_in_chunks_agree_on_how_many_and_with_each_other(tmp_path):
    """Seven groups in three processes: 3, 2 and 2 groups cannot all be cut into three chunks."""
    assert together(learn, "mean", 3, tmp_path, 2, world=3) == [0, 0, 0]
    first, *others = (load_file(tmp_path / f"{rank}-of-3") for rank in range(3))
    for other in others:
        for name, value in first.items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=1e-12)


def exchange(folder):
    with ours.processes("cpu") as here:
        rows = torch.arange(3.0 + here.rank).reshape(-1, 1).requires_grad_()  # 3 rows and 4
        joined = gather(rows)
        (joined.flatten() * torch.arange(1.0, 8.0)).sum().backward()
        told = same_everywhere({"a": 1.5, "b": float("nan")} if here.first else {}, here.device)
        with first_alone(here):
            if here.first:
                (folder / "written").write_text("")
            assert (folder / "written").exists()
        found = {
            "joined": joined.flatten().tolist(),
            "gradient": rows.grad.flatten().tolist(),
            "told": [told["a"], str(told["b"])],
            "fewest": fewest(5 - here.rank, here.device),
            "asked": [ours.any_process(here.rank == 1, here.device), ours.any_process(False, here.device)],
        }
        (folder / f"found-{here.rank}").write_text(json.dumps(found))


def test_rows_measures_and_flags_reach_all_processes(tmp_path):
    assert together(exchange, tmp_path) == [0, 0]
    found = [json.loads((tmp_path / f"found-{rank}").read_text()) for rank in (0, 1)]
    for rank, own in enumerate(([1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0])):
        assert found[rank] == {
            "joined": [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 3.0],
            "gradient": own,
            "told": [1.5, "nan"],
            "fewest": 4,
            "asked": [True, False],
        }


@pytest.mark.parametrize(("asked", "expected"), [("cuda", 1), ("cuda:0", 0), (None, 1)])
def test_a_gpu_without_a_number_is_the_one_of_the_process(asked, expected, monkeypatch):
    chosen = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    with ours.processes(asked) as here:
        assert here.device == torch.device("cuda", expected)
    assert chosen == [here.device]


def whole_run(recipe, folder, patch=None):
    if patch is not None:
        patch()
    result = train(recipe, folder, auto_recover=patch is not None)
    assert bool(result) == (os.environ["RANK"] == "0")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A recipe in which nothing is random, and what one process makes of it."""
    place = tmp_path_factory.mktemp("alone")
    recipe = without_dropout(recipe_for(write_data(place / "data"), epochs=3, batch_size=15, ema=0.5, early_stop=2))
    assert together(whole_run, recipe, place / "run", world=1) == [0]
    return recipe, place / "run"


def assert_the_same_end(one, two):
    """The last weights to 1e-5, but for those without any gradient: what is added before BatchNorm, and what is added
    to all slots alike before they compete, makes no difference, and Adam follows the rounding errors. Which epoch is
    best is decided by ranks, which rounding may change where two items all but tie: only its RSUM is compared.
    """
    weights = [load_file(folder / "last" / "model.safetensors") for folder in (one, two)]
    for name, value in weights[0].items():
        if not name.endswith(("mlp.0.bias", "mlp.1.running_mean", "query_norm.bias")):
            torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-5, msg=name)
    done = [outcome(folder)["done"] for folder in (one, two)]
    assert done[0]["rsum"] == pytest.approx(done[1]["rsum"], abs=15), "one of 16 images that moves counts 6.25"


def test_a_whole_run_of_two_processes_ends_as_that_of_one(alone, tmp_path):
    recipe, run = alone
    assert together(whole_run, recipe, tmp_path / "run") == [0, 0]
    assert_the_same_end(run, tmp_path / "run")
    one, two = outcome(run)["metrics"], outcome(tmp_path / "run")["metrics"]
    assert [record["step"] for record in two if record["kind"] == "train"] == [4, 8, 12]
    for mine, theirs in zip(two, one, strict=True):
        assert mine["kind"] == theirs["kind"]
        if mine["kind"] == "train":
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


def stop_second_process(printed, *arguments):
    """Only one of the processes is told to stop, in its third step."""
    rank = os.environ["RANK"]
    patch = partial(signal_at_step, signal.SIGTERM, 3) if rank == "1" else None
    command(f"{printed}-{rank}", *arguments, patch=patch)


def test_processes_stop_together_and_one_process_can_finish_for_them(alone, tmp_path):
    recipe, run = alone
    file = tmp_path / "tiny.yaml"
    file.write_text(dump_recipe(recipe))
    assert together(stop_second_process, tmp_path / "printed", "train", file, "--out", tmp_path / "run") == [130, 130]
    assert "interrupted at step 10" in (tmp_path / "printed-0").read_text()
    assert (tmp_path / "printed-1").read_text() == ""
    train(recipe, tmp_path / "run", resume=True)
    assert_the_same_end(run, tmp_path / "run")


def collapse_once():
    """The first validation finds collapsed sets. Only the first process validates."""
    whole, calls = loop.measures, 0

    def measures(*arguments):
        nonlocal calls
        calls += 1
        return whole(*arguments) | ({"text_log_variance": -20.0} if calls == 1 else {})

    loop.measures = measures


def test_processes_recover_together(alone, tmp_path):
    recipe, _ = alone
    assert together(whole_run, recipe, tmp_path / "run", collapse_once) == [0, 0]
    epochs = [record["epoch"] for record in outcome(tmp_path / "run")["metrics"] if record["kind"] == "val"]
    assert epochs == [0, 0, 1, 2]


def test_a_folder_that_holds_a_run_is_refused_by_all_processes(alone, tmp_path):
    recipe, run = alone
    before = outcome(run)
    assert together(whole_run, recipe, run) == [1, 1]
    assert outcome(run) == before
