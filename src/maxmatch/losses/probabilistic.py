"""The losses of PCME++: every pair of a batch is a match or not, and variances must not vanish."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from maxmatch.core.array_checks import shape_of
from maxmatch.core.checks import check_positive
from maxmatch.core.devices import in_float32


@in_float32
def pair_bce(
    logits: Float[Tensor, "B C"],
    positive: Bool[Tensor, "B C"] | None = None,
    pseudo_positives: float = 0.1,
    label_smoothing: float = 1e-4,
) -> Float[Tensor, ""]:
    """Binary cross-entropy of every pair, once for each direction, and with pseudo-positives.

        2·BCE(y) + α·[BCE(y with pseudo-positives of rows) + BCE(y with those of columns)]

    BCE is the mean over all B·C pairs. A pseudo-positive is a negative with a logit that is no lower than the best of
    its row's (column's) true pairs: perhaps a match that nobody noted. A row without a true pair has none. Of a model
    that has learned nothing yet half of all negatives are pseudo-positives, and pull harder than the true pairs do: one
    that starts from random weights does better without them at first (`objective.plain_bce_epochs` of a recipe).

    Args:
        logits: a·s + b of every image with every caption; their sigmoid is the probability of a match.
        positive: which of them are true pairs; None: the diagonal.
        pseudo_positives: α.
        label_smoothing: ε: the label of a true pair is 1 − ε, that of the others ε.

    Returns:
        The loss, a scalar.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import pair_bce
        >>> right, wrong = torch.tensor([[4.0, -4.0], [-4.0, 4.0]]), torch.tensor([[-4.0, 4.0], [4.0, -4.0]])
        >>> bool(pair_bce(right) < pair_bce(wrong))
        True
    """
    positive = check_positive(logits, positive)
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing: expected at least 0 and less than 0.5, got {label_smoothing}.")

    def bce(true: Tensor) -> Tensor:
        labels = true.to(logits.dtype) * (1 - 2 * label_smoothing) + label_smoothing
        return binary_cross_entropy_with_logits(logits, labels)

    loss = 2 * bce(positive)
    if not pseudo_positives:
        return loss
    rows, columns = _with_pseudo(logits, positive), _with_pseudo(logits.T, positive.T).T
    return loss + pseudo_positives * (bce(rows) + bce(columns))


@torch.no_grad()
def _with_pseudo(logits: Tensor, positive: Tensor) -> Tensor:
    """The true pairs and the pseudo-positives of each row."""
    best = logits.masked_fill(~positive, -torch.inf).amax(1, keepdim=True)
    return positive | ((logits >= best) & positive.any(1, keepdim=True))


@in_float32
def gaussian_kl(mean: Float[Tensor, "B W"], log_variance: Float[Tensor, "B W"]) -> Float[Tensor, ""]:
    """How far Gaussians are from the standard one, the mean over items and coordinates. Least where σ² = 1.

        −½ mean (1 + log σ² − μ² − σ²)

    Args:
        mean: μ of each item.
        log_variance: log σ², not log σ.

    Returns:
        The divergence, a scalar.

    Examples:
        >>> import torch
        >>> from maxmatch.losses import gaussian_kl
        >>> zero = torch.zeros(3, 8)
        >>> bool(gaussian_kl(zero, zero) == 0), bool(gaussian_kl(zero, zero - 4) > 1)
        (True, True)
    """
    if mean.shape != log_variance.shape:
        raise ValueError(f"log_variance: expected {shape_of(mean)}, as mean, got {shape_of(log_variance)}.")
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
