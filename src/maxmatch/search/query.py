"""Queries of several parts: `beach -people`, `"beach" + "dog" - "two people"`, with weights: `+ 2 "dog"`; and what is
shown of what they find.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from maxmatch.core.array_checks import Array, UsageError
from maxmatch.model.text import Words
from maxmatch.search.engine import Found, Hit
from maxmatch.search.filters import Condition, condition_of
from maxmatch.search.folding import Sketcher, group_near_duplicates
from maxmatch.search.index_folder import Manifest, as_sets
from maxmatch.search.plausible import Verdict, content_words, plausible
from maxmatch.search.rerank import Best, scores_of
from maxmatch.search.set_index import SetIndex

MOST_PARTS = 8
LARGEST_WEIGHT = 10.0
_POOL = 10  # for each hit that is wanted so many of each part's best are weighed
_LEAST_POOL = 200
_BLOCK = 1_024
_FOR = (None, "+")
_TOKEN = re.compile(
    r"""(?:(?<![^\s"“”])(?P<sign>[+\-−–]) | ^)  # + 2 "dog"; the first needs no sign
        \s*(?P<weight>[\d.][^\s"“”*×]*)?\s*[*×]?\s* ["“”](?P<text>[^"“”]*)["“”] (?(sign) | (?=\s*(?:[+\-−–*×]|$)))
    | (?<!\S)[\-−–](?P<against>[^\W\d_][^\s"“”]*)  # -people
    | ["“”][^"“”]*["“”]  # quotes within a text
    """,
    re.VERBOSE,
)
_STRAY = re.compile(r"(?<!\S)[+\-−–*×]\S*")


class TextPart(NamedTuple):
    """A text of a query, and how much it counts; below zero: against."""

    text: str
    weight: float


def parse_query(text: str, beside_picture: bool = False) -> list[TextPart]:
    """The parts of a query: words, then quoted parts with a sign or a weight, and words after a minus (`-people`).

    beside_picture: a picture is looked for, too, and the text may only leave out. UsageError where quotes do not pair
    up, a weight is impossible, no part is looked for, or there are too many.
    """
    text = text.strip()
    if len(re.findall('["“”]', text)) % 2:
        raise UsageError(f"query: {text!r:.60} has an odd number of quotes. Close the last one, or leave it out.")
    parts, words, place, quoted = [], "", 0, False
    for found in _TOKEN.finditer(text):
        if found["against"] is not None:
            parts.append(TextPart(found["against"].rstrip(".,;:!?)"), -1.0))
        elif found["text"] is not None:
            parts.append(
                TextPart(found["text"].strip(), _weight(found["weight"]) * (1 if found["sign"] in _FOR else -1))
            )
            quoted = True
        else:
            continue
        words, place = words + text[place : found.start()], found.end()
    words += text[place:]
    stray = _STRAY.search(words) if quoted else None
    if stray is not None:
        raise UsageError(f'query: expected a text in quotes after {stray[0]!r:.20}, as in + "dog" or + 2 "dog".')
    if parts:
        words = " ".join(words.split())
    parts = [part for part in (TextPart(words, 1.0), *parts) if part.text and part.weight]
    if len(parts) > MOST_PARTS:
        raise UsageError(f"query: expected at most {MOST_PARTS} parts, got {len(parts)}.")
    if text and not beside_picture and not any(part.weight > 0 for part in parts):
        raise UsageError("query: expected at least one part that is looked for, as in beach -people.")
    return parts or [TextPart(text, 1.0)]


def unknown_parts(
    parts: Sequence[TextPart], words_of: Callable[[str], Words], beside_picture: bool = False
) -> list[TextPart]:
    """The parts to leave out of a query of several: those of which the model knows no word that means something, and
    whose vectors are those of any other such text. None where nothing would be left to look for.

    words_of: the known and unknown words of a text. beside_picture: a picture is looked for, too.
    """
    if len(parts) + beside_picture < 2:
        return []
    unknown = [part for part in parts if not _is_known(words_of(part.text))]
    others = any(part.weight > 0 for part in parts if part not in unknown)
    return unknown if others or beside_picture else []


def _is_known(words: Words) -> bool:
    return bool(content_words(words.known)) or bool(words.known and not words.unknown)


def _weight(text: str | None) -> float:
    try:
        weight = float(text or 1)
    except ValueError:
        weight = -1.0
    if not 0 <= weight <= LARGEST_WEIGHT:
        raise UsageError(
            f'query: weight {text!r:.20}: expected a number from 0 to {LARGEST_WEIGHT:g}, as in + 2.5 "dog".'
        )
    return weight


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
    stored = index.engine.fetch(list(found))  # without one that was removed meanwhile
    place_of = {name: place for place, name in enumerate(stored.ids)}
    total = total_scores(index.manifest, stored, sets, weights)
    names = [name for name in found if name in place_of]
    ordered = total[[place_of[name] for name in names]]
    places = np.argsort(-ordered, kind="stable")[:k]
    return [
        Hit(names[place], value, metadata=found[names[place]].metadata)
        for value, place in zip(ordered[places].tolist(), places.tolist(), strict=True)
    ]


def rank_parts(
    index: SetIndex, sets: Sequence[Array], weights: Sequence[float], where: str | Condition | None = None
) -> Best:
    """All items that pass, best first: by Σ weight · score of each part's set (L, D) if there are several; without
    metadata, and for several parts without matches.
    """
    if len(sets) == 1:
        return index.rank(sets[0], where)
    ids: list[str] = []
    totals, added = [np.empty(0, np.float32)], [np.empty(0, np.int64)]
    for block in index.engine.scan(_BLOCK, condition_of(where)):
        ids += block.ids
        added.append(np.array(block.added))  # a view would keep all of the block in memory
        totals.append(total_scores(index.manifest, block, sets, weights))
    total = np.concatenate(totals)
    order = np.lexsort((np.concatenate(added), -total))
    none = np.empty((len(ids), 0))
    return Best([ids[place] for place in order.tolist()], total[order], none, none)


def weigh(manifest: Manifest, stored: Found, sets: Sequence[Array], weights: Sequence[float], k: int) -> list[Hit]:
    """The k best of stored items, which come with their metadata, by Σ weight · score of each part's set (L, D)."""
    total = total_scores(manifest, stored, sets, weights)
    texts = stored.metadata or []
    return [
        Hit(stored.ids[place], float(total[place]), metadata=json.loads(texts[place]))
        for place in np.lexsort((stored.added, -total))[:k].tolist()
    ]


def total_scores(manifest: Manifest, stored: Found, sets: Sequence[Array], weights: Sequence[float]) -> np.ndarray:
    """Σ weight · score of each part's set (L, D) with each of the stored items, (n,)."""
    items = as_sets(manifest, stored.vectors)
    total = np.zeros(len(stored.ids), np.float32)
    for part, weight in zip(sets, weights, strict=True):
        total += np.float32(weight) * scores_of(np.asarray(part, np.float32), items, manifest.scoring)
    return total


_SORTED = 500  # of the most relevant, when sorted by date
_MARGIN = 8  # more than is shown, for near-duplicates


class Answer(NamedTuple):
    """groups: what is shown, each with its near-duplicates, best first. ended: whether more was found, which is not
    plausible.
    """

    groups: list[list[Hit]]
    verdict: Verdict
    ended: bool


def answered(
    index: SetIndex,
    sets: Sequence[Array],
    weights: Sequence[float],
    k: int,
    where: str | Condition | None = None,
    exact: bool = False,
    *,
    judge: Callable[[Sequence[Hit]], Verdict] = lambda hits: Verdict(),
    min_score: float | None = None,
    first: Callable[[list[Hit], int], list[Hit]] = lambda hits, k: hits,
    by_date: bool = False,
    fold: bool = False,
) -> Answer:
    """The k best for the parts' sets (L, D). judge: what to think of the hits. min_score: ends the list in its place.
    first: puts those before them that come first in any case, k in all. by_date: newest first, among the 500 most
    relevant. fold: near-duplicates as one.
    """
    wanted = max(k, _SORTED) if by_date else k + _MARGIN * fold
    while True:
        if len(sets) == 1:
            found = index.search(sets[0][None], wanted, where, exact)[0]
        else:
            found = search_parts(index, sets, weights, wanted, where)
        verdict = judge(found)
        kept = plausible(found, verdict if min_score is None else Verdict(None, min_score))
        listed = first(kept, wanted)
        if by_date:  # before near-duplicates are joined, so that the newest stands for them
            listed.sort(key=_date, reverse=True)
        groups = _folded(index, listed) if fold else [[hit] for hit in listed]
        if by_date or len(groups) >= k or len(kept) < wanted:
            break
        wanted *= 2
    return Answer(groups[:k], verdict, len(groups) < k and len(kept) < len(found))


def _folded(index: SetIndex, hits: Sequence[Hit]) -> list[list[Hit]]:
    stored = index.engine.fetch([hit.id for hit in hits]) if hits else None
    if stored is None or not stored.ids:
        return [[hit] for hit in hits]
    sketches = dict(zip(stored.ids, Sketcher(stored.vectors.shape[1])(stored.vectors), strict=True))
    return [[hits[place] for place in group] for group in group_near_duplicates([hit.id for hit in hits], sketches)]


def _date(hit: Hit) -> str:
    known = hit.metadata.get("taken") or hit.metadata.get("date")
    return known if isinstance(known, str) else ""
