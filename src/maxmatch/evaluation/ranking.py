"""Where the true answers stand in the ranking."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from maxmatch.checks import NotFiniteError
from maxmatch.matching.backend import kernels_for
from maxmatch.types import Ranks


def ranks_both_ways(
    scores: Float[Tensor, "B C"], row_groups: Int[Tensor, " B"], column_groups: Int[Tensor, " C"]
) -> tuple[Ranks, Ranks]:
    """For each row and each column the rank of its best true partner: those of the same group are true.

    rank = 1 + number of wrong answers that score as much or more: ties count against us, and are counted.
    """
    if scores.shape != (len(row_groups), len(column_groups)):
        raise ValueError(
            f"scores of {len(scores)} rows and {scores.shape[1]} columns need a group for each of them, "
            f"got {len(row_groups)} and {len(column_groups)} groups."
        )
    true_row, true_column = true_pairs(row_groups.contiguous(), column_groups.contiguous())
    rows = len(row_groups)
    # From here on rows and columns are done together: B + C queries, the columns after the rows.
    query = torch.cat([true_row, true_column + rows])
    true_scores = scores[true_row, true_column].repeat(2)
    best = scores.new_full((sum(scores.shape),), -torch.inf).scatter_reduce(0, query, true_scores, "amax")
    above, equal, no_numbers = _count_levels(scores, best)
    # One look at the device for both checks. A query without a true answer has a best of −∞.
    bad, maybe_lonely = torch.stack([no_numbers, best.isneginf().sum()]).tolist()
    if bad:
        raise NotFiniteError("scores: NaN among them; no ranking can be made of that. Look for NaN in the embeddings.")
    if maybe_lonely and not bool(torch.isin(column_groups, row_groups).all()):
        raise ValueError(_ONE_SIDED)
    ties = equal.long().scatter_add(0, query, -(true_scores == best[query]).long())  # less the true ones among them
    ranks = above + ties + 1
    return Ranks(ranks[:rows], ties[:rows]), Ranks(ranks[rows:], ties[rows:])


_ONE_SIDED = "every row and every column needs at least one true partner: a group is on one side only."


def true_pairs(row_groups: Tensor, column_groups: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of all pairs of equal group, without a B × C mask."""
    grouped, order = column_groups.sort(stable=True)
    first = torch.searchsorted(grouped, row_groups)
    count = torch.searchsorted(grouped, row_groups, right=True) - first
    total, lonely = torch.stack([count.sum(), (count == 0).sum()]).tolist()
    if lonely:
        raise ValueError(_ONE_SIDED)
    row = torch.arange(len(row_groups), device=count.device).repeat_interleave(count, output_size=total)
    place = torch.arange(total, device=count.device) + (first - count.cumsum(0) + count)[row]
    return row, order[place]


def _count_levels(scores: Tensor, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many scores are above the level of their row, then of their column (B + C); how many equal; how many NaN."""
    kernels = kernels_for(scores)
    if kernels is not None and scores.stride(1) == 1:
        counts: tuple[Tensor, Tensor, Tensor] = kernels.count_levels(scores, level)
        return counts
    by_row, by_column = level[: len(scores), None], level[None, len(scores) :]
    above = torch.cat([(scores > by_row).sum(1), (scores > by_column).sum(0)])
    equal = torch.cat([(scores == by_row).sum(1), (scores == by_column).sum(0)])
    return above, equal, scores.isnan().sum()
