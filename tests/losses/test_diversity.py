"""GD, ISD and the two Div: what keeps the vectors of a set apart."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import reference_losses as reference
import torch
from reference_losses import cost_of, gradients_are_finite, normal, units
from torch import Tensor

from maxmatch.losses import global_discriminative, intra_set_divergence, pvse_diversity, uniformity

SHAPES = [(3, 4, 6), (1, 4, 8), (1, 2, 2), (5, 2, 3), (2, 7, 5)]
WITHIN_A_SET = [intra_set_divergence, uniformity, pvse_diversity]
CENTRED = [partial(global_discriminative, centred=True), partial(intra_set_divergence, centred=True)]
within_a_set = pytest.mark.parametrize("loss", WITHIN_A_SET)


def collapsed(items: int, size: int, width: int, seed: int = 0) -> Tensor:
    """Sets whose vectors are one and the same, up to their length."""
    return normal(items, 1, width, seed=seed) * torch.linspace(0.5, 2, size, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("shape", [*SHAPES, (4, 1, 3), (1, 1, 2)], ids=str)
@pytest.mark.parametrize(("margin", "scale"), [(0.6, 0.5), (0.8, 0.5), (0.0, 3.0)])
def test_global_discriminative_agrees_with_loop(shape: tuple[int, int, int], margin: float, scale: float) -> None:
    sets, pooled = normal(*shape, seed=1), 30 * normal(shape[0], shape[2], seed=2)
    expected = reference.global_discriminative(sets, pooled, margin, scale)
    assert global_discriminative(sets, pooled, margin, scale).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("margin", "scale"), [(0.6, 0.5), (0.8, 0.5), (0.0, 3.0)])
def test_intra_set_divergence_agrees_with_loop(shape: tuple[int, int, int], margin: float, scale: float) -> None:
    sets = normal(*shape, seed=1)
    expected = reference.intra_set_divergence(sets, margin, scale)
    assert intra_set_divergence(sets, margin, scale).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("shape", [(3, 4, 6), (5, 2, 3), (2, 7, 5), (4, 1, 3)], ids=str)
@pytest.mark.parametrize(("margin", "scale"), [(0.6, 0.5), (0.0, 3.0)])
def test_centred_gd_and_isd_agree_with_the_loop_on_slots_without_their_mean(
    shape: tuple[int, int, int], margin: float, scale: float
) -> None:
    sets, pooled = units(*shape, seed=1), 30 * normal(shape[0], shape[2], seed=2)
    slots, phi = reference.centred(sets), reference.centred(pooled[:, None])[:, 0]
    gd, isd = global_discriminative(sets, pooled, margin, scale, True), intra_set_divergence(sets, margin, scale, True)
    assert gd.item() == pytest.approx(reference.global_discriminative(slots, phi, margin, scale), rel=1e-10)
    assert isd.item() == pytest.approx(reference.intra_set_divergence(slots, margin, scale), rel=1e-10)


def test_an_offset_that_all_items_share_satisfies_isd_but_not_the_centred_one() -> None:
    """Slots that say the same of an item, far apart by where they lie: at s·(1 − δ) as if they were one vector."""
    said, offset = normal(6, 1, 8), 100 * torch.eye(4, 8, dtype=torch.float64)
    sets = said + offset
    assert intra_set_divergence(sets, 0.0, 1.0).item() == pytest.approx(1, abs=0.1)
    assert intra_set_divergence(sets, 0.0, 1.0, centred=True).item() == pytest.approx(math.e)
    pooled = said[:, 0] + 100 * torch.eye(8, dtype=torch.float64)[5]
    assert global_discriminative(sets, pooled, 0.0, 1.0).item() == pytest.approx(1, abs=0.1)
    assert global_discriminative(sets, pooled, 0.0, 1.0, centred=True).item() == pytest.approx(math.e)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_lone_item_is_its_own_mean_and_gets_no_gradient_from_centred_losses(dtype: torch.dtype) -> None:
    sets, pooled = normal(1, 3, 4).to(dtype).requires_grad_(), normal(1, 4).to(dtype).requires_grad_()
    value = global_discriminative(sets, pooled, centred=True) + intra_set_divergence(sets, centred=True)
    assert value.item() == pytest.approx(2 * math.exp(-0.3))
    for gradient in torch.autograd.grad(value, (sets, pooled)):
        assert not gradient.any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["uniformity", "pvse_diversity"])
def test_diversity_agrees_with_loop(shape: tuple[int, int, int], name: str) -> None:
    residual = 10 * normal(*shape, seed=1)
    loss = {"uniformity": uniformity, "pvse_diversity": pvse_diversity}[name]
    assert loss(residual).item() == pytest.approx(getattr(reference, name)(residual), rel=1e-10)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agree_with_the_papers_listings_for_unit_vectors(shape: tuple[int, int, int]) -> None:
    sets, pooled = units(*shape, seed=1), units(shape[0], shape[2], seed=2)
    gd = reference.listed_global_discriminative(sets, pooled, 0.6, 0.5)
    isd = reference.listed_intra_set_divergence(sets, 0.6, 0.5)
    assert global_discriminative(sets, pooled, 0.6, 0.5).item() == pytest.approx(gd.item(), rel=1e-12)
    assert intra_set_divergence(sets, 0.6, 0.5).item() == pytest.approx(isd.item(), rel=1e-12)


@pytest.mark.parametrize("shape", [(64, 4, 1024), (3, 4, 6)], ids=str)
def test_single_precision_is_enough(shape: tuple[int, int, int]) -> None:
    sets, pooled = normal(*shape, seed=1), normal(shape[0], shape[2], seed=2)
    single = global_discriminative(sets.float(), pooled.float())
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(global_discriminative(sets, pooled).item(), abs=1e-5)
    for loss in WITHIN_A_SET:
        assert loss(sets.float()).dtype == torch.float32
        assert loss(sets.float()).item() == pytest.approx(loss(sets).item(), abs=1e-5)


@pytest.mark.parametrize("margin", [-1.0, 0.8])
def test_there_is_no_hinge_so_that_a_margin_only_scales_gd_and_isd_and_their_gradients(margin: float) -> None:
    sets, pooled = normal(3, 4, 6, seed=1).requires_grad_(), normal(3, 6, seed=2).requires_grad_()
    factor = math.exp(-0.5 * (margin - 0.6))
    for loss, inputs in ((global_discriminative, (sets, pooled)), (intra_set_divergence, (sets,))):
        value, other = loss(*inputs, 0.6, 0.5), loss(*inputs, margin, 0.5)
        assert other.item() == pytest.approx(factor * value.item(), rel=1e-12)
        for mine, theirs in zip(*(torch.autograd.grad(one, inputs) for one in (value, other)), strict=True):
            torch.testing.assert_close(theirs, factor * mine)


def test_no_length_changes_gd_isd_or_div() -> None:
    sets, pooled = normal(3, 4, 6, seed=1), normal(3, 6, seed=2)
    lengths = torch.tensor([0.1, 1.0, 30.0, 7.0], dtype=torch.float64)[:, None]
    longer = global_discriminative(lengths * sets, 32 * pooled)
    assert longer.item() == pytest.approx(global_discriminative(sets, pooled).item(), rel=1e-12)
    for loss in (intra_set_divergence, uniformity, pvse_diversity):
        assert loss(lengths * sets).item() == pytest.approx(loss(sets).item(), rel=1e-12)


def test_gradients_are_right() -> None:
    sets, pooled = normal(2, 3, 4, seed=1).requires_grad_(), normal(2, 4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(global_discriminative, (sets, pooled))
    for loss in WITHIN_A_SET:
        assert torch.autograd.gradcheck(loss, (sets,))
    assert torch.autograd.gradcheck(CENTRED[0], (sets, pooled))
    assert torch.autograd.gradcheck(CENTRED[1], (sets,))


@within_a_set
@pytest.mark.parametrize("items", [1, 3])
def test_sets_of_one_vector_have_no_loss(loss: Callable[[Tensor], Tensor], items: int) -> None:
    sets = normal(items, 1, 4).requires_grad_()
    value = loss(sets)
    assert value.shape == ()
    assert value.item() == 0
    assert not torch.autograd.grad(value, sets)[0].any()


@within_a_set
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_collapsed_sets_give_a_finite_gradient(loss: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    assert gradients_are_finite(loss, collapsed(3, 4, 6).to(dtype))


@within_a_set
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orthogonal_sets_give_a_finite_gradient(loss: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    assert gradients_are_finite(loss, torch.eye(4, 6, dtype=dtype)[None])


def test_zero_vectors_give_a_finite_gradient() -> None:
    sets, pooled = normal(2, 3, 4), normal(2, 4)
    sets[0, 1], pooled[1] = 0, 0
    assert gradients_are_finite(global_discriminative, sets, pooled)
    for loss in WITHIN_A_SET:
        assert gradients_are_finite(loss, sets)


@pytest.mark.parametrize("loss", [*WITHIN_A_SET, global_discriminative, *CENTRED])
def test_no_loop_over_items_and_nothing_larger_than_sets_or_their_cosines(loss: Callable[..., Tensor]) -> None:
    costs = []
    for items in (3, 30):
        for size, width in ((4, 64), (8, 3)):
            inputs = [normal(items, size, width)]
            if loss in (global_discriminative, CENTRED[0]):
                inputs.append(normal(items, width))
            cost = cost_of(loss, *inputs)
            assert cost.largest <= items * max(size * size, size * width)
            costs.append(cost.operations)
    assert len(set(costs)) == 1
