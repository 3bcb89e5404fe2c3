"""Planes: the cosines (K, K, B, C) of a product -> scores or columns, K ≤ 8.

Sets of fewer than four (eight) vectors are filled up with vectors that can only match each other.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from maxmatch.matching.kernels.match import best_half, four, four_of_eight, half, sum_exp

MAX_PLANES = 8


@triton.jit
def _row(base, r_stride, l_stride, n, real, R: tl.constexpr, K: tl.constexpr, SIZE: tl.constexpr):
    """Row R of the block of every pair: SIZE planes, those beyond K made to match only each other."""
    row = ()
    for column in tl.static_range(SIZE):
        if R < K and column < K:
            plane = tl.load(base + R * r_stride + column * l_stride + n, mask=real, other=0.0)
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
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
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
            tl.store(chosen + row * k_stride + item * n_columns + n, picked[row].to(tl.int64), mask=real)


# Compiling this takes half a minute, so there is one version for all sizes, not one for those divisible by 16.
@triton.jit(do_not_specialize=["n_columns", "r_stride", "l_stride", "b_stride", "score_stride", "k_stride"])
def _planes_8(cosines, scores, chosen, n_columns, r_stride, l_stride, b_stride, score_stride, k_stride,
              K: tl.constexpr, SCORES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
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
            tl.store(chosen + row * k_stride + item * n_columns + n, picked[row].to(tl.int64), mask=real)


def _launch_planes(cosines: Tensor, scores: Tensor, chosen: Tensor, want_scores: bool) -> None:
    size, _, rows, columns = cosines.shape
    assert cosines.stride(3) == 1
    assert cosines.dtype == torch.float32
    kernel, block = (_planes_4, 256) if size <= 4 else (_planes_8, 128)
    r_stride, l_stride, b_stride, _ = cosines.stride()
    kernel[(rows, triton.cdiv(columns, block))](
        cosines, scores, chosen, columns, r_stride, l_stride, b_stride, scores.stride(0), rows * columns,
        K=size, SCORES=want_scores, BLOCK=block, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


def plane_scores(cosines: Tensor, scores: Tensor) -> None:
    """Write the maxmatch scores (B, C) of the cosine planes (K, K, B, C), K ≤ 8."""
    _launch_planes(cosines, scores, scores, want_scores=True)


def plane_assignment(cosines: Tensor) -> Tensor:
    """The matching of the cosine planes (K, K, B, C), K ≤ 8: for each row its column, (K, B, C)."""
    chosen = torch.empty(cosines.shape[0], *cosines.shape[2:], dtype=torch.long, device=cosines.device)
    _launch_planes(cosines, chosen[0], chosen, want_scores=False)
    return chosen
