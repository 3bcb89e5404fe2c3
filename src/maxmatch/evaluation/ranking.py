"""Where the true answers stand in the ranking."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from maxmatch.core.array_checks import NotFiniteError, shape_of
from maxmatch.core.checks import Array, as_tensor
from maxmatch.core.types import Ranks
from maxmatch.matching.products import kernels_for


class Fold(NamedTuple):
    """A search of its own among some rows and some columns, which hold their groups whole."""

    rows: slice
    columns: slice


class PairRanks(NamedTuple):
    """Where every true pair stands, not only the best of each query: P pairs, in the order of their rows.

    A rank is among wrong answers: 1 + how many of them score as much as the pair or more. Other true answers of the
    query do not count, so all of them may have rank 1.
    """

    row: Int[Tensor, " P"]
    column: Int[Tensor, " P"]
    in_row: Int[Tensor, " P"]
    """The rank of the column among the wrong columns of the row."""
    in_column: Int[Tensor, " P"]
    """The rank of the row among the wrong rows of the column."""


class PartRanks(NamedTuple):
    """The ranks of one part: of the best true answer of each row and each column; of all true pairs, if asked for, and
    their scores.
    """

    rows: Ranks
    columns: Ranks
    pairs: PairRanks | None
    pair_scores: Float[Tensor, " P"] | None = None


def ranks_both_ways(
    scores: Float[Array, "B C"], row_groups: Int[Array, " B"], column_groups: Int[Array, " C"]
) -> tuple[Ranks, Ranks]:
    """For each row and each column the rank of its best true partner: those of the same group are true.

    rank = 1 + number of wrong answers that score as much or more: ties count against the model, and are counted.
    """
    matrix = as_tensor(scores, "scores")
    if matrix.ndim != 2 or not matrix.is_floating_point():
        raise ValueError(
            f"scores: expected a floating-point matrix (rows, columns), got {matrix.dtype} of shape {shape_of(matrix)}."
        )
    rows, columns = matrix.shape
    row_groups = _checked_groups("row_groups", row_groups, rows).to(matrix.device)
    column_groups = _checked_groups("column_groups", column_groups, columns).to(matrix.device)
    kernels = kernels_for(matrix)
    if kernels is not None and matrix.stride(1) == 1 and rows and columns:
        return _ranks_on_device(kernels, matrix, row_groups, column_groups)
    whole = Fold(slice(0, rows), slice(0, columns))
    (found,) = ranks_of_parts(lambda part: matrix[part], rows, row_groups, column_groups, [whole])
    return found.rows, found.columns


def _ranks_on_device(
    kernels: Any, scores: Float[Tensor, "B C"], row_groups: Int[Tensor, " B"], column_groups: Int[Tensor, " C"]
) -> tuple[Ranks, Ranks]:
    """The same on a GPU by two kernels. The host waits for them once, for what it refuses."""
    above, ties, odd = kernels.count_wrong(scores, row_groups, column_groups)
    ranks = above.add_(1)
    bad, maybe_lonely = odd.tolist()
    if bad:
        raise NotFiniteError(_NAN)
    both = (row_groups, column_groups), (column_groups, row_groups)
    if maybe_lonely and not all(bool(torch.isin(mine, theirs).all()) for mine, theirs in both):
        raise ValueError(_ONE_SIDED)
    count = len(scores)
    return Ranks(ranks[:count], ties[:count]), Ranks(ranks[count:], ties[count:])


def _checked_groups(name: str, given: Array, count: int) -> Int[Tensor, " n"]:
    groups = as_tensor(given, name)
    if groups.shape != (count,) or groups.is_floating_point():
        raise ValueError(
            f"{name}: expected one integer for each of the {count}, got {groups.dtype} of shape {shape_of(groups)}."
        )
    return groups


def ranks_of_parts(
    score: Callable[[slice], Tensor],
    height: int,
    row_groups: Int[Tensor, " B"],
    column_groups: Int[Tensor, " C"],
    parts: Sequence[Fold],
    pairs: bool = False,
    true: tuple[Int[Tensor, " P"], Int[Tensor, " P"]] | None = None,
) -> list[PartRanks]:
    """`ranks_both_ways` of each part, from scores that come `height` rows at a time: score(rows) has all columns.

    pairs: also the ranks of all true pairs, counted while each block is there. true: the rows and columns of the true
    pairs, in the order of their rows, where groups do not tell; every row and every column has one.

    With more than one block every block is asked for twice, first for the scores of the true pairs, then to count those
    above them; it must come out the same. A part may start and end within a block.
    """
    rows, columns = len(row_groups), len(column_groups)
    true_row, true_column = true or true_pairs(row_groups.contiguous(), column_groups.contiguous())
    blocks = [slice(start, min(start + height, rows)) for start in range(0, max(rows, 1), max(height, 1))]
    held = score(blocks[0]) if len(blocks) == 1 else None  # then it is not made twice
    true_scores = _true_scores(score, blocks, true_row, true_column) if held is None else held[true_row, true_column]
    counters = [_PairCounter(part, true_row, true_column, true_scores) for part in parts] if pairs else []
    # From here on rows and columns are done together: B + C queries, the columns after the rows.
    query, true_scores = torch.cat([true_row, true_column + rows]), true_scores.repeat(2)
    best = true_scores.new_full((rows + columns,), -torch.inf).scatter_reduce(0, query, true_scores, "amax")
    above, equal = ([query.new_zeros(_length(p.rows) + _length(p.columns)) for p in parts] for _ in range(2))
    not_numbers = query.new_zeros(())
    for block in blocks:
        scores = score(block) if held is None else held
        for part, more, as_many in zip(parts, above, equal, strict=True):
            seen = slice(max(part.rows.start, block.start), min(part.rows.stop, block.stop))
            if seen.start < seen.stop:
                within = scores[seen.start - block.start : seen.stop - block.start, part.columns]
                level = torch.cat([best[seen], best[rows + part.columns.start : rows + part.columns.stop]])
                counts = _count_levels(within, level)
                for total, count in ((more, counts[0]), (as_many, counts[1])):
                    total[seen.start - part.rows.start : seen.stop - part.rows.start] = count[: len(within)]
                    total[_length(part.rows) :] += count[len(within) :]
                not_numbers = not_numbers + counts[2]
        for counter in counters:
            counter.count(scores, block)
    # One copy from the device for both checks. A query without a true answer has a best of −∞.
    bad, maybe_lonely = torch.stack([not_numbers, best.isneginf().sum()]).tolist()
    if bad:
        raise NotFiniteError(_NAN)
    if maybe_lonely and true is None and not bool(torch.isin(column_groups, row_groups).all()):
        raise ValueError(_ONE_SIDED)
    true_ties = query.new_zeros(rows + columns).scatter_add(0, query, (true_scores == best[query]).long())
    found = []
    for number, (part, more, as_many) in enumerate(zip(parts, above, equal, strict=True)):
        own = torch.cat([true_ties[:rows][part.rows], true_ties[rows:][part.columns]])
        ties = as_many - own
        ranks, size = more + ties + 1, _length(part.rows)
        both = Ranks(ranks[:size], ties[:size]), Ranks(ranks[size:], ties[size:])
        more_ranks = (counters[number].ranks(*both), counters[number].level) if pairs else (None, None)
        found.append(PartRanks(*both, *more_ranks))
    return found


class _PairCounter:
    """The ranks of the true pairs of one part, counted block by block."""

    def __init__(self, part: Fold, row: Tensor, column: Tensor, scores: Tensor) -> None:
        """row, column, scores: of all true pairs, those of other parts too, in the order of their rows."""
        bounds = torch.tensor([part.rows.start, part.rows.stop], device=row.device)
        mine = slice(*torch.searchsorted(row, bounds).tolist())
        self.part = part
        self.row, self.column, self.level = row[mine] - part.rows.start, column[mine] - part.columns.start, scores[mine]
        self.in_row, self.in_column = torch.zeros_like(self.row), torch.zeros_like(self.row)
        # A query with one true answer has its rank already.
        self.several = len(self.row) > _length(part.rows), len(self.row) > _length(part.columns)

    def count(self, scores: Tensor, block: slice) -> None:
        """Count the scores of a block of rows that are as high as those of the true pairs, or higher."""
        rows, columns = self.part
        seen = slice(max(rows.start, block.start), min(rows.stop, block.stop))
        if seen.start >= seen.stop or not any(self.several):
            return
        within = scores[seen.start - block.start : seen.stop - block.start, columns]
        first = seen.start - rows.start
        if self.several[0]:
            bounds = torch.tensor([first, first + len(within)], device=self.row.device)
            mine = slice(*torch.searchsorted(self.row, bounds).tolist())
            self.in_row[mine] = _as_high(within, self.row[mine] - first, self.level[mine])
        if self.several[1]:
            self.in_column += _as_high(within.T, self.column, self.level)

    def ranks(self, rows: Ranks, columns: Ranks) -> PairRanks:
        """rows, columns: those of the best true answers."""
        ways = ((self.row, self.in_row, rows), (self.column, self.in_column, columns))
        in_row, in_column = (
            1 + counted - _own_as_high(query, self.level) if several else best.ranks[query]
            for several, (query, counted, best) in zip(self.several, ways, strict=True)
        )
        return PairRanks(self.row, self.column, in_row, in_column)


def _as_high(scores: Float[Tensor, "n m"], row: Int[Tensor, " P"], level: Float[Tensor, " P"]) -> Int[Tensor, " P"]:
    """For each of P rows and levels: how many scores of that row are as high or higher."""
    if scores.device.type != "cpu":
        return _as_high_on_device(scores, row, level)
    if scores.dtype.itemsize == 2:  # as in `_count_on_cpu`
        scores, level = scores.float(), level.float()
    values = scores.detach().numpy()
    if len(row) > _FEW * len(scores):
        return torch.from_numpy(_as_high_by_sorting(values, row.numpy(), level.detach().numpy()))
    counts = [np.count_nonzero(values[one] >= least) for one, least in zip(row.tolist(), level.tolist(), strict=True)]
    return torch.tensor(counts, dtype=torch.long)


def _as_high_by_sorting(values: np.ndarray, row: np.ndarray, level: np.ndarray) -> Int[np.ndarray, " P"]:
    """The same for many levels of each row, as where groups are large: each row is sorted once."""
    order = row.argsort(kind="stable")
    starts = np.searchsorted(row[order], np.arange(len(values) + 1))
    counts = np.empty(len(row), np.int64)
    for one, scores in enumerate(values):
        mine = order[starts[one] : starts[one + 1]]
        counts[mine] = len(scores) - np.searchsorted(np.sort(scores), level[mine])
    return counts


def _as_high_on_device(
    scores: Float[Tensor, "n m"], row: Int[Tensor, " P"], level: Float[Tensor, " P"]
) -> Int[Tensor, " P"]:
    """The n-th levels of all rows at once where rows have about as many; else each pair's row is copied."""
    if not len(row):
        return row
    order = row.argsort(stable=True)
    place = torch.empty_like(row)
    place[order] = torch.arange(len(row), device=row.device) - torch.searchsorted(row[order], row[order])
    most = int(place.max()) + 1
    if most * len(scores) > 2 * len(row):
        height = max(1, _ON_DEVICE // max(scores.shape[1], 1))  # rows copied at once
        parts = [slice(start, start + height) for start in range(0, len(row), height)]
        return torch.cat([(scores[row[part]] >= level[part, None]).sum(1) for part in parts])
    levels = level.new_full((most, len(scores)), torch.inf)
    levels[place, row] = level
    kernels = kernels_for(scores)
    if kernels is not None and scores.stride(1) == 1:
        return kernels.count_reaching(scores, levels)[place, row].long()  # type: ignore[no-any-return]
    return torch.stack([(scores >= one[:, None]).sum(1) for one in levels])[place, row]


def _own_as_high(query: Int[Tensor, " P"], level: Float[Tensor, " P"]) -> Int[Tensor, " P"]:
    """For each true pair: how many true pairs of its query, itself among them, score as much or more."""
    order = level.argsort(descending=True, stable=True)
    order = order[query[order].argsort(stable=True)]  # by query, and within a query the highest first
    query, level = query[order], level[order]
    place = torch.arange(1, len(query) + 1, device=query.device)
    ends = torch.ones_like(query, dtype=torch.bool)  # of a run of equal scores of one query
    ends[:-1] = (query.diff() != 0) | (level[1:] != level[:-1])
    last = place[ends][ends.cumsum(0) - ends.long()]
    found = torch.empty_like(query)
    found[order] = last - torch.searchsorted(query, query)
    return found


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _true_scores(
    score: Callable[[slice], Tensor], blocks: Sequence[slice], true_row: Tensor, true_column: Tensor
) -> Tensor:
    """The scores of the true pairs, which are in the order of their rows, block by block."""
    starts = torch.tensor([block.start for block in blocks[1:]], device=true_row.device)
    bounds = [0, *torch.searchsorted(true_row, starts).tolist(), len(true_row)]
    return torch.cat(
        [
            score(block)[true_row[first:last] - block.start, true_column[first:last]]
            for block, first, last in zip(blocks, bounds[:-1], bounds[1:], strict=True)
        ]
    )


_NAN = "scores: NaN among them; no ranking can be made of that. Look for NaN in the embeddings."
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
    if scores.device.type == "cpu":
        return _count_on_cpu(scores.detach(), level.detach())
    by_row, by_column = level[: len(scores), None], level[None, len(scores) :]
    above = torch.cat([(scores > by_row).sum(1), (scores > by_column).sum(0)])
    equal = torch.cat([(scores == by_row).sum(1), (scores == by_column).sum(0)])
    return above, equal, scores.isnan().sum()


def _count_on_cpu(scores: Tensor, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same by NumPy, which counts booleans ten times as fast as torch, in blocks that stay in the caches."""
    rows, columns = scores.shape
    if scores.dtype.itemsize == 2:  # NumPy knows no bfloat16; nothing is rounded
        scores, level = scores.float(), level.float()
    by_row, by_column = level[:rows, None].numpy(), level[rows:].numpy()
    above, equal = (np.zeros(rows + columns, np.int64) for _ in range(2))
    not_numbers = 0
    height = max(1, min(255, _CACHED // max(columns, 1)))  # so many ones add up in a byte
    for start in range(0, rows, height):
        part, these = scores[start : start + height].numpy(), slice(start, start + height)
        for count, compare in ((above, np.greater), (equal, np.equal)):
            count[:rows][these] = np.count_nonzero(compare(part, by_row[these]), axis=1)
            count[rows:] += np.add.reduce(compare(part, by_column).view(np.uint8), axis=0, dtype=np.uint8)
        not_numbers += int(np.count_nonzero(np.isnan(part)))
    return torch.from_numpy(above), torch.from_numpy(equal), torch.tensor(not_numbers)


_CACHED = 2**18
_FEW = 64  # true answers of a query, on average, for which counting is faster than sorting
_ON_DEVICE = 2**26  # scores copied at once
