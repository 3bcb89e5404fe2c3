"""Many vectors of an item made few: what a foreign model's tokens need before they can be matched one to one."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from maxmatch.checks import check_mask, check_set_size
from maxmatch.layers.unit import unit_vectors


def cluster_tokens(
    tokens: Float[Tensor, "B N D"], size: int, mask: Bool[Tensor, "B N"] | None = None, rounds: int = 4
) -> tuple[Float[Tensor, "B K D"], Bool[Tensor, "B K"]]:
    """At most `size` unit vectors of each item, and which of them are real.

    Tokens that point the same way become one vector: spherical k-means from the item's token nearest to its mean and
    those farthest from it and from each other, `rounds` times; a vector is the sum of its tokens, brought to length 1.
    An item with no more than `size` tokens keeps them all, in their order.

    Which token goes where is chosen without gradient; the gradient flows through the sums. Nothing is random, and an
    item does not depend on those beside it.
    """
    if size < 1:
        raise ValueError(f"size: expected at least 1, got {size}.")
    check_set_size("size", size)
    check_mask("mask", mask, tuple(tokens.shape[:2]))
    real = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device) if mask is None else mask
    order = (~real).int().argsort(dim=1, stable=True)  # the real ones first
    real = real.gather(1, order)
    ordered = tokens.gather(1, order[..., None].expand_as(tokens))
    unit = unit_vectors(ordered.masked_fill(~real[..., None], 0.0))
    if tokens.shape[1] <= size:
        return unit, real
    cluster = _clusters(unit.detach(), real, size, rounds)
    few = real.sum(1, keepdim=True) <= size
    own = torch.arange(tokens.shape[1], device=tokens.device).expand_as(cluster)
    member = _members(torch.where(few, own, cluster), real, size)
    sums = member.to(unit.dtype) @ unit
    return unit_vectors(sums), member.any(2)


@torch.no_grad()
def _clusters(unit: Float[Tensor, "B N D"], real: Bool[Tensor, "B N"], size: int, rounds: int) -> Int[Tensor, "B N"]:
    """The cluster of each token."""
    to_mean = (unit @ unit.sum(1)[..., None])[..., 0]
    chosen = to_mean.masked_fill(~real, -torch.inf).argmax(1)
    centres = _at(unit, chosen)
    nearest = (unit @ centres.mT)[..., 0]
    for _ in range(size - 1):
        chosen = nearest.masked_fill(~real, torch.inf).argmin(1)
        farthest = _at(unit, chosen)
        centres = torch.cat([centres, farthest], 1)
        nearest = torch.maximum(nearest, (unit @ farthest.mT)[..., 0])
    cluster = (unit @ centres.mT).argmax(2)
    for _ in range(rounds):
        sums = _members(cluster, real, size).to(unit.dtype) @ unit
        cluster = (unit @ unit_vectors(sums).mT).argmax(2)
    return cluster


def _at(unit: Tensor, chosen: Tensor) -> Tensor:
    """One token of each item, (B, 1, D)."""
    return unit.gather(1, chosen[:, None, None].expand(-1, 1, unit.shape[2]))


def _members(cluster: Int[Tensor, "B N"], real: Bool[Tensor, "B N"], size: int) -> Bool[Tensor, "B K N"]:
    """Which tokens are in which cluster."""
    return (cluster[:, None] == torch.arange(size, device=cluster.device)[:, None]) & real[:, None]
