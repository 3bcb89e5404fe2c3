import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from maxmatch.core.manifest import problems
from maxmatch.model.config import PIE, HuggingFaceBackbone, ModelConfig, Region, Residual, SetPrediction, TowerConfig
from maxmatch.model.presets import PRESETS

REGION = {"encoder": {"name": "region"}}


def refusal(data, part=ModelConfig):
    with pytest.raises(ValidationError) as refused:
        part.model_validate(data)
    return problems(refused.value)


@pytest.mark.parametrize(
    ("name", "heads", "head_width", "size", "resize", "directions"),
    [
        ("resnet152_bigru", 4, 256, 224, "crop", "concatenate"),
        ("region_bigru", 4, 512, None, None, "mean"),
        ("region_bert", 4, 512, None, None, None),
        ("resnext101_bert", 8, 256, 512, "squash", None),
        ("efficientnet_lite0_bigru", 4, 256, 224, "crop", "concatenate"),
    ],
)
def test_the_named_models_are_those_of_the_paper(name, heads, head_width, size, resize, directions):
    config = PRESETS[name]()
    image, text = config.towers["image"], config.towers["text"]
    assert (config.width, image.set_size, text.set_size, config.similarity) == (1024, 4, 4, "maxmatch")
    assert image.head == text.head == SetPrediction(heads=heads, head_width=head_width, depth=4)
    pixels = getattr(image.encoder, "pixels", None)
    assert (pixels and pixels.size, pixels and pixels.resize) == (size, resize)
    assert getattr(text.encoder, "directions", None) == directions


def test_an_unknown_key_is_refused_with_a_suggestion():
    message = refusal({"towers": {"image": {"encoder": {"name": "region", "feature_with": 7}}}})
    assert message.startswith("towers.image.encoder.region.feature_with: ")
    assert "unknown key 'feature_with'. Did you mean 'feature_width'?" in message
    with pytest.raises(ValidationError, match="Did you mean 'heads'"):
        PRESETS["region_bigru"](head_s=3)


def test_a_stored_config_with_removed_options_is_read_where_they_changed_nothing_and_else_refused_by_name():
    data = {"name": "set", "slot_scale": 1.0, "slot_noise": 0}
    config = ModelConfig.model_validate({"towers": {"image": {**REGION, "head": data}}})
    assert config == ModelConfig.model_validate({"towers": {"image": REGION}})
    assert Residual.model_validate({"slot_scale": 1.0}) == Residual()
    assert "slot_noise" not in config.model_dump_json()
    message = refusal({"towers": {"image": {**REGION, "head": {**data, "slot_noise": 0.3}}}})
    assert message.startswith("towers.image.head.set.slot_noise: 'slot_noise' was removed")


@pytest.mark.parametrize("name", PRESETS)
def test_every_named_model_comes_back_from_json_and_can_have_the_head_of_pvse(name):
    config = PRESETS[name]()
    assert ModelConfig.model_validate(json.loads(config.model_dump_json())) == config
    config = PRESETS[name](head="pie", dropout=0.0, set_size=1)
    assert [(tower.head, tower.set_size) for tower in config.towers.values()] == [(PIE(dropout=0.0), 1)] * 2
    with pytest.raises(ValidationError, match="unknown key 'heads'"):
        PRESETS[name](head="pie", heads=4)
    with pytest.raises(ValueError, match="head: expected one of set, pie, gpo, global, gaussian, got 3"):
        PRESETS[name](head=3)


@pytest.mark.parametrize("head", ["gpo", "global"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_named_model_can_have_a_head_of_one_vector(name, head):
    config = PRESETS[name](head=head, set_size=1)
    assert ModelConfig.model_validate(json.loads(config.model_dump_json())) == config
    assert [(tower.head.name, tower.set_size) for tower in config.towers.values()] == [(head, 1)] * 2
    with pytest.raises(ValidationError, match=rf"'{head}' makes one vector, got 4"):
        PRESETS[name](head=head)
    with pytest.raises(ValidationError, match="unknown key 'dropout'"):
        PRESETS[name](head=head, set_size=1, dropout=0.0)


def test_words_of_one_vector_start_small_unless_their_scale_is_given():
    for more, bound in (({}, 0.1), ({"word_scale": 0.3}, 0.3)):
        text = PRESETS["efficientnet_lite0_bigru"](head="gpo", set_size=1, **more).towers["text"].encoder
        assert (text.word_init, text.word_scale, text.local) == ("uniform", bound, "states")


@pytest.mark.parametrize(("head", "option", "value"), [("gpo", "pooling", "max"), ("global", "projection", "mlp")])
def test_an_option_that_a_head_would_change_is_refused_not_ignored(head, option, value):
    with pytest.raises(ValueError, match=f"{option}: the head '{head}'"):
        PRESETS["efficientnet_lite0_bigru"](head=head, set_size=1, **{option: value})


@pytest.mark.parametrize(
    ("encoder", "option"),
    [
        ({"name": "gru"}, "encoder.local"),
        (
            {"name": "conv", "backbone": {"source": "efficientnet_lite"}, "projection": "none"},
            "encoder.projection",
        ),
    ],
)
def test_gpo_takes_no_features_of_another_width_than_the_models(encoder, option):
    tower = {"encoder": encoder, "head": {"name": "gpo"}, "set_size": 1}
    assert f"towers.a.{option}: the head 'gpo' pools features of the model's width" in refusal({"towers": {"a": tower}})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "towers: Field required"),
        ({"towers": {"image": [1, 2]}}, "towers.image: expected keys with values, such as 'encoder', got [1, 2]"),
        ({"towers": {"image": {**REGION, "xyz": 1}}}, "Known are encoder, head, set_size"),
        ({"towers": {}}, "at least 1"),
        ({"towers": {"image": {"encoder": {"name": "cnv"}}}}, "'conv', 'region', 'gru', 'transformer'"),
        ({"towers": {"image": {**REGION, "set_size": 0}}}, "greater than or equal to 1, got 0"),
        ({"towers": {"image": {**REGION, "set_size": 17}}}, "less than or equal to 16, got 17"),
        ({"towers": {"a.b": REGION}}, "pattern"),
        ({"towers": {"image": REGION}, "similarity": "maxmtch"}, "'maxmatch', 'top_k'"),
        ({"towers": {"image": REGION}, "width": -3}, "greater than or equal to 1, got -3"),
        ({"towers": {"image": REGION}, "schema_version": 2}, "Input should be 1, got 2"),
        ({"towers": {"image": REGION}, "pairing": [0, 1, 2, 3]}, "one tower has nothing to pair"),
        (
            {"towers": {"image": REGION, "text": REGION}, "pairing": [0, 1, 2]},
            "image.set_size: 4, but the model was trai",
        ),
        (
            {"towers": {"image": REGION, "text": {**REGION, "set_size": 2}}, "pairing": [0, 1, 2, 3]},
            "text.set_size: 2, but the model was trained with at least 4",
        ),
        ({"towers": {"image": REGION, "text": REGION}, "pairing": [0, 1, 2, 2]}, "expected 4 distinct slots"),
        ({"towers": {"image": REGION, "text": REGION}, "pairing": [0, 1, 2, 4]}, "text.set_size: 4, but"),
        ({"towers": {"image": REGION, "text": REGION}, "pairing_stability": 0.5}, "no pairing"),
    ],
)
def test_what_makes_no_model_is_refused_and_located(data, message):
    assert message in refusal(data)


def test_a_backbone_needs_a_config_or_pretrained_weights():
    assert "give the backbone's config" in refusal({}, HuggingFaceBackbone)
    assert "'model_type' is missing" in refusal({"config": {"hidden_size": 3}}, HuggingFaceBackbone)


def test_unequal_set_sizes_and_a_partial_pairing_are_allowed():
    towers = {"image": TowerConfig(encoder=Region(), set_size=3), "text": TowerConfig(encoder=Region(), set_size=2)}
    config = ModelConfig(towers=towers, pairing=[1, -1, 0], pairing_stability=0.9)
    assert config.pairing == [1, -1, 0]
    with pytest.raises(ValidationError, match="frozen"):
        config.width = 3


def test_pixels_of_efficientnet_lite_are_as_its_weights_want_them():
    pixels = PRESETS["efficientnet_lite0_bigru"]().towers["image"].encoder.pixels
    for value in (0, 100, 255):  # its weights expect (x − 127)/128 of pixels from 0 to 255
        normalised = (value / 255 - pixels.mean[0]) / pixels.std[0]
        assert normalised == pytest.approx((value - 127) / 128)


def test_configs_need_no_torch():
    names = "'torch' in sys.modules, 'numpy' in sys.modules"
    code = f"import sys; from maxmatch.model import config, presets; print({names})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
