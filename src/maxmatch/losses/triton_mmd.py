"""MMD on the GPU (Triton): between the product that makes the matrix of all pairs and the one that uses it, the matrix
is read and written once. `mmd` chooses it by itself; its own lines in torch are the reference.

The n vectors of one modality and the m of the other are one cloud z with the weights w = (1/n …, −1/m …). With
d_ij = ‖z_i − z_j‖ and k_ij = exp(−½ d_ij) the loss is Σ_ij w_i w_j k_ij, and with the slopes
s_ij = w_i w_j k_ij / d_ij its gradient in z_i is Σ_j s_ij (z_j − z_i): one symmetric matrix, one product backwards.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from maxmatch.core.devices import on_its_device

_ROWS, _COLUMNS = 64, 128  # of a tile: a warp reads 512 bytes of a row at once
_CHUNK = 1024
_SAME = 16 * torch.finfo(torch.float32).eps  # see `mmd._MeanKernel`


@triton.jit
def _centred(x, centre, out, norms, D, CHUNK: tl.constexpr):
    """A vector without the centre, and its squared norm."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, D, CHUNK):
        column = start + tl.arange(0, CHUNK)
        value = tl.load(x + row * D + column, mask=column < D, other=0.0)
        value -= tl.load(centre + column, mask=column < D, other=0.0)
        tl.store(out + row * D + column, value, mask=column < D)
        total += value * value
    tl.store(norms + row, tl.sum(total, 0))


@triton.jit
def _slopes(
    matrix, norms, sums, N, n, weight, other_weight, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SAME: tl.constexpr
):
    """From the inner products to the slopes, in place; and the sums of w_i w_j k_ij and of the slopes over the columns
    of this tile: sums (2, tiles, N).
    """
    tile = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < N) & (column[None, :] < N)
    place = matrix + row.to(tl.int64)[:, None] * N + column[None, :]
    products = tl.load(place, mask=inside, other=0.0)
    of_row, of_column = (
        tl.load(norms + row, mask=row < N, other=0.0),
        tl.load(norms + column, mask=column < N, other=0.0),
    )
    both = of_row[:, None] + of_column[None, :]
    squared = both - 2.0 * products
    same = squared <= both * SAME
    distance = tl.sqrt(tl.where(same, 1.0, squared))
    row_weight, column_weight = tl.where(row < n, weight, other_weight), tl.where(column < n, weight, other_weight)
    value = row_weight[:, None] * column_weight[None, :] * tl.exp(tl.where(same, 0.0, -0.5 * distance))
    value = tl.where(inside, value, 0.0)
    slope = tl.where(same, 0.0, value / distance)
    tl.store(place, slope, mask=inside)
    sums += tile.to(tl.int64) * N + row
    tl.store(sums, tl.sum(value, 1), mask=row < N)
    tl.store(sums + tl.num_programs(0).to(tl.int64) * N, tl.sum(slope, 1), mask=row < N)


class _Discrepancy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        (n, width), m = x.shape, len(y)
        count, tiles = n + m, triton.cdiv(n + m, _COLUMNS)
        z, norms, sums = x.new_empty(count, width), x.new_empty(count), x.new_empty(2, tiles, count)
        centre = x.mean(0)  # as in `mmd`
        _centred[(n,)](x, centre, z, norms, width, CHUNK=_CHUNK, num_warps=4)
        _centred[(m,)](y, centre, z[n:], norms[n:], width, CHUNK=_CHUNK, num_warps=4)
        matrix = z @ z.T
        _slopes[(tiles, triton.cdiv(count, _ROWS))](
            matrix, norms, sums, count, n, 1 / n, -1 / m, ROWS=_ROWS, COLUMNS=_COLUMNS, SAME=_SAME, num_warps=8
        )
        per_row = sums.sum(1)  # of w_i w_j k_ij, and of the slopes
        ctx.save_for_backward(z, matrix, per_row[1])
        ctx.of_x = n
        return per_row[0].sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        z, matrix, slopes = ctx.saved_tensors
        to_z = (matrix @ z).addcmul_(slopes[:, None], z, value=-1).mul_(gradient)
        return to_z[: ctx.of_x], to_z[ctx.of_x :]


@on_its_device
def discrepancy(x: Float[Tensor, "n D"], y: Float[Tensor, "m D"]) -> Float[Tensor, ""]:
    """The MMD of two clouds of vectors in float32: see `mmd`."""
    found: Tensor = _Discrepancy.apply(x.contiguous(), y.contiguous())
    return found
