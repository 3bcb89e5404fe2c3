"""What keeps the vectors of a set apart. Each function takes one modality; `objective` puts two together."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize


def global_discriminative(
    sets: Float[Tensor, "B K D"], pooled: Float[Tensor, "B D"], margin: float = 0.6, scale: float = 0.5
) -> Float[Tensor, ""]:
    """GD (eqn:global-discriminative-loss): every vector of a set away from the item's global feature φ.

        mean over items and vectors of exp(s · (cos(v, φ) − δ₂))

    There is no hinge: δ₂ only scales the loss by exp(−s·δ₂). The gradient flows to φ too.
    """
    cosines = (normalize(sets, dim=-1) @ normalize(pooled, dim=-1)[..., None])[..., 0]
    return (scale * (cosines - margin)).exp().mean()


def intra_set_divergence(sets: Float[Tensor, "B K D"], margin: float = 0.6, scale: float = 0.5) -> Float[Tensor, ""]:
    """ISD (eqn:intra-set-divergence-loss): the vectors of a set away from each other.

        mean over items and pairs j < k of exp(s · (cos(v_j, v_k) − δ₃))

    Zero for sets of one vector. As in GD there is no hinge.
    """
    return _mean_over_pairs((scale * (_pair_cosines(sets) - margin)).exp())


def uniformity(residual: Float[Tensor, "B K D"]) -> Float[Tensor, ""]:
    """Div, as SetDiv computes it: mean over items and pairs of exp(−2‖x − y‖²), on normalised residuals."""
    return _mean_over_pairs((4 * _pair_cosines(residual) - 4).exp())


def pvse_diversity(residual: Float[Tensor, "B K D"]) -> Float[Tensor, ""]:
    """Div, as PVSE computes it: the Frobenius norm of the off-diagonal Gram matrix over K², on normalised residuals."""
    size = residual.shape[1]
    if size == 1:
        return residual.sum() * 0.0
    squares = 2 * _pair_cosines(residual).square().sum(1)  # each pair stands twice in the matrix
    tiny = torch.finfo(squares.dtype).tiny
    return squares.clamp(min=tiny).sqrt().mean() / size**2


def _pair_cosines(sets: Tensor) -> Tensor:
    """The cosines within each set, of the pairs j < k: (B, K(K−1)/2)."""
    unit = normalize(sets, dim=-1)
    rows, columns = torch.triu_indices(sets.shape[1], sets.shape[1], offset=1, device=sets.device)
    return (unit @ unit.transpose(1, 2))[:, rows, columns]


def _mean_over_pairs(values: Tensor) -> Tensor:
    return values.mean() if values.numel() else values.sum()
