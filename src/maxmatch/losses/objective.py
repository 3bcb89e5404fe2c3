"""The training loss: a weighted sum of named terms (eqn:combined-loss)."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from maxmatch.core.defaults import (
    CON_WEIGHT,
    DIV_WEIGHT,
    GD_WEIGHT,
    ISD_WEIGHT,
    MARGIN,
    MMD_WEIGHT,
    SCALE,
    SET_MARGIN,
    TEMPERATURE,
    TRIPLET_WEIGHT,
)
from maxmatch.core.types import LossTerms, Sets
from maxmatch.losses.contrastive import contrastive
from maxmatch.losses.diversity import global_discriminative, intra_set_divergence, pvse_diversity, uniformity
from maxmatch.losses.mmd import mmd
from maxmatch.losses.triplet import Negatives, triplet

_DIVERSITY = {"uniformity": uniformity, "pvse": pvse_diversity}


def objective(
    scores: Float[Tensor, "B C"],
    positive: Bool[Tensor, "B C"],
    images: Sets,
    texts: Sets,
    *,
    margin: float = MARGIN,
    negatives: Negatives = "hardest",
    triplet_weight: float = TRIPLET_WEIGHT,
    gd_weight: float = GD_WEIGHT,
    isd_weight: float = ISD_WEIGHT,
    mmd_weight: float = MMD_WEIGHT,
    div_weight: float = DIV_WEIGHT,
    con_weight: float = CON_WEIGHT,
    gd_margin: float = SET_MARGIN,
    isd_margin: float = SET_MARGIN,
    scale: float = SCALE,
    temperature: float = TEMPERATURE,
    diversity: Literal["uniformity", "pvse"] = "uniformity",
    gd_on: Literal["sets", "residual"] = "sets",
) -> LossTerms:
    """TRI + λ·(GD, ISD, MMD, Div, CON); a term with weight 0 is not computed.

    GD averages the two modalities, ISD and Div add them.

    Args:
        scores: of every image with every caption, by any similarity.
        positive: which of them are true pairs.
        images: the images' sets.
        texts: the captions' sets.
        margin: of the triplet loss.
        negatives: of the triplet loss: "hardest", "mean" or "semi_hard".
        triplet_weight: of the triplet loss.
        gd_weight: of `global_discriminative`.
        isd_weight: of `intra_set_divergence`.
        mmd_weight: of `mmd`.
        div_weight: of the diversity.
        con_weight: of `contrastive`.
        gd_margin: δ₂.
        isd_margin: δ₃.
        scale: s of GD and ISD.
        temperature: of the contrastive loss.
        diversity: "uniformity" (SetDiv's) or "pvse".
        gd_on: what GD keeps away from φ, the fused "sets" (the paper's equation) or the "residual", the slots before φ
            is added to them (its list of contributions).

    Returns:
        The weighted total, and each term that was computed, unweighted.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import objective
        >>> from maxmatch import similarity
        >>> from maxmatch.core.types import Sets
        >>> unit = torch.nn.functional.normalize
        >>> a, b = unit(torch.randn(3, 4, 8), dim=-1), unit(torch.randn(6, 4, 8), dim=-1)  # 3 images, 6 captions
        >>> images, texts = Sets(a, a, a.mean(1)), Sets(b, b, b.mean(1))  # vectors, residual, pooled
        >>> positive = torch.arange(3)[:, None] == torch.arange(6) // 2
        >>> terms = objective(similarity.maxmatch(a, b), positive, images, texts, div_weight=0.0)
        >>> terms.total.shape, terms.diversity is None
        (torch.Size([]), True)
    """
    if gd_on not in ("sets", "residual"):
        raise ValueError(f"gd_on: expected sets or residual, got {gd_on!r}.")
    if diversity not in _DIVERSITY:
        raise ValueError(f"diversity: expected one of {', '.join(_DIVERSITY)}, got {diversity!r}.")
    apart = _DIVERSITY[diversity]

    def gd(side: Sets) -> Tensor:
        kept_away = side.vectors if gd_on == "sets" else side.residual
        return global_discriminative(kept_away, side.pooled, gd_margin, scale)

    def isd(side: Sets) -> Tensor:
        return intra_set_divergence(side.vectors, isd_margin, scale)

    weighted: dict[str, tuple[float, Callable[[], Tensor]]] = {
        "triplet": (triplet_weight, lambda: triplet(scores, positive, margin, negatives)),
        "global_discriminative": (gd_weight, lambda: (gd(images) + gd(texts)) / 2),
        "intra_set_divergence": (isd_weight, lambda: isd(images) + isd(texts)),
        "mmd": (mmd_weight, lambda: mmd(images.vectors, texts.vectors)),
        "diversity": (div_weight, lambda: apart(images.residual) + apart(texts.residual)),
        "contrastive": (con_weight, lambda: contrastive(scores, positive, temperature)),
    }
    # Mixed precision ends here: the differences between close vectors would be lost in bfloat16.
    with torch.autocast(scores.device.type, enabled=False):
        scores, images, texts = _at_least_float(scores), _sets_at_least_float(images), _sets_at_least_float(texts)
        terms = {name: term() for name, (weight, term) in weighted.items() if weight}
    total = scores.new_zeros(())
    for name, term in terms.items():
        total = total + weighted[name][0] * term
    return LossTerms(total=total, **terms)


def _at_least_float(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _sets_at_least_float(sets: Sets) -> Sets:
    return Sets(_at_least_float(sets.vectors), _at_least_float(sets.residual), _at_least_float(sets.pooled))
