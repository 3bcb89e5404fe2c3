"""The two ends of a matching: fixed pairs (`paired`) and a soft matching (`sinkhorn`), and the laws of a plan."""

import itertools
import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from matching_cases import seeds, sizes, two_batches
from reference import axis_sets, random_mask, random_sets, transport
from torch import Tensor
from torch.testing import assert_close

from maxmatch import score_matrix
from maxmatch.matching import SIMILARITIES, numpy_backend, similarity
from maxmatch.matching.products import cosine_planes
from maxmatch.matching.transport import transport_plan

TWO = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
THREE = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.75]], dtype=torch.float64)
ENOUGH = 3_000  # iterations


def plan_of(cosines: Tensor, epsilon: float, iterations: int = ENOUGH) -> Tensor:
    """Of one pair (K, L)."""
    return transport_plan(cosines[..., None, None], epsilon, iterations)[..., 0, 0]


def mean_cosine(cosines: Tensor, plan: Tensor) -> float:
    """Σ P c, per pair that is matched."""
    return float((plan * cosines).sum()) / min(cosines.shape)


def entropic(cosines: np.ndarray, epsilon: float) -> float:
    """Σ P c + ε H(P) of the best plan, by the reference; what is left of the larger set counts in H, too."""
    plan = transport(cosines, epsilon, ENOUGH)
    left = 1 - plan.sum(int(len(cosines) > cosines.shape[1])) if len(cosines) != cosines.shape[1] else np.ones(1)
    entropy = -(plan * np.log(plan)).sum() - (left * np.log(left)).sum()
    return float((plan * cosines).sum() + epsilon * entropy)


def sets_with(cosines: Tensor) -> tuple[Tensor, Tensor]:
    """Two sets of unit vectors with these cosines."""
    rows, columns = cosines.shape
    rest = (1 - cosines.square().sum(1)).sqrt()
    return torch.cat([cosines, rest.diag()], 1)[None], torch.eye(rows + columns, dtype=cosines.dtype)[None, :columns]


# --- paired ---------------------------------------------------------------------------------------------------------


@given(seeds, sizes, st.integers(2, 8))
def test_paired_is_maxmatch_where_slots_meet_in_their_order(seed: int, size: int, width: int) -> None:
    a = random_sets(seed, 3, size, width, dtype=torch.float64)
    near = torch.nn.functional.normalize(a + 1e-6 * random_sets(seed + 1, 3, size, width, dtype=torch.float64), dim=-1)
    assert_close(similarity.paired(a, near).diagonal(), similarity.maxmatch(a, near).diagonal())
    assert_close(similarity.paired(a, a).diagonal(), torch.full((3,), math.expm1(1), dtype=torch.float64))


@given(seeds, sizes)
def test_paired_is_symmetric_and_both_sets_may_be_reordered_alike(seed: int, size: int) -> None:
    a, b = random_sets(seed, 3, size, 6, dtype=torch.float64), random_sets(seed + 1, 4, size, 6, dtype=torch.float64)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    assert_close(similarity.paired(b, a).T, similarity.paired(a, b))
    assert_close(similarity.paired(a[:, order], b[:, order]), similarity.paired(a, b))
    turned = torch.stack([similarity.paired(a[:, list(way)], b) for way in itertools.permutations(range(size))])
    best = torch.log1p(turned)  # one of all orders is the one that maxmatch chooses
    assert (best.amax(0) >= torch.log1p(similarity.maxmatch(a, b)) - 1e-9).all()


def test_the_order_of_slots_matters_to_paired() -> None:
    a = torch.eye(4)[None]
    assert similarity.paired(a, a.flip(1)).item() == 0
    assert similarity.maxmatch(a, a.flip(1)).item() == pytest.approx(math.expm1(1))


def test_a_slot_counts_in_paired_where_it_is_real_in_both_sets_and_a_pair_without_any_scores_zero() -> None:
    a, b = random_sets(1, 1, 3, 8).requires_grad_(), random_sets(2, 1, 3, 8).requires_grad_()
    first, last = torch.tensor([[True, True, False]]), torch.tensor([[False, True, True]])
    assert_close(similarity.paired(a, b, first, last), similarity.paired(a[:, 1:2], b[:, 1:2]))
    apart = similarity.paired(a, b, first & ~last, last & ~first)
    assert apart.item() == 0
    for gradient in torch.autograd.grad(apart.sum(), (a, b)):
        assert not gradient.any()


@pytest.mark.parametrize("padding", [0.0, 1e30, torch.nan])
def test_padding_at_the_same_places_never_changes_a_score_of_paired(padding: float) -> None:
    a, b = random_sets(3, 3, 4, 8), random_sets(4, 5, 4, 8)
    real = torch.tensor([True, False, True, True])
    for mask in ({"a_mask": real.expand(3, 4)}, {"b_mask": real.expand(5, 4)}):
        (side,) = mask
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        hidden = {"a_mask": x, "b_mask": y}[side]
        with torch.no_grad():
            hidden[:, 1] = padding
        scores = similarity.paired(x, y, **mask)
        assert_close(scores, similarity.paired(a[:, real], b[:, real]))
        for gradient in torch.autograd.grad(scores.sum(), (x, y)):
            assert torch.isfinite(gradient).all()
            assert not gradient[:, 1].any()


# --- sinkhorn: numbers worked out elsewhere -------------------------------------------------------------------------


def test_the_plan_of_two_by_two_is_the_one_worked_out() -> None:
    soft, hard = plan_of(TWO, 0.5, 50), plan_of(TWO, 0.01, 50)
    assert float(soft[0, 0]) / 2 == pytest.approx(0.40109, abs=5e-6)  # masses of 1, not of 1/2
    assert mean_cosine(TWO, soft) == pytest.approx(0.71153, abs=5e-6)
    assert mean_cosine(TWO, hard) == pytest.approx(0.85, abs=5e-6)


def test_the_gradient_is_that_of_a_fixed_plan_and_not_that_through_the_iterations() -> None:
    cosines = TWO.clone().requires_grad_()
    through = (transport(cosines, 0.5, 50, unrolled=True) * cosines).sum() / 2
    (unrolled,) = torch.autograd.grad(through, cosines)
    assert float(unrolled[0, 0]) == pytest.approx(0.51217, abs=5e-6)
    assert float(plan_of(cosines, 0.5, 50)[0, 0]) / 2 == pytest.approx(0.40109, abs=5e-6)
    assert not plan_of(cosines, 0.5, 50).requires_grad
    a, b = sets_with(TWO)  # b's vectors are orthonormal
    (fixed,) = torch.autograd.grad(similarity.sinkhorn(a.requires_grad_(), b, epsilon=0.5).sum(), a)
    assert float((fixed @ b.mT)[0, 0, 0]) == pytest.approx(0.40109 * math.exp(0.9), abs=2e-5)


def test_unequal_sets_are_transported_in_part_so_that_the_smaller_one_is_matched() -> None:
    assert mean_cosine(THREE, plan_of(THREE, 0.003)) == pytest.approx(0.85, abs=5e-5)
    assert mean_cosine(THREE.T, plan_of(THREE.T, 0.003)) == pytest.approx(0.85, abs=5e-5)
    one = transport(THREE.numpy(), 0.003, ENOUGH, moved=1)
    assert (one * THREE.numpy()).sum() == pytest.approx(0.9, abs=5e-5)
    # Balanced transport of uniform masses would share out all three rows.
    kernel, down, across = np.exp(THREE.numpy() / 0.01), np.ones(3), np.ones(2)
    for _ in range(ENOUGH):
        down = 1 / 3 / (kernel @ across)
        across = 1 / 2 / (kernel.T @ down)
    balanced = (down[:, None] * kernel * across * THREE.numpy()).sum()
    assert balanced == pytest.approx(0.8083, abs=5e-5)


def test_identical_orthonormal_sets_do_not_have_the_largest_score() -> None:
    assert mean_cosine(torch.eye(2), plan_of(torch.eye(2), 0.5)) == pytest.approx(0.8808, abs=5e-5)
    same = torch.eye(2)[None]
    assert similarity.sinkhorn(same, same, epsilon=0.5).item() == pytest.approx(0.8808 * math.expm1(1), abs=1e-4)


@given(seeds, st.integers(2, 6), st.sampled_from([0.2, 0.5, 2.0]))
def test_one_vector_prefers_the_nearest_of_a_set_to_its_plain_mean(seed: int, size: int, epsilon: float) -> None:
    a, b = random_sets(seed, 1, size, 8, dtype=torch.float64), random_sets(seed + 1, 1, 1, 8, dtype=torch.float64)
    cosines = (a @ b.transpose(1, 2))[0, :, 0]
    # P_i / (1 − P_i) = exp((c_i − t) / ε), since vector i goes to b or is left; t is where Σ P = 1.
    low, high = -100.0, 100.0
    for _ in range(100):
        t = (low + high) / 2
        low, high = (t, high) if ((cosines - t) / epsilon).sigmoid().sum() > 1 else (low, t)
    expected = (((cosines - low) / epsilon).sigmoid() * cosines.expm1()).sum()
    assert_close(similarity.sinkhorn(a, b, epsilon=epsilon, iterations=300)[0, 0], expected, atol=1e-6, rtol=0)
    assert expected > cosines.expm1().mean()


def test_few_iterations_err_by_what_was_measured() -> None:
    a, b = random_sets(5, 30, 4, 8, dtype=torch.float64), random_sets(6, 30, 4, 8, dtype=torch.float64)
    cosines = cosine_planes(a, b)
    for epsilon, after_3, after_50 in ((0.05, 0.024, 0.0004), (0.01, 0.033, 0.0018)):
        exact = transport_plan(cosines, epsilon, ENOUGH)
        for iterations, error in ((3, after_3), (50, after_50)):
            off = ((transport_plan(cosines, epsilon, iterations) - exact) * cosines).sum((0, 1)).abs() / 4
            assert error / 2 < off.mean().item() < 2 * error


# --- sinkhorn: laws -------------------------------------------------------------------------------------------------


@given(two_batches(), st.sampled_from([0.02, 0.05, 1.0]), st.sampled_from([1, 7, 50]))
def test_a_plan_moves_all_of_the_smaller_set_and_no_more_than_there_is_of_the_larger(
    batches: tuple[Tensor, Tensor], epsilon: float, iterations: int
) -> None:
    cosines = cosine_planes(*batches)
    plan = transport_plan(cosines, epsilon, iterations)
    smaller = 0 if cosines.shape[0] >= cosines.shape[1] else 1  # summed over the other set
    assert (plan >= 0).all()
    assert_close(plan.sum(smaller), torch.ones_like(plan.sum(smaller)))
    scores = similarity.sinkhorn(*batches, epsilon=epsilon, iterations=iterations)
    assert (scores >= cosines.expm1().amin((0, 1)) - 1e-9).all()
    assert (scores <= cosines.expm1().amax((0, 1)) + 1e-9).all()
    settled = transport_plan(cosines, 1.0, 500)
    assert (settled.sum(1 - smaller) <= 1 + 1e-6).all()


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (4, 4), (3, 5), (5, 2), (1, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_as_epsilon_vanishes_sinkhorn_is_maxmatch(rows: int, columns: int, masked: bool) -> None:
    a, b = random_sets(7, 5, rows, 8, dtype=torch.float64), random_sets(8, 6, columns, 8, dtype=torch.float64)
    real = (random_mask(9, 5, rows), random_mask(10, 6, columns)) if masked else ()
    clear = torch.tensor([[_margin(x, y) > 0.1 for y in _real(b, *real[1:])] for x in _real(a, *real[:1])])
    assert clear.double().mean() > 0.25
    a.requires_grad_()
    soft = similarity.sinkhorn(a, b, *real, epsilon=0.005, iterations=ENOUGH)
    hard = similarity.maxmatch(a, b, *real)
    assert_close(soft[clear], reference.scores("maxmatch", a, b, *real)[clear], atol=1e-3, rtol=0)
    gradients = [torch.autograd.grad(scores[clear].sum(), a)[0] for scores in (soft, hard)]
    assert_close(*gradients, atol=5e-3, rtol=0)


def _real(sets: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    return list(sets) if mask is None else [one[real] for one, real in zip(sets, mask, strict=True)]


def _margin(x: Tensor, y: Tensor) -> float:
    """By how much the total of the best matching exceeds that of the second best."""
    cosines = (x @ y.T).numpy()
    padded = np.concatenate([cosines, np.zeros((len(cosines), 1))], 1)
    totals = sorted(padded[np.arange(len(cosines)), reference.matchings(*cosines.shape)].sum(1))
    return math.inf if len(totals) == 1 else totals[-1] - totals[-2]


@given(seeds, sizes, sizes)
def test_as_epsilon_grows_sinkhorn_is_the_mean_over_all_pairs(seed: int, rows: int, columns: int) -> None:
    a = random_sets(seed, 2, rows, 8, dtype=torch.float64)
    b = random_sets(seed + 1, 3, columns, 8, dtype=torch.float64)
    expected = cosine_planes(a, b).expm1().mean((0, 1))
    assert_close(similarity.sinkhorn(a, b, epsilon=1e8), expected, atol=1e-6, rtol=0)


@given(seeds, st.integers(2, 5), st.sampled_from([0.1, 0.3, 1.0]))
def test_the_plan_loses_at_most_epsilon_log_k_to_the_assignment(seed: int, size: int, epsilon: float) -> None:
    a, b = random_sets(seed, 1, size, 6, dtype=torch.float64), random_sets(seed + 1, 1, size, 6, dtype=torch.float64)
    cosines = (a @ b.transpose(1, 2))[0]
    lost = reference.best_total(cosines.numpy()) / size - mean_cosine(cosines, plan_of(cosines, epsilon))
    assert -1e-6 <= lost <= epsilon * math.log(size) + 1e-6


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 2), (2, 3)])
def test_the_plan_is_the_gradient_of_the_entropic_total(rows: int, columns: int) -> None:
    cosines = (
        random_sets(11, 1, rows, 4, dtype=torch.float64)[0] @ random_sets(12, 1, columns, 4, dtype=torch.float64)[0].T
    )
    plan, step = plan_of(cosines, 0.3), 1e-5
    for i, j in itertools.product(range(rows), range(columns)):
        up, down = cosines.numpy().copy(), cosines.numpy().copy()
        up[i, j] += step
        down[i, j] -= step
        difference = (entropic(up, 0.3) - entropic(down, 0.3)) / (2 * step)
        assert float(plan[i, j]) == pytest.approx(difference, abs=1e-6)


@pytest.mark.parametrize(("rows", "columns", "masked"), [(3, 3, False), (2, 4, False), (4, 3, True)])
def test_the_gradient_of_sinkhorn_is_the_plan_times_the_exponentials(rows: int, columns: int, masked: bool) -> None:
    a = random_sets(13, 2, rows, 4, dtype=torch.float64).requires_grad_()
    b = random_sets(14, 3, columns, 4, dtype=torch.float64).requires_grad_()
    masks = (
        (random_mask(15, 2, rows), random_mask(16, 3, columns))
        if masked
        else (torch.ones(2, rows) > 0, torch.ones(3, columns) > 0)
    )
    weights = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3)
    given_masks = masks if masked else ()
    found = torch.autograd.grad((similarity.sinkhorn(a, b, *given_masks, epsilon=0.2) * weights).sum(), (a, b))
    expected = torch.zeros_like(a), torch.zeros_like(b)
    for i, j in itertools.product(range(2), range(3)):
        of_a, of_b = masks[0][i].nonzero()[:, 0].tolist(), masks[1][j].nonzero()[:, 0].tolist()
        x, y = a[i, of_a].detach(), b[j, of_b].detach()
        cosines = x @ y.T
        by_cosine = torch.from_numpy(transport(cosines.numpy(), 0.2)) * cosines.exp() * weights[i, j]
        by_cosine /= min(len(of_a), len(of_b))
        expected[0][i, of_a] += by_cosine @ y
        expected[1][j, of_b] += by_cosine.T @ x
    assert_close(found, expected)


@pytest.mark.parametrize("masked", [False, True])
def test_gradcheck_holds_where_the_plan_stands_still(masked: bool) -> None:
    # With ε so large the plan is that of equal shares, whatever the cosines are: then its gradient is the score's.
    a = random_sets(17, 1, 3, 2, dtype=torch.float64).requires_grad_()
    b = random_sets(18, 2, 2, 2, dtype=torch.float64).requires_grad_()
    masks = (random_mask(19, 1, 3), random_mask(20, 2, 2)) if masked else ()
    shared = lambda a, b: similarity.sinkhorn(a, b, *masks, epsilon=1e12)  # noqa: E731
    assert torch.autograd.gradcheck(shared, (a, b), check_undefined_grad=False)


@given(two_batches())
def test_sinkhorn_is_symmetric_once_it_has_converged(batches: tuple[Tensor, Tensor]) -> None:
    a, b = batches
    forth, back = (similarity.sinkhorn(*sets, epsilon=0.5, iterations=500) for sets in ((a, b), (b, a)))
    assert_close(back.T, forth)


# --- sinkhorn: extremes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 1e6])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_no_epsilon_makes_a_score_that_is_not_finite_or_out_of_range(
    epsilon: float, masked: bool, dtype: torch.dtype
) -> None:
    sets = torch.cat([random_sets(21, 3, 4, 8), axis_sets(22, 3, 4, 8)])
    sets = torch.cat([sets, sets[:1], -sets[:1], sets[:1, :1].expand(1, 4, 8)]).to(dtype)  # opposite and collapsed ones
    others = sets[:, :3].contiguous()
    masks = (random_mask(23, 9, 4), random_mask(24, 9, 3)) if masked else ()
    leaf = sets.clone().requires_grad_()
    scores = similarity.sinkhorn(leaf, others, *masks, epsilon=epsilon)
    assert scores.dtype == torch.float32
    assert (scores >= math.expm1(-1) - 0.02).all()
    assert (scores <= math.expm1(1) + 0.02).all()
    assert torch.isfinite(torch.autograd.grad(scores.sum(), leaf)[0]).all()


def test_float32_scores_are_those_of_float64() -> None:
    a, b = random_sets(25, 20, 4, 16), random_sets(26, 30, 5, 16)
    for epsilon in (0.01, 0.05, 1.0):
        exact = similarity.sinkhorn(a.double(), b.double(), epsilon=epsilon)
        assert_close(similarity.sinkhorn(a, b, epsilon=epsilon).double(), exact, atol=1e-5, rtol=0)


def test_pairs_that_are_alike_in_size_are_scored_with_and_without_masks_alike() -> None:
    a, b = random_sets(27, 5, 4, 8), random_sets(28, 6, 3, 8)
    full = torch.ones(5, 4, dtype=torch.bool), torch.ones(6, 3, dtype=torch.bool)
    assert_close(similarity.sinkhorn(a, b, *full), similarity.sinkhorn(a, b))
    assert_close(similarity.sinkhorn(b, a, full[1], full[0]), similarity.sinkhorn(b, a))


def test_blocks_change_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = random_sets(29, 7, 4, 8), random_sets(30, 5, 3, 8)
    masks = {"a_mask": random_mask(31, 7, 4), "b_mask": random_mask(32, 5, 3)}
    whole = [score_matrix(a, b, "sinkhorn"), score_matrix(b, a, "sinkhorn"), score_matrix(a, b, "sinkhorn", **masks)]
    monkeypatch.setattr("maxmatch.matching.transport._BLOCK", 1)
    parts = [score_matrix(a, b, "sinkhorn"), score_matrix(b, a, "sinkhorn"), score_matrix(a, b, "sinkhorn", **masks)]
    assert_close(parts, whole, atol=1e-6, rtol=0)


def test_the_sum_of_cosines_decides_in_sinkhorn_as_in_maxmatch() -> None:
    cosines = torch.tensor([[0.9, 0.36], [0.36, -0.2]], dtype=torch.float64)  # crossed by Σc, straight by Σexp(c)
    scores = similarity.sinkhorn(*sets_with(cosines), epsilon=0.002, iterations=ENOUGH)
    assert scores.item() == pytest.approx(math.expm1(0.36), abs=5e-3)
    planes = cosines.numpy()[..., None]
    assert numpy_backend.sinkhorn(planes, 0.002, ENOUGH)[0] == pytest.approx(math.expm1(0.36), abs=5e-3)


def test_options_reach_sinkhorn_by_name_and_by_function() -> None:
    a, b = random_sets(33, 4, 3, 8), random_sets(34, 5, 3, 8)
    entry = SIMILARITIES["sinkhorn"].with_options({"epsilon": 0.3})
    assert entry.options == {"epsilon": 0.3, "iterations": 50}
    assert_close(entry(a, b), similarity.sinkhorn(a, b, epsilon=0.3))
    assert_close(score_matrix(a, b, similarity.with_options("sinkhorn", {"epsilon": 0.3})), entry(a, b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_plan_is_made_in_float32_at_least(dtype: torch.dtype) -> None:
    cosines = cosine_planes(random_sets(35, 4, 3, 8), random_sets(36, 5, 4, 8)).to(dtype)
    exact = transport_plan(cosines.float(), 0.05, 50)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(transport_plan(cosines, 0.05, 50), exact)
