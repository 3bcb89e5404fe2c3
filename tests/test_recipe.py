"""What a recipe is: checked values, each refusal with its place, and the few questions a training loop asks of it."""

import inspect
import subprocess
import sys

import pytest
from pydantic import ValidationError

from maxmatch.core.manifest import problems
from maxmatch.losses import objective
from maxmatch.model.config import ModelConfig, Region, TowerConfig
from maxmatch.model.presets import PRESETS
from maxmatch.recipe.schema import ModelSection, Objective, Recipe, Train

TRAIN = {"epochs": 2, "batch_size": 8, "lr": 1e-3}
BERT = {"model": {"preset": "region_bert"}, "data": {"tokenizer": "pretrained"}}


def recipe(**parts):
    return Recipe.model_validate({"name": "x", "model": {"preset": "region_bigru"}, "train": TRAIN, **parts})


def refusal(**parts):
    with pytest.raises(ValidationError) as refused:
        recipe(**parts)
    return problems(refused.value)


def test_the_objective_has_the_options_of_the_loss_and_its_defaults():
    parameters = inspect.signature(objective).parameters.values()
    expected = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
    for given in ("teachers", "phrases", "match", "captions"):  # what comes with a batch, and what the model learns
        assert expected.pop(given) is None
    assert Objective().keywords(epoch=0) == expected


def test_the_mean_over_all_negatives_is_used_in_the_first_epochs():
    terms = Objective(mean_negatives_epochs=2, negatives="semi_hard")
    assert [terms.keywords(epoch)["negatives"] for epoch in range(4)] == ["mean", "mean", "semi_hard", "semi_hard"]


def test_a_factor_of_one_tower_counts_before_that_of_all():
    train = Train(**TRAIN, lr_factors={"backbone": 0.1, "image.backbone": 0.2, "text.set_module": 0.5})
    assert [train.lr_factor(tower, "backbone") for tower in ("image", "text")] == [0.2, 0.1]
    assert [train.lr_factor(tower, "set_module") for tower in ("image", "text")] == [1.0, 0.5]


def test_a_backbone_is_frozen_for_its_epochs_or_always():
    train = Train(**TRAIN, freeze={"backbone": "always", "text.backbone": 2})
    assert [train.frozen("text", epoch) for epoch in range(4)] == [True, True, False, False]
    assert train.frozen("image", 10**6)
    assert not Train(**TRAIN).frozen("image", 0)


def test_warm_up_is_in_steps_or_in_epochs():
    assert Train(**TRAIN, warmup_steps=7).warmup(steps_per_epoch=100) == 7
    assert Train(**TRAIN, warmup_epochs=0.5).warmup(steps_per_epoch=100) == 50
    assert Train(**TRAIN).warmup(steps_per_epoch=100) == 0


def test_inference_uses_the_similarity_of_training_by_default():
    assert recipe(model={"preset": "region_bigru", "similarity": "mil"}).similarities == ("mil",)
    assert recipe(evaluate={"similarities": ["top_k", "maxmatch"]}).similarities == ("top_k", "maxmatch")


def test_a_stored_recipe_with_removed_options_is_read_where_they_changed_nothing():
    assert recipe(objective={"anneal": None, "slot_con_weight": 0.0}) == recipe()


def test_a_preset_resolves_with_its_options_and_the_similarity():
    model = ModelSection(preset="region_bigru", options={"set_size": 2, "head": "pie"}, similarity="chamfer")
    expected = PRESETS["region_bigru"](set_size=2, head="pie").model_copy(update={"similarity": "chamfer"})
    assert model.resolved() == expected


def test_a_whole_config_resolves_to_itself():
    config = ModelConfig(
        width=8, towers={"image": TowerConfig(encoder=Region()), "audio": TowerConfig(encoder=Region())}
    )
    whole = recipe(model={"config": config.model_dump()}, objective={"pairs": [["image", "audio"]]})
    assert whole.model.resolved() == config
    assert whole.objective.pairs == (("image", "audio"),)


def test_a_schedule_can_be_named_alone():
    assert recipe(train={**TRAIN, "schedule": "constant"}).train.schedule.name == "constant"
    assert recipe().train.schedule.name == "cosine"


def test_null_is_none_where_that_is_a_value_and_the_default_elsewhere():
    train = {**TRAIN, "clip": None, "workers": None, "keep_checkpoints": None, "lr_factors": {"set_module": None}}
    whole = recipe(train=train, objective=None, seed=None)
    assert (whole.train.clip, whole.train.workers, whole.train.keep_checkpoints) == (None, None, 2)
    assert (whole.train.lr_factors, whole.objective, whole.seed) == ({}, Objective(), 0)
    for key in TRAIN:  # what decides a training has no silent default
        assert refusal(train={**TRAIN, key: None}) == f"train.{key}: Field required"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"trian": {}}, "trian: unknown key 'trian'. Did you mean 'train'?"),
        ({"train": {**TRAIN, "learning_rate": 1}}, "unknown key 'learning_rate'. Did you mean 'lr'?"),
        ({"objective": {"margn": 1}}, "objective.margn: unknown key 'margn'. Did you mean 'margin'?"),
        (
            {"train": {**TRAIN, "lr_factors": {"backbon": 1}}},
            "train.lr_factors.backbon: unknown key 'backbon'. Did you",
        ),
        ({"train": [1, 2]}, "train: expected keys with values, such as 'epochs', got [1, 2]"),
        ({"train": {**TRAIN, "lr": float("nan")}}, "train.lr: Input should be "),
        ({"train": {**TRAIN, "epochs": 0}}, "train.epochs: Input should be greater than or equal to 1, got 0"),
        ({"train": {**TRAIN, "accumulate": 9}}, "train.accumulate: a batch of 8 images has no 9 chunks"),
        ({"train": {**TRAIN, "warmup_steps": 1, "warmup_epochs": 1}}, "train.warmup_epochs: give warmup_steps or"),
        ({"objective": {"slot_con_weight": 0.1}}, "objective.slot_con_weight: 'slot_con_weight' was removed"),
        ({"objective": {"anneal": {"epochs": 3}}}, "objective.anneal: 'anneal' was removed"),
        (
            {"model": {"preset": "region_bigru", "options": {"slot_noise": 0.3}}},
            "model.options.slot_noise: 'slot_noise' was removed",
        ),
        ({"train": {**TRAIN, "crop_scale": [0.5, 0.4]}}, "train.crop_scale: expected the smaller share first"),
        ({"train": {**TRAIN, "schedule": "linear"}}, "'step', 'cosine', 'constant'"),
        ({"train": {**TRAIN, "schedule": {"name": "step"}}}, "train.schedule.step.every: Field required"),
        (
            {"train": {**TRAIN, "freeze": {"image.backbone": 1}}},
            "train.freeze.image.backbone: the tower 'image' has no",
        ),
        ({"train": {**TRAIN, "freeze": {"backbone": 1}}}, "train.freeze.backbone: the model has no backbone"),
        ({**BERT, "train": {**TRAIN, "freeze": {"set_module": 1}}}, "train.freeze.set_module: only a backbone"),
        ({**BERT, "train": {**TRAIN, "freeze": {"text.encoder": 1}}}, "train.freeze.text.encoder: only a backbone"),
        (
            {"train": {**TRAIN, "lr_factors": {"image.encoder": 0.1}}},
            "train.lr_factors.image.encoder: the tower 'image'",
        ),
        ({**BERT, "train": {**TRAIN, "freeze": {"text.backbone": "never"}}}, "'always'"),
        (
            {"train": {**TRAIN, "lr_factors": {"audio.set_module": 1}}},
            "train.lr_factors.audio.set_module: the model has",
        ),
        (
            {"objective": {"pairs": [["image", "audio"]]}},
            "objective.pairs: expected two of the towers image, text, got",
        ),
        ({"objective": {"pairs": [["text", "text"]]}}, "objective.pairs: expected two of the towers image, text, got"),
        ({"objective": {"triplet_weight": 0}}, "objective.triplet_weight: nothing ranks the pairs"),
        ({"model": {}}, "model.preset: give either a preset (resnet152_bigru,"),
        ({"model": {"preset": "region_gru"}}, "model.preset: expected one of resnet152_bigru, region_bigru"),
        ({"model": {"preset": "region_bigru", "options": {"wrod_width": 3}}}, "Did you mean 'word_width'?"),
        (
            {"model": {"preset": "region_bigru", "options": {"width": 0}}},
            "model.options.width: Input should be greater",
        ),
        ({"model": {"preset": "region_bert", "options": {"bert": 3}}}, "model.options.bert: expected what differs"),
        ({"model": {"preset": "region_bigru", "options": {"head": "pie", "heads": 2}}}, "unknown key 'heads'"),
        ({"model": {"preset": "region_bigru", "similarity": "max"}}, "'maxmatch', 'top_k'"),
        ({"model": {"preset": "region_bigru", "similarity_options": {"alpha": 3}}}, "alpha: maxmatch takes no options"),
        ({"data": {"tokenizer": "bytes"}}, "data.tokenizer: expected words, vectors, wordpiece, pretrained or a path"),
        ({"data": {"tokenizer": "pretrained"}}, "data.tokenizer: 'pretrained' is a transformer's"),
        ({"model": {"preset": "region_bert"}}, "data.tokenizer: a transformer does not read whole words"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_key(parts, message):
    assert message in refusal(**parts)


def test_a_config_and_a_preset_exclude_each_other():
    config = PRESETS["region_bigru"]().model_dump()
    assert "model.preset: give either" in refusal(model={"preset": "region_bigru", "config": config})
    assert "model.options: options belong to a preset" in refusal(model={"config": config, "options": {"width": 8}})


def test_the_similarity_of_a_config_counts_unless_the_recipe_gives_another():
    config = {**PRESETS["region_bigru"]().model_dump(), "similarity": "mil"}
    for given in (config, ModelConfig.model_validate(config)):
        inherited = ModelSection(config=given)
        assert (inherited.similarity, inherited.resolved().similarity) == ("mil", "mil")
    alpha = {**config, "similarity": "smooth_chamfer", "similarity_options": {"alpha": 4}}
    for given in ({}, {"similarity": "smooth_chamfer"}):
        assert ModelSection(config=alpha, **given).resolved().similarity_options == {"alpha": 4}
    assert ModelSection(config=alpha, similarity="mil").resolved().similarity_options == {}
    other = ModelSection(config=alpha, similarity_options={"alpha": 5})
    assert other.config.similarity_options == other.resolved().similarity_options == {"alpha": 5}
    own = ModelSection(config=config, similarity="chamfer")
    assert (own.similarity, own.config.similarity, own.resolved().similarity) == ("chamfer",) * 3


def test_sinkhorn_takes_its_options_and_paired_sets_of_one_size():
    model = {
        "preset": "region_bigru",
        "similarity": "sinkhorn",
        "similarity_options": {"epsilon": 0.1, "iterations": 9},
    }
    assert recipe(model=model).similarity_options("sinkhorn") == {"epsilon": 0.1, "iterations": 9}
    assert "sinkhorn takes epsilon, iterations" in refusal(model={**model, "similarity_options": {"alpha": 1}})
    config = PRESETS["region_bigru"]().model_dump()
    config["towers"]["text"]["set_size"] = 2
    assert recipe(model={"config": config, "similarity": "sinkhorn"}).model.similarity == "sinkhorn"
    assert "set_size: 2, but paired compares slot i" in refusal(model={"config": config, "similarity": "paired"})
    with pytest.raises(ValueError, match="paired compares slot i with slot i, and image has 4"):
        ModelConfig.model_validate({**config, "similarity": "paired"})


def test_inference_has_the_options_of_training_for_its_similarity_only():
    model = {"preset": "region_bigru", "similarity": "smooth_chamfer", "similarity_options": {"alpha": 4.0}}
    trained = recipe(model=model)
    assert trained.similarity_options("smooth_chamfer") == {"alpha": 4.0}
    assert trained.similarity_options("top_k") == {}
    assert trained.model.resolved().similarity_options == {"alpha": 4.0}


def test_a_recipe_cannot_be_changed():
    whole = recipe()
    with pytest.raises(ValidationError, match="frozen"):
        whole.seed = 3
    with pytest.raises(ValidationError, match="frozen"):
        whole.train.lr = 3.0


def test_recipes_need_no_torch():
    code = (
        "import sys; from maxmatch import Recipe; Recipe.load('scenes'); print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
