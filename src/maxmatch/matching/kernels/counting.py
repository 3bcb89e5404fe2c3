"""Counting: how many scores reach a level, by row and by column, in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _count(scores, row_level, column_level, row_counts, column_counts, no_numbers, n_rows, n_columns, stride,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (i[:, None] < n_rows) & (j[None, :] < n_columns)
    values = tl.load(scores + i[:, None].to(tl.int64) * stride + j[None, :], mask=inside, other=float("-inf"))
    tl.atomic_add(no_numbers, tl.sum((values != values).to(tl.int32)))
    level = tl.load(row_level + i, mask=i < n_rows, other=float("inf"))[:, None]
    tl.atomic_add(row_counts + i, tl.sum((values > level).to(tl.int32), 1), mask=i < n_rows)
    tl.atomic_add(row_counts + n_rows + i, tl.sum(((values == level) & inside).to(tl.int32), 1), mask=i < n_rows)
    level = tl.load(column_level + j, mask=j < n_columns, other=float("inf"))[None, :]
    tl.atomic_add(column_counts + j, tl.sum((values > level).to(tl.int32), 0), mask=j < n_columns)
    equal = tl.sum(((values == level) & inside).to(tl.int32), 0)
    tl.atomic_add(column_counts + n_columns + j, equal, mask=j < n_columns)


def count_levels(scores: Tensor, row_level: Tensor, column_level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many scores are above and equal to the level of their row (2, B) and column (2, C); how many are NaN."""
    rows, columns = scores.shape
    assert scores.stride(1) == 1
    counts = torch.zeros(2 * rows + 2 * columns + 1, dtype=torch.int32, device=scores.device)
    by_row, by_column, no_numbers = counts.split([2 * rows, 2 * columns, 1])
    _count[(triton.cdiv(rows, 128), triton.cdiv(columns, 128))](
        scores, row_level, column_level, by_row, by_column, no_numbers, rows, columns, scores.stride(0),
        ROWS=128, COLUMNS=128, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return by_row.view(2, rows), by_column.view(2, columns), no_numbers
