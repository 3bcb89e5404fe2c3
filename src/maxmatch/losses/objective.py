"""The training loss: a weighted sum of named terms (eqn:combined-loss). `LossTerms` is the table of them."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Literal, NamedTuple, get_type_hints

from jaxtyping import Bool, Float, Int
from torch import Tensor

from maxmatch.core.array_checks import shape_of
from maxmatch.core.checks import check_positive
from maxmatch.core.devices import aside, in_float32, join
from maxmatch.core.types import Sets
from maxmatch.losses.contrastive import caption_matching, contrastive, phrase_contrastive
from maxmatch.losses.distillation import distillation
from maxmatch.losses.diversity import global_discriminative, intra_set_divergence, pvse_diversity, uniformity
from maxmatch.losses.mmd import mmd
from maxmatch.losses.probabilistic import gaussian_kl, pair_bce
from maxmatch.losses.triplet import Negatives, Reduction, triplet

Loss = Float[Tensor, ""]


class Term(NamedTuple):
    """A term of the loss: the key of its weight, in `objective` and in a recipe; its symbol in the paper; its label in
    figures.
    """

    weight: str
    symbol: str
    label: str


@dataclass(frozen=True)
class LossTerms:
    """The training loss and what it is the weighted sum of. A term with weight 0 is not computed and stays None."""

    total: Loss
    triplet: Annotated[Loss | None, Term("triplet_weight", "triplet", "triplet")] = None
    global_discriminative: Annotated[Loss | None, Term("gd_weight", "GD", "global discriminative")] = None
    intra_set_divergence: Annotated[Loss | None, Term("isd_weight", "ISD", "intra-set divergence")] = None
    mmd: Annotated[Loss | None, Term("mmd_weight", "MMD", "MMD")] = None
    diversity: Annotated[Loss | None, Term("div_weight", "Div", "diversity")] = None
    contrastive: Annotated[Loss | None, Term("con_weight", "CON", "contrastive")] = None
    distillation: Annotated[Loss | None, Term("distill_weight", "KD", "distillation")] = None
    phrases: Annotated[Loss | None, Term("phrase_weight", "phrases", "phrases")] = None
    pair_bce: Annotated[Loss | None, Term("bce_weight", "BCE", "pair BCE")] = None
    gaussian_kl: Annotated[Loss | None, Term("kl_weight", "KL", "KL")] = None
    caption_matching: Annotated[Loss | None, Term("caption_matching_weight", "captions", "caption matching")] = None

    def map(self, change: Callable[[Tensor], Tensor]) -> "LossTerms":
        """The same terms with every tensor changed."""
        return LossTerms(**{name: change(value) for name, value in self.computed().items()})

    def computed(self) -> dict[str, Tensor]:
        """The total and the terms that were computed, by name."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


TERMS: dict[str, Term] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(LossTerms, include_extras=True).items()
    if name != "total"
}
"""The terms by name. A new one is a field of `LossTerms`, a line of `objective` and a key of a recipe."""

_OF_SETS = ("global_discriminative", "intra_set_divergence", "mmd", "diversity", "gaussian_kl")
"""Terms of the sets alone: on a GPU they are computed beside those of the scores."""

_DIVERSITY = {"uniformity": uniformity, "pvse": pvse_diversity}


@in_float32
def objective(
    scores: Float[Tensor, "B C"],
    positive: Bool[Tensor, "B C"] | None,
    images: Sets,
    texts: Sets,
    *,
    margin: float = 0.2,
    negatives: Negatives = "hardest",
    triplet_reduction: Reduction = "mean",
    triplet_weight: float = 1.0,
    gd_weight: float = 0.1,
    isd_weight: float = 0.1,
    mmd_weight: float = 0.01,
    div_weight: float = 0.01,
    con_weight: float = 0.0,
    gd_margin: float = 0.6,
    isd_margin: float = 0.6,
    scale: float = 0.5,
    temperature: float = 0.01,
    distill_weight: float = 0.0,
    distill_temperature: float = 0.05,
    teachers: Float[Tensor, "T B C"] | None = None,
    phrase_weight: float = 0.0,
    phrases: tuple[Float[Tensor, "B P"], Bool[Tensor, "B P"]] | None = None,
    diversity: Literal["uniformity", "pvse"] = "uniformity",
    gd_on: Literal["sets", "residual"] = "sets",
    gd_isd_centred: bool = False,
    bce_weight: float = 0.0,
    pseudo_positives: float = 0.1,
    label_smoothing: float = 1e-4,
    match: tuple[Float[Tensor, ""], Float[Tensor, ""]] | None = None,
    kl_weight: float = 0.0,
    caption_matching_weight: float = 0.0,
    captions: tuple[Float[Tensor, "B K C"], Int[Tensor, "B K"]] | None = None,
) -> LossTerms:
    """TRI + λ·(GD, ISD, MMD, Div, CON, KD, phrases, BCE, KL, captions); a term with weight 0 is not computed.

    GD averages the two modalities; ISD, Div and KL add them.

    Args:
        scores: of every image with every caption, by any similarity.
        positive: which of them are true pairs; None: the diagonal.
        images: the images' sets.
        texts: the captions' sets.
        margin: of the triplet loss.
        negatives: of the triplet loss: "hardest", "mean" or "semi_hard".
        triplet_reduction: of the triplet loss: "mean" or "sum".
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
        distill_weight: of `distillation`.
        distill_temperature: of the distillation.
        teachers: the scores that T teachers give the same pairs; None: no teacher.
        phrase_weight: of `phrase_contrastive`, at the temperature of the contrastive loss.
        phrases: the scores of every image with every phrase, and which images each phrase fits; None: no phrases.
        diversity: "uniformity" (SetDiv's) or "pvse".
        gd_on: what GD keeps away from φ, the fused "sets" (the paper's equation) or the "residual", the slots before φ
            is added to them (its list of contributions).
        gd_isd_centred: whether GD and ISD see each slot, and φ, without its mean over the batch.
        bce_weight: of `pair_bce`, the loss of PCME++.
        pseudo_positives: α of its pseudo-positives.
        label_smoothing: ε of its labels.
        match: the scale a and the shift b by which scores become its logits; None: no BCE.
        kl_weight: of `gaussian_kl`, for the sets of Gaussian heads.
        caption_matching_weight: of `caption_matching`, at the temperature of the contrastive loss.
        captions: the cosines of each slot of every image with every caption as one vector, and the caption that each
            slot is assigned (−1: none); None: no caption matching.

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
    if not isinstance(scores, Tensor):
        raise ValueError(f"scores: expected a tensor (images, captions), got {type(scores).__name__}.")
    for name, side in (("images", images), ("texts", texts)):
        if not isinstance(side, Sets):
            raise ValueError(
                f"{name}: expected Sets, as a model gives them, got {type(side).__name__}. Of your own tensors make "
                "maxmatch.core.types.Sets(vectors, residual, pooled)."
            )
    if gd_on not in ("sets", "residual"):
        raise ValueError(f"gd_on: expected sets or residual, got {gd_on!r}.")
    if diversity not in _DIVERSITY:
        raise ValueError(f"diversity: expected one of {', '.join(_DIVERSITY)}, got {diversity!r}.")
    positive = check_positive(scores, positive)
    for name, side, count in (("images", images, len(scores)), ("texts", texts, scores.shape[1])):
        if len(side.vectors) != count:
            raise ValueError(
                f"{name}: expected {count} sets, as the scores {shape_of(scores)}, got {len(side.vectors)}."
            )
    apart, vectors = _DIVERSITY[diversity], (images.vectors, texts.vectors)
    gd = partial(_global_discriminative, on=gd_on, margin=gd_margin, scale=scale, centred=gd_isd_centred)
    isd = partial(intra_set_divergence, margin=isd_margin, scale=scale, centred=gd_isd_centred)
    weighted: dict[str, tuple[float, Callable[[], Tensor]]] = {
        "triplet": (triplet_weight, lambda: triplet(scores, positive, margin, negatives, triplet_reduction)),
        "global_discriminative": (gd_weight, lambda: (gd(images) + gd(texts)) / 2),
        "intra_set_divergence": (isd_weight, lambda: isd(images.vectors) + isd(texts.vectors)),
        "mmd": (mmd_weight, lambda: mmd(*vectors)),
        "diversity": (div_weight, lambda: apart(images.residual) + apart(texts.residual)),
        "contrastive": (con_weight, lambda: contrastive(scores, positive, temperature)),
        "distillation": (distill_weight, lambda: distillation(scores, teachers, distill_temperature)),
        "phrases": (phrase_weight, lambda: _phrases(phrases, temperature)),
        "pair_bce": (bce_weight, lambda: pair_bce(_logits(scores, match), positive, pseudo_positives, label_smoothing)),
        "gaussian_kl": (kl_weight, lambda: _kl(images) + _kl(texts)),
        "caption_matching": (caption_matching_weight, lambda: _captions(captions, positive, temperature)),
    }
    wanted = {name: term for name, (weight, term) in weighted.items() if weight}
    beside = [tensor for side in (images, texts) for tensor in (side.vectors, side.residual, side.pooled)]
    with aside(*beside) if wanted.keys() & set(_OF_SETS) else nullcontext():
        of_sets = {name: term() for name, term in wanted.items() if name in _OF_SETS}
    of_scores = {name: term() for name, term in wanted.items() if name not in _OF_SETS}
    join(scores.device)
    terms = {name: (of_sets | of_scores)[name] for name in wanted}
    total = scores.new_zeros(())
    for name, term in terms.items():
        total = total + weighted[name][0] * term
    return LossTerms(total=total, **terms)


def _phrases(phrases: tuple[Tensor, Tensor] | None, temperature: float) -> Tensor:
    if phrases is None:
        raise ValueError("phrases: phrase_weight needs the scores of phrases and what they fit, got None.")
    return phrase_contrastive(*phrases, temperature)


def _captions(captions: tuple[Tensor, Tensor] | None, positive: Tensor, temperature: float) -> Tensor:
    if captions is None:
        raise ValueError("captions: caption_matching_weight needs cosines of slots and captions, and pairs, got None.")
    cosines, partners = captions
    return caption_matching(cosines, positive, partners, temperature)


def _logits(scores: Tensor, match: tuple[Tensor, Tensor] | None) -> Tensor:
    if match is None:
        raise ValueError("match: bce_weight needs the scale and the shift of the scores, got None.")
    return match[0] * scores + match[1]


def _kl(side: Sets) -> Tensor:
    if side.residual.shape[1] != 2:
        raise ValueError(f"kl_weight: only Gaussian heads make a mean and a variance, got {shape_of(side.residual)}.")
    return gaussian_kl(*side.residual.unbind(1))


def _global_discriminative(side: Sets, on: str, margin: float, scale: float, centred: bool) -> Tensor:
    return global_discriminative(side.vectors if on == "sets" else side.residual, side.pooled, margin, scale, centred)
