"""Matching and similarities of a few thousand pairs in NumPy, for a search that never loads torch."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
from jaxtyping import Float, Int

from maxmatch.core.array_checks import check_equal_sizes

LARGEST = 8
"""Vectors in a set up to which `assign` works: beyond, its table of subsets would be too large."""
_TABLE_UP_TO = 4
_NO_CERTAINTY = 1e-9  # of a Gaussian: below, its variance is no longer told apart
_ONE_THREAD = 2**18  # multiplications: OpenBLAS shares out more among threads, which then spin for milliseconds
_ROWS = 32


def product_in_this_thread(a: Float[np.ndarray, "N W"], b: Float[np.ndarray, "W M"]) -> Float[np.ndarray, "N M"]:
    """a @ b for few rows, in pieces for which OpenBLAS wakes no other thread."""
    product = np.empty((len(a), b.shape[1]), np.result_type(a, b))
    for start in range(0, len(a), _ROWS):
        rows = slice(start, start + _ROWS)
        step = max(1, _ONE_THREAD // max(1, a[rows].size))
        for first in range(0, b.shape[1], step):
            columns = slice(first, first + step)
            np.matmul(a[rows], b[:, columns], out=product[rows, columns])
    return product


def cosine_planes(queries: Float[np.ndarray, "B K D"], items: Float[np.ndarray, "C L D"]) -> Float[np.ndarray, "K L P"]:
    """The cosines of all pairs: pair b·C + c is query b with item c."""
    (count, rows, width), (others, columns, _) = queries.shape, items.shape
    products = queries.reshape(-1, width) @ items.reshape(-1, width).T
    planes = products.reshape(count, rows, others, columns).transpose(1, 3, 0, 2)
    return np.ascontiguousarray(planes).reshape(rows, columns, count * others)


def assign(cosines: Float[np.ndarray, "K L P"]) -> Int[np.ndarray, "K P"]:
    """`assignment.maximal_assignment` of each pair: for each row its column, −1 where it has none."""
    rows, columns, pairs = cosines.shape
    size = max(rows, columns)
    assert size <= LARGEST, f"sets of {size} vectors"
    if rows == 1:
        best: np.ndarray = np.argmax(cosines, 1)
        return best
    if rows != columns:  # what is matched with a row or column of zeros is unmatched, and no total changes
        square = np.zeros((size, size, pairs), cosines.dtype)
        square[:rows, :columns] = cosines
        cosines = square
    chosen = (_by_table if size <= _TABLE_UP_TO else _by_subsets)(cosines)[:rows]
    return np.where(chosen < columns, chosen, -1)


def _by_table(cosines: np.ndarray) -> np.ndarray:
    """The total of every permutation, then the first of the largest."""
    ways = np.array(list(permutations(range(len(cosines)))))
    totals = cosines[-1, ways[:, -1]]
    for row in range(len(cosines) - 2, -1, -1):  # added up from the last row on, as in `assignment`: the same rounding
        totals = cosines[row, ways[:, row]] + totals
    return np.ascontiguousarray(ways[totals.argmax(0)].T)


def _by_subsets(cosines: np.ndarray) -> np.ndarray:
    """best[S] is the largest total of the last |S| rows on the columns S (a bit mask); row after row then takes the
    first column that keeps it.
    """
    size, _, pairs = cosines.shape
    best = np.zeros((2**size, pairs), cosines.dtype)
    for subset in range(1, 2**size):
        row = cosines[size - subset.bit_count()]
        columns = [column for column in range(size) if subset >> column & 1]
        best[subset] = np.max([row[column] + best[subset ^ 1 << column] for column in columns], axis=0)
    chosen = np.empty((size, pairs), np.int64)
    left = np.full(pairs, 2**size - 1)
    bits = 1 << np.arange(size)[:, None]
    for index in range(size):
        values = cosines[index] + np.take_along_axis(best, left ^ bits, 0)
        chosen[index] = np.where(left & bits, values, -np.inf).argmax(0)
        left ^= 1 << chosen[index]
    return chosen


def matched(cosines: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The cosines (K, P) of a matching, 0 for a row that has no partner."""
    taken = np.take_along_axis(cosines, chosen.clip(min=0)[:, None], 1)[:, 0]
    return np.where(chosen < 0, np.zeros_like(taken), taken)


# The similarities, each under the name it has in `maxmatch.matching.SIMILARITIES`: planes (K, L, P) -> scores (P,).


def maxmatch(cosines: Float[np.ndarray, "K L P"]) -> Float[np.ndarray, "P"]:
    """The mean of exp(c) − 1 over the matched cosines."""
    if len(cosines) > cosines.shape[1]:  # then it is the columns that are matched completely
        cosines = cosines.transpose(1, 0, 2)
    return mean_exp(matched(cosines, assign(cosines)))


def mean_exp(cosines: Float[np.ndarray, "K P"]) -> Float[np.ndarray, "P"]:
    """The mean of exp(c) − 1 over matched cosines."""
    scores: np.ndarray = np.exp(cosines).mean(0) - 1
    return scores


def top_k(cosines: Float[np.ndarray, "K L P"], k: int | None) -> Float[np.ndarray, "P"]:
    """The mean of exp(c) − 1 over the k largest cosines."""
    largest = -np.sort(-cosines.reshape(-1, cosines.shape[2]), axis=0)[: k or min(cosines.shape[:2])]
    scores: np.ndarray = np.expm1(largest).mean(0)
    return scores


def smooth_chamfer(cosines: Float[np.ndarray, "K L P"], alpha: float) -> Float[np.ndarray, "P"]:
    """The Chamfer similarity with a soft maximum."""

    def soft_maximum(cosines: np.ndarray, axis: int) -> np.ndarray:
        highest = cosines.max(axis, keepdims=True)
        soft: np.ndarray = np.log(np.exp(alpha * (cosines - highest)).sum(axis)) / alpha + highest.squeeze(axis)
        return soft

    return _both_ways(cosines, soft_maximum)


def chamfer(cosines: Float[np.ndarray, "K L P"]) -> Float[np.ndarray, "P"]:
    """Each vector with its best partner, averaged over both sets."""
    return _both_ways(cosines, np.max)


def _both_ways(cosines: np.ndarray, best: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    scores: np.ndarray = (best(cosines, 1).mean(0) + best(cosines, 0).mean(0)) / 2
    return scores


def mil(cosines: Float[np.ndarray, "K L P"]) -> Float[np.ndarray, "P"]:
    """The largest cosine."""
    scores: np.ndarray = cosines.max((0, 1))
    return scores


def mean(cosines: Float[np.ndarray, "K L P"]) -> Float[np.ndarray, "P"]:
    """The average cosine."""
    scores: np.ndarray = cosines.mean((0, 1))
    return scores


def maxsim(cosines: Float[np.ndarray, "K L P"]) -> Float[np.ndarray, "P"]:
    """Each vector of the query with its best, added up."""
    scores: np.ndarray = cosines.max(1).sum(0)
    return scores


def paired(cosines: Float[np.ndarray, "K K P"]) -> Float[np.ndarray, "P"]:
    """The mean of exp(c) − 1 over the slots, slot i with slot i."""
    check_equal_sizes(*cosines.shape[:2])
    slots = np.arange(len(cosines))
    return mean_exp(cosines[slots, slots])


def sinkhorn(cosines: Float[np.ndarray, "K L P"], epsilon: float, iterations: int) -> Float[np.ndarray, "P"]:
    """The mean of exp(c) − 1 over a soft matching: `transport.transport_plan`, of sets whose vectors are all real."""
    if len(cosines) < cosines.shape[1]:
        cosines = cosines.transpose(1, 0, 2)
    rows, columns, pairs = cosines.shape
    log_mass = np.zeros((1, columns, 1), cosines.dtype)
    x = cosines
    if rows > columns:  # what is left of the larger set
        x = np.concatenate([cosines, np.zeros((rows, 1, pairs), cosines.dtype)], 1)
        log_mass = np.append(log_mass, np.full((1, 1, 1), np.log(rows - columns), cosines.dtype), 1)
    x = (x - x.max(1, keepdims=True)) / np.asarray(epsilon, cosines.dtype)
    f = -_log_sum_exp(x, 1)
    for _ in range(int(iterations) - 1):
        g = log_mass - _log_sum_exp(x + f, 0)
        f = -_log_sum_exp(x + g, 1)
    x = (x + f)[:, :columns]
    plan = np.exp(x - _log_sum_exp(x, 0))
    scores: np.ndarray = (plan * np.expm1(cosines)).sum((0, 1)) / columns
    return scores


def _log_sum_exp(values: np.ndarray, axis: int) -> np.ndarray:
    highest = values.max(axis, keepdims=True)
    summed: np.ndarray = np.log(np.exp(values - highest).sum(axis, keepdims=True)) + highest
    return summed


def csd(cosines: Float[np.ndarray, "K L P"]) -> Float[np.ndarray, "P"]:
    """Minus the closed-form sampled distance of Gaussians: see `matching.similarity.csd`."""
    if cosines.shape[:2] != (2, 2):
        raise ValueError(f"csd compares Gaussians, sets of 2 vectors, got {cosines.shape[0]} and {cosines.shape[1]}.")
    wide = np.sqrt(0.5) / np.maximum(cosines[0, 1], _NO_CERTAINTY)
    tall = np.sqrt(0.5) / np.maximum(cosines[1, 0], _NO_CERTAINTY)
    scores: np.ndarray = 4 * cosines[0, 0] - 2 - wide - tall
    return scores
