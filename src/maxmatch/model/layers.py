"""From the features of an item to a set of K unit vectors: positions, pooling, slot attention and the heads.

SetHead is the paper's, PIEHead is PVSE's, GaussianHead is PCME++'s; GPOHead (VSE∞) and GlobalHead (VSE++) make sets of
one vector; ResidualSetHead turns the one vector of a trained model into a set.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, pad

from maxmatch.core.machine import optional_module
from maxmatch.core.types import Features, Sets
from maxmatch.matching.similarity import gaussian_sets

TEMPERATURE = 10_000.0  # T of the sine positions
_EPSILON = 1e-7
_TENSOR_CORE = 8  # half-precision numbers that one reads at once


def sine_positions(
    mask: Bool[Tensor, "B N"], width: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "B N {width}"]:
    """The positions of a sequence: the real features of each item are counted 1..n. Padding gets arbitrary values.

    n is the item's true length, so that its positions do not depend on what it was padded to.
    """
    length = mask.sum(1, keepdim=True).clamp(min=1)
    return _waves(mask.cumsum(1), length, width, dtype)


def grid_positions(
    rows: int, columns: int, width: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "{rows*columns} {width}"]:
    """The positions of a grid, row by row: half the width encodes the row, the other half the column."""
    if width % 2:
        raise ValueError(
            f"width: positions on a grid give half the width to rows and half to columns, but {width} is odd. "
            "Choose an even width."
        )
    y = _waves(torch.arange(1, rows + 1, device=device), rows, width // 2, dtype)
    x = _waves(torch.arange(1, columns + 1, device=device), columns, width // 2, dtype)
    return torch.cat([y[:, None].expand(-1, columns, -1), x[None].expand(rows, -1, -1)], -1).flatten(0, 1)


def _waves(place: Tensor, count: Tensor | int, width: int, dtype: torch.dtype) -> Tensor:
    """The vectors of places 1..n, in at least float32. Place i becomes p = 2π · i/n, and p a vector of width W:

    sin(p / T^(2⌊w/2⌋/W)) for even w,   cos(p / T^(2⌊w/2⌋/W)) for odd w,   T = 10000
    """
    wave = torch.arange(width, device=place.device)
    angle = 2 * math.pi * place.to(torch.promote_types(dtype, torch.float32)) / count
    angle = angle[..., None] / TEMPERATURE ** (2 * (wave // 2).to(angle.dtype) / width)
    return torch.where(wave % 2 == 0, angle.sin(), angle.cos())


def masked_max(local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B W"]:
    """The largest value of each channel."""
    return local.masked_fill(~mask[..., None], -torch.inf).amax(1)


def masked_mean(local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B W"]:
    """The mean of each channel."""
    return local.masked_fill(~mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True)


POOLING = {"max": masked_max, "mean": masked_mean}


def aligned_linear(x: Float[Tensor, "*n W"], weight: Float[Tensor, "V W"]) -> Float[Tensor, "*n V"]:
    """x weightᵀ. On a GPU a width such as that of GloVe's vectors, 300, is first filled up with zeros to a multiple
    of 8, for which products are faster.
    """
    return linear(widened(x), widened(weight))


def widened(x: Float[Tensor, "*n W"]) -> Float[Tensor, "*n V"]:
    """On a GPU, x with zeros after it up to a width that suits."""
    missing = -x.shape[-1] % _TENSOR_CORE
    return pad(x, (0, missing)) if x.is_cuda and missing else x


def gru_states(gru: nn.GRU, inputs: Float[Tensor, "B N W"], direction: str = "") -> Float[Tensor, "B N H"]:
    """The states of one direction of a GRU, "" or "_reverse", after each input; it reads from the first to the last.

    It runs in the precision of the inputs. They may be `widened`.
    """
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = [getattr(gru, f"{name}_l0{direction}").to(inputs.dtype) for name in names]
    weights[0] = pad(weights[0], (0, inputs.shape[2] - weights[0].shape[1]))
    start = inputs.new_zeros(1, inputs.shape[0], gru.hidden_size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single")  # they were just cast
        states, _ = torch.gru(inputs, start, weights, True, 1, 0.0, gru.training, False, True)
    return states


def turned(x: Float[Tensor, "B N W"], length: Int[Tensor, " B"]) -> Float[Tensor, "B N W"]:
    """The first `length` features of each item in reverse order. What follows them is arbitrary."""
    place = torch.arange(x.shape[1], device=x.device)
    return x.gather(1, (length[:, None] - 1 - place).clamp(min=0)[..., None].expand_as(x))


def _kernels(name: str, x: Tensor) -> Any | None:
    """A module of kernels, on a GPU with Triton. What is compiled or exported takes the lines in torch."""
    return optional_module(name) if x.is_cuda and not torch.compiler.is_compiling() else None


def _attention_kernels(keys: Tensor) -> Any | None:
    return _kernels("maxmatch.model.triton_attention", keys)


def _norm_kernels(x: Tensor) -> Any | None:
    kernels = _kernels("maxmatch.model.triton_norm", x)
    return kernels if kernels is not None and kernels.can_norm(x) else None


def _of_products(x: Tensor) -> torch.dtype:
    """The precision in which a linear layer takes x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class Context(NamedTuple):
    """The inputs as attention sees them. The same for every block that shares weights: computed once."""

    keys: Float[Tensor, "B h N d"]
    values: Float[Tensor, "B h N d"]
    mask: Bool[Tensor, "B N"]
    sums: Any = None
    """With the GPU's kernels: where the blocks add up the gradients of keys and values."""


class SlotAttention(nn.Module):
    """Slots compete for each input, then each slot averages what it won. For each of h heads of width d

        a = softmax over the slots of (q kᵀ / √d) · mask,    output = Σ_n a_n v_n / (Σ_n a_n + ε),   ε = 1e-7

    The mask is applied after the softmax: over the slots, a masked logit would still give each slot 1/K of the padding.
    """

    def __init__(self, width: int, context_width: int, heads: int, head_width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads = heads
        self.scale = head_width**-0.5
        inner = heads * head_width
        self.to_queries = nn.Linear(width, inner, bias=False)
        self.to_keys = nn.Linear(context_width, inner, bias=False)
        self.to_values = nn.Linear(context_width, inner, bias=False)
        self.output = nn.Sequential(nn.Linear(inner, width), nn.Dropout(dropout))

    def context(
        self,
        inputs: Float[Tensor, "B N W"],
        mask: Bool[Tensor, "B N"],
        positions: Float[Tensor, "B N W"] | None = None,
    ) -> Context:
        """Keys and values of the inputs; positions are added to what the keys are made of, not to the values."""
        placed = inputs if positions is None else inputs + positions.to(inputs.dtype)
        made = aligned_linear(placed, self.to_keys.weight), aligned_linear(inputs, self.to_values.weight)
        keys, values = map(self._split, made)
        kernels = _attention_kernels(keys)
        if kernels is None:  # laid out for the products once, or every block would copy them anew
            return Context(keys.contiguous(), values.contiguous(), mask)
        keys, values, sums = kernels.shared(keys, values)
        return Context(keys, values, mask, sums)

    def forward(
        self, slots: Float[Tensor, "B K D"], context: Context
    ) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B h K N"]]:
        """What each slot takes from the inputs, and the weights with which it does."""
        taken, weights = self.take(slots, context)
        return self.output(taken), weights

    def take(
        self, slots: Float[Tensor, "B K D"], context: Context
    ) -> tuple[Float[Tensor, "B K hd"], Float[Tensor, "B h K N"]]:
        """What each slot takes, its heads beside each other, before the output layer; and the weights."""
        queries = self._split(self.to_queries(slots))
        kernels = _attention_kernels(context.keys)
        if kernels is not None and kernels.can_attend(queries, context.keys):
            taken, weights = kernels.slot_attention(queries, *context, self.scale, _EPSILON)
            return taken, weights
        logits = queries @ context.keys.transpose(-1, -2) * self.scale
        share = logits.softmax(-2, dtype=torch.promote_types(logits.dtype, torch.float32))
        share = share * context.mask[:, None, None]
        weights = share / (share.sum(-1, keepdim=True) + _EPSILON)
        taken = weights.to(context.values.dtype) @ context.values
        return taken.transpose(1, 2).flatten(2), weights

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


def unit_vectors(x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
    """Vectors of length 1, in at least float32: in bfloat16 their lengths would be off by some thousandths."""
    return normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


class AggregationBlock(nn.Module):
    """x ← x + Attn(LN_q(x), LN_c(ψ));  x ← x + FFN(LN(x)).   FFN: D → 4D, GELU, dropout, → D."""

    def __init__(self, width: int, context_width: int, heads: int, head_width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(width)
        self.context_norm = nn.LayerNorm(context_width)
        self.attention = SlotAttention(width, context_width, heads, head_width, dropout)
        self.feedforward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
        )

    def context(self, features: Features) -> Context:
        """What the slots look at. It does not depend on them."""
        kernels, norm, local = _norm_kernels(features.local), self.context_norm, features.local
        normed = norm(local) if kernels is None else kernels.add_norm(local, norm, _of_products(local))[1]
        return self.attention.context(normed, features.mask, features.positions)

    def forward(
        self, slots: Float[Tensor, "B K D"], context: Context
    ) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B h K N"]]:
        """The slots one step on, and the attention weights of the step."""
        taken, weights = self.attention(self.query_norm(slots), context)
        slots = slots + taken
        return slots + self.feedforward(slots), weights


class SlotHead(nn.Module):
    """K slots that take what they need from the local features: LN(E^L).

    E^0 are K learned slots ~ N(0, σ²), σ = slot_scale; E^L is what L aggregation blocks make of them. The blocks share
    one set of weights, so keys and values are computed once for all of them.

    slot_noise: in training every item's slots start at E^0 + ν ε instead, ε ~ N(0, 1), ν = slot_noise: a slot's number
    then says less of what it will look for, and so less of which slot of the other side it meets.
    """

    def __init__(
        self,
        context_width: int,
        width: int,
        set_size: int,
        heads: int,
        head_width: int,
        depth: int,
        dropout: float,
        slot_scale: float,
        slot_noise: float = 0.0,
    ) -> None:
        super().__init__()
        if not slot_scale > 0:
            raise ValueError(f"slot_scale: expected a positive number, got {slot_scale}: equal slots stay equal.")
        if not slot_noise >= 0:
            raise ValueError(f"slot_noise: expected 0 or more, got {slot_noise}.")
        self.slot_noise = slot_noise
        self.width = width
        self.set_size = set_size
        self.depth = depth
        self.slots = nn.Parameter(slot_scale * torch.randn(set_size, width))
        self.block = AggregationBlock(width, context_width, heads, head_width, dropout)
        self.residual_norm = nn.LayerNorm(width)

    def residual(self, features: Features) -> tuple[Float[Tensor, "B K D"], Float[Tensor, "B K N"]]:
        """LN(E^L) of B items, and the last block's attention, averaged over its heads."""
        slots = self.slots.expand(features.local.shape[0], -1, -1)
        if self.training and self.slot_noise:
            slots = slots + self.slot_noise * torch.randn_like(slots)
        context = self.block.context(features)
        kernels = _norm_kernels(slots)
        if kernels is not None and slots.dtype == torch.float32:
            return self._residual_by_kernels(slots, context, kernels)
        for _ in range(self.depth):
            slots, weights = self.block(slots, context)
        return self.residual_norm(slots), weights.mean(1)

    def _residual_by_kernels(self, slots: Tensor, context: Context, kernels: Any) -> tuple[Tensor, Tensor]:
        """The same, with one kernel for each x + layer(h) and the norm of it, and one for GELU and its dropout."""
        block, precision = self.block, _of_products(slots)
        layers: Any = (*block.attention.output, *block.feedforward)
        project, drop_taken, norm, widen, _, drop_hidden, narrow = layers
        p, q = (drop.p if drop.training else 0.0 for drop in (drop_taken, drop_hidden))
        seeds = kernels.seeds(self.depth, slots.device) if p or q else [(None, None)] * self.depth
        slots, normed = kernels.add_norm(slots, block.query_norm, precision)
        for step, (seed, other) in enumerate(seeds):
            taken, weights = block.attention.take(normed, context)
            taken = linear(taken, project.weight)
            slots, normed = kernels.add_norm(slots, norm, precision, taken, project.bias, p, seed)
            hidden = kernels.gelu_dropout(linear(normed, widen.weight), widen.bias, q, other)
            last = step == self.depth - 1
            following, kind = (self.residual_norm, slots.dtype) if last else (block.query_norm, precision)
            slots, normed = kernels.add_norm(slots, following, kind, linear(hidden, narrow.weight), narrow.bias)
        return normed, weights.mean(1)

    @torch.no_grad()
    def reorder(self, order: Sequence[int]) -> None:
        """Put the vectors of every set into another order: vector i becomes what vector order[i] was."""
        self.slots.copy_(self.slots[list(order)].clone())


class SetHead(SlotHead):
    """The set prediction module: S = LN_a(E^L) + LN_b(φ), then each vector to unit length. E^L: see `SlotHead`.

    global_feature: what the losses (GD) see as the global feature, the "raw" φ or the "normalised" LN_b(φ). The sets
    are the same.
    """

    def __init__(
        self,
        context_width: int,
        width: int = 1024,
        set_size: int = 4,
        heads: int = 4,
        head_width: int = 512,
        depth: int = 4,
        dropout: float = 0.1,
        global_feature: Literal["raw", "normalised"] = "raw",
        slot_scale: float = 1.0,
        slot_noise: float = 0.0,
    ) -> None:
        super().__init__(context_width, width, set_size, heads, head_width, depth, dropout, slot_scale, slot_noise)
        if global_feature not in ("raw", "normalised"):
            raise ValueError(f"global_feature: expected raw or normalised, got {global_feature!r}.")
        self.global_feature = global_feature
        self.pooled_norm = nn.LayerNorm(width)

    def forward(self, features: Features) -> Sets:
        """The sets of B items. Their attention is the last block's, averaged over its heads."""
        residual, attention = self.residual(features)
        added = self.pooled_norm(features.pooled)
        pooled = features.pooled if self.global_feature == "raw" else added
        return Sets(unit_vectors(residual + added[:, None]), residual, pooled, attention)


class ResidualSetHead(SlotHead):
    """Sets that start as a trained model's one vector: S_k = g + γ_k ⊙ r_k, then each vector to unit length.

        r_k = LN(E^L)_k;   g: the one vector that `base` makes, of unit length

    γ (K, D) is learned and starts at 0: before the first step all K vectors are g, and every similarity ranks as the
    cosine of g. The first step moves γ, of each slot in another way, since the slots start apart; what makes r_k learns
    from the second step on. E^L: see `SlotHead`.
    """

    def __init__(
        self,
        context_width: int,
        width: int = 512,
        set_size: int = 4,
        base: nn.Module | None = None,
        heads: int = 4,
        head_width: int = 128,
        depth: int = 2,
        dropout: float = 0.1,
        slot_scale: float = 1.0,
    ) -> None:
        super().__init__(context_width, width, set_size, heads, head_width, depth, dropout, slot_scale)
        self.gamma = nn.Parameter(torch.zeros(set_size, width))
        self.base = GlobalHead(context_width, width) if base is None else base

    def forward(self, features: Features) -> Sets:
        """The sets of B items. Their attention is the last block's, averaged over its heads."""
        one: Sets = self.base(features)
        residual, attention = self.residual(features)
        added = self.gamma * residual
        return Sets(unit_vectors(one.vectors + added), added, one.vectors[:, 0], attention)

    @torch.no_grad()
    def reorder(self, order: Sequence[int]) -> None:
        """Put the vectors of every set into another order: vector i becomes what vector order[i] was."""
        super().reorder(order)
        self.gamma.copy_(self.gamma[list(order)].clone())


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
