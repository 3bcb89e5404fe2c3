"""The multi-positive contrastive loss (CON in eqn:combined-loss, as in CORA)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from maxmatch.core.checks import check_positive
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


def _one_way(logits: Tensor, positive: Tensor) -> Tensor:
    against = logits.masked_fill(positive, -torch.inf).logsumexp(1, keepdim=True)  # −inf where there is no negative
    loss = torch.nn.functional.softplus(against - logits, threshold=50)
    per_anchor = positive.sum(1)
    anchors = per_anchor > 0
    mean = loss.masked_fill(~positive, 0.0).sum(1) / per_anchor.clamp(min=1)
    return mean.sum() / anchors.sum().clamp(min=1)
