"""The best of many sets of four vectors for up to 128 queries on the GPU (Triton): each item is read once, where it
lies.

The fused kernel of `triton_backend` is made for many rows and reorders both sides first, which reads and writes the
whole gallery. Here a program takes a block of items, forms the cosines of all their slots with those of some queries,
matches them, and writes only the best score of each query. The k best items are among the k best blocks, which are then
scored again.

Scores are compared as keys: an int64 whose upper half is the score and whose lower half falls with the place, so that
no two are equal and of equal scores the first is the largest.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from maxmatch.matching.triton_backend import four, sum_exp

MOST_QUERIES = 128
MOST_WANTED = 256
_GROUP = 64  # blocks of which the best is looked for first
_RANKED = 2048  # keys of a row: so few are put in order by comparing each with each


class Cut(NamedTuple):
    """What a program takes: at least 16 queries, the fewest rows of a product of tensor cores; and how it runs."""

    rows: int
    items: int
    warps: int
    stages: int


FEW = Cut(16, 64, 4, 3)
MANY = Cut(16, 64, 4, 2)


@triton.jit
def _rows(base, row, columns, inside, D: tl.constexpr):
    return tl.load(base + row[:, None] * D + columns[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def _scores(queries, items, query, item, asked, there, D: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
            ITEMS: tl.constexpr):  # fmt: skip
    """(ROWS, ITEMS): infinite where an input is not finite, −inf where no item is."""
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
    # A vector that is not finite has no finite cosine, and one of its cosines is among the matched ones.
    finite = tl.abs(p0 + p1 + p2 + p3) < float("inf")
    found = tl.where(finite, sum_exp(p0, p1, p2, p3) * 0.25 - 1.0, float("inf"))
    return tl.where(there[None, :], found, -float("inf"))


@triton.jit
def _keys(score, place):
    bits = score.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as integers in the order of the scores
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - place).to(tl.int64)


@triton.jit
def _wanted(keep, item, n_items, KEEP: tl.constexpr):
    there = item < n_items
    if KEEP:
        there = there & (tl.load(keep + item, mask=there, other=0) != 0)
    return there


@triton.jit(do_not_specialize=["n_queries", "n_items", "blocks", "groups"])
def _best_of_blocks(
    queries, items, keep, best, n_queries, n_items, blocks, groups, KEEP: tl.constexpr, D: tl.constexpr,
    STEP: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    # The groups of queries that read the same items come one after the other, so that these are still in the cache.
    query = tl.program_id(0) % groups * ROWS + tl.arange(0, ROWS)
    block = tl.program_id(0) // groups
    item = block.to(tl.int64) * ITEMS + tl.arange(0, ITEMS)
    asked, there = query < n_queries, _wanted(keep, item, n_items, KEEP)
    found = _scores(queries, items, query, item, asked, there, D, STEP, ROWS, ITEMS)
    tl.store(best + query.to(tl.int64) * blocks + block, _keys(tl.max(found, 1), block), mask=asked)


@triton.jit(do_not_specialize=["n_items", "n_chosen"])
def _of_blocks(
    queries, items, keep, chosen, keys, n_items, n_chosen, KEEP: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr,
    ROWS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """The keys of all items of the blocks that were chosen for each query, to the last bit as in `_best_of_blocks`."""
    program = tl.program_id(0).to(tl.int64)
    block = 0x7FFFFFFF - (tl.load(chosen + program) & 0x7FFFFFFF)
    item = block * ITEMS + tl.arange(0, ITEMS)
    there = _wanted(keep, item, n_items, KEEP)
    row = tl.arange(0, ROWS)
    first = row == 0
    found = _scores(queries, items, row + program // n_chosen, item, first, there, D, STEP, ROWS, ITEMS)
    found = tl.max(tl.where(first[:, None], found, -float("inf")), 0)
    tl.store(keys + program * ITEMS + tl.arange(0, ITEMS), _keys(found, item.to(tl.int32)))


@triton.jit(do_not_specialize=["n", "k"])
def _rank(keys, ranked, n, k, BLOCK: tl.constexpr):
    """Each key goes to the place that the number of larger ones gives, if that is among the first k."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(keys + row * n + place, mask=place < n, other=0)
    larger = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, n, BLOCK):
        other = start + tl.arange(0, BLOCK)
        values = tl.load(keys + row * n + other, mask=other < n, other=0)
        larger += tl.sum(((values[None, :] > own[:, None]) & (other < n)[None, :]).to(tl.int32), 1)
    tl.store(ranked + row * k + larger, own, mask=(place < n) & (larger < k))


def _largest(keys: Tensor, k: int) -> Tensor:
    """The k largest of each row, in descending order. No two are equal."""
    rows, count = keys.shape
    if count > _RANKED:
        return keys.topk(k, dim=1).values
    ranked = keys.new_empty(rows, k)
    _rank[(rows, triton.cdiv(count, 128))](keys, ranked, count, k, BLOCK=128, num_warps=4)
    return ranked


def _places(keys: Tensor) -> Tensor:
    return 0x7FFFFFFF - (keys & 0x7FFFFFFF)


def _values(keys: Tensor) -> Tensor:
    ordered = (keys >> 32).int()
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)


def can_scan(queries: Tensor, items: Tensor, k: int) -> bool:
    """Whether so few of so many such items can be found where they lie."""
    few = 0 < len(queries) <= MOST_QUERIES and k <= MOST_WANTED and 0 < len(items) < 2**31
    fits = queries.shape[1:] == items.shape[1:] and items.shape[1] == 4 and items.shape[2] % 32 == 0
    half = items.dtype in (torch.float16, torch.bfloat16) and queries.dtype == items.dtype
    return few and fits and half and items.is_contiguous() and _tensor_cores(items.device)


def _tensor_cores(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


def scan_bytes(queries: int, items: int, k: int) -> int:
    """How much is allocated on the way, about."""
    return queries * (10 * -(-items // FEW.items) + 24 * FEW.items * k)


def best_hits(
    queries: Tensor, items: Tensor, k: int, keep: Tensor | None = None, cut: Cut | None = None
) -> tuple[Tensor, Tensor]:
    """The k largest scores of each query (Q, 4, D) with the items (C, 4, D) and where they are, both (Q, k), equal ones
    in the order of the items. A score is infinite where a vector is not finite.

    keep: which items (C,) to look at; where fewer than k are kept, the rest scores −inf, at place −1.
    """
    cut = cut or (FEW if len(queries) <= FEW.rows else MANY)
    count, width = len(items), items.shape[2]
    outer, groups = triton.cdiv(count, cut.items * _GROUP), triton.cdiv(len(queries), cut.rows)
    step = 64 if width % 64 == 0 else 32
    queries = queries.contiguous()
    mask = items if keep is None else keep.contiguous().view(torch.uint8)
    how = {
        "KEEP": keep is not None, "D": width, "STEP": step, "ROWS": cut.rows, "ITEMS": cut.items,
        "num_warps": cut.warps, "num_stages": _stages(cut, step, items.device),
    }  # fmt: skip
    best = torch.empty(len(queries), outer, _GROUP, dtype=torch.int64, device=items.device)
    _best_of_blocks[(groups * outer * _GROUP,)](
        queries, items, mask, best, len(queries), count, outer * _GROUP, groups, **how
    )
    chosen = _places(_largest(best.amax(2), min(k, outer))) // _GROUP
    some = best.gather(1, chosen[:, :, None].expand(-1, -1, _GROUP)).flatten(1)
    blocks = _largest(some, min(k, some.shape[1]))
    keys = best.new_empty(len(queries), blocks.shape[1] * cut.items)
    _of_blocks[(blocks.numel(),)](queries, items, mask, blocks, keys, count, blocks.shape[1], **how)
    found = _largest(keys, k)
    scores, places = _values(found), _places(found)
    return scores, places if keep is None else places.masked_fill(scores == -torch.inf, -1)


def _stages(cut: Cut, step: int, device: torch.device) -> int:
    """As many as the shared memory of a smaller GPU holds."""
    if device.type != "cuda":
        return cut.stages
    room = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"]
    return max(1, min(cut.stages, int(room) // (2 * 4 * (cut.rows + cut.items) * step)))
