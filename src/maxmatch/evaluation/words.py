"""How well captions with certain words find their image, beside those without: of words that a model has never seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from maxmatch.evaluation.protocol import Gallery
from maxmatch.evaluation.retrieval import LEVELS
from maxmatch.evaluation.significance import Interval, Sums, resampled
from maxmatch.evaluation.summary import GALLERIES, Line
from maxmatch.evaluation.tables import Cell, Column, Table

_RECALLS = tuple(f"t2i_r{level}" for level in LEVELS)
_SEED = 0  # so that a result has the same intervals every time


@dataclass(frozen=True)
class Side:
    """Some captions as queries: how many, the share in per cent that found their image, and how sure that is."""

    captions: int
    recalls: Mapping[str, float]
    intervals: Mapping[str, Interval]


class Ratio(NamedTuple):
    """What part of a second model's R@10 a first one reaches, for the captions with the words."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ByWords:
    """A model's captions with any of the words, and those with none. ratio: of the first model's R@10 of the captions
    with the words to that of this one; None for the first one itself, and where this one finds nothing.
    """

    model: str
    similarity: str
    gallery: str
    met: Side
    others: Side
    ratio: Ratio | None


def by_words(lines: Sequence[Line], met: np.ndarray, draws: int = 1000) -> list[ByWords]:
    """Each line's figures for the captions with the words (met: True, one for each caption of the split) and without.

    With folds, a caption counts where it is a query: all captions of all folds together. Intervals are by bootstrap
    over the images that have such captions; draws = 0 for none.
    """
    for wanted, said in ((met, "has any"), (~met, "has none")):
        if not wanted.any():
            raise ValueError(f"words: no caption of the split {said} of the words: there is nothing to compare.")
    found = []
    for prefix in lines[0].result.galleries:
        first = lines[0].result.galleries[prefix]
        for number, line in enumerate(lines):
            galleries = line.result.galleries[prefix]
            having, others = (_side(galleries, wanted, draws) for wanted in (met, ~met))
            ratio = _ratio(first, galleries, met, draws) if number else None
            result = line.result
            found.append(ByWords(result.name, result.similarity, GALLERIES[prefix], having, others, ratio))
    return found


def _side(galleries: Sequence[Gallery], wanted: np.ndarray, draws: int) -> Side:
    sums = _sums(galleries, wanted)
    recalls = 100 * sums.found.sum(0) / sums.asked.sum(0)
    sure = {}
    if draws:
        drawn = resampled([sums], draws, np.random.default_rng(_SEED))
        sure = {name: _interval(drawn[:, n]) for n, name in enumerate(_RECALLS)}
    return Side(int(wanted.sum()), {name: float(recalls[n]) for n, name in enumerate(_RECALLS)}, sure)


def _ratio(first: Sequence[Gallery], second: Sequence[Gallery], met: np.ndarray, draws: int) -> Ratio | None:
    """Both models are measured on the same drawn images. Drawings in which the second finds nothing are left out."""
    one, other = (_sums(galleries, met) for galleries in (first, second))
    last = len(LEVELS) - 1
    hits = one.found[:, last].sum(), other.found[:, last].sum()
    if not hits[1]:
        return None
    if not draws:
        return Ratio(float(hits[0] / hits[1]), None, None)
    both = Sums(np.stack([one.found[:, last], other.found[:, last]], 1), one.asked[:, :2])
    drawn = resampled([both], draws, np.random.default_rng(_SEED))
    drawn = drawn[drawn[:, 1] > 0]
    return Ratio(float(hits[0] / hits[1]), *_interval(drawn[:, 0] / drawn[:, 1]))


def _interval(drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(low), float(high))


def _sums(galleries: Sequence[Gallery], wanted: np.ndarray) -> Sums:
    """The captions that found their image, by the image that they belong to; images without such captions left out."""
    ranks = np.concatenate([gallery.t2i.ranks.cpu().numpy() for gallery in galleries])
    groups = np.concatenate([gallery.text_groups.cpu().numpy() for gallery in galleries])
    assert len(ranks) == len(wanted), "one answer is needed for each caption"
    place = np.unique(groups[wanted], return_inverse=True)[1]
    found = np.stack([np.bincount(place, ranks[wanted] <= level) for level in LEVELS], 1)
    return Sums(found, np.repeat(np.bincount(place).astype(float)[:, None], len(LEVELS), 1))


def words_table(found: Sequence[ByWords]) -> Table:
    """The two sides beside each other, R@10 with its interval; and what part of a later line the first one reaches."""
    columns = [Column("model", "model"), Column("similarity", "similarity"), Column("images", "gallery")]
    for side, over in (("met", "text to image, with the words"), ("others", "without")):
        columns += [Column("captions", f"{side}_captions", ",.0f", over)]
        columns += [Column(f"R@{level}", f"{side}_t2i_r{level}", ".1f", over) for level in LEVELS]
        columns += [Column("95 %", f"{side}_interval", "s", over)]
    rows: list[list[Cell]] = []
    for one in found:
        row: list[Cell] = [one.model, one.similarity, one.gallery]
        for part in (one.met, one.others):
            interval = part.intervals.get(_RECALLS[-1])
            row += [part.captions, *part.recalls.values()]
            row.append(None if interval is None else f"{interval.low:.1f} to {interval.high:.1f}")
        rows.append(row)
    return Table(columns, rows, [line for one in found if (line := _said(found[0].model, one))])


def _said(first: str, one: ByWords) -> str | None:
    if one.ratio is None:
        return None
    value, low, high = one.ratio
    sure = "" if low is None else f" (95 %: {low:.0%} to {high:.0%})"
    where = "" if one.gallery == "all" else f", {one.gallery}"
    return f"R@10 of the captions with the words: {first} has {value:.0%}{sure} of that of {one.model}{where}"


def words_data(found: Sequence[ByWords], words: Sequence[str]) -> dict[str, Any]:
    """Everything, unrounded, for `--json`."""

    def side(part: Side) -> dict[str, Any]:
        sure = {name: list(interval) for name, interval in part.intervals.items()}
        return {"captions": part.captions, **part.recalls, **({"intervals": sure} if sure else {})}

    results = [
        {
            "model": one.model,
            "similarity": one.similarity,
            "images": one.gallery,
            "with": side(one.met),
            "without": side(one.others),
            **({} if one.ratio is None else {"first_to_this_r10": one.ratio._asdict()}),
        }
        for one in found
    ]
    return {"words": sorted(words), "results": results}
