"""Retrieval by each vector of a query alone (fig:qualitative): do the slots find different things?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.paired import Paired, paired
from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.evaluation.retrieval import LEVELS
from maxmatch.matching.scoring import first_largest, score_matrix

_ROWS = 1_024


class Answer(NamedTuple):
    """An item that was found."""

    item: int
    """Its place in the split."""
    id: str | None
    """Its name, where it is known."""
    score: float
    true: bool
    """Whether it belongs to the query."""


@dataclass(frozen=True)
class SlotExample:
    """What each slot of one query found."""

    item: int
    """The place of the query in the split."""
    id: str | None
    answers: list[list[Answer]]
    """For each slot the nearest items, nearest first; the score is a cosine."""


@dataclass(frozen=True)
class BySlot:
    """Retrieval by each slot, from one modality in another."""

    query: str
    gallery: str
    recalls: list[dict[str, float]]
    """For each slot r1, r5, r10: how many per cent of the queries find a true answer so high by that slot alone."""
    distinct: float
    """How many different items the K slots of a query have for first answer, on average: 1 collapsed, K all differ. To
    be read beside the recalls: slots that tell nothing differ, too."""
    distinct_groups: float
    """The same, where items of one group (the captions of one image) count as one."""
    any_slot: dict[str, float]
    """r1, r5, r10 of the best slot of each query, chosen with hindsight: more than any slot has where they differ."""
    examples: list[SlotExample]


def by_slot(encoded: EncodedSplit, pair: tuple[str, str], queries: Sequence[int] = (), answers: int = 5) -> BySlot:
    """Retrieval of pair[1] by single vectors of pair[0]: an item is as near as the nearest of its vectors.

    queries: the places of those to be kept as examples, with so many answers for each slot. Equally near items come in
    the order of the split; in the recalls they count against us.
    """
    data = paired(encoded, pair)
    rows, columns = data.sets
    wrong = [place for place in queries if not 0 <= place < len(rows)]
    if wrong:
        raise ValueError(f"queries: there are {len(rows)} items of {pair[0]!r}, got number {wrong[0]}.")
    if answers < 1:
        raise ValueError(f"answers: expected at least 1, got {answers}.")
    shown = torch.tensor(list(queries), dtype=torch.long, device=rows.device)
    firsts, ranks, kept = [], [], []
    for slot in range(rows.shape[1]):
        # "mil" of a single vector and a set is the largest cosine.
        scores = score_matrix(rows[:, [slot]], columns, "mil")
        firsts.append(torch.cat([first_largest(part, 1)[1] for part in torch.split(scores, _ROWS)]))
        ranks.append(ranks_both_ways(scores, *data.groups)[0].ranks)
        kept.append(first_largest(scores[shown], min(answers, len(columns))) if len(shown) else None)
        del scores  # before the next one is made
    first, rank = torch.cat(firsts, 1), torch.stack(ranks, 1)
    examples = [
        SlotExample(place, data.name(0, place), [_answers(data, place, *found, number) for found in kept if found])
        for number, place in enumerate(queries)
    ]
    return BySlot(
        query=pair[0],
        gallery=pair[1],
        recalls=[_recalls(rank[:, slot]) for slot in range(rows.shape[1])],
        distinct=_distinct(first),
        distinct_groups=_distinct(data.groups[1][first]),
        any_slot=_recalls(rank.amin(1)),
        examples=examples,
    )


def _answers(data: Paired, query: int, scores: Tensor, places: Tensor, number: int) -> list[Answer]:
    group = data.groups[0][query]
    return [
        Answer(place, data.name(1, place), score, bool(data.groups[1][place] == group))
        for place, score in zip(places[number].tolist(), scores[number].tolist(), strict=True)
    ]


def _recalls(ranks: Int[Tensor, " n"]) -> dict[str, float]:
    return {f"r{level}": 100 * (ranks <= level).double().mean().item() for level in LEVELS}


def _distinct(found: Int[Tensor, "n K"]) -> float:
    """The mean number of different values in a row."""
    ordered = found.sort(dim=1).values
    return float(1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1).double().mean())
