import itertools
import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from reference import random_mask, random_sets
from torch import Tensor
from torch.testing import assert_close

from maxmatch.checks import NotFiniteError, NotUnitLength
from maxmatch.matching import similarity
from maxmatch.matching.assignment import maximal_assignment
from maxmatch.matching.similarity import SIMILARITIES, Similarity

every_similarity = pytest.mark.parametrize("name", reference.NAMES)
seeds = st.integers(0, 10**6)
sizes = st.integers(1, 6)
# few against many, many against few, many against many; more and fewer vectors than the other set
SHAPES = [((1, 4, 16), (9, 4, 16)), ((9, 2, 16), (1, 5, 16)), ((6, 5, 8), (7, 3, 8)), ((5, 4, 3), (6, 4, 3))]


@st.composite
def two_batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Sets in general position, in float64."""
    seed, width = draw(seeds), draw(st.integers(2, 8))
    a = random_sets(seed, draw(st.integers(1, 4)), draw(sizes), width, dtype=torch.float64)
    return a, random_sets(seed + 1, draw(st.integers(1, 4)), draw(sizes), width, dtype=torch.float64)


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


def test_the_seven_similarities_have_names() -> None:
    assert set(SIMILARITIES) == set(reference.NAMES)
    for name, function in SIMILARITIES.items():
        assert function is getattr(similarity, name)


# --- the definitions ------------------------------------------------------------------------------------------------


@every_similarity
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_similarity_agrees_with_its_definition(
    name: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    a, b = random_sets(1, *a_shape, dtype=dtype), random_sets(2, *b_shape, dtype=dtype)
    scores = SIMILARITIES[name](a, b)
    assert scores.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert_close(scores.double(), reference.scores(name, a, b), atol=tolerance, rtol=tolerance)


@every_similarity
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
@pytest.mark.parametrize("masked", ["a", "b", "both"])
def test_masked_similarity_agrees_with_its_definition_on_what_is_real(
    name: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], masked: str
) -> None:
    a, b = random_sets(3, *a_shape), random_sets(4, *b_shape)
    a_mask = random_mask(5, *a_shape[:2]) if masked in ("a", "both") else None
    b_mask = random_mask(6, *b_shape[:2]) if masked in ("b", "both") else None
    scores = SIMILARITIES[name](a, b, a_mask, b_mask)
    assert_close(scores.double(), reference.scores(name, a, b, a_mask, b_mask), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (16, 1), (16, 16), (9, 7), (8, 8), (5, 6)])
def test_maxmatch_agrees_with_its_definition_for_large_sets(rows: int, columns: int) -> None:
    a, b = random_sets(7, 5, rows, 8), random_sets(8, 6, columns, 8)
    assert_close(similarity.maxmatch(a, b).double(), reference.scores("maxmatch", a, b), atol=1e-6, rtol=1e-6)
    masks = random_mask(9, 5, rows), random_mask(10, 6, columns)
    expected = reference.scores("maxmatch", a, b, *masks)
    assert_close(similarity.maxmatch(a, b, *masks).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 5, 12, 40])
def test_top_k_takes_the_k_largest_or_all_there_are(k: int) -> None:
    a, b = random_sets(11, 5, 4, 8), random_sets(12, 6, 3, 8)
    masks = random_mask(13, 5, 4), random_mask(14, 6, 3)
    assert_close(similarity.top_k(a, b, k=k).double(), reference.scores("top_k", a, b, k=k), atol=1e-6, rtol=1e-6)
    expected = reference.scores("top_k", a, b, *masks, k=k)
    assert_close(similarity.top_k(a, b, *masks, k=k).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.5, 4.0, 55.0])
def test_smooth_chamfer_takes_any_alpha(alpha: float) -> None:
    a, b = random_sets(15, 5, 4, 8), random_sets(16, 6, 3, 8)
    masks = random_mask(17, 5, 4), random_mask(18, 6, 3)
    expected = reference.scores("smooth_chamfer", a, b, alpha=alpha)
    assert_close(similarity.smooth_chamfer(a, b, alpha=alpha).double(), expected, atol=2e-6, rtol=1e-6)
    expected = reference.scores("smooth_chamfer", a, b, *masks, alpha=alpha)
    assert_close(similarity.smooth_chamfer(a, b, *masks, alpha=alpha).double(), expected, atol=2e-6, rtol=1e-6)


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
def test_empty_batches_have_no_scores(name: str) -> None:
    sets = random_sets(23, 3, 4, 8)
    assert SIMILARITIES[name](sets[:0], sets).shape == (0, 3)
    assert SIMILARITIES[name](sets, sets[:0]).shape == (3, 0)


@every_similarity
@given(two_batches(), seeds)
def test_order_within_a_set_is_irrelevant(name: str, batches: tuple[Tensor, Tensor], seed: int) -> None:
    a, b = batches
    generator = torch.Generator().manual_seed(seed)
    shuffled_a = a[:, torch.randperm(a.shape[1], generator=generator)]
    shuffled_b = b[:, torch.randperm(b.shape[1], generator=generator)]
    assert_close(SIMILARITIES[name](shuffled_a, shuffled_b), SIMILARITIES[name](a, b))


@pytest.mark.parametrize("name", [name for name in reference.NAMES if name != "maxsim"])
@given(two_batches())
def test_similarity_is_symmetric(name: str, batches: tuple[Tensor, Tensor]) -> None:
    a, b = batches
    assert_close(SIMILARITIES[name](a, b), SIMILARITIES[name](b, a).T)


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
    same = {name: function(sets, sets).diagonal() for name, function in SIMILARITIES.items()}
    ones = torch.ones(3, dtype=torch.float64)
    assert_close(same["maxmatch"], math.expm1(1) * ones)
    assert_close(same["top_k"], math.expm1(1) * ones)
    assert_close(same["chamfer"], ones)
    assert_close(same["mil"], ones)
    assert_close(same["maxsim"], size * ones)
    assert (same["smooth_chamfer"] >= 1 - 1e-9).all()
    assert (same["smooth_chamfer"] <= 1 + math.log(size) / 16 + 1e-9).all()


@pytest.mark.parametrize("size", [1, 2, 4, 16])
@pytest.mark.parametrize("alpha", [1.0, 16.0])
def test_collapsed_identical_sets_score_one_plus_log_k_over_alpha(size: int, alpha: float) -> None:
    collapsed = random_sets(24, 1, 1, 8).expand(1, size, 8)
    score = similarity.smooth_chamfer(collapsed, collapsed, alpha=alpha)
    assert score.item() == pytest.approx(1 + math.log(size) / alpha, abs=1e-6)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_identical_orthonormal_sets_gain_almost_nothing_in_smooth_chamfer(size: int) -> None:
    sets = torch.eye(8)[None, :size]
    expected = 1 + math.log(1 + (size - 1) * math.exp(-16)) / 16
    assert similarity.smooth_chamfer(sets, sets).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 16.0])
@pytest.mark.filterwarnings("ignore:.*unit length")
def test_smooth_chamfer_of_a_set_is_never_below_that_of_its_mean(alpha: float) -> None:
    sets, others = random_sets(25, 6, 4, 8), random_sets(26, 5, 4, 8)
    means = sets.mean(dim=1, keepdim=True).expand_as(sets)
    scores, of_means = (similarity.smooth_chamfer(one, others, alpha=alpha) for one in (sets, means))
    assert (scores > of_means + 1e-4).all()
    assert_close(similarity.smooth_chamfer(means, others, alpha=alpha), of_means)


# --- masks ----------------------------------------------------------------------------------------------------------


@every_similarity
@pytest.mark.parametrize("padding", [0.0, 1e30, torch.inf, torch.nan])
@settings(max_examples=8)
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


@every_similarity
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


@every_similarity
def test_all_true_masks_change_nothing(name: str) -> None:
    a, b = random_sets(27, 5, 4, 8), random_sets(28, 6, 3, 8)
    masks = torch.ones(5, 4, dtype=torch.bool), torch.ones(6, 3, dtype=torch.bool)
    assert_close(SIMILARITIES[name](a, b, *masks), SIMILARITIES[name](a, b))


# --- gradients ------------------------------------------------------------------------------------------------------


@every_similarity
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (2, 3)])
def test_gradient_is_that_of_the_score(name: str, masked: bool, rows: int, columns: int) -> None:
    a = random_sets(29, 1, rows, 2, dtype=torch.float64).requires_grad_()
    b = random_sets(30, 2, columns, 2, dtype=torch.float64).requires_grad_()
    masks = (random_mask(31, 1, rows), random_mask(32, 2, columns)) if masked else ()
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


# --- precision ------------------------------------------------------------------------------------------------------


@every_similarity
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision_vectors_are_scored_in_single_precision(name: str, dtype: torch.dtype, masked: bool) -> None:
    a, b = random_sets(34, 9, 4, 32), random_sets(35, 10, 4, 32)
    masks = (random_mask(36, 9, 4), random_mask(37, 10, 4)) if masked else ()
    scores = SIMILARITIES[name](a.to(dtype), b.to(dtype), *masks)
    assert scores.dtype == torch.float32
    assert_close(scores, SIMILARITIES[name](a.to(dtype).float(), b.to(dtype).float(), *masks), atol=1e-6, rtol=1e-6)
    assert_close(scores, SIMILARITIES[name](a, b, *masks), atol=2e-2, rtol=0)


@every_similarity
def test_vectors_of_two_precisions_can_be_compared(name: str) -> None:
    a, b = random_sets(38, 3, 4, 32), random_sets(39, 4, 4, 32)
    for x, y in itertools.permutations((torch.float16, torch.bfloat16, torch.float32, torch.float64), 2):
        scores = SIMILARITIES[name](a.to(x), b.to(y))
        assert scores.dtype == (torch.float64 if torch.float64 in (x, y) else torch.float32)
        assert_close(scores.float(), SIMILARITIES[name](a, b), atol=2e-2, rtol=0)


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


# --- bad input ------------------------------------------------------------------------------------------------------


@every_similarity
@pytest.mark.usefixtures("without_shape_checks")
class TestBadInput:
    sets = random_sets(47, 5, 4, 8)

    def test_what_is_no_batch_of_sets_is_refused(self, name: str) -> None:
        for wrong, shape in ((self.sets[0], "4×8"), (self.sets[None], "1×5×4×8"), (torch.tensor(1.0), "a scalar")):
            message = rf"expected sets of shape \(items, vectors, width\), got {shape}.*For one set use [ab]\[None\]"
            with pytest.raises(ValueError, match="a: " + message):
                SIMILARITIES[name](wrong, self.sets)
            with pytest.raises(ValueError, match="b: " + message):
                SIMILARITIES[name](self.sets, wrong)

    def test_vectors_of_another_width_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"a has vectors of width 8 and b of width 7.*Encode both with the same"):
            SIMILARITIES[name](self.sets, random_sets(48, 5, 4, 7))

    def test_integers_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"b: expected floating-point vectors, got torch\.int64.*\.float\(\)"):
            SIMILARITIES[name](self.sets, torch.zeros(5, 4, 8, dtype=torch.long))

    def test_sets_without_vectors_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"a: sets of 0 vectors of width 8 are empty; give at least one"):
            SIMILARITIES[name](self.sets[:, :0], self.sets)
        with pytest.raises(ValueError, match=r"a: sets of 4 vectors of width 0 are empty; give at least one"):
            SIMILARITIES[name](self.sets[..., :0], self.sets[..., :0])

    def test_sets_of_seventeen_vectors_are_refused(self, name: str) -> None:
        seventeen = random_sets(49, 2, 17, 8)
        with pytest.raises(ValueError, match=r"a: sets of 17 vectors.*at most 16.*Use fewer"):
            SIMILARITIES[name](seventeen, self.sets)
        with pytest.raises(ValueError, match=r"b: sets of 17 vectors.*at most 16.*Use fewer"):
            SIMILARITIES[name](self.sets, seventeen)

    def test_sets_on_two_devices_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"a is on cpu and b on meta: move one with \.to\(\)"):
            SIMILARITIES[name](self.sets, self.sets.to("meta"))

    def test_masks_of_another_shape_or_type_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"a_mask: .*boolean mask of shape \(5, 4\).*got torch\.bool 5×3"):
            SIMILARITIES[name](self.sets, self.sets, torch.ones(5, 3, dtype=torch.bool))
        with pytest.raises(ValueError, match=r"b_mask: .*boolean mask of shape \(5, 4\).*got torch\.int64 5×4"):
            SIMILARITIES[name](self.sets, self.sets, b_mask=torch.ones(5, 4, dtype=torch.long))

    def test_an_item_without_real_vectors_is_refused_and_named(self, name: str) -> None:
        mask = torch.ones(5, 4, dtype=torch.bool)
        mask[3] = False
        with pytest.raises(ValueError, match=r"b_mask: item \[3\] has no vector left.*Leave such items out"):
            SIMILARITIES[name](self.sets, self.sets, b_mask=mask)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.filterwarnings("ignore::maxmatch.checks.NotUnitLength")  # infinite vectors are not of unit length
    def test_what_is_not_finite_is_refused_and_its_item_named(self, name: str, value: float, masked: bool) -> None:
        bad = self.sets.clone()
        bad[3, 2, 1] = value
        masks = {}
        if masked:
            bad[1, 0] = torch.nan  # hidden, so it is not what is complained of
            mask = torch.ones(5, 4, dtype=torch.bool)
            mask[1, 0] = False
            masks = {"a_mask": mask, "b_mask": mask}
        message = r": item 3 holds NaN or infinite values.*leave such items out"
        with pytest.raises(NotFiniteError, match="^a" + message):
            SIMILARITIES[name](bad, self.sets, **masks)
        with pytest.raises(NotFiniteError, match="^b" + message):
            SIMILARITIES[name](self.sets, bad, **masks)
        with pytest.raises(NotFiniteError, match="^a" + message):
            SIMILARITIES[name](bad.clone().requires_grad_(), self.sets, **masks)

    def test_vectors_not_of_unit_length_are_warned_of(self, name: str) -> None:
        message = r": vectors should have unit length, but norms from 3 to 3 came.*Normalise them: torch\.nn"
        with pytest.warns(NotUnitLength, match="^a" + message):
            SIMILARITIES[name](self.sets * 3, self.sets)
        with pytest.warns(NotUnitLength, match="^b" + message):
            SIMILARITIES[name](self.sets, self.sets * 3)


@every_similarity
def test_cosines_that_overflow_are_refused_though_the_vectors_are_finite(name: str) -> None:
    sets = random_sets(55, 200, 4, 8)
    sets[1] = 1e30 * sets[1].sign()  # not in the sample that is looked at for unit length
    with pytest.raises(NotFiniteError):
        SIMILARITIES[name](sets, sets)


def test_shapes_are_checked_at_run_time_in_the_tests() -> None:
    with pytest.raises(TypeCheckError):
        similarity.mil(random_sets(56, 5, 4, 8), random_sets(57, 5, 4, 7))


def test_half_precision_rounding_is_no_reason_to_warn() -> None:
    sets = random_sets(50, 64, 4, 1024)
    for dtype in (torch.float16, torch.bfloat16):
        similarity.mil(sets.to(dtype), sets.to(dtype))


def test_padding_of_another_length_is_no_reason_to_warn() -> None:
    sets = random_sets(51, 5, 4, 8)
    mask = random_mask(52, 5, 4)
    padded = sets.masked_fill(~mask[..., None], 0.0)
    similarity.mil(padded, padded, mask, mask)


@pytest.mark.parametrize("k", [0, -1])
def test_top_k_of_fewer_than_one_is_refused(k: int) -> None:
    sets = random_sets(53, 2, 3, 8)
    with pytest.raises(ValueError, match=f"k: expected at least 1, got {k}"):
        similarity.top_k(sets, sets, k=k)


@pytest.mark.parametrize("alpha", [0.0, -16.0, math.nan])
def test_smooth_chamfer_of_an_alpha_that_is_not_positive_is_refused(alpha: float) -> None:
    sets = random_sets(54, 2, 3, 8)
    with pytest.raises(ValueError, match=f"alpha: expected a positive number, got {alpha}"):
        similarity.smooth_chamfer(sets, sets, alpha=alpha)


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
