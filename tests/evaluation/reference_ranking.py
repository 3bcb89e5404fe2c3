"""Ranks by sorting, and galleries to rank."""

from torch import Tensor

from maxmatch.evaluation.ranking import ranks_both_ways


def sorted_ranks(scores: Tensor, row_groups: Tensor, column_groups: Tensor) -> tuple[list[int], list[int]]:
    """One full sort a query: best score first, and at one score the wrong answers before the true ones."""
    ranks, ties = [], []
    for row, group in zip(scores.tolist(), row_groups.tolist(), strict=True):
        answers = [(score, other == group) for score, other in zip(row, column_groups.tolist(), strict=True)]
        answers.sort(key=lambda answer: (-answer[0], answer[1]))
        place = next(place for place, (_, true) in enumerate(answers) if true)
        ranks.append(place + 1)
        ties.append(sum(1 for score, true in answers if not true and score == answers[place][0]))
    return ranks, ties


def assert_agrees(scores: Tensor, row_groups: Tensor, column_groups: Tensor) -> None:
    rows, columns = ranks_both_ways(scores, row_groups, column_groups)
    assert (rows.ranks.tolist(), rows.ties.tolist()) == sorted_ranks(scores, row_groups, column_groups)
    assert (columns.ranks.tolist(), columns.ties.tolist()) == sorted_ranks(scores.T, column_groups, row_groups)
