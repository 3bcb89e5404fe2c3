"""The matching as a scoring function of sentence-transformers' multi-vector losses, and of PyLate's.

    from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
    loss = MultiVectorMultipleNegativesRankingLoss(model, similarity_fct=maxmatch_scores, scale=20.0)

Token embeddings come padded, with masks (without one, a vector of zeros is padding). A text has more tokens than can be
matched one to one, so they are first clustered into at most `size` vectors (`cluster_tokens`), queries and documents
alike; another size by `functools.partial(maxmatch_scores, size=4)`. Up to 8 the matching runs in bulk, up to 16 one by
one. Scores lie between −0.632 and 1.718 whatever the number of tokens: hence the scale, as for cosines.

Nothing here imports sentence-transformers or PyLate: these are functions of tensors that fit both.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from maxmatch.core.array_checks import check_set_size, shape_of
from maxmatch.core.checks import Array, as_tensor, check_mask
from maxmatch.matching.assignment import maximal_assignment
from maxmatch.matching.scoring import score_matrix
from maxmatch.matching.similarity import maxmatch
from maxmatch.model.layers import unit_vectors


def cluster_tokens(
    tokens: Float[Array, "B N D"], size: int, mask: Bool[Array, "B N"] | None = None, rounds: int = 4
) -> tuple[Float[Tensor, "B K D"], Bool[Tensor, "B K"]]:
    """At most `size` unit vectors of each item, and which of them are real.

    Tokens that point the same way become one vector: spherical k-means from the item's token nearest to its mean and
    those farthest from it and from each other, `rounds` times; a vector is the sum of its tokens, brought to length 1.
    An item with no more than `size` tokens keeps them all, in their order.

    Which token goes where is chosen without gradient; the gradient flows through the sums. Nothing is random, and an
    item does not depend on those beside it.
    """
    if size < 1:
        raise ValueError(f"size: expected at least 1, got {size}.")
    check_set_size("size", size)
    tokens = as_tensor(tokens, "tokens")
    mask = None if mask is None else as_tensor(mask, "mask")
    check_mask("mask", mask, tuple(tokens.shape[:2]))
    real = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device) if mask is None else mask
    order = (~real).int().argsort(dim=1, stable=True)  # the real ones first
    real = real.gather(1, order)
    ordered = tokens.gather(1, order[..., None].expand_as(tokens))
    unit = unit_vectors(ordered.masked_fill(~real[..., None], 0.0))
    if tokens.shape[1] <= size:
        return unit, real
    cluster = _clusters(unit.detach(), real, size, rounds)
    few = real.sum(1, keepdim=True) <= size
    own = torch.arange(tokens.shape[1], device=tokens.device).expand_as(cluster)
    member = _members(torch.where(few, own, cluster), real, size)
    sums = member.to(unit.dtype) @ unit
    return unit_vectors(sums), member.any(2)


@torch.no_grad()
def _clusters(unit: Float[Tensor, "B N D"], real: Bool[Tensor, "B N"], size: int, rounds: int) -> Int[Tensor, "B N"]:
    """The cluster of each token."""
    to_mean = (unit @ unit.sum(1)[..., None])[..., 0]
    chosen = to_mean.masked_fill(~real, -torch.inf).argmax(1)
    centres = _at(unit, chosen)
    nearest = (unit @ centres.mT)[..., 0]
    for _ in range(size - 1):
        chosen = nearest.masked_fill(~real, torch.inf).argmin(1)
        farthest = _at(unit, chosen)
        centres = torch.cat([centres, farthest], 1)
        nearest = torch.maximum(nearest, (unit @ farthest.mT)[..., 0])
    cluster = (unit @ centres.mT).argmax(2)
    for _ in range(rounds):
        sums = _members(cluster, real, size).to(unit.dtype) @ unit
        cluster = (unit @ unit_vectors(sums).mT).argmax(2)
    return cluster


def _at(unit: Tensor, chosen: Tensor) -> Tensor:
    """One token of each item, (B, 1, D)."""
    return unit.gather(1, chosen[:, None, None].expand(-1, 1, unit.shape[2]))


def _members(cluster: Int[Tensor, "B N"], real: Bool[Tensor, "B N"], size: int) -> Bool[Tensor, "B K N"]:
    """Which tokens are in which cluster."""
    return (cluster[:, None] == torch.arange(size, device=cluster.device)[:, None]) & real[:, None]


SIZE = 8
"""Vectors per text, by default."""


def maxmatch_scores(
    queries_embeddings: Float[Tensor, "Q q D"],
    documents_embeddings: Float[Tensor, "G N d D"],
    queries_mask: Tensor | None = None,
    documents_mask: Tensor | None = None,
    *,
    size: int = SIZE,
) -> Float[Tensor, "Q G*N"]:
    """All queries against all documents, which come in G groups of N: document n of group g is column g·N + n.

    For MultiVectorMultipleNegativesRankingLoss, its cached form, and PyLate's Contrastive (`score_metric`).
    """
    a, a_mask = _clustered(queries_embeddings, size, queries_mask)
    b, b_mask = _clustered(documents_embeddings, size, documents_mask)
    return maxmatch(a, b.flatten(0, 1), a_mask, b_mask.flatten(0, 1))


def maxmatch_scores_pairwise(
    queries_embeddings: Float[Tensor, "B q D"] | Sequence[Tensor],
    documents_embeddings: Float[Tensor, "B d D"] | Sequence[Tensor],
    queries_mask: Tensor | None = None,
    documents_mask: Tensor | None = None,
    *,
    size: int = SIZE,
) -> Float[Tensor, " B"]:
    """Query i against document i alone. For MultiVectorMarginMSELoss; and MultiVectorDistillationEvaluator, which has
    lists of matrices (tokens, width).
    """
    queries = _padded("queries_embeddings", queries_embeddings)
    documents = _padded("documents_embeddings", documents_embeddings)[:, None]
    documents_mask = None if documents_mask is None else documents_mask[:, None]
    return maxmatch_kd_scores(queries, documents, queries_mask, documents_mask, size=size)[:, 0]


def maxmatch_kd_scores(
    queries_embeddings: Float[Tensor, "B q D"],
    documents_embeddings: Float[Tensor, "B N d D"],
    queries_mask: Tensor | None = None,
    documents_mask: Tensor | None = None,
    *,
    size: int = SIZE,
) -> Float[Tensor, "B N"]:
    """Query i against its own N documents. For MultiVectorDistillKLDivLoss, and PyLate's Distillation."""
    a, a_mask = _clustered(queries_embeddings, size, queries_mask)
    b, b_mask = _clustered(documents_embeddings, size, documents_mask)
    cosines = a[:, None] @ b.mT
    a_mask = a_mask[:, None].expand(cosines.shape[:3])
    chosen = maximal_assignment(cosines, a_mask, b_mask)
    matched = cosines.gather(3, chosen.clamp(min=0)[..., None])[..., 0].expm1().masked_fill(chosen < 0, 0.0)
    return matched.sum(2) / torch.minimum(a_mask.sum(2), b_mask.sum(2))


def maxmatch_similarity(
    a: Sequence[Array] | Array, b: Sequence[Array] | Array, *, size: int = SIZE
) -> Float[Tensor, "n m"]:
    """All pairs of two lists of encoded texts, as `model.encode` gives them: a matrix (tokens, width) each, tensors or
    arrays.

    A single matrix is a list of one. For scoring after training, and for MultiVectorRerankingEvaluator.
    """
    (x, x_mask), (y, y_mask) = _clustered(_padded("a", a), size), _clustered(_padded("b", b), size)
    return score_matrix(x, y, a_mask=x_mask, b_mask=y_mask)


def _padded(name: str, texts: Sequence[Array] | Array) -> Float[Tensor, "B t D"]:
    """One tensor of all texts, shorter ones padded with zeros."""
    if isinstance(texts, Tensor | np.ndarray):
        whole = as_tensor(texts)
        if whole.ndim == 3:
            return whole
        names, found = [name], [whole]
    else:
        names = [f"{name}[{place}]" for place in range(len(texts))]
        found = [as_tensor(text, one) for text, one in zip(texts, names, strict=True)]
    if not found:
        raise ValueError(f"{name}: expected a list of encoded texts, got none.")
    for one, text in zip(names, found, strict=True):
        if text.ndim != 2:
            raise ValueError(f"{one}: expected the vectors of a text (tokens, width), got {shape_of(text)}.")
        if text.shape[1] != found[0].shape[1]:
            raise ValueError(f"{one}: vectors of width {text.shape[1]}, but those before it of {found[0].shape[1]}.")
    return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)


def _clustered(
    embeddings: Float[Array, "*B t D"], size: int, mask: Array | None = None
) -> tuple[Float[Tensor, "*B K D"], Bool[Tensor, "*B K"]]:
    """`cluster_tokens` of any batch, with a mask of any type; without one, vectors of zeros are padding."""
    embeddings = as_tensor(embeddings, "embeddings")
    real = (embeddings != 0).any(-1) if mask is None else as_tensor(mask, "mask").bool()
    vectors, kept = cluster_tokens(embeddings.flatten(0, -3), size, real.flatten(0, -2))
    batch = embeddings.shape[:-2]
    return vectors.reshape(*batch, *vectors.shape[1:]), kept.reshape(*batch, kept.shape[-1])
