"""What padding and precision must not change, and what a similarity trains."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matching_cases import every_similarity, of_any_two_sizes, seeds, size_beside, two_batches
from reference import NAMES, random_mask, random_sets
from torch import Tensor
from torch.testing import assert_close

from maxmatch.matching import SIMILARITIES, similarity
from maxmatch.matching.assignment import maximal_assignment
from maxmatch.matching.similarity import Similarity


@of_any_two_sizes
@pytest.mark.parametrize("padding", [0.0, 1e30, torch.nan])
@settings(max_examples=6)
@given(batches=two_batches(), more=st.tuples(st.integers(0, 3), st.integers(0, 3)), seed=seeds)
def test_padding_never_changes_a_score(
    name: str, padding: float, batches: tuple[Tensor, Tensor], more: tuple[int, int], seed: int
) -> None:
    a, b = batches
    (padded_a, a_mask), (padded_b, b_mask) = (
        _padded(sets, extra, padding, seed) for sets, extra in zip(batches, more, strict=True)
    )
    assert_close(SIMILARITIES[name](padded_a, padded_b, a_mask, b_mask), SIMILARITIES[name](a, b))


def _padded(sets: Tensor, extra: int, value: float, seed: int) -> tuple[Tensor, Tensor]:
    """The sets with `extra` vectors more at random places, and the mask that hides them."""
    items, size, width = sets.shape
    padded = torch.cat([sets, sets.new_full((items, extra, width), value)], 1)
    order = torch.randperm(size + extra, generator=torch.Generator().manual_seed(seed))
    return padded[:, order], (order < size).expand(items, -1)


@of_any_two_sizes
@pytest.mark.parametrize("padding", [1e30, torch.nan])
def test_padding_neither_has_nor_changes_a_gradient(name: str, padding: float) -> None:
    a, a_mask = _padded(random_sets(25, 3, 2, 8), 2, padding, 1)
    b, b_mask = _padded(random_sets(26, 4, 3, 8), 1, padding, 2)
    a.requires_grad_()
    b.requires_grad_()
    weights = torch.arange(12.0).view(3, 4)
    scores = SIMILARITIES[name](a, b, a_mask, b_mask)
    without = SIMILARITIES[name](a[:, a_mask[0]], b[:, b_mask[0]])
    gradients = torch.autograd.grad((scores * weights).sum(), (a, b))
    assert not gradients[0][~a_mask].any()
    assert not gradients[1][~b_mask].any()
    assert_close(gradients, torch.autograd.grad((without * weights).sum(), (a, b)))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "sinkhorn"])  # its plan has no gradient
@pytest.mark.parametrize(("rows", "masked"), [(3, False), (2, False), (2, True)])
def test_gradient_is_that_of_the_score(name: str, rows: int, masked: bool) -> None:
    size = size_beside(name, rows, 3)
    a = random_sets(29, 1, rows, 2, dtype=torch.float64).requires_grad_()
    b = random_sets(30, 2, size, 2, dtype=torch.float64).requires_grad_()
    masks = (random_mask(31, 1, rows), random_mask(32, 2, size)) if masked else ()
    assert torch.autograd.gradcheck(lambda a, b: SIMILARITIES[name](a, b, *masks), (a, b), check_undefined_grad=False)


@given(seeds, st.integers(2, 8))
def test_mil_trains_one_vector_of_each_set_and_maxmatch_every_one(seed: int, size: int) -> None:
    a, b = (random_sets(seed + i, 1, size, 8).requires_grad_() for i in (0, 1))
    assert _trained(similarity.mil, a, b) == (1, 1)
    assert _trained(similarity.maxmatch, a, b) == (size, size)


def test_mil_trains_one_vector_even_of_a_collapsed_set() -> None:
    collapsed = random_sets(33, 1, 1, 8).repeat(1, 4, 1)
    a, b = collapsed.clone().requires_grad_(), collapsed.clone().requires_grad_()
    assert _trained(similarity.mil, a, b) == (1, 1)
    assert _trained(similarity.maxmatch, a, b) == (4, 4)


def _trained(function: Similarity, a: Tensor, b: Tensor) -> tuple[int, ...]:
    """How many vectors of a and of b have a gradient."""
    gradients = torch.autograd.grad(function(a, b).sum(), (a, b))
    return tuple(int(gradient.any(-1).sum()) for gradient in gradients)


@every_similarity
@pytest.mark.parametrize("masked", [False, True])
def test_vectors_of_any_two_precisions_are_scored_in_at_least_single_precision(name: str, masked: bool) -> None:
    a, b = random_sets(38, 9, 4, 32), random_sets(39, 10, 4, 32)
    masks = (random_mask(36, 9, 4), random_mask(37, 10, 4)) if masked else ()
    for x, y in itertools.product((torch.float16, torch.bfloat16, torch.float32, torch.float64), repeat=2):
        scores = SIMILARITIES[name](a.to(x), b.to(y), *masks)
        assert scores.dtype == (torch.float64 if torch.float64 in (x, y) else torch.float32)
        exact = SIMILARITIES[name](a.to(x).double(), b.to(y).double(), *masks)
        assert_close(scores.double(), exact, atol=1e-6, rtol=1e-6)


@every_similarity
@pytest.mark.parametrize("masked", [False, True])
def test_autocast_changes_nothing(name: str, masked: bool) -> None:
    a, b = random_sets(40, 9, 4, 32).requires_grad_(), random_sets(41, 10, 4, 32).requires_grad_()
    masks = (random_mask(42, 9, 4), random_mask(43, 10, 4)) if masked else ()
    expected = SIMILARITIES[name](a, b, *masks)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = SIMILARITIES[name](a, b, *masks)
    assert scores.dtype == torch.float32
    assert_close(scores, expected, atol=1e-6, rtol=1e-6)
    assert_close(torch.autograd.grad(scores.sum(), (a, b)), torch.autograd.grad(expected.sum(), (a, b)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_vectors_get_their_gradient(dtype: torch.dtype) -> None:
    a, b = random_sets(44, 3, 4, 16), random_sets(45, 4, 4, 16)
    half_a, half_b = a.to(dtype).requires_grad_(), b.to(dtype).requires_grad_()
    a, b = half_a.detach().float().requires_grad_(), half_b.detach().float().requires_grad_()
    expected = torch.autograd.grad(similarity.maxmatch(a, b).sum(), (a, b))
    found = torch.autograd.grad(similarity.maxmatch(half_a, half_b).sum(), (half_a, half_b))
    assert_close([gradient.float() for gradient in found], list(expected), atol=2e-2, rtol=2e-2)


def test_smooth_chamfer_does_not_overflow_in_half_precision() -> None:
    sets = random_sets(46, 2, 4, 32).half()
    assert torch.isfinite(similarity.smooth_chamfer(sets, sets, alpha=100.0)).all()


@every_similarity
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, where it loads forward mode
@pytest.mark.parametrize("rows", [1, 9], ids=["few", "many"])
@pytest.mark.parametrize("masked", [False, True])
def test_forward_mode_gives_the_derivative_of_backward_mode(name: str, rows: int, masked: bool) -> None:
    a, b, along = random_sets(70, rows, 4, 16), random_sets(71, 12, 4, 16), random_sets(72, rows, 4, 16)
    masks = (random_mask(73, rows, 4), random_mask(74, 12, 4)) if masked else ()
    scores, derivative = torch.func.jvp(lambda a: SIMILARITIES[name](a, b, *masks), (a,), (along,))
    jacobian = torch.autograd.functional.jacobian(lambda a: SIMILARITIES[name](a, b, *masks), a)
    assert_close(scores, SIMILARITIES[name](a, b, *masks))
    assert_close(derivative, (jacobian * along).sum((2, 3, 4)), atol=1e-5, rtol=1e-4)


@every_similarity
def test_vmap_is_refused_with_what_to_do(name: str) -> None:
    sets = random_sets(75, 2, 3, 4, 16)
    with pytest.raises(ValueError, match=r"vmap.*all pairs"):
        torch.func.vmap(SIMILARITIES[name])(sets, sets)
    with pytest.raises(ValueError, match=r"vmap.*all pairs"):
        torch.func.vmap(torch.func.grad(lambda a: SIMILARITIES[name](a, sets[0]).sum()))(sets)
    with pytest.raises(ValueError, match=r"vmap.*any number"):
        torch.func.vmap(maximal_assignment)(torch.eye(3).expand(2, 3, 3))
