"""What encoders and heads are made of: sine positions, pooling, products, a GRU's states, unit vectors."""

import math
import warnings

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, pad

TEMPERATURE = 10_000.0  # T of the sine positions
_TENSOR_CORE = 8  # half-precision numbers that one reads at once


def sine_positions(
    mask: Bool[Tensor, "B N"], width: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "B N {width}"]:
    """The positions of a sequence: the real features of each item are counted 1..n. Padding gets arbitrary values.

    n is the item's true length, so that its positions do not depend on what it was padded to.
    """
    length = mask.sum(1, keepdim=True).clamp(min=1)
    return _waves(mask.cumsum(1), length, width, dtype)


def grid_positions(
    rows: int, columns: int, width: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "{rows*columns} {width}"]:
    """The positions of a grid, row by row: half the width encodes the row, the other half the column."""
    if width % 2:
        raise ValueError(
            f"width: positions on a grid give half the width to rows and half to columns, but {width} is odd. "
            "Choose an even width."
        )
    y = _waves(torch.arange(1, rows + 1, device=device), rows, width // 2, dtype)
    x = _waves(torch.arange(1, columns + 1, device=device), columns, width // 2, dtype)
    return torch.cat([y[:, None].expand(-1, columns, -1), x[None].expand(rows, -1, -1)], -1).flatten(0, 1)


def _waves(place: Tensor, count: Tensor | int, width: int, dtype: torch.dtype) -> Tensor:
    """The vectors of places 1..n, in at least float32. Place i becomes p = 2π · i/n, and p a vector of width W:

    sin(p / T^(2⌊w/2⌋/W)) for even w,   cos(p / T^(2⌊w/2⌋/W)) for odd w,   T = 10000
    """
    wave = torch.arange(width, device=place.device)
    angle = 2 * math.pi * place.to(torch.promote_types(dtype, torch.float32)) / count
    angle = angle[..., None] / TEMPERATURE ** (2 * (wave // 2).to(angle.dtype) / width)
    return torch.where(wave % 2 == 0, angle.sin(), angle.cos())


def masked_max(local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B W"]:
    """The largest value of each channel."""
    return local.masked_fill(~mask[..., None], -torch.inf).amax(1)


def masked_mean(local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B W"]:
    """The mean of each channel."""
    return local.masked_fill(~mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True)


POOLING = {"max": masked_max, "mean": masked_mean}


def aligned_linear(x: Float[Tensor, "*n W"], weight: Float[Tensor, "V W"]) -> Float[Tensor, "*n V"]:
    """x weightᵀ. On a GPU a width such as that of GloVe's vectors, 300, is first filled up with zeros to a multiple
    of 8, for which products are faster.
    """
    return linear(widened(x), widened(weight))


def widened(x: Float[Tensor, "*n W"]) -> Float[Tensor, "*n V"]:
    """On a GPU, x with zeros after it up to a width that suits."""
    missing = -x.shape[-1] % _TENSOR_CORE
    return pad(x, (0, missing)) if x.is_cuda and missing else x


def gru_states(gru: nn.GRU, inputs: Float[Tensor, "B N W"], direction: str = "") -> Float[Tensor, "B N H"]:
    """The states of one direction of a GRU, "" or "_reverse", after each input; it reads from the first to the last.

    It runs in the precision of the inputs. They may be `widened`.
    """
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = [getattr(gru, f"{name}_l0{direction}").to(inputs.dtype) for name in names]
    weights[0] = pad(weights[0], (0, inputs.shape[2] - weights[0].shape[1]))
    start = inputs.new_zeros(1, inputs.shape[0], gru.hidden_size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single")  # they were just cast
        states, _ = torch.gru(inputs, start, weights, True, 1, 0.0, gru.training, False, True)
    return states


def turned(x: Float[Tensor, "B N W"], length: Int[Tensor, " B"]) -> Float[Tensor, "B N W"]:
    """The first `length` features of each item in reverse order. What follows them is arbitrary."""
    place = torch.arange(x.shape[1], device=x.device)
    return x.gather(1, (length[:, None] - 1 - place).clamp(min=0)[..., None].expand_as(x))


def unit_vectors(x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
    """Vectors of length 1, in at least float32: in bfloat16 their lengths would be off by some thousandths."""
    return normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)
