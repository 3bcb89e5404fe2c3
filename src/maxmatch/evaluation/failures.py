"""The worst queries: where the true answer came far down, and what stood above it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from maxmatch.evaluation.by_slot import Answer
from maxmatch.evaluation.paired import Paired
from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.matching.scoring import first_largest


@dataclass(frozen=True)
class Failure:
    """A query whose best true answer is not first."""

    item: int
    """The place of the query in the split."""
    id: str | None
    rank: int
    """Of the best true answer; ties count against us."""
    right: Answer
    """The best true answer."""
    wrong: list[Answer]
    """The best of the wrong answers that stood above it or tied with it, best first."""

    @property
    def margin(self) -> float:
        """By how much the best wrong answer scores more than the right one."""
        return self.wrong[0].score - self.right.score


@dataclass(frozen=True)
class Failures:
    """The worst queries of one modality in another, worst first."""

    query: str
    gallery: str
    worst: list[Failure]
    failed: int
    """How many queries have a wrong answer first."""


def worst_queries(
    scores: Float[Tensor, "B C"], data: Paired, worst: int = 10, answers: int = 5
) -> tuple[Failures, Failures]:
    """The worst queries of the rows and of the columns, by the rank of their best true answer; at the same rank the
    larger margin first, then the order of the split. A query whose true answer is first is no failure.
    """
    found = ranks_both_ways(scores, *data.groups)
    return (
        _worst(scores, data, found[0].ranks, worst, answers),
        _worst(scores.T, data.turned(), found[1].ranks, worst, answers),
    )


def _worst(scores: Tensor, data: Paired, ranks: Tensor, worst: int, answers: int) -> Failures:
    row, column = data.true_pairs()
    right = scores.new_full((len(scores),), -torch.inf).scatter_reduce(0, row, scores[row, column], "amax")
    margin = scores.amax(1) - right  # where a wrong answer is first, the largest score is its
    by_margin = margin.sort(descending=True, stable=True).indices
    order = by_margin[ranks[by_margin].sort(descending=True, stable=True).indices]
    failed = int((ranks > 1).sum())
    chosen = [
        _failure(scores[place], data, place, int(ranks[place]), answers)
        for place in order[: min(worst, failed)].tolist()
    ]
    return Failures(data.names[0], data.names[1], chosen, failed)


def _failure(scores: Tensor, data: Paired, query: int, rank: int, answers: int) -> Failure:
    true = data.groups[1] == data.groups[0][query]
    right = _best(scores.masked_fill(~true, -torch.inf), data, 1, true=True)[0]
    above = rank - 1
    wrong = _best(scores.masked_fill(true, -torch.inf), data, min(above, answers), true=False)
    return Failure(query, data.name(0, query), rank, right, wrong)


def _best(scores: Tensor, data: Paired, count: int, true: bool) -> list[Answer]:
    values, places = first_largest(scores[None], count)
    pairs = zip(places[0].tolist(), values[0].tolist(), strict=True)
    return [Answer(place, data.name(1, place), score, true) for place, score in pairs]
