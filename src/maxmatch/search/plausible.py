"""Whether anything in a folder fits a query: its best score beside the best scores of queries that nothing fits.

A score alone tells little: it depends on the model, the folder and how many words the query has. So words for what no
photo shows (`background.txt`: "inflation", "grammar") are searched for once, alone and joined, and the mean m and
spread d of their best scores are kept. A query fits if its best score is at least m + κ·d, and its list ends at a
smaller κ; m, d and κ are those for as many words as the query has.
"""

import hashlib
import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import JsonValue

from maxmatch.core.files import write_whole
from maxmatch.model.names import AnyModel, model_identity
from maxmatch.model.text import Words
from maxmatch.search.engine import Hit
from maxmatch.search.index_folder import read_origin
from maxmatch.search.set_index import SetIndex

FILE = "cut_off.json"
LEAST = 30
"""Photos, below which a folder's own background says nothing."""
# Chosen on training photos of COCO and validation photos of Flickr8k (benchmarks/nothing_fits.py): κ of a caption; of
# a single word in a folder of 1,000, by how much it grows with ten times as many photos, in which a thing is shown more
# clearly, and up to where that was measured; κ at which a list ends.
_CAPTION, _WORD, _PER_DECADE, _MEASURED, _END = 2.0, 3.5, 2.0, 1_000, 1.5
_PATTERNS = {
    1: "{}",
    2: "{} and {}",
    3: "{} and {} next to {}",
    6: "{} and {} next to {} with {} in front of {} and {}",
}
_PAIRS = 2**14  # that are scored at once: a search of more needs torch
_LARGE = 10_000  # items
_KEPT = 4  # cut-offs: a folder alone, and with others or without what is excluded
_CHANGED = 0.1  # share of photos after which the background is searched for again
_TEXT = "text"
_NO_CONTENT = frozenset(
    [
        *("a", "an", "the", "of", "in", "on", "at", "by", "to", "for", "from", "with", "without", "and", "or", "is"),
        *("are", "was", "be", "it", "its", "this", "that", "these", "those", "my", "our", "some"),
        *("near", "next", "behind", "under", "over", "between", "beside", "one", "two", "three", "four", "five", "no"),
        *("photo", "photos", "photograph", "picture", "pictures", "image", "images"),
    ]
)


class Limits(NamedTuple):
    """fits: the least score of a best photo that fits. ends: the least score of a photo that is listed."""

    fits: float
    ends: float


@dataclass(frozen=True)
class CutOff:
    """What scores mean in one index: mean and spread of the best scores of background queries, by their words."""

    items: int
    background: dict[int, tuple[float, float]]

    def limits(self, words: int) -> Limits:
        """For a query of so many words: m + κ·d, with κ from that of a single word to that of a caption."""
        mean, spread = (
            float(np.interp(words, list(self.background), [one[of] for one in self.background.values()]))
            for of in (0, 1)
        )
        single = _WORD + _PER_DECADE * math.log10(min(self.items, _MEASURED) / 1000)
        fits = _CAPTION + (single - _CAPTION) / max(words, 1) ** 2
        return Limits(mean + fits * spread, mean + min(fits, _END) * spread)


class Verdict(NamedTuple):
    """fits: whether anything fits; None: that cannot be told. ends: the score at which the list ends; None: nowhere."""

    fits: bool | None = None
    ends: float | None = None


def verdict(cut_off: CutOff | None, words: Words, hits: Sequence[Hit]) -> Verdict:
    """What is to be thought of the hits, best first, of a query of these words."""
    if cut_off is None:
        return Verdict()
    limits = cut_off.limits(len(content_words(words.known)))
    if not hits and is_understood(words):  # nothing passes a filter
        return Verdict(None, limits.ends)
    return Verdict(bool(hits) and hits[0].score >= limits.fits and is_understood(words), limits.ends)


def is_understood(words: Words) -> bool:
    """Whether more than half of the words that mean something are known, and at least one."""
    return len(content_words(words.known)) > len(content_words(words.unknown))


def content_words(words: Sequence[str]) -> list[str]:
    """Without those that mean nothing alone: "a", "with", "photo"."""
    return [word for word in words if word.lower() not in _NO_CONTENT]


def plausible(found: Sequence[Hit], verdict: Verdict) -> list[Hit]:
    """The hits up to where the list ends; none where nothing fits."""
    if verdict.fits is False:
        return []
    return [hit for hit in found if verdict.ends is None or hit.score >= verdict.ends]


def background(model: AnyModel) -> dict[int, list[str]]:
    """Background queries by how many words they have, made of those words of the list that a model knows."""
    listed = (files("maxmatch.search") / "background.txt").read_text(encoding="utf-8").split()
    words = model.known_words(*listed).known
    return {
        count: [
            pattern.format(*(words[(place * (2 * of + 1) + 37 * of) % len(words)] for of in range(count)))
            for place in range(len(words))
        ]
        for count, pattern in _PATTERNS.items()
    }


def calibrated(index: SetIndex, model: AnyModel) -> CutOff | None:
    """The cut-off of an index, as kept with it, else by searching for the background; None where that tells nothing
    (too few items, items that are texts, a model that reads no texts or too little of the background) or cannot be
    kept, since it takes as long as hundreds of searches.
    """
    items, origin = len(index), read_origin(index.folder)
    if items < LEAST or _TEXT not in model.set_sizes or (origin is not None and origin.modality == _TEXT):
        return None
    made_by = _origin(model)
    kept = _read(index.folder / FILE, made_by)
    for known in kept:
        if abs(known.items - items) <= _CHANGED * items:
            return known
    texts = background(model)
    if len(texts[1]) < LEAST or not os.access(index.folder, os.W_OK):
        return None
    cut_off = CutOff(items, {count: _best(index, model, some) for count, some in texts.items()})
    with suppress(OSError):  # a full disk: the next search does it again
        recent = [{"items": one.items, "by_words": one.background} for one in (cut_off, *kept)]
        write_whole(index.folder / FILE, json.dumps({**made_by, "kept": recent[:_KEPT]}))
    return cut_off


def forget(folder: Path) -> None:
    """Have the background searched for again: much of the index has changed."""
    with suppress(OSError):
        (folder / FILE).unlink(missing_ok=True)


def is_much(changed: int, items: int) -> bool:
    """Whether so many changes among so many items call for `forget`."""
    return changed > _CHANGED * items


def _best(index: SetIndex, model: AnyModel, texts: Sequence[str]) -> tuple[float, float]:
    """Mean and standard deviation of the best scores of texts in the index."""
    sets = model.encode_texts(texts, show_progress=False)
    # In a large index one scan for all of them is worth loading torch for; one for each would take minutes.
    at_once = max(1, _PAIRS // len(index)) if len(index) <= _LARGE else len(texts)
    best: list[float] = []
    for start in range(0, len(texts), at_once):
        best += [hits[0].score for hits in index.search(sets[start : start + at_once], k=1) if hits]
    return float(np.mean(best)), float(np.std(best))


def _origin(model: AnyModel) -> dict[str, JsonValue]:
    listed = (files("maxmatch.search") / "background.txt").read_bytes()
    return {"model": model_identity(model), "background": hashlib.sha256(listed).hexdigest()}


def _read(path: Path, made_by: dict[str, JsonValue]) -> list[CutOff]:
    """The cut-offs in a file, the last one first; none where they are of another model or background."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if any(found[name] != value for name, value in made_by.items()):
            return []
        cut_offs = [
            CutOff(int(one["items"]), {int(count): (float(m), float(d)) for count, (m, d) in one["by_words"].items()})
            for one in found["kept"]
        ]
        return [one for one in cut_offs if one.background.keys() == _PATTERNS.keys()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []
