"""Set similarities: (B, K, D), (C, L, D) -> scores (B, C). Vectors are of unit length; masks are True where real.

Every similarity is a function of the *cosine planes* (K, L, B, C): plane (k, l) holds the cosines of vector k of each
image with vector l of each caption. What is chosen (a matching, a maximum) is chosen without gradient; the gradient
flows through the chosen cosines. Half-precision input gives float32 scores; arrays and lists are taken as tensors.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from maxmatch.core.array_checks import NotFiniteError, check_equal_sizes, check_set_size, refuse_not_finite, shape_of
from maxmatch.core.checks import (
    Array,
    as_tensor,
    check_mask,
    check_pair,
    range_of_norms,
    refuse_vmap,
    warn_unless_unit,
)
from maxmatch.matching import SIMILARITIES as SIMILARITIES
from maxmatch.matching.assignment import assign_planes, hide_padding, maximal_assignment
from maxmatch.matching.products import cosine_planes, has_gradient, kernels_for, multiply
from maxmatch.matching.trained import trained_scores
from maxmatch.matching.transport import check_transport, transport_plan

Similarity = Callable[..., Tensor]
_NORMALISE = "Normalise them: torch.nn.functional.normalize(sets, dim=-1)."


class Planes(NamedTuple):
    """The cosines of all pairs of sets, and which vectors are real, shaped to go with the planes (None: all)."""

    cosines: Float[Tensor, "K L B C"]
    a_real: Bool[Tensor, "K 1 B 1"] | None
    b_real: Bool[Tensor, "1 L 1 C"] | None

    def both_real(self) -> Bool[Tensor, "K L B C"] | None:
        """Where both vectors of a cosine are real; None: everywhere."""
        masks = [real.expand_as(self.cosines) for real in (self.a_real, self.b_real) if real is not None]
        return masks[0] & masks[-1] if masks else None

    def matched_size(self) -> Tensor:
        """With a mask, how many vectors of each pair can be matched one to one: the smaller number of real ones."""
        sizes = [real.sum((0, 1)) for real in (self.a_real, self.b_real) if real is not None]
        return torch.minimum(sizes[0], sizes[-1]).clamp(max=min(self.cosines.shape[:2]))


def _hide(cosines: Tensor, real: Tensor | None) -> Tensor:
    """The cosines, with −∞ where a vector is not real."""
    return cosines if real is None else cosines.masked_fill(~real, -torch.inf)


def _mean(values: Tensor, real: Tensor | None) -> Tensor:
    """Over the first axis, of what is real."""
    return values.mean(0) if real is None else torch.where(real, values, 0.0).sum(0) / real.sum(0)


class _Input(NamedTuple):
    """Two batches of sets and their masks, checked; padding is zero."""

    a: Float[Tensor, "B K D"]
    b: Float[Tensor, "C L D"]
    a_mask: Bool[Tensor, "B K"] | None
    b_mask: Bool[Tensor, "C L"] | None


def _checked(a: Array, b: Array, a_mask: Array | None, b_mask: Array | None) -> _Input:
    """Check the input at the border."""
    a, b = as_tensor(a, "a"), as_tensor(b, "b")
    refuse_vmap(a, "similarities compare all pairs of two batches of sets: give them whole.")
    refuse_vmap(b, "similarities compare all pairs of two batches of sets: give them whole.")
    check_pair(a, b)
    a_mask = None if a_mask is None else as_tensor(a_mask, "a_mask")
    b_mask = None if b_mask is None else as_tensor(b_mask, "b_mask")
    check_mask("a_mask", a_mask, tuple(a.shape[:2]))
    check_mask("b_mask", b_mask, tuple(b.shape[:2]))
    # The values of padding must not matter, even NaN.
    a = a if a_mask is None else a.masked_fill(~a_mask[..., None], 0.0)
    b = b if b_mask is None else b.masked_fill(~b_mask[..., None], 0.0)
    return _Input(a, b, a_mask, b_mask)


def _check_values(given: _Input, cosines: Tensor, stacklevel: int) -> None:
    """Refuse what is not finite; warn of vectors that are not of unit length, at that level of the stack."""
    # In training on a GPU a look at the values would stop the queue of work: there the loop watches the loss. While a
    # CUDA graph is recorded there are no values yet.
    if cosines.is_cuda and (cosines.requires_grad or torch.cuda.is_current_stream_capturing()):
        return
    for name, sets, mask in (("a", given.a, given.a_mask), ("b", given.b, given.b_mask)):
        low, high = range_of_norms(sets, mask).tolist()
        warn_unless_unit(name, low, high, _NORMALISE, stacklevel)
    if not bool(torch.isfinite(cosines.detach().sum())):
        refuse_not_finite("a", given.a)
        refuse_not_finite("b", given.b)
        raise NotFiniteError("a product is not finite, though every vector is: they are far too long. " + _NORMALISE)


def _compare(a: Array, b: Array, a_mask: Array | None, b_mask: Array | None) -> Planes:
    """Check the input and multiply."""
    return _planes(_checked(a, b, a_mask, b_mask), stacklevel=5)


def _planes(given: _Input, stacklevel: int) -> Planes:
    """Multiply; warn at that level of the stack."""
    cosines = cosine_planes(given.a, given.b)
    _check_values(given, cosines, stacklevel)
    a_real = None if given.a_mask is None else given.a_mask.T[:, None, :, None]
    b_real = None if given.b_mask is None else given.b_mask.T[None, :, None, :]
    return Planes(cosines, a_real, b_real)


def maxmatch(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
) -> Float[Tensor, "B C"]:
    """Maximal Pair Assignment Similarity (eqn:hungarian-similarity): the best one-to-one matching of two sets.

        s(X, Y) = mean_k [exp(c_k,π(k)) − 1],   π = argmax over one-to-one matchings of Σ_k c_k,π(k)

    Between −0.632 and e − 1 = 1.718. The smaller set is matched completely. Symmetric, and the order within a set does
    not matter, but where matchings tie: then the lexicographically first counts, which depends on both.

    Args:
        a: B sets of K unit vectors of width D, K at most 16: a tensor, an array or a list.
        b: C sets of L unit vectors, L at most 16.
        a_mask: which vectors of `a` are real (True) and which are padding; None: all are real.
        b_mask: the same for `b`.

    Returns:
        The score of every set of `a` with every set of `b`, in at least float32.

    Examples:
        >>> import torch
        >>> from maxmatch import similarity
        >>> e = torch.eye(3)
        >>> image = e[None, [0, 1]]
        >>> captions = torch.stack([e[[1, 0]], e[[0, 2]]])  # the same two vectors; only the first of them
        >>> similarity.maxmatch(image, captions)
        tensor([[1.7183, 0.8591]])
    """
    if a_mask is None and b_mask is None:
        scores = trained_scores(a, b, _maxmatch_plain)
        if scores is not None:
            return scores
    given = _checked(a, b, a_mask, b_mask)
    check_set_size("a", given.a.shape[1])
    check_set_size("b", given.b.shape[1])
    planes = _planes(given, stacklevel=4)
    return _maxmatch_of(planes.cosines) if a_mask is None and b_mask is None else _maxmatch_masked(planes)


def _maxmatch_plain(a: Tensor, b: Tensor) -> Tensor:
    return _maxmatch_of(cosine_planes(a, b))


def _maxmatch_of(cosines: Float[Tensor, "K L B C"]) -> Float[Tensor, "B C"]:
    if cosines.shape[0] > cosines.shape[1]:  # then it is the columns that are matched completely
        cosines = cosines.transpose(0, 1)
    return cosines.gather(1, match(cosines)[:, None])[:, 0].exp().mean(0) - 1


@torch.no_grad()
def match(cosines: Tensor) -> Tensor:
    """The matching (K, B, C) of cosine planes with K ≤ L, on the device they are on."""
    cosines = cosines.detach()  # forward derivatives, too
    kernels = kernels_for(cosines)
    if kernels is not None and cosines.shape[0] == cosines.shape[1] <= kernels.MAX_PLANES and cosines.stride(3) == 1:
        chosen: Tensor = kernels.plane_assignment(cosines)
        return chosen
    return assign_planes(cosines)


@torch.no_grad()
def match_own(cosines: Float[Tensor, "B K C"], own: Bool[Tensor, "B C"]) -> Int[Tensor, "B K"]:
    """The K vectors of each item, matched one to one with the columns that are its own.

        π = argmax over one-to-one matchings of the vectors of item i with its own columns of Σ_k c_i,k,π(k)

    For each vector its column, −1 where it has none, since there are more vectors than columns. Of the columns of an
    item the first eight count. The host reads no values, so that a step that calls it can be recorded.
    """
    count, size, columns = cosines.shape
    # The item's own columns in their order, then others; how many are its own must not decide a shape.
    mark, place = (own * torch.arange(columns, 0, -1, device=own.device)).topk(min(columns, _MOST_OWN), 1)
    real, most = mark > 0, mark.shape[1]
    side = max(size, most)
    squares = cosines.new_zeros(count, side, side)
    squares[:, :size, :most] = cosines.detach().gather(2, place[:, None].expand(-1, size, -1))
    real_row = (torch.arange(side, device=own.device) < size).expand(count, -1)
    squares = hide_padding(squares, real_row, pad(real, (0, side - most)))
    chosen = match(squares.permute(1, 2, 0)[:, :, None].contiguous())[:size, 0].T
    at = chosen.clamp(max=most - 1)
    return place.gather(1, at).masked_fill((chosen >= most) | ~real.gather(1, at), -1)


_MOST_OWN = 8  # what the kernels match


def _maxmatch_masked(planes: Planes) -> Tensor:
    rows, columns, n_a, n_b = planes.cosines.shape
    row_mask = None if planes.a_real is None else planes.a_real[:, 0].movedim(0, -1).expand(n_a, n_b, rows)
    col_mask = None if planes.b_real is None else planes.b_real[0].movedim(0, -1).expand(n_a, n_b, columns)
    chosen = maximal_assignment(planes.cosines.detach().permute(2, 3, 0, 1), row_mask, col_mask).movedim(-1, 0)
    picked = planes.cosines.gather(1, chosen.clamp(min=0)[:, None])[:, 0]
    return picked.expm1().masked_fill(chosen < 0, 0.0).sum(0) / planes.matched_size()


def top_k(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
    k: int | None = None,
) -> Float[Tensor, "B C"]:
    """The paper's fast inference: mean of exp(c) − 1 over the k largest cosines of a pair, without matching.

    Args:
        a: B sets, as in `maxmatch`.
        b: C sets.
        a_mask: which vectors of `a` are real.
        b_mask: which of `b`.
        k: how many cosines of each pair to average; None: the size of the smaller set. A pair with fewer cosines
            averages all of them.

    Returns:
        The score of every pair.

    Examples:
        >>> import torch
        >>> from maxmatch import similarity
        >>> image, caption = torch.eye(3)[None, [0, 1]], torch.eye(3)[None, [0, 2]]
        >>> similarity.top_k(image, caption, k=1)
        tensor([[1.7183]])
    """
    if k is not None and k < 1:
        raise ValueError(f"k: expected at least 1, got {k}.")
    planes = _compare(a, b, a_mask, b_mask)
    rows, columns = planes.cosines.shape[:2]
    most, real = min(k or min(rows, columns), rows * columns), planes.both_real()
    largest = _hide(planes.cosines, real).flatten(0, 1).movedim(0, -1).topk(most, -1).values
    if real is None:
        return largest.expm1().mean(-1)
    size = planes.matched_size() if k is None else real.sum((0, 1)).clamp(max=k)
    counted = torch.arange(most, device=largest.device) < size[..., None]
    return torch.where(counted, largest, 0.0).expm1().sum(-1) / size


def smooth_chamfer(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
    alpha: float = 16.0,
) -> Float[Tensor, "B C"]:
    """SetDiv's similarity (eqn:sdsdds): the Chamfer similarity with a soft maximum. Identical sets score > 1.

        s(X, Y) = 1/2α · [mean_x log Σ_y exp(αc) + mean_y log Σ_x exp(αc)]

    Args:
        a: B sets, as in `maxmatch`.
        b: C sets.
        a_mask: which vectors of `a` are real.
        b_mask: which of `b`.
        alpha: how sharp the maximum is; as it grows the score approaches `chamfer`.

    Returns:
        The score of every pair.

    Examples:
        >>> import torch
        >>> from maxmatch import similarity
        >>> image, caption = torch.eye(3)[None, [0, 1]], torch.eye(3)[None, [0, 2]]
        >>> similarity.smooth_chamfer(image, caption)
        tensor([[0.5217]])
    """
    if not alpha > 0:
        raise ValueError(f"alpha: expected a positive number, got {alpha}.")
    planes = _compare(a, b, a_mask, b_mask)
    return _both_ways(planes, lambda c, dim: (alpha * c).logsumexp(dim) / alpha)


def chamfer(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
) -> Float[Tensor, "B C"]:
    """Each vector with its best partner, averaged over both sets: ½ · [mean_x max_y c + mean_y max_x c].

    Args:
        a: B sets, as in `maxmatch`.
        b: C sets.
        a_mask: which vectors of `a` are real.
        b_mask: which of `b`.

    Returns:
        The score of every pair.

    Examples:
        >>> import torch
        >>> from maxmatch import similarity
        >>> image, caption = torch.eye(3)[None, [0, 1]], torch.eye(3)[None, [0, 2]]
        >>> similarity.chamfer(image, caption)
        tensor([[0.5000]])
    """
    planes = _compare(a, b, a_mask, b_mask)
    return _both_ways(planes, _maximum)


def _both_ways(planes: Planes, best: Callable[[Tensor, int], Tensor]) -> Tensor:
    """½ · [mean over a's vectors of best over b's + the other way round]."""
    cosines, a_real, b_real = planes
    # Only the vectors the best is taken over are hidden: a row of −inf alone would make NaN gradients.
    of_a = _mean(best(_hide(cosines, b_real), 1), None if a_real is None else a_real[:, 0])
    of_b = _mean(best(_hide(cosines, a_real), 0), None if b_real is None else b_real[0])
    return (of_a + of_b) / 2


def _maximum(cosines: Tensor, dim: int) -> Tensor:
    """The maximum; with gradient for one entry alone, where amax would share it out among equal ones."""
    return cosines.max(dim).values if has_gradient(cosines) else cosines.amax(dim)


def mil(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
) -> Float[Tensor, "B C"]:
    """Multiple-instance similarity (PVSE): the largest cosine of a pair. Its gradient reaches one vector of a set.

    Args:
        a: B sets, as in `maxmatch`.
        b: C sets.
        a_mask: which vectors of `a` are real.
        b_mask: which of `b`.

    Returns:
        The score of every pair.

    Examples:
        >>> import torch
        >>> from maxmatch import similarity
        >>> image, caption = torch.eye(3)[None, [0, 1]], torch.eye(3)[None, [0, 2]]
        >>> similarity.mil(image, caption)
        tensor([[1.]])
    """
    planes = _compare(a, b, a_mask, b_mask)
    return _maximum(_hide(planes.cosines, planes.both_real()).flatten(0, 1), 0)


def mean(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
) -> Float[Tensor, "B C"]:
    """The average cosine of a pair.

    Args:
        a: B sets, as in `maxmatch`.
        b: C sets.
        a_mask: which vectors of `a` are real.
        b_mask: which of `b`.

    Returns:
        The score of every pair.

    Examples:
        >>> import torch
        >>> from maxmatch import similarity
        >>> image, caption = torch.eye(3)[None, [0, 1]], torch.eye(3)[None, [0, 2]]
        >>> similarity.mean(image, caption)
        tensor([[0.2500]])
    """
    planes = _compare(a, b, a_mask, b_mask)
    real = planes.both_real()
    if real is None:
        return planes.cosines.mean((0, 1))
    return torch.where(real, planes.cosines, 0.0).sum((0, 1)) / real.sum((0, 1))


def maxsim(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
) -> Float[Tensor, "B C"]:
    """ColBERT's similarity: each vector of a (the query) with its best in b, added up: Σ_x max_y c. Not symmetric.

    Args:
        a: B sets, as in `maxmatch`.
        b: C sets.
        a_mask: which vectors of `a` are real.
        b_mask: which of `b`.

    Returns:
        The score of every pair.

    Examples:
        >>> import torch
        >>> from maxmatch import similarity
        >>> image, caption = torch.eye(3)[None, [0, 1]], torch.eye(3)[None, [0, 2]]
        >>> similarity.maxsim(image, caption)
        tensor([[1.]])
    """
    cosines, a_real, b_real = _compare(a, b, a_mask, b_mask)
    best = _maximum(_hide(cosines, b_real), 1)
    return (best if a_real is None else torch.where(a_real[:, 0], best, 0.0)).sum(0)


def paired(
    a: Float[Array, "B K D"],
    b: Float[Array, "C K D"],
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C K"] | None = None,
) -> Float[Tensor, "B C"]:
    """Slot i always meets slot i, as if `maxmatch` had chosen that matching: mean_i [exp(c_ii) − 1].

    Symmetric; the order within a set matters. With masks only the slots that are real in both sets count, each at its
    place; a pair without any scores 0, as orthogonal sets do.

    Args:
        a: B sets of K unit vectors, K any number.
        b: C sets of as many vectors.
        a_mask: which vectors of `a` are real.
        b_mask: which of `b`.

    Returns:
        The score of every pair.

    Examples:
        >>> import torch
        >>> from maxmatch import similarity
        >>> e = torch.eye(3)
        >>> image = e[None, [0, 1]]
        >>> captions = torch.stack([e[[1, 0]], e[[0, 2]]])  # the same two vectors, the other way round; only the first
        >>> similarity.paired(image, captions)
        tensor([[0.0000, 0.8591]])
    """
    given = _checked(a, b, a_mask, b_mask)
    check_equal_sizes(given.a.shape[1], given.b.shape[1])
    with torch.autocast(given.a.device.type, enabled=False):
        slots = zip(given.a.unbind(1), given.b.unbind(1), strict=True)
        cosines = torch.stack([multiply(x, y) for x, y in slots])
    _check_values(given, cosines, stacklevel=3)
    masks = [given.a_mask.T[:, :, None]] if given.a_mask is not None else []
    masks += [given.b_mask.T[:, None, :]] if given.b_mask is not None else []
    if not masks:
        return cosines.expm1().mean(0)
    real = (masks[0] & masks[-1]).expand_as(cosines)
    return torch.where(real, cosines.expm1(), 0.0).sum(0) / real.sum(0).clamp(min=1)


def sinkhorn(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
    epsilon: float = 0.05,
    iterations: int = 50,
) -> Float[Tensor, "B C"]:
    """Entropic transport: `maxmatch` with a soft matching, the plan P that maximises Σ P c + ε H(P).

        s(X, Y) = 1/m · Σ_kl P_kl [exp(c_kl) − 1],   m = min(K, L)

    Every vector has mass 1 and the smaller set moves completely. As ε → 0 the score becomes `maxmatch`'s, for sets of
    any two sizes; as ε → ∞ the mean of exp(c) − 1 over all pairs. Identical sets score below e − 1.

    The plan has no gradient, as a matching has none: ∂s/∂c = P exp(c) / m. This is not the derivative of the score,
    which also changes with P; it needs no memory for the iterations, and is `maxmatch`'s as ε → 0.

    Symmetric, and the order within a set does not matter, up to what the iterations leave where both sets have as many
    vectors. A smaller ε needs more of them.

    Args:
        a: B sets, as in `maxmatch`, but of any number of vectors.
        b: C sets.
        a_mask: which vectors of `a` are real.
        b_mask: which of `b`.
        epsilon: how soft the matching is, at least 1e-6.
        iterations: how often rows and columns are scaled in turn.

    Returns:
        The score of every pair.

    Examples:
        >>> import torch
        >>> from maxmatch import similarity
        >>> image, caption = torch.eye(3)[None, [0, 1]], torch.eye(3)[None, [0, 2]]
        >>> similarity.sinkhorn(image, caption, epsilon=0.5)
        tensor([[0.6281]])
        >>> similarity.sinkhorn(image, caption, epsilon=0.05)  # maxmatch: 0.8591
        tensor([[0.8506]])
    """
    check_transport(epsilon, iterations)
    planes = _compare(a, b, a_mask, b_mask)
    plan = transport_plan(planes.cosines, epsilon, iterations, planes.a_real, planes.b_real)
    total = (plan * planes.cosines.expm1()).sum((0, 1))
    masked = planes.a_real is not None or planes.b_real is not None
    return total / (planes.matched_size() if masked else min(planes.cosines.shape[:2]))


def csd(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
) -> Float[Tensor, "B C"]:
    """PCME++: minus the closed-form sampled distance of two Gaussians, which `gaussian_sets` made sets of.

        −CSD = −‖μ_a − μ_b‖² − Σ(σ_a² + σ_b²) = 4 c₀₀ − 2 − √½/c₀₁ − √½/c₁₀

    It is minus the expected squared distance of a sample of each. At most 0; symmetric. Among items as near as each
    other, the one with the larger variance ranks lower.

    Args:
        a: B Gaussians, each a set of two unit vectors.
        b: C Gaussians.
        a_mask: None, or all True: a Gaussian has no padding.
        b_mask: the same for `b`.

    Returns:
        The score of every pair.

    Examples:
        >>> import torch
        >>> from maxmatch import similarity
        >>> image = similarity.gaussian_sets(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.05, 0.05]]).log())
        >>> means, variances = torch.tensor([[0.8, 0.6], [0.6, 0.8]]), torch.tensor([[0.3, 0.3], [0.02, 0.02]])
        >>> similarity.csd(image, similarity.gaussian_sets(means, variances.log()))  # the vague caption loses
        tensor([[-1.1000, -0.9400]])
    """
    planes = _compare(a, b, a_mask, b_mask)
    for name, sets, mask in (("a", a, a_mask), ("b", b, b_mask)):
        _refuse_unless_gaussians(name, as_tensor(sets, name), mask)
    cosines = planes.cosines
    return 4 * cosines[0, 0] - 2 - _HALF / cosines[0, 1] - _HALF / cosines[1, 0]


_HALF = math.sqrt(0.5)


def gaussian_sets(mean: Float[Tensor, "B W"], log_variance: Float[Tensor, "B W"]) -> Float[Tensor, "B 2 D"]:
    """Gaussians as sets of two unit vectors of width D = W + 2, whose cosines tell all that `csd` needs:

        (√½ μ, √½, 0)   and   (0, w, √(1 − w²)),   w = 1 / (1 + Σσ²), the certainty

    so that c₀₀ = (1 + cos)/2, and c₀₁ = √½ w of the second set, c₁₀ of the first. In at least float32.

    Args:
        mean: B means of unit length.
        log_variance: log σ² of each of their W coordinates, which are independent.

    Returns:
        The sets.

    Examples:
        >>> import torch
        >>> from maxmatch import similarity
        >>> sets = similarity.gaussian_sets(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2))
        >>> sets.shape, sets.norm(dim=-1)
        (torch.Size([1, 2, 4]), tensor([[1., 1.]]))
    """
    common = torch.promote_types(torch.promote_types(mean.dtype, log_variance.dtype), torch.float32)
    mean, log_variance = mean.to(common), log_variance.to(common)
    variance = log_variance.exp().sum(1, keepdim=True)
    certainty = 1 / (1 + variance)
    # What fills up the length has no part in any score, and no gradient: its slope has no bound where Σσ² is near 0.
    rest = (variance * (2 + variance)).sqrt().detach() * certainty.detach()
    first = torch.cat([_HALF * mean, torch.full_like(certainty, _HALF), torch.zeros_like(certainty)], 1)
    second = torch.cat([torch.zeros_like(mean), certainty, rest], 1)
    return torch.stack([first, second], 1)


def _refuse_unless_gaussians(name: str, sets: Tensor, mask: Array | None) -> None:
    """Refuse sets that `gaussian_sets` did not make; by their values where looking at them stops no queue of work."""
    cure = "Give what a model with Gaussian heads makes, or use another similarity."
    if sets.shape[1] != 2 or sets.shape[2] < 3:
        raise ValueError(f"{name}: csd compares Gaussians, sets of 2 vectors, got {shape_of(sets)}. {cure}")
    if mask is not None and not bool(as_tensor(mask, name).all()):
        raise ValueError(f"{name}_mask: a Gaussian has no padding, but some of its vectors are masked.")
    if sets.is_cuda:
        return
    marks = sets.detach()[:, 0, -2:].float() - torch.tensor([_HALF, 0.0])
    if len(marks) and not bool((marks.abs() < _MARK_TOLERANCE).all()):
        raise ValueError(f"{name}: csd compares Gaussians, but these are sets of other vectors. {cure}")


_MARK_TOLERANCE = 1e-2  # as that of unit length


def with_options(name: str, options: Mapping[str, int | float]) -> str | Similarity:
    """A similarity with its options; without any the name itself, for which `score_matrix` knows faster ways."""
    return partial(SIMILARITIES[name].torch, **options) if options else name
