"""The matching on the GPU (Triton). `similarity` and `scoring` choose it by themselves; torch is the reference.

Two ways, both exact:

* *fused* (`triton_fused`; sets of four or eight vectors, precisions of tensor cores): product and matching in one
  kernel, so that the cosines never leave the registers.
* *planes* (up to eight vectors): a kernel after the library's product, which reads each cosine once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from maxmatch.core.devices import on_its_device
from maxmatch.matching.triton_blocks import best_half, four, four_of_eight, half, sum_exp
from maxmatch.matching.triton_fused import can_fuse as can_fuse
from maxmatch.matching.triton_fused import fused_scores as fused_scores
from maxmatch.matching.triton_fused import pack_columns as pack_columns
from maxmatch.matching.triton_fused import pack_rows as pack_rows
from maxmatch.matching.triton_fused import split_4
from maxmatch.matching.triton_launch import Launch

# Planes: the cosines (K, K, B, C) of a product -> scores or columns, K ≤ 8.
#
# Sets of fewer than four (eight) vectors are filled up with vectors that can only match each other.

MAX_PLANES = 8
_MOST_PROGRAMS = 65_535  # along an axis that is not the first


@triton.jit
def _columns(BLOCK: tl.constexpr):
    """Those of this program, which may be beyond the edge. See `_grid`."""
    return (tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _row(base, r_stride, l_stride, n, real, R: tl.constexpr, K: tl.constexpr, SIZE: tl.constexpr):
    """Row R of the block of every pair: SIZE planes, those beyond K made to match only each other."""
    row = ()
    start = base + tl.full((), R, tl.int64) * r_stride  # a plane may have 2³¹ cosines
    for column in tl.static_range(SIZE):
        if R < K and column < K:
            plane = tl.load(start + tl.full((), column, tl.int64) * l_stride + n, mask=real, other=0.0)
        elif R >= K and column >= K:
            plane = tl.zeros(n.shape, tl.float32)
        else:
            plane = tl.full(n.shape, float("-inf"), tl.float32)
        row = row + (plane,)  # noqa: RUF005
    return row


@triton.jit
def _planes_4(cosines, scores, chosen, n_columns, r_stride, l_stride, b_stride, score_stride, k_stride,
              K: tl.constexpr, SCORES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    n = _columns(BLOCK)
    real = n < n_columns
    base = cosines + item * b_stride
    r0 = _row(base, r_stride, l_stride, n, real, 0, K, 4)
    r1 = _row(base, r_stride, l_stride, n, real, 1, K, 4)
    r2 = _row(base, r_stride, l_stride, n, real, 2, K, 4)
    r3 = _row(base, r_stride, l_stride, n, real, 3, K, 4)
    if SCORES:
        c0, c1, c2, c3 = four(r0, r1, r2, r3, r0, r1, r2, r3)
        tl.store(scores + item * score_stride + n, (sum_exp(c0, c1, c2, c3) - 4) / K, mask=real)
    else:
        zero = tl.zeros(n.shape, tl.int32)
        columns = (zero, zero + 1, zero + 2, zero + 3)
        picked = four(r0, r1, r2, r3, columns, columns, columns, columns)
        for row in tl.static_range(K):
            target = chosen + tl.full((), row, tl.int64) * k_stride + item * n_columns
            tl.store(target + n, picked[row].to(tl.int64), mask=real)


# Compiling this takes half a minute, so there is one version for all sizes, not one for those divisible by 16.
@triton.jit(do_not_specialize=["n_columns", "r_stride", "l_stride", "b_stride", "score_stride", "k_stride"])
def _planes_8(cosines, scores, chosen, n_columns, r_stride, l_stride, b_stride, score_stride, k_stride,
              K: tl.constexpr, SCORES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    n = _columns(BLOCK)
    real = n < n_columns
    base = cosines + item * b_stride
    r0 = _row(base, r_stride, l_stride, n, real, 0, K, 8)
    r1 = _row(base, r_stride, l_stride, n, real, 1, K, 8)
    r2 = _row(base, r_stride, l_stride, n, real, 2, K, 8)
    r3 = _row(base, r_stride, l_stride, n, real, 3, K, 8)
    top = half(r0, r1, r2, r3)
    r4 = _row(base, r_stride, l_stride, n, real, 4, K, 8)
    r5 = _row(base, r_stride, l_stride, n, real, 5, K, 8)
    r6 = _row(base, r_stride, l_stride, n, real, 6, K, 8)
    r7 = _row(base, r_stride, l_stride, n, real, 7, K, 8)
    low = half(r4, r5, r6, r7)
    mask = best_half(top, low)
    f0, f1, f2, f3 = four_of_eight(r0, r1, r2, r3, mask, SCORES)
    f4, f5, f6, f7 = four_of_eight(r4, r5, r6, r7, mask ^ 255, SCORES)
    if SCORES:
        total = sum_exp(f0, f1, f2, f3) + sum_exp(f4, f5, f6, f7)
        tl.store(scores + item * score_stride + n, (total - 8) / K, mask=real)
    else:
        picked = (f0, f1, f2, f3, f4, f5, f6, f7)
        for row in tl.static_range(K):
            target = chosen + tl.full((), row, tl.int64) * k_stride + item * n_columns
            tl.store(target + n, picked[row].to(tl.int64), mask=real)


def _grid(rows: int, blocks: int) -> tuple[int, int, int]:
    """Programs for blocks of columns: along the second and third axis, which take 65,535 each."""
    return rows, min(blocks, _MOST_PROGRAMS), -(-blocks // _MOST_PROGRAMS)


def _launch_planes(cosines: Tensor, scores: Tensor, chosen: Tensor, want_scores: bool) -> None:
    size, _, rows, columns = cosines.shape
    assert cosines.stride(3) == 1
    assert cosines.dtype == torch.float32
    kernel, block = (_planes_4, 256) if size <= 4 else (_planes_8, 128)
    r_stride, l_stride, b_stride, _ = cosines.stride()
    kernel[_grid(rows, triton.cdiv(columns, block))](
        cosines, scores, chosen, columns, r_stride, l_stride, b_stride, scores.stride(0), rows * columns,
        K=size, SCORES=want_scores, BLOCK=block, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


@on_its_device
def plane_scores(cosines: Tensor, scores: Tensor) -> None:
    """Write the maxmatch scores (B, C) of the cosine planes (K, K, B, C), K ≤ 8."""
    _launch_planes(cosines, scores, scores, want_scores=True)


@on_its_device
def plane_assignment(cosines: Tensor) -> Tensor:
    """The matching of the cosine planes (K, K, B, C), K ≤ 8: for each row its column, (K, B, C)."""
    chosen = torch.empty(cosines.shape[0], *cosines.shape[2:], dtype=torch.long, device=cosines.device)
    _launch_planes(cosines, chosen[0], chosen, want_scores=False)
    return chosen


# Blocks: the cosines (4B, 4C) of a product in the order of the sets -> scores; and, in the place of the cosines, the
# gradient by them. The matching is made both times: it takes less than writing it down.


@triton.jit
def _row_of_blocks(base, j, ROW: tl.constexpr, n_columns):
    """Where the four cosines of row ROW of each block are."""
    return base + tl.full((), 4 * ROW, tl.int64) * n_columns + j[:, None] * 4 + tl.arange(0, 4)[None, :]


@triton.jit
def _load_row(source, j, real, ROW: tl.constexpr, n_columns):
    """Row ROW of each block: its four cosines, which are next to each other."""
    row = tl.load(_row_of_blocks(source, j, ROW, n_columns), mask=real[:, None], other=0.0)
    return split_4(tl.reshape(row, (j.shape[0], 2, 2)))


@triton.jit
def _store_row(target, j, real, ROW: tl.constexpr, n_columns, column, slope):
    """The slope at the column that was chosen, 0 elsewhere."""
    s0, s1 = tl.where(column == 0, slope, 0.0), tl.where(column == 1, slope, 0.0)
    s2, s3 = tl.where(column == 2, slope, 0.0), tl.where(column == 3, slope, 0.0)
    row = tl.reshape(tl.join(tl.join(s0, s2), tl.join(s1, s3)), (j.shape[0], 4))
    tl.store(_row_of_blocks(target, j, ROW, n_columns), row, mask=real[:, None])


@triton.jit(do_not_specialize=["n_columns", "row_stride", "column_stride"])
def _blocks(cosines, scores, n_columns, row_stride, column_stride, BACK: tl.constexpr, BLOCK: tl.constexpr):
    """scores: to be written, or, on the way back, their gradient."""
    item = tl.program_id(0).to(tl.int64)
    j = _columns(BLOCK)
    real = j < n_columns
    base = cosines + item * 16 * n_columns
    r0 = _load_row(base, j, real, 0, n_columns)
    r1 = _load_row(base, j, real, 1, n_columns)
    r2 = _load_row(base, j, real, 2, n_columns)
    r3 = _load_row(base, j, real, 3, n_columns)
    c0, c1, c2, c3 = four(r0, r1, r2, r3, r0, r1, r2, r3)
    scores += item * row_stride + j.to(tl.int64) * column_stride
    if BACK:
        zero = tl.zeros((BLOCK,), tl.int32)
        columns = (zero, zero + 1, zero + 2, zero + 3)
        k0, k1, k2, k3 = four(r0, r1, r2, r3, columns, columns, columns, columns)
        grad = tl.load(scores, mask=real, other=0.0) * 0.25
        _store_row(base, j, real, 0, n_columns, k0, tl.exp(c0) * grad)
        _store_row(base, j, real, 1, n_columns, k1, tl.exp(c1) * grad)
        _store_row(base, j, real, 2, n_columns, k2, tl.exp(c2) * grad)
        _store_row(base, j, real, 3, n_columns, k3, tl.exp(c3) * grad)
    else:
        tl.store(scores, sum_exp(c0, c1, c2, c3) * 0.25 - 1.0, mask=real)


_on_blocks = Launch(_blocks)
_PAIRS = 128  # of a program


@on_its_device
def block_scores(cosines: Tensor, scores: Tensor) -> None:
    """Write the scores (B, C) of the cosines (4B, 4C)."""
    _launch_blocks(cosines, scores, back=False)


def block_gradient(cosines: Tensor, grad: Tensor) -> None:
    """Write over each cosine its gradient, which is that of its pair's score (B, C) times exp(c) / 4 where the matching
    has it, else 0.
    """
    _launch_blocks(cosines, grad, back=True)


def _launch_blocks(cosines: Tensor, scores: Tensor, back: bool) -> None:
    rows, columns = scores.shape
    assert cosines.shape == (4 * rows, 4 * columns)
    assert cosines.is_contiguous()
    _on_blocks(
        _grid(rows, -(-columns // _PAIRS)), (cosines, scores), (columns, *scores.stride()),
        BACK=back, BLOCK=_PAIRS, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


# Counting: how many scores reach a level, by row and by column, in one pass.


@triton.jit
def _count(scores, level, above, equal, no_numbers, n_rows, n_columns, stride,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = _columns(COLUMNS)
    real_row, real_column = i < n_rows, j < n_columns
    inside = real_row[:, None] & real_column[None, :]
    values = tl.load(scores + i[:, None].to(tl.int64) * stride + j[None, :], mask=inside, other=float("-inf"))
    tl.atomic_add(no_numbers, tl.sum((values != values).to(tl.int32)), sem="relaxed")
    limit = tl.load(level + i, mask=real_row, other=float("inf"))[:, None]
    tl.atomic_add(above + i, tl.sum((values > limit).to(tl.int32), 1), mask=real_row, sem="relaxed")
    tl.atomic_add(equal + i, tl.sum(((values == limit) & inside).to(tl.int32), 1), mask=real_row, sem="relaxed")
    limit = tl.load(level + n_rows + j, mask=real_column, other=float("inf"))[None, :]
    tl.atomic_add(above + n_rows + j, tl.sum((values > limit).to(tl.int32), 0), mask=real_column, sem="relaxed")
    tl.atomic_add(
        equal + n_rows + j, tl.sum(((values == limit) & inside).to(tl.int32), 0), mask=real_column, sem="relaxed"
    )


@on_its_device
def count_levels(scores: Tensor, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many scores are above the level of their row, then of their column (B + C); how many equal; how many NaN."""
    rows, columns = scores.shape
    assert scores.stride(1) == 1
    counts = torch.zeros(2 * len(level) + 1, dtype=torch.int32, device=scores.device)
    above, equal, no_numbers = counts.split([len(level), len(level), 1])
    _count[_grid(triton.cdiv(rows, 128), triton.cdiv(columns, 128))](
        scores, level, above, equal, no_numbers, rows, columns, scores.stride(0),
        ROWS=128, COLUMNS=128, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return above, equal, no_numbers[0]


@triton.jit
def _best_true(scores, row_groups, column_groups, best, n_rows, n_columns, stride,
               ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """The largest score of a true pair in each row, then in each column. Of the scores only true ones are read."""
    # Beyond the edge the last row and the last column are looked at again, which changes no maximum.
    i = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), n_rows - 1)
    j = tl.minimum(_columns(COLUMNS), n_columns - 1)
    mine, theirs = tl.load(row_groups + i), tl.load(column_groups + j)
    if (tl.min(mine, 0) <= tl.max(theirs, 0)) & (tl.min(theirs, 0) <= tl.max(mine, 0)):  # in order, most tiles end here
        # Read again, for else all threads read all of them in the first place.
        true = tl.load(row_groups + i)[:, None] == tl.load(column_groups + j)[None, :]
        if tl.max(tl.max(true.to(tl.int32), 1), 0) > 0:
            values = tl.load(scores + i[:, None].to(tl.int64) * stride + j[None, :], mask=true, other=-float("inf"))
            values = values.to(tl.float32)
            tl.atomic_max(best + i, tl.max(values, 1), sem="relaxed")
            tl.atomic_max(best + n_rows + j, tl.max(values, 0), sem="relaxed")


@triton.jit
def _count_wrong(scores, row_groups, column_groups, best, counts, n_rows, n_columns, stride,
                 UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """counts: how many wrong answers are as high as the best true one or higher, for each row and column, then how many
    tie with it, how many scores are NaN and how many rows and columns have a best of −∞. Columns and stride come in
    UNITs, so that the compiler knows how many scores may be read at once.
    """
    n_columns, stride = n_columns * UNIT, stride * UNIT
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = _columns(COLUMNS)
    real_row, real_column = i < n_rows, j < n_columns
    source = scores + i[:, None].to(tl.int64) * stride + j[None, :]
    values = tl.load(source, mask=real_row[:, None] & real_column[None, :], other=float("nan")).to(tl.float32)
    row_best = tl.load(best + i, mask=real_row, other=0.0)
    column_best = tl.load(best + n_rows + j, mask=real_column, other=0.0)
    mine = tl.load(row_groups + i, mask=real_row, other=0)[:, None]
    wrong = mine != tl.load(column_groups + j, mask=real_column, other=0)[None, :]
    in_row = tl.sum(_reached(values, row_best[:, None], wrong), 1)
    in_column = tl.sum(_reached(values, column_best[None, :], wrong), 0)
    queries = n_rows + n_columns
    _add_counts(counts, queries, i, in_row, real_row)
    _add_counts(counts, queries, n_rows + j, in_column, real_column)
    not_numbers = tl.sum(tl.sum((values != values).to(tl.int32), 1), 0)
    outside = ROWS * COLUMNS - tl.sum(real_row.to(tl.int32), 0) * tl.sum(real_column.to(tl.int32), 0)
    _add_some(counts + 2 * queries, not_numbers - outside, True)
    lonely = tl.sum((real_row & (row_best == -float("inf"))).to(tl.int32), 0)
    _add_some(counts + 2 * queries + 1, lonely, tl.program_id(1) + tl.program_id(2) == 0)
    lonely = tl.sum((real_column & (column_best == -float("inf"))).to(tl.int32), 0)
    _add_some(counts + 2 * queries + 1, lonely, tl.program_id(0) == 0)


@triton.jit
def _reached(values, level, wrong):
    """To be added up: those above it in the upper half of the sum, those as high or higher in the lower. No true one is
    above the best of them.
    """
    return tl.where(values > level, 0x10000, 0) + tl.where((values >= level) & wrong, 1, 0)


@triton.jit
def _add_counts(counts, queries, query, found, real):
    reached, above = found & 0xFFFF, found >> 16
    tl.atomic_add(counts + query, reached.to(tl.int64), mask=real & (reached > 0), sem="relaxed")
    tl.atomic_add(
        counts + queries + query, (reached - above).to(tl.int64), mask=real & (reached > above), sem="relaxed"
    )


@triton.jit
def _add_some(total, count, here):
    tl.atomic_add(total, count.to(tl.int64), mask=here & (count > 0), sem="relaxed")


@on_its_device
def count_wrong(
    scores: Tensor, row_groups: Tensor, column_groups: Tensor, tile: tuple[int, int, int] = (32, 128, 4)
) -> tuple[Tensor, Tensor, Tensor]:
    """How many wrong answers are as high as the best true one or higher, for each row, then each column (B + C); how
    many of them tie with it; and how many scores are NaN and for how many rows and columns the best is −∞ (2).

    The pairs of equal group are true. They are found by comparing all groups, which takes a fraction of reading all
    scores and nothing of the host, where sorting and joining them takes twenty launches.

    tile: rows and columns of a program of the second kernel, and its warps.
    """
    (rows, columns), queries = scores.shape, sum(scores.shape)
    assert scores.stride(1) == 1
    best = torch.full((queries,), -torch.inf, device=scores.device)
    counts = torch.zeros(2 * queries + 2, dtype=torch.int64, device=scores.device)
    given = (scores, row_groups.contiguous(), column_groups.contiguous(), best)
    _best_true[_grid(triton.cdiv(rows, 32), triton.cdiv(columns, 128))](
        *given, rows, columns, scores.stride(0), ROWS=32, COLUMNS=128, num_warps=4, enable_fp_fusion=True
    )
    unit = 4 if columns % 4 == 0 and scores.stride(0) % 4 == 0 else 1
    _count_wrong[_grid(triton.cdiv(rows, tile[0]), triton.cdiv(columns, tile[1]))](
        *given, counts, rows, columns // unit, scores.stride(0) // unit,
        UNIT=unit, ROWS=tile[0], COLUMNS=tile[1], num_warps=tile[2], enable_fp_fusion=True,
    )  # fmt: skip
    above, ties, odd = counts.split([queries, queries, 2])
    return above, ties, odd


@triton.jit
def _count_reaching(scores, levels, counts, n_rows, n_columns, stride, most,
                    ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = _columns(COLUMNS)
    real_row, real_column = i < n_rows, j < n_columns
    inside = real_row[:, None] & real_column[None, :]
    values = tl.load(scores + i[:, None].to(tl.int64) * stride + j[None, :], mask=inside, other=float("-inf"))
    for n in range(most):
        limit = tl.load(levels + n * n_rows + i, mask=real_row, other=float("inf"))[:, None]
        reached = tl.sum(((values >= limit) & inside).to(tl.int32), 1)
        tl.atomic_add(counts + n * n_rows + i, reached, mask=real_row, sem="relaxed")


@on_its_device
def count_reaching(scores: Tensor, levels: Tensor) -> Tensor:
    """How many scores of each row (B, C) are as high as its levels (P, B), or higher: (P, B). Scores are read once."""
    rows, columns = scores.shape
    assert scores.stride(1) == 1
    assert levels.is_contiguous()
    counts = torch.zeros_like(levels, dtype=torch.int32)
    _count_reaching[_grid(triton.cdiv(rows, 64), triton.cdiv(columns, 256))](
        scores, levels, counts, rows, columns, scores.stride(0), len(levels),
        ROWS=64, COLUMNS=256, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return counts
