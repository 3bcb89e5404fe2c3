"""Photos that a query finds by their name: every word of it is a word of the file's name or of a folder above it,
up to the folder that is searched, whose own name would match all of its photos.

A person chose these names, or a camera did; either way whoever types "rome" or "IMG_1234" means them. So such photos
come first, among themselves by their score. A part of a word is no word: "cat" does not match "category".
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from maxmatch.core.array_checks import Array
from maxmatch.search.engine import Hit
from maxmatch.search.filters import Condition, condition_of
from maxmatch.search.photos.library import JoinedEngine
from maxmatch.search.query import TextPart, weigh
from maxmatch.search.rerank import best_among, hits_of
from maxmatch.search.set_index import SetIndex

MOST_NAMED = 5_000
"""Where more photos match, their names tell nothing, and change no order."""
_WORD = re.compile(r"[^\W_]+")
_LETTERS = re.compile(r"(?<![^\W_])[^\W\d_]{3,}(?![^\W_])")
_ENDING = re.compile(r"\.[^./\n]*$", re.MULTILINE)
_ARTICLES = frozenset(("a", "an", "the"))
_SCAN = 65_536


def query_words(parts: Iterable[TextPart]) -> tuple[str, ...]:
    """The words of what a query looks for, without articles; none where it has no others."""
    words = dict.fromkeys(word for part in parts if part.weight > 0 for word in _words(part.text))
    return tuple(word for word in words if word not in _ARTICLES)


def is_named(path: str, words: Sequence[str]) -> bool:
    """Whether all words are words of a path, and not all of them of its ending ("jpg") alone."""
    return _is_named(folded(path), words)


class NameList:
    """Paths that are looked through for many queries: one text, which takes a tenth of the memory of many."""

    def __init__(self, paths: Iterable[str]) -> None:
        lines = [folded(path).replace("\n", " ") for path in paths]
        self._text = "\n".join(lines)
        self._starts = np.cumsum([0, *(len(line) + 1 for line in lines)])

        hashes = {hash(word[0]) for word in _WORD.finditer(self._text)}
        self._hashes = np.sort(np.fromiter(hashes, np.int64, len(hashes)))
        """Of all words: eight bytes each, where the words themselves would take a hundred."""

    def may_have(self, words: Sequence[str]) -> bool:
        """False where some word is in no path, so that no path has all of them, or where there are no words."""
        if not words or not len(self._hashes):
            return False
        wanted = np.fromiter(map(hash, words), np.int64, len(words))
        there = self._hashes.take(np.searchsorted(self._hashes, wanted), mode="clip") == wanted
        return bool(there.all())

    def places(self, words: Sequence[str]) -> list[int]:
        """Which of the paths have all words, as `is_named` tells."""
        found: list[int] = []
        rarest, at = max(words, key=len, default=""), 0
        while rarest and (at := self._text.find(rarest, at)) >= 0:
            place = int(np.searchsorted(self._starts, at, side="right")) - 1
            at = int(self._starts[place + 1])
            if _is_named(self._text[self._starts[place] : at - 1], words):
                found.append(place)
        return found

    def words(self, most: int = 400) -> list[str]:
        """Words that name some of the photos and not most of them, the most frequent first: no numbers, no endings of
        files.
        """
        counts = Counter(_LETTERS.findall(_ENDING.sub("", self._text)))
        limit = min(MOST_NAMED, max(1, (len(self._starts) - 1) // 2))
        return [word for word, count in counts.most_common() if count <= limit][:most]


def _is_named(folded: str, words: Sequence[str]) -> bool:
    if not words or not all(word in folded for word in words):  # most paths end here
        return False
    there = set(_WORD.findall(folded))
    stem = folded.rpartition(".")[0] or folded
    return all(word in there for word in words) and not set(_WORD.findall(stem)).isdisjoint(words)


def named_items(index: SetIndex, words: Sequence[str], where: str | Condition | None = None) -> list[str]:
    """The ids of an index that match by name; none where too many do."""
    if not words:
        return []
    scanned, path_of = index.engine.scan(_SCAN, condition_of(where), vectors=False), name_of(index)
    found = [name for block in scanned for name in block.ids if is_named(path_of(name), words)]
    return found if len(found) <= MOST_NAMED else []


def name_of(index: SetIndex) -> Callable[[str], str]:
    """From an id to what counts as the photo's name."""
    engine = index.engine
    return engine.path_in_folder if isinstance(engine, JoinedEngine) else str


def named_first(
    index: SetIndex, hits: Sequence[Hit], names: Sequence[str], sets: Sequence[Array], weights: Sequence[float], k: int
) -> list[Hit]:
    """The k best, with those of some names first. hits: the k best of all. sets, weights: the query's parts."""
    if not names:
        return list(hits)
    stored = index.engine.fetch(names, metadata=True)
    if len(sets) == 1:
        query = np.asarray(sets[0], np.float32)[None]
        first = hits_of(best_among(stored, query, k, index.manifest.scoring), index.engine)[0]
    else:
        first = weigh(index.manifest, stored, sets, weights, k)
    chosen = set(names)
    return (first + [hit for hit in hits if hit.id not in chosen])[:k]


def _words(text: str) -> list[str]:
    return _WORD.findall(folded(text))


def folded(text: str) -> str:
    """A text without differences of case, and of how accents are written."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFC", text).casefold()
