"""`maxmatch` of sets of four vectors on a GPU with its gradient: one autograd function, two launches forward and three
backward, where operation by operation it takes twenty.

    ∂s/∂c_kl = exp(c_kl) / 4 where the matching has k with l, else 0

The product of all vectors is made in their own order, no copy of the sets. A kernel matches the blocks and writes these
slopes over the cosines; times the scores' gradient they are the gradient of the cosines, and two products lead to the
sets. So one tensor of the size of all cosines is allocated.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.forward_ad import unpack_dual

from maxmatch.matching.products import kernels_for, multiply

SIZE = 4


def trained_scores(
    a: Float[Tensor, "B K D"], b: Float[Tensor, "C L D"], plain: Callable[[Tensor, Tensor], Tensor]
) -> Float[Tensor, "B C"] | None:
    """The scores with their gradient; None where another way is needed: for other sets and devices, for forward
    derivatives and for the transformations of `torch.func`.

    plain: the same scores operation by operation, for derivatives of the gradient.
    """
    if not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)) or torch.compiler.is_compiling():
        return None
    kernels = kernels_for(a)
    if kernels is None or not a.shape[1] == b.shape[1] == SIZE or a.dtype != b.dtype or not len(a) or not len(b):
        return None
    if any(is_functorch_wrapped_tensor(sets) or unpack_dual(sets).tangent is not None for sets in (a, b)):  # type: ignore[no-untyped-call]
        return None
    scores: Tensor = _Trained.apply(a, b, kernels, plain)  # type: ignore[no-untyped-call]
    return scores


class _Trained(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, kernels: Any, plain: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.kernels, ctx.plain = kernels, plain
        scores, ctx.slopes = _slopes(a, b, kernels)
        return scores

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # the gradient is to be differentiated in turn
            inputs = [sets for sets, needed in zip((a, b), wanted, strict=True) if needed]
            found = iter(torch.autograd.grad(ctx.plain(a, b), inputs, grad, create_graph=True))
            return *(next(found) if needed else None for needed in wanted), None, None
        # They become the gradient of the cosines. Who asks for that again has them made again.
        slopes = _slopes(a, b, ctx.kernels)[1] if ctx.slopes is None else ctx.slopes
        ctx.slopes = None
        slopes.view(len(a), SIZE, len(b), SIZE).mul_(grad[:, None, :, None])
        of_a = _product(slopes, b.flatten(0, 1).T).view(a.shape).to(a.dtype) if wanted[0] else None
        of_b = _product(slopes.T, a.flatten(0, 1).T).view(b.shape).to(b.dtype) if wanted[1] else None
        return of_a, of_b, None, None


def _product(x: Tensor, y: Tensor) -> Tensor:
    """x yᵀ"""
    if x.dtype == y.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type):
        return x @ y.T
    with torch.autocast(x.device.type, enabled=False):
        return multiply(x, y)


def _slopes(a: Tensor, b: Tensor, kernels: Any) -> tuple[Tensor, Tensor]:
    """Scores (B, C) and slopes (4B, 4C)."""
    slopes = _product(a.flatten(0, 1), b.flatten(0, 1))
    scores = slopes.new_empty(len(a), len(b))
    kernels.block_slopes(slopes, scores)
    return scores, slopes
