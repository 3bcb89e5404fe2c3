"""A few rows against many columns: what is read where it lies is scored as any other, and is not written to."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import reference
import torch
from reference import random_sets
from torch.testing import assert_close

from maxmatch import score_matrix, top_hits
from maxmatch.core.checks import NotFiniteError, as_tensor
from maxmatch.matching import scoring, similarity, triton_backend

ROWS, COLUMNS = random_sets(1, 3, 4, 64), random_sets(2, 90, 4, 64)


@pytest.fixture
def mapped(tmp_path):
    """The columns in a file, mapped to be read only."""
    np.save(tmp_path / "sets.npy", COLUMNS.numpy())
    return np.load(tmp_path / "sets.npy", mmap_mode="r")


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("max_memory", [1, 20_000, 2**30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_scores_are_those_of_the_best_permutation(max_memory, dtype):
    rows, columns = ROWS.to(dtype), COLUMNS.to(dtype)
    expected = reference.scores("maxmatch", rows.double(), columns.double())
    scores = score_matrix(rows, columns, max_memory=max_memory)
    assert scores.dtype == torch.float32
    assert_close(scores.double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("kinds", ["float32 float16", "float16 float32", "bfloat16 float16", "float32 bfloat16"])
@pytest.mark.parametrize("name", ["maxmatch", "smooth_chamfer"])
def test_precisions_may_differ(kinds, name):
    rows, columns = (sets.to(getattr(torch, kind)) for sets, kind in zip((ROWS, COLUMNS), kinds.split(), strict=True))
    expected = reference.scores(name, rows.double(), columns.double())
    for max_memory in (1, 20_000, 2**30):
        scores = score_matrix(rows, columns, name, max_memory)
        assert scores.dtype == torch.float32
        assert_close(scores.double(), expected, atol=1e-6, rtol=1e-6)
        assert_close(score_matrix(columns, rows, name, max_memory).double(), expected.T, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("rows", [3, 40])
def test_a_similarity_of_ones_own_gets_one_precision_however_many_rows_there_are(rows):
    kinds = set()

    def own(a, b):
        kinds.add((a.dtype, b.dtype))
        return torch.einsum("bkd,cld->bc", a, b)

    score_matrix(random_sets(5, rows, 4, 64), COLUMNS.half(), own)
    assert kinds == {(torch.float32, torch.float32)}


@pytest.mark.usefixtures("path")
def test_double_precision_stays_double():
    expected = reference.scores("maxmatch", ROWS.double(), COLUMNS.double())
    for rows, columns in ((ROWS, COLUMNS.double()), (ROWS.double(), COLUMNS)):
        scores = score_matrix(rows, columns)
        assert scores.dtype == torch.float64
        assert_close(scores, expected, atol=1e-7, rtol=1e-7)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("block", [1, 1000, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_blocks_change_no_score(block, dtype, monkeypatch):
    monkeypatch.setattr(similarity, "_BLOCK", block)
    monkeypatch.setattr(similarity, "_CAST_BLOCK", block)
    columns = COLUMNS.to(dtype)
    expected = similarity.maxmatch(ROWS.double(), columns.double())
    assert_close(score_matrix(ROWS, columns).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("path")
def test_a_memory_map_is_neither_copied_nor_warned_of(mapped):
    expected = score_matrix(ROWS, COLUMNS)
    with warnings.catch_warnings(action="error"):
        assert as_tensor(mapped).data_ptr() == mapped.ctypes.data
        scores = score_matrix(ROWS, mapped)
        hits = top_hits(ROWS, mapped, 5)
    assert torch.equal(scores, expected)
    assert_close(hits.scores, expected.topk(5).values)
    assert np.array_equal(mapped, COLUMNS.numpy())


@pytest.mark.usefixtures("path")
def test_a_map_whose_vectors_are_to_be_normalised_stays_as_it_is(tmp_path):
    np.save(tmp_path / "long.npy", COLUMNS.numpy() * 3)
    long = np.load(tmp_path / "long.npy", mmap_mode="r")
    assert_close(score_matrix(ROWS, long, normalise=True), score_matrix(ROWS, COLUMNS), atol=1e-6, rtol=1e-6)
    assert np.array_equal(long, np.load(tmp_path / "long.npy"))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_named(value):
    columns = COLUMNS.clone()
    columns[77, 2, 5] = value
    with pytest.raises(NotFiniteError, match=r"^b: item 77 holds NaN or infinite values"):
        top_hits(ROWS, columns, 3)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_on_a_gpu_they_go_through_the_kernel_for_planes(size, monkeypatch):
    rows, columns = random_sets(3, 2, size, 64), random_sets(4, 50, size, 64)
    expected = reference.scores("maxmatch", rows, columns)
    module = SimpleNamespace(
        plane_scores=triton_backend.plane_scores, MAX_PLANES=triton_backend.MAX_PLANES
    )  # it packs nothing
    monkeypatch.setattr(scoring, "kernels_for", lambda _: module)
    assert_close(score_matrix(rows, columns).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_parameters_need_no_gradient_where_none_is_asked_for(mode):
    expected = similarity.maxmatch(ROWS.double(), COLUMNS.double())
    with mode():
        columns = torch.nn.Parameter(COLUMNS.clone())
        assert_close(similarity.maxmatch(ROWS, columns).double(), expected, atol=1e-6, rtol=1e-6)
        assert_close(score_matrix(ROWS, columns).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_autocast_changes_no_score(dtype):
    rows, columns = ROWS.to(dtype), COLUMNS.to(dtype)
    expected = score_matrix(rows, columns)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(score_matrix(rows, columns), expected, atol=1e-6, rtol=1e-6)


def test_on_any_device_the_copies_of_a_masked_job_count():
    """A mask is applied to a copy: tiles are as small as where the columns are copied anyway."""
    mask = torch.ones(len(COLUMNS), 4, dtype=torch.bool)
    job = scoring.PairwiseJob(ROWS, COLUMNS.numpy(), "maxmatch", 2**20, None, mask, False, None)
    assert job._item_bytes(job.b) == 3 * 4 * 64 * 4
    bare = scoring.PairwiseJob(ROWS, COLUMNS.numpy(), "maxmatch", 2**20, None, None, False, None)
    assert bare._item_bytes(bare.b) == 1
