"""The best items of each query: scored by the index's similarity, with the matching that each score is made of."""

import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from maxmatch.matching.arrays import LARGEST, SCORES, assign, cosine_planes, matched
from maxmatch.search.engine import Found

_ROUNDING = 1e-6  # of a score: how much two ways to compute it differ, but for matchings that are as good
_FEW = 2**14  # pairs that NumPy has scored long before torch would be loaded, and matched as fast as torch does


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


def best_of_all(queries: np.ndarray, blocks: Iterable[Found], k: int, similarity: str) -> list[Best]:
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


def _scored(queries: np.ndarray, found: Found, k: int, similarity: str) -> _Running:
    """The k best of each query among the same items."""
    order = np.argsort(found.added, kind="stable")  # so that equal scores come in this order
    in_order = bool((order[1:] > order[:-1]).all())
    vectors = np.asarray(found.vectors if in_order else found.vectors[order], dtype=np.float32)
    sets = vectors.reshape(len(order), -1, queries.shape[2])
    alone = _without_torch(len(queries) * len(sets), queries.shape[1], sets.shape[1])
    scores, chosen = (_few_hits if alone else _many_hits)(queries, sets, k, similarity)
    products = queries[:, None] @ sets[chosen].transpose(0, 1, 3, 2)
    planes = products.transpose(2, 3, 0, 1).reshape(queries.shape[1], sets.shape[1], -1)
    partners = _assigned(planes)
    by_hit = (*chosen.shape, queries.shape[1])
    places = order[chosen]
    ids = np.array(found.ids, object)[places]
    cosines = matched(planes, partners)
    return _Running(scores, found.added[places], ids, partners.T.reshape(by_hit), cosines.T.reshape(by_hit))


def scores_of(query: np.ndarray, sets: np.ndarray, similarity: str) -> np.ndarray:
    """The scores (n,) of one query (L, D) with sets (n, K, D)."""
    if _without_torch(len(sets), query.shape[0], sets.shape[1]):
        return SCORES[similarity](cosine_planes(query[None], sets))
    import torch

    from maxmatch.matching.similarity import SIMILARITIES

    return SIMILARITIES[similarity](torch.tensor(query)[None], torch.tensor(sets))[0].numpy()


def _without_torch(pairs: int, *sizes: int) -> bool:
    """Whether NumPy scores: a few pairs are not worth loading torch for, which takes seconds. Once it is loaded, torch
    scores them, too, so that scores are those of `maxmatch.top_hits` to the last bit.
    """
    return "torch" not in sys.modules and pairs <= _FEW and max(sizes) <= LARGEST


def _few_hits(queries: np.ndarray, sets: np.ndarray, k: int, similarity: str) -> tuple[np.ndarray, np.ndarray]:
    """As `maxmatch.top_hits`: scores and places."""
    scores = SCORES[similarity](cosine_planes(queries, sets)).reshape(len(queries), len(sets))
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, chosen, 1), chosen


def _many_hits(queries: np.ndarray, sets: np.ndarray, k: int, similarity: str) -> tuple[np.ndarray, np.ndarray]:
    import torch

    from maxmatch.checks import as_tensor
    from maxmatch.matching.scoring import top_hits

    hits = top_hits(torch.from_numpy(queries), as_tensor(sets), k, similarity)
    return hits.scores.numpy(), hits.indices.numpy()


def _assigned(planes: np.ndarray) -> np.ndarray:
    """The matching of each pair, (L, pairs): of few by NumPy, which gives the same and has far less to set up."""
    if planes.shape[2] <= _FEW and max(planes.shape[:2]) <= LARGEST:
        return assign(planes)
    import torch

    from maxmatch.matching.assignment import assign_planes

    return assign_planes(torch.from_numpy(planes)).numpy()


def _product(query: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The cosines of a query's vectors with many; by torch where it is loaded already, since NumPy's threads wait by
    spinning, and products as small as these then take ten times as long beside other work.
    """
    if "torch" not in sys.modules:
        product: np.ndarray = query @ vectors.T
        return product
    from maxmatch.checks import as_tensor

    return (as_tensor(query) @ as_tensor(vectors).T).numpy()


def best_of_each(queries: np.ndarray, candidates: Sequence[Found], k: int, similarity: str) -> list[Best]:
    """The k best of each query (n, K, D) among its own candidates."""
    if similarity != "maxmatch":
        alone = [
            best_of_all(query[None], [found], k, similarity)[0]
            for query, found in zip(queries, candidates, strict=True)
        ]
        return [_with_metadata(best, found) for best, found in zip(alone, candidates, strict=True)]
    ends, partners, cosines, scores = _matched(queries, [found.vectors for found in candidates])
    best = []
    for found, (begin, end) in zip(candidates, pairwise(ends), strict=True):
        order = np.lexsort((found.added, -scores[begin:end]))[:k]
        rows = begin + order
        ids = [found.ids[place] for place in order]
        texts = None if found.metadata is None else [found.metadata[place] for place in order]
        best.append(Best(ids, scores[rows], partners[:, rows].T, cosines[:, rows].T, texts))
    return best


def places_of_best(queries: np.ndarray, vectors: list[np.ndarray], k: int, similarity: str) -> list[np.ndarray]:
    """The places of the k best of each query (n, K, D) among its own candidates (m, K·D), and of those with a score as
    high as the last of them.
    """
    if similarity == "maxmatch":
        ends, _, _, scores = _matched(queries, vectors)
        each = [scores[begin:end] for begin, end in pairwise(ends)]
    else:
        each = [
            scores_of(query, found.reshape(len(found), *query.shape).astype(np.float32, copy=False), similarity)
            for query, found in zip(queries, vectors, strict=True)
        ]
    return [_highest(scores, k) for scores in each]


def _highest(scores: np.ndarray, k: int) -> np.ndarray:
    if len(scores) <= k:
        return np.arange(len(scores))
    last = np.partition(scores, -k)[-k]
    return np.flatnonzero(scores >= last - _ROUNDING * max(1, abs(last)))


def _matched(
    queries: np.ndarray, vectors: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One matching for all pairs of a query with a candidate of its own: where each query's pairs begin and end, and of
    each pair the partners (K, pairs), their cosines, and the score.
    """
    size = queries.shape[1]
    ends = np.cumsum([0, *map(len, vectors)])
    planes = np.empty((size, size, ends[-1]), np.float32)
    for query, found, (begin, end) in zip(queries, vectors, pairwise(ends), strict=True):
        single = found.reshape(-1, query.shape[1]).astype(np.float32, copy=False)
        planes[:, :, begin:end] = _product(query, single).reshape(size, end - begin, size).transpose(0, 2, 1)
    partners = _assigned(planes)
    cosines = matched(planes, partners)
    return ends, partners, cosines, np.exp(cosines).mean(0) - 1


def _with_metadata(best: Best, found: Found) -> Best:
    if found.metadata is None:
        return best
    texts = dict(zip(found.ids, found.metadata, strict=True))
    return best._replace(metadata=[texts[name] for name in best.ids])
