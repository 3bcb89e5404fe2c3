"""Slot attention, and the heads that are made of it: SetHead is the paper's, ResidualSetHead turns the one vector of a
trained model into a set.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from maxmatch.core.machine import optional_module
from maxmatch.core.types import Features, Sets
from maxmatch.model.layers.pooling import aligned_linear, unit_vectors
from maxmatch.model.layers.rival_heads import GlobalHead

_EPSILON = 1e-7


def _kernels(name: str, x: Tensor) -> Any | None:
    """A module of kernels, on a GPU with Triton. What is compiled or exported takes the lines in torch."""
    return optional_module(name) if x.is_cuda and not torch.compiler.is_compiling() else None


def _slot_kernels(x: Tensor) -> Any | None:
    return _kernels("maxmatch.model.layers.triton_slots", x)


def _norm_kernels(x: Tensor) -> Any | None:
    kernels = _kernels("maxmatch.model.layers.triton_norm", x)
    return kernels if kernels is not None and kernels.can_norm(x) else None


def _of_products(x: Tensor) -> torch.dtype:
    """The precision in which a linear layer takes x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class Context(NamedTuple):
    """The inputs as attention sees them. The same for every block that shares weights: computed once."""

    keys: Float[Tensor, "B h N d"]
    values: Float[Tensor, "B h N d"]
    mask: Bool[Tensor, "B N"]

    def laid_out(self) -> "Context":
        """For products: once, or every block would copy them anew."""
        return Context(self.keys.contiguous(), self.values.contiguous(), self.mask)


class SlotAttention(nn.Module):
    """Slots compete for each input, then each slot averages what it won. For each of h heads of width d

        a = softmax over the slots of (q kᵀ / √d) · mask,    output = Σ_n a_n v_n / (Σ_n a_n + ε),   ε = 1e-7

    The mask is applied after the softmax: over the slots, a masked logit would still give each slot 1/K of the padding.
    """

    def __init__(self, width: int, context_width: int, heads: int, head_width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads = heads
        self.scale = head_width**-0.5
        inner = heads * head_width
        self.to_queries = nn.Linear(width, inner, bias=False)
        self.to_keys = nn.Linear(context_width, inner, bias=False)
        self.to_values = nn.Linear(context_width, inner, bias=False)
        self.output = nn.Sequential(nn.Linear(inner, width), nn.Dropout(dropout))

    def context(
        self,
        inputs: Float[Tensor, "B N W"],
        mask: Bool[Tensor, "B N"],
        positions: Float[Tensor, "B N W"] | None = None,
    ) -> Context:
        """Keys and values of the inputs; positions are added to what the keys are made of, not to the values."""
        placed = inputs if positions is None else inputs + positions.to(inputs.dtype)
        made = aligned_linear(placed, self.to_keys.weight), aligned_linear(inputs, self.to_values.weight)
        keys, values = map(self._split, made)
        return Context(keys, values, mask)

    def forward(
        self, slots: Float[Tensor, "B K D"], context: Context
    ) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B h K N"]]:
        """What each slot takes from the inputs, and the weights with which it does."""
        queries = self._split(self.to_queries(slots))
        logits = queries @ context.keys.transpose(-1, -2) * self.scale
        share = logits.softmax(-2, dtype=torch.promote_types(logits.dtype, torch.float32))
        share = share * context.mask[:, None, None]
        weights = share / (share.sum(-1, keepdim=True) + _EPSILON)
        taken = weights.to(context.values.dtype) @ context.values
        return self.output(taken.transpose(1, 2).flatten(2)), weights

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class AggregationBlock(nn.Module):
    """x ← x + Attn(LN_q(x), LN_c(ψ));  x ← x + FFN(LN(x)).   FFN: D → 4D, GELU, dropout, → D."""

    def __init__(self, width: int, context_width: int, heads: int, head_width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(width)
        self.context_norm = nn.LayerNorm(context_width)
        self.attention = SlotAttention(width, context_width, heads, head_width, dropout)
        self.feedforward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
        )

    def context(self, features: Features) -> Context:
        """What the slots look at. It does not depend on them."""
        kernels, norm, local = _norm_kernels(features.local), self.context_norm, features.local
        normed = norm(local) if kernels is None else kernels.layer_norm(local, norm, _of_products(local))
        return self.attention.context(normed, features.mask, features.positions)

    def forward(
        self, slots: Float[Tensor, "B K D"], context: Context
    ) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B h K N"]]:
        """The slots one step on, and the attention weights of the step."""
        taken, weights = self.attention(self.query_norm(slots), context)
        slots = slots + taken
        return slots + self.feedforward(slots), weights


class SlotHead(nn.Module):
    """K slots that take what they need from the local features: LN(E^L).

    E^0 are K learned slots ~ N(0, 1); E^L is what L aggregation blocks make of them. The blocks share one set of
    weights, so keys and values are computed once for all of them.

    spare_slots: that many more slots compete for the inputs, and are left out of the set. A slot without competitors
    takes the mean of all inputs, since a softmax over one slot is 1: so K = 1 alone cannot choose what it looks at.
    """

    def __init__(
        self,
        context_width: int,
        width: int,
        set_size: int,
        heads: int,
        head_width: int,
        depth: int,
        dropout: float,
        spare_slots: int = 0,
    ) -> None:
        super().__init__()
        if spare_slots < 0:
            raise ValueError(f"spare_slots: expected 0 or more, got {spare_slots}.")
        self.width = width
        self.set_size = set_size
        self.depth = depth
        self.slots = nn.Parameter(torch.randn(set_size + spare_slots, width))
        self.block = AggregationBlock(width, context_width, heads, head_width, dropout)
        self.residual_norm = nn.LayerNorm(width)

    def residual(self, *parts: Features) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B K N"] | None]:
        """LN(E^L) of B items, and the last block's attention, averaged over its heads. The items may come in parts
        whose local features differ in number: then there is no attention.
        """
        counts = [part.local.shape[0] for part in parts]
        slots = self.slots.expand(sum(counts), -1, -1)
        contexts = [self.block.context(part) for part in parts]
        kernels = _slot_kernels(slots)
        if kernels is not None and kernels.can_run(slots, _of_products(slots), [one.keys for one in contexts]):
            keys, values, masks = zip(*contexts, strict=True)
            end = self.residual_norm
            normed, weights = kernels.slot_blocks(slots, keys, values, masks, self.block, end, self.depth, _EPSILON)
        else:
            own = torch.split(slots, counts) if len(parts) > 1 else [slots]
            found = [self._blocks(*one) for one in zip(own, contexts, strict=True)]
            normed, weights = found[0] if len(parts) == 1 else (torch.cat([one for one, _ in found]), None)
        return normed[:, : self.set_size], None if weights is None else weights[:, :, : self.set_size].mean(1)

    def _blocks(self, slots: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        context = context.laid_out()
        for _ in range(self.depth):
            slots, weights = self.block(slots, context)
        return self.residual_norm(slots), weights

    @torch.no_grad()
    def reorder(self, order: Sequence[int]) -> None:
        """Put the vectors of every set into another order: vector i becomes what vector order[i] was."""
        self.slots[: self.set_size].copy_(self.slots[list(order)].clone())


class SetHead(SlotHead):
    """The set prediction module: S = LN_a(E^L) + LN_b(φ), then each vector to unit length. E^L: see `SlotHead`.

    global_feature: what the losses (GD) see as the global feature, the "raw" φ or the "normalised" LN_b(φ). The sets
    are the same.
    """

    def __init__(
        self,
        context_width: int,
        width: int = 1024,
        set_size: int = 4,
        heads: int = 4,
        head_width: int = 512,
        depth: int = 4,
        dropout: float = 0.1,
        global_feature: Literal["raw", "normalised"] = "raw",
        spare_slots: int = 0,
    ) -> None:
        super().__init__(context_width, width, set_size, heads, head_width, depth, dropout, spare_slots)
        if global_feature not in ("raw", "normalised"):
            raise ValueError(f"global_feature: expected raw or normalised, got {global_feature!r}.")
        self.global_feature = global_feature
        self.pooled_norm = nn.LayerNorm(width)

    def forward(self, *parts: Features) -> Sets:
        """The sets of B items. Their attention is the last block's, averaged over its heads; parts: see `residual`."""
        residual, attention = self.residual(*parts)
        pooled = torch.cat([part.pooled for part in parts]) if len(parts) > 1 else parts[0].pooled
        added = self.pooled_norm(pooled)
        pooled = pooled if self.global_feature == "raw" else added
        return Sets(unit_vectors(residual + added[:, None]), residual, pooled, attention)


class ResidualSetHead(SlotHead):
    """Sets that start as a trained model's one vector: S_k = g + γ_k ⊙ r_k, then each vector to unit length.

        r_k = LN(E^L)_k;   g: the one vector that `base` makes, of unit length

    γ (K, D) is learned and starts at 0: before the first step all K vectors are g, and every similarity ranks as the
    cosine of g. The first step moves γ, of each slot in another way, since the slots start apart; what makes r_k learns
    from the second step on. E^L: see `SlotHead`.
    """

    def __init__(
        self,
        context_width: int,
        width: int = 512,
        set_size: int = 4,
        base: nn.Module | None = None,
        heads: int = 4,
        head_width: int = 128,
        depth: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(context_width, width, set_size, heads, head_width, depth, dropout)
        self.gamma = nn.Parameter(torch.zeros(set_size, width))
        self.base = GlobalHead(context_width, width) if base is None else base

    def forward(self, features: Features) -> Sets:
        """The sets of B items. Their attention is the last block's, averaged over its heads."""
        one: Sets = self.base(features)
        residual, attention = self.residual(features)
        added = self.gamma * residual
        return Sets(unit_vectors(one.vectors + added), added, one.vectors[:, 0], attention)

    @torch.no_grad()
    def reorder(self, order: Sequence[int]) -> None:
        """Put the vectors of every set into another order: vector i becomes what vector order[i] was."""
        super().reorder(order)
        self.gamma.copy_(self.gamma[list(order)].clone())
