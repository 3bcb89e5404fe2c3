"""Distillation: the scores of a batch become like those of a teacher, or of several."""

import math

from jaxtyping import Float
from torch import Tensor

from maxmatch.core.array_checks import shape_of
from maxmatch.core.devices import in_float32

_NOTHING = -1e4  # a logit that no pair has


@in_float32
def distillation(
    scores: Float[Tensor, "B C"], teachers: Float[Tensor, "T B C"] | None, temperature: float = 0.05
) -> Float[Tensor, ""]:
    """How far what the student expects of each image and of each caption is from what the teachers expect.

        KL(p ‖ q) = Σ_j p(j) · log (p(j) / q(j)),    q = softmax_j s(i, j)/τ,    p = mean over teachers of the same

    Mean over anchors; both directions added. It is 0 where the student agrees with a single teacher.

    Args:
        scores: the student's, of every image with every caption.
        teachers: the scores that T teachers give the same pairs; −inf for a pair that one of them does not know: it
            is left out. No gradient flows to them.
        temperature: τ, of student and teachers; the smaller, the more the best pairs count.

    Returns:
        The loss, a scalar.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import distillation
        >>> scores = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
        >>> bool(distillation(scores, scores[None]) < 1e-6), bool(distillation(scores, -scores[None]) > 1)
        (True, True)
    """
    if teachers is None:
        raise ValueError("teachers: distillation needs the scores of at least one teacher, got None.")
    if teachers.ndim != 3 or teachers.shape[1:] != scores.shape or not len(teachers):
        raise ValueError(
            f"teachers: expected scores (teachers, {', '.join(map(str, scores.shape))}), as the student's "
            f"{shape_of(scores)}, got {shape_of(teachers)}."
        )
    if not temperature > 0:
        raise ValueError(f"temperature: expected a positive number, got {temperature}.")
    known = ~teachers.isneginf().any(0)
    expected = (teachers.detach() / temperature).masked_fill(~known, _NOTHING)
    logits = (scores / temperature).masked_fill(~known, _NOTHING)
    return _one_way(logits, expected, known) + _one_way(logits.T, expected.mT, known.T)


def _one_way(logits: Tensor, expected: Tensor, known: Tensor) -> Tensor:
    wanted = expected.log_softmax(-1).logsumexp(0) - math.log(len(expected))
    divergence = (wanted.exp() * (wanted - logits.log_softmax(-1))).sum(1)
    anchors = known.any(1)
    return divergence.masked_fill(~anchors, 0.0).sum() / anchors.sum().clamp(min=1)
