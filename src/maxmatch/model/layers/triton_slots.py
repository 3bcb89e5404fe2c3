"""All blocks of a slot head as one function on the GPU, with its way back written out: the blocks share their weights,
so the gradients of these are one product each over all blocks, and those of keys and values one kernel.

`layers.SlotHead` chooses it by itself; its own lines in torch are the reference.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from maxmatch.core.devices import on_its_device
from maxmatch.model.layers.triton_attention import attend, attend_backwards, can_attend, gradients_of_inputs
from maxmatch.model.layers.triton_norm import (
    Added,
    add_norm,
    add_norm_backwards,
    bits_for,
    can_norm,
    gelu_dropout,
    gelu_dropout_backwards,
    parts_for,
    seeds,
    totals,
)

_WEIGHTS = 13  # tensors of the head's weights: see `slot_blocks`


def can_run(slots: Float[Tensor, "B K D"], precision: torch.dtype, keys: Sequence[Float[Tensor, "B h N d"]]) -> bool:
    """Whether the kernels take these: slots in float32, products in the precision of the keys."""
    fits = all(can_attend(slots.shape[1], one) and one.dtype == precision and one.numel() for one in keys)
    return fits and slots.dtype == torch.float32 and can_norm(slots)


class _How(NamedTuple):
    """What is not a tensor with a gradient."""

    depth: int
    masks: Sequence[Bool[Tensor, "B N"]]
    scale: float
    epsilon: float
    epsilons: Sequence[float]  # of the norms of queries, of the feed-forward part, and at the end
    dropout: Sequence[float]  # of what is taken, and of the hidden layer
    precision: torch.dtype
    way_back: bool  # whether there will be one; within a function torch does not tell


class _Kept(NamedTuple):
    """What the way back needs of all blocks, and where the way there writes it."""

    asking: Float[Tensor, "L B K D"]
    queries: Float[Tensor, "L B K h d"]
    taken: Float[Tensor, "L B K h d"]
    fed: Float[Tensor, "L B K D"]
    hidden: Float[Tensor, "L R H"]
    active: Float[Tensor, "L R H"]
    sums: Float[Tensor, "L 2 B K D"]
    stats: Float[Tensor, "M 2 R"]
    taken_bits: Tensor
    active_bits: Tensor


def _empty(slots: Tensor, blocks: int, heads: int, width: int, hidden: int, how: _How) -> _Kept:
    items, count, dim = slots.shape
    rows, device = items * count, slots.device

    def new(*shape: int, dtype: torch.dtype = how.precision) -> Tensor:
        return torch.empty(blocks, *shape, dtype=dtype, device=device)

    bits = (bits_for(blocks, rows, size, p, device) for size, p in zip((dim, hidden), how.dropout, strict=True))
    return _Kept(
        new(items, count, dim), new(items, count, heads, width), new(items, count, heads, width),
        new(items, count, dim), new(rows, hidden), new(rows, hidden), new(2, items, count, dim, dtype=torch.float32),
        torch.empty(2 * blocks + 1, 2, rows, device=device), *bits,
    )  # fmt: skip


def _by_head(x: Float[Tensor, "B K h d"]) -> Float[Tensor, "B h K d"]:
    return x.transpose(1, 2)


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, how: _How, drawn: Tensor | None, slots: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        weights, (keys, values) = tensors[:_WEIGHTS], _halves(tensors[_WEIGHTS:])
        query, query_bias, feed, feed_bias, end, end_bias, ask, *others = weights
        project, project_bias, widen, widen_bias, narrow, narrow_bias = others
        (items, count, dim), (_, heads, _, width) = slots.shape, keys[0].shape
        rows, of_part = items * count, _bounds(keys)
        ask, project, widen, narrow = (one.to(how.precision) for one in (ask, project, widen, narrow))
        blocks = how.depth if how.way_back else 1  # without a way back each block writes over the last
        kept = _empty(slots, blocks, heads, width, len(widen), how)
        biases = query_bias, feed_bias, end_bias
        norms = list(zip((query, feed, end), biases, how.epsilons, strict=True))
        out, attention = torch.empty(slots.shape, device=slots.device), None
        slots = slots if slots.stride(0) == 0 else slots.contiguous()
        add_norm(slots, norms[0], slots, kept.asking[0], kept.stats[2 * blocks])
        now = slots
        for block in range(how.depth):
            at, last = block % blocks, block == how.depth - 1
            torch.mm(kept.asking[at].view(rows, dim), ask.T, out=kept.queries[at].view(rows, -1))
            for part, mask in enumerate(how.masks):
                own = of_part[part]
                if last and len(keys) == 1:
                    attention = slots.new_empty(items, heads, count, keys[0].shape[2])
                attend(
                    _by_head(kept.queries[at, own]), keys[part], values[part], mask, kept.taken[at, own], how.scale,
                    how.epsilon, attention,
                )  # fmt: skip
            product = (kept.taken[at].view(rows, -1) @ project.T).view(slots.shape)
            seed, other = (None, None) if drawn is None else drawn[block]
            added = Added(product, project_bias, how.dropout[0], seed, kept.taken_bits[at])
            add_norm(now, norms[1], kept.sums[at, 0], kept.fed[at], kept.stats[2 * at], added)
            torch.mm(kept.fed[at].view(rows, dim), widen.T, out=kept.hidden[at])
            gelu_dropout(kept.hidden[at], widen_bias, how.dropout[1], other, kept.active[at], kept.active_bits[at])
            added = Added((kept.active[at] @ narrow.T).view(slots.shape), narrow_bias, 0.0, None, kept.taken_bits[at])
            following = out if last else kept.asking[(block + 1) % blocks]
            now = kept.sums[at, 1]
            add_norm(kept.sums[at, 0], norms[2 if last else 0], now, following, kept.stats[2 * at + 1], added)
        ctx.how = how
        ctx.save_for_backward(slots, *kept, ask, project, widen, narrow, query, feed, end, widen_bias, *keys, *values)
        if attention is not None:
            ctx.mark_non_differentiable(attention)
        return out, attention

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        how: _How = ctx.how
        slots, *saved = ctx.saved_tensors
        kept = _Kept(*saved[:10])
        ask, project, widen, narrow, query, feed, end, widen_bias = saved[10:18]
        keys, values = _halves(saved[18:])
        (items, count, dim), blocks, device = slots.shape, how.depth, slots.device
        rows, of_part = items * count, _bounds(keys)
        to_queries, to_taken = torch.empty_like(kept.queries), torch.empty_like(kept.taken)
        to_project, to_narrow = (kept.fed.new_empty(blocks, rows, dim) for _ in range(2))
        to_hidden, to_active = torch.empty_like(kept.hidden), torch.empty_like(kept.hidden[0])
        of_logits, of_weights = (
            [one.new_empty(blocks, len(one), one.shape[1], count, one.shape[2]) for one in keys] for _ in range(2)
        )
        sums = [parts_for(blocks, rows, 3, dim, device=device) for _ in range(2)]
        hidden_sums, first_sums = (
            parts_for(blocks, rows, len(widen), device=device), parts_for(1, rows, 2, dim, device=device)[0],
        )  # fmt: skip
        spare = [torch.empty(slots.shape, device=device) for _ in range(2)]
        carried, incoming = None, arriving.contiguous()
        for block in reversed(range(blocks)):
            add_norm_backwards(
                kept.sums[block, 1], kept.stats[2 * block + 1], end if block == blocks - 1 else query, carried,
                incoming, spare[0], sums[1][block], to_narrow[block],
            )  # fmt: skip
            torch.mm(to_narrow[block], narrow, out=to_active)
            gelu_dropout_backwards(
                kept.hidden[block], widen_bias, how.dropout[1], kept.active_bits[block], to_active, to_hidden[block],
                hidden_sums[block],
            )  # fmt: skip
            incoming = to_hidden[block] @ widen
            add_norm_backwards(
                kept.sums[block, 0], kept.stats[2 * block], feed, spare[0], incoming, spare[1], sums[0][block],
                to_project[block], how.dropout[0], kept.taken_bits[block],
            )  # fmt: skip
            carried = spare[1]
            torch.mm(to_project[block], project, out=to_taken[block].view(rows, -1))
            for part, mask in enumerate(how.masks):
                own = of_part[part]
                attend_backwards(
                    _by_head(kept.queries[block, own]), keys[part], values[part], mask, to_taken[block, own],
                    to_queries[block, own], of_logits[part][block], of_weights[part][block], how.scale, how.epsilon,
                )  # fmt: skip
            incoming = to_queries[block].view(rows, -1) @ ask
        to_slots = torch.empty(slots.shape, device=device)
        add_norm_backwards(slots, kept.stats[2 * blocks], query, carried, incoming, to_slots, first_sums)
        last, others = totals(sums[1][-1]), totals(sums[1][:-1].flatten(0, 1)) if blocks > 1 else None
        of_query, of_feed = totals(first_sums), totals(sums[0].flatten(0, 1))
        if others is not None:
            of_query = of_query + others[:2]
        of_narrow = last[2] if others is None else last[2] + others[2]
        of_parts = [
            gradients_of_inputs(kept.queries[:, own], to_taken[:, own], *slopes)
            for own, *slopes in zip(of_part, of_logits, of_weights, strict=True)
        ]
        of_weight = partial(_of_weight, blocks * rows)
        return (
            None, None, to_slots, *of_query, *of_feed[:2], *last[:2], of_weight(to_queries, kept.asking),
            of_weight(to_project, kept.taken), of_feed[2], of_weight(to_hidden, kept.fed),
            totals(hidden_sums.flatten(0, 1)), of_weight(to_narrow, kept.active), of_narrow,
            *(one for one, _ in of_parts), *(other for _, other in of_parts),
        )  # fmt: skip


def _of_weight(rows: int, outgoing: Tensor, read: Tensor) -> Tensor:
    """The gradient of a weight that all blocks share, over the rows of all of them."""
    return (outgoing.view(rows, -1).T @ read.view(rows, -1)).float()


def _halves(tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    return tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]


def _bounds(keys: Sequence[Tensor]) -> list[slice]:
    """Which items each part has."""
    found, start = [], 0
    for one in keys:
        found.append(slice(start, start + len(one)))
        start += len(one)
    return found


@on_its_device
def slot_blocks(
    slots: Float[Tensor, "B K D"],
    keys: Sequence[Float[Tensor, "B h N d"]],
    values: Sequence[Float[Tensor, "B h N d"]],
    masks: Sequence[Bool[Tensor, "B N"]],
    block: Any,
    end: nn.LayerNorm,
    depth: int,
    epsilon: float,
) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B h K N"] | None]:
    """What `depth` times an `AggregationBlock` makes of the slots, after the norm at the end, in float32; and the last
    block's attention, which has no gradient. The items may come in parts of different lengths: then None.
    """
    layers: Any = (*block.attention.output, *block.feedforward)
    project, drop_taken, norm, widen, _, drop_hidden, narrow = layers
    dropout = tuple(drop.p if drop.training else 0.0 for drop in (drop_taken, drop_hidden))
    norms = (block.query_norm, norm, end)
    how = _How(
        depth, [mask.contiguous() for mask in masks], block.attention.scale, epsilon,
        tuple(one.eps for one in norms), dropout, keys[0].dtype, torch.is_grad_enabled(),
    )  # fmt: skip
    drawn = seeds(depth, slots.device) if any(dropout) else None
    found: tuple[Tensor, Tensor | None] = _Blocks.apply(
        how, drawn, slots, *(tensor for one in norms for tensor in (one.weight, one.bias)),
        block.attention.to_queries.weight, project.weight, project.bias, widen.weight, widen.bias, narrow.weight,
        narrow.bias, *keys, *values,
    )  # fmt: skip
    return found
