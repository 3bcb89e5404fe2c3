"""Sine positions, for the keys of attention only; and masked max pooling."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Sine positions, for the keys of attention only.
#
# The i-th of n places becomes p = 2π · i/n (i = 1..n), and p becomes a vector of width W:
#
# sin(p / T^(2⌊w/2⌋/W)) for even w,   cos(p / T^(2⌊w/2⌋/W)) for odd w,   T = 10000
#
# n is the item's true length, so that its positions do not depend on what it was padded to.

TEMPERATURE = 10_000.0


def sine_positions(
    mask: Bool[Tensor, "B N"], width: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "B N {width}"]:
    """The positions of a sequence: the real features of each item are counted 1..n. Padding gets no sensible value."""
    length = mask.sum(1, keepdim=True).clamp(min=1)
    return _waves(mask.cumsum(1), length, width, dtype)


def grid_positions(
    rows: int, columns: int, width: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "{rows*columns} {width}"]:
    """The positions of a grid, row by row: half the width says the row, the other half the column."""
    if width % 2:
        raise ValueError(
            f"width: positions on a grid give half the width to rows and half to columns, but {width} is odd. "
            "Choose an even width."
        )
    y = _waves(torch.arange(1, rows + 1, device=device), rows, width // 2, dtype)
    x = _waves(torch.arange(1, columns + 1, device=device), columns, width // 2, dtype)
    return torch.cat([y[:, None].expand(-1, columns, -1), x[None].expand(rows, -1, -1)], -1).flatten(0, 1)


def _waves(place: Tensor, count: Tensor | int, width: int, dtype: torch.dtype) -> Tensor:
    """The vectors of places 1..count, in at least float32."""
    wave = torch.arange(width, device=place.device)
    angle = 2 * math.pi * place.to(torch.promote_types(dtype, torch.float32)) / count
    angle = angle[..., None] / TEMPERATURE ** (2 * (wave // 2).to(angle.dtype) / width)
    return torch.where(wave % 2 == 0, angle.sin(), angle.cos())


# One vector from the real local features of an item.


def masked_max(local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B W"]:
    """The largest value of each channel."""
    return local.masked_fill(~mask[..., None], -torch.inf).amax(1)


def masked_mean(local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B W"]:
    """The mean of each channel."""
    return local.masked_fill(~mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True)


POOLING = {"max": masked_max, "mean": masked_mean}
