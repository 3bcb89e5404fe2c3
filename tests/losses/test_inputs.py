"""Every loss refuses shapes that do not go together, and computes in float32 inside."""

import pytest
import torch
from reference_losses import batch, truth, units
from torch import Tensor

from maxmatch import losses
from maxmatch.core.types import Sets

SETS, POOLED = units(6, 4, 8, seed=1), units(6, 8, seed=2)
SCORES, POSITIVE = batch((1,) * 6)
LOSSES = {
    "triplet": (losses.triplet, (SCORES, POSITIVE)),
    "contrastive": (losses.contrastive, (SCORES, POSITIVE)),
    "global_discriminative": (losses.global_discriminative, (SETS, POOLED)),
    "intra_set_divergence": (losses.intra_set_divergence, (SETS,)),
    "uniformity": (losses.uniformity, (SETS,)),
    "pvse_diversity": (losses.pvse_diversity, (SETS,)),
    "mmd": (losses.mmd, (SETS, units(5, 3, 8, seed=3))),
}
each_loss = pytest.mark.parametrize("name", LOSSES)
with_scores = pytest.mark.parametrize("loss", [losses.triplet, losses.contrastive])


def some_sets(vectors: Tensor) -> Sets:
    return Sets(vectors, vectors, vectors.mean(1))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("loss", "shapes", "named"),
    [
        (losses.global_discriminative, [(6, 1, 8), (1, 8)], "pooled"),
        (losses.global_discriminative, [(6, 4, 8), (6, 7)], "pooled"),
        (losses.global_discriminative, [(6, 4, 8), (6, 1, 8)], "pooled"),
        (losses.global_discriminative, [(6, 8), (6, 8)], "sets"),
        (losses.intra_set_divergence, [(6, 8)], "sets"),
        (losses.intra_set_divergence, [(0, 4, 8)], "sets"),
        (losses.uniformity, [(8,)], "residual"),
        (losses.pvse_diversity, [(2, 6, 4, 8)], "residual"),
        (losses.mmd, [(6, 8), (6, 4, 8)], "a"),
        (losses.mmd, [(6, 4, 8), (8,)], "b"),
        (losses.mmd, [(6, 4, 8), (6, 4, 7)], "b"),
        (losses.triplet, [(6,), (6,)], "scores"),
        (losses.contrastive, [(2, 6, 6), (2, 6, 6)], "scores"),
    ],
)
def test_shapes_that_do_not_go_together_are_refused(loss, shapes, named) -> None:
    with pytest.raises(ValueError, match=rf"\b{named}\b"):
        loss(*(torch.ones(shape) for shape in shapes))


@each_loss
@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_not_a_tensor_of_floating_point_is_refused(name: str) -> None:
    loss, (first, *others) = LOSSES[name]
    for wrong in (first.tolist(), first.long()):
        with pytest.raises(ValueError, match="expected"):
            loss(wrong, *others)


@each_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    loss, inputs = LOSSES[name]
    halves = [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in inputs]
    value = loss(*halves)
    assert value.dtype == torch.float32
    assert value.item() == loss(*(x.float() if x.is_floating_point() else x for x in halves)).item()
    assert all(x.grad_fn is None and x.dtype == dtype for x in halves if x.requires_grad)
    value.backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in halves if x.requires_grad)


@each_loss
def test_autocast_does_not_reach_into_a_loss(name: str) -> None:
    loss, inputs = LOSSES[name]
    single = [x.float() if x.is_floating_point() else x for x in inputs]
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(*single)
    assert value.item() == loss(*single).item()


def test_mmd_of_different_clouds_in_bfloat16_is_not_zero() -> None:
    a, b = (units(32, 4, 64, seed=seed).bfloat16() for seed in (1, 2))
    assert losses.mmd(a, b).item() == pytest.approx(losses.mmd(a.double(), b.double()).item(), rel=1e-3)


@with_scores
def test_without_positive_the_true_pairs_are_the_diagonal(loss) -> None:
    assert loss(SCORES).item() == loss(SCORES, torch.eye(6, dtype=torch.bool)).item()
    with pytest.raises(ValueError, match="positive"):
        loss(SCORES[:, :4])


def test_the_objective_takes_the_diagonal_where_positive_is_none() -> None:
    sides = some_sets(SETS), some_sets(units(6, 4, 8, seed=4))
    expected = losses.objective(SCORES, torch.eye(6, dtype=torch.bool), *sides, con_weight=0.1).total
    assert losses.objective(SCORES, None, *sides, con_weight=0.1).total.item() == expected.item()


@pytest.mark.usefixtures("without_shape_checks")
def test_the_objective_refuses_sets_that_do_not_go_with_the_scores() -> None:
    images, texts = some_sets(SETS), some_sets(units(5, 4, 8, seed=4))
    for sides, named in (((images, texts), "texts"), ((texts, images), "images")):
        with pytest.raises(ValueError, match=named):
            losses.objective(SCORES, truth((1,) * 6), *sides)
