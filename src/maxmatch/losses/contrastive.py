"""The multi-positive contrastive loss (CON in eqn:combined-loss, as in CORA), and two of its kind: phrases that
find their images, and slots that find the captions they are assigned.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from maxmatch.core.array_checks import shape_of
from maxmatch.core.checks import check_axes, check_positive
from maxmatch.core.devices import in_float32


@in_float32
def contrastive(
    scores: Float[Tensor, "B C"], positive: Bool[Tensor, "B C"] | None = None, temperature: float = 0.01
) -> Float[Tensor, ""]:
    """Each true pair against all negatives of its anchor; the anchor's other positives are left out.

        −log [exp(s(i, j)/τ) / (exp(s(i, j)/τ) + Σ_n exp(s(i, n)/τ))]

    Mean over the positives of an anchor, then over anchors; both directions added.

    Args:
        scores: of every image with every caption.
        positive: which of them are true pairs; None: the diagonal.
        temperature: τ; the smaller, the more the hardest negatives count.

    Returns:
        The loss, a scalar.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import contrastive
        >>> right, wrong = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([[0.1, 0.9], [0.8, 0.2]])
        >>> bool(contrastive(right) < contrastive(wrong))
        True
    """
    positive = check_positive(scores, positive)
    if not temperature > 0:
        raise ValueError(f"temperature: expected a positive number, got {temperature}.")
    logits = scores / temperature
    return _one_way(logits, positive) + _one_way(logits.T, positive.T)


@in_float32
def phrase_contrastive(
    scores: Float[Tensor, "B P"], fits: Bool[Tensor, "B P"], temperature: float = 0.05
) -> Float[Tensor, ""]:
    """Each image that a phrase fits against all images that it does not fit.

        −log [exp(s(i, j)/τ) / (exp(s(i, j)/τ) + Σ_n exp(s(n, j)/τ))]

    Mean over the images that phrase j fits, then over phrases. One direction only: a phrase has to find its images, but
    an image is not asked which of many phrases fits it best.

    Args:
        scores: of every image with every phrase.
        fits: which images each phrase fits; a phrase that fits none is left out.
        temperature: τ.

    Returns:
        The loss, a scalar.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import phrase_contrastive
        >>> fits = torch.tensor([[True, False], [True, False], [False, True]])
        >>> bool(phrase_contrastive(fits.float(), fits) < phrase_contrastive(1 - fits.float(), fits))
        True
    """
    fits = check_positive(scores, fits)
    if not temperature > 0:
        raise ValueError(f"temperature: expected a positive number, got {temperature}.")
    return _one_way((scores / temperature).T, fits.T)


@in_float32
def caption_matching(
    cosines: Float[Tensor, "B K C"],
    positive: Bool[Tensor, "B C"],
    partners: Int[Tensor, "B K"],
    temperature: float = 0.01,
) -> Float[Tensor, ""]:
    """Each slot of an image and the caption that it is assigned against the captions of other images.

        −log [exp(c(i, k, π(k))/τ) / (exp(c(i, k, π(k))/τ) + Σ_n exp(c(i, k, n)/τ))],   n: captions of other images

    Mean over the slots of image i that have a caption, then over images. Where π is the best one-to-one assignment of
    an image's slots to its captions, slots learn to say what different captions say. With one caption per image only
    the slot nearest to it has a loss.

    Args:
        cosines: of each slot of every image with every caption, which is one vector.
        positive: which captions are an image's own; they are never negatives.
        partners: π, the caption that each slot is assigned; −1: none.
        temperature: τ.

    Returns:
        The loss, a scalar.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import caption_matching
        >>> cosines = torch.tensor([[[0.9, 0.1, 0.2], [0.3, 0.8, 0.2]]])  # two slots of an image, three captions
        >>> own = torch.tensor([[True, True, False]])
        >>> straight, crossed = torch.tensor([[0, 1]]), torch.tensor([[1, 0]])
        >>> bool(caption_matching(cosines, own, straight) < caption_matching(cosines, own, crossed))
        True
    """
    check_axes("cosines", cosines, ("images", "slots", "captions"))
    positive = check_positive(cosines[:, 0], positive)
    if partners.shape != cosines.shape[:2] or partners.is_floating_point():
        raise ValueError(
            f"partners: expected a caption for each slot, whole numbers {shape_of(cosines[:, :, 0])}, got "
            f"{partners.dtype} {shape_of(partners)}."
        )
    if not temperature > 0:
        raise ValueError(f"temperature: expected a positive number, got {temperature}.")
    logits, assigned = cosines / temperature, partners >= 0
    against = logits.masked_fill(positive[:, None], -torch.inf).logsumexp(2)  # −inf where there is no negative
    own = logits.gather(2, partners.clamp(min=0)[..., None])[..., 0]
    loss = torch.nn.functional.softplus(against - own, threshold=50).masked_fill(~assigned, 0.0)
    per_image = assigned.sum(1)
    return (loss.sum(1) / per_image.clamp(min=1)).sum() / (per_image > 0).sum().clamp(min=1)


def _one_way(logits: Tensor, positive: Tensor) -> Tensor:
    against = logits.masked_fill(positive, -torch.inf).logsumexp(1, keepdim=True)  # −inf where there is no negative
    loss = torch.nn.functional.softplus(against - logits, threshold=50)
    per_anchor = positive.sum(1)
    anchors = per_anchor > 0
    mean = loss.masked_fill(~positive, 0.0).sum(1) / per_anchor.clamp(min=1)
    return mean.sum() / anchors.sum().clamp(min=1)
