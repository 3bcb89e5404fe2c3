"""The small work between the products of a head, on the GPU (Triton): what a layer adds to the slots together with the
LayerNorm that follows, and GELU together with dropout. Each is one kernel forwards and one backwards; the latter also
adds up the gradients of the biases, in a fixed order.

`layers.SlotHead` chooses it by itself; its own lines in torch are the reference.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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


def _total(parts: Float[Tensor, "P *n"]) -> Float[Tensor, "*n"]:
    """The sum over the programs."""
    total = torch.empty_like(parts[0])
    width = total.numel()
    _totals[(triton.cdiv(width, 32),)](parts, total, len(parts), WIDTH=width, ROWS=64, BLOCK=32, num_warps=4)
    return total


def _kept(rows: int, width: int, dropout: float, like: Tensor) -> Tensor:
    """Where the bits of a dropout are written: see `_drawn`."""
    return like.new_empty(triton.cdiv(rows, _ROWS) * width if dropout else 1, dtype=torch.uint8)


def _scale(dropout: float) -> float:
    return 1 / (1 - dropout) if dropout < 1 else 0.0


def _block(width: int) -> dict[str, int]:
    """A power of two that holds the width, and the warps that suit four rows of it."""
    block = max(16, triton.next_power_of_2(width))
    return {"WIDTH": width, "ROWS": _ROWS, "BLOCK": block, "num_warps": min(16, max(1, block // 128))}


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, y_bias: Tensor | None, weight: Tensor, bias: Tensor, epsilon: float,
        dtype: torch.dtype, dropout: float, seed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        width = x.shape[-1]
        rows = x.numel() // width
        period = x.shape[1] if x.stride(0) == 0 and x[0].is_contiguous() else rows
        x = x if period < rows else x.contiguous()
        total = x.view_as(x) if y is None else torch.empty(x.shape, device=x.device)  # in float32
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        stats = torch.empty(2, rows, device=x.device)
        kept = _kept(rows, width, dropout, x)
        with torch.cuda.device_of(x):
            _norm_forwards[(triton.cdiv(rows, _ROWS),)](
                x, x if y is None else y, weight if y_bias is None else y_bias, weight, bias,
                kept if seed is None else seed, total, out, stats, kept, rows, period, epsilon, dropout,
                _scale(dropout), ADDS=y is not None, DROPS=dropout > 0, **_block(width),
            )  # fmt: skip
        ctx.save_for_backward(total, stats, weight, kept)
        ctx.period = period if y is None else rows
        ctx.of_x, ctx.of_y, ctx.of_out = x.dtype, None if y is None else y.dtype, dtype
        ctx.dropout = dropout
        ctx.set_materialize_grads(False)
        return total, out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor | None, arriving_out: Tensor | None) -> tuple[Tensor | None, ...]:
        total, stats, weight, kept = ctx.saved_tensors
        width = total.shape[-1]
        rows, adds = total.numel() // width, ctx.of_y is not None
        out = total.new_zeros(total.shape, dtype=ctx.of_out) if arriving_out is None else arriving_out.contiguous()
        to_x = torch.empty(total.shape, dtype=ctx.of_x, device=total.device)
        to_y = torch.empty(total.shape, dtype=ctx.of_y, device=total.device) if adds else None
        programs, sums = min(_PARTS, triton.cdiv(rows, _ROWS)), 3 if adds else 2
        parts = torch.empty(programs, sums, width, device=total.device)
        with torch.cuda.device_of(total):
            _norm_backwards[(programs,)](
                total, stats, weight, kept, to_x if arriving is None else arriving.contiguous(), out, to_x,
                to_x if to_y is None else to_y, parts, rows, ctx.period, _scale(ctx.dropout),
                CARRIED=arriving is not None, ADDS=adds, DROPS=ctx.dropout > 0, SUMS=sums, **_block(width),
            )  # fmt: skip
            of_weight, of_bias, *of_added = _total(parts)
        return to_x, to_y, of_added[0] if adds else None, of_weight, of_bias, None, None, None, None


class _GeluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, dropout: float, seed: Tensor | None) -> Tensor:
        x = x.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        out, kept = torch.empty_like(x), _kept(rows, width, dropout, x)
        with torch.cuda.device_of(x):
            _gelu_forwards[(triton.cdiv(rows, _ROWS), triton.cdiv(width, _BLOCK))](
                x, bias, kept if seed is None else seed, out, kept, rows, dropout, _scale(dropout), DROPS=dropout > 0,
                **_block(min(width, _BLOCK)) | {"WIDTH": width},
            )  # fmt: skip
        ctx.save_for_backward(x, bias, kept)
        ctx.dropout = dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        x, bias, kept = ctx.saved_tensors
        width = x.shape[-1]
        rows = x.numel() // width
        programs = min(_PARTS, triton.cdiv(rows, _ROWS))
        to_x, parts = torch.empty_like(x), x.new_empty(programs, width, dtype=torch.float32)
        with torch.cuda.device_of(x):
            _gelu_backwards[(programs, triton.cdiv(width, _BLOCK))](
                x, bias, kept, arriving.contiguous(), to_x, parts, rows, _scale(ctx.dropout), DROPS=ctx.dropout > 0,
                **_block(min(width, _BLOCK)) | {"WIDTH": width},
            )  # fmt: skip
            of_bias = _total(parts)
        return to_x, of_bias, None, None


def add_norm(
    x: Float[Tensor, "B K D"],
    norm: nn.LayerNorm,
    dtype: torch.dtype,
    product: Float[Tensor, "B K D"] | None = None,
    bias: Float[Tensor, " D"] | None = None,
    dropout: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B K D"]]:
    """x ← x + dropout(product + bias), in float32, and norm(x), in the given precision. Without a product x stays.

    seed: one of `seeds`, where numbers are dropped.
    """
    y = None if product is None else product.contiguous()
    total, normed = _AddNorm.apply(x, y, bias, norm.weight, norm.bias, norm.eps, dtype, dropout, seed)
    return total, normed


def gelu_dropout(
    product: Float[Tensor, "B K H"],
    bias: Float[Tensor, " H"],
    dropout: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
) -> Float[Tensor, "B K H"]:
    """dropout(GELU(product + bias)), in the precision of the product. seed: as for `add_norm`."""
    out: Tensor = _GeluDropout.apply(product, bias, dropout, seed)
    return out
