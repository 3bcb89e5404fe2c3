import math

import pytest
import torch
from tiny_models import images_for, texts, tiny_model

from maxmatch.evaluation.slots import attention, attention_summary


def test_even_and_pointed_attention_have_the_entropies_of_the_formula():
    even, pointed = [0.25] * 4, [0.0, 1.0, 0.0, 0.0]
    ours = attention_summary([torch.tensor([even, pointed, even])])
    assert ours.entropy == pytest.approx([math.log(4), 0, math.log(4)])
    assert ours.spread == pytest.approx([1, 0.25, 1])
    expected = [[1, 0.25, 1], [0.25, 1, 0.25], [1, 0.25, 1]]
    torch.testing.assert_close(ours.overlap, torch.tensor(expected).double())
    assert ours.mean_overlap == pytest.approx((0.25 + 1 + 0.25) / 3)


def test_slots_that_look_at_different_places_do_not_overlap():
    assert attention_summary([torch.eye(3)]).mean_overlap == 0


def test_averages_over_maps_of_different_size_agree_with_loops():
    generator = torch.Generator().manual_seed(0)
    maps = [torch.rand(3, 2, 5, generator=generator), torch.rand(3, 7, generator=generator)]
    ours = attention_summary(maps)
    tables = [[[w / sum(row) for w in row] for row in one.double().flatten(1).tolist()] for one in maps]
    for i in range(3):
        entropies = [-sum(w * math.log(w) for w in table[i]) for table in tables]
        assert ours.entropy[i] == pytest.approx(sum(entropies) / 2)
        spreads = [math.exp(h) / len(table[i]) for h, table in zip(entropies, tables, strict=True)]
        assert ours.spread[i] == pytest.approx(sum(spreads) / 2)
        for j in range(3):
            overlaps = [sum(min(p, q) for p, q in zip(table[i], table[j], strict=True)) for table in tables]
            assert float(ours.overlap[i, j]) == pytest.approx(sum(overlaps) / 2)


def test_one_slot_overlaps_with_no_other():
    assert attention_summary([torch.tensor([[0.5, 0.5]])]).mean_overlap is None


def test_a_models_attention_is_what_it_explains():
    model = tiny_model("region_bigru")
    pictures, words = images_for(model, 3), texts(3)
    found = attention(model, pictures, words)
    for explained, picture, text in zip(found.pairs, pictures, words, strict=True):
        again = model.explain(picture, text)
        torch.testing.assert_close(explained.image_attention, again.image_attention)
        assert explained.words == again.words
    again = attention_summary([pair.image_attention for pair in found.pairs])
    assert found.image.entropy == again.entropy
    assert torch.equal(found.image.overlap, again.overlap)
    assert len(found.text.entropy) == model.set_sizes["text"]


def test_a_text_for_each_image_is_needed():
    with pytest.raises(ValueError, match="got 1 and 2"):
        attention(tiny_model("region_bigru"), [None], ["a", "b"])
    with pytest.raises(ValueError, match="at least one; got 0 and 0"):
        attention(tiny_model("region_bigru"), [], [])
