"""The best of each block of sets of four vectors for many queries (Triton, Hopper and later): the scan of `triton_scan`
by the large products of the tensor cores.

Items are read where they lie, by the tensor copy engine, in the order in which a product leaves the sixteen cosines of
a query and an item in one thread. A program takes eight queries per warp and goes through many blocks of items.

Two ways, which differ in what they read again:

* *held*: the queries stay in shared memory, so that items alone are read. For narrow vectors.
* *streamed*: queries and items are read piece by piece, for vectors of any width.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from maxmatch.matching.triton_blocks import sum_exp
from maxmatch.matching.triton_fused import matched_by_bits


class Tiles(NamedTuple):
    """What a program takes, and how it runs."""

    warps: int
    """4 or 8. Eight queries each."""
    items: int
    """A block: as many as the tensor cores take at once, 16 or 32."""
    stages: int
    """Blocks, or pieces of them, that are under way to shared memory."""
    held: bool
    programs: int = 1
    """Beside each other on a multiprocessor."""

    @property
    def rows(self) -> int:
        """Queries."""
        return 8 * self.warps


@triton.jit
def score_of(p0, p1, p2, p3):
    """Of the matched cosines; infinite where one is not finite. A vector that is not finite has no finite cosine, and
    one of its cosines is among the matched ones.
    """
    finite = tl.abs(p0 + p1 + p2 + p3) < float("inf")
    return tl.where(finite, sum_exp(p0, p1, p2, p3) * 0.25 - 1.0, float("inf"))


@triton.jit
def keys_of(score, place):
    """Scores to compare, see `triton_scan`."""
    bits = score.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as integers in the order of the scores
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - place).to(tl.int64)


# A product of 32w rows and 4n columns by w warps. A warp holds rows 16w … 16w+15 and the same of the other half; a
# thread holds rows r, r+8, and these of the other half, and columns 8j + {0, 1} (+ 2 × its place among four lanes). So
# the bits of the query's slot go to the first bit of a row and its bit 3; those of the item's to the first and the last
# bit of a column. Then every step of the matching is inside a thread.


@triton.jit
def _matched(products, WARPS: tl.constexpr, ITEMS: tl.constexpr):
    """The four matched cosines of each pair (warps, 8, items)."""
    x = tl.reshape(products, (2, WARPS, 2, 8, 2, ITEMS, 2))
    return matched_by_bits(tl.permute(x, (1, 3, 5, 0, 2, 4, 6)))


@triton.jit
def _place(row, WARPS: tl.constexpr):
    """The query and the slot that belong in a row of the products."""
    query = row // (32 * WARPS) * (8 * WARPS) + row // 16 % WARPS * 8 + row % 8
    return query, row // (16 * WARPS) % 2 * 2 + row // 8 % 2


@triton.jit(do_not_specialize=["count"])
def _pack(queries, scales, packed, packed_scales, count, SCALED: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
          WARPS: tl.constexpr):  # fmt: skip
    """Eight vectors per program, each to its row; zeros where there is no query."""
    row = tl.program_id(0) * 8 + tl.arange(0, 8)
    query, slot = _place(row, WARPS)
    source, there = query * 4 + slot, query < count
    for start in range(0, D, BLOCK):
        d = start + tl.arange(0, BLOCK)[None, :]
        values = tl.load(queries + source[:, None] * D + d, mask=there[:, None] & (d < D), other=0)
        tl.store(packed + row[:, None] * D + d, values, mask=d < D)
    if SCALED:
        tl.store(packed_scales + row, tl.load(scales + source, mask=there, other=0.0))


@triton.jit
def _best(products, row_scales, item_scales, keep, block, n_items, KEEP: tl.constexpr, SCALED: tl.constexpr,
          WARPS: tl.constexpr, ITEMS: tl.constexpr):  # fmt: skip
    """The best score of each query in a block."""
    item = block * ITEMS + tl.arange(0, ITEMS)
    wanted = item < n_items
    if KEEP:
        wanted = wanted & (tl.load(keep + item, mask=wanted, other=0) != 0)
    if SCALED:
        column = tl.arange(0, 4 * ITEMS)
        owner = block * ITEMS + column // 2 % ITEMS
        slot = column // (2 * ITEMS) * 2 + column % 2
        own = tl.load(item_scales + owner.to(tl.int64) * 4 + slot, mask=owner < n_items, other=0.0)
        products = products.to(tl.float32) * row_scales[:, None] * own[None, :]
    p0, p1, p2, p3 = _matched(products, WARPS, ITEMS)
    found = tl.reshape(score_of(p0, p1, p2, p3), (8 * WARPS, ITEMS))
    return tl.max(tl.where(wanted[None, :], found, -float("inf")), 1)


@triton.jit(do_not_specialize=["n_queries", "n_items", "blocks", "groups"])
def _held(
    queries, items, query_scales, item_scales, keep, best, n_queries, n_items, blocks, groups, KEEP: tl.constexpr,
    SCALED: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr, WARPS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    # Programs of all groups of queries walk through the items side by side, so that one of them reads and the others
    # find them in the cache.
    group = tl.program_id(0) % groups
    x = queries.load([group * 32 * WARPS, 0])
    row_scales = 0.0
    if SCALED:
        row_scales = tl.load(query_scales + group * 32 * WARPS + tl.arange(0, 32 * WARPS))
    query = group * 8 * WARPS + tl.arange(0, 8 * WARPS)
    for block in tl.range(tl.program_id(0) // groups, blocks, tl.num_programs(0) // groups):
        y = tl.reshape(items.load([0, block * ITEMS, 0, 0]), (4 * ITEMS, STEP))
        products = tl.dot(x, y.T, out_dtype=tl.int32 if SCALED else tl.float32)
        found = _best(products, row_scales, item_scales, keep, block, n_items, KEEP, SCALED, WARPS, ITEMS)
        tl.store(best + query.to(tl.int64) * blocks + block, keys_of(found, query * 0 + block), mask=query < n_queries)


@triton.jit(do_not_specialize=["n_queries", "n_items", "blocks", "groups"])
def _streamed(
    queries, items, query_scales, item_scales, keep, best, n_queries, n_items, blocks, groups, KEEP: tl.constexpr,
    SCALED: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr, WARPS: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    # The groups of queries that read the same items come one after the other, so that these are still in the cache.
    for tile in tl.range(tl.program_id(0), blocks * groups, tl.num_programs(0), flatten=True):
        group, block = tile % groups, tile // groups
        products = tl.zeros((32 * WARPS, 4 * ITEMS), tl.int32 if SCALED else tl.float32)
        for start in range(0, D, STEP):
            x = queries.load([group * 32 * WARPS, start])
            y = tl.reshape(items.load([0, block * ITEMS, 0, start]), (4 * ITEMS, STEP))
            products = tl.dot(x, y.T, products, out_dtype=tl.int32 if SCALED else tl.float32)
        row_scales = 0.0
        if SCALED:
            row_scales = tl.load(query_scales + group * 32 * WARPS + tl.arange(0, 32 * WARPS))
        found = _best(products, row_scales, item_scales, keep, block, n_items, KEEP, SCALED, WARPS, ITEMS)
        query = group * 8 * WARPS + tl.arange(0, 8 * WARPS)
        tl.store(best + query.to(tl.int64) * blocks + block, keys_of(found, query * 0 + block), mask=query < n_queries)


_PIECE = 128  # bytes of a vector that are read at once where it is streamed


def shared_bytes(tiles: Tiles, width: int, element: int) -> int:
    """Of a program, about: queries once where they are held, else as often as items."""
    step = width if tiles.held else _PIECE // element
    rows, columns = 4 * tiles.rows * step * element, 4 * tiles.items * step * element
    return rows + tiles.stages * columns if tiles.held else tiles.stages * (rows + columns)


def pack_queries(queries: Tensor, scales: Tensor | None, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """Queries (Q, 4, D), and the scales (Q, 4) of integers, in the order of the products' rows."""
    count, _, width = queries.shape
    rows = triton.cdiv(count, tiles.rows) * 4 * tiles.rows
    packed, own = (
        queries.new_empty(rows, width),
        queries.new_empty(rows if scales is not None else 1, dtype=torch.float),
    )
    _pack[(rows // 8,)](
        queries, own if scales is None else scales, packed, own, count, SCALED=scales is not None, D=width, BLOCK=256,
        WARPS=tiles.warps, num_warps=4,
    )  # fmt: skip
    return packed, own


def best_of_blocks(
    queries: Tensor,
    query_scales: Tensor | None,
    items: Tensor,
    item_scales: Tensor | None,
    keep: Tensor | None,
    tiles: Tiles,
    programs: int | None = None,
) -> Tensor:
    """The key of the best score of each query (Q, 4, D) in each block of items (C, 4, D): (Q, blocks); its place is the
    block's. Both are float16 or bfloat16, or int8 with a scale for each vector.
    """
    count, _, width = items.shape
    blocks, groups = triton.cdiv(count, tiles.items), triton.cdiv(len(queries), tiles.rows)
    best = torch.empty(len(queries), blocks, dtype=torch.int64, device=items.device)
    packed, row_scales = pack_queries(queries, query_scales, tiles)
    step = width if tiles.held else _PIECE // items.element_size()
    if programs is None:
        programs = tiles.programs * _multiprocessors(items.device)
    programs = max(groups, programs // groups * groups) if tiles.held else min(programs, blocks * groups)
    kernel: Any = _held if tiles.held else _streamed
    kernel[(programs,)](
        TensorDescriptor.from_tensor(packed, [4 * tiles.rows, step]),
        TensorDescriptor(items, [2, count, 2, width], [2 * width, 4 * width, width, 1], [2, tiles.items, 2, step]),
        row_scales, row_scales if item_scales is None else item_scales, packed if keep is None else keep, best,
        len(queries), count, blocks, groups, KEEP=keep is not None, SCALED=item_scales is not None, D=width, STEP=step,
        WARPS=tiles.warps, ITEMS=tiles.items, num_warps=tiles.warps, num_stages=tiles.stages, enable_fp_fusion=True,
    )  # fmt: skip
    return best


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3
