"""Training starts from a model, and a tower can be kept as it is: its items are encoded once."""

import shutil

import pytest
import torch
from pydantic import ValidationError
from small_runs import recipe_for, without_dropout

from maxmatch.core.manifest import problems
from maxmatch.core.types import Batch
from maxmatch.data.dataset import IMAGE, TEXT
from maxmatch.data.sampler import BatchPlan
from maxmatch.evaluation.encoding import encode_items, find_model
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.names import SHIPPED
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training.distributed import Processes
from maxmatch.training.loop import Interrupted, Trainer, train
from maxmatch.training.prepare import prepare
from maxmatch.training.run import check_folder
from maxmatch.training.step import criterion_for, gradients

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def start(pictures, tmp_path_factory):
    """A run of two epochs on pictures, whose similarity is not the usual one."""
    run = tmp_path_factory.mktemp("start") / "run"
    recipe = recipe_for(pictures, "resnet152_bigru", model={"similarity": "chamfer"}, epochs=2, batch_size=6, workers=0)
    train(without_dropout(recipe), run)
    return run


def continued(recipe, start, **options):
    """The recipe of a training that starts from a run."""
    whole = recipe.model_dump(mode="json")
    whole["model"] = {"start": str(start)}
    whole["train"] |= options
    return Recipe.model_validate(whole)


@pytest.fixture(scope="module")
def base(pictures):
    return recipe_for(pictures, "resnet152_bigru", epochs=2, batch_size=6, workers=0)


def test_training_starts_with_the_weights_the_words_and_the_similarity_of_the_model(base, start):
    recipe = continued(base, start)
    assert recipe.model.similarity == "chamfer"
    model, known = prepare(recipe, ALONE, print).model, SetEncoder.from_pretrained(start)
    assert model.similarity_name == "chamfer"
    assert all(torch.equal(value, known.state_dict()[name]) for name, value in model.state_dict().items())
    texts = [tower.reader.tokenizer.to_str() for tower in (model.tower(TEXT), known.tower(TEXT))]
    assert texts[0] == texts[1]


def test_the_items_of_a_kept_tower_are_encoded_once_as_in_evaluation(base, start):
    recipe = continued(base, start, freeze={"image": "always"}, crop_scale=(0.3, 0.5), flip=True)
    parts = prepare(recipe, ALONE, print)
    plain = prepare(continued(base, start, crop_scale=None, flip=False), ALONE, print)
    expected = encode_items(plain.model, plain.train).sets[IMAGE]
    (batch,) = parts.feed.batches([BatchPlan(torch.arange(6).numpy(), 3)])
    torch.testing.assert_close(batch.inputs[IMAGE].values, expected[:6], rtol=1e-5, atol=1e-6)


def test_a_step_with_a_kept_tower_moves_the_other_as_a_step_with_both_would(base, start):
    """The gradient of the texts is that of a step which encodes the pictures anew, without dropout and statistics."""
    kept, whole = (
        continued(base, start, **options, crop_scale=None, flip=False)
        for options in ({"freeze": {"image": "always"}}, {})
    )
    found = []
    for recipe in (kept, whole):
        parts = prepare(recipe, ALONE, print)
        (batch,) = parts.feed.batches([BatchPlan(torch.arange(6).numpy(), None)])
        model = parts.model.eval()
        gradients(model, batch, criterion_for(recipe, 9), seed=0)
        found.append({name: value.grad for name, value in model.tower(TEXT).named_parameters()})
    assert found[0].keys() == found[1].keys()
    for name, one in found[0].items():
        torch.testing.assert_close(one, found[1][name], rtol=1e-3, atol=1e-6, msg=name)


def test_a_whole_training_leaves_the_kept_tower_bit_identical_and_its_checkpoint_encodes_pictures(
    base, start, tmp_path
):
    recipe = continued(base, start, freeze={"image": "always"}, lr=0.01)
    result = train(recipe, tmp_path / "run")
    before, after = SetEncoder.from_pretrained(start), SetEncoder.from_pretrained(tmp_path / "run")
    for name, value in before.tower(IMAGE).state_dict().items():
        assert torch.equal(value, after.tower(IMAGE).state_dict()[name]), name
    pairs = zip(before.tower(TEXT).parameters(), after.tower(TEXT).parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in pairs)
    part = prepare(continued(base, tmp_path / "run"), ALONE, print).val
    encoded = encode_items(after, part)
    assert encoded.sets[IMAGE].shape[0] == len(part[IMAGE])
    assert "rsum" in result


def test_a_picture_that_cannot_be_read_is_left_out_of_a_kept_tower_too(pictures, base, start, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for file in pictures.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "2.png").write_bytes(b"no picture")
    whole = continued(base, start, freeze={"image": "always"}).model_dump(mode="json")
    whole["data"]["path"] = str(folder)
    parts = prepare(Recipe.model_validate(whole), ALONE, print)
    (batch,) = parts.feed.batches([BatchPlan(torch.arange(6).numpy(), None)])
    assert isinstance(batch, Batch)
    assert batch.groups[IMAGE].tolist() == [0, 1, 3, 4, 5]
    assert not (batch.groups[TEXT] == 2).any()


def test_the_recipe_for_phrases_trains_the_text_tower_of_its_model_and_keeps_the_other(pictures, start, tmp_path):
    smaller = ["train.batch_size=6", "train.epochs=2", "train.warmup_epochs=0", "train.validate_every=1"]
    where = [f"data.path={pictures}", f"model.start={start}", f"objective.teachers=[{start}]", "train.feed=auto"]
    assert load_recipe("maxmatch_small_phrases").model.start == SHIPPED  # where nothing is named
    train(load_recipe("maxmatch_small_phrases", [*smaller, *where, "train.workers=0"]), tmp_path / "run")
    before, after = (SetEncoder.from_pretrained(one).state_dict() for one in (start, tmp_path / "run"))
    moved = {name.split(".")[1] for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved == {"text"}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"model": {"start": "no/such/run", "preset": "region_bigru"}}, "model"),
        ({"model": {"start": "nowhere"}}, "model.start"),
        ({"freeze": {"image": 3}}, "train.freeze.image"),
        ({"freeze": {"audio": "always"}}, "train.freeze.audio"),
        ({"freeze": {"image.set_module": 1}}, "train.freeze.image.set_module"),
        ({"freeze": {"image": "always", "text": "always"}}, "train.freeze"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(base, start, change, place):
    whole = continued(base, start).model_dump(mode="json")
    whole["model"] = change.get("model", {"start": str(start)})
    whole["train"] |= {key: value for key, value in change.items() if key != "model"}
    with pytest.raises(ValidationError) as refused:
        Recipe.model_validate(whole)
    assert any(line.startswith(place) for line in problems(refused.value).splitlines())


def test_a_kept_tower_trains_in_chunks_too(base, start, tmp_path):
    recipe = continued(base, start, freeze={"image": "always"}, accumulate=2, epochs=1)
    assert "rsum" in train(recipe, tmp_path / "run")


def test_a_kept_text_tower_is_not_reordered(base, start, tmp_path):
    train(continued(base, start, freeze={"text": "always"}, epochs=1), tmp_path / "run")
    before, after = (SetEncoder.from_pretrained(one).tower(TEXT).state_dict() for one in (start, tmp_path / "run"))
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_phrases_need_a_text_tower_that_learns(base, start):
    whole = continued(base, start, freeze={"text": "always"}).model_dump(mode="json")
    whole["train"]["phrases"], whole["objective"]["phrase_weight"] = 0.2, 1.0
    with pytest.raises(ValidationError, match="text tower that learns"):
        Recipe.model_validate(whole)


def test_a_tower_is_kept_only_where_training_starts_from_a_model(base):
    whole = base.model_dump(mode="json")
    whole["train"]["freeze"] = {"image": "always"}
    with pytest.raises(ValidationError, match=r"model\.start"):
        Recipe.model_validate(whole)


def test_a_run_is_evaluated_after_the_model_that_it_started_from_is_gone(base, start, tmp_path):
    copy = tmp_path / "start"
    shutil.copytree(start / "best", copy)
    train(continued(base, copy, epochs=1), tmp_path / "run")
    shutil.rmtree(copy)
    source = find_model(tmp_path / "run")
    assert source.recipe.data.path == base.data.path


def test_resuming_takes_another_cache_and_refuses_another_start(base, start, tmp_path):
    copy, run = tmp_path / "start", tmp_path / "run"
    shutil.copytree(start / "best", copy)
    options = {"freeze": {"image": "always"}, "epochs": 3, "checkpoint_every": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_asked_to_stop", lambda self: self.progress.step == 3)
        with pytest.raises(Interrupted):
            train(continued(base, copy, **options), run)
    recipe = continued(base, copy, **options, picture_cache=str(tmp_path / "cache"))
    check_folder(run, recipe, resume=True)
    changed = SetEncoder.from_pretrained(copy)
    with torch.no_grad():
        next(changed.tower(IMAGE).parameters()).add_(1.0)
    changed.save_pretrained(copy)
    with pytest.raises(ValueError, match="is not what it was then"):
        train(recipe, run, resume=True)
