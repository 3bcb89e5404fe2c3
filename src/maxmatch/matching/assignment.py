"""The best one-to-one matching between the vectors of two sets (eqn:permutation). Indices only: no gradient.

Solvers work on *planes*: a block (n, n, ...) whose first two axes are the row and the column and whose other axes
run over independent problems, so that one elementwise operation moves all problems one step on. They take square
blocks and give, for each row, its column. Among matchings of equal total the lexicographically first is given.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from maxmatch.core.checks import Array, as_tensor, check_cosine_shape, check_cosines_finite, check_mask, refuse_vmap

_TABLE_UP_TO = 4
_SUBSETS_UP_TO = 8
_CHUNK_BYTES = 16 * 2**20
_SAME_TOTAL = 1e-12  # float64 adds sixteen float32 cosines with a far smaller error


@torch.no_grad()
def maximal_assignment(
    cosines: Float[Array, "*batch K L"],
    row_mask: Bool[Array, "*batch K"] | None = None,
    col_mask: Bool[Array, "*batch L"] | None = None,
) -> Int[Tensor, "*batch K"]:
    """For each row the column it is matched with, −1 where it has none (eqn:permutation).

        π = argmax over one-to-one matchings of Σ_k c_k,π(k)

    The smaller side is matched completely; masked rows and columns (False) take no part. Among matchings of equal
    total the lexicographically first is given, an unmatched row counting as later than any column. Indices carry no
    gradient: gather the cosines with them.

    Args:
        cosines: any number of problems, each a block of K rows and L columns, at most 16 of each: a tensor, an array or
            a list.
        row_mask: which rows are real (True) and which are padding; None: all are real.
        col_mask: the same for the columns.

    Returns:
        The column of each row.

    Examples:
        >>> import torch
        >>> from maxmatch import maximal_assignment
        >>> maximal_assignment(torch.tensor([[0.9, 0.8], [0.8, 0.1]]))  # 0.8 + 0.8 is more than 0.9 + 0.1
        tensor([1, 0])
        >>> maximal_assignment(torch.tensor([[0.9], [0.8]]))  # two rows, one column: the second row has none
        tensor([ 0, -1])
    """
    cosines = as_tensor(cosines, "cosines").detach()
    refuse_vmap(cosines, "maximal_assignment takes any number of leading axes: give it the whole batch.")
    row_mask = None if row_mask is None else as_tensor(row_mask, "row_mask")
    col_mask = None if col_mask is None else as_tensor(col_mask, "col_mask")
    check_cosine_shape(cosines)
    check_mask("row_mask", row_mask, tuple(cosines.shape[:-1]))
    check_mask("col_mask", col_mask, (*cosines.shape[:-2], cosines.shape[-1]))
    cosines = cosines.to(torch.promote_types(cosines.dtype, torch.float32))
    # Masked values take no part, whatever they are.
    if row_mask is not None:
        cosines = cosines.masked_fill(~row_mask[..., :, None], 0.0)
    if col_mask is not None:
        cosines = cosines.masked_fill(~col_mask[..., None, :], 0.0)
    check_cosines_finite(cosines)
    batch, (rows, columns) = cosines.shape[:-2], cosines.shape[-2:]
    blocks = cosines.reshape(-1, rows, columns)
    if row_mask is None and col_mask is None:
        chosen = assign_planes(blocks.permute(1, 2, 0)).T
    else:
        row_mask = torch.ones_like(blocks[:, :, 0], dtype=torch.bool) if row_mask is None else row_mask
        col_mask = torch.ones_like(blocks[:, 0, :], dtype=torch.bool) if col_mask is None else col_mask
        chosen = _assign_masked(blocks, row_mask.reshape(-1, rows), col_mask.reshape(-1, columns))
    return chosen.reshape(*batch, rows)


def assign_planes(cosines: Float[Tensor, "K L *batch"]) -> Int[Tensor, "K *batch"]:
    """The matching of every block, without checks: for each row its column, −1 where it has none."""
    rows, columns = cosines.shape[:2]
    if rows == 1:
        return _first_largest(cosines[0])[None]
    flat = cosines.reshape(rows, columns, -1)
    size = max(rows, columns)
    if rows != columns:  # what is matched with a row or column of zeros is unmatched, and no total changes
        square = cosines.new_zeros(size, size, flat.shape[2])
        square[:rows, :columns] = flat
        flat = square
    counts = flat.new_tensor([rows, columns], dtype=torch.long).expand(flat.shape[2], 2)
    chosen = _assign_squares(flat, counts)[:rows]
    return chosen.masked_fill_(chosen >= columns, -1).reshape(rows, *cosines.shape[2:])


def _first_largest(cosines: Tensor) -> Tensor:
    """(L, ...) -> where the largest is, the first of equal ones: a single vector takes the best of the other side."""
    best, chosen = cosines[0], torch.zeros_like(cosines[0], dtype=torch.long)
    for column in range(1, len(cosines)):  # a pass for each is far faster on the CPU than argmax across planes
        chosen = chosen.masked_fill_(cosines[column] > best, column)
        best = torch.maximum(best, cosines[column])
    return chosen


def _assign_squares(squares: Tensor, counts: Tensor) -> Tensor:
    """Solve (n, n, count) squares in chunks; of each the first counts[:, 0] rows and counts[:, 1] columns are real."""
    size, _, total = squares.shape
    if size <= _TABLE_UP_TO:
        solve, values = _by_table, 24 * 5
    elif size <= _SUBSETS_UP_TO:
        solve, values = _by_subsets, 2**size
    else:
        solve, values = _by_hungarian, 8 * size**2
    step = max(1, _CHUNK_BYTES // (values * squares.element_size()))
    chosen = torch.empty(size, total, dtype=torch.long, device=squares.device)
    for start in range(0, total, step):
        part = slice(start, start + step)
        chosen[:, part] = solve(squares[:, :, part], counts[part])
    return chosen


def _assign_masked(blocks: Tensor, row_mask: Tensor, col_mask: Tensor) -> Tensor:
    """Matching with masks: real rows and columns are moved to the front, the others mean "unmatched"."""
    count, rows, columns = blocks.shape
    size = max(rows, columns)
    row_order = row_mask.int().argsort(dim=1, descending=True, stable=True)
    col_order = col_mask.int().argsort(dim=1, descending=True, stable=True)
    square = blocks.new_zeros(count, size, size)
    square[:, :rows, :columns] = blocks.gather(1, row_order[:, :, None].expand(-1, -1, columns)).gather(
        2, col_order[:, None, :].expand(-1, rows, -1)
    )
    counts = torch.stack([row_mask.sum(1), col_mask.sum(1)], 1)
    place = torch.arange(size, device=blocks.device)
    square = hide_padding(square, place < counts[:, :1], place < counts[:, 1:])
    chosen = _assign_squares(square.permute(1, 2, 0).contiguous(), counts).T[:, :rows]
    unmatched = ~row_mask.gather(1, row_order) | (chosen >= counts[:, 1:])
    original = col_order.gather(1, chosen.clamp(max=columns - 1)).masked_fill(unmatched, -1)
    return torch.full_like(row_order, -1).scatter(1, row_order, original)


def hide_padding(
    squares: Float[Tensor, "P n n"], real_row: Bool[Tensor, "P n"], real_col: Bool[Tensor, "P n"]
) -> Float[Tensor, "P n n"]:
    """Squares whose best matching matches the smaller side completely: its members may not take the padding of the
    other side (−∞). All other padding is 0.
    """
    fewer_rows = (real_row.sum(1) <= real_col.sum(1))[:, None, None]
    row, col = real_row[:, :, None], real_col[:, None, :]
    forbidden = (fewer_rows & row & ~col) | (~fewer_rows & ~row & col)
    return squares.masked_fill(~(row & col), 0.0).masked_fill(forbidden, -torch.inf)


def _by_table(cosines: Tensor, counts: Tensor) -> Tensor:
    """The total of every permutation, then the first of the largest. For at most 4! permutations."""
    size, _, count = cosines.shape
    # columns of the last rows -> their total
    ways: dict[tuple[int, ...], Tensor] = {(column,): cosines[-1, column] for column in range(size)}
    for row in range(size - 2, -1, -1):
        longer: list[tuple[int, ...]] = [
            (column, *rest) for column in range(size) for rest in ways if column not in rest
        ]
        totals = cosines.new_empty(len(longer), count)
        for total, way in zip(totals, longer, strict=True):
            torch.add(cosines[row, way[0]], ways[way[1:]], out=total)
        ways = dict(zip(longer, totals, strict=True))
    if size == 1:
        return torch.zeros_like(cosines[0], dtype=torch.long)
    # The first of the largest: those behind it are counted out. Three times as fast on the CPU as max with indices.
    behind = torch.lt(totals, totals.amax(0), out=torch.empty_like(totals)).mul_(len(ways))
    first = behind.add_(torch.arange(len(ways), device=cosines.device)[:, None]).amin(0).long()
    return torch.tensor(list(ways), device=cosines.device).index_select(0, first).T


def _by_subsets(cosines: Tensor, counts: Tensor) -> Tensor:
    """Dynamic programming: best[S] is the largest total of the last |S| rows on the columns S (a bit mask).

    From best, row after row takes the first column that keeps the total largest. No table of permutations.
    """
    size, _, count = cosines.shape
    best = cosines.new_zeros(2**size, count)
    total = cosines.new_empty(count)
    for subset in range(1, 2**size):
        row = cosines[size - subset.bit_count()]
        first, *others = (column for column in range(size) if subset >> column & 1)
        torch.add(row[first], best[subset ^ 1 << first], out=best[subset])
        for column in others:
            torch.add(row[column], best[subset ^ 1 << column], out=total)
            torch.maximum(best[subset], total, out=best[subset])
    chosen = torch.empty(size, count, dtype=torch.long, device=cosines.device)
    left = torch.full((count,), 2**size - 1, device=cosines.device)
    bits = 1 << torch.arange(size, device=cosines.device)[:, None]
    for index in range(size):
        taken = (left & bits) == 0
        values = cosines[index] + best.gather(0, left ^ bits)
        chosen[index] = values.masked_fill_(taken, -torch.inf).max(0).indices
        left = left ^ (1 << chosen[index])
    return chosen


def _by_hungarian(cosines: Tensor, counts: Tensor) -> Tensor:
    """SciPy's solver, problem by problem on the CPU; where optima tie, the lexicographically first is sought."""
    from scipy.optimize import linear_sum_assignment  # half a second, which no smaller set should wait for

    blocks = cosines.permute(2, 0, 1).double().cpu().numpy()
    chosen = np.stack([linear_sum_assignment(block, maximize=True)[1] for block in blocks])
    for index in np.flatnonzero(_has_ties(blocks, chosen, counts.cpu().numpy())):
        chosen[index] = _first_optimum(blocks[index], chosen[index])
    return torch.from_numpy(chosen).T.to(cosines.device)


def _has_ties(blocks: np.ndarray, chosen: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Whether another matching has the same total: whether some cycle of exchanges of columns costs nothing."""
    count, size, _ = blocks.shape
    own = np.take_along_axis(blocks, chosen[:, :, None], 2)
    loss = own - np.take_along_axis(blocks, chosen[:, None, :], 2)  # (n, r, s): row r takes the column of row s
    # Rows of padding and rows matched with padding are alike: one node represents all of them.
    alike = (np.arange(size) >= counts[:, :1]) | (chosen >= counts[:, 1:])
    cost = np.full((count, size + 1, size + 1), np.inf)
    cost[:, :size, :size] = np.where(alike[:, :, None] | alike[:, None, :], np.inf, loss)
    cost[:, size, :size] = np.where(alike, np.inf, np.where(alike[:, :, None], loss, np.inf).min(1))
    cost[:, :size, size] = np.where(alike, np.inf, np.where(alike[:, None, :], loss, np.inf).min(2))
    node = np.arange(size + 1)
    cost[:, node, node] = np.inf
    for via in node:  # Floyd and Warshall: the cheapest chain of exchanges from every row to every row
        np.minimum(cost, cost[:, :, via, None] + cost[:, None, via, :], out=cost)
    return np.asarray((cost[:, node, node] <= _SAME_TOTAL).any(1))


def _first_optimum(block: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The lexicographically first matching with the total of `chosen`: row by row the smallest column that keeps it."""
    from scipy.optimize import linear_sum_assignment

    size = len(chosen)
    total = block[np.arange(size), chosen].sum()
    first: list[int] = []
    free = list(range(size))
    fixed = 0.0
    for row in range(size):
        for column in free:
            rest = [c for c in free if c != column]
            remaining = block[row + 1 :, rest]
            if not np.isfinite(block[row, column]):
                continue
            try:
                rows, columns = linear_sum_assignment(remaining, maximize=True)
            except ValueError:  # forbidden pairs leave no matching for the rest
                continue
            if fixed + block[row, column] + remaining[rows, columns].sum() >= total - _SAME_TOTAL:
                break
        first.append(column)
        free.remove(column)
        fixed += block[row, column]
    return np.array(first)
