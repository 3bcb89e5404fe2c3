"""What keeps the vectors of a set apart. Each function takes one modality; `objective` puts two together."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from maxmatch.core.array_checks import shape_of
from maxmatch.core.checks import check_axes
from maxmatch.core.devices import in_float32

_SETS = ("items", "vectors", "width")
_SMALLEST = 1e-24  # squared length: the cosines of a vector of length 0 are 0


@in_float32
def global_discriminative(
    sets: Float[Tensor, "B K D"],
    pooled: Float[Tensor, "B D"],
    margin: float = 0.6,
    scale: float = 0.5,
    centred: bool = False,
) -> Float[Tensor, ""]:
    """GD (eqn:global-discriminative-loss): every vector of a set away from the item's global feature φ.

        mean over items and vectors of exp(s · (cos(v, φ) − δ₂))

    There is no hinge: δ₂ only scales the loss by exp(−s·δ₂). The gradient flows to φ too.

    centred, for item i and slot k: v_ik − mean_i v_ik in the place of v, and φ_i − mean_i φ_i in that of φ. What all
    items have in common then counts for nothing.

    Args:
        sets: of one modality.
        pooled: φ, the global feature of each item.
        margin: δ₂.
        scale: s.
        centred: whether the mean over the items is taken off each slot, and off φ.

    Returns:
        The loss, a scalar.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import global_discriminative
        >>> pooled = torch.tensor([[1.0, 0.0]])
        >>> near, far = torch.tensor([[[1.0, 0.1]]]), torch.tensor([[[0.0, 1.0]]])
        >>> bool(global_discriminative(far, pooled) < global_discriminative(near, pooled))
        True
    """
    check_axes("sets", sets, _SETS)
    check_axes("pooled", pooled, ("items", "width"))
    if pooled.shape != (len(sets), sets.shape[2]):
        raise ValueError(
            f"pooled: expected one feature of the sets' width per item, {len(sets)}×{sets.shape[2]}, got "
            f"{shape_of(pooled)}."
        )
    if centred:
        sets, pooled = sets - sets.mean(0), pooled - pooled.mean(0)
    lengths = torch.linalg.vector_norm(sets, dim=-1) * torch.linalg.vector_norm(pooled, dim=-1)[:, None]
    cosines: Tensor = (sets @ pooled[..., None])[..., 0] / lengths.clamp(min=_SMALLEST)
    return (scale * (cosines - margin)).exp().mean()


@in_float32
def intra_set_divergence(
    sets: Float[Tensor, "B K D"], margin: float = 0.6, scale: float = 0.5, centred: bool = False
) -> Float[Tensor, ""]:
    """ISD (eqn:intra-set-divergence-loss): the vectors of a set away from each other.

        mean over items and pairs j < k of exp(s · (cos(v_j, v_k) − δ₃))

    As in GD there is no hinge.

    centred, for item i and slot k: v_ik − mean_i v_ik in the place of v. An offset per slot that is the same for all
    items keeps the vectors of a set apart without saying anything about the item; then it counts for nothing.

    Args:
        sets: of one modality.
        margin: δ₃.
        scale: s.
        centred: whether the mean over the items is taken off each slot.

    Returns:
        The loss, a scalar; 0 for sets of one vector.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import intra_set_divergence
        >>> equal, apart = torch.ones(1, 2, 3), torch.eye(3)[None, :2]
        >>> bool(intra_set_divergence(apart) < intra_set_divergence(equal))
        True
    """
    check_axes("sets", sets, _SETS)
    sets = sets - sets.mean(0) if centred else sets
    return _mean_over_pairs((scale * (_pair_cosines(sets) - margin)).exp())


@in_float32
def uniformity(residual: Float[Tensor, "B K D"]) -> Float[Tensor, ""]:
    """Div, as SetDiv computes it: mean over items and pairs of exp(−2‖x − y‖²), on normalised residuals.

    Args:
        residual: the slots before the global feature is added to them.

    Returns:
        The loss, a scalar: 1 where all vectors of a set are equal, 0 for sets of one vector.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import uniformity
        >>> f"{uniformity(torch.ones(1, 2, 3)):.2f} {uniformity(torch.eye(3)[None, :2]):.2f}"
        '1.00 0.02'
    """
    check_axes("residual", residual, _SETS)
    return _mean_over_pairs((4 * _pair_cosines(residual) - 4).exp())


@in_float32
def pvse_diversity(residual: Float[Tensor, "B K D"]) -> Float[Tensor, ""]:
    """Div, as PVSE computes it: the Frobenius norm of the off-diagonal Gram matrix over K², on normalised residuals.

    Args:
        residual: the slots before the global feature is added to them.

    Returns:
        The loss, a scalar; 0 for sets of one vector.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import pvse_diversity
        >>> f"{pvse_diversity(torch.ones(1, 2, 3)):.2f} {pvse_diversity(torch.eye(3)[None, :2]):.2f}"
        '0.35 0.00'
    """
    check_axes("residual", residual, _SETS)
    size = residual.shape[1]
    if size == 1:
        return residual.sum() * 0.0
    squares = 2 * _pair_cosines(residual).square().sum(1)  # each pair stands twice in the matrix
    tiny = torch.finfo(squares.dtype).tiny
    return squares.clamp(min=tiny).sqrt().mean() / size**2


def _pair_cosines(sets: Tensor) -> Tensor:
    """The cosines within each set, of the pairs j < k: (B, K(K−1)/2)."""
    products: Tensor = _InnerProducts.apply(sets)  # type: ignore[no-untyped-call]
    rows, columns = torch.triu_indices(sets.shape[1], sets.shape[1], offset=1, device=sets.device)
    scale = products.diagonal(dim1=1, dim2=2).clamp(min=_SMALLEST).rsqrt()
    return (products * scale[:, :, None] * scale[:, None])[:, rows, columns]


class _InnerProducts(torch.autograd.Function):
    """x xᵀ of each set (B, K, K); its gradient in x is (G + Gᵀ) x, one product where autograd takes two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x @ x.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        both: Tensor = (gradient + gradient.transpose(1, 2)) @ x
        return both


def _mean_over_pairs(values: Tensor) -> Tensor:
    return values.mean() if values.numel() else values.sum()
