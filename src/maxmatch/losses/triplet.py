"""The triplet loss (eqn:triplet-loss)."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from maxmatch.core.checks import check_positive
from maxmatch.core.devices import in_float32

Negatives = Literal["hardest", "mean", "semi_hard"]
Reduction = Literal["mean", "sum"]


@in_float32
def triplet(
    scores: Float[Tensor, "B C"],
    positive: Bool[Tensor, "B C"] | None = None,
    margin: float = 0.2,
    negatives: Negatives = "hardest",
    reduction: Reduction = "mean",
) -> Float[Tensor, ""]:
    """Every true pair must beat its negatives by the margin, image to caption and caption to image.

        mean over true pairs (i, j) of [δ₁ + max_n s(i, n) − s(i, j)]₊  +  the same over columns

    Args:
        scores: of every image with every caption.
        positive: which of them are true pairs; None: the diagonal.
        margin: δ₁, in units of the score, not of the cosine.
        negatives: "hardest" of each true pair; "mean" over all pairs of a true pair and a negative of it; "semi_hard":
            over those below the positive but within the margin (violations are cut at the margin; mean of those that
            are not zero).
        reduction: "mean", or "sum" of the same violations, as in VSE++ and VSE∞: its gradient grows with the batch, and
            so the largest gradient that is allowed has to.

    Returns:
        The loss, a scalar.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import triplet
        >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
        >>> f"{triplet(scores, margin=0.2):.2f}"  # image 0 beats caption 1 by only 0.1, caption 1 loses
        '0.20'
    """
    positive = check_positive(scores, positive)
    one_way = _ONE_WAY.get(negatives)
    if one_way is None:
        raise ValueError(f"negatives: expected one of {', '.join(_ONE_WAY)}, got {negatives!r}.")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: expected mean or sum, got {reduction!r}.")
    rows, columns = one_way(scores, positive, margin), one_way(scores.T, positive.T, margin)
    return rows.total + columns.total if reduction == "sum" else rows.mean() + columns.mean()


class _Violations(NamedTuple):
    """The violations of one direction: their sum, and how many they are."""

    total: Tensor
    number: Tensor

    def mean(self) -> Tensor:
        return self.total / self.number.clamp(min=1)


def _hardest(scores: Tensor, positive: Tensor, margin: float) -> _Violations:
    hardest = scores.masked_fill(positive, -torch.inf).amax(1, keepdim=True)
    violation = (margin + hardest - scores).clamp(min=0)
    return _Violations(violation.masked_fill(~positive, 0.0).sum(), positive.sum())


def _mean(scores: Tensor, positive: Tensor, margin: float) -> _Violations:
    """Σ over the violated pairs of δ₁ + s(i, n) − s(i, j), by how often each score is in one: no pair is written down,
    and no size depends on the values, so that a step on a GPU can be recorded.
    """
    times = _times_violated(scores, positive, margin)
    level = scores.detach().mean(1, keepdim=True)  # a row of `times` adds up to 0: taken off against rounding
    violated = times.masked_fill(~positive, 0.0).sum().neg()
    number = (positive.sum(1) * (~positive).sum(1)).sum()
    return _Violations((times * (scores - level)).sum() + margin * violated, number)


@torch.no_grad()
def _times_violated(scores: Tensor, positive: Tensor, margin: float) -> Tensor:
    """For each negative, how many positives of its row it comes too near to; for each positive, minus how many of the
    negatives do. It is the gradient of the sum of all violations.
    """
    scores = scores.contiguous()
    least = scores - margin
    wrong = scores.masked_fill(positive, -torch.inf).sort(1).values
    true = least.masked_fill(~positive, torch.inf).sort(1).values
    nearer = scores.shape[1] - torch.searchsorted(wrong, least, right=True)
    passed = torch.searchsorted(true, scores)
    return torch.where(positive, -nearer, passed).to(scores.dtype)


def _semi_hard(scores: Tensor, positive: Tensor, margin: float) -> _Violations:
    violation, valid = _violations(scores, positive, margin)
    cut = violation.clamp(0, margin).masked_fill(~valid, 0.0)
    return _Violations(cut.sum(), (cut > 0).sum())


_ONE_WAY = {"hardest": _hardest, "mean": _mean, "semi_hard": _semi_hard}


def _violations(scores: Tensor, positive: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """δ₁ + s(i, n) − s(i, j) for every true pair (a row each) and every n, and which n are negatives of it."""
    anchor, partner = positive.nonzero(as_tuple=True)
    return margin + scores[anchor] - scores[anchor, partner][:, None], ~positive[anchor]
