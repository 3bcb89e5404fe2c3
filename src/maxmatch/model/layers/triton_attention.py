"""Slot attention on the GPU (Triton): one kernel forwards and one backwards, which read keys and values once.

`layers.SlotAttention` chooses it by itself; its own lines in torch are the reference.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

_ROWS = 16  # slots at a time: the fewest that a product of tensor cores takes
_MOST_INPUTS = 128
_TYPES = (torch.bfloat16, torch.float16, torch.float32)


def can_attend(queries: Float[Tensor, "B h K d"], keys: Float[Tensor, "B h N d"]) -> bool:
    """Whether the kernels take these: up to 16 slots and 128 inputs, heads as wide as a power of two."""
    width = queries.shape[3]
    fits = queries.shape[2] <= _ROWS and keys.shape[2] <= _MOST_INPUTS and 16 <= width <= 1024
    return fits and width & (width - 1) == 0 and queries.dtype == keys.dtype and queries.dtype in _TYPES


@triton.jit
def _pointers(base, rows, columns, row_stride):
    return base + rows[:, None] * row_stride + columns[None, :]


@triton.jit
def _at(base, item, head, item_stride, head_stride):
    return base + item * item_stride + head * head_stride


@triton.jit
def _own(m, m_item, N, HEADS: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr):
    """A program's item and head, the slots and inputs it looks at, and which inputs are real; others are not read."""
    item, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    slots, inputs = tl.arange(0, ROWS), tl.arange(0, INPUTS)
    mask = tl.load(m + item * m_item + inputs, mask=inputs < N, other=0) != 0
    return item, head, slots, inputs, mask


@triton.jit
def _shares(logits, mask, slots, K: tl.constexpr, EPSILON: tl.constexpr):
    """From the logits (slots, inputs): the softmax over the slots, each slot's total, and its weights."""
    logits = tl.where(slots[:, None] < K, logits, -float("inf"))
    share = tl.exp(logits - tl.max(logits, 0)[None, :])
    softmax = share / tl.sum(share, 0)[None, :]
    masked = tl.where(mask[None, :], softmax, 0.0)
    total = tl.sum(masked, 1) + EPSILON
    return softmax, total, masked / total[:, None]


@triton.jit
def _forwards(
    q, k, v, m, out, weights, scale, N, q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row, m_item,
    HEADS: tl.constexpr, K: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr,
    CHUNK: tl.constexpr, EPSILON: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    item, head, slots, inputs, mask = _own(m, m_item, N, HEADS, ROWS, INPUTS)
    q, k, v = _at(q, item, head, q_item, q_head), _at(k, item, head, k_item, k_head), _at(v, item, head, v_item, v_head)
    logits = tl.zeros((ROWS, INPUTS), tl.float32)
    for start in range(0, D, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        some = tl.load(_pointers(q, slots, columns, q_row), mask=slots[:, None] < K, other=0.0)
        keys = tl.load(_pointers(k, inputs, columns, k_row), mask=mask[:, None], other=0.0)
        logits += tl.dot(some, tl.trans(keys), input_precision=PRECISION)
    _, _, share = _shares(logits * scale, mask, slots, K, EPSILON)
    here = tl.program_id(0).to(tl.int64) * K
    kept = (slots[:, None] < K) & (inputs[None, :] < N)
    tl.store(weights + here * N + slots[:, None] * N + inputs[None, :], share, mask=kept)
    for start in range(0, D, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        values = tl.load(_pointers(v, inputs, columns, v_row), mask=mask[:, None], other=0.0)
        taken = tl.dot(share.to(values.dtype), values, input_precision=PRECISION)
        # As (B, K, h, d): the heads of a slot lie beside each other, as the next layer reads them.
        rows = (item * K + slots) * HEADS + head
        tl.store(_pointers(out, rows, columns, D), taken.to(out.dtype.element_ty), mask=slots[:, None] < K)


@triton.jit
def _backwards(
    q, k, v, m, grad, grad_weights, grad_q, grad_k, grad_v, scale, N,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row, m_item,
    HEADS: tl.constexpr, K: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr,
    CHUNK: tl.constexpr, EPSILON: tl.constexpr, PRECISION: tl.constexpr, WEIGHTS: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    item, head, slots, inputs, mask = _own(m, m_item, N, HEADS, ROWS, INPUTS)
    q, k, v = _at(q, item, head, q_item, q_head), _at(k, item, head, k_item, k_head), _at(v, item, head, v_item, v_head)
    rows = (item * K + slots) * HEADS + head
    logits = tl.zeros((ROWS, INPUTS), tl.float32)
    arriving = tl.zeros((ROWS, INPUTS), tl.float32)  # at the weights
    for start in range(0, D, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        some = tl.load(_pointers(q, slots, columns, q_row), mask=slots[:, None] < K, other=0.0)
        keys = tl.load(_pointers(k, inputs, columns, k_row), mask=mask[:, None], other=0.0)
        values = tl.load(_pointers(v, inputs, columns, v_row), mask=mask[:, None], other=0.0)
        taken = tl.load(_pointers(grad, rows, columns, D), mask=slots[:, None] < K, other=0.0)
        logits += tl.dot(some, tl.trans(keys), input_precision=PRECISION)
        arriving += tl.dot(taken, tl.trans(values), input_precision=PRECISION)
    if WEIGHTS:
        here = tl.program_id(0).to(tl.int64) * K * N
        kept = (slots[:, None] < K) & (inputs[None, :] < N)
        arriving += tl.load(grad_weights + here + slots[:, None] * N + inputs[None, :], mask=kept, other=0.0)
    softmax, total, share = _shares(logits * scale, mask, slots, K, EPSILON)
    # w = s / Σs: ds = (dw − Σ dw·w) / Σs; s = softmax · mask, over the slots.
    arriving = (arriving - tl.sum(arriving * share, 1)[:, None]) / total[:, None]
    arriving = tl.where(mask[None, :], arriving, 0.0)
    arriving = softmax * (arriving - tl.sum(arriving * softmax, 0)[None, :]) * scale
    for start in range(0, D, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        some = tl.load(_pointers(q, slots, columns, q_row), mask=slots[:, None] < K, other=0.0)
        keys = tl.load(_pointers(k, inputs, columns, k_row), mask=mask[:, None], other=0.0)
        taken = tl.load(_pointers(grad, rows, columns, D), mask=slots[:, None] < K, other=0.0)
        by_input = tl.trans(arriving)
        to_q = tl.dot(arriving.to(keys.dtype), keys, input_precision=PRECISION)
        to_k = tl.dot(by_input.to(some.dtype), some, input_precision=PRECISION)
        to_v = tl.dot(tl.trans(share).to(taken.dtype), taken, input_precision=PRECISION)
        tl.store(_pointers(grad_q, rows, columns, D), to_q.to(grad_q.dtype.element_ty), mask=slots[:, None] < K)
        of_inputs = (item * N + inputs) * HEADS + head  # (B, N, h, d), as the layers before wrote keys and values
        at_k, at_v = _pointers(grad_k, of_inputs, columns, D), _pointers(grad_v, of_inputs, columns, D)
        if FIRST:
            there = inputs[:, None] < N
        else:  # padding has its zeros by now
            there = mask[:, None]
            to_k += tl.load(at_k, mask=there, other=0.0).to(tl.float32)
            to_v += tl.load(at_v, mask=there, other=0.0).to(tl.float32)
        tl.store(at_k, to_k.to(grad_k.dtype.element_ty), mask=there)
        tl.store(at_v, to_v.to(grad_v.dtype.element_ty), mask=there)


class GradientSums:
    """The gradients of keys and values that several blocks attend to: each block's kernel adds its own where they lie,
    and what made the keys and values gets the sums.
    """

    def __init__(self) -> None:
        self._sums: list[Tensor] | None = None

    def buffers(self, keys: Float[Tensor, "B h N d"], values: Float[Tensor, "B h N d"]) -> tuple[list[Tensor], bool]:
        """Where a block adds its gradients, (B, N, h, d), and whether it is the first, which writes them."""
        first = self._sums is None
        if self._sums is None:
            self._sums = [torch.empty_like(side.transpose(1, 2)).contiguous() for side in (keys, values)]
        return self._sums, first

    def take(self) -> list[Tensor | None]:
        """The sums, once; None where no block has added any."""
        sums, self._sums = self._sums, None
        return [None, None] if sums is None else [one.transpose(1, 2) for one in sums]


class _Shared(torch.autograd.Function):
    """Passes keys and values on. Its turn in a backward pass comes after all blocks: it returns what they added up."""

    @staticmethod
    def forward(ctx: Any, keys: Tensor, values: Tensor, sums: GradientSums) -> tuple[Tensor, Tensor]:
        ctx.sums = sums
        ctx.set_materialize_grads(False)
        return keys.view_as(keys), values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *others: Tensor | None) -> tuple[Tensor | None, ...]:
        # What others did with keys and values, where a block went without the kernels, comes as usual.
        both = zip(ctx.sums.take(), others, strict=True)
        return *(one if other is None else other if one is None else one + other for one, other in both), None


def shared(
    keys: Float[Tensor, "B h N d"], values: Float[Tensor, "B h N d"]
) -> tuple[Float[Tensor, "B h N d"], Float[Tensor, "B h N d"], GradientSums]:
    """Keys and values for several calls of `slot_attention`, and where these add up their gradients."""
    sums = GradientSums()
    return *_Shared.apply(keys, values, sums), sums


class _SlotAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, sums: GradientSums, scale: float,
        epsilon: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        items, heads, slots, width = queries.shape
        taken = queries.new_empty(items, slots, heads, width, dtype=values.dtype)
        weights = queries.new_empty(items, heads, slots, keys.shape[2], dtype=torch.float32)
        _launch(_forwards, (queries, keys, values, mask), (taken, weights), scale, epsilon)
        ctx.save_for_backward(queries, keys, values, mask)
        ctx.sums, ctx.scale, ctx.epsilon = sums, scale, epsilon
        ctx.set_materialize_grads(False)
        return taken.flatten(2), weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_weights: Tensor | None) -> tuple[Any, ...]:
        queries, keys, values, mask = ctx.saved_tensors
        items, heads, slots, width = queries.shape
        if grad is None:
            grad = queries.new_zeros(items, slots, heads * width, dtype=values.dtype)
        to_queries = torch.empty(items, slots, heads, width, dtype=queries.dtype, device=queries.device)
        buffers, first = ctx.sums.buffers(keys, values)
        arriving = grad if grad_weights is None else grad_weights.contiguous()
        _launch(
            _backwards, (queries, keys, values, mask), (grad.contiguous(), arriving, to_queries, *buffers), ctx.scale,
            ctx.epsilon, WEIGHTS=grad_weights is not None, FIRST=first,
        )  # fmt: skip
        return to_queries.transpose(1, 2), None, None, None, None, None, None


def _launch(
    kernel: Any, read: tuple[Tensor, ...], others: tuple[Tensor, ...], scale: float, epsilon: float, **more: Any
):
    queries, keys, values, mask = read
    items, heads, slots, width = queries.shape
    strides = [stride for side in (queries, keys, values) for stride in side.stride()[:3]]
    inputs = max(16, triton.next_power_of_2(keys.shape[2]))
    kernel[(items * heads,)](
        *read, *others, scale, keys.shape[2], *strides, mask.stride(0), HEADS=heads, K=slots, D=width, ROWS=_ROWS,
        INPUTS=inputs, CHUNK=min(width, 64), EPSILON=epsilon,
        PRECISION="ieee" if queries.dtype == torch.float32 else "tf32", num_warps=4, **more,
    )  # fmt: skip


def slot_attention(
    queries: Float[Tensor, "B h K d"],
    keys: Float[Tensor, "B h N d"],
    values: Float[Tensor, "B h N d"],
    mask: Bool[Tensor, "B N"],
    sums: GradientSums,
    scale: float,
    epsilon: float,
) -> tuple[Float[Tensor, "B K hd"], Float[Tensor, "B h K N"]]:
    """What each slot takes from the inputs, its heads beside each other, and the weights: see `SlotAttention`. Keys,
    values and sums are `shared`.
    """
    taken, weights = _SlotAttention.apply(queries, keys, values, mask.contiguous(), sums, scale, epsilon)
    return taken, weights
