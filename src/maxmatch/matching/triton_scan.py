"""The best of many sets of four vectors for up to 128 queries on the GPU (Triton): each item is read once, where it
lies.

The fused kernel of `triton_backend` is made for many rows and reorders both sides first, which reads and writes the
whole gallery. Here a program takes a block of items, forms the cosines of all their slots with those of some queries,
matches them, and writes only the best score of each query. The k best items are among the k best blocks, which are then
scored again. Four launches: scan, choice of blocks, scores of their items, ranks; a choice more where there are more
than 16,384 blocks or more than 2,048 of their items.

Scores are compared as keys: an int64 whose upper half is the score and whose lower half falls with the place, so that
no two are equal and of equal scores the first is the largest.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from maxmatch.matching.triton_blocks import four, sum_exp
from maxmatch.matching.triton_fused import column_order, row_order, tile_matched

MOST_QUERIES = 128
MOST_WANTED = 256
_RANKED = 2048  # keys of a row: so few are put in order by comparing each with each
_CHOSEN = 16_384  # keys of a row of which one program chooses: they stay in its registers


class Cut(NamedTuple):
    """What a program takes: at least 16 queries, the fewest rows of a product of tensor cores; and how it runs."""

    rows: int
    items: int
    warps: int
    stages: int


FEW = Cut(16, 64, 4, 3)
MANY = Cut(16, 64, 4, 2)
LARGE = Cut(64, 32, 8, 3)  # of the fused kernel: 256 × 128 products
_WORTH_LARGE = 32  # queries: up to so many, reading the items more than once costs less than half-empty products


@triton.jit
def _rows(base, row, columns, inside, D: tl.constexpr):
    return tl.load(base + row[:, None] * D + columns[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def _looked_at(keep, item, n_items, D: tl.constexpr, KEEP: tl.constexpr):
    """Which items count, and how many numbers of each vector to read: none where no item counts. Reads do not depend on
    a single item's mark: by its eight bits the compiler would choose another order of addition in the products.
    """
    wanted, length = item < n_items, D
    if KEEP:
        wanted = wanted & (tl.load(keep + item, mask=wanted, other=0) != 0)
        length = tl.where(tl.max(wanted.to(tl.int32), 0) > 0, D, 0)
    return wanted, length


@triton.jit
def _score(p0, p1, p2, p3):
    """Of the matched cosines; infinite where one is not finite. A vector that is not finite has no finite cosine, and
    one of its cosines is among the matched ones.
    """
    finite = tl.abs(p0 + p1 + p2 + p3) < float("inf")
    return tl.where(finite, sum_exp(p0, p1, p2, p3) * 0.25 - 1.0, float("inf"))


@triton.jit
def _scores(queries, items, query, item, asked, there, length, D: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
            ITEMS: tl.constexpr):  # fmt: skip
    """(ROWS, ITEMS)"""
    zero = tl.zeros((ROWS, ITEMS), tl.float32)
    c00, c01, c02, c03 = zero, zero, zero, zero
    c10, c11, c12, c13 = zero, zero, zero, zero
    c20, c21, c22, c23 = zero, zero, zero, zero
    c30, c31, c32, c33 = zero, zero, zero, zero
    for start in range(0, length, STEP):
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
    return _score(p0, p1, p2, p3)


@triton.jit
def _keys(score, place):
    bits = score.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as integers in the order of the scores
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - place).to(tl.int64)


@triton.jit(do_not_specialize=["n_queries", "n_items", "blocks", "groups"])
def _best_of_blocks(
    queries, items, keep, best, n_queries, n_items, blocks, groups, KEEP: tl.constexpr, D: tl.constexpr,
    STEP: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    # The groups of queries that read the same items come one after the other, so that these are still in the cache.
    query = tl.program_id(0) % groups * ROWS + tl.arange(0, ROWS)
    block = tl.program_id(0) // groups
    item = block.to(tl.int64) * ITEMS + tl.arange(0, ITEMS)
    asked = query < n_queries
    wanted, length = _looked_at(keep, item, n_items, D, KEEP)
    found = _scores(queries, items, query, item, asked, item < n_items, length, D, STEP, ROWS, ITEMS)
    found = tl.max(tl.where(wanted[None, :], found, -float("inf")), 1)
    tl.store(best + query.to(tl.int64) * blocks + block, _keys(found, block), mask=asked)


@triton.jit(do_not_specialize=["n_queries", "n_items", "blocks", "groups"])
def _best_of_tiles(
    queries, items, keep, best, n_queries, n_items, blocks, groups, KEEP: tl.constexpr, D: tl.constexpr,
    STEP: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """The same by one product of 64 queries and 32 items, both read in the order of the fused kernel."""
    group, block = tl.program_id(0) % groups, tl.program_id(0) // groups
    row_query, row_slot = row_order(tl.arange(0, 4 * ROWS), 4, 4 * ROWS)
    column_item, column_slot = column_order(tl.arange(0, 4 * ITEMS), 4)
    row_query, column_item = group * ROWS + row_query, block.to(tl.int64) * ITEMS + column_item
    wanted, length = _looked_at(keep, block.to(tl.int64) * ITEMS + tl.arange(0, ITEMS), n_items, D, KEEP)
    products = tl.zeros((4 * ROWS, 4 * ITEMS), tl.float32)
    for start in range(0, length, STEP):
        columns = start + tl.arange(0, STEP)
        x = _rows(queries, row_query * 4 + row_slot, columns, row_query < n_queries, D)
        y = _rows(items, column_item * 4 + column_slot, columns, column_item < n_items, D)
        products = tl.dot(x, tl.trans(y), products)
    p0, p1, p2, p3 = tile_matched(products, 4 * ROWS)
    found = tl.reshape(_score(p0, p1, p2, p3), (ROWS, ITEMS))
    found = tl.max(tl.where(wanted[None, :], found, -float("inf")), 1)
    query = group * ROWS + tl.arange(0, ROWS)
    tl.store(best + query.to(tl.int64) * blocks + block, _keys(found, block), mask=query < n_queries)


@triton.jit(do_not_specialize=["n", "k", "part"])
def _choose(keys, chosen, n, k, part, BLOCK: tl.constexpr):
    """The k largest keys of each part of a row, in no order: those that reach the k-th, which is found bit by bit.
    Where a part has fewer, the least there is follows them.
    """
    place = tl.arange(0, BLOCK)
    column = tl.program_id(1) * part + place
    inside = (place < part) & (column < n)
    least = tl.full((), 1, tl.int64) << 63
    own = tl.load(keys + tl.program_id(0).to(tl.int64) * n + column, mask=inside, other=0)
    own = tl.where(inside, own, least)
    level = tl.where(tl.sum((own >= 0).to(tl.int32), 0) >= k, tl.zeros((), tl.int64), least)
    for bit in range(63):
        higher = level | (tl.full((), 1, tl.int64) << (62 - bit))
        level = tl.where(tl.sum((own >= higher).to(tl.int32), 0) >= k, higher, level)
    taken = inside & (own >= level)
    number = tl.cumsum(taken.to(tl.int32), 0)
    target = chosen + (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * k
    tl.store(target + number - 1, own, mask=taken)
    tl.store(target + place, tl.zeros((BLOCK,), tl.int64) + least, mask=(place >= tl.max(number, 0)) & (place < k))


@triton.jit(do_not_specialize=["n_items", "n_chosen"])
def _of_blocks(
    queries, items, keep, chosen, keys, n_items, n_chosen, KEEP: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr,
    ROWS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """The keys of all items of the blocks that were chosen for each query."""
    program = tl.program_id(0).to(tl.int64)
    block = 0x7FFFFFFF - (tl.load(chosen + program) & 0x7FFFFFFF)
    item = block * ITEMS + tl.arange(0, ITEMS)
    wanted, length = _looked_at(keep, item, n_items, D, KEEP)
    query = program // n_chosen + tl.arange(0, ROWS)
    first = tl.arange(0, ROWS) == 0
    found = _scores(queries, items, query, item, first, item < n_items, length, D, STEP, ROWS, ITEMS)
    found = tl.max(tl.where(first[:, None], found, -float("inf")), 0)
    found = tl.where(wanted, found, -float("inf"))
    tl.store(keys + program * ITEMS + tl.arange(0, ITEMS), _keys(found, item.to(tl.int32)))


@triton.jit(do_not_specialize=["n", "k"])
def _rank(keys, scores, places, n, k, BLOCK: tl.constexpr):
    """Each key goes to the place that the number of larger ones gives, if that is among the first k: its score, and its
    place, which is −1 for a score of −inf.
    """
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(keys + row * n + place, mask=place < n, other=0)
    larger = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, n, BLOCK):
        other = start + tl.arange(0, BLOCK)
        values = tl.load(keys + row * n + other, mask=other < n, other=0)
        larger += tl.sum(((values[None, :] > own[:, None]) & (other < n)[None, :]).to(tl.int32), 1)
    ordered = (own >> 32).to(tl.int32)
    score = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    source = tl.where(score == -float("inf"), -1, 0x7FFFFFFF - (own & 0x7FFFFFFF))
    among = (place < n) & (larger < k)
    tl.store(scores + row * k + larger, score, mask=among)
    tl.store(places + row * k + larger, source, mask=among)


def _largest(keys: Tensor, k: int) -> Tensor:
    """The k largest of each row, in no order. No two are equal."""
    rows, count = keys.shape
    while count > k:
        parts = triton.cdiv(count, _CHOSEN)
        part = triton.cdiv(count, parts)
        chosen = keys.new_empty(rows, parts * k)
        _choose[(rows, parts)](keys, chosen, count, k, part, BLOCK=1024 if part <= 1024 else _CHOSEN,
                               num_warps=4 if part <= 1024 else 32)  # fmt: skip
        keys, count = chosen, parts * k
    return keys


def can_scan(queries: Tensor, items: Tensor, k: int) -> bool:
    """Whether so few of so many such items can be found where they lie."""
    few = 0 < len(queries) <= MOST_QUERIES and k <= MOST_WANTED and 0 < len(items) < 2**31
    fits = queries.shape[1:] == items.shape[1:] and items.shape[1] == 4 and items.shape[2] % 32 == 0
    half = items.dtype in (torch.float16, torch.bfloat16) and queries.dtype == items.dtype
    return few and fits and half and items.is_contiguous() and _capability(items.device) >= (8, 0)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


@cache
def _room(device: torch.device) -> int:
    """Bytes of shared memory of a program."""
    if device.type != "cuda":
        return 227 * 1024
    return int(triton.runtime.driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"])


def _cut_for(queries: int, step: int, device: torch.device) -> Cut:
    """With as many stages as the shared memory of a smaller GPU holds."""
    if queries <= FEW.rows:
        cut = FEW
    elif queries > _WORTH_LARGE and _capability(device) >= (9, 0) and _stage_bytes(LARGE, step) * 3 <= _room(device):
        cut = LARGE
    else:
        cut = MANY
    return cut._replace(stages=max(1, min(cut.stages, _room(device) // _stage_bytes(cut, step))))


def _stage_bytes(cut: Cut, step: int) -> int:
    return 2 * 4 * (cut.rows + cut.items) * step


def scan_bytes(queries: int, items: int, k: int) -> int:
    """How much is allocated on the way, about."""
    return 9 * queries * (-(-items // LARGE.items) + FEW.items * k)


def best_keys(queries: Tensor, items: Tensor, keep: Tensor | None, cut: Cut) -> Tensor:
    """The key of the best score of each query in each block of items (Q, blocks); its place is the block's."""
    blocks, groups = triton.cdiv(len(items), cut.items), triton.cdiv(len(queries), cut.rows)
    best = torch.empty(len(queries), blocks, dtype=torch.int64, device=items.device)
    kernel = _best_of_tiles if cut.rows == LARGE.rows else _best_of_blocks
    kernel[(groups * blocks,)](
        queries, items, items if keep is None else keep, best, len(queries), len(items), blocks, groups,
        KEEP=keep is not None, D=items.shape[2], STEP=_step(items), ROWS=cut.rows, ITEMS=cut.items,
        num_warps=cut.warps, num_stages=cut.stages, enable_fp_fusion=True,
    )  # fmt: skip
    return best


def best_hits(
    queries: Tensor, items: Tensor, k: int, keep: Tensor | None = None, cut: Cut | None = None
) -> tuple[Tensor, Tensor]:
    """The k largest scores of each query (Q, 4, D) with the items (C, 4, D) and where they are, both (Q, k), equal ones
    in the order of the items. A score is infinite where a vector is not finite.

    keep: which items (C,) to look at; where fewer than k are kept, the rest scores −inf, at place −1.
    """
    cut = cut or _cut_for(len(queries), _step(items), items.device)
    queries, keep = queries.contiguous(), None if keep is None else keep.contiguous().view(torch.uint8)
    best = best_keys(queries, items, keep, cut)
    chosen = _largest(best, min(k, best.shape[1]))
    keys = best.new_empty(len(queries), chosen.shape[1] * cut.items)
    _of_blocks[(chosen.numel(),)](
        queries, items, items if keep is None else keep, chosen, keys, len(items), chosen.shape[1],
        KEEP=keep is not None, D=items.shape[2], STEP=_step(items), ROWS=FEW.rows, ITEMS=cut.items,
        num_warps=FEW.warps, num_stages=MANY.stages, enable_fp_fusion=True,
    )  # fmt: skip
    if keys.shape[1] > _RANKED:
        keys = _largest(keys, k)
    count = keys.shape[1]
    scores, places = torch.empty(len(queries), k, device=items.device), best.new_empty(len(queries), k)
    _rank[(len(queries), triton.cdiv(count, 128))](keys, scores, places, count, k, BLOCK=128, num_warps=8)
    return scores, places


def _step(items: Tensor) -> int:
    return 64 if items.shape[2] % 64 == 0 else 32
