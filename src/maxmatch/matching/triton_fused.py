"""Product and matching in one kernel (Triton), for sets of four and of eight vectors: the cosines never leave the
registers.

The vectors of a tile are taken in such an order that the tensor cores leave the cosines of a pair of sets where they
are matched: the sixteen of sets of four in one thread, the 64 of sets of eight in two threads of a warp. From Hopper on
the vectors are put in that order first (*packed*), so that the copy engine can fetch them; before, and where their
tiles do not fit, each thread fetches them where they lie.

Of a tile of the tensor cores a thread holds rows r and r + 8 of every 16 a warp has, and columns 8j + {0, 1} (+ 2 × its
place among four lanes) of every 8 a warp has. The topmost bit of the row is never a warp's, nor are bits 4, 5
and 6 of the column. So the image's slot bits go to row bits 3 and the topmost, with eight also to bit 0, which is a
lane's; the caption's to column bits 0 and 4, with eight also to bit 5.

Sets of eight: a multiprocessor has two tiles of 128 × 128 at work, and one is matched while the other is multiplied.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from maxmatch.core.devices import on_its_device
from maxmatch.matching.triton_blocks import four, four_of_eight, shared_half, sum_exp
from maxmatch.matching.triton_launch import shared_memory

_COLUMNS = 128  # of a tile
_STEP = 128  # bytes of a packed vector that are read at once


class Cut(NamedTuple):
    """How many rows of vectors a tile has, and how it runs."""

    rows: int
    warps: int
    stages: int
    programs: int
    """Per multiprocessor. 0: a program for each tile."""
    delay: int = 0
    """By how much the second half of the programs begins later, in steps of four cycles: more than matching a tile
    takes, and less than multiplying it. Two programs of one multiprocessor that multiply at the same time also match at
    the same time, and stay in step."""


CUTS = {4: Cut(256, 8, 3, 1), 8: Cut(128, 4, 3, 2, 2000)}
CUTS_IN_PLACE = {4: Cut(128, 4, 4, 0), 8: Cut(128, 4, 4, 0)}


class Packed(NamedTuple):
    """Vectors in the order of the tiles, padded to whole tiles; 0, or NaN where one of them is not finite."""

    vectors: Tensor
    watched: Tensor
    size: int


# --- the order ------------------------------------------------------------------------------------------------------


@triton.jit
def row_order(place, SIZE: tl.constexpr, ROWS: tl.constexpr):
    """The item and the slot that belong in a row of the tiles, whose bits are s₁ i… s₀ iii, or s₁ i… s₀ ii s₂."""
    inner = place % (ROWS // 2)
    slot = place // (ROWS // 2) % 2 * 2 + inner // 8 % 2
    if SIZE == 4:
        item = place // ROWS * (ROWS // 4) + inner // 16 * 8 + place % 8
    else:
        item, slot = place // ROWS * (ROWS // 8) + inner // 16 * 4 + place % 8 // 2, slot + place % 2 * 4
    return item, slot


@triton.jit
def column_order(place, SIZE: tl.constexpr):
    """The item and the slot that belong in a column of the tiles, whose bits are ii s₁ iii s₀, or i s₂ s₁ iii s₀."""
    return place // (8 * SIZE) * 8 + place // 2 % 8, place % (8 * SIZE) // 16 * 2 + place % 2


@triton.jit
def _pack(sets, packed, watched, count, SIZE: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sixteen packed vectors a program. ROWS: of a tile, for images; 0: captions."""
    place = tl.program_id(0) * 16 + tl.arange(0, 16)
    if ROWS:
        item, slot = row_order(place, SIZE, ROWS)
    else:
        item, slot = column_order(place, SIZE)
    source = sets + (item.to(tl.int64) * SIZE + slot)[:, None] * D
    target = packed + place.to(tl.int64)[:, None] * D
    bad = tl.zeros((16, BLOCK), tl.int32)
    for start in range(0, D, BLOCK):
        d = start + tl.arange(0, BLOCK)[None, :]
        values = tl.load(source + d, mask=(item[:, None] < count) & (d < D), other=0.0)
        bad = tl.where(tl.abs(values.to(tl.float32)) < float("inf"), bad, 1)
        tl.store(target + d, values, mask=d < D)
    tl.store(watched, float("nan"), mask=tl.max(tl.max(bad, 1), 0) > 0)


# --- the matching of a tile -----------------------------------------------------------------------------------------


@triton.jit
def split_4(x):
    """The last two axes, each of length 2, become four tensors in the order of their joint index."""
    even, odd = tl.split(x)
    even_0, even_1 = tl.split(even)
    odd_0, odd_1 = tl.split(odd)
    return even_0, odd_0, even_1, odd_1


@triton.jit
def _split_8(x):
    """The last three axes likewise."""
    even, odd = tl.split(x)
    x0, x2, x4, x6 = split_4(even)
    x1, x3, x5, x7 = split_4(odd)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def matched_by_bits(x):
    """Cosines (…, the two bits of one side's slot, the two of the other's) -> the four matched ones of each pair. Every
    step is inside a thread, if the bits are: nothing is moved.
    """
    t0, t1, t2, t3 = split_4(x)
    c00, c10, c20, c30 = split_4(t0)
    c01, c11, c21, c31 = split_4(t1)
    c02, c12, c22, c32 = split_4(t2)
    c03, c13, c23, c33 = split_4(t3)
    r0 = (c00, c01, c02, c03)
    r1 = (c10, c11, c12, c13)
    r2 = (c20, c21, c22, c23)
    r3 = (c30, c31, c32, c33)
    return four(r0, r1, r2, r3, r0, r1, r2, r3)


@triton.jit
def _tile_matched(products, ROWS: tl.constexpr):
    """ROWS × 128 cosines in the order of the tiles -> the four matched ones of each pair (ROWS / 32, 8, 4, 8)."""
    x = tl.reshape(products, (2, ROWS // 32, 2, 8, 4, 2, 8, 2))
    return matched_by_bits(tl.permute(x, (1, 3, 4, 6, 0, 2, 5, 7)))  # (image, image, caption, caption, slot bits)


@triton.jit
def _score_of_eight(x):
    """Σ exp of some pairs (i, i, half of the image's slots, j, slot bits of both)."""
    t0, t1, t2, t3, t4, t5, t6, t7 = _split_8(x)
    c00, c10, c20, c30 = split_4(t0)
    c01, c11, c21, c31 = split_4(t1)
    c02, c12, c22, c32 = split_4(t2)
    c03, c13, c23, c33 = split_4(t3)
    c04, c14, c24, c34 = split_4(t4)
    c05, c15, c25, c35 = split_4(t5)
    c06, c16, c26, c36 = split_4(t6)
    c07, c17, c27, c37 = split_4(t7)
    r0 = (c00, c01, c02, c03, c04, c05, c06, c07)
    r1 = (c10, c11, c12, c13, c14, c15, c16, c17)
    r2 = (c20, c21, c22, c23, c24, c25, c26, c27)
    r3 = (c30, c31, c32, c33, c34, c35, c36, c37)
    upper = tl.broadcast_to(tl.arange(0, 2)[None, None, :, None] == 0, c00.shape)
    mask = shared_half(r0, r1, r2, r3, upper, 2)
    f0, f1, f2, f3 = four_of_eight(r0, r1, r2, r3, mask, True)
    return tl.sum(sum_exp(f0, f1, f2, f3), 2)


@triton.jit
def _tile_scores(products, SIZE: tl.constexpr, ROWS: tl.constexpr):
    """ROWS × 128 cosines in the order of the tiles -> scores (ROWS / SIZE, 128 / SIZE)."""
    if SIZE == 4:
        c0, c1, c2, c3 = _tile_matched(products, ROWS)
        total = sum_exp(c0, c1, c2, c3)
    else:
        # A thread's four pairs one after the other: at once they would need four times the registers.
        x = tl.reshape(products, (2, ROWS // 32, 2, 4, 2, 2, 2, 2, 2, 4, 2))
        x = tl.permute(x, (1, 3, 4, 9, 0, 2, 6, 7, 10, 5, 8))  # (i, i, s₂, j, s₁, s₀, t₂, t₁, t₀, j, j)
        q0, q1, q2, q3 = split_4(x)
        q0, q1, q2, q3 = _score_of_eight(q0), _score_of_eight(q1), _score_of_eight(q2), _score_of_eight(q3)
        total = tl.permute(tl.join(tl.join(q0, q2), tl.join(q1, q3)), (0, 1, 3, 4, 2))
    return tl.reshape(total, (ROWS // SIZE, 128 // SIZE)) * (1 / SIZE) - 1.0


@triton.jit
def _place(tile, row_tiles, column_tiles, GROUP: tl.constexpr):
    """Tiles go in groups of GROUP rows, so that their inputs stay in the L2 cache."""
    first = tile // (GROUP * column_tiles) * GROUP
    height = min(row_tiles - first, GROUP)
    inner = tile % (GROUP * column_tiles)
    return first + inner % height, inner // height


@triton.jit
def _write(scores, products, i, j, n_rows, n_columns, stride, SIZE: tl.constexpr, ROWS: tl.constexpr):
    image = i * (ROWS // SIZE) + tl.arange(0, ROWS // SIZE)[:, None]
    caption = j * (128 // SIZE) + tl.arange(0, 128 // SIZE)[None, :]
    inside = (image < n_rows) & (caption < n_columns)
    tl.store(scores + image.to(tl.int64) * stride + caption, _tile_scores(products, SIZE, ROWS), mask=inside)


@triton.jit
def _late(program, delay, number):
    """The program, after so many steps in which nothing is done."""
    idle = tl.zeros((), tl.float32) + number
    for _ in range(delay):
        idle = idle * 0.5 + 1.0
    return program + tl.where(idle < 0, 1, 0)  # never; or else the compiler would leave the steps out


@triton.jit
def _fused(rows, columns, scores, n_rows, n_columns, stride, delay, SIZE: tl.constexpr, D: tl.constexpr,
           ROWS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    row_tiles, column_tiles = tl.cdiv(n_rows, ROWS // SIZE), tl.cdiv(n_columns, 128 // SIZE)
    programs = tl.num_programs(0)
    start = tl.program_id(0)
    start = _late(start, tl.where(start >= programs // 2, delay, 0), n_rows)
    for tile in tl.range(start, row_tiles * column_tiles, programs, flatten=True):
        i, j = _place(tile, row_tiles, column_tiles, GROUP)
        products = tl.zeros((ROWS, 128), dtype=tl.float32)
        for k in range(0, D, STEP):
            x = rows.load([i * ROWS, k])
            y = columns.load([j * 128, k])
            products = tl.dot(x, y.T, products)
        _write(scores, products, i, j, n_rows, n_columns, stride, SIZE, ROWS)


@triton.jit
def _vectors(sets, item, slot, d, count, width, SIZE: tl.constexpr, EVEN: tl.constexpr):
    """Padding is read from the last item, and its scores are not written."""
    source = sets + (tl.minimum(item, count - 1).to(tl.int64) * SIZE + slot)[:, None] * width + d[None, :]
    return tl.load(source) if EVEN else tl.load(source, mask=d[None, :] < width, other=0.0)


@triton.jit
def _fused_in_place(rows, columns, scores, n_rows, n_columns, stride, width, SIZE: tl.constexpr, EVEN: tl.constexpr,
                    ROWS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """The same without packing; a program for each tile."""
    i, j = _place(tl.program_id(0), tl.cdiv(n_rows, ROWS // SIZE), tl.cdiv(n_columns, 128 // SIZE), GROUP)
    image, image_slot = row_order(i * ROWS + tl.arange(0, ROWS), SIZE, ROWS)
    caption, caption_slot = column_order(j * 128 + tl.arange(0, 128), SIZE)
    products = tl.zeros((ROWS, 128), dtype=tl.float32)
    for k in range(0, width, STEP):
        d = k + tl.arange(0, STEP)
        x = _vectors(rows, image, image_slot, d, n_rows, width, SIZE, EVEN)
        y = _vectors(columns, caption, caption_slot, d, n_columns, width, SIZE, EVEN)
        products = tl.dot(x, tl.trans(y), products)
    _write(scores, products, i, j, n_rows, n_columns, stride, SIZE, ROWS)


# --- launches -------------------------------------------------------------------------------------------------------


@cache
def _device(device: torch.device) -> tuple[tuple[int, int], int]:
    """Compute capability and number of multiprocessors; some of Hopper's where Triton interprets."""
    if device.type != "cuda":
        return (9, 0), 2
    return torch.cuda.get_device_capability(device), torch.cuda.get_device_properties(device).multi_processor_count


def can_fuse(sets: Tensor) -> bool:
    """Whether sets like these can go through a fused kernel."""
    aligned = sets.shape[2] * sets.element_size() % 16 == 0  # what copies by 16 bytes ask of a row
    tensor_core = sets.dtype in (torch.bfloat16, torch.float16) or (
        sets.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    )
    return sets.shape[1] in CUTS and aligned and tensor_core and _device(sets.device)[0] >= (8, 0)


def _packs(device: torch.device, size: int) -> bool:
    """Whether sets are packed for this device: from Hopper on, where the tiles fit its shared memory. Those of four do
    not fit a graphics card's.
    """
    tiles = CUTS[size].stages * (CUTS[size].rows + _COLUMNS) * _STEP
    return _device(device)[0] >= (9, 0) and tiles <= shared_memory(device)


@on_its_device
def pack_rows(sets: Tensor, cut: Cut | None = None) -> Packed:
    """Image sets (B, K, D) in the order the kernel wants them, or as they are: see `_packs`."""
    return _packed(sets, (cut or CUTS[sets.shape[1]]).rows)


@on_its_device
def pack_columns(sets: Tensor) -> Packed:
    """Caption sets (C, K, D) in the order the kernel wants them, or as they are."""
    return _packed(sets, 0)


def _packed(sets: Tensor, rows: int) -> Packed:
    """rows: of a tile, for images; 0: captions."""
    count, size, width = sets.shape
    if not _packs(sets.device, size):
        return unpacked(sets)
    tile = rows or _COLUMNS
    packed = sets.new_empty(triton.cdiv(count * size, tile) * tile, width)
    watched = torch.zeros((), device=sets.device)
    _pack[(len(packed) // 16,)](
        sets.contiguous(), packed, watched, count, SIZE=size, D=width, ROWS=rows, BLOCK=256, num_warps=4,
        enable_fp_fusion=True,
    )  # fmt: skip
    return Packed(packed, watched, size)


def unpacked(sets: Tensor) -> Packed:
    """For the kernel that fetches vectors where they lie."""
    return Packed(sets.contiguous(), sets.sum(dtype=torch.float32), sets.shape[1])


@on_its_device
def fused_scores(rows: Packed, columns: Packed, scores: Tensor, cut: Cut | None = None) -> Tensor:
    """Write the maxmatch scores (B, C) of packed sets; a number that is not finite where a vector is not."""
    in_place, width = rows.vectors.ndim == 3, rows.vectors.shape[-1]
    cut = cut or (CUTS_IN_PLACE if in_place else CUTS)[rows.size]
    tiles = triton.cdiv(len(scores), cut.rows // rows.size) * triton.cdiv(scores.shape[1], _COLUMNS // rows.size)
    step = (64 if in_place else _STEP) // rows.vectors.element_size()
    sizes = {"SIZE": rows.size, "ROWS": cut.rows, "STEP": step, "GROUP": 8}
    options = {"num_warps": cut.warps, "num_stages": cut.stages, "enable_fp_fusion": True}
    if in_place:
        _fused_in_place[(tiles,)](
            rows.vectors, columns.vectors, scores, *scores.shape, scores.stride(0), width,
            EVEN=width % step == 0, **sizes, **options,
        )  # fmt: skip
    else:
        programs = min(tiles, cut.programs * _device(scores.device)[1]) if cut.programs else tiles
        _fused[(programs,)](
            TensorDescriptor.from_tensor(rows.vectors, [cut.rows, step]),
            TensorDescriptor.from_tensor(columns.vectors, [_COLUMNS, step]),
            scores, *scores.shape, scores.stride(0), cut.delay, D=width, **sizes, **options,
        )  # fmt: skip
    return rows.watched + columns.watched
