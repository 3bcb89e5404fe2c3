"""Circular variance, and which slots of true pairs meet."""

import math
from itertools import permutations

import pytest
import torch
from made_splits import unit

from maxmatch.evaluation.metrics import log_circular_variance, slot_pairing


def test_variance_is_that_of_the_formula():
    sets = unit(9, 4, 5)
    slow = sum(1 - float(sum(set_.double()[k] / 4 for k in range(4)).norm()) ** 2 for set_ in sets) / 9
    assert log_circular_variance(sets) == pytest.approx(math.log(slow))
    x = sets[:, :1]
    assert log_circular_variance(torch.cat([x, -x], 1)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("width", [64, 1024])
def test_equal_vectors_have_no_variance_whatever_float32_makes_of_their_length(width):
    vectors = unit(50, 1, width)
    assert log_circular_variance(vectors.expand(-1, 4, -1)) == pytest.approx(-27.6, abs=0.1)
    assert log_circular_variance(vectors) == pytest.approx(-27.6, abs=0.1)


def test_a_fixed_permutation_is_found_with_full_stability():
    images = unit(30, 4, 64)
    order = [2, 0, 3, 1]
    found = slot_pairing(images, images[:, order], torch.arange(30), "maxmatch")
    assert [order[slot] for slot in found.partner] == [0, 1, 2, 3]
    assert found.stability == found.used == 1.0


def test_stability_is_the_share_of_pairs_matched_in_the_usual_way():
    images, partner = unit(40, 3, 8), torch.arange(40).repeat_interleave(2)
    texts = unit(80, 3, 8, seed=1) + images[partner]
    found = slot_pairing(images, texts, partner, "maxmatch")
    best = []
    for text, image in zip(texts, partner.tolist(), strict=True):
        cosines = images[image] @ text.T
        best.append(max(permutations(range(3)), key=lambda p, c=cosines: sum(float(c[i, j]) for i, j in enumerate(p))))
    assert found.stability == pytest.approx(sum(list(p) == found.partner for p in best) / 80)
    assert found.counts.tolist() == [[sum(p[i] == j for p in best) for j in range(3)] for i in range(3)]


def test_sets_of_unequal_size_leave_slots_without_a_partner():
    images = unit(12, 3, 32)
    assert slot_pairing(images, images[:, [1, 2]], torch.arange(12), "maxmatch").partner == [-1, 0, 1]


def test_mil_uses_only_the_slots_that_hold_the_best_pair():
    images, texts = unit(10, 4, 6), unit(10, 4, 6, seed=1)
    texts[:, 2] = images[:, 1]
    assert slot_pairing(images, texts, torch.arange(10), "mil").used == pytest.approx(2 / 8)


@pytest.mark.parametrize(
    ("similarity", "k", "used"),
    [
        ("maxmatch", None, 1.0),
        ("top_k", None, 0.75),
        ("top_k", 1, 0.5),
        ("mean", None, 1.0),
        ("paired", None, 1.0),
        ("sinkhorn", None, 1.0),
    ],
)
def test_what_is_used_depends_on_the_similarity(similarity, k, used):
    """Image slot 0 is near all text slots, image slot 1 near none: matching still uses it."""
    images = torch.tensor([[[1.0, 0, 0], [0, 0, 1.0]]])
    texts = torch.nn.functional.normalize(torch.tensor([[[1.0, 0.1, 0], [1.0, -0.1, 0]]]), dim=-1)
    assert slot_pairing(images, texts, torch.tensor([0]), similarity, k).used == used


def test_maxsim_leaves_out_the_slots_of_texts_that_no_slot_of_an_image_is_nearest_to():
    images = torch.tensor([[[1.0, 0, 0], [0, 0, 1.0]]])
    texts = torch.nn.functional.normalize(torch.tensor([[[1.0, 0.1, 0], [1.0, -0.2, -0.1]]]), dim=-1)
    assert slot_pairing(images, texts, torch.tensor([0]), "maxsim").used == 0.75
    assert slot_pairing(images, texts, torch.tensor([0]), "chamfer").used == 1


def test_slots_that_are_paired_meet_in_their_order_and_stability_is_how_often_they_match_so():
    images = unit(40, 3, 8)
    texts = images.clone()
    texts[:30] = texts[:30, [1, 0, 2]]
    found = slot_pairing(images, texts, torch.arange(40), "paired")
    assert found.partner == [0, 1, 2]
    assert found.stability == pytest.approx(0.25)
