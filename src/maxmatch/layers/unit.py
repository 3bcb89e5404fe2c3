"""The last step of every head."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize


def unit_vectors(x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
    """Vectors of length 1, in at least float32: in bfloat16 their lengths would be off by some thousandths."""
    return normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)
