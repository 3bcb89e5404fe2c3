"""How the scores of a tile of pairs are made: a product and the matching, in the way that is fastest on a device."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maxmatch.matching.products import few_products, multiply


@dataclass(frozen=True)
class Scorer:
    """How the scores of a tile are made."""

    pack_rows: Callable[[Tensor], Any]
    pack_columns: Callable[[Tensor], Any]
    score: Callable[[Any, Any, Tensor, slice, slice], Tensor | None]
    """(packed rows, packed columns, where to write the scores, which rows, which columns) -> a sum that is not finite
    if any input of the tile is not finite; None if the inputs were already checked."""
    bytes_per_pair: int
    best_tile: tuple[int, int]
    """Rows and columns of a tile where memory allows: small on the CPU, to stay in its caches."""


def same(sets: Tensor) -> Tensor:
    """No packing."""
    return sets


def _slot_major(sets: Tensor) -> Tensor:
    """(B, K, D) -> (K·B, D): the vectors of slot 0 first, so that a product comes out in planes."""
    return sets.transpose(0, 1).reshape(-1, sets.shape[2])


def compiled_scorer(compiled: Any, pool: ThreadPoolExecutor, size: int) -> Scorer:
    """The CPU's: a product in planes, and compiled code for the matching."""
    space: dict[str, Tensor] = {}  # one for all tiles: touching fresh memory costs more than the matching

    def reuse(name: str, *shape: int) -> Tensor:
        numbers = math.prod(shape)
        if name not in space:
            space[name] = torch.empty(numbers)  # the first tile is the largest
        return space[name][:numbers].view(shape)

    def pack_rows(sets: Tensor) -> tuple[Tensor, Tensor]:
        vectors = _slot_major(sets.float())
        return vectors, vectors.sum()

    def pack_columns(sets: Tensor) -> tuple[Tensor, Tensor]:
        count, _, width = sets.shape
        vectors = reuse("columns", size, count, width).copy_(sets.transpose(0, 1)).view(-1, width)
        return vectors, vectors.sum()

    def score(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], out: Tensor, rows: slice, columns: slice) -> Tensor:
        (x, x_sum), (y, y_sum), (height, width) = a, b, out.shape
        product = torch.mm(x, y.T, out=reuse("product", size * height, size * width))
        total: float = compiled.plane_scores(product.view(size, height, size, width), out, pool)
        return x_sum + y_sum + total

    return Scorer(pack_rows, pack_columns, score, bytes_per_pair=4 * size**2, best_tile=(1024, 1024))


def compiled_few_scorer(compiled: Any, pool: ThreadPoolExecutor) -> Scorer:
    """The CPU's for so few rows that a packed copy of the columns would cost more than it saves: product and matching
    in one pass, which reads the columns in place.
    """

    def score(x: Tensor, y: Tensor, out: Tensor, rows: slice, columns: slice) -> Tensor:
        total: float = compiled.few_scores(x, y.detach().contiguous(), out, pool)
        return torch.tensor(total)

    return Scorer(lambda sets: _slot_major(sets.detach().float()), same, score, bytes_per_pair=0, best_tile=(64, 2**14))


def few_scorer(kernels: Any, size: int) -> Scorer:
    """The GPU's for so few rows that a packed copy of the columns would cost more than it saves."""

    def score(x: Tensor, y: Tensor, out: Tensor, rows: slice, columns: slice) -> Tensor:
        height, width = out.shape
        planes = few_products(x, y).view(size, height, size, width)
        kernels.plane_scores(planes.transpose(1, 2), out)
        return planes.sum()

    return Scorer(_slot_major, same, score, bytes_per_pair=4 * (2 * size + 1) * size, best_tile=(64, 2**20))


def plane_scorer(kernels: Any, size: int) -> Scorer:
    """The GPU's for up to eight vectors and full float32: the library's product, then one kernel."""

    def score(x: Tensor, y: Tensor, out: Tensor, rows: slice, columns: slice) -> Tensor:
        height, width = out.shape
        kernels.plane_scores(multiply(x, y).view(size, height, size, width).transpose(1, 2), out)
        return _total(x) + _total(y)

    return Scorer(_slot_major, _slot_major, score, bytes_per_pair=4 * size**2, best_tile=(8192, 32768))


def fused_scorer(kernels: Any) -> Scorer:
    """The GPU's for four or eight vectors: product and matching in one kernel."""

    def score(x: Any, y: Any, out: Tensor, rows: slice, columns: slice) -> Tensor:
        watched: Tensor = kernels.fused_scores(x, y, out)
        return watched

    return Scorer(kernels.pack_rows, kernels.pack_columns, score, bytes_per_pair=0, best_tile=(8192, 32768))


def _total(vectors: Tensor) -> Tensor:
    """A sum that is not finite if any of the values is not."""
    return vectors.sum(dtype=torch.float32)
