"""The matching as a scoring function of sentence-transformers' multi-vector losses, and of PyLate's.

    from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
    loss = MultiVectorMultipleNegativesRankingLoss(model, similarity_fct=maxmatch_scores, scale=20.0)

Token embeddings come padded, with masks (without one, a vector of zeros is padding). A text has more tokens than can be
matched one to one, so they are first clustered into at most `size` vectors (`layers.clustering`), queries and documents
alike; another size by `functools.partial(maxmatch_scores, size=4)`. Up to 8 the matching runs in bulk, up to 16 one by
one. Scores lie between −0.632 and 1.718 whatever the number of tokens: hence the scale, as for cosines.

Nothing here imports sentence-transformers or PyLate: these are functions of tensors that fit both.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from maxmatch.layers.clustering import cluster_tokens
from maxmatch.matching.assignment import maximal_assignment
from maxmatch.matching.scoring import score_matrix
from maxmatch.matching.similarity import maxmatch

SIZE = 8
"""Vectors a text, unless said otherwise."""


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
    documents = documents_embeddings.flatten(0, 1)
    documents_mask = None if documents_mask is None else documents_mask.flatten(0, 1)
    a, a_mask = cluster_tokens(queries_embeddings, size, _real(queries_embeddings, queries_mask))
    b, b_mask = cluster_tokens(documents, size, _real(documents, documents_mask))
    return maxmatch(a, b, a_mask, b_mask)


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
    queries, documents = _padded(queries_embeddings), _padded(documents_embeddings)[:, None]
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
    count = documents_embeddings.shape[1]
    documents = documents_embeddings.flatten(0, 1)
    documents_mask = None if documents_mask is None else documents_mask.flatten(0, 1)
    a, a_mask = cluster_tokens(queries_embeddings, size, _real(queries_embeddings, queries_mask))
    b, b_mask = cluster_tokens(documents, size, _real(documents, documents_mask))
    cosines = a[:, None] @ b.view(len(a), count, *b.shape[1:]).mT
    a_mask, b_mask = a_mask[:, None].expand(cosines.shape[:3]), b_mask.view(len(a), count, -1)
    chosen = maximal_assignment(cosines, a_mask, b_mask)
    matched = cosines.gather(3, chosen.clamp(min=0)[..., None])[..., 0].expm1().masked_fill(chosen < 0, 0.0)
    return matched.sum(2) / torch.minimum(a_mask.sum(2), b_mask.sum(2))


def maxmatch_similarity(
    a: Sequence[Tensor] | Tensor, b: Sequence[Tensor] | Tensor, *, size: int = SIZE
) -> Float[Tensor, "n m"]:
    """All pairs of two lists of encoded texts, as `model.encode` gives them: a matrix (tokens, width) each.

    A single matrix is a list of one. For scoring after training, and for MultiVectorRerankingEvaluator.
    """
    x, y = _padded(a), _padded(b)
    (x, x_mask), (y, y_mask) = cluster_tokens(x, size, _real(x, None)), cluster_tokens(y, size, _real(y, None))
    return score_matrix(x, y, a_mask=x_mask, b_mask=y_mask)


def _padded(texts: Sequence[Tensor] | Tensor) -> Float[Tensor, "B t D"]:
    """One tensor of all texts, shorter ones padded with zeros."""
    if isinstance(texts, Tensor):
        return texts[None] if texts.ndim == 2 else texts
    return torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True)


def _real(embeddings: Float[Tensor, "B t D"], mask: Tensor | None) -> Bool[Tensor, "B t"]:
    """Which tokens are real: where the mask, of any type, says so; without one, those that are not all zeros."""
    return (embeddings != 0).any(2) if mask is None else mask.bool()
