"""Heads of one vector: VSE∞'s pooling by rank, compared with plain loops over numbers, and VSE++'s global feature."""

from functools import partial

import pytest
import reference_layers as reference
import torch
from torch import nn
from torch.testing import assert_close

from maxmatch.core.types import Features
from maxmatch.model.layers import GlobalHead, GPOHead, rank_codes

LENGTHS = [7, 1, 4, 2]
double = partial(torch.tensor, dtype=torch.float64)
exact = partial(assert_close, rtol=1e-10, atol=1e-12)
four_places = partial(pytest.approx, abs=5e-5)


def gpo(width=6):
    """With scores as far apart as after some training."""
    torch.manual_seed(0)
    head = GPOHead(width, width).double()
    head.score.weight.data.mul_(4)
    return head


def numbers(module):
    return {name: value.tolist() for name, value in module.state_dict().items()}


def features(width=6, mask=None):
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None] if mask is None else mask
    local = torch.randn(*mask.shape, width, generator=generator, dtype=torch.float64)
    return Features(local, mask, torch.randn(len(mask), width, generator=generator, dtype=torch.float64))


def scored(head, scores):
    """The head with given scores of ranks in place of its GRU's."""
    head.states = lambda codes, ranked: double(scores)[: codes.shape[1], None, None].expand(len(codes), -1, 2, 32)
    nn.init.constant_(head.score.weight, 1 / 32)
    return head


def test_weights_and_vectors_agree_with_loops_over_numbers():
    head, inputs = gpo(), features()
    sets = head(inputs)
    for item, length in enumerate(LENGTHS):
        weights = reference.gpo_weights(length, numbers(head))
        pooled = reference.gpo_pool(inputs.local[item, :length].tolist(), weights)
        exact(head.weights(inputs.mask)[item, :length], double(weights))
        exact(sets.vectors[item, 0], double(reference.unit(pooled)))
        exact(sets.pooled[item], double(pooled))
    assert sets.vectors.shape == sets.residual.shape == (4, 1, 6)
    assert sets.attention is None


def test_the_numbers_that_were_computed_by_hand_of_the_definition():
    head = scored(gpo(1), [0.1, 0.0, 0.0])
    column = double([[3.0], [1.0], [2.0]])[None]
    whole, short = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[True, True, False]])
    assert head.weights(whole)[0].tolist() == four_places([0.5761, 0.2119, 0.2119])
    assert head(Features(column, whole, column[:, 0])).pooled.item() == four_places(2.3642)
    assert head(Features(column, short, column[:, 0])).pooled.item() == four_places(2.4621)
    assert rank_codes(2)[1, :4].tolist() == four_places([0.8415, 0.5403, 0.5332, 0.8460])
    assert rank_codes(3)[0].tolist() == [0.0, 1.0] * 16


def test_it_has_12704_parameters_whatever_the_width():
    assert {sum(p.numel() for p in GPOHead(width, width).parameters()) for width in (6, 1024)} == {12_704}


def test_the_order_of_features_and_their_places_among_padding_do_not_matter():
    head, inputs = gpo(), features()
    expected = head(inputs).vectors
    for seed in range(5):
        order = torch.randperm(max(LENGTHS), generator=torch.Generator().manual_seed(seed))
        moved = Features(inputs.local[:, order], inputs.mask[:, order], inputs.pooled)
        exact(head(moved).vectors, expected)


def test_columns_are_sorted_each_on_its_own():
    head, inputs = gpo(), features()
    order = torch.tensor([3, 0, 2, 1, 6, 5, 4])
    mixed = inputs.local.clone()
    mixed[0, :, 2] = mixed[0, order, 2]  # one column of the item with seven features
    exact(head(Features(mixed, inputs.mask, inputs.pooled)).vectors, head(inputs).vectors)


def test_padding_may_be_of_any_length_and_hold_anything():
    head, inputs = gpo(), features()
    more = 5
    for filling in (0.0, 1e30, torch.inf, torch.nan):
        local = torch.cat([inputs.local, torch.zeros(4, more, 6, dtype=torch.float64)], 1)
        mask = torch.cat([inputs.mask, torch.zeros(4, more, dtype=torch.bool)], 1)
        local = local.masked_fill(~mask[..., None], filling).requires_grad_()
        vectors = head(Features(local, mask, inputs.pooled)).vectors
        exact(vectors, head(inputs).vectors)
        (gradient,) = torch.autograd.grad(vectors[..., 0].sum(), local)
        assert torch.isfinite(gradient).all()
        assert not gradient[~mask].any()


def test_weights_are_those_of_the_mean_or_the_maximum_at_the_ends():
    inputs = features()
    flat, steep = scored(gpo(), [0.0] * 7), scored(gpo(), [100.0, *[0.0] * 6])
    for item, length in enumerate(LENGTHS):
        real = inputs.local[item, :length]
        exact(flat(inputs).pooled[item], real.mean(0))
        exact(steep(inputs).pooled[item], real.amax(0))


def test_gradients_are_those_of_finite_differences():
    head, inputs = gpo(), features()

    def vectors(local):
        return head(Features(local, inputs.mask, inputs.pooled)).vectors

    assert torch.autograd.gradcheck(vectors, inputs.local.requires_grad_())
    head.score.weight.grad = None
    (vectors(inputs.local) * torch.randn(6, dtype=torch.float64)).sum().backward()
    assert [name for name, p in head.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_the_global_head_is_the_global_feature_of_unit_length():
    inputs = features()
    sets = GlobalHead(6, 6)(inputs)
    assert sets.attention is None
    assert sets.pooled is inputs.pooled
    for vector, pooled in zip(sets.vectors[:, 0], inputs.pooled.tolist(), strict=True):
        exact(vector, double(reference.unit(pooled)))
    assert list(GlobalHead(6, 6).parameters()) == []


@pytest.mark.parametrize("make", [GPOHead, GlobalHead])
def test_half_precision_gives_unit_vectors_in_float32(make):
    inputs = features()
    half = Features(inputs.local.half(), inputs.mask, inputs.pooled.half())
    head = make(6, 6).half()
    vectors = head(half).vectors
    assert_close(vectors.norm(dim=-1), torch.ones(4, 1))
    head.reorder([0])
    assert torch.equal(head(half).vectors, vectors)


@pytest.mark.parametrize("make", [GPOHead, GlobalHead])
def test_more_vectors_than_one_are_refused(make):
    with pytest.raises(ValueError, match=r"set_size.*one vector.*got 4"):
        make(6, 6, 4)


def test_gpo_refuses_features_of_another_width():
    with pytest.raises(ValueError, match=r"context_width.*1024, got 300.*local='states'"):
        GPOHead(300, 1024)
