"""Heads: from local features to a set of K unit vectors. SetHead is the paper's, PIEHead is PVSE's."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from maxmatch.core.types import Features, Sets
from maxmatch.model.layers.attention import Context, SlotAttention

# The last step of every head.


def unit_vectors(x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
    """Vectors of length 1, in at least float32: in bfloat16 their lengths would be off by some thousandths."""
    return normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


# The set prediction module: K learned slots gather a set of vectors from an item's local features.


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
        return self.attention.context(self.context_norm(features.local), features.mask, features.positions)

    def forward(
        self, slots: Float[Tensor, "B K D"], context: Context
    ) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B h K N"]]:
        """The slots one step on, and the attention weights of the step."""
        taken, weights = self.attention(self.query_norm(slots), context)
        slots = slots + taken
        return slots + self.feedforward(slots), weights


class SetHead(nn.Module):
    """S = LN_a(E^L) + LN_b(φ), then each vector to unit length.

    E^0 are K learned slots ~ N(0, 1); E^L is what L aggregation blocks make of them. The blocks share one set of
    weights, so keys and values are computed once for all of them.
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
    ) -> None:
        super().__init__()
        self.width = width
        self.set_size = set_size
        self.depth = depth
        self.slots = nn.Parameter(torch.randn(set_size, width))
        self.block = AggregationBlock(width, context_width, heads, head_width, dropout)
        self.residual_norm = nn.LayerNorm(width)
        self.pooled_norm = nn.LayerNorm(width)

    def forward(self, features: Features) -> Sets:
        """The sets of B items. Their attention is the last block's, averaged over its heads."""
        slots = self.slots.expand(features.local.shape[0], -1, -1)
        context = self.block.context(features)
        for _ in range(self.depth):
            slots, weights = self.block(slots, context)
        residual = self.residual_norm(slots)
        fused = residual + self.pooled_norm(features.pooled)[:, None]
        return Sets(unit_vectors(fused), residual, features.pooled, weights.mean(1))

    @torch.no_grad()
    def reorder(self, order: Sequence[int]) -> None:
        """Put the vectors of every set into another order: vector i becomes what vector order[i] was."""
        self.slots.copy_(self.slots[list(order)].clone())


# PIE-Net, the head of PVSE: K attention heads over the local features, each added to the global feature.


class PIEHead(nn.Module):
    """S = LN(φ + residual), then each vector to unit length.

        residual_k = dropout(sigmoid(fc(Σ_n a_kn ψ_n))),   a_k = softmax over the inputs of w_kᵀ tanh(W ψ)

    W maps to half the width of ψ; W and w have no bias. Positions are not used.
    """

    def __init__(self, context_width: int, width: int = 1024, set_size: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.width = width
        self.set_size = set_size
        self.attention = nn.Sequential(
            nn.Linear(context_width, context_width // 2, bias=False),
            nn.Tanh(),
            nn.Linear(context_width // 2, set_size, bias=False),
        )
        self.fc = nn.Linear(context_width, width)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, features: Features) -> Sets:
        """The sets of B items."""
        logits = self.attention(features.local).masked_fill(~features.mask[..., None], -torch.inf)
        weights = logits.softmax(1).transpose(1, 2)
        residual = self.dropout(self.fc(weights @ features.local).sigmoid())
        fused = self.norm(features.pooled[:, None] + residual)
        return Sets(unit_vectors(fused), residual, features.pooled, weights)

    @torch.no_grad()
    def reorder(self, order: Sequence[int]) -> None:
        """Put the vectors of every set into another order: vector i becomes what vector order[i] was."""
        per_slot = self.attention[2]
        assert isinstance(per_slot, nn.Linear)
        weight = per_slot.weight
        weight.copy_(weight[list(order)].clone())
