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
    true_row, true_column = _true_pairs(row_groups.contiguous(), column_groups.contiguous())
    true_scores = scores[true_row, true_column]
    best_of_row = _largest(true_scores, true_row, len(row_groups))
    best_of_column = _largest(true_scores, true_column, len(column_groups))
    by_row, by_column, no_numbers = _count_levels(scores, best_of_row, best_of_column)
    # One look at the device for both checks. A column without a true partner has a best of −∞.
    bad, maybe_lonely = torch.stack([no_numbers.sum() > 0, best_of_column.isneginf().any()]).tolist()
    if bad:
        raise NotFiniteError("scores: NaN among them; no ranking can be made of that. Look for NaN in the embeddings.")
    if maybe_lonely and not bool(torch.isin(column_groups, row_groups).all()):
        raise ValueError(_ONE_SIDED)
    return (
        _ranks(by_row, true_row, true_scores == best_of_row[true_row]),
        _ranks(by_column, true_column, true_scores == best_of_column[true_column]),
    )


_ONE_SIDED = "every row and every column needs at least one true partner: a group is on one side only."


def _true_pairs(row_groups: Tensor, column_groups: Tensor) -> tuple[Tensor, Tensor]:
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


def _largest(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    return values.new_full((owners,), -torch.inf).scatter_reduce(0, owner, values, "amax")


def _count_levels(scores: Tensor, row_level: Tensor, column_level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many scores are above and equal to the level of their row (2, B) and column (2, C); how many are NaN."""
    kernels = kernels_for(scores)
    if kernels is not None and scores.stride(1) == 1:
        counts: tuple[Tensor, Tensor, Tensor] = kernels.count_levels(scores, row_level, column_level)
        return counts
    rows = [compare(scores, row_level[:, None]).sum(1) for compare in (torch.gt, torch.eq)]
    columns = [compare(scores, column_level[None, :]).sum(0) for compare in (torch.gt, torch.eq)]
    return torch.stack(rows), torch.stack(columns), scores.isnan().sum()


def _ranks(counts: Tensor, owner: Tensor, is_best: Tensor) -> Ranks:
    """From the scores above and equal to the best true one, less the true ones among the equal."""
    above, equal = counts.long()
    ties = equal.scatter_add(0, owner, -is_best.long())
    return Ranks(ranks=1 + above + ties, ties=ties)
