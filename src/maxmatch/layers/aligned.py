"""Matrix products of widths that suit a GPU."""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear, pad

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
