"""Models measured and compared: intervals by bootstrap over images, and paired tests between models.

What is drawn is a group: an image with all its captions, which succeed or fail together. The gallery stays as it is:
an interval tells how much a figure would change with other queries, not with other distractors. In the COCO 1K protocol
each fold is drawn separately, and the figures of the folds are averaged as in the result.

Every measure that is a mean over queries can be resampled and tested, and RSUM, the sum of six of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from maxmatch.evaluation.measures import (
    Measures,
    QueryValues,
    beyond_rsum,
    mean_measures,
    parts_of,
    query_values,
    set_measures,
)
from maxmatch.evaluation.metrics import (
    FOLD_SIZE,
    GALLERIES,
    IMAGE_TEXT,
    LEVELS,
    MAX_MEMORY,
    EvaluatedModel,
    ModalityPair,
    NotCoco,
    ProtocolName,
    Result,
    SearchRanks,
    check_members,
    chosen,
    evaluate,
    extended,
    load_metrics,
    scores_of,
)

SEED = 0
"""For all that is drawn here, so that a result has the same intervals every time."""
_BLOCK = 8 * 2**20  # numbers drawn at once


class Interval(NamedTuple):
    """The lower and the upper end of an interval."""

    low: float
    high: float


class Difference(NamedTuple):
    """How much higher a measure of a second model is than that of a first."""

    value: float
    low: float
    high: float
    p: float
    """How often a difference at least as large comes about where none is: two-sided, and at least 1 / (draws + 1)."""


@dataclass(frozen=True)
class ResultLine:
    """A result with its intervals, by the prefix of the protocol's figures."""

    result: Result
    intervals: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    against_first: Mapping[str, Mapping[str, Difference]] = field(default_factory=dict)
    """How each measure differs from that of the first line; empty for the first one itself."""


def measure(
    teams: Sequence[Sequence[EvaluatedModel]],
    pair: ModalityPair = IMAGE_TEXT,
    protocol: ProtocolName = "auto",
    draws: int = 1000,
    max_memory: int = MAX_MEMORY,
    fold_size: int = FOLD_SIZE,
    extended_coco: bool = True,
    measures: Measures = "rsum",
) -> tuple[list[ResultLine], list[str]]:
    """A line for each team, of one model or of an ensemble, with intervals and a test against the first; and notes.

    draws: of images, for both; 0 for none. extended_coco: also CxC and ECCV Caption, with the protocol "coco". All
    teams must hold the same items. measures: "all" for those beyond RSUM, too (`maxmatch.evaluation.measures`).
    """
    first = teams[0][0]
    check_members([first, *(member for team in teams for member in team)], pair)
    coco = chosen(protocol, first.encoded.groups[pair[0]], fold_size, first.encoded.notes.get("groups")) == "coco"
    metrics, notes = None, []
    if coco and extended_coco and pair == IMAGE_TEXT:
        try:
            metrics = load_metrics()
        except ImportError as error:
            notes = [str(error)]
    results = []
    for team in teams:
        scores = scores_of(team, pair, max_memory)
        more = measures == "all"
        result = evaluate(team, pair=pair, protocol=protocol, scores=scores, fold_size=fold_size, pairs=more)
        if more:
            result = replace(result, figures={**result.figures, **_beyond_rsum(result, team, pair)})
        if metrics is not None:
            try:
                images, captions = (first.encoded.ids.get(name, ()) for name in pair)
                theirs = extended(scores, images, captions, metrics)
                result = replace(result, figures={**result.figures, **theirs})
            except NotCoco as error:
                metrics, notes = None, [f"CxC and ECCV Caption were not measured: {error}"]
        results.append(result)
        del scores  # before the next ones are made: one matrix is what is promised
    return [compared(result, results[0], draws) for result in results], notes


def _beyond_rsum(result: Result, team: Sequence[EvaluatedModel], pair: ModalityPair) -> dict[str, float]:
    of_ranks = {
        f"{prefix}{name}": value
        for prefix, some in result.galleries.items()
        for name, value in beyond_rsum(some).items()
    }
    return of_ranks | (set_measures(team[0], pair) if len(team) == 1 and team[0].has_sets else {})


def compared(result: Result, first: Result, draws: int) -> ResultLine:
    """A result with intervals and a test against the first, from so many draws; with neither if there are none."""
    if not draws:
        return ResultLine(result)
    sure = {prefix: intervals(some, draws, np.random.default_rng(SEED)) for prefix, some in result.galleries.items()}
    differences = {
        prefix: paired_tests([first.galleries[prefix]], [some], draws, np.random.default_rng(SEED))
        for prefix, some in result.galleries.items()
        if result is not first
    }
    return ResultLine(result, sure, differences)


def intervals(
    galleries: Sequence[SearchRanks], draws: int, generator: np.random.Generator, level: float = 0.95
) -> dict[str, Interval]:
    """The percentile interval of each measure and of RSUM, from `draws` resamplings of the images with repetition."""
    names = mean_measures(galleries)
    drawn = _resampled([_sums(gallery, names) for gallery in galleries], draws, generator)
    return {measure: _interval(_total(drawn, names, measure), level) for measure in (*names, "rsum")}


def paired_test(
    first: Sequence[SearchRanks],
    second: Sequence[SearchRanks],
    draws: int,
    generator: np.random.Generator,
    level: float = 0.95,
    measure: str = "rsum",
) -> Difference:
    """The difference in a measure of two models on the same data, image by image.

    The interval is by bootstrap: both models are measured on the same drawn images. p is by permutation: if the two
    are alike, swapping their answers for an image changes nothing but the sign of what it adds to the difference.
    """
    return paired_test_of_seeds([first], [second], draws, generator, level, measure)


def paired_test_of_seeds(
    first: Sequence[Sequence[SearchRanks]],
    second: Sequence[Sequence[SearchRanks]],
    draws: int,
    generator: np.random.Generator,
    level: float = 0.95,
    measure: str = "rsum",
) -> Difference:
    """As `paired_test`, between two ways of training: each has the galleries of one model or several, of other seeds.

    What the seeds' models found for an image is averaged first. The same images are drawn for all of them: taken as so
    many images more, they would make the interval too narrow. It tells what other images would change, not what
    other seeds would: see `seeds_test`.
    """
    return paired_tests(first, second, draws, generator, level, [measure])[measure]


def paired_tests(
    first: Sequence[Sequence[SearchRanks]],
    second: Sequence[Sequence[SearchRanks]],
    draws: int,
    generator: np.random.Generator,
    level: float = 0.95,
    measures: Sequence[str] | None = None,
) -> dict[str, Difference]:
    """`paired_test_of_seeds` for several measures, from the same draws; None: all that both sides have."""
    known = mean_measures([gallery for side in (*first, *second) for gallery in side])
    measures = ["rsum", *known] if measures is None else measures
    for measure in measures:
        if measure not in ("rsum", *known):
            raise ValueError(f"measure: expected one of rsum, {', '.join(known)}, got {measure!r}.")
    pairs = list(zip(_averaged(first, known), _averaged(second, known), strict=True))
    for one, other in pairs:
        _check_same_queries(one, other)
    both = [_Sums(*(np.concatenate(columns, 1) for columns in zip(one, other, strict=True))) for one, other in pairs]
    drawn = _resampled(both, draws, generator)
    ours, theirs = drawn[:, len(known) :], drawn[:, : len(known)]
    shares = [(other.found - one.found) / one.asked.sum(0) for one, other in pairs]
    start, found = generator.bit_generator.state, {}
    for measure in measures:
        generator.bit_generator.state = start  # a measure has the same p whatever is tested beside it
        low, high = _interval(_total(ours, known, measure) - _total(theirs, known, measure), level)
        added = np.concatenate([100 * _total(some, known, measure) / len(pairs) for some in shares])  # by each image
        observed, p = _permutation_test(added, draws, generator)
        found[measure] = Difference(observed, low, high, p)
    return found


def _permutation_test(added: np.ndarray, draws: int, generator: np.random.Generator) -> tuple[float, float]:
    """The sum of what images add to a difference, and how often random signs give one that is as large."""
    observed = float(added.sum())
    added = added[added != 0]
    larger = 0
    for count in _chunks(draws, len(added)):
        signs = generator.integers(0, 2, (count, len(added)), dtype=np.int8)
        larger += int((np.abs(2 * (signs @ added) - added.sum()) >= abs(observed) - 1e-9).sum())
    return observed, (1 + larger) / (1 + draws)


def mean_interval(values: np.ndarray, draws: int, level: float = 0.95) -> Interval:
    """The bootstrap interval of the mean of independent values, in per cent."""
    one = _Sums(np.asarray(values, float)[:, None], np.ones((len(values), 1)))
    return _interval(_resampled([one], draws, np.random.default_rng(SEED))[:, 0], level)


def mean_difference(first: np.ndarray, second: np.ndarray, draws: int, level: float = 0.95) -> Difference:
    """How much higher the mean of a second model's values is, in per cent, on the same independent cases."""
    apart = np.asarray(second, float) - np.asarray(first, float)
    observed, p = _permutation_test(100 * apart / len(apart), draws, np.random.default_rng(SEED))
    return Difference(observed, *mean_interval(apart, draws, level), p)


def seeds_test(first: Sequence[float], second: Sequence[float]) -> float | None:
    """How often a difference of means at least as large comes about between seeds alone: Welch's test, two-sided.

    Not paired: the same seed draws other numbers for another model. None if one side has fewer than two seeds, or
    neither side varies.
    """
    from scipy.stats import ttest_ind_from_stats  # takes longer to import than most commands take to run

    if min(len(first), len(second)) < 2 or all(len(set(side)) == 1 for side in (first, second)):
        return None
    # `ttest_ind` warns where one side does not vary.
    told = [(float(np.mean(side)), float(np.std(side, ddof=1)), len(side)) for side in (second, first)]
    return float(ttest_ind_from_stats(*told[0], *told[1], equal_var=False).pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p of several tests, corrected for their number after Holm: the chance that any difference is found where none is
    stays what it is for one test.

    With m tests the smallest p is multiplied by m, the next by m − 1, …; none becomes smaller than one before it, or
    larger than 1. A test that was not made (None) does not count.
    """
    made = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for before, (p, place) in enumerate(made):
        largest = max(largest, min(1.0, (len(made) - before) * p))
        corrected[place] = largest
    return corrected


def cohens_d(first: Sequence[float], second: Sequence[float]) -> float | None:
    """How many standard deviations of the seeds the mean of the second is above that of the first: Cohen's d, by the
    pooled deviation. None if one side has fewer than two, or neither side varies.
    """
    if min(len(first), len(second)) < 2:
        return None
    pooled = sum(np.var(side, ddof=1) * (len(side) - 1) for side in (first, second)) / (len(first) + len(second) - 2)
    return float((np.mean(second) - np.mean(first)) / np.sqrt(pooled)) if pooled > 0 else None


class _Sums(NamedTuple):
    """Per group and measure: the sum of the queries' values (groups, measures), and how many queries there were."""

    found: np.ndarray
    asked: np.ndarray


def _sums(gallery: SearchRanks, names: Sequence[str]) -> _Sums:
    """Some measures of a gallery, group by group."""
    values = query_values(gallery)
    return _summed([values[name] for name in names])


def _summed(columns: Sequence[QueryValues]) -> _Sums:
    """Group by group; a group that the first column lacks is not counted."""
    numbers = np.unique(columns[0].groups)
    found, asked = [], []
    for values, groups in columns:
        place = np.searchsorted(numbers, groups)
        found.append(np.bincount(place, values, len(numbers)))
        asked.append(np.bincount(place, minlength=len(numbers)).astype(float))
    return _Sums(np.stack(found, 1), np.stack(asked, 1))


def _total(columns: np.ndarray, names: Sequence[str], measure: str) -> np.ndarray:
    """A measure, from the columns of those that it is the sum of."""
    total: np.ndarray = columns[:, [names.index(part) for part in parts_of(measure)]].sum(1)
    return total


def _averaged(models: Sequence[Sequence[SearchRanks]], names: Sequence[str]) -> list[_Sums]:
    """Of each gallery what was found, averaged over the models."""
    averaged = []
    for galleries in zip(*models, strict=True):
        sums = [_sums(gallery, names) for gallery in galleries]
        for other in sums[1:]:
            _check_same_queries(sums[0], other)
        averaged.append(_Sums(np.mean([one.found for one in sums], 0), sums[0].asked))
    return averaged


def _check_same_queries(one: _Sums, other: _Sums) -> None:
    if not np.array_equal(one.asked, other.asked):
        raise ValueError("a paired test takes two models on the same data, but these asked different queries.")


def _resampled(galleries: Sequence[_Sums], draws: int, generator: np.random.Generator) -> np.ndarray:
    """The measures in per cent (draws, measures) of each drawing, averaged over the galleries."""
    if draws < 1:
        raise ValueError(f"draws: expected at least 1, got {draws}.")
    total = 0.0
    for sums in galleries:
        both = np.concatenate(sums, 1)
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


def _interval(drawn: np.ndarray, level: float = 0.95) -> Interval:
    if not 0 < level < 1:
        raise ValueError(f"level: expected a share between 0 and 1, such as 0.95, got {level}.")
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


# Captions with certain words, such as words that a model has never seen, and captions without.


def by_words(lines: Sequence[ResultLine], met: np.ndarray, draws: int = 1000) -> list[dict[str, Any]]:
    """Each line's recalls of the captions with the words (met: True, one for each caption of the split) and without,
    as `maxmatch evaluate --json` has them.

    With folds, a caption counts where it is a query: all captions of all folds together. Intervals are by bootstrap
    over the images that have such captions; draws = 0 for none. `first_to_this_r10`: of the captions with the words,
    the R@10 of the first line of the same similarity as a share of this line's; not there if this line finds nothing.
    """
    for wanted, which in ((met, "any"), (~met, "none")):
        if not wanted.any():
            raise ValueError(f"words: no caption of the split has {which} of the words: there is nothing to compare.")
    found = []
    for prefix in lines[0].result.galleries:
        firsts: dict[str, _Sums] = {}  # by similarity
        for line in lines:
            result = line.result
            having, others = (_chosen(result.galleries[prefix], wanted, "t2i") for wanted in (met, ~met))
            one = {"model": result.name, "similarity": result.similarity, "images": GALLERIES[prefix]}
            found.append({**one, "with": _side(having, draws), "without": _side(others, draws)})
            first = firsts.setdefault(result.similarity, having)
            if first is not having and having.found[:, -1].any():
                found[-1]["first_to_this_r10"] = _ratio(first, having, draws)
    return found


def some_queries(galleries: Sequence[SearchRanks], wanted: np.ndarray, way: str, draws: int) -> dict[str, Any]:
    """The recalls of some queries: wanted has True or False for each, way is "i2t" or "t2i". As `by_words` has them,
    their number under "queries".
    """
    one = _side(_chosen(galleries, wanted, way), draws, way)
    return {"queries": one.pop("captions"), **one}


def _chosen(galleries: Sequence[SearchRanks], wanted: np.ndarray, way: str) -> _Sums:
    """The wanted queries that found an answer, by the group they belong to; groups without such queries left out."""
    sides = [(one.i2t, one.image_groups) if way == "i2t" else (one.t2i, one.text_groups) for one in galleries]
    ranks = np.concatenate([found.ranks.cpu().numpy() for found, _ in sides])
    groups = np.concatenate([mine.cpu().numpy() for _, mine in sides])
    return _summed([QueryValues(ranks[wanted] <= level, groups[wanted]) for level in LEVELS])


def _side(sums: _Sums, draws: int, way: str = "t2i") -> dict[str, Any]:
    names, asked = [f"{way}_r{level}" for level in LEVELS], sums.asked.sum(0)
    recalls = 100 * sums.found.sum(0) / asked
    one: dict[str, Any] = {"captions": int(asked[0]), **dict(zip(names, recalls.tolist(), strict=True))}
    if draws:
        drawn = _resampled([sums], draws, np.random.default_rng(SEED))
        one["intervals"] = {name: list(_interval(column)) for name, column in zip(names, drawn.T, strict=True)}
    return one


def _ratio(first: _Sums, second: _Sums, draws: int) -> dict[str, float | None]:
    """Both models are measured on the same drawn images. Drawings in which the second finds nothing are left out."""
    hits = np.stack([first.found[:, -1], second.found[:, -1]], 1)
    one, other = hits.sum(0)
    ratio: dict[str, float | None] = {"value": float(one / other), "low": None, "high": None}
    if draws:
        drawn = _resampled([_Sums(hits, first.asked[:, :2])], draws, np.random.default_rng(SEED))
        drawn = drawn[drawn[:, 1] > 0]
        ratio |= _interval(drawn[:, 0] / drawn[:, 1])._asdict()
    return ratio
