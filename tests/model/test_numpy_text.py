"""A search by words encodes them in NumPy: the same sets and the same model as torch has, and no torch."""

import shutil

import numpy as np
import pytest
import torch
from second_search import arguments, scores, second_search, write_photos
from tiny_models import SIZES, texts, tiny_model, tokenizer_for, with_statistics

from maxmatch import SetEncoder
from maxmatch.cli.common import load_for_search
from maxmatch.cli.main import main
from maxmatch.model.build import build_model
from maxmatch.model.names import model_identity
from maxmatch.model.numpy_text import NumpyTextEncoder, numpy_text_encoder
from maxmatch.model.presets import PRESETS

_LITE = "efficientnet_lite0_bigru"
_KINDS = {
    "directions averaged": ("region_bigru", {}),
    "directions concatenated": (_LITE, {}),
    "projected": (_LITE, {"vector_width": 6, "train_words": False}),
    "own": (_LITE, {"vector_width": 6, "train_words": False, "own_words": 5}),
    "spare slots": (_LITE, {"spare_slots": 2}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The encoders of the model that ships, tiny."""
    place = tmp_path_factory.mktemp("numpy") / "model"
    name, more = _KINDS["own"]
    return with_statistics(tiny_model(name, **more)).save_pretrained(place, "float16")


def never():
    pytest.fail("the whole model was loaded")


@pytest.mark.parametrize(("kind", "dtype"), [*((kind, "float32") for kind in _KINDS), ("own", "float16")])
def test_texts_become_the_sets_of_torch_and_the_model_is_the_same(tmp_path, kind, dtype):
    name, more = _KINDS[kind]
    model = tiny_model(name, seed=3, **more)
    if kind == "own":  # as after some training: at first they are zero
        torch.nn.init.normal_(model.tower("text").encoder.own.weight.data[:-1])
    model.save_pretrained(tmp_path / "model", dtype)
    whole, fast = SetEncoder.from_pretrained(tmp_path / "model"), numpy_text_encoder(tmp_path / "model", never)
    some = [*texts(20), "", "a zebra", "dog " * 100]
    assert model_identity(fast) == model_identity(whole)
    assert (fast.dim, fast.set_sizes) == (whole.dim, whole.set_sizes)
    with pytest.warns(UserWarning, match="more than 32 tokens"):
        np.testing.assert_allclose(fast.encode_texts(some), whole.encode_texts(some).numpy(), atol=1e-5)
    assert fast.encode_texts([]).shape == (0, 4, whole.dim)


def test_the_same_words_are_known(folder):
    fast, whole = numpy_text_encoder(folder, never), SetEncoder.from_pretrained(folder)
    assert fast.known_words("a dog", "xqzzt") == whole.known_words("a dog", "xqzzt") == (["a", "dog"], ["xqzzt"])


def test_many_texts_and_pictures_are_for_the_whole_model(folder):
    asked = []
    fast = numpy_text_encoder(folder, lambda: asked.append(1) or SetEncoder.from_pretrained(folder))
    many = texts(100)
    few = np.concatenate([fast.encode_texts(many[:50]), fast.encode_texts(many[50:])])
    np.testing.assert_array_equal(fast.encode_texts(iter(many[:3])), few[:3])
    assert asked == []
    np.testing.assert_allclose(fast.encode_texts(many), few, atol=1e-5)
    with pytest.raises(ValueError, match="got one str"):
        fast.encode_texts("a dog")
    with pytest.raises(ValueError, match="batch_size"):
        fast.encode_texts(["a dog"], batch_size=0)
    assert fast.encode_images([np.zeros((40, 60, 3), np.uint8)], show_progress=False).shape == (1, 4, fast.dim)
    assert asked == [1]


def test_whatever_is_not_known_here_or_damaged_is_left_to_the_whole_model(folder, tmp_path):
    tiny_model("region_bert").save_pretrained(tmp_path / "bert")
    assert numpy_text_encoder(tmp_path / "bert", never) is None
    assert numpy_text_encoder(tmp_path / "nothing", never) is None
    for head in ("gpo", "global"):
        config = PRESETS["region_bigru"](width=16, head=head, set_size=1, **SIZES["region_bigru"])
        build_model(config, {"text": tokenizer_for(config)}, seed=0).save_pretrained(tmp_path / head)
        assert numpy_text_encoder(tmp_path / head, never) is None
        assert load_for_search(str(tmp_path / head), "cpu").encode_texts(["a dog"]).shape == (1, 1, 16)
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        copy = tmp_path / file
        shutil.copytree(folder, copy)
        (copy / file).write_bytes((copy / file).read_bytes()[:-100])
        assert numpy_text_encoder(copy, never) is None
        with pytest.raises(ValueError, match=file):
            load_for_search(str(copy), "cpu")
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    tiny_model(_LITE, seed=1).save_pretrained(tmp_path / "donor")
    shutil.copy(tmp_path / "donor" / "model.safetensors", other)
    assert numpy_text_encoder(other, never) is None
    with pytest.raises(ValueError, match="does not fit"):
        load_for_search(str(other), "cpu")


def test_torch_is_used_on_request_and_an_unknown_device_is_refused(folder):
    assert isinstance(load_for_search(str(folder), "cpu"), NumpyTextEncoder)
    assert isinstance(load_for_search(str(folder), "cpu", "torch"), SetEncoder)
    with pytest.raises(ValueError, match="nonsense"):
        load_for_search(str(folder), "nonsense")


def test_a_model_that_was_replaced_while_it_was_read_encodes_no_picture(folder, tmp_path):
    name, more = _KINDS["own"]
    other = tiny_model(name, seed=9, **more)
    fast = numpy_text_encoder(folder, lambda: other)
    fast.encode_texts(texts(2))
    with pytest.raises(ValueError, match=r"replaced while it was being read.*Run this again"):
        fast.encode_images([np.zeros((40, 60, 3), np.uint8)])


def test_a_second_search_loads_no_torch_and_finds_the_same(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = arguments(write_photos(tmp_path / "photos", 0, 1), folder)
    with pytest.raises(SystemExit):
        main([*asked, "--runtime", "torch"])
    known = scores(capsys.readouterr().out)
    found, loaded = second_search(*asked)
    assert found == pytest.approx(known, abs=1e-5)
    assert "torch" not in loaded
    write_photos(tmp_path / "photos", 2)
    with pytest.raises(SystemExit):
        main(asked)
    assert set(scores(capsys.readouterr().out)) == {"0.png", "1.png", "2.png"}
