"""Gaussians as sets of two unit vectors: their cosines hold the closed-form sampled distance of PCME++."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import random_sets
from torch import Tensor
from torch.testing import assert_close

from maxmatch import score_matrix, similarity, top_hits
from maxmatch.matching import SIMILARITIES
from maxmatch.matching.numpy_backend import cosine_planes
from maxmatch.matching.similarity import gaussian_sets

# The example of docs/paper-map.md: two images, two captions, the first of which is vague.
IMAGES = torch.eye(2, dtype=torch.float64), torch.full((2, 2), 0.05, dtype=torch.float64).log()
CAPTIONS = (
    torch.tensor([[0.8, 0.6], [0.6, 0.8]], dtype=torch.float64),
    torch.tensor([[0.3, 0.3], [0.02, 0.02]], dtype=torch.float64).log(),
)


def gaussians(count: int, width: int, seed: int, log_variance: float = -1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = torch.nn.functional.normalize(torch.randn(count, width, generator=generator, dtype=torch.float64), dim=-1)
    return means, log_variance + torch.randn(count, width, generator=generator, dtype=torch.float64)


def distance(mean: list[float], log_variance: list[float], other: list[float], other_log: list[float]) -> float:
    """CSD = ‖μ − ν‖² + Σ(σ² + τ²), number by number."""
    apart = sum((x - y) ** 2 for x, y in zip(mean, other, strict=True))
    return apart + sum(math.exp(s) for s in log_variance) + sum(math.exp(s) for s in other_log)


def distances(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
    one, other = (list(zip(*(part.tolist() for part in side), strict=True)) for side in (a, b))
    return torch.tensor([[distance(*x, *y) for y in other] for x in one], dtype=torch.float64)


def test_the_score_is_minus_the_distance_and_a_vague_caption_loses_to_a_sure_one_that_is_farther() -> None:
    scores = similarity.csd(gaussian_sets(*IMAGES), gaussian_sets(*CAPTIONS))
    assert_close(scores, -torch.tensor([[1.1, 0.94], [1.5, 0.54]], dtype=torch.float64))
    assert scores[0].argmax() == 1
    assert (IMAGES[0] @ CAPTIONS[0].T)[0].argmax() == 0


@given(st.integers(0, 1000), st.integers(1, 9), st.floats(-9, 2))
def test_scores_agree_with_a_loop_over_all_numbers(seed: int, width: int, log_variance: float) -> None:
    a, b = gaussians(4, width, seed, log_variance), gaussians(6, width, seed + 1)
    expected = -distances(a, b)
    assert_close(similarity.csd(gaussian_sets(*a), gaussian_sets(*b)), expected, rtol=1e-10, atol=1e-10)
    assert_close(similarity.csd(gaussian_sets(*b), gaussian_sets(*a)).T, expected, rtol=1e-10, atol=1e-10)


def test_the_distance_is_the_mean_squared_distance_of_samples() -> None:
    a, b = gaussians(1, 5, 0), gaussians(1, 5, 1)
    drawn = [
        mean + (log_variance / 2).exp() * torch.randn(200_000, 5, dtype=torch.float64) for mean, log_variance in (a, b)
    ]
    sampled = (drawn[0] - drawn[1]).square().sum(1).mean().item()
    assert -similarity.csd(gaussian_sets(*a), gaussian_sets(*b)).item() == pytest.approx(sampled, rel=0.02)


def test_for_one_query_the_order_is_that_of_an_inner_product_with_one_more_coordinate() -> None:
    """[2μ, −Σσ²] · [μ, 1], for the query's own variance is the same for all items."""
    a, b = gaussians(5, 8, 2), gaussians(40, 8, 3)
    items = torch.cat([2 * b[0], -b[1].exp().sum(1, keepdim=True)], 1)
    queries = torch.cat([a[0], torch.ones(5, 1, dtype=torch.float64)], 1)
    scores = similarity.csd(gaussian_sets(*a), gaussian_sets(*b))
    assert torch.equal(scores.argsort(1), (queries @ items.T).argsort(1))


@pytest.mark.parametrize("log_variance", [-200.0, -8.0, 0.0, 5.0])
def test_every_vector_has_unit_length_and_nothing_warns(log_variance: float) -> None:
    mean, spread = gaussians(3, 1022, 4, log_variance)
    sets = gaussian_sets(mean.float(), spread.float())
    assert_close(sets.norm(dim=-1), torch.ones(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        similarity.csd(sets, sets)


def test_scoring_at_scale_and_numpy_give_the_same() -> None:
    a, b = (gaussian_sets(*(part.float() for part in gaussians(count, 6, count, -3.0))) for count in (7, 300))
    scores = similarity.csd(a, b)
    assert_close(score_matrix(a, b, "csd", max_memory=20_000), scores)
    assert_close(score_matrix(a, b, "csd", normalise=True), scores)
    assert torch.equal(top_hits(a, b, 5, "csd").indices, scores.topk(5).indices)
    planes = cosine_planes(a.numpy(), b.numpy())
    np.testing.assert_allclose(SIMILARITIES["csd"].of_planes(planes).reshape(7, 300), scores.numpy(), atol=1e-5)


def test_half_precision_keeps_the_score_to_some_thousandths() -> None:
    a, b = (gaussians(50, 1022, seed, -8.0) for seed in (5, 6))
    halves = [gaussian_sets(*side).half() for side in (a, b)]
    assert_close(similarity.csd(*halves).double(), -distances(a, b), atol=5e-3, rtol=0)


def test_gradients_are_right_and_finite_where_variances_vanish() -> None:
    a, b = gaussians(2, 3, 7), gaussians(3, 3, 8)
    leaves = tuple(part.requires_grad_() for part in (*a, *b))
    assert torch.autograd.gradcheck(lambda m, s, n, t: similarity.csd(gaussian_sets(m, s), gaussian_sets(n, t)), leaves)
    vanishing = torch.full((2, 3), -800.0, dtype=torch.float64, requires_grad=True)
    similarity.csd(gaussian_sets(a[0], vanishing), gaussian_sets(*b)).sum().backward()
    assert vanishing.grad is not None
    assert vanishing.grad.isfinite().all()


def test_what_is_no_gaussian_is_refused() -> None:
    good = gaussian_sets(*gaussians(3, 6, 9))
    with pytest.raises(ValueError, match="a: csd compares Gaussians, sets of 2 vectors, got 5×4×8"):
        similarity.csd(random_sets(0, 5, 4, 8).double(), good)
    with pytest.raises(ValueError, match="b: csd compares Gaussians, but"):
        similarity.csd(good, random_sets(0, 5, 2, 8).double())
    mask = torch.ones(3, 2, dtype=torch.bool)
    assert_close(similarity.csd(good, good, mask, mask), similarity.csd(good, good))
    mask[1, 1] = False
    with pytest.raises(ValueError, match="b_mask: a Gaussian has no padding"):
        similarity.csd(good, good, None, mask)
