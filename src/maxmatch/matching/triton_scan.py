"""A few queries against many sets of four vectors on the GPU (Triton): each item is read once, where it lies.

The fused kernel of `triton_backend` is made for many rows and reorders both sides first, which reads and writes the
whole gallery. Here a program takes 64 items, forms the cosines of all their slots with those of up to 16 queries,
matches them, and writes the scores and the best of them; the k best are then among the k best blocks.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from maxmatch.matching.triton_backend import four, sum_exp

QUERIES = 16  # at most: the fewest rows that a product of tensor cores takes
_ITEMS = 64


@triton.jit
def _rows(base, row, columns, inside, D: tl.constexpr):
    return tl.load(base + row[:, None] * D + columns[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def _scan(
    queries, items, scores, best, n_queries, n_items, blocks, D: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
    ITEMS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    query = tl.arange(0, ROWS)
    item = block.to(tl.int64) * ITEMS + tl.arange(0, ITEMS)
    asked, there = query < n_queries, item < n_items
    zero = tl.zeros((ROWS, ITEMS), tl.float32)
    c00, c01, c02, c03 = zero, zero, zero, zero
    c10, c11, c12, c13 = zero, zero, zero, zero
    c20, c21, c22, c23 = zero, zero, zero, zero
    c30, c31, c32, c33 = zero, zero, zero, zero
    for start in range(0, D, STEP):
        columns = start + tl.arange(0, STEP)
        y0 = tl.trans(_rows(items, item * 4, columns, there, D))
        y1 = tl.trans(_rows(items, item * 4 + 1, columns, there, D))
        y2 = tl.trans(_rows(items, item * 4 + 2, columns, there, D))
        y3 = tl.trans(_rows(items, item * 4 + 3, columns, there, D))
        x = _rows(queries, query * 4, columns, asked, D)
        c00, c01, c02, c03 = tl.dot(x, y0, c00), tl.dot(x, y1, c01), tl.dot(x, y2, c02), tl.dot(x, y3, c03)
        x = _rows(queries, query * 4 + 1, columns, asked, D)
        c10, c11, c12, c13 = tl.dot(x, y0, c10), tl.dot(x, y1, c11), tl.dot(x, y2, c12), tl.dot(x, y3, c13)
        x = _rows(queries, query * 4 + 2, columns, asked, D)
        c20, c21, c22, c23 = tl.dot(x, y0, c20), tl.dot(x, y1, c21), tl.dot(x, y2, c22), tl.dot(x, y3, c23)
        x = _rows(queries, query * 4 + 3, columns, asked, D)
        c30, c31, c32, c33 = tl.dot(x, y0, c30), tl.dot(x, y1, c31), tl.dot(x, y2, c32), tl.dot(x, y3, c33)
    r0 = (c00, c01, c02, c03)
    r1 = (c10, c11, c12, c13)
    r2 = (c20, c21, c22, c23)
    r3 = (c30, c31, c32, c33)
    p0, p1, p2, p3 = four(r0, r1, r2, r3, r0, r1, r2, r3)
    found = sum_exp(p0, p1, p2, p3) * 0.25 - 1.0
    inside = asked[:, None] & there[None, :]
    tl.store(scores + query.to(tl.int64)[:, None] * n_items + item[None, :], found, mask=inside)
    top = tl.max(tl.where(there[None, :], found, -float("inf")), 1)
    tl.store(best + query.to(tl.int64) * blocks + block, top, mask=asked)


def can_scan(queries: Tensor, items: Tensor) -> bool:
    """Whether so few queries and such items can be scanned where they lie."""
    fits = len(queries) <= QUERIES and queries.shape[1:] == items.shape[1:] and items.shape[1] == 4
    half = items.dtype in (torch.float16, torch.bfloat16) and queries.dtype == items.dtype
    return fits and half and items.shape[2] % 32 == 0 and items.is_contiguous()


def scan(queries: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """The scores (Q, C) of sets of four vectors, and the best of each block of items (Q, blocks)."""
    blocks, width = triton.cdiv(len(items), _ITEMS), items.shape[2]
    scores = torch.empty(len(queries), len(items), device=items.device)
    best = torch.empty(len(queries), blocks, device=items.device)
    _scan[(blocks,)](
        queries.contiguous(), items, scores, best, len(queries), len(items), blocks, D=width,
        STEP=64 if width % 64 == 0 else 32, ROWS=QUERIES, ITEMS=_ITEMS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return scores, best


def best_places(scores: Tensor, best: Tensor, k: int, first_largest) -> tuple[Tensor, Tensor]:
    """The k largest scores of each row and where they are, equal ones in the order of their columns. first_largest: the
    same for a row that is looked at whole; only the k best blocks are.
    """
    blocks = first_largest(best, min(k, best.shape[1]))[1].sort(dim=1).values
    places = (blocks[:, :, None] * _ITEMS + torch.arange(_ITEMS, device=scores.device)).flatten(1)
    inside = places < scores.shape[1]
    some = scores.gather(1, places.clamp(max=scores.shape[1] - 1)).masked_fill(~inside, -torch.inf)
    values, order = first_largest(some, k)
    return values, places.gather(1, order)
