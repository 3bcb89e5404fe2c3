"""Checkpoints in half precision: as close to their parent as promised, and as safe as any other."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import SIZES, images_for, texts, tiny_model
from tiny_models import with_statistics as trained

from maxmatch import SetEncoder
from maxmatch.model.checkpoint import load
from maxmatch.model.names import check_same_model, model_identity

torch.set_num_threads(1)


def stored(folder):
    return load_file(folder / "model.safetensors")


def lowest_cosine(one, other):
    return torch.nn.functional.cosine_similarity(one, other, dim=-1).min().item()


@pytest.mark.parametrize("name", SIZES)
def test_a_half_checkpoint_makes_sets_like_its_parents_and_is_half_as_large(name, tmp_path):
    model = trained(tiny_model(name))
    model.save_pretrained(tmp_path / "whole")
    again = SetEncoder.from_pretrained(model.save_pretrained(tmp_path / "half", dtype=torch.float16))
    weights = stored(tmp_path / "half")
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float16}
    assert {value.dtype for value in again.state_dict().values() if value.is_floating_point()} == {torch.float32}
    images, captions = images_for(model, 5), texts(5)
    assert lowest_cosine(again.encode_images(images), model.encode_images(images)) >= 0.9999
    assert lowest_cosine(again.encode_texts(captions), model.encode_texts(captions)) >= 0.9999
    sizes = [sum(v.nbytes for v in stored(tmp_path / kind).values()) for kind in ("half", "whole")]
    assert sizes[0] < 0.51 * sizes[1]


def test_every_weight_is_rounded_to_the_nearest_half_and_the_config_says_so(tmp_path):
    model = trained(tiny_model("resnet152_bigru"))
    folder = model.save_pretrained(tmp_path / "half", dtype="float16")
    for name, value in load(folder).state_dict().items():
        parent = model.state_dict()[name]
        expected = parent.half().float() if parent.is_floating_point() else parent
        assert torch.equal(value, expected), name
    assert json.loads((folder / "config.json").read_text())["weights_dtype"] == "float16"
    model.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["weights_dtype"] == "float32"
    assert torch.equal(load(folder).encode_texts(texts(3)), model.encode_texts(texts(3)))


def test_what_half_precision_cannot_hold_stays_as_it_is(tmp_path):
    model = trained(tiny_model("resnet152_bigru"))
    norm = next(module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d))
    norm.running_var[0] = 70_000.0
    (name,) = [key for key, value in model.state_dict().items() if value.data_ptr() == norm.running_var.data_ptr()]
    folder = model.save_pretrained(tmp_path / "half", dtype="float16")
    assert stored(folder)[name].dtype == torch.float32
    assert torch.equal(stored(folder)[name], norm.running_var)
    kept = [key for key, value in stored(folder).items() if value.dtype == torch.float32]
    assert kept == [name]
    counts = [value for key, value in stored(folder).items() if key.endswith("num_batches_tracked")]
    assert counts
    assert all(value.dtype == torch.int64 for value in counts)
    images = images_for(model, 3)
    assert lowest_cosine(load(folder).encode_images(images), model.encode_images(images)) >= 0.9999


def test_a_half_checkpoint_is_a_model_of_its_own_whose_identity_stays(tmp_path):
    model = trained(tiny_model("region_bigru"))
    half = load(model.save_pretrained(tmp_path / "half", dtype="float16"))
    identity = model_identity(half)
    assert model_identity(load(tmp_path / "half")) == identity
    assert model_identity(load(half.save_pretrained(tmp_path / "again", dtype="float16"))) == identity
    assert model_identity(load(half.save_pretrained(tmp_path / "whole"))) == identity
    with pytest.raises(ValueError, match="their vectors cannot be compared"):
        check_same_model(model_identity(model), half)


@pytest.mark.parametrize("dtype", [torch.bfloat16, "half", "int8"])
def test_another_dtype_is_refused_before_anything_is_written(dtype, tmp_path):
    with pytest.raises(ValueError, match="dtype: expected float16 or float32"):
        tiny_model("region_bigru").save_pretrained(tmp_path / "model", dtype=dtype)
    assert not any(tmp_path.iterdir())
