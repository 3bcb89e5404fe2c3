"""The best items of each query: all of them scored, or the candidates that the engine proposes."""

import gc
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from maxmatch.core.array_checks import MAX_SET_SIZE
from maxmatch.core.ragged_array import RaggedArray
from maxmatch.matching import SetSimilarity
from maxmatch.matching.numpy_backend import (
    LARGEST,
    assign,
    cosine_planes,
    matched,
    mean_exp,
    product_in_this_thread,
)
from maxmatch.search.engine import CandidateOptions, Engine, Found, Hit, Match, metadata_of
from maxmatch.search.filters import Condition
from maxmatch.search.index_folder import Manifest, Tuning, checked_count

_ROUNDING = 1e-6  # of a score: how much two ways to compute it differ, but for matchings that are as good
_FEW = 2**14  # pairs that NumPy scores as fast as torch does, which takes seconds to load
_decode = json.JSONDecoder().raw_decode  # of texts as `json.dumps` writes them a third of `json.loads`
_new = tuple.__new__  # of a Match half of `Match`
_WORTH_A_PAUSE = 1000  # hits


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


NONE = Best([], np.empty(0, np.float32), np.empty((0, 0), np.int64), np.empty((0, 0), np.float32))


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


def _scored(queries: np.ndarray, found: Found, k: int, similarity: SetSimilarity) -> _Running:
    """The k best of each query among the same items."""
    order = np.argsort(found.added, kind="stable")  # so that equal scores come in this order
    in_order = bool((order[1:] > order[:-1]).all())
    vectors = np.asarray(found.vectors if in_order else found.vectors[order], dtype=np.float32)
    sets = vectors.reshape(len(order), -1, queries.shape[2])
    if len(queries) * len(sets) <= _FEW and max(queries.shape[1], sets.shape[1]) <= LARGEST:
        scores = similarity.of_planes(cosine_planes(queries, sets)).reshape(len(queries), len(sets))
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        scores = np.take_along_axis(scores, chosen, 1)
    else:
        import torch

        from maxmatch.core.checks import as_tensor
        from maxmatch.matching.scoring import top_hits

        hits = top_hits(torch.from_numpy(queries), as_tensor(sets), k, similarity)
        scores, chosen = hits.scores.numpy(), hits.indices.numpy()
    products = queries[:, None] @ sets[chosen].transpose(0, 1, 3, 2)
    planes = products.transpose(2, 3, 0, 1).reshape(queries.shape[1], sets.shape[1], -1)
    partners = _met(planes, similarity)
    by_hit = (*chosen.shape, queries.shape[1])
    places = order[chosen]
    ids = np.array(found.ids, object)[places]
    cosines = matched(planes, partners)
    return _Running(scores, found.added[places], ids, partners.T.reshape(by_hit), cosines.T.reshape(by_hit))


def _met(planes: np.ndarray, similarity: SetSimilarity) -> np.ndarray:
    """Which slot each slot of a query meets, (L, pairs): as the similarity fixes it, else by the best matching."""
    rows, _, pairs = planes.shape
    return np.tile(np.arange(rows)[:, None], (1, pairs)) if similarity.in_order else _assigned(planes)


def _assigned(planes: np.ndarray) -> np.ndarray:
    """The matching of each pair, (L, pairs): by NumPy, which gives the same as torch and needs not load it, where sets
    are small enough for it.
    """
    if max(planes.shape[:2]) <= LARGEST:
        starts = range(0, max(1, planes.shape[2]), _FEW)
        return np.concatenate([assign(planes[:, :, start : start + _FEW]) for start in starts], 1)
    import torch

    from maxmatch.matching.assignment import assign_planes

    return assign_planes(torch.from_numpy(planes)).numpy()


def best_of_each(queries: np.ndarray, candidates: Sequence[Found], k: int, similarity: SetSimilarity) -> list[Best]:
    """The k best of each query (n, K, D) among its own candidates."""
    ends, planes = _planes(queries, [found.vectors for found in candidates])
    partners = _met(planes, similarity)
    cosines = matched(planes, partners)
    scores = mean_exp(cosines) if similarity.fast else similarity.of_planes(planes)
    best = []
    for found, (begin, end) in zip(candidates, pairwise(ends), strict=True):
        order = np.lexsort((found.added, -scores[begin:end]))[:k]
        rows = begin + order
        ids = [found.ids[place] for place in order]
        texts = None if found.metadata is None else [found.metadata[place] for place in order]
        best.append(Best(ids, scores[rows], partners[:, rows].T, cosines[:, rows].T, texts))
    return best


def best_of_rows(
    planes: np.ndarray, real: np.ndarray, k: int, similarity: SetSimilarity
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The k best of each query among its own candidates, by their cosines (K, K, n·m): where they are, their scores,
    the slots that met and their cosines, (n, k) and (n, k, K). Candidates are in the order in which they were added.

    real: (n, m); the others come last, with a score of −inf.
    """
    partners = _met(planes, similarity)
    cosines = matched(planes, partners)
    scores = (mean_exp(cosines) if similarity.fast else similarity.of_planes(planes)).reshape(real.shape)
    scores = np.where(real, scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    met, of = (
        np.take_along_axis(each.T.reshape(*real.shape, -1), order[:, :, None], 1) for each in (partners, cosines)
    )
    return order, np.take_along_axis(scores, order, 1), met, of


def places_of_best(
    queries: np.ndarray, vectors: list[np.ndarray], k: int, similarity: SetSimilarity
) -> list[np.ndarray]:
    """The places of the k best of each query (n, K, D) among its own candidates (m, K·D), and of those with a score as
    high as the last of them.
    """
    ends, planes = _planes(queries, vectors)
    scores = _scores(planes, similarity)
    return [_highest(scores[begin:end], k) for begin, end in pairwise(ends)]


def scores_of(query: np.ndarray, sets: np.ndarray | RaggedArray, similarity: SetSimilarity) -> np.ndarray:
    """The scores (n,) of one query (L, D) with sets (n, K, D), or with sets of any size."""
    if isinstance(sets, RaggedArray):
        from maxmatch.matching.scoring import score_matrix

        return score_matrix(query[None], sets, similarity)[0].numpy()
    return _scores(cosine_planes(query[None], sets), similarity)


def _scores(planes: np.ndarray, similarity: SetSimilarity) -> np.ndarray:
    if not similarity.fast:
        return similarity.of_planes(planes)
    rows, columns = planes.shape[:2]
    planes = planes if rows <= columns else planes.transpose(1, 0, 2)  # the smaller set is matched completely
    return mean_exp(matched(planes, _assigned(planes)))


def _highest(scores: np.ndarray, k: int) -> np.ndarray:
    if len(scores) <= k:
        return np.arange(len(scores))
    last = np.partition(scores, -k)[-k]
    return np.flatnonzero(scores >= last - _ROUNDING * max(1, abs(last)))


def _planes(queries: np.ndarray, vectors: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The cosines (K, K, pairs) of every query with its own candidates, and where each query's pairs begin and end."""
    size, width = queries.shape[1:]
    ends = np.cumsum([0, *map(len, vectors)])
    planes = np.empty((size, size, ends[-1]), np.float32)
    for query, found, (begin, end) in zip(queries, vectors, pairwise(ends), strict=True):
        product = product_in_this_thread(query, found.reshape(-1, width).astype(np.float32, copy=False).T)
        planes[:, :, begin:end] = product.reshape(size, end - begin, size).transpose(0, 2, 1)
    return ends, planes


_SCAN_BYTES = 8 * 2**20
_BATCH_BYTES = 32 * 2**20
_AT_LEAST = 100
_TIMES_K = 10
_MANY, _SHARE = 1_000, 0.1  # candidates: of 100,000 photos 40,000 take 4 s and 0.8 GB, a scan 1.5 s and 0.2
_TIMES_K_IN_MEMORY = 4  # twice k has all that is to be found, where slots meet in their order (docs/log.md)


STABLE = 0.9
"""From this share of true pairs on whose slots meet in their order, a flattened set is searched as one vector."""
_WORTH_IT = 0.5


class Settings(NamedTuple):
    """How many candidates, and with what effort they are looked for."""

    candidates: int
    effort: float


def reason_to_scan(manifest: Manifest, set_size: int | None) -> str | None:
    """Why candidates by one flattened vector would not do for queries of that size; None where they do."""
    if manifest.set_size is None:
        return "sets of any size have no one vector that stands for them."
    if set_size != manifest.set_size:
        return (
            f"queries of {set_size} vectors are compared with sets of {manifest.set_size}, which always takes a scan."
        )
    single = set_size == 1  # of single vectors every similarity grows with their cosine
    if not (manifest.scoring.one_vector or single):
        return f"the similarity {manifest.similarity!r} is not that of vectors in their order."
    if manifest.tuning is not None and manifest.tuning.real_queries:
        return None if manifest.tuning.recall >= _WORTH_IT else "too little was found in the last verify."
    if manifest.scoring.in_order or single:  # slot i meets slot i in any case
        return None
    if manifest.stability is None:
        return (
            "it is not known whether slot i of a query meets slot i of its item. "
            "Measure it with index.verify(queries), or give the model or stability=… when making an index."
        )
    if manifest.stability < STABLE:
        return (
            f"slot i of a query meets slot i of its item in {manifest.stability:.0%} of pairs only "
            f"(candidates need {STABLE:.0%}). Train with GD and ISD for stable slots."
        )
    return None


def settings_for(
    tuning: Tuning | None, k: int, candidates: int | None, effort: float | None, in_memory: bool = False
) -> Settings:
    """As given; else as measured, in proportion to k; else ten times k, and at least a hundred. in_memory: candidates
    are those of all inner products, so that four times k are enough.
    """
    if candidates is not None and checked_count("candidates", candidates) < k:
        raise ValueError(f"candidates: expected at least k = {k}, got {candidates}.")
    if effort is not None and not effort > 0:
        raise ValueError(f"effort: expected a positive number, got {effort}.")
    if tuning is None:
        usual = Settings(max(_AT_LEAST, (_TIMES_K_IN_MEMORY if in_memory else _TIMES_K) * k), 1.0)
    else:
        usual = Settings(tuning.candidates * math.ceil(k / tuning.k), tuning.effort)
    return Settings(candidates or usual.candidates, effort or usual.effort)


def scan(
    engine: Engine, queries: np.ndarray | RaggedArray, k: int, where: Condition | None, manifest: Manifest
) -> list[Best]:
    """The k best of each query among all items that pass, block after block. Queries are (n, L, D), or of any size
    where the items are.
    """
    if manifest.set_size is None or isinstance(queries, RaggedArray):
        assert isinstance(queries, RaggedArray)
        return _scan_any_size(engine, queries, k, where, manifest)
    count, slots, _ = queries.shape
    best = _Running(
        np.empty((count, 0), np.float32),
        np.empty((count, 0), np.int64),
        np.empty((count, 0), object),
        np.empty((count, 0, slots), np.int64),
        np.empty((count, 0, slots), np.float32),
    )
    size = min(_FEW, max(1, _SCAN_BYTES // (4 * manifest.set_size * manifest.dim)))
    for block in engine.scan(size, where):
        if block.ids:
            best = _merged(best, _scored(queries, block, k, manifest.scoring), k)
    return _best(best)


def rank_all(engine: Engine, query: np.ndarray, where: Condition | None, manifest: Manifest) -> Best:
    """All items that pass, best first for one query (L, D); without metadata."""
    size = min(_FEW, max(1, _SCAN_BYTES // (4 * (manifest.set_size or 1) * manifest.dim)))
    parts = [
        _scored(query[None], block, len(block.ids), manifest.scoring) for block in engine.scan(size, where) if block.ids
    ]
    if not parts:
        return NONE
    scores, added, ids, partners, cosines = (np.concatenate(values, 1)[0] for values in zip(*parts, strict=True))
    order = np.lexsort((added, -scores))
    return Best(ids[order].tolist(), scores[order], partners[order], cosines[order])


def best_among(items: Found, queries: np.ndarray, k: int, similarity: SetSimilarity) -> list[Best]:
    """The k best of each query (n, L, D) among the same items."""
    return _best(_scored(queries, items, k, similarity)) if items.ids else [NONE] * len(queries)


def _best(running: _Running) -> list[Best]:
    rows = zip(running.ids, running.scores, running.partners, running.cosines, strict=True)
    return [Best(ids.tolist(), scores, partners, cosines) for ids, scores, partners, cosines in rows]


class _Kept(NamedTuple):
    """An item among the best of a query so far, and what the query's vectors met in it."""

    score: float
    added: int
    id: str
    place: int
    """In the block it came with, until it is known whether it stays."""
    partners: np.ndarray | None = None
    cosines: np.ndarray | None = None


def _scan_any_size(
    engine: Engine, queries: RaggedArray, k: int, where: Condition | None, manifest: Manifest
) -> list[Best]:
    """`scan` of sets of any size, by all pairs of a block at once."""
    from maxmatch.matching.scoring import top_hits

    best: list[list[_Kept]] = [[] for _ in queries]
    for block in engine.scan(_FEW, where):
        if not block.ids:
            continue
        order = np.argsort(block.added, kind="stable")  # so that equal scores come in this order
        sets = block.vectors.divided(manifest.dim)
        sets = sets if bool((order[1:] > order[:-1]).all()) else sets.at(order)
        hits = top_hits(queries, sets, k, manifest.scoring)
        for number, (query, scores, places) in enumerate(
            zip(queries, hits.scores.tolist(), hits.indices.tolist(), strict=True)
        ):
            new = [
                _Kept(score, int(block.added[order[place]]), block.ids[order[place]], place)
                for score, place in zip(scores, places, strict=True)
            ]
            merged = sorted([*best[number], *new], key=lambda one: (-one.score, one.added))[:k]
            best[number] = [
                one if one.partners is not None else _with_partners(one, query, sets[one.place], manifest.scoring)
                for one in merged
            ]
    return [_as_best(kept, len(query)) for kept, query in zip(best, queries, strict=True)]


def _with_partners(kept: _Kept, query: np.ndarray, item: np.ndarray, similarity: SetSimilarity) -> _Kept:
    """By maxsim the best of each of the query's vectors, else the best matching."""
    cosines = product_in_this_thread(query, np.asarray(item, np.float32).T)
    if similarity.name == "maxsim":
        partners = cosines.argmax(1)
    elif max(cosines.shape) <= MAX_SET_SIZE:
        partners = _assigned(cosines[:, :, None])[:, 0]
    else:
        from scipy.optimize import linear_sum_assignment

        rows, columns = linear_sum_assignment(cosines, maximize=True)
        partners = np.full(len(query), -1)
        partners[rows] = columns
    return kept._replace(partners=partners, cosines=matched(cosines[:, :, None], partners[:, None])[:, 0])


def _as_best(kept: Sequence[_Kept], size: int) -> Best:
    shape = len(kept), size
    partners = np.array([one.partners for one in kept], np.int64).reshape(shape)
    cosines = np.array([one.cosines for one in kept], np.float32).reshape(shape)
    return Best([one.id for one in kept], np.array([one.score for one in kept], np.float32), partners, cosines)


def by_candidates(
    engine: Engine,
    queries: np.ndarray,
    k: int,
    where: Condition | None,
    manifest: Manifest,
    settings: Settings,
    metadata: bool = True,
) -> list[Best]:
    """The k best among those that the engine proposes; all are scored for a query to which it proposes too few. So many
    candidates that reading all items in order is less work are not asked for. metadata: whether they will be asked for.
    """
    assert manifest.set_size is not None
    if settings.candidates > _MANY and not engine.in_memory and settings.candidates > _SHARE * engine.count():
        return scan(engine, queries, k, where, manifest)
    best: list[Best] = []
    at_once = max(1, _BATCH_BYTES // (4 * manifest.set_size * manifest.dim * settings.candidates))
    for start in range(0, len(queries), at_once):
        part = queries[start : start + at_once]
        choose = partial(places_of_best, part, k=k, similarity=manifest.scoring)
        flat = part.reshape(len(part), -1)
        options = CandidateOptions(settings.effort, k, choose, metadata)
        found = engine.candidates(flat, settings.candidates, where, options)
        if found is None:  # another process has removed most items meanwhile
            best += scan(engine, part, k, where, manifest)
            continue
        best += best_of_each(part, [_unique(each) for each in found], k, manifest.scoring)
    short = [place for place, each in enumerate(best) if len(each.ids) < k]
    if short and engine.count(where) > min(len(best[place].ids) for place in short):
        for place, whole in zip(short, scan(engine, queries[short], k, where, manifest), strict=True):
            best[place] = whole
    return best


def _unique(found: Found) -> Found:
    """Every item once: an engine may name one twice while its index is being renewed."""
    if len(set(found.ids)) == len(found.ids):
        return found
    return found.at(list({name: place for place, name in enumerate(found.ids)}.values()))


def hits_of(best: Sequence[Best], engine: Engine) -> list[list[Hit]]:
    """What a search gives; metadata that did not come along is fetched. An item removed meanwhile is left out."""
    missing = sorted({name for each in best if each.metadata is None for name in each.ids})
    fetched = metadata_of(engine, missing) if missing else {}
    with _garbage_kept(sum(len(each.ids) for each in best) >= _WORTH_A_PAUSE):
        return [_hits(each, fetched) for each in best]


@contextmanager
def _garbage_kept(pause: bool) -> Iterator[None]:
    """Without the garbage collector, which would look through all objects of the program again and again while many
    new ones are made and none is left. It takes two thirds of the time.
    """
    pause = pause and gc.isenabled()
    if pause:
        gc.disable()
    try:
        yield
    finally:
        if pause:
            gc.enable()


def _hits(best: Best, fetched: Mapping[str, str]) -> list[Hit]:
    texts = map(fetched.get, best.ids) if best.metadata is None else best.metadata
    scores = best.scores.astype(np.float32).tolist()
    matches = map(matches_of, best.partners.tolist(), best.cosines.tolist())
    rows = zip(best.ids, scores, matches, texts, strict=True)
    return [Hit(name, score, met, _decode(text)[0]) for name, score, met, text in rows if text is not None]


def matches_of(partners: list[int], cosines: list[float]) -> list[Match]:
    """What each slot of a query met in one item, without those that met none."""
    return [_new(Match, met) for met in zip(range(len(partners)), partners, cosines, strict=True) if met[1] >= 0]
