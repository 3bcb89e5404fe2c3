"""Several models, ensembles and similarities on one split: each measured, and compared with the first."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from maxmatch.evaluation.eccv import NotCoco, extended, load_metrics
from maxmatch.evaluation.protocol import FOLD_SIZE, Protocol, Result, chosen, evaluate
from maxmatch.evaluation.scores import IMAGE_TEXT, MAX_MEMORY, Member, Pair, check_members, scores_of
from maxmatch.evaluation.significance import intervals, paired_test
from maxmatch.evaluation.summary import Line

SEED = 0
"""Of what is drawn for intervals and tests, so that a result has the same ones every time."""


def measure(
    teams: Sequence[Sequence[Member]],
    pair: Pair = IMAGE_TEXT,
    protocol: Protocol = "auto",
    draws: int = 1000,
    max_memory: int = MAX_MEMORY,
    fold_size: int = FOLD_SIZE,
) -> tuple[list[Line], list[str]]:
    """A line for each team, of one model or of an ensemble, with intervals and a test against the first; and notes.

    draws: of images, for both; 0 for none. All teams must hold the same items.
    """
    first = teams[0][0]
    check_members([first, *(member for team in teams for member in team)], pair)
    size = first.encoded.notes.get("groups")
    coco = chosen(protocol, first.encoded.groups[pair[0]], fold_size, size) == "coco"
    metrics, notes = _coco_metrics() if coco and pair == IMAGE_TEXT else (None, [])
    results = []
    for team in teams:
        scores = scores_of(team, pair, max_memory)
        result = evaluate(team, pair=pair, protocol=protocol, scores=scores, fold_size=fold_size)
        if metrics is not None:
            try:
                images, captions = (first.encoded.ids.get(name, ()) for name in pair)
                more = extended(scores, images, captions, metrics)
                result = replace(result, figures={**result.figures, **more})
            except NotCoco as error:
                metrics, notes = None, [f"CxC and ECCV Caption were not measured: {error}"]
        results.append(result)
        del scores  # before the next ones are made: one matrix is what is promised
    return [_line(result, None if n == 0 else results[0], draws) for n, result in enumerate(results)], notes


def _coco_metrics() -> tuple[Any, list[str]]:
    try:
        return load_metrics(), []
    except ImportError as error:
        return None, [str(error)]


def _line(result: Result, first: Result | None, draws: int) -> Line:
    if not draws:
        return Line(result)
    sure = {prefix: intervals(some, draws, np.random.default_rng(SEED)) for prefix, some in result.galleries.items()}
    if first is None:
        return Line(result, sure)
    differences = {
        prefix: paired_test(first.galleries[prefix], some, draws, np.random.default_rng(SEED))
        for prefix, some in result.galleries.items()
    }
    return Line(result, sure, differences)
