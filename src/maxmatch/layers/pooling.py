"""One vector from the real local features of an item."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def masked_max(local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B W"]:
    """The largest value of each channel."""
    return local.masked_fill(~mask[..., None], -torch.inf).amax(1)


def masked_mean(local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B W"]:
    """The mean of each channel."""
    return local.masked_fill(~mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True)


POOLING = {"max": masked_max, "mean": masked_mean}
