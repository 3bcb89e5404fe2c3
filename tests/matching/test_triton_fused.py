"""Product and matching in one kernel, interpreted on the CPU."""

import sys

import numpy as np
import pytest
import reference
import torch
from reference import axis_sets, random_sets
from torch import Tensor
from torch.testing import assert_close

if sys.platform != "linux":
    pytest.skip("Triton is made for Linux only", allow_module_level=True)

from maxmatch.matching import similarity, triton_fused
from maxmatch.matching.triton_fused import CUTS, Cut, fused_scores, pack_columns, pack_rows, unpacked

SMALL = CUTS[4]._replace(rows=128, warps=4)
WAYS: list[Cut | None] = [CUTS[4], SMALL, SMALL._replace(programs=0), None]
WAYS_OF_EIGHT: list[Cut | None] = [CUTS[8], CUTS[8]._replace(rows=256, warps=8), None]


def scored(a: Tensor, b: Tensor, cut: Cut | None) -> Tensor:
    """By the packed kernel; cut None: by the one that takes sets where they lie, as before Hopper."""
    matrix = torch.full((len(a) + 3, len(b) + 5), torch.nan)
    scores = matrix[1:-2, 2:-3]
    sides = (unpacked(a), unpacked(b)) if cut is None else (pack_rows(a, cut), pack_columns(b))
    watched = fused_scores(*sides, scores, cut)
    assert bool(watched.isfinite())
    assert int(matrix.isnan().sum()) == matrix.numel() - scores.numel()  # nothing else was written to
    return scores


@pytest.mark.parametrize("cut", WAYS)
@pytest.mark.parametrize(
    ("rows", "columns", "width", "dtype"),
    [(1, 1, 16, torch.float32), (5, 33, 24, torch.float16), (66, 70, 16, torch.float32), (3, 5, 136, torch.float16)],
)
def test_scores_are_those_of_the_best_matching(
    rows: int, columns: int, width: int, dtype: torch.dtype, cut: Cut | None
) -> None:
    a, b = random_sets(1, rows, 4, width, dtype=dtype), random_sets(2, columns, 4, width, dtype=dtype)
    # The tensor cores may round float32 products; the interpreter does not.
    assert_close(scored(a, b, cut), similarity.maxmatch(a, b), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cut", WAYS_OF_EIGHT)
@pytest.mark.parametrize(("rows", "columns", "width", "dtype"), [(1, 1, 16, torch.float32), (17, 5, 72, torch.float16)])
def test_scores_of_sets_of_eight_are_those_of_the_best_matching(
    rows: int, columns: int, width: int, dtype: torch.dtype, cut: Cut | None
) -> None:
    a, b = random_sets(1, rows, 8, width, dtype=dtype), random_sets(2, columns, 8, width, dtype=dtype)
    assert_close(scored(a, b, cut).double(), reference.scores("maxmatch", a, b), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cut", WAYS)
def test_of_equal_totals_the_first_matching_counts(cut: Cut | None) -> None:
    a, b = axis_sets(3, 20, 4, 8), axis_sets(4, 40, 4, 8)
    assert_close(scored(a, b, cut), similarity.maxmatch(a, b))


@pytest.mark.parametrize("cut", WAYS_OF_EIGHT)
def test_of_equal_totals_of_eight_some_best_matching_counts(cut: Cut | None) -> None:
    a, b = axis_sets(5, 3, 8, 16), axis_sets(6, 4, 8, 16)
    found = scored(a, b, cut)
    every = reference.matchings(8, 8)
    for i in range(3):
        for j in range(4):
            picked = (a[i] @ b[j].T).double().numpy()[np.arange(8), every]
            totals = picked.sum(1)
            best = np.exp(picked[totals == totals.max()]).mean(1) - 1
            assert np.abs(best - float(found[i, j])).min() < 1e-6


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("count", [1, 64, 65])
def test_packing_keeps_every_vector_and_pads_to_whole_tiles(count: int, size: int) -> None:
    sets = random_sets(7, count, size, 8)
    expected = sorted(sets.flatten(0, 1).tolist())
    for (packed, watched, _), tile in ((pack_rows(sets), CUTS[size].rows), (pack_columns(sets), 128)):
        assert len(packed) % tile == 0
        assert len(packed) - size * count < tile
        assert sorted(packed[packed.any(1)].tolist()) == expected
        assert packed.is_contiguous()
        assert float(watched) == 0


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, which stands in for the GPU
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("cut", [CUTS[4], None])
def test_values_that_are_not_finite_are_seen_on_either_side(cut: Cut | None, value: float) -> None:
    good, bad = random_sets(8, 3, 4, 16), random_sets(9, 3, 4, 16)
    bad[2, 3, 15] = value
    for a, b in ((good, bad), (bad, good)):
        sides = (unpacked(a), unpacked(b)) if cut is None else (pack_rows(a), pack_columns(b))
        assert not bool(fused_scores(*sides, torch.empty(3, 3)).isfinite())


@pytest.mark.parametrize(("size", "packed"), [(4, False), (8, True)])
def test_tiles_that_do_not_fit_a_graphics_cards_shared_memory_are_not_packed(
    size: int, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_fused, "_device", lambda _: ((12, 0), 2))
    monkeypatch.setattr(triton_fused, "shared_memory", lambda _: 99 * 1024)
    a, b = random_sets(1, 3, size, 16), random_sets(2, 5, size, 16)
    rows, columns = pack_rows(a), pack_columns(b)
    assert rows.vectors.ndim == columns.vectors.ndim == (2 if packed else 3)
    scores = torch.empty(3, 5)
    fused_scores(rows, columns, scores)
    assert_close(scores.double(), reference.scores("maxmatch", a, b), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("size", "width", "dtype", "precision", "chip", "fits"),
    [
        (4, 8, torch.bfloat16, "highest", (9, 0), True),
        (8, 8, torch.bfloat16, "highest", (9, 0), True),
        (4, 8, torch.float16, "highest", (10, 0), True),
        (4, 8, torch.float16, "highest", (8, 0), True),
        (8, 8, torch.float16, "highest", (8, 9), True),
        (4, 4, torch.float32, "high", (9, 0), True),
        (4, 4, torch.float32, "highest", (9, 0), False),  # tensor cores would round what is to be exact
        (4, 8, torch.float64, "high", (9, 0), False),
        (4, 12, torch.float16, "high", (9, 0), False),  # 24 bytes a row: copies ask for multiples of 16
        (3, 8, torch.float16, "high", (9, 0), False),
        (5, 8, torch.float16, "high", (9, 0), False),
        (4, 8, torch.float16, "high", (7, 5), False),
    ],
)
def test_fused_are_aligned_sets_of_four_or_eight_that_tensor_cores_take(
    size: int, width: int, dtype: torch.dtype, precision: str, chip: tuple[int, int], fits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    monkeypatch.setattr(triton_fused, "_device", lambda _: (chip, 1))
    assert triton_fused.can_fuse(torch.zeros(2, size, width, dtype=dtype)) is fits
