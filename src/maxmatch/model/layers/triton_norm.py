"""The small work between the products of a head, on the GPU (Triton): what a layer adds to the slots together with the
LayerNorm that follows, and GELU together with dropout. Each is one kernel forwards and one backwards; the latter also
adds up the gradients of the biases, in a fixed order.

`triton_slots` is made of it; the lines in torch of `layers.SlotHead` are the reference.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from maxmatch.core.devices import on_its_device

_ROWS = 4  # at a time: as many as the generator of random numbers gives numbers at once
_TYPES = (torch.bfloat16, torch.float16, torch.float32)
_WIDEST = 2048  # of the slots: a program holds whole rows
_BLOCK = 1024  # of the width of a hidden layer, per program
_PARTS = 256  # programs that each add up some rows of a gradient


def can_norm(x: Float[Tensor, "B K D"]) -> bool:
    """Whether the kernels take these: in float32 or half precision, up to 2048 wide."""
    return x.dtype in _TYPES and x.shape[2] <= _WIDEST and x.numel() > 0


def seeds(count: int, device: torch.device) -> Int[Tensor, "{count} 2"]:
    """Pairs of seeds of dropout by torch's generator, which a CUDA graph asks anew whenever it is replayed."""
    return torch.randint(2**62, (count, 2), device=device)


@triton.jit
def _columns(BLOCK: tl.constexpr):
    """0, 1, 2 …: four beside each other per thread, in every precision, so that none has to be handed to another."""
    return tl.max_contiguous(tl.arange(0, BLOCK), 4)


@triton.jit
def _drawn(seed, group, columns, p, WIDTH: tl.constexpr):
    """Which of the four rows of a group keep their number in each column, as bits: each with probability 1 − p."""
    a, b, c, d = tl.rand4x(tl.load(seed), group * WIDTH + columns)
    return (a >= p).to(tl.int32) + (b >= p).to(tl.int32) * 2 + (c >= p).to(tl.int32) * 4 + (d >= p).to(tl.int32) * 8


@triton.jit
def _dropped(x, bits, scale, ROWS: tl.constexpr):
    """What is kept of the rows, scaled."""
    kept = (bits[None, :] >> tl.arange(0, ROWS)[:, None]) & 1
    return tl.where(kept != 0, x * scale, 0.0)


@triton.jit
def _norm_forwards(
    x, y, y_bias, weight, bias, seed, total, out, stats, kept, N, period, epsilon, p, scale, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """x + dropout(y + its bias) of four rows, and its LayerNorm; mean and 1/deviation are kept. The rows of x repeat
    after `period`.
    """
    group = tl.program_id(0)
    rows, columns = (group * ROWS + tl.arange(0, ROWS)).to(tl.int64), _columns(BLOCK)
    real = columns < WIDTH
    inside = (rows[:, None] < N) & real[None, :]
    here = rows[:, None] * WIDTH + columns[None, :]
    value = tl.load(x + (rows % period)[:, None] * WIDTH + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        added = tl.load(y + here, mask=inside, other=0.0).to(tl.float32)
        added += tl.load(y_bias + columns, mask=real, other=0.0).to(tl.float32)[None, :]
        if DROPS:
            bits = _drawn(seed, group, columns, p, WIDTH)
            tl.store(kept + tl.cast(group, tl.int64) * WIDTH + columns, bits.to(tl.uint8), mask=real)
            added = _dropped(added, bits, scale, ROWS)
        value = tl.where(inside, value + added, 0.0)
        tl.store(total + here, value, mask=inside)
    mean = tl.sum(value, 1) / WIDTH
    centred = tl.where(inside, value - mean[:, None], 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / WIDTH + epsilon)
    normed = centred * factor[:, None] * tl.load(weight + columns, mask=real, other=0.0).to(tl.float32)[None, :]
    normed += tl.load(bias + columns, mask=real, other=0.0).to(tl.float32)[None, :]
    tl.store(out + here, normed.to(out.dtype.element_ty), mask=inside)
    tl.store(stats + rows, mean, mask=rows < N)
    tl.store(stats + N + rows, factor, mask=rows < N)


@triton.jit
def _norm_backwards(
    total, stats, weight, kept, arriving, arriving_out, to_x, to_y, parts, N, period, scale, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, CARRIED: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr,
    SUMS: tl.constexpr,
):  # fmt: skip
    """From the gradients of the sum and of its norm to those of x and y; and, of the rows that this program takes, the
    sums for weight, bias and y's bias: parts (programs, 3, D), without the last where nothing was added.
    """
    columns = _columns(BLOCK)
    real = columns < WIDTH
    factors = tl.load(weight + columns, mask=real, other=0.0).to(tl.float32)[None, :]
    of_weight = tl.zeros((BLOCK,), tl.float32)
    of_bias = tl.zeros((BLOCK,), tl.float32)
    of_added = tl.zeros((BLOCK,), tl.float32)
    for group in range(tl.program_id(0), tl.cdiv(N, ROWS), tl.num_programs(0)):
        rows = (group * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = (rows[:, None] < N) & real[None, :]
        here = rows[:, None] * WIDTH + columns[None, :]
        start = total + (rows % period)[:, None] * WIDTH
        value = tl.load(start + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(arriving_out + here, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(stats + rows, mask=rows < N, other=0.0)
        factor = tl.load(stats + N + rows, mask=rows < N, other=0.0)
        normed = tl.where(inside, (value - mean[:, None]) * factor[:, None], 0.0)
        of_weight += tl.sum(slope * normed, 0)
        of_bias += tl.sum(slope, 0)
        slope *= factors
        along = tl.sum(slope * normed, 1) / WIDTH
        slope = (slope - (tl.sum(slope, 1) / WIDTH)[:, None] - normed * along[:, None]) * factor[:, None]
        if CARRIED:
            slope += tl.load(arriving + here, mask=inside, other=0.0).to(tl.float32)
        tl.store(to_x + here, slope.to(to_x.dtype.element_ty), mask=inside)
        if ADDS:
            if DROPS:
                bits = tl.load(kept + tl.cast(group, tl.int64) * WIDTH + columns, mask=real, other=0).to(tl.int32)
                slope = _dropped(slope, bits, scale, ROWS)
            tl.store(to_y + here, slope.to(to_y.dtype.element_ty), mask=inside)
            of_added += tl.sum(tl.where(inside, slope, 0.0), 0)
    parts += tl.program_id(0).to(tl.int64) * SUMS * WIDTH + columns
    tl.store(parts, of_weight, mask=real)
    tl.store(parts + WIDTH, of_bias, mask=real)
    if ADDS:
        tl.store(parts + 2 * WIDTH, of_added, mask=real)


@triton.jit
def _gelu_forwards(
    x, bias, seed, out, kept, N, p, scale, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DROPS: tl.constexpr,
):  # fmt: skip
    """dropout(GELU(x + bias)) of four rows."""
    group = tl.program_id(0)
    rows = (group * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + _columns(BLOCK)
    real = columns < WIDTH
    inside = (rows[:, None] < N) & real[None, :]
    here = rows[:, None] * WIDTH + columns[None, :]
    value = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + columns, mask=real, other=0.0).to(tl.float32)[None, :]
    value *= 0.5 + 0.5 * tl.erf(value * 0.7071067811865476)
    if DROPS:
        bits = _drawn(seed, group, columns, p, WIDTH)
        tl.store(kept + tl.cast(group, tl.int64) * WIDTH + columns, bits.to(tl.uint8), mask=real)
        value = _dropped(value, bits, scale, ROWS)
    tl.store(out + here, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gelu_backwards(
    x, bias, kept, arriving, to_x, parts, N, scale, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DROPS: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and its sum over the rows that this program takes: parts (programs, H)."""
    columns = tl.program_id(1) * BLOCK + _columns(BLOCK)
    real = columns < WIDTH
    shift = tl.load(bias + columns, mask=real, other=0.0).to(tl.float32)[None, :]
    of_bias = tl.zeros((BLOCK,), tl.float32)
    for group in range(tl.program_id(0), tl.cdiv(N, ROWS), tl.num_programs(0)):
        rows = (group * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = (rows[:, None] < N) & real[None, :]
        here = rows[:, None] * WIDTH + columns[None, :]
        value = tl.load(x + here, mask=inside, other=0.0).to(tl.float32) + shift
        slope = tl.load(arriving + here, mask=inside, other=0.0).to(tl.float32)
        if DROPS:
            bits = tl.load(kept + tl.cast(group, tl.int64) * WIDTH + columns, mask=real, other=0).to(tl.int32)
            slope = _dropped(slope, bits, scale, ROWS)
        # GELU'(x) = Φ(x) + x φ(x)
        density = tl.exp(-0.5 * value * value) * 0.3989422804014327
        slope *= 0.5 + 0.5 * tl.erf(value * 0.7071067811865476) + value * density
        tl.store(to_x + here, slope.to(to_x.dtype.element_ty), mask=inside)
        of_bias += tl.sum(slope, 0)
    tl.store(parts + tl.program_id(0).to(tl.int64) * WIDTH + columns, of_bias, mask=real)


@triton.jit
def _totals(parts, out, count, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, count, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows[:, None] < count) & (columns[None, :] < WIDTH)
        total += tl.load(parts + rows[:, None] * WIDTH + columns[None, :], mask=inside, other=0.0)
    tl.store(out + columns, tl.sum(total, 0), mask=columns < WIDTH)


def totals(parts: Float[Tensor, "P *n"]) -> Float[Tensor, "*n"]:
    """The sum over the programs."""
    total = torch.empty_like(parts[0])
    width = total.numel()
    _totals[(triton.cdiv(width, 32),)](parts, total, len(parts), WIDTH=width, ROWS=64, BLOCK=32, num_warps=4)
    return total


def parts_for(count: int, rows: int, *shape: int, device: torch.device) -> Float[Tensor, "{count} P *n"]:
    """Where `count` calls of a backward kernel for so many rows write their sums: see `totals`."""
    return torch.empty(count, min(_PARTS, triton.cdiv(rows, _ROWS)), *shape, device=device)


def bits_for(count: int, rows: int, width: int, dropout: float, device: torch.device) -> Int[Tensor, "{count} n"]:
    """Where `count` calls of a forward kernel write which numbers a dropout keeps."""
    return torch.empty(count, triton.cdiv(rows, _ROWS) * width if dropout else 1, dtype=torch.uint8, device=device)


def _scale(dropout: float) -> float:
    return 1 / (1 - dropout) if dropout < 1 else 0.0


def _block(width: int) -> dict[str, int]:
    """A power of two that holds the width, and the warps that suit four rows of it."""
    block = max(16, triton.next_power_of_2(width))
    return {"WIDTH": width, "ROWS": _ROWS, "BLOCK": block, "num_warps": min(16, max(1, block // 128))}


def period_of(x: Float[Tensor, "B K D"]) -> int:
    """After how many rows those of x repeat, which may be expanded from one item's."""
    return x.shape[1] if x.stride(0) == 0 and x[0].is_contiguous() else x.shape[0] * x.shape[1]


class Added(NamedTuple):
    """What is added to the slots: dropout(product + bias). bits: see `bits_for`; seed: one of `seeds`."""

    product: Float[Tensor, "B K D"]
    bias: Float[Tensor, " D"]
    dropout: float
    seed: Int[Tensor, ""] | None
    bits: Tensor


def add_norm(
    x: Float[Tensor, "B K D"],
    norm: tuple[Tensor, Tensor, float],
    total: Float[Tensor, "B K D"],
    out: Float[Tensor, "B K D"],
    stats: Float[Tensor, "2 R"],
    added: Added | None = None,
) -> None:
    """Write x + dropout(product + bias) into total (not without a product), its norm into out, and what the way back
    needs into stats and `added.bits`. norm: its weight, bias and epsilon. All but x are contiguous.
    """
    width = x.shape[-1]
    rows, (weight, bias, epsilon) = x.numel() // width, norm
    y, y_bias, dropout, seed, bits = (x, bias, 0.0, None, stats) if added is None else added
    _norm_forwards[(triton.cdiv(rows, _ROWS),)](
        x, y, y_bias, weight, bias, stats if seed is None else seed, total, out, stats, bits, rows, period_of(x),
        epsilon, dropout, _scale(dropout), ADDS=added is not None, DROPS=dropout > 0, **_block(width),
    )  # fmt: skip


def add_norm_backwards(
    total: Float[Tensor, "B K D"],
    stats: Float[Tensor, "2 R"],
    weight: Float[Tensor, " D"],
    arriving: Float[Tensor, "B K D"] | None,
    arriving_out: Float[Tensor, "B K D"],
    to_x: Float[Tensor, "B K D"],
    parts: Float[Tensor, "P S D"],
    to_product: Float[Tensor, "B K D"] | None = None,
    dropout: float = 0.0,
    bits: Tensor | None = None,
) -> None:
    """From the gradients of the sum (arriving) and of its norm: write those of x and the product, and the parts of
    those of the norm's weight and bias and, with a product, of its bias.
    """
    width = total.shape[-1]
    adds = to_product is not None
    _norm_backwards[(len(parts),)](
        total, stats, weight, stats if bits is None else bits, to_x if arriving is None else arriving, arriving_out,
        to_x, to_product if adds else to_x, parts, total.numel() // width, period_of(total), _scale(dropout),
        CARRIED=arriving is not None, ADDS=adds, DROPS=dropout > 0, SUMS=3 if adds else 2, **_block(width),
    )  # fmt: skip


def gelu_dropout(
    x: Float[Tensor, "R H"], bias: Float[Tensor, " H"], dropout: float, seed: Tensor | None, out: Tensor, bits: Tensor
) -> None:
    """Write dropout(GELU(x + bias)) into out. seed: one of `seeds`; bits: see `bits_for`."""
    rows, width = x.shape
    _gelu_forwards[(triton.cdiv(rows, _ROWS), triton.cdiv(width, _BLOCK))](
        x, bias, bits if seed is None else seed, out, bits, rows, dropout, _scale(dropout), DROPS=dropout > 0,
        **_block(min(width, _BLOCK)) | {"WIDTH": width},
    )  # fmt: skip


def gelu_dropout_backwards(
    x: Float[Tensor, "R H"],
    bias: Float[Tensor, " H"],
    dropout: float,
    bits: Tensor,
    arriving: Float[Tensor, "R H"],
    to_x: Float[Tensor, "R H"],
    parts: Float[Tensor, "P H"],
) -> None:
    """Write the gradient of x, and the parts of that of the bias."""
    rows, width = x.shape
    _gelu_backwards[(len(parts), triton.cdiv(width, _BLOCK))](
        x, bias, bits, arriving, to_x, parts, rows, _scale(dropout), DROPS=dropout > 0,
        **_block(min(width, _BLOCK)) | {"WIDTH": width},
    )  # fmt: skip


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        stats = torch.empty(2, x.shape[0] * x.shape[1], device=x.device)
        add_norm(x, (weight, bias, epsilon), x, out, stats)
        ctx.save_for_backward(x, stats, weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        x, stats, weight = ctx.saved_tensors
        to_x, parts = torch.empty_like(x), parts_for(1, stats.shape[1], 2, x.shape[2], device=x.device)[0]
        add_norm_backwards(x, stats, weight, None, arriving.contiguous(), to_x, parts)
        return to_x, *totals(parts), None, None


@on_its_device
def layer_norm(x: Float[Tensor, "B N W"], norm: nn.LayerNorm, dtype: torch.dtype) -> Float[Tensor, "B N W"]:
    """The norm of x, in the given precision."""
    out: Tensor = _Norm.apply(x, norm.weight, norm.bias, norm.eps, dtype)
    return out
