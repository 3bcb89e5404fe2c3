"""All pairs at once: tiles, few rows, precisions and arrays change no score, and hits are the sorted scores."""

import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from matching_cases import A_MASK, FEW, MANY, MASKS, TINY, A, B, every_similarity
from reference import axis_sets, random_sets
from torch import Tensor
from torch.testing import assert_close

from maxmatch import score_matrix, top_hits, top_hits_both
from maxmatch.core.checks import NotFiniteError, as_tensor
from maxmatch.core.types import TopHits
from maxmatch.matching import SIMILARITIES, numba_backend, products, similarity
from maxmatch.matching.scoring import first_largest

close = partial(assert_close, atol=1e-6, rtol=1e-6)
few_and_many = pytest.mark.parametrize(("a", "b"), [(A, B), (FEW, MANY)], ids=["many", "few"])


def assert_hits(hits: TopHits, matrix: Tensor, k: int) -> None:
    """The hits are the k best of the rows of the matrix, equal ones in the order of their indices."""
    expected = torch.tensor(reference.sorted_hits(matrix, k)).view(len(matrix), -1)
    assert hits.indices.dtype == torch.long
    assert hits.indices.tolist() == expected.tolist()
    close(hits.scores, matrix.gather(1, expected))


# --- tiles and hits -------------------------------------------------------------------------------------------------


@every_similarity
@pytest.mark.parametrize(("max_memory", "masked"), [(1, False), (TINY, True), (2**30, False)])
def test_tiles_change_no_score(name: str, max_memory: int, masked: bool) -> None:
    a, b = (A, B) if max_memory > 1 else (A[:4], B[:3])  # one pair at a time
    masks = MASKS if masked else {}
    scores = score_matrix(a, b, name, max_memory, **masks)
    assert scores.dtype == torch.float32
    close(scores, SIMILARITIES[name](a, b, **masks))


@pytest.mark.parametrize(
    ("name", "k", "masked"),
    [
        ("maxmatch", 1, False),
        ("maxmatch", 7, True),
        ("mil", 1000, False),
        ("chamfer", 7, True),
        ("paired", 7, True),
        ("sinkhorn", 7, False),
    ],
)
def test_hits_are_the_sorted_scores(name: str, k: int, masked: bool) -> None:
    a, b, masks = A.double(), B.double(), MASKS if masked else {}
    matrix = SIMILARITIES[name](a, b, **masks)
    assert_hits(top_hits(a, b, k, name, 2 * TINY, **masks), matrix, k)
    forth, back = top_hits_both(a, b, k, name, 2 * TINY, **masks)
    assert_hits(forth, matrix, k)
    assert_hits(back, matrix.T, k)


@pytest.mark.parametrize("name", ["mil", "maxmatch"])
@pytest.mark.parametrize("max_memory", [1, TINY])
@pytest.mark.parametrize("k", [1, 6, 20])
def test_of_equal_scores_the_lower_index_comes_first(name: str, max_memory: int, k: int) -> None:
    a, b = axis_sets(5, 3, 4, 3), axis_sets(6, 15, 4, 3)
    matrix = score_matrix(a, b, name)
    assert len(matrix.unique()) < 20
    assert_hits(top_hits(a, b, k, name, max_memory), matrix, k)
    forth, back = top_hits_both(a, b, k, name, max_memory)
    assert_hits(forth, matrix, k)
    assert_hits(back, matrix.T, k)


def test_a_gallery_of_equal_items_is_returned_in_order() -> None:
    hits = top_hits(A[:3], B[:1].expand(50, 4, 16), 20, lambda a, b: torch.ones(len(a), len(b)), TINY)
    assert hits.indices.tolist() == [list(range(20))] * 3


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 2), (3, 5), (5, 3), (6, 6), (9, 10), (16, 1)])
def test_sets_of_every_size_are_scored(rows: int, columns: int) -> None:
    a, b = random_sets(7, 6, rows, 8), random_sets(8, 7, columns, 8)
    close(score_matrix(a, b, max_memory=TINY).double(), reference.scores("maxmatch", a, b))


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


# --- precisions, compiled code, few rows ----------------------------------------------------------------------------


@few_and_many
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    "kinds",
    [
        "float16 float16", "bfloat16 bfloat16", "float32 float32", "float64 float64",
        "float32 float16", "float16 float32", "bfloat16 float16", "float64 float32",
    ],
)  # fmt: skip
def test_scores_are_exact_in_any_two_precisions(a: Tensor, b: Tensor, kinds: str) -> None:
    a, b = (sets.to(getattr(torch, kind)) for sets, kind in zip((a, b), kinds.split(), strict=True))
    expected = reference.scores("maxmatch", a, b)
    tolerance = 1e-12 if "float64" in kinds else 1e-6
    for max_memory in (TINY, 2**30):
        scores = score_matrix(a, b, max_memory=max_memory)
        assert scores.dtype == (torch.float64 if "float64" in kinds else torch.float32)
        assert_close(scores.double(), expected, atol=tolerance, rtol=tolerance)
    close(score_matrix(b, a).double(), expected.T)
    for hits, matrix in zip(top_hits_both(a, b, 3), (scores, scores.T), strict=True):
        close(hits.scores, matrix.topk(3).values)
        close(matrix.gather(1, hits.indices), hits.scores)


def test_another_similarity_takes_two_precisions_and_few_rows() -> None:
    expected = reference.scores("smooth_chamfer", FEW, MANY.half())
    for max_memory in (1, 2**30):
        close(score_matrix(FEW, MANY.half(), "smooth_chamfer", max_memory).double(), expected)


@pytest.mark.parametrize("block", [1, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_blocks_change_no_score(block: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_BLOCK", block)
    monkeypatch.setattr(products, "_CAST_BLOCK", block)
    close(score_matrix(FEW, MANY.to(dtype)).double(), similarity.maxmatch(FEW.double(), MANY.to(dtype).double()))


@pytest.mark.parametrize("path", ["compiled"], indirect=True)
def test_compiled_code_is_used_for_sets_of_up_to_eight_in_at_most_single_precision(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(name: str) -> None:
        original = getattr(numba_backend, name)
        monkeypatch.setattr(numba_backend, name, lambda *given: calls.append(name) or original(*given))

    counted("plane_scores")
    counted("few_scores")
    for rows, columns in ((A, B), (A.half(), B.half()), (A, B.half()), (A[:, :3], B[:, :3])):
        score_matrix(rows, columns)
        assert set(calls) == {"plane_scores"}
        calls.clear()
    for rows, columns in ((A[:1], B.half()), (FEW, MANY), (FEW[:, :3], MANY[:, :3]), (FEW.half(), MANY.bfloat16())):
        score_matrix(rows, columns)
        assert set(calls) == {"few_scores"}
        calls.clear()
    score_matrix(A[:, :3], B)
    score_matrix(A, B, a_mask=A_MASK)
    score_matrix(A, B, "mil")
    score_matrix(A, B, similarity.maxmatch)
    score_matrix(A, B.double())
    score_matrix(random_sets(7, 20, 9, 16), random_sets(8, 20, 9, 16))
    assert not calls


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize(("rows", "columns", "width"), [(3, 41, 67), (20, 23, 12)])
def test_sets_of_every_size_and_layout_are_searched(size: int, rows: int, columns: int, width: int) -> None:
    a, b = random_sets(9, rows, size, width), random_sets(10, columns, size, width)
    whole = reference.scores("maxmatch", a, b)
    spread = torch.full((columns, size + 2, 2 * width), torch.nan)
    spread[:, 1:-1, ::2] = b
    for some in (b, b.numpy(), spread[:, 1:-1, ::2], b.transpose(0, 1).contiguous().transpose(0, 1)):
        close(score_matrix(a, some).double(), whole)
        hits = top_hits(a, some, 5)
        close(hits.scores.double(), whole.topk(5).values)
        close(whole.gather(1, hits.indices), hits.scores.double())


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("k", [1, 4, 19, 20, 50])
def test_of_equal_items_against_a_few_rows_the_first_come_first(k: int) -> None:
    kinds = axis_sets(11, 20, 4, 30)
    gallery = kinds[torch.randint(0, 20, (300,), generator=torch.Generator().manual_seed(2))]
    for max_memory in (TINY, 2**30):
        matrix = score_matrix(kinds[:3], gallery)
        assert_hits(top_hits(kinds[:3], gallery, k, max_memory=max_memory), matrix, k)
        keep = torch.arange(300) % 3 > 0
        hits = top_hits(kinds[:3], gallery, k, max_memory=max_memory, keep=keep)
        assert_hits(hits, matrix.masked_fill(~keep, -torch.inf), k)


@few_and_many
@pytest.mark.usefixtures("path")
def test_gradients_and_autocast_change_no_score_and_inputs_stay_as_they_are(a: Tensor, b: Tensor) -> None:
    expected = similarity.maxmatch(a, b)
    x, y = a.clone().requires_grad_(), torch.nn.Parameter(b.clone())
    scores = score_matrix(x, y, max_memory=TINY)
    assert not scores.requires_grad
    assert not top_hits(x, y, 3).scores.requires_grad
    close(scores, expected)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            close(similarity.maxmatch(a, y), expected)
            close(score_matrix(a, y), expected)
    half = score_matrix(a.half(), b.half())
    with torch.autocast("cpu", torch.bfloat16):
        close(score_matrix(a, b), expected)
        close(score_matrix(a.half(), b.half()), half)
    assert torch.equal(x, a)
    assert torch.equal(y, b)


# --- arrays and memory maps -----------------------------------------------------------------------------------------


@few_and_many
@pytest.mark.usefixtures("path")
def test_arrays_and_memory_maps_score_as_tensors_without_a_copy_or_a_warning(
    a: Tensor, b: Tensor, tmp_path: Path
) -> None:
    np.save(tmp_path / "b.npy", b.numpy())
    mapped = np.load(tmp_path / "b.npy", mmap_mode="r")
    expected = similarity.maxmatch(a, b)
    with warnings.catch_warnings(action="error"):
        assert as_tensor(mapped).data_ptr() == mapped.ctypes.data
        for x, y in ((a.numpy(), b.numpy()), (a, mapped), (np.asfortranarray(a.numpy()), b.numpy()[::-1][::-1])):
            close(score_matrix(x, y), expected)
            close(score_matrix(x, y, max_memory=TINY), expected)
        close(top_hits(a, mapped, 5).scores, expected.topk(5).values)
    half = score_matrix(a.numpy().astype(np.float16), b.numpy().astype(np.float16))
    close(half, similarity.maxmatch(a.half(), b.half()))
    assert np.array_equal(mapped, b.numpy())


def test_masks_go_with_arrays() -> None:
    a, b = A.double(), B.double()
    expected = similarity.maxmatch(a, b, **MASKS)
    hits, back = top_hits_both(a.numpy(), b.numpy(), 5, max_memory=TINY, **MASKS)
    assert_hits(hits, expected, 5)
    assert_hits(back, expected.T, 5)


@pytest.mark.usefixtures("without_shape_checks")
def test_lists_and_arrays_in_any_layout_score_as_tensors() -> None:
    a, b = A.numpy(), B.numpy()
    expected = similarity.maxmatch(A, B, **MASKS)
    masks = {name: mask.tolist() for name, mask in MASKS.items()}
    for x, y in ((a.tolist(), b.tolist()), (list(A), list(b)), (a.astype(">f4"), B), (a[::-1].copy()[::-1], B)):
        close(score_matrix(x, y, max_memory=TINY, **masks).float(), expected)
        close(top_hits(x, y, 3, **masks).scores.float(), expected.topk(3).values)
        close(top_hits_both(x, y, 3, **masks)[1].scores.float(), expected.T.topk(3).values)


# --- normalising ----------------------------------------------------------------------------------------------------


@few_and_many
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("as_array", [False, True])
def test_vectors_of_any_length_are_normalised_on_the_way(a: Tensor, b: Tensor, as_array: bool) -> None:
    lengths = torch.arange(1, len(a) + 1)[:, None, None] * torch.tensor([0.1, 1.0, 7.0, 30.0])[:, None]
    x, y = (a * lengths).numpy(), (b * 5).numpy()
    if not as_array:
        x, y = torch.from_numpy(x), torch.from_numpy(y)
    scores = score_matrix(x, y, max_memory=TINY, normalise=True)
    close(scores, similarity.maxmatch(a, b))
    close(top_hits(x, y, 3, max_memory=TINY, normalise=True).scores, scores.topk(3).values)
    assert np.array_equal(np.asarray(x), (a * lengths).numpy())


def test_masked_vectors_of_other_precisions_are_normalised_on_the_way() -> None:
    scores = score_matrix(A * 50, B * 0.01, max_memory=TINY, normalise=True, **MASKS)
    close(scores, similarity.maxmatch(A, B, **MASKS))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        scores = score_matrix((A * 50).to(dtype), (B * 0.01).to(dtype), max_memory=TINY, normalise=True)
        assert_close(scores.float(), similarity.maxmatch(A, B), atol=2e-2, rtol=0)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
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


@pytest.mark.parametrize("columns", [1, 2, 7, 40])
def test_of_equal_scores_the_first_columns_are_kept(columns):
    generator = torch.Generator().manual_seed(columns)
    for k in range(1, columns + 1):
        scores = torch.randint(-2, 3, (5, columns), generator=generator).float()
        scores[scores == -2] = -torch.inf
        values, places = first_largest(scores, k)
        sorted_values, order = scores.sort(dim=1, descending=True, stable=True)
        assert torch.equal(values, sorted_values[:, :k])
        assert torch.equal(places, order[:, :k])


# --- functions as similarities --------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_memory", [TINY, 2**30])
def test_a_function_serves_as_similarity(max_memory: int) -> None:
    gentle = partial(similarity.smooth_chamfer, alpha=4.0)
    close(score_matrix(A, B, gentle, max_memory), gentle(A, B))
    close(score_matrix(A, B, gentle, max_memory, **MASKS), gentle(A, B, **MASKS))
    a, b = A.double(), B.double()
    assert_hits(top_hits(a, b, 5, gentle, max_memory, **MASKS), gentle(a, b, **MASKS), 5)

    def half_only(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, 0] @ b[:, 0].T).masked_fill(b[:, 0, 0] < 0, -torch.inf)

    close(score_matrix(A, B, half_only, max_memory), half_only(A, B))
    assert_hits(top_hits(a, b, 13, half_only, max_memory), half_only(a, b), 13)  # items at −∞ keep their index


@pytest.mark.parametrize("rows", [3, 40])
def test_a_function_gets_one_precision_however_many_rows_there_are(rows: int) -> None:
    kinds = set()

    def own(a: Tensor, b: Tensor) -> Tensor:
        kinds.add((a.dtype, b.dtype))
        return torch.einsum("bkd,cld->bc", a, b)

    score_matrix(random_sets(5, rows, 4, 64), MANY.half(), own)
    assert kinds == {(torch.float32, torch.float32)}
