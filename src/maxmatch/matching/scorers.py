"""How the scores of a tile are made: compiled code on the CPU, kernels on the GPU."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maxmatch.matching.products import few_products, multiply

Watch = Callable[[Tensor], None]
"""Takes a sum over what went into a tile: if it is not finite, something in there is not."""


@dataclass(frozen=True)
class Scorer:
    """How the scores of a tile are made."""

    pack_rows: Callable[[Tensor], Any]
    pack_columns: Callable[[Tensor], Any]
    score: Callable[[Any, Any, Tensor, slice, slice], None]
    """(packed rows, packed columns, where to write the scores, which rows, which columns)"""
    bytes_per_pair: int
    best_tile: tuple[int, int]
    """Rows and columns of a tile where memory allows: small on the CPU, to stay in its caches."""


def same(sets: Tensor) -> Tensor:
    """No packing."""
    return sets


def _slot_major(sets: Tensor) -> Tensor:
    """(B, K, D) -> (K·B, D): the vectors of slot 0 first, so that a product comes out in planes."""
    return sets.transpose(0, 1).reshape(-1, sets.shape[2])


def compiled_scorer(compiled: Any, pool: ThreadPoolExecutor, watch: Watch) -> Scorer:
    """The CPU's: a product in planes, and compiled code for the matching."""
    space: dict[str, Tensor] = {}  # one for all tiles: touching fresh memory costs more than the matching

    def reuse(name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in space:
            space[name] = torch.empty(size)  # the first tile is the largest
        return space[name][:size].view(shape)

    def pack_columns(sets: Tensor) -> Tensor:
        count, size, width = sets.shape
        watch(_total(sets))
        return reuse("columns", size, count, width).copy_(sets.transpose(0, 1)).view(-1, width)

    def pack_rows(sets: Tensor) -> Tensor:
        watch(_total(sets))
        return _slot_major(sets.float())

    def score(x: Tensor, y: Tensor, out: Tensor, rows: slice, columns: slice) -> None:
        height, width = out.shape
        product = torch.mm(x, y.T, out=reuse("product", 4 * height, 4 * width))
        matched = reuse("matched", 4, height, width)
        compiled_scores(compiled, pool, product.view(4, height, 4, width), out, matched)
        watch(out.sum())

    return Scorer(pack_rows, pack_columns, score, bytes_per_pair=20 * 4, best_tile=(512, 1024))


def few_scorer(scores: Callable[[Tensor, Tensor], None], size: int, watch: Watch, best_tile: tuple[int, int]) -> Scorer:
    """For so few rows that a packed copy of the columns would cost more than it saves: those are read where they lie.

    scores: writes the scores (B, C) of planes (K, B, K, C).
    """

    def score(x: Tensor, y: Tensor, out: Tensor, rows: slice, columns: slice) -> None:
        height, width = out.shape
        planes = few_products(x, y).view(size, height, size, width)
        scores(planes, out)
        watch(planes.sum())

    return Scorer(_slot_major, same, score, bytes_per_pair=4 * (2 * size + 1) * size, best_tile=best_tile)


def compiled_scores(
    compiled: Any, pool: ThreadPoolExecutor, planes: Tensor, out: Tensor, matched: Tensor | None = None
) -> None:
    """Of planes (4, B, 4, C), by the compiled code for the CPU. matched: room for the matched cosines (4, B, C)."""
    if matched is None:
        matched = torch.empty(4, *out.shape)
    compiled.matched_cosines(planes, matched, pool)
    torch.mean(matched.exp_(), 0, out=out).sub_(1)


def plane_scorer(kernels: Any, size: int, watch: Watch) -> Scorer:
    """The GPU's for up to eight vectors and full float32: the library's product, then one kernel."""

    def score(x: Tensor, y: Tensor, out: Tensor, rows: slice, columns: slice) -> None:
        height, width = out.shape
        kernels.plane_scores(multiply(x, y).view(size, height, size, width).transpose(1, 2), out)
        watch(_total(x) + _total(y))

    return Scorer(_slot_major, _slot_major, score, bytes_per_pair=4 * size**2, best_tile=(8192, 32768))


def fused_scorer(kernels: Any, watch: Watch) -> Scorer:
    """The GPU's for four vectors: product and matching in one kernel."""

    def score(x: Tensor, y: Tensor, out: Tensor, rows: slice, columns: slice) -> None:
        kernels.fused_scores(x, y, out)
        watch(_total(x) + _total(y))

    return Scorer(kernels.pack_rows, kernels.pack_columns, score, bytes_per_pair=0, best_tile=(8192, 32768))


def _total(vectors: Tensor) -> Tensor:
    """A sum that is not finite if any of the values is not."""
    return vectors.sum(dtype=torch.float32)
