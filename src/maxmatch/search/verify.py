"""How many of the truly best items a search finds, and what it takes to find nearly all."""

import math
import statistics
import time
from dataclasses import dataclass

import numpy as np

from maxmatch.core.ragged_array import RaggedArray
from maxmatch.search.engine import Engine, proposes
from maxmatch.search.index_folder import Manifest, Tuning, checked_count
from maxmatch.search.rerank import Best, Settings, by_candidates, scan

_FEWEST, _MOST = 5, 80  # candidates, times k
_MOST_EFFORT = 16.0
_AS_GOOD = 0.001  # recalls so near to each other are taken for equal, and the faster settings for the better
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class Trial:
    """What one setting found."""

    settings: Settings
    recall: float
    error: float
    """The recall's standard error."""
    milliseconds: float
    """For one query, of those asked together."""


@dataclass(frozen=True)
class Verification:
    """What `SetIndex.verify` has measured."""

    chosen: Tuning
    """The settings that searches use from now on."""
    target: float
    reached: bool
    trials: list[Trial]
    scan_milliseconds: float
    """The exhaustive scan, for one query."""


def measure(
    engine: Engine, queries: np.ndarray | RaggedArray, k: int, manifest: Manifest, target: float, real_queries: bool
) -> Verification:
    """Try settings until some surely find the target's share: a recall just above it in a sample is as often just below
    it among all queries, so that its standard error is taken off. Each step has either twice as many candidates or
    twice the effort, whichever finds more: how far either helps is the engine's and the data's.
    """
    k = checked_count("k", k)
    if not 0 < target <= 1:
        raise ValueError(f"target: expected a share above 0 and up to 1, got {target}.")
    begin = time.perf_counter()
    truth = scan(engine, queries, k, None, manifest)
    scan_ms = (time.perf_counter() - begin) * 1e3 / len(queries)
    items = max(1, engine.count())
    trials: list[Trial] = []

    def tried(settings: Settings) -> Trial:
        assert isinstance(queries, np.ndarray)
        begin = time.perf_counter()
        kept, engine.in_memory = engine.in_memory, False  # recall is measured for those who search from disk
        try:
            found = by_candidates(engine, queries, k, None, manifest, settings)
        finally:
            engine.in_memory = kept
        each = (time.perf_counter() - begin) * 1e3 / len(queries)
        shares = shares_of(found, truth)
        trials.append(Trial(settings, statistics.fmean(shares), standard_error(shares), each))
        return trials[-1]

    last = Trial(Settings(k, 1.0), 1.0, 0.0, scan_ms)  # what a scan finds
    if proposes(engine):
        # Items of the index are found among fewer candidates than real queries need: with them more are taken at once.
        last = tried(Settings((_FEWEST if real_queries else 2 * _FEWEST) * k, 1.0))
        while last.recall - last.error < target and (next_ones := _steps(last.settings, k)):
            last = _better([tried(settings) for settings in next_ones])
    recall = last.recall
    low, high = wilson(recall, len(queries))
    chosen = Tuning(
        candidates=last.settings.candidates,
        effort=last.settings.effort,
        k=k,
        recall=recall,
        low=low,
        high=high,
        queries=len(queries),
        items=items,
        real_queries=real_queries,
    )
    return Verification(chosen, target, recall >= target, trials, scan_ms)


def _steps(settings: Settings, k: int) -> list[Settings]:
    """Settings of about twice the cost: more candidates, more effort, as far as either goes."""
    candidates, effort = settings
    steps = [Settings(2 * candidates, effort)] if 2 * candidates <= _MOST * k else []
    return [*steps, Settings(candidates, 2 * effort)] if 2 * effort <= _MOST_EFFORT else steps


def _better(trials: list[Trial]) -> Trial:
    most = max(trial.recall for trial in trials)
    return min((trial for trial in trials if trial.recall >= most - _AS_GOOD), key=lambda trial: trial.milliseconds)


def shares_of(found: list[Best], truth: list[Best]) -> list[float]:
    """The share of each query's truly best that were found. One with the score of the last of them counts as it."""
    shares = []
    for mine, true in zip(found, truth, strict=True):
        if true.ids:
            as_good = [score >= true.scores[-1] - 1e-6 for score in mine.scores]
            shares.append(min(len(true.ids), sum(as_good)) / len(true.ids))
    return shares or [1.0]


def standard_error(shares: list[float]) -> float:
    """Of their mean."""
    return statistics.stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else 0.0


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` independent trials.

    Each query counts as one trial, though it looks for k items: those of one query are missed together.
    """
    square = _NORMAL_95**2
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = _NORMAL_95 * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return max(0.0, centre - half), min(1.0, centre + half)
