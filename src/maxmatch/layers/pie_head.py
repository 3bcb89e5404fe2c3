"""PIE-Net, the head of PVSE: K attention heads over the local features, each added to the global feature."""

from collections.abc import Sequence

import torch
from torch import nn

from maxmatch.layers.unit import unit_vectors
from maxmatch.types import Features, Sets


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
