"""Products of float32 vectors by tensor cores (Triton), as exact as in float32: each number is split into two that
tensor cores take (tf32), and three of the four products of these are added up, in float32. The fourth is below the last
bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _product(x, y, out, n_rows, n_columns, depth, x_row, x_step, y_row, y_step, ROWS: tl.constexpr,
             COLUMNS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    # Beyond the edge the last ones are read again, and nothing is written.
    x_rows = x + tl.minimum(row, n_rows - 1)[:, None] * x_row
    y_rows = y + tl.minimum(column, n_columns - 1)[None, :] * y_row
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, depth, STEP):
        step = start + tl.arange(0, STEP)
        a = tl.load(x_rows + step[None, :] * x_step, mask=step[None, :] < depth, other=0.0)
        b = tl.load(y_rows + step[:, None] * y_step, mask=step[:, None] < depth, other=0.0)
        total = tl.dot(a, b, total, input_precision="tf32x3")
    inside = (row < n_rows)[:, None] & (column < n_columns)[None, :]
    tl.store(out + row[:, None].to(tl.int64) * n_columns + column[None, :], total, mask=inside)


TILES = (128, 128, 8), (64, 128, 4), (64, 64, 4)  # rows, columns, warps
_ENOUGH = 128  # tiles: as many as a large GPU has multiprocessors


def split_product(x: Tensor, y: Tensor, tile: tuple[int, int, int] | None = None) -> Tensor:
    """x yᵀ of float32 (m, D) and (n, D) with any strides."""
    shape = len(x), len(y)
    fitting = (one for one in TILES if triton.cdiv(shape[0], one[0]) * triton.cdiv(shape[1], one[1]) >= _ENOUGH)
    rows, columns, warps = tile or next(fitting, TILES[-1])
    out = torch.empty(shape, device=x.device)
    _product[(triton.cdiv(shape[0], rows), triton.cdiv(shape[1], columns))](
        x, y, out, *shape, x.shape[1], *x.stride(), *y.stride(),
        ROWS=rows, COLUMNS=columns, STEP=32, num_warps=warps, num_stages=3, enable_fp_fusion=True,
    )  # fmt: skip
    return out
