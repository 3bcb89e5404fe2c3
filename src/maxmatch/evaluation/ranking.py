"""Where the true answers stand in the ranking."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from maxmatch.types import Ranks


def ranks_both_ways(
    scores: Float[Tensor, "B C"], row_groups: Int[Tensor, " B"], column_groups: Int[Tensor, " C"]
) -> tuple[Ranks, Ranks]:
    """For each row and each column the rank of its best true partner: those of the same group are true.

    rank = 1 + number of wrong answers that score as much or more: ties count against us, and are counted.
    """
    true_row, true_column = _true_pairs(row_groups, column_groups)
    return _ranks(scores, true_row, true_column), _ranks(scores.T, true_column, true_row)


def _true_pairs(row_groups: Tensor, column_groups: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of all pairs of equal group, without a B × C mask."""
    order = column_groups.argsort(stable=True)
    grouped = column_groups[order]
    first = torch.searchsorted(grouped, row_groups)
    count = torch.searchsorted(grouped, row_groups, right=True) - first
    if int(count.min()) == 0 or not bool(torch.isin(column_groups, row_groups).all()):
        raise ValueError("every row and every column needs at least one true partner: a group is on one side only.")
    row = torch.arange(len(row_groups), device=row_groups.device).repeat_interleave(count)
    within = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    return row, order[first[row] + within]


def _ranks(scores: Tensor, true_row: Tensor, true_column: Tensor) -> Ranks:
    true_scores = scores[true_row, true_column]
    best = scores.new_full((len(scores),), -torch.inf).scatter_reduce(0, true_row, true_scores, "amax")
    above = (scores > best[:, None]).sum(1)
    at_least = (scores >= best[:, None]).sum(1)
    level = torch.zeros_like(at_least).scatter_add(0, true_row, (true_scores == best[true_row]).long())
    return Ranks(ranks=1 + at_least - level, ties=at_least - above - level)
