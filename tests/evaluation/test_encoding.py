"""A split as sets: what the model makes of each item alone, whatever the batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_splits import split_of
from safetensors.torch import save_file
from tiny_models import FEATURES, tiny_model

from maxmatch.data.dataset import Items, Split
from maxmatch.evaluation.encoding import encode_items, load_encoded, save_encoded

CAPTIONS = 2


def split(size):
    """Images as features, with two captions each."""
    made = np.random.default_rng(0)
    images = [made.standard_normal((3 + number % 2, FEATURES)).astype(np.float32) for number in range(size)]
    words = ["a dog", "two cats in the snow", "a red bird"]
    texts = [words[number % 3] for number in range(CAPTIONS * size)]
    return Split(
        {
            "image": Items(images, np.arange(size), [f"image{number}" for number in range(size)]),
            "text": Items(texts, np.repeat(np.arange(size), CAPTIONS), [f"text{n}" for n in range(CAPTIONS * size)]),
        }
    )


@pytest.fixture(scope="module")
def model():
    return tiny_model("region_bigru")


@pytest.mark.parametrize("batch_size", [2, 64])
def test_a_split_is_what_the_model_makes_of_its_items(model, batch_size):
    data, seen = split(5), []
    found = encode_items(model, data, batch_size=batch_size, workers=0, advance=seen.append)
    torch.testing.assert_close(found.sets["image"], model.encode_images(list(data["image"].values)), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sets["text"], model.encode_texts(list(data["text"].values)), atol=1e-5, rtol=0)
    assert found.groups["text"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert found.ids["image"] == [f"image{number}" for number in range(5)]
    assert sum(seen) == 5


def test_a_group_that_cannot_be_read_is_left_out_and_the_others_keep_their_numbers(model):
    data, messages = split(4), []
    data["image"].values[1][:] = np.nan
    found = encode_items(model, data, workers=0, report=messages.append)
    assert [one.id for one in messages] == ["image image1"]
    assert found.groups["image"].tolist() == [0, 2, 3]
    assert found.ids["text"] == ["text0", "text1", "text4", "text5", "text6", "text7"]


def test_the_model_is_left_in_the_mode_it_was_in(model):
    for mode in (True, False):
        model.train(mode)
        encode_items(model, split(2), workers=0)
        assert model.training is mode


def test_an_empty_split_and_one_of_which_nothing_can_be_read_are_refused(model):
    with pytest.raises(ValueError, match="the split is empty"):
        encode_items(model, split(0), workers=0)
    data = split(2)
    for features in data["image"].values:
        features[:] = np.nan
    with pytest.raises(ValueError, match="read"):
        encode_items(model, data, workers=0, report=lambda one: None)


def test_sets_are_read_from_a_file_as_they_were_written(tmp_path):
    notes = {"similarity": "top_k", "similarity_options": {"k": 2}, "data": "ä"}
    kept, file = replace(split_of(captions=2), notes=notes), tmp_path / "deep" / "a.safetensors"
    save_encoded(kept, file)
    again = load_encoded(file)
    for name in ("image", "text"):
        assert torch.equal(again.sets[name], kept.sets[name])
        assert torch.equal(again.groups[name], kept.groups[name])
    assert (again.ids, again.notes) == (kept.ids, kept.notes)
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"a\.safetensors: cannot be read as an encoded split"):
        load_encoded(file)
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other\.safetensors: holds no encoded split"):
        load_encoded(tmp_path / "other.safetensors")
