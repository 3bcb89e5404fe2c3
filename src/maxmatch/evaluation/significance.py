"""How sure a figure is: intervals by bootstrap over images, and a paired test between two models.

What is drawn is a group: an image with all its captions, which succeed or fail together. The gallery stays as it is:
an interval tells how much a figure would change with other queries, not with other distractors. In the COCO 1K protocol
each fold is drawn separately, and the figures of the folds are averaged as in the result.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from maxmatch.evaluation.metrics import LEVELS, SearchRanks

RECALLS = tuple(f"{way}_r{level}" for way in ("i2t", "t2i") for level in LEVELS)
_BLOCK = 8 * 2**20  # numbers drawn at once


class Interval(NamedTuple):
    """The lower and the upper end of an interval."""

    low: float
    high: float


class Difference(NamedTuple):
    """How much higher the RSUM of a second model is than that of a first."""

    rsum: float
    low: float
    high: float
    p: float
    """How often a difference at least as large comes about where none is: two-sided, and at least 1 / (draws + 1)."""


class Sums(NamedTuple):
    """Of each group the queries that found their answer, by recall (groups, 6), and how many there were (groups, 6)."""

    found: np.ndarray
    asked: np.ndarray


def intervals(
    galleries: Sequence[SearchRanks], draws: int, generator: np.random.Generator, level: float = 0.95
) -> dict[str, Interval]:
    """The percentile interval of each recall and of RSUM, from `draws` resamplings of the images with repetition."""
    recalls = resampled([_sums(gallery) for gallery in galleries], draws, generator)
    drawn = np.concatenate([recalls, recalls.sum(1, keepdims=True)], 1)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {name: Interval(float(low[n]), float(high[n])) for n, name in enumerate((*RECALLS, "rsum"))}


def paired_test(
    first: Sequence[SearchRanks],
    second: Sequence[SearchRanks],
    draws: int,
    generator: np.random.Generator,
    level: float = 0.95,
) -> Difference:
    """The difference in RSUM of two models on the same data, image by image.

    The interval is by bootstrap: both models are measured on the same drawn images. p is by permutation: where the two
    are alike, swapping their answers for an image changes nothing but the sign of what it adds to the difference.
    """
    return paired_test_of_seeds([first], [second], draws, generator, level)


def paired_test_of_seeds(
    first: Sequence[Sequence[SearchRanks]],
    second: Sequence[Sequence[SearchRanks]],
    draws: int,
    generator: np.random.Generator,
    level: float = 0.95,
) -> Difference:
    """As `paired_test`, between two ways of training: each has the galleries of one model or several, of other seeds.

    What the seeds' models found for an image is averaged first. The same images are drawn for all of them: taken as so
    many images more, they would make the interval too narrow. It tells what other images would change, not what
    other seeds would: see `seeds_test`.
    """
    pairs = _averaged(first), _averaged(second)
    for one, other in zip(*pairs, strict=True):
        _check_same_queries(one, other)
    both = [
        Sums(np.concatenate([one.found, other.found], 1), np.concatenate([one.asked, other.asked], 1))
        for one, other in zip(*pairs, strict=True)
    ]
    drawn = resampled(both, draws, generator)
    differences = drawn[:, len(RECALLS) :].sum(1) - drawn[:, : len(RECALLS)].sum(1)
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    added = np.concatenate(  # what each image adds to the difference in RSUM
        [
            100 * ((other.found - one.found) / one.asked.sum(0)).sum(1) / len(pairs[0])
            for one, other in zip(*pairs, strict=True)
        ]
    )
    observed = float(added.sum())
    added = added[added != 0]
    larger = 0
    for count in _chunks(draws, len(added)):
        signs = generator.integers(0, 2, (count, len(added)), dtype=np.int8)
        larger += int((np.abs(2 * (signs @ added) - added.sum()) >= abs(observed) - 1e-9).sum())
    return Difference(observed, float(low), float(high), (1 + larger) / (1 + draws))


def seeds_test(first: Sequence[float], second: Sequence[float]) -> float | None:
    """How often a difference of means at least as large comes about between seeds alone: Welch's test, two-sided.

    Not paired: the same seed draws other numbers for another model. None where one side has fewer than two seeds, or
    neither side varies.
    """
    from scipy.stats import ttest_ind  # takes longer to import than most commands take to run

    if min(len(first), len(second)) < 2:
        return None
    if all(len(set(side)) == 1 for side in (first, second)):
        return None
    return float(ttest_ind(second, first, equal_var=False).pvalue)


def _averaged(models: Sequence[Sequence[SearchRanks]]) -> list[Sums]:
    """Of each gallery what was found, averaged over the models."""
    averaged = []
    for galleries in zip(*models, strict=True):
        sums = [_sums(gallery) for gallery in galleries]
        for other in sums[1:]:
            _check_same_queries(sums[0], other)
        averaged.append(Sums(np.mean([one.found for one in sums], 0), sums[0].asked))
    return averaged


def _check_same_queries(one: Sums, other: Sums) -> None:
    if not np.array_equal(one.asked, other.asked):
        raise ValueError("a paired test takes two models on the same data, but these asked different queries.")


def _sums(gallery: SearchRanks) -> Sums:
    """The recalls of a gallery, group by group."""
    sides = [
        (ranks.ranks.cpu().numpy(), groups.cpu().numpy())
        for ranks, groups in ((gallery.i2t, gallery.image_groups), (gallery.t2i, gallery.text_groups))
    ]
    numbers = np.unique(sides[0][1])  # a group left out has no number here
    found, asked = [], []
    for ranks, groups in sides:
        place = np.searchsorted(numbers, groups)
        for most in LEVELS:
            found.append(np.bincount(place, ranks <= most, len(numbers)))
            asked.append(np.bincount(place, minlength=len(numbers)).astype(float))
    return Sums(np.stack(found, 1), np.stack(asked, 1))


def resampled(galleries: Sequence[Sums], draws: int, generator: np.random.Generator) -> np.ndarray:
    """The recalls in per cent (draws, columns) of each drawing, averaged over the galleries."""
    if draws < 1:
        raise ValueError(f"draws: expected at least 1, got {draws}.")
    total = 0.0
    for sums in galleries:
        both = np.concatenate([sums.found, sums.asked], 1)
        added = np.concatenate([times @ both for times in _times(len(both), draws, generator)])
        columns = sums.found.shape[1]
        total = total + 100 * added[:, :columns] / added[:, columns:]
    return np.asarray(total) / len(galleries)


def _times(groups: int, draws: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each group is drawn (some draws, groups), of as many with repetition as there are."""
    for count in _chunks(draws, groups):
        drawn = generator.integers(0, groups, (count, groups))
        drawn += np.arange(count)[:, None] * groups
        yield np.bincount(drawn.ravel(), minlength=count * groups).reshape(count, groups).astype(float)


def _chunks(draws: int, width: int) -> Iterator[int]:
    most = max(1, _BLOCK // max(width, 1))
    for start in range(0, draws, most):
        yield min(most, draws - start)
