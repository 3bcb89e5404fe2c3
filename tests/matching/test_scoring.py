from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from reference import axis_sets, random_mask, random_sets
from torch import Tensor
from torch.testing import assert_close

from maxmatch import score_matrix, top_hits, top_hits_both
from maxmatch.checks import NotFiniteError, NotUnitLength
from maxmatch.matching import compiled, similarity, tiles
from maxmatch.matching.similarity import SIMILARITIES
from maxmatch.types import TopHits

every_similarity = pytest.mark.parametrize("name", reference.NAMES)
every_function = pytest.mark.parametrize(
    "function", [score_matrix, partial(top_hits, k=2), partial(top_hits_both, k=2)], ids=["matrix", "hits", "both"]
)
A, B = random_sets(1, 11, 4, 16), random_sets(2, 13, 4, 16)
A_MASK, B_MASK = random_mask(3, 11, 4), random_mask(4, 13, 4)
TINY = 20_000  # a few pairs a tile


@pytest.fixture(params=["plain", "compiled"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without the compiled code, whatever the size of the job and whether it was loaded before."""
    code = compiled if request.param == "compiled" else None
    monkeypatch.setattr(tiles, "compiled_for", lambda *_, **__: code)
    return request.param


@pytest.fixture
def tile_shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shapes of the tiles that are scored by plain torch."""
    shapes = []

    def recorded(a: Tensor, b: Tensor, *masks: Tensor | None, **options: Tensor | None) -> Tensor:
        shapes.append((len(a), len(b)))
        return similarity.maxmatch(a, b, *masks, **options)

    monkeypatch.setattr(tiles, "compiled_for", lambda *_, **__: None)
    monkeypatch.setitem(SIMILARITIES, "maxmatch", recorded)
    return shapes


def assert_hits(hits: TopHits, matrix: Tensor, k: int) -> None:
    """The hits are the k best of the rows of the matrix, equal ones in the order of their indices."""
    expected = torch.tensor(reference.sorted_hits(matrix, k)).view(len(matrix), -1)
    assert hits.indices.dtype == torch.long
    assert hits.indices.tolist() == expected.tolist()
    assert_close(hits.scores, matrix.gather(1, expected), atol=1e-6, rtol=1e-6)


# --- in tiles as in one go ------------------------------------------------------------------------------------------


@every_similarity
@pytest.mark.parametrize("max_memory", [1, TINY, 2**30])
@pytest.mark.parametrize("masked", [False, True])
def test_tiles_change_no_score(name: str, max_memory: int, masked: bool) -> None:
    masks = {"a_mask": A_MASK, "b_mask": B_MASK} if masked else {}
    a, b = (A, B) if max_memory > 1 else (A[:4], B[:3])  # one pair at a time
    masks = {key: mask[: len(a if key == "a_mask" else b)] for key, mask in masks.items()}
    scores = score_matrix(a, b, name, max_memory, **masks)
    assert scores.dtype == torch.float32
    assert_close(scores, SIMILARITIES[name](a, b, **masks), atol=1e-6, rtol=1e-6)


@every_similarity
@pytest.mark.parametrize("k", [1, 7, 1000])
@pytest.mark.parametrize("masked", [False, True])
def test_hits_are_the_sorted_scores(name: str, k: int, masked: bool) -> None:
    a, b = A.double(), B.double()
    masks = {"a_mask": A_MASK, "b_mask": B_MASK} if masked else {}
    matrix = SIMILARITIES[name](a, b, **masks)
    assert_hits(top_hits(a, b, k, name, 2 * TINY, **masks), matrix, k)
    forth, back = top_hits_both(a, b, k, name, 2 * TINY, **masks)
    assert_hits(forth, matrix, k)
    assert_hits(back, matrix.T, k)


@pytest.mark.parametrize("name", ["mil", "mean", "maxmatch"])
@pytest.mark.parametrize("max_memory", [1, TINY, 2**30])
@pytest.mark.parametrize("k", [1, 6, 20])
@pytest.mark.usefixtures("path")
def test_of_equal_scores_the_lower_index_comes_first(name: str, max_memory: int, k: int) -> None:
    a, b = axis_sets(5, 3, 4, 3), axis_sets(6, 15, 4, 3)
    matrix = score_matrix(a, b, name)
    assert len(matrix.unique()) < 20
    assert_hits(top_hits(a, b, k, name, max_memory), matrix, k)
    forth, back = top_hits_both(a, b, k, name, max_memory)
    assert_hits(forth, matrix, k)
    assert_hits(back, matrix.T, k)


def test_a_gallery_of_one_thing_is_given_in_order() -> None:
    hits = top_hits(A[:3], B[:1].expand(50, 4, 16), 20, lambda a, b: torch.ones(len(a), len(b)), TINY)
    assert hits.indices.tolist() == [list(range(20))] * 3


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("max_memory", [TINY, 2**30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_compiled_code_changes_no_score(max_memory: int, dtype: torch.dtype) -> None:
    a, b = A.to(dtype), B.to(dtype)
    scores = score_matrix(a, b, max_memory=max_memory)
    assert scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_close(scores, similarity.maxmatch(a, b), atol=1e-6, rtol=1e-6)
    for hits, matrix in zip(top_hits_both(a, b, 5, max_memory=max_memory), (scores, scores.T), strict=True):
        assert_close(hits.scores, matrix.topk(5).values, atol=1e-6, rtol=1e-6)
        assert_close(matrix.gather(1, hits.indices), hits.scores, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("path", ["compiled"], indirect=True)
def test_compiled_code_is_used_for_sets_of_four_in_single_precision_alone(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = compiled.matched_cosines

    def counted(*arguments: object) -> None:
        calls.append(1)
        original(*arguments)

    monkeypatch.setattr(compiled, "matched_cosines", counted)
    score_matrix(A, B)
    assert calls
    calls.clear()
    score_matrix(A[:, :3], B[:, :3])
    score_matrix(A[:, :3], B)
    score_matrix(A, B, a_mask=A_MASK)
    score_matrix(A, B, "mil")
    score_matrix(A, B, similarity.maxmatch)
    score_matrix(A, B.half())
    assert not calls


@pytest.mark.usefixtures("path")
def test_vectors_of_two_precisions_can_be_compared() -> None:
    for x, y in ((torch.float16, torch.float32), (torch.float64, torch.float32), (torch.bfloat16, torch.float16)):
        scores = score_matrix(A.to(x), B.to(y), max_memory=TINY)
        assert scores.dtype == (torch.float64 if torch.float64 in (x, y) else torch.float32)
        assert_close(scores, similarity.maxmatch(A.to(x), B.to(y)), atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("max_memory", [TINY, 2**30])
def test_arrays_and_read_only_memory_maps_score_as_tensors(tmp_path: Path, max_memory: int) -> None:
    np.save(tmp_path / "a.npy", A.numpy())
    np.save(tmp_path / "b.npy", B.numpy())
    a, b = np.load(tmp_path / "a.npy", mmap_mode="r"), np.load(tmp_path / "b.npy", mmap_mode="r")
    expected = similarity.maxmatch(A, B)
    for x, y in ((A.numpy(), B.numpy()), (a, b), (A, b), (np.asfortranarray(a), B.numpy()[::-1][::-1])):
        assert_close(score_matrix(x, y, max_memory=max_memory), expected, atol=1e-6, rtol=1e-6)
    masks = {"a_mask": A_MASK, "b_mask": B_MASK}
    expected = similarity.maxmatch(A.double(), B.double(), **masks)
    hits, back = top_hits_both(a.astype(np.float64), b.astype(np.float64), 5, max_memory=max_memory, **masks)
    assert_hits(hits, expected, 5)
    assert_hits(back, expected.T, 5)
    assert_close(
        score_matrix(a.astype(np.float16), b.astype(np.float16)),
        similarity.maxmatch(A.half(), B.half()),
        atol=1e-6,
        rtol=1e-6,
    )


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_vectors_of_any_length_are_normalised_on_the_way(as_array: bool, masked: bool) -> None:
    lengths = torch.arange(1, 12)[:, None, None] * torch.tensor([0.1, 1.0, 7.0, 30.0])[:, None]
    a, b = A * lengths, B * 5
    before = a.clone()
    masks = {"a_mask": A_MASK, "b_mask": B_MASK} if masked else {}
    x, y = (a.numpy(), b.numpy()) if as_array else (a, b)
    scores = score_matrix(x, y, max_memory=TINY, normalise=True, **masks)
    assert_close(scores, similarity.maxmatch(A, B, **masks), atol=1e-6, rtol=1e-6)
    assert_close(top_hits(x, y, 3, max_memory=TINY, normalise=True, **masks).scores, scores.topk(3).values)
    assert torch.equal(a, before)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_vectors_of_other_precisions_are_normalised_on_the_way(dtype: torch.dtype) -> None:
    scores = score_matrix((A * 50).to(dtype), (B * 0.01).to(dtype), max_memory=TINY, normalise=True)
    assert_close(scores.float(), similarity.maxmatch(A, B), atol=2e-2, rtol=0)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_zero_vector_that_is_normalised_gives_no_silent_nan(dtype: torch.dtype) -> None:
    a = (A * 3).to(dtype)
    a[9, 2] = 0.0
    try:
        scores = score_matrix(a, B.to(dtype), max_memory=TINY, normalise=True)
    except NotFiniteError as error:
        assert "a: item 9 " in str(error)  # noqa: PT017 (either outcome is right)
    else:
        cosines = torch.einsum("kd,cld->ckl", A[9].index_fill(0, torch.tensor(2), 0.0), B)
        expected = [sum(block.expm1().max(1).values) for block in cosines]
        assert torch.isfinite(scores).all()
        assert (scores[9] <= torch.stack(expected) / 4 + 2e-2).all()


@pytest.mark.parametrize("max_memory", [TINY, 2**30])
def test_a_function_serves_as_similarity(max_memory: int) -> None:
    gentle = partial(similarity.smooth_chamfer, alpha=4.0)
    masks = {"a_mask": A_MASK, "b_mask": B_MASK}
    assert_close(score_matrix(A, B, gentle, max_memory), gentle(A, B), atol=1e-6, rtol=1e-6)
    assert_close(score_matrix(A, B, gentle, max_memory, **masks), gentle(A, B, **masks), atol=1e-6, rtol=1e-6)
    a, b = A.double(), B.double()
    assert_hits(top_hits(a, b, 5, gentle, max_memory, **masks), gentle(a, b, **masks), 5)

    def first_vectors(a: Tensor, b: Tensor) -> Tensor:
        return a[:, 0] @ b[:, 0].T

    assert_close(score_matrix(A, B, first_vectors, max_memory), A[:, 0] @ B[:, 0].T, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("max_memory", [TINY, 2**30])
def test_items_that_a_function_excludes_by_minus_infinity_keep_their_index(max_memory: int) -> None:
    def half_only(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, 0] @ b[:, 0].T).masked_fill(b[:, 0, 0] < 0, -torch.inf)

    a, b = A.double(), B.double()
    assert_hits(top_hits(a, b, 13, half_only, max_memory), half_only(a, b), 13)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("name", ["maxmatch", "mil"])
def test_without_items_there_are_no_scores(name: str) -> None:
    for a, b in ((A[:0], B), (A, B[:0]), (A[:0], B[:0])):
        assert score_matrix(a, b, name).shape == (len(a), len(b))
        hits = top_hits(a, b, 3, name)
        assert hits.scores.shape == hits.indices.shape == (len(a), min(3, len(b)))
        forth, back = top_hits_both(a, b, 3, name)
        assert forth.indices.shape == (len(a), min(3, len(b)))
        assert back.indices.shape == (len(b), min(3, len(a)))


@pytest.mark.usefixtures("path")
def test_scores_carry_no_gradient_and_inputs_stay_as_they_are() -> None:
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    scores = score_matrix(a, b, max_memory=TINY)
    assert not scores.requires_grad
    assert not top_hits(a, b, 3).scores.requires_grad
    assert_close(scores, similarity.maxmatch(A, B))
    assert torch.equal(a, A)
    assert torch.equal(b, B)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 2), (3, 5), (5, 3), (6, 6), (9, 10), (16, 1)])
def test_sets_of_every_size_are_scored(rows: int, columns: int) -> None:
    a, b = random_sets(7, 6, rows, 8), random_sets(8, 7, columns, 8)
    expected = reference.scores("maxmatch", a, b)
    assert_close(score_matrix(a, b, max_memory=TINY).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(("n_a", "n_b"), [(1, 100), (100, 1), (2, 90)])
def test_a_few_against_many(n_a: int, n_b: int) -> None:
    a, b = random_sets(9, n_a, 4, 4), random_sets(10, n_b, 4, 4)
    assert_close(score_matrix(a, b, max_memory=TINY), similarity.maxmatch(a, b), atol=1e-6, rtol=1e-6)


# --- memory ---------------------------------------------------------------------------------------------------------


def test_every_pair_is_scored_once(tile_shapes: list[tuple[int, int]]) -> None:
    score_matrix(A, B, max_memory=TINY)
    assert sum(height * width for height, width in tile_shapes) == len(A) * len(B)
    assert len(tile_shapes) > 5


def test_where_memory_is_short_of_a_pair_it_is_a_pair_at_a_time(tile_shapes: list[tuple[int, int]]) -> None:
    score_matrix(A[:3], B[:4], max_memory=1)
    assert tile_shapes == [(1, 1)] * 12


def test_how_many_pairs_a_tile_holds_does_not_depend_on_the_width_of_vectors(
    tile_shapes: list[tuple[int, int]],
) -> None:
    score_matrix(random_sets(26, 30, 2, 3), random_sets(27, 40, 2, 3), max_memory=2**16)
    narrow = tile_shapes[0]
    tile_shapes.clear()
    score_matrix(random_sets(26, 30, 2, 16), random_sets(27, 40, 2, 16), max_memory=2**16)
    assert tile_shapes[0] == narrow
    assert 1 < narrow[0] * narrow[1] < 30 * 40


def test_one_pass_serves_both_directions(tile_shapes: list[tuple[int, int]]) -> None:
    top_hits_both(A, B, 3, max_memory=TINY)
    assert sum(height * width for height, width in tile_shapes) == len(A) * len(B)


@every_similarity
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_allocated_stays_within_max_memory(
    name: str, masked: bool, dtype: torch.dtype, allocation_meter: type
) -> None:
    a, b = random_sets(11, 50, 4, 16, dtype=dtype), random_sets(12, 60, 4, 16, dtype=dtype)
    masks = {"a_mask": random_mask(13, 50, 4), "b_mask": random_mask(14, 60, 4)} if masked else {}
    assert _peak(allocation_meter, a, b, name, 2**20, **masks) <= 2**20


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (16, 1), (2, 6), (5, 5), (8, 8), (16, 16)])
@pytest.mark.parametrize("masked", [False, True])
def test_max_memory_holds_for_sets_of_every_size(rows: int, columns: int, masked: bool, allocation_meter: type) -> None:
    a, b = random_sets(15, 24, rows, 8), random_sets(16, 25, columns, 8)
    masks = {"a_mask": random_mask(17, 24, rows), "b_mask": random_mask(18, 25, columns)} if masked else {}
    assert _peak(allocation_meter, a, b, "maxmatch", 2**19, **masks) <= 2**19


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("kind", ["tensor", "half", "array", "normalised"])
def test_max_memory_holds_for_wide_vectors(kind: str, allocation_meter: type) -> None:
    a, b = random_sets(19, 80, 4, 256), random_sets(20, 80, 4, 256)
    if kind == "half":
        a, b = a.half(), b.half()
    x, y = (a.numpy(), b.numpy()) if kind == "array" else (a, b)
    assert _peak(allocation_meter, x, y, "maxmatch", 2**19, normalise=kind == "normalised") <= 2**19


def test_hits_never_hold_the_matrix(allocation_meter: type) -> None:
    a, b = random_sets(21, 200, 1, 2), random_sets(22, 200, 1, 2)
    with allocation_meter(a, b) as meter:
        hits = top_hits_both(a, b, 2, "mil", max_memory=2**16)
    result = sum(part.nbytes for direction in hits for part in direction)
    assert meter.peak_bytes - result <= 2**16 < 200 * 200 * 4


def _peak(meter_of: type, a: object, b: object, name: str, max_memory: int, **options: object) -> int:
    """The most bytes alive at once in score_matrix, beside its inputs and its result."""
    known = [torch.as_tensor(x) for x in (a, b, *options.values()) if isinstance(x, Tensor | np.ndarray)]
    with meter_of(*known) as meter:
        scores = score_matrix(a, b, name, max_memory, **options)
    return meter.peak_bytes - scores.nbytes


# --- bad input ------------------------------------------------------------------------------------------------------


@every_function
@pytest.mark.usefixtures("without_shape_checks", "path")
class TestBadInput:
    def test_what_is_no_batch_of_sets_is_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"a: expected sets of shape .*got 4×16.*For one set use a\[None\]"):
            function(a=A[0], b=B)
        with pytest.raises(
            ValueError, match=r"b: expected sets of shape .*got 13×16.*one vector an item use b\[:, None\]"
        ):
            function(a=A, b=B[:, 0].numpy())

    def test_vectors_of_another_width_are_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"a has vectors of width 16 and b of width 15.*same model"):
            function(a=A, b=B[..., :15])

    def test_integers_are_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"a: expected floating-point vectors, got int64.*Convert"):
            function(a=np.ones((3, 4, 16), dtype=np.int64), b=B)
        with pytest.raises(ValueError, match=r"b: expected floating-point vectors, got torch\.uint8.*Convert"):
            function(a=A, b=torch.ones(3, 4, 16, dtype=torch.uint8))

    def test_sets_of_no_or_too_many_vectors_are_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"b: sets of 0 vectors of width 16 are empty; give at least one"):
            function(a=A, b=B[:, :0])
        with pytest.raises(ValueError, match=r"b: sets of 17 vectors.*at most 16.*Use fewer"):
            function(a=A, b=random_sets(23, 2, 17, 16))

    def test_an_unknown_similarity_is_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"similarity: expected one of maxmatch, top_k, .*got 'cosine'"):
            function(a=A, b=B, similarity="cosine")

    def test_masks_that_do_not_fit_are_refused(self, function: Callable[..., object]) -> None:
        with pytest.raises(ValueError, match=r"a_mask: .*boolean mask of shape \(11, 4\).*got torch\.bool 13×4"):
            function(a=A, b=B, a_mask=B_MASK)
        with pytest.raises(ValueError, match=r"b_mask: .*boolean mask of shape \(13, 4\).*got torch\.float32 13×4"):
            function(a=A, b=B, b_mask=B_MASK.float())

    def test_an_item_without_real_vectors_is_refused_and_named(self, function: Callable[..., object]) -> None:
        mask = B_MASK.clone()
        mask[12] = False
        with pytest.raises(ValueError, match=r"b_mask: item \[12\] has no vector left.*Leave such items out"):
            function(a=A, b=B, b_mask=mask, max_memory=TINY)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    @pytest.mark.parametrize("normalise", [False, True])
    @pytest.mark.filterwarnings("ignore::maxmatch.checks.NotUnitLength")  # infinite vectors are not of unit length
    def test_what_is_not_finite_is_refused_and_named_by_its_place_in_the_whole(
        self, function: Callable[..., object], value: float, normalise: bool
    ) -> None:
        bad_a, bad_b = A.clone(), B.clone()
        bad_a[10, 2, 5] = bad_b[11, 0, 0] = value
        message = r" holds NaN or infinite values.*leave such items out"
        for a in (bad_a, bad_a.numpy()):
            with pytest.raises(NotFiniteError, match="^a: item 10" + message):
                function(a=a, b=B, max_memory=TINY, normalise=normalise)
        with pytest.raises(NotFiniteError, match="^b: item 11" + message):
            function(a=A, b=bad_b, max_memory=TINY, normalise=normalise)
        with pytest.raises(NotFiniteError, match="^b: item 11" + message):
            function(a=A, b=bad_b, similarity="smooth_chamfer", max_memory=TINY, normalise=normalise)

    def test_a_hidden_nan_is_not_blamed_for_another(self, function: Callable[..., object]) -> None:
        a, mask = A.clone(), torch.ones_like(A_MASK)
        a[3, 1] = torch.nan
        mask[3, 1] = False
        function(a=a, b=B, a_mask=mask, max_memory=TINY)
        a[10, 2, 5] = torch.nan
        with pytest.raises(NotFiniteError, match=r"^a: item 10 "):
            function(a=a, b=B, a_mask=mask, max_memory=TINY)

    def test_a_nan_does_not_pass_through_a_function(self, function: Callable[..., object]) -> None:
        a = A.clone()
        a[10, 2, 5] = torch.nan
        with pytest.raises(NotFiniteError, match=r"^a: item 10 "):
            function(a=a, b=B, similarity=lambda a, b: a.mean(1) @ b.mean(1).T, max_memory=TINY)

    def test_cosines_that_overflow_are_refused_though_the_vectors_are_finite(
        self, function: Callable[..., object]
    ) -> None:
        sets = random_sets(24, 130, 4, 8)
        sets[1] = 1e30 * sets[1].sign()  # not in the sample that is looked at for unit length
        with pytest.raises(NotFiniteError):
            function(a=sets, b=sets, max_memory=2**20)

    @pytest.mark.parametrize("as_array", [False, True])
    def test_vectors_not_of_unit_length_are_warned_of_with_the_cure(
        self, function: Callable[..., object], as_array: bool
    ) -> None:
        a, b = (A.numpy() * 3, B.numpy()) if as_array else (A * 3, B)
        message = r": vectors should have unit length, but norms from 3 to 3 came.*Pass normalise=True"
        with pytest.warns(NotUnitLength, match="^a" + message) as said:
            function(a=a, b=b, max_memory=TINY)
        assert len(said) == 1
        with pytest.warns(NotUnitLength, match="^b" + message):
            function(a=b, b=a, max_memory=TINY, similarity="mil")
        function(a=a, b=b, max_memory=TINY, normalise=True)


@pytest.mark.parametrize("k", [0, -3])
@pytest.mark.parametrize("function", [top_hits, top_hits_both])
def test_fewer_than_one_hit_is_refused(function: Callable[..., object], k: int) -> None:
    with pytest.raises(ValueError, match=f"k: expected at least 1, got {k}"):
        function(A, B, k)
    with pytest.raises(ValueError, match=f"k: expected at least 1, got {k}"):
        function(A[:0], B, k)


def test_a_nan_among_thousands_is_named() -> None:
    sets = random_sets(25, 5000, 1, 2)
    sets[4500] = torch.nan
    with pytest.raises(NotFiniteError, match=r"^b: item 4500 "):
        score_matrix(sets[:2], sets, "mil")
