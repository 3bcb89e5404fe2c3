"""Captions with certain words, found and left out: what a model can do with words that it was never trained on."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from maxmatch.data.items import TEXT, Split, without_items
from maxmatch.text import split_into_words


def checked_words(words: Iterable[str], option: str) -> frozenset[str]:
    """The words as captions are divided into them: lower-cased, each a whole one. option: where they were given."""
    known = set()
    for word in words:
        (parts,) = split_into_words([word])
        if len(parts) != 1:
            raise ValueError(
                f"{option}: expected single words, but {word!r} is divided into {parts}. Give the one that matters."
            )
        known.add(parts[0])
    return frozenset(known)


def words_met(captions: Iterable[str], words: frozenset[str]) -> list[frozenset[str]]:
    """Which of the words each caption has, as `word_tokenizer` divides captions."""
    return [words.intersection(own) for own in split_into_words(captions)]


def hold_out(train: Split, words: Sequence[str], say: Callable[[str], object]) -> Split:
    """The training split without the captions that have any of the words, and without the images that have no other.

    An image with fewer captions than others brings those to a batch that it has; none is repeated. `say` is told how
    many are left out, and which of the words no caption has.
    """
    option = "data.hold_out_words"
    wanted, texts = checked_words(words, option), train[TEXT]
    of_each = words_met(texts.values, wanted)
    met = np.array([len(own) > 0 for own in of_each], np.bool_)
    if met.all():
        raise ValueError(f"{option}: every training caption has one of these words. Hold out fewer.")
    kept = without_items(train, TEXT, np.flatnonzero(met))
    say(
        f"held out: {int(met.sum())} of {len(texts)} training captions ({met.mean():.1%}), with any of {len(wanted)} "
        f"words, and {train.size - kept.size} of {train.size} images, which have no other caption"
    )
    unmet = wanted.difference(*of_each)
    if unmet:
        say(f"{option}: no training caption has {', '.join(sorted(unmet))}")
    return kept
