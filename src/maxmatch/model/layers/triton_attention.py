"""Slot attention on the GPU (Triton): one kernel forwards and one backwards for each block, which read keys and values
once, and one for the gradients of keys and values, which all blocks share.

`triton_slots` is made of it; the lines in torch of `layers.SlotAttention` are the reference.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

_ROWS = 16  # slots at a time: the fewest that a product of tensor cores takes
_MOST_INPUTS = 128
_TYPES = (torch.bfloat16, torch.float16, torch.float32)


def can_attend(slots: int, keys: Float[Tensor, "B h N d"]) -> bool:
    """Whether the kernels take these: up to 16 slots and 128 inputs, heads as wide as a power of two."""
    width = keys.shape[3]
    fits = slots <= _ROWS and keys.shape[2] <= _MOST_INPUTS and 16 <= width <= 1024
    return fits and width & (width - 1) == 0 and keys.dtype in _TYPES


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
    CHUNK: tl.constexpr, EPSILON: tl.constexpr, PRECISION: tl.constexpr, WEIGHTS: tl.constexpr,
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
    if WEIGHTS:
        here = tl.program_id(0).to(tl.int64) * K * N
        kept = (slots[:, None] < K) & (inputs[None, :] < N)
        tl.store(weights + here + slots[:, None] * N + inputs[None, :], share, mask=kept)
    for start in range(0, D, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        values = tl.load(_pointers(v, inputs, columns, v_row), mask=mask[:, None], other=0.0)
        taken = tl.dot(share.to(values.dtype), values, input_precision=PRECISION)
        # As (B, K, h, d): the heads of a slot lie beside each other, as the next layer reads them.
        rows = (item * K + slots) * HEADS + head
        tl.store(_pointers(out, rows, columns, D), taken.to(out.dtype.element_ty), mask=slots[:, None] < K)


@triton.jit
def _backwards(
    q, k, v, m, grad, grad_q, to_logits, shares, scale, N,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row, m_item,
    HEADS: tl.constexpr, K: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr,
    CHUNK: tl.constexpr, EPSILON: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of queries and logits, and the weights once more: what `_to_inputs` needs of a block."""
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
    softmax, total, share = _shares(logits * scale, mask, slots, K, EPSILON)
    # w = s / Σs: ds = (dw − Σ dw·w) / Σs; s = softmax · mask, over the slots.
    arriving = (arriving - tl.sum(arriving * share, 1)[:, None]) / total[:, None]
    arriving = tl.where(mask[None, :], arriving, 0.0)
    arriving = softmax * (arriving - tl.sum(arriving * softmax, 0)[None, :]) * scale
    here = tl.program_id(0).to(tl.int64) * K * N + slots[:, None] * N + inputs[None, :]
    kept = (slots[:, None] < K) & (inputs[None, :] < N)
    tl.store(to_logits + here, arriving.to(to_logits.dtype.element_ty), mask=kept)
    tl.store(shares + here, share.to(shares.dtype.element_ty), mask=kept)
    for start in range(0, D, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        keys = tl.load(_pointers(k, inputs, columns, k_row), mask=mask[:, None], other=0.0)
        to_q = tl.dot(arriving.to(keys.dtype), keys, input_precision=PRECISION)
        tl.store(_pointers(grad_q, rows, columns, D), to_q.to(grad_q.dtype.element_ty), mask=slots[:, None] < K)


@triton.jit
def _to_inputs(
    q, grad, to_logits, shares, grad_k, grad_v, items, N, q_block, grad_block,
    BLOCKS: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    INPUTS: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of one item and head: Σ over blocks and slots of logit gradient × query, and of weight × gradient of `taken`."""
    item, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    every, inputs = tl.arange(0, ROWS), tl.arange(0, INPUTS)  # the slots of all blocks
    block, slot = (every // K).to(tl.int64), every % K
    real = every < BLOCKS * K
    here = ((block * items + item) * HEADS + head) * K + slot
    kept = real[:, None] & (inputs[None, :] < N)
    slopes = tl.load(to_logits + here[:, None] * N + inputs[None, :], mask=kept, other=0.0)
    share = tl.load(shares + here[:, None] * N + inputs[None, :], mask=kept, other=0.0)
    rows = ((item * K + slot) * HEADS + head) * D
    of_inputs = (item * N + inputs) * HEADS + head  # (B, N, h, d), as the layers before wrote keys and values
    for start in range(0, D, CHUNK):
        columns = start + tl.arange(0, CHUNK)
        some = tl.load(q + (block * q_block + rows)[:, None] + columns[None, :], mask=real[:, None], other=0.0)
        taken = tl.load(grad + (block * grad_block + rows)[:, None] + columns[None, :], mask=real[:, None], other=0.0)
        to_k = tl.dot(tl.trans(slopes), some, input_precision=PRECISION)
        to_v = tl.dot(tl.trans(share), taken, input_precision=PRECISION)
        there = inputs[:, None] < N
        tl.store(_pointers(grad_k, of_inputs, columns, D), to_k.to(grad_k.dtype.element_ty), mask=there)
        tl.store(_pointers(grad_v, of_inputs, columns, D), to_v.to(grad_v.dtype.element_ty), mask=there)


def attend(
    queries: Float[Tensor, "B h K d"],
    keys: Float[Tensor, "B h N d"],
    values: Float[Tensor, "B h N d"],
    mask: Bool[Tensor, "B N"],
    taken: Float[Tensor, "B K h d"],
    scale: float,
    epsilon: float,
    weights: Float[Tensor, "B h K N"] | None = None,
) -> None:
    """Write what each slot takes from the inputs, its heads beside each other, and the weights, if asked for."""
    _launch(
        _forwards, (queries, keys, values, mask), (taken, taken if weights is None else weights), scale, epsilon,
        WEIGHTS=weights is not None,
    )  # fmt: skip


def attend_backwards(
    queries: Float[Tensor, "B h K d"],
    keys: Float[Tensor, "B h N d"],
    values: Float[Tensor, "B h N d"],
    mask: Bool[Tensor, "B N"],
    gradient: Float[Tensor, "B K h d"],
    to_queries: Float[Tensor, "B K h d"],
    to_logits: Float[Tensor, "B h K N"],
    weights: Float[Tensor, "B h K N"],
    scale: float,
    epsilon: float,
) -> None:
    """From the gradient of what the slots take: write those of queries and logits, and the weights."""
    others = gradient, to_queries, to_logits, weights
    _launch(_backwards, (queries, keys, values, mask), others, scale, epsilon)


def gradients_of_inputs(
    queries: Float[Tensor, "L B K h d"],
    gradient: Float[Tensor, "L B K h d"],
    to_logits: Float[Tensor, "L B h K N"],
    weights: Float[Tensor, "L B h K N"],
) -> tuple[Float[Tensor, "B h N d"], Float[Tensor, "B h N d"]]:
    """The gradients of the keys and values that L blocks attended to."""
    blocks, items, slots, heads, width = queries.shape
    count = to_logits.shape[4]
    to_keys, to_values = (queries.new_empty(items, count, heads, width) for _ in range(2))
    if items:
        _to_inputs[(items * heads,)](
            queries, gradient, to_logits, weights, to_keys, to_values, items, count, queries.stride(0),
            gradient.stride(0), BLOCKS=blocks, HEADS=heads, K=slots, D=width,
            ROWS=max(_ROWS, triton.next_power_of_2(blocks * slots)), INPUTS=_inputs(count), CHUNK=min(width, 64),
            PRECISION=_precision(queries), num_warps=4,
        )  # fmt: skip
    return to_keys.transpose(1, 2), to_values.transpose(1, 2)


def _launch(
    kernel: Any, read: tuple[Tensor, ...], others: tuple[Tensor, ...], scale: float, epsilon: float, **more: Any
):
    queries, keys, values, mask = read
    items, heads, slots, width = queries.shape
    strides = [stride for side in (queries, keys, values) for stride in side.stride()[:3]]
    kernel[(items * heads,)](
        *read, *others, scale, keys.shape[2], *strides, mask.stride(0), HEADS=heads, K=slots, D=width, ROWS=_ROWS,
        INPUTS=_inputs(keys.shape[2]), CHUNK=min(width, 64), EPSILON=epsilon, PRECISION=_precision(queries),
        num_warps=4, **more,
    )  # fmt: skip


def _inputs(count: int) -> int:
    """As many as a program holds: a power of two."""
    return max(16, int(triton.next_power_of_2(count)))


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"
