"""What every encoder offers, and the mask they all take."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from maxmatch.checks import check_mask
from maxmatch.types import Features


@runtime_checkable
class Encoder(Protocol):
    """A module that turns B raw items into features. What it makes of an item does not depend on the other items."""

    local_width: int
    """Width of the local features: the context width of the head that reads them."""
    width: int
    """Width D of the global feature."""

    def __call__(self, inputs: Tensor, mask: Tensor | None = None, /) -> Features:
        """Pixels (B, 3, H, W), features (B, N, W) or token ids (B, N); the mask is True where an input is real."""
        ...


def mask_for(inputs: Tensor, mask: Bool[Tensor, "B N"] | None, name: str = "mask") -> Bool[Tensor, "B N"]:
    """The mask, checked, or one that says every input is real.

    On a GPU looking into it would wait for the device: there an item without real inputs must be refused earlier.
    """
    if mask is None:
        return torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
    if mask.device.type == "cpu":
        check_mask(name, mask, tuple(inputs.shape[:2]))
    return mask
