"""Every similarity against its definition, pair by pair in float64, and the laws that hold between them."""

import inspect
import itertools
import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from matching_cases import every_similarity, of_any_two_sizes, seeds, size_beside, sizes, two_batches
from reference import random_mask, random_sets
from torch import Tensor
from torch.testing import assert_close

from maxmatch import score_matrix
from maxmatch.matching import SIMILARITIES, similarity
from maxmatch.matching.assignment import maximal_assignment

# few against many, many against few, many against many; more and fewer vectors than the other set
SHAPES = [((1, 4, 16), (9, 4, 16)), ((9, 2, 16), (1, 5, 16)), ((6, 5, 8), (7, 3, 8)), ((5, 4, 3), (6, 4, 3))]


@st.composite
def two_coarse_batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Sets of few different vectors, so that cosines tie; the sets of the second batch are not the smaller ones."""
    coordinates = st.integers(-2, 2)
    width = draw(st.integers(1, 3))
    rows, columns = sorted([draw(sizes), draw(sizes)])

    def batch(size: int) -> Tensor:
        items = draw(st.integers(1, 3))
        count = items * size * width
        flat = draw(st.lists(coordinates, min_size=count, max_size=count))
        sets = torch.tensor(flat, dtype=torch.float64).view(items, size, width)
        sets[..., 0] += (sets == 0).all(-1)
        return torch.nn.functional.normalize(sets, dim=-1)

    return batch(rows), batch(columns)


def test_the_table_has_every_similarity_and_the_options_of_its_function() -> None:
    assert set(SIMILARITIES) == {*reference.NAMES, "csd"}  # which compares sets of one kind alone: test_gaussians
    for name, entry in SIMILARITIES.items():
        assert entry.torch is getattr(similarity, name)
        theirs = list(inspect.signature(entry.torch).parameters.values())[4:]
        assert entry.options == {option.name: option.default for option in theirs}


def assert_defined(name: str, a: Tensor, b: Tensor, **options: float) -> None:
    """The scores are those of the definition, without masks, with either and with both."""
    a_mask, b_mask = random_mask(5, *a.shape[:2]), random_mask(6, *b.shape[:2])
    tolerance = 2e-6 if a.dtype == torch.float32 else 1e-12
    for masks in ((None, None), (a_mask, None), (None, b_mask), (a_mask, b_mask)):
        scores = SIMILARITIES[name](a, b, *masks, **options)
        assert scores.dtype == a.dtype
        expected = reference.scores(name, a, b, *masks, **options)
        assert_close(scores.double(), expected, atol=tolerance, rtol=tolerance)


@every_similarity
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_similarity_agrees_with_its_definition(name: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    items, size, width = b_shape
    b_shape = items, size_beside(name, a_shape[1], size), width
    for dtype in (torch.float32, torch.float64):
        assert_defined(name, random_sets(1, *a_shape, dtype=dtype), random_sets(2, *b_shape, dtype=dtype))


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (16, 1), (16, 16), (9, 7), (8, 8), (5, 6)])
def test_maxmatch_agrees_with_its_definition_for_large_sets(rows: int, columns: int) -> None:
    assert_defined("maxmatch", random_sets(7, 5, rows, 8), random_sets(8, 6, columns, 8))


@pytest.mark.parametrize(
    ("name", "options"),
    [("top_k", {"k": k}) for k in (1, 2, 5, 12, 40)]
    + [("smooth_chamfer", {"alpha": a}) for a in (0.5, 4.0, 55.0)]
    + [("sinkhorn", {"epsilon": e, "iterations": n}) for e, n in ((0.02, 3), (0.05, 1), (1.0, 7), (100.0, 50))],
)
def test_similarity_agrees_with_its_definition_for_any_option(name: str, options: dict[str, float]) -> None:
    assert_defined(name, random_sets(11, 5, 4, 8), random_sets(12, 6, 3, 8), **options)


def test_smooth_chamfer_approaches_chamfer() -> None:
    a, b = random_sets(19, 5, 4, 8), random_sets(20, 6, 3, 8)
    assert_close(similarity.smooth_chamfer(a, b, alpha=1e5), similarity.chamfer(a, b), atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_maxmatch_agrees_with_the_listing_of_the_paper(size: int) -> None:
    a, b = random_sets(21, 6, size, 16), random_sets(22, 7, size, 16)
    assert_close(similarity.maxmatch(a, b), reference.listing(a, b), atol=1e-6, rtol=0)


@pytest.mark.parametrize("masked", [False, True])
def test_the_sum_of_cosines_decides_and_not_the_sum_of_exponentials(masked: bool) -> None:
    cosines = torch.tensor([[0.9, 0.36], [0.36, -0.2]])
    straight, crossed = cosines.diagonal(), cosines.flip(1).diagonal()
    assert straight.sum() < crossed.sum()
    assert straight.exp().sum() > crossed.exp().sum()
    texts = torch.eye(4)[:2]
    rest = (1 - cosines.square().sum(1)).sqrt()
    images = torch.cat([cosines, rest.diag()], 1)
    masks = {name: torch.ones(1, 2, dtype=torch.bool) for name in ("a_mask", "b_mask") if masked}
    assert_close(images @ texts.T, cosines)
    score = similarity.maxmatch(images[None], texts[None], **masks)
    assert score.item() == pytest.approx(math.exp(0.36) - 1, abs=1e-6)


@every_similarity
def test_arrays_are_taken_as_tensors_and_empty_batches_have_no_scores(name: str) -> None:
    size = size_beside(name, 4, 3)
    a, b = random_sets(58, 5, 4, 8), random_sets(59, 6, size, 8)
    a_mask, b_mask = random_mask(60, 5, 4), random_mask(61, 6, size)
    assert torch.equal(SIMILARITIES[name](a.numpy(), b.numpy()), SIMILARITIES[name](a, b))
    masked = SIMILARITIES[name](a.numpy(), b, a_mask.numpy(), b_mask.numpy())
    assert torch.equal(masked, SIMILARITIES[name](a, b, a_mask, b_mask))
    assert SIMILARITIES[name](a[:0], b).shape == (0, 6)
    assert SIMILARITIES[name](a, b[:0]).shape == (5, 0)


@every_similarity
@pytest.mark.usefixtures("without_shape_checks")
def test_lists_are_taken_as_arrays(name: str) -> None:
    size = size_beside(name, 4, 3)
    a, b = random_sets(62, 5, 4, 8), random_sets(63, 6, size, 8)
    a_mask, b_mask = random_mask(64, 5, 4), random_mask(65, 6, size)
    expected = SIMILARITIES[name](a, b, a_mask, b_mask)
    for x, y in ((a.tolist(), b.tolist()), (list(a), tuple(b)), (list(a.numpy()), b)):
        assert_close(SIMILARITIES[name](x, y, a_mask.tolist(), list(b_mask)), expected, check_dtype=False)
    leaf = a.clone().requires_grad_()
    SIMILARITIES[name](list(leaf), b).sum().backward()
    assert leaf.grad is not None


@pytest.mark.parametrize("name", sorted(set(reference.NAMES) - {"maxmatch"}))
@pytest.mark.parametrize("masked", [False, True])
def test_similarities_without_matching_take_sets_of_any_size(name: str, masked: bool) -> None:
    size = size_beside(name, 40, 17)
    a, b = random_sets(66, 3, 40, 8), random_sets(67, 4, size, 8)
    masks = {"a_mask": random_mask(68, 3, 40), "b_mask": random_mask(69, 4, size)} if masked else {}
    expected = reference.scores(name, a, b, **masks).float()
    assert_close(SIMILARITIES[name](a, b, **masks), expected)
    assert_close(score_matrix(a, b, name, **masks), expected)


@of_any_two_sizes
@given(two_batches(), seeds)
def test_order_within_a_set_is_irrelevant_and_all_but_maxsim_are_symmetric(
    name: str, batches: tuple[Tensor, Tensor], seed: int
) -> None:
    a, b = batches
    scores, generator = SIMILARITIES[name](a, b), torch.Generator().manual_seed(seed)
    shuffled_a = a[:, torch.randperm(a.shape[1], generator=generator)]
    shuffled_b = b[:, torch.randperm(b.shape[1], generator=generator)]
    assert_close(SIMILARITIES[name](shuffled_a, shuffled_b), scores)
    if name != "maxsim" and not (name == "sinkhorn" and a.shape[1] == b.shape[1]):  # as far as it has converged
        assert_close(SIMILARITIES[name](b, a).T, scores)


def test_maxsim_of_the_first_vectors_of_two_sets_by_hand() -> None:
    a = torch.tensor([[[0.9, 0.1, 0.18**0.5, 0.0], [0.2, 0.8, 0.0, 0.32**0.5]]])
    b = torch.eye(4)[None, :2]  # the cosines are the first two columns
    assert similarity.maxsim(a[:, :1], b[:, :1]).item() == pytest.approx(0.9)
    assert similarity.maxsim(a, b).item() == pytest.approx(1.7)


def test_maxsim_is_not_symmetric() -> None:
    query, document = torch.eye(3)[None, :1], torch.eye(3)[None]
    assert similarity.maxsim(query, document).item() == similarity.maxsim(document, query).item() == 1
    query = torch.eye(3)[None, [0, 0]]
    assert similarity.maxsim(query, document).item() == 2
    assert similarity.maxsim(document, query).item() == 1


@given(seeds, st.integers(1, 8))
def test_with_one_vector_an_item_maxmatch_and_mil_rank_as_the_cosine(seed: int, width: int) -> None:
    a, b = (random_sets(seed + i, 5, 1, width, dtype=torch.float64) for i in (0, 1))
    cosines = a[:, 0] @ b[:, 0].T
    assert_close(similarity.mil(a, b), cosines)
    assert_close(similarity.maxmatch(a, b), cosines.expm1())
    if width > 1:  # on a line all cosines tie
        assert torch.equal(similarity.maxmatch(a, b).argsort(1), cosines.argsort(1))
        assert torch.equal(similarity.mil(a, b).argsort(1), cosines.argsort(1))


@given(two_coarse_batches(), seeds)
def test_any_fixed_matching_is_at_most_the_assignment_is_at_most_maxsim(
    batches: tuple[Tensor, Tensor], seed: int
) -> None:
    a, b = batches
    cosines = torch.einsum("bkd,cld->bckl", a, b)
    rows, columns = cosines.shape[-2:]
    assigned = cosines.gather(-1, maximal_assignment(cosines)[..., None])[..., 0]
    fixed = torch.randperm(columns, generator=torch.Generator().manual_seed(seed))[:rows]
    assert (cosines[..., torch.arange(rows), fixed].sum(-1) <= assigned.sum(-1) + 1e-9).all()
    assert (assigned.sum(-1) <= similarity.maxsim(a, b) + 1e-9).all()
    assert (similarity.maxmatch(a, b) <= cosines.amax(-1).expm1().mean(-1) + 1e-9).all()
    assert_close(assigned.expm1().mean(-1), similarity.maxmatch(a, b))


@given(two_coarse_batches())
def test_inference_by_top_k_is_never_below_the_matching_and_equals_it_where_the_largest_cosines_match(
    batches: tuple[Tensor, Tensor],
) -> None:
    a, b = batches
    matched, largest = similarity.maxmatch(a, b), similarity.top_k(a, b)
    assert (largest >= matched - 1e-9).all()
    cosines = torch.einsum("bkd,cld->bckl", a, b)
    assigned = cosines.gather(-1, maximal_assignment(cosines)[..., None])[..., 0].sort(-1, descending=True).values
    alike = torch.isclose(assigned, cosines.flatten(2).topk(a.shape[1], -1).values).all(-1)
    assert_close(largest[alike], matched[alike])
    assert (largest > matched + 1e-9)[~alike].all()


@given(two_batches(), st.sampled_from([1.0, 16.0]))
def test_the_mean_is_at_most_chamfer_at_most_mil_and_smooth_chamfer_is_above_chamfer_by_at_most_log_k_over_alpha(
    batches: tuple[Tensor, Tensor], alpha: float
) -> None:
    a, b = batches
    chamfer, smooth = similarity.chamfer(a, b), similarity.smooth_chamfer(a, b, alpha=alpha)
    assert (similarity.mean(a, b) <= chamfer + 1e-6).all()
    assert (chamfer <= similarity.mil(a, b) + 1e-6).all()
    assert (smooth >= chamfer - 1e-6).all()
    assert (smooth <= chamfer + math.log(a.shape[1] * b.shape[1]) / (2 * alpha) + 1e-6).all()


@given(two_coarse_batches())
def test_scores_stay_in_their_range(batches: tuple[Tensor, Tensor]) -> None:
    a, b = batches
    for name, (low, high) in {
        "maxmatch": (math.expm1(-1), math.expm1(1)),
        "top_k": (math.expm1(-1), math.expm1(1)),
        "chamfer": (-1, 1),
        "mil": (-1, 1),
        "mean": (-1, 1),
    }.items():
        scores = SIMILARITIES[name](a, b)
        assert (scores >= low - 1e-9).all()
        assert (scores <= high + 1e-9).all()


@given(seeds, st.integers(1, 8))
def test_identical_sets_have_the_largest_scores(seed: int, size: int) -> None:
    sets = random_sets(seed, 3, size, 8, dtype=torch.float64)
    same = {name: SIMILARITIES[name](sets, sets).diagonal() for name in reference.NAMES}
    ones = torch.ones(3, dtype=torch.float64)
    assert_close(same["maxmatch"], math.expm1(1) * ones)
    assert_close(same["top_k"], math.expm1(1) * ones)
    assert_close(same["chamfer"], ones)
    assert_close(same["mil"], ones)
    assert_close(same["maxsim"], size * ones)
    assert (same["smooth_chamfer"] >= 1 - 1e-9).all()
    assert (same["smooth_chamfer"] <= 1 + math.log(size) / 16 + 1e-9).all()


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("alpha", [1.0, 16.0])
def test_smooth_chamfer_rewards_a_collapsed_set_by_log_k_over_alpha(size: int, alpha: float) -> None:
    collapsed, orthonormal = random_sets(24, 1, 1, 8).expand(1, size, 8), torch.eye(8)[None, :size]
    for sets, gain in ((collapsed, size), (orthonormal, 1 + (size - 1) * math.exp(-alpha))):
        score = similarity.smooth_chamfer(sets, sets, alpha=alpha)
        assert score.item() == pytest.approx(1 + math.log(gain) / alpha, abs=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 16.0])
@pytest.mark.filterwarnings("ignore:.*unit length")
def test_smooth_chamfer_of_a_set_is_never_below_that_of_its_mean(alpha: float) -> None:
    sets, others = random_sets(25, 6, 4, 8), random_sets(26, 5, 4, 8)
    means = sets.mean(dim=1, keepdim=True).expand_as(sets)
    scores, of_means = (similarity.smooth_chamfer(one, others, alpha=alpha) for one in (sets, means))
    assert (scores > of_means + 1e-4).all()


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_where_matchings_tie_the_score_is_that_of_the_lexicographically_first(size: int) -> None:
    # Vectors of ±½ in four dimensions: cosines are halves, and matchings of one total differ in Σ exp(c).
    signs = torch.randint(2, (2, 12, size, 4), generator=torch.Generator().manual_seed(size)) - 0.5
    a, b = signs
    scores = similarity.maxmatch(a, b)
    for i, j in itertools.product(range(12), repeat=2):
        block = (a[i] @ b[j].T).double().numpy()
        columns = reference.first_best_matching(block)
        expected = sum(math.expm1(block[row, column]) for row, column in enumerate(columns)) / size
        assert scores[i, j].item() == pytest.approx(expected, abs=1e-6)


def test_where_matchings_tie_the_other_set_may_prefer_another_one() -> None:
    first, second = [[0, 1], [1, 2], [2, 0]], [[0, 2], [1, 0], [2, 1]]  # both shift by one: each is the other's inverse
    cosines = torch.zeros(3, 3, dtype=torch.float64)
    for (row, column), value in zip(first + second, [0.25, 0.25, 0.25, 0.5, 0.25, 0.0], strict=True):
        cosines[row, column] = value
    rest = (1 - cosines.square().sum(1)).sqrt()
    a, b = torch.cat([cosines, rest.diag()], 1)[None], torch.eye(6, dtype=torch.float64)[None, :3]
    assert similarity.maxmatch(a, b).item() == pytest.approx(math.expm1(0.25))
    assert similarity.maxmatch(b, a).item() == pytest.approx((math.expm1(0.5) + math.expm1(0.25)) / 3)
