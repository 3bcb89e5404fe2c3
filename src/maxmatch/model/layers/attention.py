"""Slot attention: slots compete for each input, then each slot averages what it won."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import linear, pad

# Matrix products of widths that suit a GPU.

_SUITABLE = 8  # numbers of half precision that a tensor core reads at once


def aligned_linear(x: Float[Tensor, "*n W"], weight: Float[Tensor, "V W"]) -> Float[Tensor, "*n V"]:
    """x weightᵀ. On a GPU a width such as that of GloVe's vectors, 300, is first filled up with zeros to a multiple
    of 8, for which products are faster.
    """
    return linear(widened(x), widened(weight))


def widened(x: Float[Tensor, "*n W"]) -> Float[Tensor, "*n V"]:
    """On a GPU, x with zeros after it up to a width that suits."""
    missing = -x.shape[-1] % _SUITABLE
    return pad(x, (0, missing)) if x.is_cuda and missing else x


_EPSILON = 1e-7


class Context(NamedTuple):
    """The inputs as attention sees them. The same for every block that shares weights: computed once."""

    keys: Float[Tensor, "B h N d"]
    values: Float[Tensor, "B h N d"]
    mask: Bool[Tensor, "B N"]


class SlotAttention(nn.Module):
    """For each of h heads of width d

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
        keys, values = aligned_linear(placed, self.to_keys.weight), aligned_linear(inputs, self.to_values.weight)
        # Laid out for the products once, or every block would copy them anew.
        return Context(self._split(keys).contiguous(), self._split(values).contiguous(), mask)

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
