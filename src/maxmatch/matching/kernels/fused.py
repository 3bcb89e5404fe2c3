"""Fused: product and matching in one kernel, four vectors a set, so that the cosines never leave the registers.

The rows of the inputs are reordered first, in such a way that the tensor cores leave the sixteen cosines of a pair of
sets in one thread.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from maxmatch.matching.kernels.match import four, sum_exp

# A tile is 256 image vectors by 128 caption vectors: 64 × 32 pairs of sets. Eight warps each hold rows 16w … 16w+15 and
# 128+16w …; a thread holds rows r, r+8, r+128, r+136 and columns 8j + {0, 1} (+ 2 × its place among four lanes).
# So the image's slot bits go to row bits 7 and 3, the caption's to column bits 3 and 0.
_TILE_ROWS, _TILE_COLUMNS = 256, 128


@triton.jit
def _pack(sets, packed, count, D: tl.constexpr, IMAGES: tl.constexpr, BLOCK: tl.constexpr):
    """Sixteen packed vectors a program: each finds the item and the slot that belong in its place of the tile."""
    place = tl.program_id(0) * 16 + tl.arange(0, 16)
    if IMAGES:  # row bits of a tile: s₁ iii s₀ iii
        item = place // 256 * 64 + place // 16 % 8 * 8 + place % 8
        slot = place // 128 % 2 * 2 + place // 8 % 2
    else:  # column bits of a tile: iii s₁ ii s₀
        item = place // 128 * 32 + place // 16 % 8 * 4 + place // 2 % 4
        slot = place // 8 % 2 * 2 + place % 2
    source = sets + (item.to(tl.int64) * 4 + slot)[:, None] * D
    target = packed + place.to(tl.int64)[:, None] * D
    for start in range(0, D, BLOCK):
        d = start + tl.arange(0, BLOCK)[None, :]
        values = tl.load(source + d, mask=(item[:, None] < count) & (d < D), other=0.0)
        tl.store(target + d, values, mask=d < D)


def pack_rows(sets: Tensor) -> Tensor:
    """Image sets (B, 4, D) -> vectors in the order the kernel's tiles want them, padded to whole tiles."""
    return _packed(sets, _TILE_ROWS)


def pack_columns(sets: Tensor) -> Tensor:
    """Caption sets (C, 4, D) -> vectors in the order the kernel's tiles want them, padded to whole tiles."""
    return _packed(sets, _TILE_COLUMNS)


def _packed(sets: Tensor, tile: int) -> Tensor:
    count, _, width = sets.shape
    packed = sets.new_empty(triton.cdiv(count * 4, tile) * tile, width)
    _pack[(len(packed) // 16,)](
        sets.contiguous(), packed, count, D=width, IMAGES=tile == _TILE_ROWS, BLOCK=256, num_warps=4,
        enable_fp_fusion=True,
    )  # fmt: skip
    return packed


@triton.jit
def _split_4(x):
    """The last two axes, each of length 2, become four tensors in the order of their joint index."""
    even, odd = tl.split(x)
    even_0, even_1 = tl.split(even)
    odd_0, odd_1 = tl.split(odd)
    return even_0, odd_0, even_1, odd_1


@triton.jit
def _tile_scores(products):
    """256 × 128 cosines in packed order -> 64 × 32 scores. Every step is inside a thread: nothing is moved."""
    x = tl.reshape(products, (2, 8, 2, 8, 8, 2, 4, 2))
    x = tl.permute(x, (1, 3, 4, 6, 0, 2, 5, 7))  # (image, image, caption, caption, slot bits of both)
    t0, t1, t2, t3 = _split_4(x)
    c00, c10, c20, c30 = _split_4(t0)
    c01, c11, c21, c31 = _split_4(t1)
    c02, c12, c22, c32 = _split_4(t2)
    c03, c13, c23, c33 = _split_4(t3)
    r0 = (c00, c01, c02, c03)
    r1 = (c10, c11, c12, c13)
    r2 = (c20, c21, c22, c23)
    r3 = (c30, c31, c32, c33)
    c0, c1, c2, c3 = four(r0, r1, r2, r3, r0, r1, r2, r3)
    return tl.reshape(sum_exp(c0, c1, c2, c3) * 0.25 - 1.0, (64, 32))


@triton.jit
def _fused(rows, columns, scores, n_rows, n_columns, stride, D: tl.constexpr, STEP: tl.constexpr,
           GROUP: tl.constexpr, PROGRAMS: tl.constexpr):  # fmt: skip
    row_tiles = tl.cdiv(n_rows, 64)
    column_tiles = tl.cdiv(n_columns, 32)
    # Tiles go in groups of GROUP rows, so that their inputs stay in the L2 cache.
    for tile in tl.range(tl.program_id(0), row_tiles * column_tiles, PROGRAMS, flatten=True):
        first = tile // (GROUP * column_tiles) * GROUP
        height = min(row_tiles - first, GROUP)
        place = tile % (GROUP * column_tiles)
        i = first + place % height
        j = place // height
        products = tl.zeros((256, 128), dtype=tl.float32)
        for k in range(0, D, STEP):
            x = rows.load([i * 256, k])
            y = columns.load([j * 128, k])
            products = tl.dot(x, y.T, products)
        image = i * 64 + tl.arange(0, 64)[:, None]
        caption = j * 32 + tl.arange(0, 32)[None, :]
        inside = (image < n_rows) & (caption < n_columns)
        tl.store(scores + image.to(tl.int64) * stride + caption, _tile_scores(products), mask=inside)


def can_fuse(sets: Tensor) -> bool:
    """Whether sets like these can go through the fused kernel."""
    aligned = sets.shape[2] * sets.element_size() % 16 == 0  # what the tensor copy engine asks of a row
    tensor_core = sets.dtype in (torch.bfloat16, torch.float16) or (
        sets.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    )
    return sets.shape[1] == 4 and aligned and tensor_core and torch.cuda.get_device_capability(sets.device) >= (9, 0)


def fused_scores(packed_rows: Tensor, packed_columns: Tensor, scores: Tensor, programs: int | None = None) -> None:
    """Write the maxmatch scores (B, C) of packed sets of four vectors."""
    width = packed_rows.shape[1]
    step = 128 // packed_rows.element_size()
    if programs is None:
        programs = torch.cuda.get_device_properties(scores.device).multi_processor_count
    _fused[(programs,)](
        TensorDescriptor.from_tensor(packed_rows, [_TILE_ROWS, step]),
        TensorDescriptor.from_tensor(packed_columns, [_TILE_COLUMNS, step]),
        scores, *scores.shape, scores.stride(0),
        D=width, STEP=step, GROUP=8, PROGRAMS=programs, num_warps=8, num_stages=3, enable_fp_fusion=True,
    )  # fmt: skip
