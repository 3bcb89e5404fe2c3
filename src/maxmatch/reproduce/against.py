"""How far each line of a table lies from its MaxMatch line, and how sure that is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from maxmatch.evaluation.protocol import Gallery
from maxmatch.evaluation.significance import paired_test_of_seeds, seeds_test
from maxmatch.reproduce.jobs import Job
from maxmatch.reproduce.planning import Plan, PlannedLine
from maxmatch.reproduce.ranks import read_ranks
from maxmatch.reproduce.sweep import Outcome

_DRAWS, _SEED = 2000, 0


class Against(NamedTuple):
    """The mean RSUM of a line minus that of another, by the same queries.

    low, high, p: by the paired test over images, answers averaged over the seeds: what other photos would change.
    p_seeds: by Welch's test over the seeds: what other seeds would change; None where there are not two of each.
    """

    rsum: float
    low: float
    high: float
    p: float
    p_seeds: float | None


def against_reference(plan: Plan, outcomes: Mapping[Path, Outcome]) -> list[Against | None]:
    """Each line against the reference of its group; None for the reference itself, and where it cannot be said."""
    references = {line.line.group: line for line in plan.lines if line.line.reference}
    found = []
    for line in plan.lines:
        reference = references.get(line.line.group)
        found.append(None if reference is None or reference is line else against(line, reference, outcomes))
    return found


def against(line: PlannedLine, other: PlannedLine, outcomes: Mapping[Path, Outcome]) -> Against | None:
    """One line against another; None where one failed, was measured elsewhere, or did not keep what queries found."""
    sides = [_searches(one.jobs, outcomes) for one in (other, line)]
    searches = [search for side in sides for search in side]
    if not all(sides) or not all(_same_queries(searches[0], one) for one in searches[1:]):
        return None
    first, second = ([[search.gallery] for search in side] for side in sides)
    found = paired_test_of_seeds(first, second, _DRAWS, np.random.default_rng(_SEED))
    return Against(*found, seeds_test(*([search.rsum for search in side] for side in sides)))


class _Search(NamedTuple):
    """What one seed's model found, where, and the RSUM of it."""

    gallery: Gallery
    where: tuple[str | None, str]
    rsum: float


def _searches(jobs: Sequence[Job], outcomes: Mapping[Path, Outcome]) -> list[_Search]:
    """Of all seeds that did not fail; none where one of them did not keep its ranks: the rest have another mean."""
    found = []
    for job in jobs:
        result = outcomes[job.folder].result
        if result is None:
            continue
        gallery, figures = read_ranks(job.folder, result), result["figures"]
        if gallery is None:
            return []
        rsum = next(figures[name] for name in ("coco_5k_rsum", "rsum") if name in figures)
        found.append(_Search(gallery, (job.recipes[0].data.path, result["split"]), rsum))
    return found


def _same_queries(one: _Search, other: _Search) -> bool:
    pairs = ((side.gallery.image_groups, side.gallery.text_groups) for side in (one, other))
    return one.where == other.where and all(torch.equal(*groups) for groups in zip(*pairs, strict=True))
