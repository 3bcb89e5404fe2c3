from functools import partial
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from reference import axis_sets, random_sets
from scoring_cases import A_MASK, B_MASK, TINY, A, B
from similarity_cases import every_similarity
from torch import Tensor
from torch.testing import assert_close

from maxmatch import score_matrix, top_hits, top_hits_both
from maxmatch.core.checks import NotFiniteError
from maxmatch.core.types import TopHits
from maxmatch.matching import SIMILARITIES, numba_backend, similarity


def assert_hits(hits: TopHits, matrix: Tensor, k: int) -> None:
    """The hits are the k best of the rows of the matrix, equal ones in the order of their indices."""
    expected = torch.tensor(reference.sorted_hits(matrix, k)).view(len(matrix), -1)
    assert hits.indices.dtype == torch.long
    assert hits.indices.tolist() == expected.tolist()
    assert_close(hits.scores, matrix.gather(1, expected), atol=1e-6, rtol=1e-6)


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
def test_compiled_code_is_used_for_sets_of_four_in_at_most_single_precision(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = numba_backend.matched_cosines

    def counted(*arguments: object) -> None:
        calls.append(1)
        original(*arguments)

    monkeypatch.setattr(numba_backend, "matched_cosines", counted)
    for rows, columns in ((A, B), (A.half(), B.half()), (A, B.half()), (A[:1], B.half())):
        score_matrix(rows, columns)
        assert calls
        calls.clear()
    score_matrix(A[:, :3], B[:, :3])
    score_matrix(A[:, :3], B)
    score_matrix(A, B, a_mask=A_MASK)
    score_matrix(A, B, "mil")
    score_matrix(A, B, similarity.maxmatch)
    score_matrix(A, B.double())
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
