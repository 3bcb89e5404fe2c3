"""Two ways to the best items: score all of them, or those that the engine proposes."""

import json
import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from maxmatch.search.best import Best, best_of_all, best_of_each, places_of_best
from maxmatch.search.engine import Engine, Found
from maxmatch.search.hit import Hit, Match
from maxmatch.search.intake import checked_count
from maxmatch.search.manifest import Manifest, Tuning
from maxmatch.search.where import Condition

_SCAN_BYTES = 8 * 2**20
_BATCH_BYTES = 32 * 2**20
_AT_LEAST = 100
_TIMES_K = 10
_TIMES_K_HELD = 4  # twice k has all that is to be found, where slots meet in their order (docs/log.md)


STABLE = 0.9
"""From this share of true pairs on whose slots meet in their order, a flattened set is searched as one vector."""
_ALIGNED = ("maxmatch", "top_k", "chamfer", "smooth_chamfer", "maxsim")  # large where slot i is near slot i
_WORTH_IT = 0.5


class Settings(NamedTuple):
    """How many candidates, and with what effort they are looked for."""

    candidates: int
    effort: float


def reason_to_scan(manifest: Manifest, set_size: int) -> str | None:
    """Why candidates by one flattened vector would not do for queries of that size; None where they do."""
    if set_size != manifest.set_size:
        return f"the query's sets have {set_size} vectors, those of the index {manifest.set_size}."
    if manifest.similarity not in _ALIGNED:
        return f"the similarity {manifest.similarity!r} is not that of vectors in their order."
    if manifest.tuning is not None and manifest.tuning.real_queries:
        return None if manifest.tuning.recall >= _WORTH_IT else "too little was found in the last verify."
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
    tuning: Tuning | None, k: int, candidates: int | None, effort: float | None, held: bool = False
) -> Settings:
    """As given; else as measured, in proportion to k; else ten times k, a hundred at least. held: candidates are those
    of all inner products, so that four times k will do.
    """
    if candidates is not None and checked_count("candidates", candidates) < k:
        raise ValueError(f"candidates: expected at least k = {k}, got {candidates}.")
    if effort is not None and not effort > 0:
        raise ValueError(f"effort: expected a positive number, got {effort}.")
    if tuning is None:
        usual = Settings(max(_AT_LEAST, (_TIMES_K_HELD if held else _TIMES_K) * k), 1.0)
    else:
        usual = Settings(tuning.candidates * math.ceil(k / tuning.k), tuning.effort)
    return Settings(candidates or usual.candidates, effort or usual.effort)


def scan(engine: Engine, queries: np.ndarray, k: int, where: Condition | None, manifest: Manifest) -> list[Best]:
    """The k best among all items that pass."""
    block = max(1, _SCAN_BYTES // (4 * manifest.set_size * manifest.dim))
    return best_of_all(queries, engine.scan(block, where), k, manifest.similarity)


def by_candidates(
    engine: Engine, queries: np.ndarray, k: int, where: Condition | None, manifest: Manifest, settings: Settings
) -> list[Best]:
    """The k best among those that the engine proposes; all are scored for a query to which it proposes too few."""
    best: list[Best] = []
    at_once = max(1, _BATCH_BYTES // (4 * manifest.set_size * manifest.dim * settings.candidates))
    for start in range(0, len(queries), at_once):
        part = queries[start : start + at_once]
        choose = partial(places_of_best, part, k=k, similarity=manifest.similarity)
        found = engine.candidates(part.reshape(len(part), -1), settings.candidates, where, settings.effort, choose)
        best += best_of_each(part, [_unique(each) for each in found], k, manifest.similarity)
    short = [place for place, each in enumerate(best) if len(each.ids) < k]
    if short and engine.count(where) > min(len(best[place].ids) for place in short):
        for place, whole in zip(short, scan(engine, queries[short], k, where, manifest), strict=True):
            best[place] = whole
    return best


def _unique(found: Found) -> Found:
    """Every item once: an engine may name one twice while its index is being renewed."""
    if len(set(found.ids)) == len(found.ids):
        return found
    places = list({name: place for place, name in enumerate(found.ids)}.values())
    texts = None if found.metadata is None else [found.metadata[place] for place in places]
    return Found([found.ids[place] for place in places], found.added[places], found.vectors[places], texts)


def hits_of(best: Sequence[Best], engine: Engine) -> list[list[Hit]]:
    """What a search gives; metadata that did not come along is fetched. An item removed meanwhile is left out."""
    missing = sorted({name for each in best if each.metadata is None for name in each.ids})
    fetched = engine.metadata(missing) if missing else {}
    return [_hits(each, fetched) for each in best]


def _hits(best: Best, fetched: dict[str, str]) -> list[Hit]:
    texts = [fetched.get(name) for name in best.ids] if best.metadata is None else best.metadata
    scores, partners, cosines = best.scores.astype(np.float32).tolist(), best.partners.tolist(), best.cosines.tolist()
    hits = []
    for name, text, score, met, near in zip(best.ids, texts, scores, partners, cosines, strict=True):
        if text is not None:
            matches = [match for match in map(Match, range(len(met)), met, near) if match.item_slot >= 0]
            hits.append(Hit(name, score, matches, json.loads(text)))
    return hits
