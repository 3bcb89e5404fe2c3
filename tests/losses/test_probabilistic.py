"""The losses of PCME++: every pair is a match or not, and the variances stay near 1."""

import math

import pytest
import torch
from reference_losses import CAPTION_COUNTS, batch, normal
from torch import Tensor

from maxmatch.core.types import Sets
from maxmatch.losses import gaussian_kl, objective, pair_bce

# The example of docs/paper-map.md: a = b = 5 make logits of minus the distances.
DISTANCES = torch.tensor([[1.1, 0.94], [1.5, 0.54]], dtype=torch.float64)
MEANS = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.8, 0.6], [0.6, 0.8]]], dtype=torch.float64)
VARIANCES = torch.tensor([[[0.05, 0.05], [0.05, 0.05]], [[0.3, 0.3], [0.02, 0.02]]], dtype=torch.float64)
MATCH = torch.tensor(5.0, dtype=torch.float64), torch.tensor(5.0, dtype=torch.float64)


def entropy(logits: list[list[float]], labels: list[list[float]]) -> float:
    """The mean of −y log p − (1 − y) log(1 − p)."""
    terms = [
        -y * math.log(1 / (1 + math.exp(-x))) - (1 - y) * math.log(1 / (1 + math.exp(x)))
        for row, truth in zip(logits, labels, strict=True)
        for x, y in zip(row, truth, strict=True)
    ]
    return sum(terms) / len(terms)


def with_pseudo(logits: list[list[float]], true: list[list[bool]]) -> list[list[bool]]:
    """Every logit as high as the best true pair of its row counts as true."""
    found = []
    for row, truth in zip(logits, true, strict=True):
        known = [x for x, y in zip(row, truth, strict=True) if y]
        found.append([y or (bool(known) and x >= max(known)) for x, y in zip(row, truth, strict=True)])
    return found


def transposed(rows: list[list[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*rows, strict=True)]


def reference(logits: Tensor, positive: Tensor, pseudo: float, smoothing: float) -> float:
    rows, true = logits.tolist(), positive.tolist()

    def labels(of: list[list[bool]]) -> list[list[float]]:
        return [[1 - smoothing if y else smoothing for y in row] for row in of]

    columns = transposed(with_pseudo(transposed(rows), transposed(true)))
    more = entropy(rows, labels(with_pseudo(rows, true))) + entropy(rows, labels(columns))
    return 2 * entropy(rows, labels(true)) + pseudo * more


def test_values_by_hand() -> None:
    """BCE .50072; with pseudo-positives .42572 by rows, since caption 2 beats image 1's own, and .50072 by columns."""
    logits = 5 - 5 * DISTANCES
    assert pair_bce(logits, None, 0.0, 0.0).item() == pytest.approx(2 * 0.50072, abs=1e-5)
    assert pair_bce(logits, None, 1.0, 0.0).item() == pytest.approx(2 * 0.50072 + 0.42572 + 0.50072, abs=2e-5)
    kl = [gaussian_kl(mean, variance.log()).item() for mean, variance in zip(MEANS, VARIANCES, strict=True)]
    assert sum(kl) == pytest.approx(2.38187, abs=1e-5)


def test_the_objective_is_their_weighted_sum() -> None:
    sides = [
        Sets(torch.zeros(2, 2, 4), torch.stack([mean, variance.log()], 1), torch.zeros(2, 4))
        for mean, variance in zip(MEANS, VARIANCES, strict=True)
    ]
    off = dict.fromkeys(("triplet_weight", "gd_weight", "isd_weight", "mmd_weight", "div_weight"), 0.0)
    terms = objective(-DISTANCES, None, *sides, **off, bce_weight=1.0, kl_weight=1e-4, label_smoothing=0.0, match=MATCH)
    assert terms.total.item() == pytest.approx(1.09432, abs=1e-5)
    assert set(terms.computed()) == {"total", "pair_bce", "gaussian_kl"}


@pytest.mark.parametrize("counts", CAPTION_COUNTS, ids=str)
@pytest.mark.parametrize(("pseudo", "smoothing"), [(0.0, 0.0), (0.1, 1e-4), (1.0, 0.1)])
def test_agrees_with_loop_for_any_number_of_captions(counts: tuple[int, ...], pseudo: float, smoothing: float) -> None:
    for seed in range(3):
        scores, positive = batch(counts, seed)
        logits = 5 * scores
        expected = reference(logits, positive, pseudo, smoothing)
        assert pair_bce(logits, positive, pseudo, smoothing).item() == pytest.approx(expected, rel=1e-10)


def test_a_row_or_column_without_a_true_pair_has_no_pseudo_positive() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]], dtype=torch.float64)
    positive = torch.tensor([[True, False, False], [False, False, False]])
    assert pair_bce(logits, positive, 1.0, 0.0).item() == pytest.approx(reference(logits, positive, 1.0, 0.0))


def test_kl_agrees_with_loop_and_reads_the_logarithm_of_the_variance() -> None:
    mean, log_variance = normal(4, 5, seed=0), normal(4, 5, seed=1)
    terms = [
        1 + s - m**2 - math.exp(s)
        for m, s in zip(mean.flatten().tolist(), log_variance.flatten().tolist(), strict=True)
    ]
    assert gaussian_kl(mean, log_variance).item() == pytest.approx(-sum(terms) / 40, rel=1e-12)
    standard = torch.distributions.Normal(0.0, 1.0)
    mine = torch.distributions.Normal(mean, (log_variance / 2).exp())  # its scale is σ, not σ²
    expected = torch.distributions.kl_divergence(mine, standard).mean()
    torch.testing.assert_close(gaussian_kl(mean, log_variance), expected)


def test_gradients_are_right_in_scores_scale_and_shift() -> None:
    scores, positive = batch((3, 1, 2), seed=5)
    leaves = [part.clone().requires_grad_() for part in (scores, *MATCH)]
    assert torch.autograd.gradcheck(lambda s, a, b: pair_bce(a * s + b, positive, 0.3, 1e-4), leaves)
    parts = [normal(3, 4, seed=seed).requires_grad_() for seed in (2, 3)]
    assert torch.autograd.gradcheck(gaussian_kl, parts)


def test_logits_far_off_give_finite_losses_and_gradients() -> None:
    """As at the start with variances of 1 in 1,024 coordinates: logits near −10,240."""
    logits = torch.full((3, 3), -10_240.0, requires_grad=True)
    loss = pair_bce(logits)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("smoothing", [-0.1, 0.5, math.nan])
def test_a_smoothing_out_of_range_is_refused(smoothing: float) -> None:
    with pytest.raises(ValueError, match="label_smoothing: expected"):
        pair_bce(torch.zeros(2, 2), None, 0.1, smoothing)


@pytest.mark.usefixtures("without_shape_checks")
def test_terms_without_what_they_need_are_refused() -> None:
    side = Sets(torch.zeros(2, 4, 4), torch.zeros(2, 4, 4), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="match: bce_weight needs"):
        objective(torch.zeros(2, 2), None, side, side, bce_weight=1.0)
    with pytest.raises(ValueError, match="kl_weight: only Gaussian heads"):
        objective(torch.zeros(2, 2), None, side, side, kl_weight=1.0)
    with pytest.raises(ValueError, match="log_variance: expected 2×4"):
        gaussian_kl(torch.zeros(2, 4), torch.zeros(2, 3))


def test_pseudo_positives_of_a_model_that_knows_nothing_pull_harder_than_true_pairs():
    """Half of its negatives are as likely as the true pairs. Of one that knows the pairs none is."""
    noise = 0.5 * torch.randn(128, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 5
    for known, pulled in ((0.0, True), (5.0, False)):
        logits = (noise + known * torch.eye(128)).requires_grad_()
        for weight in (0.0, 0.1):
            (gradient,) = torch.autograd.grad(pair_bce(logits, None, weight), logits)
            pull = gradient.diagonal().sum(), (gradient.sum() - gradient.diagonal().sum()).clamp(max=0)
            assert bool(pull[1] < 3 * pull[0]) == (pulled and weight > 0)
