"""The heads of the methods that MaxMatch is compared with: PVSE's makes sets, PCME++'s Gaussians, those of VSE∞ and
VSE++ one vector.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from maxmatch.core.types import Features, Sets
from maxmatch.matching.similarity import gaussian_sets
from maxmatch.model.layers.pooling import POOLING, TEMPERATURE, gru_states, turned, unit_vectors


class PIEHead(nn.Module):
    """PIE-Net, the head of PVSE: S = LN(φ + residual), then each vector to unit length.

        residual_k = dropout(sigmoid(fc(Σ_n a_kn ψ_n))),   a_k = softmax over the inputs of w_kᵀ tanh(W ψ)

    W maps to half the width of ψ; W and w have no bias. Positions are not used.
    init: "torch", as every linear layer starts there, or "xavier", as PVSE's code: uniform in Glorot's bounds, bias 0.
    """

    def __init__(
        self,
        context_width: int,
        width: int = 1024,
        set_size: int = 4,
        dropout: float = 0.1,
        init: Literal["torch", "xavier"] = "torch",
    ) -> None:
        super().__init__()
        if init not in ("torch", "xavier"):
            raise ValueError(f"init: expected torch or xavier, got {init!r}.")
        self.width = width
        self.set_size = set_size
        self.attention = nn.Sequential(
            nn.Linear(context_width, context_width // 2, bias=False),
            nn.Tanh(),
            nn.Linear(context_width // 2, set_size, bias=False),
        )
        self.fc = nn.Linear(context_width, width)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)
        if init == "xavier":
            for layer in self.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(self.fc.bias)

    def forward(self, features: Features) -> Sets:
        """The sets of B items."""
        logits = self.attention(features.local).masked_fill(~features.mask[..., None], -torch.inf)
        weights = logits.softmax(1).transpose(1, 2)
        residual = self.dropout(self.fc(weights @ features.local).sigmoid())
        fused = self.norm(features.pooled[:, None] + residual)
        return Sets(unit_vectors(fused), residual, features.pooled, weights)

    @torch.no_grad()
    def reorder(self, order: Sequence[int]) -> None:
        """Put the vectors of every set into another order: vector i becomes what vector order[i] was."""
        per_slot = self.attention[2]
        assert isinstance(per_slot, nn.Linear)
        weight = per_slot.weight
        weight.copy_(weight[list(order)].clone())


_CODE = 32  # width of a rank's code, and of the GRU that reads it
_SHARPNESS = 0.1  # the temperature of the softmax over ranks


def rank_codes(
    count: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "{count} 32"]:
    """The sine codes of ranks 0..n−1: sin(i / T^(w/W)) for even w, cos(i / T^((w−1)/W)) for odd w, W = 32."""
    wave = torch.arange(_CODE, device=device)
    precise = torch.promote_types(dtype, torch.float32)
    angle = torch.arange(count, device=device)[:, None] / TEMPERATURE ** (2 * (wave // 2).to(precise) / _CODE)
    return torch.where(wave % 2 == 0, angle.sin(), angle.cos()).to(dtype)


class GPOHead(nn.Module):
    """The generalised pooling operator, the head of VSE∞: S = Σ_i θ_i x_(i), one vector, then to unit length.

        θ = softmax over ranks i of (wᵀ h_i / 0.1),   h_i: the mean of both directions of a Bi-GRU over ranks 0..n−1

    x_(i) holds the i-th largest value of every channel, each channel sorted on its own. So θ depends on the number n of
    real features alone, and the order of features does not matter. It has no attention: a rank belongs to another
    feature in every channel.
    """

    def __init__(self, context_width: int, width: int = 1024, set_size: int = 1) -> None:
        super().__init__()
        _check_one_vector("gpo", set_size)
        if context_width != width:
            raise ValueError(
                f"context_width: gpo pools features of the model's width, {width}, got {context_width}. Let the "
                "encoder project them, and a GRU give its states (local='states')."
            )
        self.width = width
        self.set_size = set_size
        self.gru = nn.GRU(_CODE, _CODE, batch_first=True, bidirectional=True)
        self.score = nn.Linear(_CODE, 1, bias=False)

    def forward(self, features: Features) -> Sets:
        """The sets of B items."""
        pooled = self.pool(features.local, features.mask)
        return Sets(unit_vectors(pooled[:, None]), pooled[:, None], pooled)

    def pool(self, local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B W"]:
        """Σ_i θ_i x_(i) of B items, not normalised."""
        ranked = torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)
        values = local.masked_fill(~mask[..., None], -torch.inf).sort(1, descending=True).values
        values = values.masked_fill(~ranked[..., None], 0.0)
        pooled: Tensor = self.weights(ranked)[:, None].to(values.dtype) @ values
        return pooled[:, 0]

    def weights(self, ranked: Bool[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        """θ of B items. ranked: True for the ranks that an item has, its first."""
        codes = rank_codes(ranked.shape[1], ranked.device, self.score.weight.dtype)
        with torch.autocast(ranked.device.type, enabled=False):  # it is small, and the softmax sharp
            states = self.states(codes.expand(ranked.shape[0], -1, -1), ranked)
            scores = self.score(states.mean(2))[..., 0].masked_fill(~ranked, -torch.inf)
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights: Tensor = (scores / _SHARPNESS).softmax(1)
        return weights

    def states(self, codes: Float[Tensor, "B N 32"], ranked: Bool[Tensor, "B N"]) -> Float[Tensor, "B N 2 32"]:
        """The states of both directions at each rank; each item is read backwards from its own last rank."""
        length = ranked.sum(1)
        last = turned(gru_states(self.gru, turned(codes, length), "_reverse"), length)
        return torch.stack([gru_states(self.gru, codes), last], 2)

    def reorder(self, order: Sequence[int]) -> None:
        """One vector has one order."""


class GlobalHead(nn.Module):
    """The head of VSE++: S = φ, one vector, to unit length. It has no parameters and no attention."""

    def __init__(self, context_width: int, width: int = 1024, set_size: int = 1) -> None:
        super().__init__()
        _check_one_vector("global", set_size)
        self.width = width
        self.set_size = set_size

    def forward(self, features: Features) -> Sets:
        """The sets of B items."""
        pooled = features.pooled[:, None]
        return Sets(unit_vectors(pooled), pooled, features.pooled)

    def reorder(self, order: Sequence[int]) -> None:
        """One vector has one order."""


def _check_one_vector(head: str, set_size: int) -> None:
    if set_size != 1:
        raise ValueError(f"set_size: the head {head!r} makes one vector per item, got {set_size}. Set it to 1.")


class GaussianHead(nn.Module):
    """The head of PCME++: an item is a Gaussian with a mean of unit length and independent variances.

        reads="both":    μ = L2(V φ + pool(W ψ)),   log σ² = V' φ + pool(W' ψ)
        reads="local":   μ = L2(b + pool(W ψ)),     log σ² = b' + pool(W' ψ)

    Its set is what `gaussian_sets` makes of them: two vectors, compared by `csd`. V and W map to width − 2.

    log_variance: where log σ² starts, the bias of V', or b'. At 0 the variances of 1,024 coordinates alone add 2,048 to
    each distance, so that no pair is likely and little is learned. pooling: of W ψ and of W' ψ, "gpo" (each has a GPO
    of its own, as in PCME++'s code), "mean" or "max". reads: the "local" features alone, as in PCME++'s code (W and W'
    then start by Glorot's rule, b at 0), or "both" the local and the global ones.
    """

    set_size = 2

    def __init__(
        self,
        context_width: int,
        width: int = 1024,
        set_size: int = 2,
        log_variance: float = -4.0,
        pooling: Literal["gpo", "mean", "max"] = "gpo",
        reads: Literal["both", "local"] = "both",
    ) -> None:
        super().__init__()
        if set_size != self.set_size:
            raise ValueError(f"set_size: a Gaussian is a set of 2 vectors, got {set_size}.")
        if width < 3:
            raise ValueError(f"width: a Gaussian takes two coordinates beside its mean, got {width}.")
        self.width = width
        self.pooling = pooling
        self.mean_of_local = nn.Linear(context_width, width - 2, bias=False)
        self.mean_of_pooled = nn.Linear(width, width - 2) if reads == "both" else _Bias(width - 2)
        self.variance_of_local = nn.Linear(context_width, width - 2, bias=False)
        self.variance_of_pooled = nn.Linear(width, width - 2) if reads == "both" else _Bias(width - 2)
        self.mean_gpo = GPOHead(width - 2, width - 2) if pooling == "gpo" else None
        self.variance_gpo = GPOHead(width - 2, width - 2) if pooling == "gpo" else None
        nn.init.constant_(self.variance_of_pooled.bias, log_variance)
        if reads == "local":
            nn.init.xavier_uniform_(self.mean_of_local.weight)
            nn.init.xavier_uniform_(self.variance_of_local.weight)

    def forward(self, features: Features) -> Sets:
        """The sets of B items. The attention is None: nothing attends."""
        local, mask, pooled = features.local, features.mask, features.pooled
        mean = self.mean_of_pooled(pooled) + self._pool(self.mean_gpo, self.mean_of_local(local), mask)
        spread = self._pool(self.variance_gpo, self.variance_of_local(local), mask)
        log_variance = self.variance_of_pooled(pooled) + spread
        mean, log_variance = unit_vectors(mean), log_variance.to(torch.promote_types(mean.dtype, torch.float32))
        return Sets(gaussian_sets(mean, log_variance), torch.stack([mean, log_variance], 1), pooled)

    def _pool(
        self, gpo: GPOHead | None, local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]
    ) -> Float[Tensor, "B W"]:
        return POOLING[self.pooling](local, mask) if gpo is None else gpo.pool(local, mask)

    def reorder(self, order: Sequence[int]) -> None:
        """Only the order there is: the vectors of a Gaussian have meanings of their own."""
        if list(order) != [0, 1]:
            raise ValueError(f"order: the two vectors of a Gaussian cannot be reordered, got {list(order)}.")


class _Bias(nn.Module):
    """The same vector for every item; in float32, where a layer in mixed precision would round it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, pooled: Float[Tensor, "B W"]) -> Float[Tensor, " V"]:
        """Whatever the items are."""
        return self.bias


class MatchProbability(nn.Module):
    """How likely a pair matches, by its score: σ(a·s + b). Both are learned, and start at 5 (PCME++)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(5.0))
        self.shift = nn.Parameter(torch.tensor(5.0))
