"""After training slot i of one modality meets slot i of the other, and the checkpoint says how reliably."""

import itertools
import json

import numpy as np
import pytest
import torch
from small_runs import recipe_for
from tiny_models import images_for, texts, tiny_config, tokenizer_for, with_audio

from maxmatch import SetEncoder
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.model.build import build_model
from maxmatch.model.config import ModelConfig
from maxmatch.training.loop import train
from maxmatch.training.run import align_slots

PAIR = ("image", "text")


def unit(*shape, seed=0):
    return torch.nn.functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def encoded(images, captions):
    groups = torch.arange(len(images))
    return EncodedSplit({"image": images, "text": captions}, {"image": groups, "text": groups})


@pytest.mark.parametrize("head", ["set", "pie"])
def test_text_slots_are_put_in_the_order_in_which_they_meet_those_of_images(head):
    config = tiny_config("region_bigru")
    if head == "pie":
        whole = config.model_dump()
        for tower in whole["towers"].values():
            tower["head"] = {"name": "pie"}
        config = ModelConfig.model_validate(whole)
    model = build_model(config, {"text": tokenizer_for(config)}, seed=0).eval()
    pictures, words = images_for(model, 6), texts(6)
    before = model.encode_texts(words), model.encode_images(pictures)
    images, order = unit(40, 4, 32), [2, 0, 3, 1]
    # Slot order[i] of an image is slot i of its text; in three of forty pairs two of them are exchanged.
    captions = images[:, order].clone()
    captions[:3] = captions[:3, [1, 0, 2, 3]]
    found = align_slots(model, encoded(images, captions), PAIR)
    assert found.partner == [0, 1, 2, 3]
    assert found.stability == pytest.approx(37 / 40)
    assert (model.config.pairing, model.config.pairing_stability) == ([0, 1, 2, 3], pytest.approx(37 / 40))
    moved = [order.index(slot) for slot in range(4)]
    torch.testing.assert_close(model.encode_texts(words), before[0][:, moved])
    assert torch.equal(model.encode_images(pictures), before[1])
    torch.testing.assert_close(model.similarity(before[1], model.encode_texts(words)), model.similarity(*before[::-1]))


def test_the_slots_of_a_model_that_pairs_them_stay_in_their_order():
    config = tiny_config("region_bigru").model_copy(update={"similarity": "paired"})
    model = build_model(config, {"text": tokenizer_for(config)}, seed=0).eval()
    before, images = model.encode_texts(texts(6)), unit(20, 4, 32)
    assert align_slots(model, encoded(images, images[:, [1, 0, 2, 3]]), PAIR).partner == [0, 1, 2, 3]
    assert torch.equal(model.encode_texts(texts(6)), before)
    assert (model.config.pairing, model.config.pairing_stability) == ([0, 1, 2, 3], 0.0)


def sized(image, text):
    whole = tiny_config("region_bigru").model_dump()
    whole["towers"]["image"]["set_size"], whole["towers"]["text"]["set_size"] = image, text
    config = ModelConfig.model_validate(whole)
    return build_model(config, {"text": tokenizer_for(config)}, seed=0).eval()


def test_texts_with_more_slots_have_those_without_a_partner_last():
    model, images = sized(2, 4), unit(30, 2, 32)
    slots = model.tower("text").head.slots.detach().clone()
    others = unit(30, 2, 32, seed=1)
    captions = torch.stack([others[:, 0], images[:, 1], others[:, 1], images[:, 0]], 1)
    assert align_slots(model, encoded(images, captions), PAIR).partner == [0, 1]
    assert torch.equal(model.tower("text").head.slots, slots[[3, 1, 0, 2]])
    assert model.config.pairing == [0, 1]


def test_texts_with_fewer_slots_stay_as_they_are_and_unmatched_slots_are_recorded():
    model, images = sized(3, 2), unit(30, 3, 32)
    slots = model.tower("text").head.slots.detach().clone()
    assert align_slots(model, encoded(images, images[:, [2, 0]]), PAIR).partner == [1, -1, 0]
    assert torch.equal(model.tower("text").head.slots, slots)
    assert model.config.pairing == [1, -1, 0]


def test_only_the_first_two_towers_have_their_pairing_in_the_checkpoint():
    config = with_audio(tiny_config("region_bigru"))
    model = build_model(config, {"text": tokenizer_for(config)}, seed=0)
    heard, images = unit(20, 3, 32), unit(20, 4, 32, seed=1)
    images[:, 1:] = heard[:, [1, 0, 2]]
    groups = {"audio": torch.arange(20), "image": torch.arange(20)}
    found = align_slots(model, EncodedSplit({"audio": heard, "image": images}, groups), ("audio", "image"))
    assert found.partner == [0, 1, 2]
    assert model.config.pairing is None


def test_a_trained_checkpoint_has_its_slots_in_order_and_records_how_stable_that_is(data, tmp_path):
    result = train(recipe_for(data, epochs=2), tmp_path / "run")
    for which in ("best", "last"):
        config = json.loads((tmp_path / "run" / which / "config.json").read_text())
        assert config["pairing"] == [0, 1, 2, 3]
        assert 0 < config["pairing_stability"] <= 1
        assert which == "last" or config["pairing_stability"] == result["stability"]
    model = SetEncoder.from_pretrained(tmp_path / "run" / "best")
    images = model.encode_images(list(np.load(data / "train_ims.npy")))
    captions = model.encode_texts((data / "train_caps.txt").read_text().splitlines())
    # The reference tries all 24 orders. Where two of them are as good to rounding, either may have been counted.
    cosines = images[torch.arange(48).repeat_interleave(2)] @ captions.transpose(1, 2)
    orders = torch.tensor(list(itertools.permutations(range(4))))
    scores = torch.stack([cosines[:, range(4), order].sum(1) for order in orders], 1)
    best, second = scores.topk(2).values.unbind(1)
    ties = int((best - second < 1e-4).sum())
    assert ties < 10
    matched = orders[scores.argmax(1)]
    met = torch.stack([(matched == order).sum() for order in orders])  # orders[0] is 0, 1, 2, 3
    assert met[0] >= met.max() - 8 * ties
    share = (matched == orders[0]).all(1).double().mean().item()
    assert result["stability"] == pytest.approx(share, abs=ties / 96 + 1e-9)
