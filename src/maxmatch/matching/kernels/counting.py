"""Counting: how many scores reach a level, by row and by column, in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _count(scores, level, above, equal, no_numbers, n_rows, n_columns, stride,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real_row, real_column = i < n_rows, j < n_columns
    inside = real_row[:, None] & real_column[None, :]
    values = tl.load(scores + i[:, None].to(tl.int64) * stride + j[None, :], mask=inside, other=float("-inf"))
    tl.atomic_add(no_numbers, tl.sum((values != values).to(tl.int32)))
    limit = tl.load(level + i, mask=real_row, other=float("inf"))[:, None]
    tl.atomic_add(above + i, tl.sum((values > limit).to(tl.int32), 1), mask=real_row)
    tl.atomic_add(equal + i, tl.sum(((values == limit) & inside).to(tl.int32), 1), mask=real_row)
    limit = tl.load(level + n_rows + j, mask=real_column, other=float("inf"))[None, :]
    tl.atomic_add(above + n_rows + j, tl.sum((values > limit).to(tl.int32), 0), mask=real_column)
    tl.atomic_add(equal + n_rows + j, tl.sum(((values == limit) & inside).to(tl.int32), 0), mask=real_column)


def count_levels(scores: Tensor, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many scores are above the level of their row, then of their column (B + C); how many equal; how many NaN."""
    rows, columns = scores.shape
    assert scores.stride(1) == 1
    counts = torch.zeros(2 * len(level) + 1, dtype=torch.int32, device=scores.device)
    above, equal, no_numbers = counts.split([len(level), len(level), 1])
    _count[(triton.cdiv(rows, 128), triton.cdiv(columns, 128))](
        scores, level, above, equal, no_numbers, rows, columns, scores.stride(0),
        ROWS=128, COLUMNS=128, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return above, equal, no_numbers[0]
