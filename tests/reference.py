"""The independent slow reference: the definitions in float64, pair by pair. Knows nothing of maxmatch."""

import itertools
import math
from functools import cache

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import avg_pool2d, normalize

NAMES = ("maxmatch", "top_k", "smooth_chamfer", "chamfer", "mil", "mean", "maxsim", "paired", "sinkhorn")


# --- sets to try things on ------------------------------------------------------------------------------------------


def random_sets(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Sets of unit vectors in general position (no ties)."""
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1).to(dtype)


def axis_sets(seed: int, items: int, size: int, width: int) -> Tensor:
    """Sets of vectors along the axes: their cosines are −1, 0 and 1 exactly, so that many scores tie."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.randint(width, (items, size), generator=generator)
    signs = torch.randint(2, (items, size, 1), generator=generator) * 2.0 - 1.0
    return signs * torch.eye(width)[axes]


def random_mask(seed: int, *shape: int) -> Tensor:
    """Which vectors are real: in every item at least one, in no particular place."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(*shape, generator=generator) < 0.6
    mask.scatter_(-1, torch.randint(shape[-1], (*shape[:-1], 1), generator=generator), True)
    return mask


# --- the matching ---------------------------------------------------------------------------------------------------


@cache
def matchings(rows: int, columns: int) -> np.ndarray:
    """All one-to-one matchings in lexicographic order: for each row its column, `columns` where it has none.

    The smaller side is matched completely.
    """

    def ways(row: int, free: tuple[int, ...]) -> list[tuple[int, ...]]:
        if row == rows:
            return [()]
        found = [(column, *rest) for column in free for rest in ways(row + 1, tuple(c for c in free if c != column))]
        if rows - row > len(free):  # there are columns enough for the rows below: this one may stay alone
            found += [(columns, *rest) for rest in ways(row + 1, free)]
        return found

    return np.array(ways(0, tuple(range(columns))))


def first_best_matching(cosines: np.ndarray) -> list[int]:
    """The lexicographically first of the matchings with the largest total, by trying them all."""
    rows, columns = cosines.shape
    padded = np.concatenate([cosines, np.zeros((rows, 1))], 1).astype(np.float64)
    every = matchings(rows, columns)
    totals = padded[np.arange(rows), every].sum(1)
    best = every[totals.argmax()]
    return [-1 if column == columns else int(column) for column in best]


def best_total(cosines: np.ndarray) -> float:
    """The largest total of a one-to-one matching, by SciPy."""
    cosines = cosines.astype(np.float64)
    return float(cosines[linear_sum_assignment(cosines, maximize=True)].sum())


def is_matching(chosen: list[int], row_mask: np.ndarray, col_mask: np.ndarray) -> bool:
    """Whether real rows have real columns of their own, as many as the smaller side has, and other rows −1."""
    taken = [column for column in chosen if column != -1]
    return (
        all(column == -1 or real for column, real in zip(chosen, row_mask, strict=True))
        and all(0 <= column < len(col_mask) and col_mask[column] for column in taken)
        and len(set(taken)) == len(taken) == min(row_mask.sum(), col_mask.sum())
    )


# --- similarities of one pair of sets -------------------------------------------------------------------------------


def maxmatch_of(c: np.ndarray) -> float:
    rows, columns = linear_sum_assignment(c, maximize=True)
    return sum(math.exp(c[i, j]) - 1 for i, j in zip(rows, columns, strict=True)) / min(c.shape)


def _top_k(c: np.ndarray, k: int | None = None) -> float:
    largest = sorted(c.flatten(), reverse=True)[: k or min(c.shape)]
    return sum(math.exp(value) - 1 for value in largest) / len(largest)


def _smooth_chamfer(c: np.ndarray, alpha: float = 16.0) -> float:
    over_y = [math.log(sum(math.exp(alpha * value) for value in row)) for row in c]
    over_x = [math.log(sum(math.exp(alpha * value) for value in column)) for column in c.T]
    return (sum(over_y) / len(over_y) + sum(over_x) / len(over_x)) / (2 * alpha)


def _chamfer(c: np.ndarray) -> float:
    return (sum(max(row) for row in c) / len(c) + sum(max(column) for column in c.T) / len(c.T)) / 2


def _mil(c: np.ndarray) -> float:
    return max(max(row) for row in c)


def _mean(c: np.ndarray) -> float:
    return sum(sum(row) for row in c) / c.size


def _maxsim(c: np.ndarray) -> float:
    return sum(max(row) for row in c)


def _paired(c: np.ndarray) -> float:
    return sum(math.exp(c[i, i]) - 1 for i in range(len(c))) / max(1, len(c))


def transport(
    c: np.ndarray, epsilon: float = 0.05, iterations: int = 50, moved: int | None = None, unrolled: bool = False
) -> np.ndarray:
    """The plan of partial transport, by scaling a kernel in turn: every vector has mass 1, and `moved` of each side
    (None: of the smaller) go to the other side, what is left to a row and a column that are no vector's.

    The larger side is scaled first; of two as large, the rows. unrolled: c is a tensor, whose gradient is kept.
    """
    if c.shape[0] < c.shape[1]:
        return transport(c.T, epsilon, iterations, moved, unrolled).T
    rows, columns = c.shape
    moved = min(rows, columns) if moved is None else moved
    masses = [1.0] * rows + [columns - moved] * (moved < columns), [1.0] * columns + [rows - moved] * (moved < rows)
    exp = torch.exp if unrolled else math.exp
    kernel = [
        [
            exp(c[i, j] / epsilon) if i < rows and j < columns else float(i < rows or j < columns)
            for j, _ in enumerate(masses[1])
        ]
        for i, _ in enumerate(masses[0])
    ]
    down, across = [1.0] * len(masses[0]), [1.0] * len(masses[1])
    for _ in range(iterations):
        down = [
            mass / sum(k * scale for k, scale in zip(row, across, strict=True))
            for mass, row in zip(masses[0], kernel, strict=True)
        ]
        across = [
            mass / sum(row[j] * scale for row, scale in zip(kernel, down, strict=True))
            for j, mass in enumerate(masses[1])
        ]
    plan = [[down[i] * kernel[i][j] * across[j] for j in range(columns)] for i in range(rows)]
    return torch.stack([torch.stack(row) for row in plan]) if unrolled else np.array(plan)


def _sinkhorn(c: np.ndarray, epsilon: float = 0.05, iterations: int = 50) -> float:
    plan = transport(c, epsilon, iterations)
    total = sum(plan[i, j] * (math.exp(c[i, j]) - 1) for i, j in itertools.product(*map(range, c.shape)))
    return total / min(c.shape)


_OF_A_PAIR = {
    "maxmatch": maxmatch_of,
    "top_k": _top_k,
    "smooth_chamfer": _smooth_chamfer,
    "chamfer": _chamfer,
    "mil": _mil,
    "mean": _mean,
    "maxsim": _maxsim,
    "paired": _paired,
    "sinkhorn": _sinkhorn,
}


def scores(
    name: str, a: Tensor, b: Tensor, a_mask: Tensor | None = None, b_mask: Tensor | None = None, **options: float
) -> Tensor:
    """The scores of all pairs, pair by pair; masked vectors are left out before anything is computed. "paired" leaves
    out their partners, too.
    """
    result = torch.empty(len(a), len(b), dtype=torch.float64)
    for (i, x), (j, y) in itertools.product(enumerate(a), enumerate(b)):
        of_x = torch.ones(len(x), dtype=torch.bool) if a_mask is None else a_mask[i]
        of_y = torch.ones(len(y), dtype=torch.bool) if b_mask is None else b_mask[j]
        if name == "paired":
            of_x = of_y = of_x & of_y
        x, y = x[of_x], y[of_y]
        cosines = x.detach().double().numpy() @ y.detach().double().numpy().T
        result[i, j] = _OF_A_PAIR[name](cosines, **options)
    return result


def sorted_hits(matrix: Tensor, k: int) -> list[list[int]]:
    """The k best columns of each row, best first, equal ones in the order of their indices."""
    return [sorted(range(len(row)), key=lambda j: (-row[j], j))[:k] for row in matrix.tolist()]


# --- the paper's listing (lst:assignment_similarity), made to run ---------------------------------------------------


def listing(img_embs: Tensor, txt_embs: Tensor) -> Tensor:
    """The listing, corrected to agree with the paper's text: a permutation's cosines are summed before the argmax, and
    the score is the mean over pairs.
    """
    (images, size, _), texts = img_embs.shape, len(txt_embs)
    dist = normalize(img_embs, dim=-1).flatten(0, 1) @ normalize(txt_embs, dim=-1).flatten(0, 1).T
    permutations = torch.tensor(list(itertools.permutations(range(size))), dtype=torch.long)
    columns = torch.arange(size).repeat(len(permutations), 1)
    mask = torch.zeros_like(dist)
    for i, j in itertools.product(range(images), range(texts)):
        rows_of_block, columns_of_block = i * size + permutations, j * size + columns
        best = dist[rows_of_block, columns_of_block].sum(1).argmax()
        mask[rows_of_block[best], columns_of_block[best]] = 1
    max_similarity = mask * dist
    return (avg_pool2d(torch.exp(max_similarity.unsqueeze(0)) - 1, size) * size).squeeze(0)
