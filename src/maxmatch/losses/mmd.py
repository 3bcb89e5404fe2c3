"""Maximum mean discrepancy between the vectors of two modalities (MMD in eqn:combined-loss, as in SetDiv)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from maxmatch.core.checks import check_axes
from maxmatch.core.devices import in_float32
from maxmatch.core.machine import optional_module


@in_float32
def mmd(a: Float[Tensor, "B K D"], b: Float[Tensor, "C L D"]) -> Float[Tensor, ""]:
    """How far apart two clouds of vectors lie, all vectors of all sets together.

        mean k(x, x') + mean k(y, y') − 2 mean k(x, y),   k(x, y) = exp(−½‖x − y‖), the distance not squared

    Args:
        a: the sets of one modality.
        b: the sets of the other; their number and size may differ.

    Returns:
        The discrepancy, a scalar: 0 where both clouds are equal.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import mmd
        >>> sets = torch.randn(5, 4, 8)
        >>> bool(mmd(sets, sets) < 1e-6), bool(mmd(sets, sets + 1) > 0.1)
        (True, True)
    """
    for name, sets in (("a", a), ("b", b)):
        check_axes(name, sets, ("items", "vectors", "width"))
    if a.shape[2] != b.shape[2]:
        raise ValueError(f"b: expected vectors of width {a.shape[2]}, as a has, got {b.shape[2]}.")
    x, y = a.flatten(0, 1), b.flatten(0, 1)
    kernels = _kernels(x, y)
    if kernels is not None:
        found: Tensor = kernels.discrepancy(x, y)
        return found
    centre = x.detach().mean(0)  # distances stay, and the vectors of a collapsed cloud keep their digits
    x, y = x - centre, y - centre
    return _mean_kernel(x, x) + _mean_kernel(y, y) - 2 * _mean_kernel(x, y)


def _kernels(x: Tensor, y: Tensor) -> Any | None:
    """The GPU kernels, for float32 where Triton is installed. What is compiled or exported takes the lines in torch."""
    here = x.is_cuda and x.dtype == y.dtype == torch.float32 and not torch.compiler.is_compiling()
    return optional_module("maxmatch.losses.triton_mmd") if here else None


def _mean_kernel(x: Tensor, y: Tensor) -> Tensor:
    mean: Tensor = _MeanKernel.apply(x, y)  # type: ignore[no-untyped-call]
    return mean


class _MeanKernel(torch.autograd.Function):
    """mean k(x, y), of which one matrix is kept: with k_ij = exp(−½ d_ij), the gradient in x_i is Σ_j −½ k_ij / d_ij
    (x_i − y_j) over the number of pairs.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        norms = x.square().sum(1)[:, None] + y.square().sum(1)
        squared = torch.addmm(norms, x, y.T, alpha=-2)
        # At distance 0 the root has no slope and rounding would make one up: there k is 1 and no gradient flows.
        same = squared <= norms.mul_(16 * torch.finfo(squared.dtype).eps)
        distance = squared.masked_fill_(same, 1.0).sqrt_()
        values = torch.mul(distance, -0.5, out=norms).masked_fill_(same, 0.0).exp_()
        mean = values.mean()
        ctx.with_itself = x is y
        ctx.save_for_backward(x, y, values.div_(distance).masked_fill_(same, 0.0))
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, y, slopes = ctx.saved_tensors
        scale = -0.5 * gradient / slopes.numel()
        to_x = scale * (slopes.sum(1)[:, None] * x - slopes @ y)
        return to_x, to_x if ctx.with_itself else scale * (slopes.sum(0)[:, None] * y - slopes.T @ x)
