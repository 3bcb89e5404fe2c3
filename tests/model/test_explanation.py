"""What a vector without attention was taken from: a part counts as much as the cosine falls without it."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_hub import FAMILIES, hub_folder
from tiny_models import images_for, tiny_config, tokenizer_for

from maxmatch import SetEncoder
from maxmatch.model.build import build_model
from maxmatch.model.config import ModelConfig
from maxmatch.model.encoder import NoAttentionError
from maxmatch.model.explanation import shares

SHAPES = {"square": (40, 40), "landscape": (90, 40), "tower": (7, 300), "panorama": (400, 9), "one pixel": (1, 1)}
TEXT = "a dog isn't a cat"


def noise(width, height):
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return hub_folder(tmp_path_factory.mktemp("hub") / request.param, request.param)


def to_sum_one(drops):
    drops = np.maximum(drops, 0)
    return drops / drops.sum() if drops.max() > 1e-6 else np.full_like(drops, 1 / drops.size)


def unit(vectors):
    return torch.nn.functional.normalize(vectors, dim=-1)


def test_a_word_counts_as_much_as_the_cosine_falls_without_it(folder):
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ours = SetEncoder.from_pretrained(folder)
    image = noise(50, 40)
    found = ours.explain(image, TEXT)
    target = ours.encode_images([image])[0, 0]
    ids = tokenizer(TEXT)["input_ids"]
    special = tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)

    def cosine(ids):
        if model.config.model_type.startswith("siglip"):
            ids = ids + [tokenizer.pad_token_id] * (16 - len(ids))
        ids = torch.tensor([ids])
        with torch.no_grad():
            made = model.get_text_features(input_ids=ids, attention_mask=torch.ones_like(ids)).pooler_output
        return float(unit(made)[0] @ target)

    places = [place for place, mark in enumerate(special) if not mark]
    drops = np.array([cosine(ids) - cosine(ids[:place] + ids[place + 1 :]) for place in places])
    expected = np.zeros(len(ids))
    expected[places] = to_sum_one(drops)
    assert found.text_attention.shape == (1, len(found.words)) == (1, len(ids))
    np.testing.assert_allclose(found.text_attention[0], expected, atol=2e-3)
    written = [word for word, mark in zip(found.words, special, strict=True) if not mark]
    assert "".join(written).replace("▁", "").replace("##", "") == TEXT.replace(" ", "")
    assert found.score == pytest.approx(cosine(ids), abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_part_of_a_picture_counts_as_much_as_the_cosine_falls_when_it_has_the_mean_colour(folder, shape):
    ours = SetEncoder.from_pretrained(folder)
    image = noise(*SHAPES[shape])
    found = ours.explain(image, TEXT).image_attention[0].numpy()
    target = ours.encode_texts([TEXT])[0, 0]
    tower = ours.tower("image")
    values, rows = tower.reader.collate([tower.reader.read(image)])

    def cosine(values):
        with torch.no_grad():
            return float(unit(tower.encoder(values, rows).pooled)[0] @ target)

    def windows():
        """Of the model's input: each picture that lacks one."""
        if rows is None:
            for row in range(4):
                for column in range(4):
                    hidden = values.clone()
                    part = hidden[0, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
                    part[:] = values[0].mean((1, 2), keepdim=True)
                    yield hidden
        else:  # of at most 16 patches, each is a window
            for place in range(found.size):
                hidden = values.clone()
                hidden[0, place] = values[0, rows[0] > 0].mean(0)
                yield hidden

    drops = np.array([cosine(values) - cosine(hidden) for hidden in windows()])
    assert drops.size == found.size
    if np.maximum(drops, 0).sum() > 1e-3:  # so that rounding does not matter
        np.testing.assert_allclose(found.ravel(), to_sum_one(drops), atol=2e-3)
    assert found.sum() == pytest.approx(1, abs=1e-5)
    if rows is not None:
        width, height = image.size
        assert (found.shape[1] > found.shape[0]) == (width > height)


def test_without_another_item_the_parts_are_those_that_the_vector_itself_was_taken_from(folder):
    model = SetEncoder.from_pretrained(folder)
    image = Image.new("RGB", (64, 64), "white")
    image.paste(noise(16, 16), (48, 16))  # the last column, the second row
    found = model.look("image", image)
    assert found.attention.sum() == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(found.vectors, model.encode_images([image])[0], rtol=0, atol=1e-5)
    plain = model.look("image", Image.new("RGB", (64, 64), "white")).attention  # no part of it matters
    torch.testing.assert_close(plain, torch.full_like(plain, 1 / plain.numel()))
    assert model.look("text", "").attention.sum() == pytest.approx(1)


def test_many_patches_share_windows(tmp_path):
    from transformers import Siglip2ImageProcessorPil

    folder = hub_folder(tmp_path / "hub", "siglip2")
    Siglip2ImageProcessorPil(patch_size=8, max_num_patches=100).save_pretrained(folder)
    model = SetEncoder.from_pretrained(folder)
    for size in ((80, 80), (400, 9), (90, 40)):
        found = model.look("image", noise(*size)).attention[0]
        assert 16 < found.numel() <= 100
        assert len(set(found.flatten().tolist())) <= 16  # patches of one window count alike


def test_shares_are_drops_to_sum_one_by_slot_and_all_alike_where_nothing_drops():
    generator = torch.Generator().manual_seed(0)
    whole = unit(torch.randn(3, 8, generator=generator))
    targets = unit(whole + torch.randn(3, 8, generator=generator))
    without = unit(torch.randn(5, 3, 8, generator=generator))
    without[:, 2] = whole[2]  # no part of the item matters to the last slot
    part = torch.tensor([[0, 0, 1], [2, -1, 3], [4, 4, 4]])
    found = shares(whole, without, targets, part)
    expected = torch.zeros(3, 3, 3)
    for slot in range(3):
        for row in range(3):
            for column in range(3):
                number = int(part[row, column])
                if number >= 0:
                    drop = float(whole[slot] @ targets[slot] - without[number, slot] @ targets[slot])
                    expected[slot, row, column] = max(drop, 0) / int((part == number).sum())
    assert (expected[:2].sum((1, 2)) > 0).all()
    assert (expected[:2] == 0).sum() > 2  # the cosine rises without some parts
    expected[2] = (part >= 0).float()
    expected /= expected.sum((1, 2), keepdim=True)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("head", ["gpo", "global"])
@pytest.mark.parametrize("name", ["region_bigru", "resnet152_bigru"])
def test_any_head_of_pictures_regions_and_texts_can_be_explained(name, head):
    described = tiny_config(name).model_dump()
    for tower in described["towers"].values():
        tower |= {"head": {"name": head}, "set_size": 1}
    if head == "gpo":
        described["towers"]["text"]["encoder"]["local"] = "states"
    config = ModelConfig.model_validate(described)
    model = build_model(config, {"text": tokenizer_for(config)}, seed=0).eval()
    image = images_for(model, 1)[0]
    why = model.explain(image, "a dog runs")
    sizes = (4, 4) if name == "resnet152_bigru" else (len(image),)
    assert why.image_attention.shape == (1, *sizes)
    assert why.text_attention.shape == (1, len(why.words))
    for attention in (why.image_attention, why.text_attention):
        assert attention.sum() == pytest.approx(1, abs=1e-5)
    if name == "region_bigru":  # one region, one word: each is all there is
        alone = model.explain(image[:1], "dog")
        assert alone.image_attention.tolist() == [[1.0]]


def test_a_sound_cannot_be_taken_apart(tmp_path):
    model = SetEncoder.from_pretrained(hub_folder(tmp_path / "clap", "clap"))
    with pytest.raises(NoAttentionError, match="'audio'"):
        model.look("audio", np.sin(np.arange(4000)))
