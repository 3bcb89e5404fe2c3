"""The best of many sets of four vectors for some queries on the GPU (Triton): each item is read once, where it lies.

The fused kernel of `triton_backend` is made for many rows and reorders both sides first, which reads and writes the
whole gallery. Here a program takes a block of items, forms the cosines of all their slots with those of some queries,
matches them, and writes only the best score of each query. The k best items are among the k best blocks, which are then
scored again. Four launches: scan, choice of blocks, scores of their items, choice of these; a choice more where there
are more than 16,384 blocks. Many queries are scanned by `triton_tiles`, on Hopper and later.

Scores are compared as keys: an int64 whose upper half is the score and whose lower half falls with the place, so that
no two are equal and of equal scores the first is the largest.

Vectors are float16 or bfloat16, or int8 with a scale for each. Products of integers are exact: what is lost, is lost
when vectors are made integers.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from maxmatch.core.devices import on_its_device
from maxmatch.matching.triton_blocks import four
from maxmatch.matching.triton_launch import Launch, shared_memory
from maxmatch.matching.triton_tiles import Tiles, best_of_blocks, keys_of, score_of, shared_bytes

MOST_WANTED = 256
_FEW_WANTED = 32  # so many are taken one after the other, more by a level that as many reach
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
HELD = Tiles(warps=8, items=16, stages=3, held=True)
STREAMED = Tiles(warps=8, items=32, stages=3, held=False)
HELD_INT8 = Tiles(warps=8, items=16, stages=3, held=True, programs=2)
_WORTH_TILES = 32  # queries: up to so many, reading the items more than once costs less than half-empty products


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
def _scores(queries, items, query_scales, item_scales, query, item, asked, there, length, SCALED: tl.constexpr,
            D: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr):  # fmt: skip
    """(ROWS, ITEMS)"""
    zero = tl.zeros((ROWS, ITEMS), tl.int32 if SCALED else tl.float32)
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
        c00, c01, c02, c03 = _dot(x, y0, c00), _dot(x, y1, c01), _dot(x, y2, c02), _dot(x, y3, c03)
        x = _rows(queries, query * 4 + 1, columns, asked, D)
        c10, c11, c12, c13 = _dot(x, y0, c10), _dot(x, y1, c11), _dot(x, y2, c12), _dot(x, y3, c13)
        x = _rows(queries, query * 4 + 2, columns, asked, D)
        c20, c21, c22, c23 = _dot(x, y0, c20), _dot(x, y1, c21), _dot(x, y2, c22), _dot(x, y3, c23)
        x = _rows(queries, query * 4 + 3, columns, asked, D)
        c30, c31, c32, c33 = _dot(x, y0, c30), _dot(x, y1, c31), _dot(x, y2, c32), _dot(x, y3, c33)
    if SCALED:
        z0 = tl.load(item_scales + item * 4, mask=there, other=0.0)
        z1 = tl.load(item_scales + item * 4 + 1, mask=there, other=0.0)
        z2 = tl.load(item_scales + item * 4 + 2, mask=there, other=0.0)
        z3 = tl.load(item_scales + item * 4 + 3, mask=there, other=0.0)
        r0 = _times(c00, c01, c02, c03, tl.load(query_scales + query * 4, mask=asked, other=0.0), z0, z1, z2, z3)
        r1 = _times(c10, c11, c12, c13, tl.load(query_scales + query * 4 + 1, mask=asked, other=0.0), z0, z1, z2, z3)
        r2 = _times(c20, c21, c22, c23, tl.load(query_scales + query * 4 + 2, mask=asked, other=0.0), z0, z1, z2, z3)
        r3 = _times(c30, c31, c32, c33, tl.load(query_scales + query * 4 + 3, mask=asked, other=0.0), z0, z1, z2, z3)
    else:
        r0 = (c00, c01, c02, c03)
        r1 = (c10, c11, c12, c13)
        r2 = (c20, c21, c22, c23)
        r3 = (c30, c31, c32, c33)
    p0, p1, p2, p3 = four(r0, r1, r2, r3, r0, r1, r2, r3)
    return score_of(p0, p1, p2, p3)


@triton.jit
def _dot(x, y, total):
    return tl.dot(x, y, total, out_dtype=total.dtype)


@triton.jit
def _times(c0, c1, c2, c3, scale, z0, z1, z2, z3):
    """Products of integers to cosines."""
    scale = scale[:, None]
    return (
        c0.to(tl.float32) * scale * z0[None, :],
        c1.to(tl.float32) * scale * z1[None, :],
        c2.to(tl.float32) * scale * z2[None, :],
        c3.to(tl.float32) * scale * z3[None, :],
    )


@triton.jit(do_not_specialize=["n_queries", "n_items", "blocks", "groups"])
def _best_of_blocks(
    queries, items, query_scales, item_scales, keep, best, n_queries, n_items, blocks, groups, KEEP: tl.constexpr,
    SCALED: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    # The groups of queries that read the same items come one after the other, so that these are still in the cache.
    query = tl.program_id(0) % groups * ROWS + tl.arange(0, ROWS)
    block = tl.program_id(0) // groups
    item = block.to(tl.int64) * ITEMS + tl.arange(0, ITEMS)
    asked = query < n_queries
    wanted, length = _looked_at(keep, item, n_items, D, KEEP)
    found = _scores(queries, items, query_scales, item_scales, query, item, asked, item < n_items, length, SCALED, D,
                    STEP, ROWS, ITEMS)  # fmt: skip
    found = tl.max(tl.where(wanted[None, :], found, -float("inf")), 1)
    tl.store(best + query.to(tl.int64) * blocks + block, keys_of(found, block), mask=asked)


@triton.jit
def _part(keys, n, part, BLOCK: tl.constexpr):
    """The keys of this program's part of a row, the least there is where it has none, and which it has."""
    place = tl.arange(0, BLOCK)
    column = tl.program_id(1) * part + place
    inside = (place < part) & (column < n)
    least = tl.full((), 1, tl.int64) << 63
    own = tl.load(keys + tl.program_id(0).to(tl.int64) * n + column, mask=inside, other=0)
    return tl.where(inside, own, least), inside, least


@triton.jit
def _place_of(key):
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)


@triton.jit
def _score_of_key(key):
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["n", "k", "part"])
def _take(keys, chosen, scores, places, n, k, part, BLOCK: tl.constexpr, LAST: tl.constexpr):
    """The k largest keys of each part of a row, the largest first; the last time as scores and places, a place of −1
    for a score of −inf.
    """
    own, _, least = _part(keys, n, part, BLOCK)
    target = (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * k
    for number in range(k):
        largest = tl.max(own, 0)
        own = tl.where(own == largest, least, own)
        if LAST:
            score = _score_of_key(largest)
            tl.store(scores + target + number, score)
            tl.store(places + target + number, tl.where(score == -float("inf"), -1, _place_of(largest)))
        else:
            tl.store(chosen + target + number, largest)


@triton.jit(do_not_specialize=["n", "k", "part"])
def _choose(keys, chosen, n, k, part, BLOCK: tl.constexpr):
    """The k largest keys of each part of a row, in no order: those that reach the k-th, which is found bit by bit.
    Where a part has fewer, the least there is follows them.
    """
    own, inside, least = _part(keys, n, part, BLOCK)
    place = tl.arange(0, BLOCK)
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
    queries, items, query_scales, item_scales, keep, chosen, keys, n_items, n_chosen, KEEP: tl.constexpr,
    SCALED: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """The keys of all items of the blocks that were chosen for each query."""
    program = tl.program_id(0).to(tl.int64)
    item = _place_of(tl.load(chosen + program)) * ITEMS + tl.arange(0, ITEMS)
    wanted, length = _looked_at(keep, item, n_items, D, KEEP)
    query = program // n_chosen + tl.arange(0, ROWS)
    first = tl.arange(0, ROWS) == 0
    found = _scores(queries, items, query_scales, item_scales, query, item, first, item < n_items, length, SCALED, D,
                    STEP, ROWS, ITEMS)  # fmt: skip
    found = tl.max(tl.where(first[:, None], found, -float("inf")), 0)
    found = tl.where(wanted, found, -float("inf"))
    tl.store(keys + program * ITEMS + tl.arange(0, ITEMS), keys_of(found, item.to(tl.int32)))


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
    score = _score_of_key(own)
    among = (place < n) & (larger < k)
    tl.store(scores + row * k + larger, score, mask=among)
    tl.store(places + row * k + larger, tl.where(score == -float("inf"), -1, _place_of(own)), mask=among)


@triton.jit(do_not_specialize=["count"])
def _quantise(vectors, values, scales, count, D: tl.constexpr, BLOCK: tl.constexpr):
    """Four vectors per program, each to integers of which the largest is 127."""
    row = tl.program_id(0).to(tl.int64) * 4 + tl.arange(0, 4)
    d = tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (d < D)[None, :]
    own = tl.load(vectors + row[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(own), 1) / 127.0
    units = own / tl.where(scale > 0.0, scale, 1.0)[:, None]
    tl.store(values + row[:, None] * D + d[None, :], tl.floor(units + 0.5).to(tl.int8), mask=inside)
    tl.store(scales + row, scale, mask=row < count)


_best_of_blocks_again, _of_blocks_again = Launch(_best_of_blocks), Launch(_of_blocks)
_take_again, _choose_again, _rank_again = Launch(_take), Launch(_choose), Launch(_rank)
_quantise_again = Launch(_quantise)


def _power_of_2(number: int) -> int:
    """The next, or the number itself. Triton's function for it takes microseconds."""
    return 1 << (number - 1).bit_length()


def quantise(sets: Tensor) -> tuple[Tensor, Tensor]:
    """Sets (n, K, D) as integers, and the scales (n, K) of their vectors."""
    sets = sets.contiguous()
    values, scales = torch.empty_like(sets, dtype=torch.int8), sets.new_empty(sets.shape[:2], dtype=torch.float32)
    width = sets.shape[2]
    count = scales.numel()
    _quantise_again((-(-count // 4),), (sets, values, scales), (count,), D=width, BLOCK=_power_of_2(width), num_warps=4)
    return values, scales


def _largest(keys: Tensor, k: int) -> Tensor:
    """The k largest of each row, in no order. No two are equal."""
    rows, count = keys.shape
    while count > k:
        parts = -(-count // _CHOSEN)
        part = -(-count // parts)
        chosen = keys.new_empty(rows, parts * k)
        block, warps = _block_for(part)
        if k <= _FEW_WANTED:
            given, sizes = (keys, chosen, chosen, chosen), (count, k, part)
            _take_again((rows, parts), given, sizes, BLOCK=block, LAST=False, num_warps=warps)
        else:
            _choose_again((rows, parts), (keys, chosen), (count, k, part), BLOCK=block, num_warps=warps)
        keys, count = chosen, parts * k
    return keys


def _block_for(part: int) -> tuple[int, int]:
    """Keys, and warps for them."""
    for block, warps in ((1024, 4), (4096, 8)):
        if part <= block:
            return block, warps
    return _CHOSEN, 32


def _ranked(keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The scores and places of the k largest keys of each row, the largest first."""
    few = k <= _FEW_WANTED
    if keys.shape[1] > (_CHOSEN if few else _RANKED):
        keys = _largest(keys, k)
    rows, count = keys.shape
    scores, places = keys.new_empty(rows, k, dtype=torch.float32), keys.new_empty(rows, k)
    if few:
        block, warps = _block_for(count)
        given = (keys, keys, scores, places)
        _take_again((rows, 1), given, (count, k, count), BLOCK=block, LAST=True, num_warps=warps)
    else:
        _rank_again((rows, -(-count // 128)), (keys, scores, places), (count, k), BLOCK=128, num_warps=8)
    return scores, places


def can_scan(queries: Tensor, items: Tensor, k: int) -> bool:
    """Whether so few of so many such items can be found where they lie. Items may be integers, queries may not."""
    there = queries.shape[0] > 0 and k <= MOST_WANTED and 0 < items.shape[0] < 2**31 - 64
    fits = queries.shape[1:] == items.shape[1:] and items.shape[1] == 4 and items.shape[2] % 32 == 0
    half = items.dtype in (torch.float16, torch.bfloat16) and queries.dtype == items.dtype
    known = half or (items.dtype == torch.int8 and queries.is_floating_point())
    return there and fits and known and items.is_contiguous() and _capability(items.device) >= (8, 0)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


def most_queries(device: torch.device) -> int:
    """At once: more would not save anything."""
    return 1024 if _capability(device) >= (9, 0) else 128


def way_for(queries: int, items: Tensor) -> Cut | Tiles:
    """How so many queries are scanned. `python -m benchmarks.matching gpu_ways` times the others."""
    element, width, room = items.element_size(), items.shape[2], shared_memory(items.device)
    if queries > _WORTH_TILES and _capability(items.device) >= (9, 0):
        narrow = HELD_INT8 if element == 1 else HELD
        whole = width == _power_of_2(width)
        for tiles in (narrow, STREAMED) if whole else (STREAMED,):
            if shared_bytes(tiles, width, element) + 2048 <= room:
                return tiles
    cut = FEW if queries <= FEW.rows else MANY
    stage = 4 * (cut.rows + cut.items) * _step(items) * element
    return cut._replace(stages=max(1, min(cut.stages, room // stage)))


def scan_bytes(items: int, k: int) -> int:
    """How much is allocated for each query on the way, about."""
    return 9 * (-(-items // HELD.items) + FEW.items * k)


def best_keys(
    queries: Tensor, items: Tensor, keep: Tensor | None, way: Cut | Tiles, scales: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """The key of the best score of each query in each block of items (Q, blocks); its place is the block's.

    scales: of queries (Q, 4) and of items (C, 4), where both are int8.
    """
    asked, there = (None, None) if scales is None else scales
    if isinstance(way, Tiles):
        return best_of_blocks(queries, asked, items, there, keep, way)
    count, (n_items, _, width) = queries.shape[0], items.shape
    blocks, groups = -(-n_items // way.items), -(-count // way.rows)
    best = items.new_empty((count, blocks), dtype=torch.int64)
    _best_of_blocks_again(
        (groups * blocks,),
        (queries, items, best if asked is None else asked, best if there is None else there,
         items if keep is None else keep, best),
        (count, n_items, blocks, groups),
        KEEP=keep is not None, SCALED=scales is not None, D=width, STEP=_step(items), ROWS=way.rows, ITEMS=way.items,
        num_warps=way.warps, num_stages=way.stages, enable_fp_fusion=True,
    )  # fmt: skip
    return best


@on_its_device
def best_hits(
    queries: Tensor,
    items: Tensor,
    k: int,
    keep: Tensor | None = None,
    way: Cut | Tiles | None = None,
    item_scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The k largest scores of each query (Q, 4, D) with the items (C, 4, D) and where they are, both (Q, k), equal ones
    in the order of the items. A score is infinite where a vector is not finite.

    keep: which items (C,) to look at; where fewer than k are kept, the rest scores −inf, at place −1.
    item_scales: of items (C, 4) that are int8. Queries are then made integers, too.
    """
    way = way or way_for(queries.shape[0], items)
    queries, keep = queries.contiguous(), None if keep is None else keep.contiguous().view(torch.uint8)
    scales = None
    if item_scales is not None:
        queries, asked = quantise(queries)
        scales = asked, item_scales
    best = best_keys(queries, items, keep, way, scales)
    chosen = _largest(best, min(k, best.shape[1]))
    keys = best.new_empty((queries.shape[0], chosen.shape[1] * way.items))
    _of_blocks_again(
        (chosen.numel(),),
        (queries, items, best if scales is None else scales[0], best if scales is None else scales[1],
         items if keep is None else keep, chosen, keys),
        (items.shape[0], chosen.shape[1]),
        KEEP=keep is not None, SCALED=scales is not None, D=items.shape[2], STEP=_step(items), ROWS=FEW.rows,
        ITEMS=way.items, num_warps=FEW.warps, num_stages=MANY.stages, enable_fp_fusion=True,
    )  # fmt: skip
    return _ranked(keys, k)


def _step(items: Tensor) -> int:
    """How much of each vector is read at once: 128 bytes where the width allows."""
    width, most = items.shape[2], 128 // items.element_size()
    return next(step for step in (128, 64, 32) if step <= most and width % step == 0)
