"""A search by words encodes them in NumPy: the same sets and the same model as torch has, and no torch."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from tiny_models import texts, tiny_model, with_statistics

from maxmatch import SetEncoder
from maxmatch.cli.common import load_for_search
from maxmatch.cli.main import main
from maxmatch.model.names import model_identity
from maxmatch.model.numpy_text import NumpyTextEncoder, numpy_text_encoder

_LITE = "efficientnet_lite0_bigru"
_KINDS = {
    "plain": ("region_bigru", {}),
    "projected": (_LITE, {"vector_width": 6, "train_words": False}),
    "own": (_LITE, {"vector_width": 6, "train_words": False, "own_words": 5}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The encoders of the model that ships, tiny."""
    place = tmp_path_factory.mktemp("numpy") / "model"
    name, more = _KINDS["own"]
    return with_statistics(tiny_model(name, **more)).save_pretrained(place, "float16")


def never():
    pytest.fail("the whole model was loaded")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", _KINDS)
def test_texts_become_the_sets_of_torch_and_the_model_is_the_same(tmp_path, kind, dtype):
    name, more = _KINDS[kind]
    tiny_model(name, seed=3, **more).save_pretrained(tmp_path / "model", dtype)
    whole, fast = SetEncoder.from_pretrained(tmp_path / "model"), numpy_text_encoder(tmp_path / "model", never)
    some = [*texts(20), "", "a zebra", "dog " * 100]
    assert model_identity(fast) == model_identity(whole)
    assert (fast.dim, fast.set_sizes) == (whole.dim, whole.set_sizes)
    with pytest.warns(UserWarning, match="more than 32 tokens"):
        np.testing.assert_allclose(fast.encode_texts(some), whole.encode_texts(some).numpy(), atol=1e-5)
    assert fast.encode_texts([]).shape == (0, 4, whole.dim)


@pytest.mark.parametrize("directions", ["mean", "concatenate"])
def test_both_directions_of_the_gru_count_as_in_torch(tmp_path, directions):
    model = tiny_model("region_bigru")
    towers = model.config.model_dump()["towers"]
    towers["text"]["encoder"]["directions"] = directions
    from maxmatch.model.build import build_model

    config = type(model.config).model_validate({**model.config.model_dump(), "towers": towers})
    model = build_model(config, {"text": model.tower("text").reader.tokenizer}, seed=1)
    model.save_pretrained(tmp_path / "model")
    fast = numpy_text_encoder(tmp_path / "model", never)
    np.testing.assert_allclose(fast.encode_texts(texts(8)), model.encode_texts(texts(8)).numpy(), atol=1e-5)


def test_many_texts_and_pictures_are_for_the_whole_model(folder):
    asked = []
    fast = numpy_text_encoder(folder, lambda: asked.append(1) or SetEncoder.from_pretrained(folder))
    many = texts(100)
    few = np.concatenate([fast.encode_texts(many[:50]), fast.encode_texts(many[50:])])
    assert asked == []
    np.testing.assert_allclose(fast.encode_texts(many), few, atol=1e-5)
    assert fast.encode_images([np.zeros((40, 60, 3), np.uint8)], show_progress=False).shape == (1, 4, fast.dim)
    assert asked == [1]


def test_whatever_is_not_known_here_or_damaged_is_left_to_the_whole_model(folder, tmp_path):
    tiny_model("region_bert").save_pretrained(tmp_path / "bert")
    assert numpy_text_encoder(tmp_path / "bert", never) is None
    assert numpy_text_encoder(tmp_path / "nothing", never) is None
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


def test_torch_is_taken_where_it_is_asked_for(folder):
    assert isinstance(load_for_search(str(folder), "cpu"), NumpyTextEncoder)
    assert isinstance(load_for_search(str(folder), "cpu", "torch"), SetEncoder)


def test_a_device_that_is_not_there_is_refused_for_words_too(folder):
    with pytest.raises(ValueError, match="nonsense"):
        load_for_search(str(folder), "nonsense")


def test_a_model_that_was_replaced_while_it_was_read_encodes_no_picture(folder, tmp_path):
    name, more = _KINDS["own"]
    other = tiny_model(name, seed=9, **more)
    fast = numpy_text_encoder(folder, lambda: other)
    fast.encode_texts(texts(2))
    with pytest.raises(ValueError, match=r"replaced while it was being read.*Run this again"):
        fast.encode_images([np.zeros((40, 60, 3), np.uint8)])


_SEARCH = """
import json, sys
from maxmatch.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0, end.code
print(json.dumps("torch" in sys.modules), file=sys.stderr)
"""


def test_torch_is_loaded_for_new_photos_only(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos = tmp_path / "photos"
    photos.mkdir()

    def add(seed):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 60, 3), np.uint8)
        Image.fromarray(pixels).save(photos / f"{seed}.png")

    def search(*more):
        asked = ["search", '"a dog" - "a cat"', str(photos), "--model", str(folder), "--json", *more]
        done = subprocess.run([sys.executable, "-c", _SEARCH, *asked], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        hits = {hit["id"]: hit["score"] for hit in json.loads(done.stdout)["hits"]}
        return hits, json.loads(done.stderr.splitlines()[-1])

    add(0)
    add(1)
    with pytest.raises(SystemExit):
        main(["search", "a dog", str(photos), "--model", str(folder)])
    fast, loaded = search()
    assert (set(fast), loaded) == ({"0.png", "1.png"}, False)
    slow, loaded = search("--runtime", "torch")
    assert loaded
    assert fast == pytest.approx(slow, abs=1e-5)
    add(2)
    more, loaded = search()
    assert (set(more), loaded) == ({"0.png", "1.png", "2.png"}, True)
