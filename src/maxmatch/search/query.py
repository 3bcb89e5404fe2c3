"""Queries of several parts: `"beach" + "dog" - "people"`. A part may have a weight: `+ 2 "dog"`."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from maxmatch.core.array_checks import Array
from maxmatch.search.engine import Hit
from maxmatch.search.filters import Condition
from maxmatch.search.rerank import scores_of
from maxmatch.search.set_index import SetIndex

MOST_PARTS = 8
LARGEST_WEIGHT = 10.0
_POOL = 10  # for each hit that is wanted so many of each part's best are weighed
_LEAST_POOL = 200
_PART = re.compile(
    r"""\s*(?P<sign>[+\-−–]?)\s*(?P<weight>\d{1,3}(?:\.\d{1,3})?)?\s*[*×]?\s*["“”](?P<text>[^"“”]*)["“”]\s*"""
)


class TextPart(NamedTuple):
    """A text of a query, and how much it counts; below zero: against."""

    text: str
    weight: float


def parse_query(text: str) -> list[TextPart]:
    """The parts of a query; a text that is not made of quoted parts is one part as it stands.

    ValueError where no part counts for anything, or there are too many.
    """
    parts, place = [], 0
    while place < len(text):
        found = _PART.match(text, place)
        if found is None or (place and not found["sign"]):
            return [TextPart(text, 1.0)]
        weight = min(float(found["weight"] or 1), LARGEST_WEIGHT) * (-1 if found["sign"] in tuple("-−–") else 1)
        if found["text"].strip() and weight:
            parts.append(TextPart(found["text"].strip(), weight))
        place = found.end()
    if len(parts) > MOST_PARTS:
        raise ValueError(f"query: expected at most {MOST_PARTS} parts, got {len(parts)}.")
    if text.strip() and not any(part.weight > 0 for part in parts):
        raise ValueError('query: expected at least one part that is looked for, as in "beach" - "people".')
    return parts or [TextPart(text, 1.0)]


def search_parts(
    index: SetIndex,
    sets: Sequence[Array],
    weights: Sequence[float],
    k: int,
    where: str | Condition | None = None,
) -> list[Hit]:
    """The k best by Σ weight · score of each part's set (L, D).

    Weighed are the best of each part that is looked for, ten times k and 200 at least: an item that is far down for
    every one of them is not found. The hits have no matches: there is one matching for each part.
    """
    assert len(sets) == len(weights)
    pool = max(_LEAST_POOL, _POOL * k)
    found: dict[str, Hit] = {}
    for part, weight in zip(sets, weights, strict=True):
        if weight > 0:
            found |= {hit.id: hit for hit in index.search(part[None], k=pool, where=where)[0]}
    if not found:
        return []
    stored = index.engine.fetch(list(found))
    place_of = {name: place for place, name in enumerate(stored.ids)}
    names = [name for name in found if name in place_of]  # one may have been removed meanwhile
    vectors = np.asarray(stored.vectors[[place_of[name] for name in names]], np.float32)
    items = vectors.reshape(len(names), index.manifest.set_size, index.manifest.dim)
    total = np.zeros(len(names), np.float32)
    for part, weight in zip(sets, weights, strict=True):
        total += np.float32(weight) * scores_of(np.asarray(part, np.float32), items, index.manifest.scoring)
    places = np.argsort(-total, kind="stable")[:k]
    return [
        Hit(names[place], value, metadata=found[names[place]].metadata)
        for value, place in zip(total[places].tolist(), places.tolist(), strict=True)
    ]
