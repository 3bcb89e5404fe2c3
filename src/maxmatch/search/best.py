"""The best items of each query: scored by the index's similarity, with the matching that each score is made of."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from maxmatch.checks import as_tensor
from maxmatch.matching.assignment import assign_planes, maximal_assignment
from maxmatch.matching.scoring import top_hits
from maxmatch.search.engine import Found


class Best(NamedTuple):
    """The best items of one query, best first; equal scores in the order in which the items were added."""

    ids: list[str]
    scores: np.ndarray
    partners: np.ndarray
    """(n, L): the slot of the item that each slot of the query was matched with, −1 for none."""
    cosines: np.ndarray
    """(n, L): theirs, 0 for none."""
    metadata: list[str] | None = None
    """JSON texts, where the engine gave them along."""


def best_of_all(queries: Tensor, blocks: Iterable[Found], k: int, similarity: str) -> list[Best]:
    """The k best of each query (n, L, D) among all items, block after block."""
    count, slots, _ = queries.shape
    best = _Running(
        np.empty((count, 0), np.float32),
        np.empty((count, 0), np.int64),
        np.empty((count, 0), object),
        np.empty((count, 0, slots), np.int64),
        np.empty((count, 0, slots), np.float32),
    )
    for block in blocks:
        if block.ids:
            best = _merged(best, _scored(queries, block, k, similarity), k)
    return [
        Best(best.ids[row].tolist(), best.scores[row], best.partners[row], best.cosines[row]) for row in range(count)
    ]


class _Running(NamedTuple):
    """The best so far of many queries, (queries, so far, …)."""

    scores: np.ndarray
    added: np.ndarray
    ids: np.ndarray
    partners: np.ndarray
    cosines: np.ndarray


def _merged(first: _Running, second: _Running, k: int) -> _Running:
    scores, added, ids, partners, cosines = (np.concatenate(pair, 1) for pair in zip(first, second, strict=True))
    order = np.lexsort((added, -scores), axis=1)[:, :k]
    flat = [np.take_along_axis(values, order, 1) for values in (scores, added, ids)]
    deep = [np.take_along_axis(values, order[:, :, None], 1) for values in (partners, cosines)]
    return _Running(*flat, *deep)


def _scored(queries: Tensor, found: Found, k: int, similarity: str) -> _Running:
    """The k best of each query among the same items."""
    order = np.argsort(found.added, kind="stable")  # so that equal scores come in this order
    in_order = bool((order[1:] > order[:-1]).all())
    vectors = np.asarray(found.vectors if in_order else found.vectors[order], dtype=np.float32)
    sets = as_tensor(vectors).view(len(order), -1, queries.shape[2])
    hits = top_hits(queries, sets, k, similarity)
    cosines = torch.einsum("nld,nmkd->nmlk", queries, sets[hits.indices])
    partners = maximal_assignment(cosines)
    matched = cosines.gather(3, partners.clamp(min=0)[..., None])[..., 0].masked_fill(partners < 0, 0.0)
    places = order[hits.indices.numpy()]
    ids = np.array(found.ids, object)[places]
    return _Running(hits.scores.numpy(), found.added[places], ids, partners.numpy(), matched.numpy())


def best_of_each(queries: Tensor, candidates: Sequence[Found], k: int, similarity: str) -> list[Best]:
    """The k best of each query (n, K, D) among its own candidates."""
    if similarity != "maxmatch":
        alone = [
            best_of_all(query[None], [found], k, similarity)[0]
            for query, found in zip(queries, candidates, strict=True)
        ]
        return [_with_metadata(best, found) for best, found in zip(alone, candidates, strict=True)]
    # One matching for all pairs of a query with a candidate: planes (K, K, pairs).
    size = queries.shape[1]
    ends = np.cumsum([0] + [len(found.ids) for found in candidates])
    planes = np.empty((size, size, ends[-1]), np.float32)
    for query, found, begin, end in zip(queries, candidates, ends[:-1], ends[1:], strict=True):
        vectors = as_tensor(found.vectors.reshape(-1, query.shape[1]).astype(np.float32, copy=False))
        # Not by NumPy, whose threads wait by spinning: products as small as these then take ten times as long.
        planes[:, :, begin:end] = (query @ vectors.T).view(size, end - begin, size).transpose(1, 2).numpy()
    partners = assign_planes(torch.from_numpy(planes)).numpy()
    matched = np.take_along_axis(planes, partners[:, None], 1)[:, 0]
    scores = np.exp(matched).mean(0) - 1
    best = []
    for found, begin, end in zip(candidates, ends[:-1], ends[1:], strict=True):
        order = np.lexsort((found.added, -scores[begin:end]))[:k]
        rows = begin + order
        ids = [found.ids[place] for place in order]
        texts = None if found.metadata is None else [found.metadata[place] for place in order]
        best.append(Best(ids, scores[rows], partners[:, rows].T, matched[:, rows].T, texts))
    return best


def _with_metadata(best: Best, found: Found) -> Best:
    if found.metadata is None:
        return best
    texts = dict(zip(found.ids, found.metadata, strict=True))
    return best._replace(metadata=[texts[name] for name in best.ids])
