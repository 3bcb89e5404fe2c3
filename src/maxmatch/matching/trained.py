"""`maxmatch` of sets of four vectors on a GPU with its gradient: one autograd function, two launches forward and three
backward, where operation by operation it takes twenty.

    ∂s/∂c_kl = exp(c_kl) / 4 where the matching has k with l, else 0

The product of all vectors is made in their own order, no copy of the sets. A kernel matches the blocks; on the way back
another writes the gradient by the cosines over these, and two products lead to the sets. So one tensor of the size of
all cosines is allocated.

A GPU is done with two thirds of this before a host has launched the rest, operation by operation. So every operation
counts here, views too.
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


def trained_scores(a: Any, b: Any, plain: Callable[[Tensor, Tensor], Tensor]) -> Float[Tensor, "B C"] | None:
    """The scores (B, C) of two batches of sets with their gradient; None where another way is needed: for other sets
    and devices, for forward derivatives and for the transformations of `torch.func`; and for what is no such batch.

    plain: the same scores operation by operation, for derivatives of the gradient.
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and torch.is_grad_enabled()):
        return None
    if not (a.requires_grad or b.requires_grad) or torch.compiler.is_compiling():
        return None
    kernels, shape = kernels_for(a), a.shape
    alike = a.dtype == b.dtype and a.device == b.device and a.ndim == b.ndim == 3 and shape[1:] == b.shape[1:]
    if kernels is None or not alike or shape[1] != SIZE or not a.is_floating_point() or not a.numel() or not b.numel():
        return None
    if is_functorch_wrapped_tensor(a) or is_functorch_wrapped_tensor(b):
        return None
    if unpack_dual(a).tangent is not None or unpack_dual(b).tangent is not None:  # type: ignore[no-untyped-call]
        return None
    scores: Tensor = _Trained.apply(a, b, kernels, plain)  # type: ignore[no-untyped-call]
    return scores


class _Trained(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, kernels: Any, plain: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        made = _multiplied(a, b)
        scores = made[2].new_empty((a.shape[0], b.shape[0]))
        kernels.block_scores(made[2], scores)
        ctx.save_for_backward(a, b)
        ctx.made, ctx.kernels, ctx.plain = made, kernels, plain
        return scores

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        of_a, of_b, _, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # the gradient is to be differentiated in turn
            a, b = a.view_as(a), b.view_as(b)  # of these alone, even if one of them was made from the other
            inputs = [sets for sets, needed in ((a, of_a), (b, of_b)) if needed]
            found = iter(torch.autograd.grad(ctx.plain(a, b), inputs, grad, create_graph=True))
            return next(found) if of_a else None, next(found) if of_b else None, None, None
        # Who asks for the gradient again has the cosines made again.
        x, y, cosines = ctx.made or _multiplied(a, b)
        ctx.made = None
        ctx.kernels.block_gradient(cosines, grad)
        times, width = torch.mm if _is_full(x) else _product, x.shape[1]
        first = times(cosines, y).view(-1, SIZE, width) if of_a else None
        second = times(cosines.t(), x).view(-1, SIZE, width) if of_b else None
        return first, second, None, None


def _multiplied(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The vectors (4B, D) and (4C, D), and their cosines (4B, 4C) in float32."""
    x, y = a.flatten(0, 1), b.flatten(0, 1)
    if _is_full(x):
        return x, y, torch.mm(x, y.t())
    with torch.autocast(a.device.type, enabled=False):
        return x, y, multiply(x, y)


def _product(slopes: Tensor, vectors: Tensor) -> Tensor:
    """In float32, then in the precision of the vectors."""
    with torch.autocast(slopes.device.type, enabled=False):
        return multiply(slopes, vectors.t()).to(vectors.dtype)


def _is_full(vectors: Tensor) -> bool:
    """Whether they are multiplied in float32 by themselves."""
    return vectors.dtype == torch.float32 and not torch.is_autocast_enabled(vectors.device.type)
