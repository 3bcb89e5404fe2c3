"""Sets on the one vector of a trained model: before the first step they rank exactly as it does, and every slot
learns.
"""

import numpy as np
import pytest
import reference_layers as reference
import torch
from PIL import Image
from test_layers import LENGTHS, assert_sets, features, moved, numbers
from tiny_hub import hub_folder
from tiny_models import SIZES, D, images_for, texts, tokenizer_for

from maxmatch import SetEncoder
from maxmatch.core.types import Features
from maxmatch.losses import contrastive
from maxmatch.matching import SIMILARITIES
from maxmatch.model.adaptation import grow_sets
from maxmatch.model.build import build_model
from maxmatch.model.config import Residual, with_sets
from maxmatch.model.layers import ResidualSetHead
from maxmatch.model.presets import PRESETS

HEAD = Residual(heads=2, head_width=8)
COMPARED = [name for name, one in SIMILARITIES.items() if one.set_size is None]
CAPTIONS = [
    "a dog",
    "a cat runs",
    "two dogs",
    "red bus",
    "a bird",
    "the dog",
    "it's a cat",
    "on the bus",
]
_PRESETS = {"global": "resnet152_bigru", "gpo": "region_bigru", "set": "region_bert", "pie": "region_bigru"}


def pictures(count=10):
    shapes = np.random.default_rng(0).integers(30, 90, (count, 2))
    return [
        Image.fromarray(np.random.default_rng(n).integers(0, 256, (h, w, 3), dtype=np.uint8))
        for n, (h, w) in enumerate(shapes)
    ]


def tiny(start, folder):
    """A model of one vector per item, and pictures and captions for it."""
    if start not in _PRESETS:
        return SetEncoder.from_pretrained(hub_folder(folder / start, start)), pictures(), CAPTIONS
    preset = _PRESETS[start]
    sizes = {"heads": 2, "head_width": 8} if start == "set" else {}
    config = PRESETS[preset](width=D, head=start, set_size=1, **SIZES[preset], **sizes)
    model = build_model(config, {"text": tokenizer_for(config)}, seed=0).eval()
    return model, images_for(model, 10), texts(8)


@pytest.mark.parametrize("start", ["clip", "siglip", "siglip2", "chinese_clip", *_PRESETS])
def test_before_the_first_step_every_similarity_ranks_as_the_cosine_of_the_model(start, tmp_path):
    model, images, captions = tiny(start, tmp_path)
    one = model.encode_images(images)[:, 0].double() @ model.encode_texts(captions)[:, 0].double().T
    larger = one.flatten()[:, None] - one.flatten() > 1e-6
    assert larger.sum() > 0.4 * larger.numel()
    for size in (1, 2, 4, 8):
        grown = grow_sets(model, HEAD, size, seed=3)
        sets = grown.encode_images(images), grown.encode_texts(captions)
        assert sets[0].shape[1] == sets[1].shape[1] == size
        for name in COMPARED:
            scores = SIMILARITIES[name](*sets).flatten()
            assert not (larger & (scores[:, None] <= scores)).any(), (name, size)


def test_the_head_agrees_with_loops_over_all_numbers():
    torch.manual_seed(0)
    head = moved(ResidualSetHead(5, 6, 3, heads=2, head_width=3, depth=4), torch.float64)
    inputs = features(placed=False)

    def expected(local, pooled, length):
        weights = {**numbers(head), "pooled_norm.weight": [0.0] * 6, "pooled_norm.bias": [0.0] * 6}
        _, residual, attention = reference.set_head(local, None, pooled, weights, heads=2, depth=4)
        one, gamma = reference.unit(pooled), head.gamma.tolist()
        added = [[w * v for w, v in zip(*pair, strict=True)] for pair in zip(gamma, residual, strict=True)]
        return [reference.unit(reference.add(one, slot)) for slot in added], added, attention

    sets = head(inputs)
    assert head.gamma.abs().min() > 0
    torch.testing.assert_close(sets.pooled, inputs.pooled / inputs.pooled.norm(dim=1, keepdim=True))
    assert_sets(sets._replace(pooled=inputs.pooled), inputs, expected)
    assert len(LENGTHS) == len(sets.vectors)


def test_reordered_slots_are_the_same_vectors_in_another_order():
    torch.manual_seed(0)
    head = moved(ResidualSetHead(5, 6, 3, heads=2, head_width=3), torch.float64)
    inputs, order = features(), [2, 0, 1]
    before = head(inputs)
    head.reorder(order)
    torch.testing.assert_close(head(inputs).vectors, before.vectors[:, order])


# mil, maxsim and top_k give the gradient of equal slots to one of them.
@pytest.mark.parametrize("similarity", ["maxmatch", "sinkhorn", "paired", "chamfer", "smooth_chamfer", "mean"])
def test_the_first_step_moves_every_slot_apart_and_from_the_second_on_all_weights_learn(similarity):
    """γ has a gradient at once, another one for each slot, although all slots are equal. What makes r_k has none then,
    and has one after the first step.
    """
    torch.manual_seed(0)
    heads = [ResidualSetHead(5, 6, 4, heads=2, head_width=3, dropout=0.0) for _ in range(2)]
    mask = torch.ones(8, 7, dtype=torch.bool)
    sides = [Features(torch.randn(8, 7, 5), mask, torch.randn(8, 6)) for _ in heads]
    weights = [one for head in heads for one in head.parameters()]
    adam = torch.optim.AdamW(weights, lr=1e-2)

    def gradients():
        adam.zero_grad(set_to_none=True)
        sets = [head(side).vectors for head, side in zip(heads, sides, strict=True)]
        contrastive(SIMILARITIES[similarity](*sets), temperature=0.05).backward()
        return sets

    for equal in gradients():
        torch.testing.assert_close(equal, equal[:, :1].expand_as(equal))
    for head in heads:
        assert head.slots.grad is None or not head.slots.grad.any()
        assert (head.gamma.grad.norm(dim=1) > 0).all()
        distances = torch.cdist(head.gamma.grad, head.gamma.grad) + torch.eye(4)
        assert (distances > 1e-3 * head.gamma.grad.norm(dim=1).max()).all()
    adam.step()
    for moved_sets in gradients():
        cosines = (moved_sets @ moved_sets.mT).mean(0)
        assert (cosines + torch.eye(4) * -1 < 1 - 1e-7).all()
    for head in heads:
        assert (head.slots.grad.norm(dim=1) > 0).all()
        assert all(one.grad is not None and one.grad.any() for one in head.block.parameters())


def test_sets_are_saved_loaded_explained_and_carry_the_weights_of_the_model(tmp_path):
    model, images, captions = tiny("clip", tmp_path)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    grown = grow_sets(model, HEAD, 4, seed=0)
    with torch.no_grad():
        for head in (grown.tower(name).head for name in grown.towers):
            head.gamma.normal_()
    again = SetEncoder.from_pretrained(grown.save_pretrained(tmp_path / "sets"))
    torch.testing.assert_close(again.encode_images(images), grown.encode_images(images))
    torch.testing.assert_close(again.encode_texts(captions), grown.encode_texts(captions))
    assert all(torch.equal(again.state_dict()[name], value) for name, value in before.items())
    assert (again.similarity_name, again.config.logit_scale, again.config.pairing) == ("maxmatch", None, None)
    explained = again.explain(images[0], "a dog")
    assert explained.image_attention.shape == (4, 4, 4)
    assert len(explained.words) == explained.text_attention.shape[1]


def test_the_seed_decides_what_is_new_and_nothing_else_changes(tmp_path):
    model, _, _ = tiny("clip", tmp_path)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    slots = [grow_sets(model, HEAD, 4, seed).tower("image").head.slots for seed in (0, 0, 1)]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(slots[0], slots[1])
    assert not torch.equal(slots[0], slots[2])


@pytest.mark.parametrize("options", [{"set_size": 4}, {"head": "gaussian", "set_size": 2}])
def test_a_model_that_has_sets_gets_no_others(options):
    with pytest.raises(ValueError, match="one vector per item"):
        with_sets(PRESETS["region_bigru"](**options), HEAD, 4)
