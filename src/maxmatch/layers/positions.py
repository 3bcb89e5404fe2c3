"""Sine positions, for the keys of attention only.

The i-th of n places becomes p = 2π · i/n (i = 1..n), and p becomes a vector of width W:

    sin(p / T^(2⌊w/2⌋/W)) for even w,   cos(p / T^(2⌊w/2⌋/W)) for odd w,   T = 10000

n is the item's true length, so that its positions do not depend on what it was padded to.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

TEMPERATURE = 10_000.0


def sine_positions(
    mask: Bool[Tensor, "B N"], width: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "B N {width}"]:
    """The positions of a sequence: the real features of each item are counted 1..n. Padding gets no sensible value."""
    place = mask.cumsum(1) / mask.sum(1, keepdim=True).clamp(min=1).to(dtype)
    return _waves(2 * math.pi * place, width)


def grid_positions(
    rows: int, columns: int, width: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "{rows*columns} {width}"]:
    """The positions of a grid, row by row: half the width says the row, the other half the column."""
    if width % 2:
        raise ValueError(
            f"width: positions on a grid give half the width to rows and half to columns, but {width} is odd. "
            "Choose an even width."
        )
    y = _waves(_places(rows, device, dtype), width // 2)[:, None].expand(rows, columns, -1)
    x = _waves(_places(columns, device, dtype), width // 2)[None].expand(rows, columns, -1)
    return torch.cat([y, x], -1).flatten(0, 1)


def _places(count: int, device: torch.device | None, dtype: torch.dtype) -> Tensor:
    return 2 * math.pi * torch.arange(1, count + 1, device=device, dtype=dtype) / count


def _waves(place: Tensor, width: int) -> Tensor:
    wave = torch.arange(width, device=place.device)
    angle = place[..., None] / TEMPERATURE ** (2 * (wave // 2).to(place.dtype) / width)
    return torch.where(wave % 2 == 0, angle.sin(), angle.cos())
