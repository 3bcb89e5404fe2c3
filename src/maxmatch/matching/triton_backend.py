"""The matching on the GPU (Triton). `similarity` and `scoring` choose it by themselves; torch is the reference.

Two ways, both exact:

* *fused* (sets of four vectors, Hopper and later): product and matching in one kernel, so that the cosines never leave
  the registers.
* *planes* (up to eight vectors): a kernel after the library's product, which reads each cosine once.
"""

from itertools import combinations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

# The best matching in the registers of one thread: the dynamic programming over subsets of columns, unrolled.
#
# With eight rows, rows 0–3 and 4–7 are solved on every half of the columns and the best halves put together; ties
# between totals may then fall differently from `assignment`.

# --- four by four ---------------------------------------------------------------------------------------------------


@triton.jit
def _two(a, b, pa, pb, X: tl.constexpr, Y: tl.constexpr):
    """Rows a and b on the columns X < Y: the larger total, and what each row brings of its payload."""
    straight = a[X] + b[Y]
    crossed = a[Y] + b[X]
    keep = straight >= crossed
    return tl.where(keep, straight, crossed), tl.where(keep, pa[X], pa[Y]), tl.where(keep, pb[Y], pb[X])


@triton.jit
def _three(r, pr, X: tl.constexpr, Y: tl.constexpr, Z: tl.constexpr, yz, xz, xy):
    """Row r takes one of X < Y < Z, the two rows below it the others."""
    total, p, q = yz
    best = r[X] + total
    o = pr[X]
    total, p2, q2 = xz
    total = r[Y] + total
    keep = best >= total
    best, o, p, q = tl.where(keep, best, total), tl.where(keep, o, pr[Y]), tl.where(keep, p, p2), tl.where(keep, q, q2)
    total, p2, q2 = xy
    total = r[Z] + total
    keep = best >= total
    best, o, p, q = tl.where(keep, best, total), tl.where(keep, o, pr[Z]), tl.where(keep, p, p2), tl.where(keep, q, q2)
    return best, o, p, q


@triton.jit
def four(r0, r1, r2, r3, p0, p1, p2, p3):
    """What the best matching of a 4×4 block picks of the payloads, row by row. Ties: lexicographically first."""
    m01 = _two(r2, r3, p2, p3, 0, 1)
    m02 = _two(r2, r3, p2, p3, 0, 2)
    m03 = _two(r2, r3, p2, p3, 0, 3)
    m12 = _two(r2, r3, p2, p3, 1, 2)
    m13 = _two(r2, r3, p2, p3, 1, 3)
    m23 = _two(r2, r3, p2, p3, 2, 3)
    best, f1, f2, f3 = _three(r1, p1, 1, 2, 3, m23, m13, m12)
    best = r0[0] + best
    f0 = p0[0]
    total, g1, g2, g3 = _three(r1, p1, 0, 2, 3, m23, m03, m02)
    total = r0[1] + total
    keep = best >= total
    best, f0 = tl.where(keep, best, total), tl.where(keep, f0, p0[1])
    f1, f2, f3 = tl.where(keep, f1, g1), tl.where(keep, f2, g2), tl.where(keep, f3, g3)
    total, g1, g2, g3 = _three(r1, p1, 0, 1, 3, m13, m03, m01)
    total = r0[2] + total
    keep = best >= total
    best, f0 = tl.where(keep, best, total), tl.where(keep, f0, p0[2])
    f1, f2, f3 = tl.where(keep, f1, g1), tl.where(keep, f2, g2), tl.where(keep, f3, g3)
    total, g1, g2, g3 = _three(r1, p1, 0, 1, 2, m12, m02, m01)
    total = r0[3] + total
    keep = best >= total
    f0 = tl.where(keep, f0, p0[3])
    f1, f2, f3 = tl.where(keep, f1, g1), tl.where(keep, f2, g2), tl.where(keep, f3, g3)
    return f0, f1, f2, f3


@triton.jit
def sum_exp(c0, c1, c2, c3):
    """Σ exp(c) over four rows."""
    return tl.exp(c0) + tl.exp(c1) + tl.exp(c2) + tl.exp(c3)


# --- eight by eight: two halves of the rows, every half of the columns ----------------------------------------------

_SUBSETS = {size: list(combinations(range(8), size)) for size in range(1, 5)}
_MOVES = {  # for each subset, in turn: its columns, each with the index of the subset that is left without it
    size: [
        (column, _SUBSETS[size - 1].index(tuple(c for c in s if c != column))) for s in _SUBSETS[size] for column in s
    ]
    for size in (2, 3, 4)
}
_COLUMN_2, _REST_2 = (tl.constexpr(tuple(m[part] for m in _MOVES[2])) for part in (0, 1))
_COLUMN_3, _REST_3 = (tl.constexpr(tuple(m[part] for m in _MOVES[3])) for part in (0, 1))
_COLUMN_4, _REST_4 = (tl.constexpr(tuple(m[part] for m in _MOVES[4])) for part in (0, 1))
_HALF_MASK = tl.constexpr(tuple(sum(1 << c for c in s) for s in _SUBSETS[4]))
_OTHER_HALF = tl.constexpr(tuple(_SUBSETS[4].index(tuple(c for c in range(8) if c not in s)) for s in _SUBSETS[4]))


@triton.jit
def _add_row(row, best, COLUMNS: tl.constexpr, RESTS: tl.constexpr, SIZE: tl.constexpr, COUNT: tl.constexpr):
    """best[S] over subsets of SIZE − 1 columns -> best[S] over the COUNT subsets of SIZE, with one row more."""
    more = ()
    for s in tl.static_range(COUNT):
        value = row[COLUMNS[s * SIZE]] + best[RESTS[s * SIZE]]
        for move in tl.static_range(1, SIZE):
            value = tl.maximum(value, row[COLUMNS[s * SIZE + move]] + best[RESTS[s * SIZE + move]])
        more = more + (value,)  # noqa: RUF005 (Triton knows no unpacking)
    return more


@triton.jit
def half(r0, r1, r2, r3):
    """The best total of four rows on each of the 70 halves of the columns."""
    best = _add_row(r2, r3, _COLUMN_2, _REST_2, 2, 28)
    best = _add_row(r1, best, _COLUMN_3, _REST_3, 3, 56)
    return _add_row(r0, best, _COLUMN_4, _REST_4, 4, 70)


@triton.jit
def best_half(top, low):
    """Which half of the columns the upper rows take, as a bit mask."""
    best = top[0] + low[_OTHER_HALF[0]]
    chosen = tl.full(best.shape, _HALF_MASK[0], tl.int32)
    for s in tl.static_range(1, 70):
        total = top[s] + low[_OTHER_HALF[s]]
        keep = best >= total
        best = tl.where(keep, best, total)
        chosen = tl.where(keep, chosen, _HALF_MASK[s])
    return chosen


@triton.jit
def _lowest(mask):
    """The column of the lowest bit of an 8-bit mask, and the mask without it."""
    bit = mask & -mask
    column = tl.where((bit & 0xAA) != 0, 1, 0) + tl.where((bit & 0xCC) != 0, 2, 0) + tl.where((bit & 0xF0) != 0, 4, 0)
    return column, mask ^ bit


@triton.jit
def _at(row, column, FIRST: tl.constexpr):
    """row[column] for a column that is FIRST … FIRST + 4."""
    value = row[FIRST]
    for step in tl.static_range(1, 5):
        value = tl.where(column == FIRST + step, row[FIRST + step], value)
    return value


@triton.jit
def _gather(row, a, b, c, d):
    return _at(row, a, 0), _at(row, b, 1), _at(row, c, 2), _at(row, d, 3)


@triton.jit
def four_of_eight(r0, r1, r2, r3, mask, COSINES: tl.constexpr):
    """The matching of four rows with the four columns of a mask: their cosines, or their columns."""
    a, mask = _lowest(mask)
    b, mask = _lowest(mask)
    c, mask = _lowest(mask)
    d, mask = _lowest(mask)
    x0 = _gather(r0, a, b, c, d)
    x1 = _gather(r1, a, b, c, d)
    x2 = _gather(r2, a, b, c, d)
    x3 = _gather(r3, a, b, c, d)
    if COSINES:
        picked = four(x0, x1, x2, x3, x0, x1, x2, x3)
    else:
        columns = (a, b, c, d)
        picked = four(x0, x1, x2, x3, columns, columns, columns, columns)
    return picked


# Planes: the cosines (K, K, B, C) of a product -> scores or columns, K ≤ 8.
#
# Sets of fewer than four (eight) vectors are filled up with vectors that can only match each other.

MAX_PLANES = 8


@triton.jit
def _row(base, r_stride, l_stride, n, real, R: tl.constexpr, K: tl.constexpr, SIZE: tl.constexpr):
    """Row R of the block of every pair: SIZE planes, those beyond K made to match only each other."""
    row = ()
    for column in tl.static_range(SIZE):
        if R < K and column < K:
            plane = tl.load(base + R * r_stride + column * l_stride + n, mask=real, other=0.0)
        elif R >= K and column >= K:
            plane = tl.zeros(n.shape, tl.float32)
        else:
            plane = tl.full(n.shape, float("-inf"), tl.float32)
        row = row + (plane,)  # noqa: RUF005
    return row


@triton.jit
def _planes_4(cosines, scores, chosen, n_columns, r_stride, l_stride, b_stride, score_stride, k_stride,
              K: tl.constexpr, SCORES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = n < n_columns
    base = cosines + item * b_stride
    r0 = _row(base, r_stride, l_stride, n, real, 0, K, 4)
    r1 = _row(base, r_stride, l_stride, n, real, 1, K, 4)
    r2 = _row(base, r_stride, l_stride, n, real, 2, K, 4)
    r3 = _row(base, r_stride, l_stride, n, real, 3, K, 4)
    if SCORES:
        c0, c1, c2, c3 = four(r0, r1, r2, r3, r0, r1, r2, r3)
        tl.store(scores + item * score_stride + n, (sum_exp(c0, c1, c2, c3) - 4) / K, mask=real)
    else:
        zero = tl.zeros(n.shape, tl.int32)
        columns = (zero, zero + 1, zero + 2, zero + 3)
        picked = four(r0, r1, r2, r3, columns, columns, columns, columns)
        for row in tl.static_range(K):
            tl.store(chosen + row * k_stride + item * n_columns + n, picked[row].to(tl.int64), mask=real)


# Compiling this takes half a minute, so there is one version for all sizes, not one for those divisible by 16.
@triton.jit(do_not_specialize=["n_columns", "r_stride", "l_stride", "b_stride", "score_stride", "k_stride"])
def _planes_8(cosines, scores, chosen, n_columns, r_stride, l_stride, b_stride, score_stride, k_stride,
              K: tl.constexpr, SCORES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = n < n_columns
    base = cosines + item * b_stride
    r0 = _row(base, r_stride, l_stride, n, real, 0, K, 8)
    r1 = _row(base, r_stride, l_stride, n, real, 1, K, 8)
    r2 = _row(base, r_stride, l_stride, n, real, 2, K, 8)
    r3 = _row(base, r_stride, l_stride, n, real, 3, K, 8)
    top = half(r0, r1, r2, r3)
    r4 = _row(base, r_stride, l_stride, n, real, 4, K, 8)
    r5 = _row(base, r_stride, l_stride, n, real, 5, K, 8)
    r6 = _row(base, r_stride, l_stride, n, real, 6, K, 8)
    r7 = _row(base, r_stride, l_stride, n, real, 7, K, 8)
    low = half(r4, r5, r6, r7)
    mask = best_half(top, low)
    f0, f1, f2, f3 = four_of_eight(r0, r1, r2, r3, mask, SCORES)
    f4, f5, f6, f7 = four_of_eight(r4, r5, r6, r7, mask ^ 255, SCORES)
    if SCORES:
        total = sum_exp(f0, f1, f2, f3) + sum_exp(f4, f5, f6, f7)
        tl.store(scores + item * score_stride + n, (total - 8) / K, mask=real)
    else:
        picked = (f0, f1, f2, f3, f4, f5, f6, f7)
        for row in tl.static_range(K):
            tl.store(chosen + row * k_stride + item * n_columns + n, picked[row].to(tl.int64), mask=real)


def _launch_planes(cosines: Tensor, scores: Tensor, chosen: Tensor, want_scores: bool) -> None:
    size, _, rows, columns = cosines.shape
    assert cosines.stride(3) == 1
    assert cosines.dtype == torch.float32
    kernel, block = (_planes_4, 256) if size <= 4 else (_planes_8, 128)
    r_stride, l_stride, b_stride, _ = cosines.stride()
    kernel[(rows, triton.cdiv(columns, block))](
        cosines, scores, chosen, columns, r_stride, l_stride, b_stride, scores.stride(0), rows * columns,
        K=size, SCORES=want_scores, BLOCK=block, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


def plane_scores(cosines: Tensor, scores: Tensor) -> None:
    """Write the maxmatch scores (B, C) of the cosine planes (K, K, B, C), K ≤ 8."""
    _launch_planes(cosines, scores, scores, want_scores=True)


def plane_assignment(cosines: Tensor) -> Tensor:
    """The matching of the cosine planes (K, K, B, C), K ≤ 8: for each row its column, (K, B, C)."""
    chosen = torch.empty(cosines.shape[0], *cosines.shape[2:], dtype=torch.long, device=cosines.device)
    _launch_planes(cosines, chosen[0], chosen, want_scores=False)
    return chosen


# Fused: product and matching in one kernel, four vectors per set, so that the cosines never leave the registers.
#
# The rows of the inputs are reordered first, in such a way that the tensor cores leave the sixteen cosines of a pair of
# sets in one thread.

# A tile is 256 image vectors by 128 caption vectors: 64 × 32 pairs of sets. Eight warps each hold rows 16w … 16w+15 and
# 128+16w …; a thread holds rows r, r+8, r+128, r+136 and columns 8j + {0, 1} (+ 2 × its place among four lanes).
# So the image's slot bits go to row bits 7 and 3, the caption's to column bits 3 and 0.
_TILE_ROWS, _TILE_COLUMNS = 256, 128


@triton.jit
def row_order(place):
    """The item and the slot that belong in a row of the tiles, whose bits are s₁ iii s₀ iii."""
    return place // 256 * 64 + place // 16 % 8 * 8 + place % 8, place // 128 % 2 * 2 + place // 8 % 2


@triton.jit
def column_order(place):
    """The item and the slot that belong in a column of the tiles, whose bits are iii s₁ ii s₀."""
    return place // 128 * 32 + place // 16 % 8 * 4 + place // 2 % 4, place // 8 % 2 * 2 + place % 2


@triton.jit
def _pack(sets, packed, count, D: tl.constexpr, IMAGES: tl.constexpr, BLOCK: tl.constexpr):
    """Sixteen packed vectors a program."""
    place = tl.program_id(0) * 16 + tl.arange(0, 16)
    if IMAGES:
        item, slot = row_order(place)
    else:
        item, slot = column_order(place)
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
def split_4(x):
    """The last two axes, each of length 2, become four tensors in the order of their joint index."""
    even, odd = tl.split(x)
    even_0, even_1 = tl.split(even)
    odd_0, odd_1 = tl.split(odd)
    return even_0, odd_0, even_1, odd_1


@triton.jit
def tile_matched(products):
    """256 × 128 cosines in packed order -> the four matched ones of 64 × 32 pairs (8, 8, 8, 4). Every step is inside a
    thread: nothing is moved.
    """
    x = tl.reshape(products, (2, 8, 2, 8, 8, 2, 4, 2))
    x = tl.permute(x, (1, 3, 4, 6, 0, 2, 5, 7))  # (image, image, caption, caption, slot bits of both)
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
def _tile_scores(products):
    c0, c1, c2, c3 = tile_matched(products)
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


# Counting: how many scores reach a level, by row and by column, in one pass.


@triton.jit
def _count(scores, level, above, equal, no_numbers, n_rows, n_columns, stride,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real_row, real_column = i < n_rows, j < n_columns
    inside = real_row[:, None] & real_column[None, :]
    values = tl.load(scores + i[:, None].to(tl.int64) * stride + j[None, :], mask=inside, other=float("-inf"))
    tl.atomic_add(no_numbers, tl.sum((values != values).to(tl.int32)))
    limit = tl.load(level + i, mask=real_row, other=float("inf"))[:, None]
    tl.atomic_add(above + i, tl.sum((values > limit).to(tl.int32), 1), mask=real_row)
    tl.atomic_add(equal + i, tl.sum(((values == limit) & inside).to(tl.int32), 1), mask=real_row)
    limit = tl.load(level + n_rows + j, mask=real_column, other=float("inf"))[None, :]
    tl.atomic_add(above + n_rows + j, tl.sum((values > limit).to(tl.int32), 0), mask=real_column)
    tl.atomic_add(equal + n_rows + j, tl.sum(((values == limit) & inside).to(tl.int32), 0), mask=real_column)


def count_levels(scores: Tensor, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many scores are above the level of their row, then of their column (B + C); how many equal; how many NaN."""
    rows, columns = scores.shape
    assert scores.stride(1) == 1
    counts = torch.zeros(2 * len(level) + 1, dtype=torch.int32, device=scores.device)
    above, equal, no_numbers = counts.split([len(level), len(level), 1])
    _count[(triton.cdiv(rows, 128), triton.cdiv(columns, 128))](
        scores, level, above, equal, no_numbers, rows, columns, scores.stride(0),
        ROWS=128, COLUMNS=128, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return above, equal, no_numbers[0]


@triton.jit
def _count_reaching(scores, levels, counts, n_rows, n_columns, stride, most,
                    ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real_row, real_column = i < n_rows, j < n_columns
    inside = real_row[:, None] & real_column[None, :]
    values = tl.load(scores + i[:, None].to(tl.int64) * stride + j[None, :], mask=inside, other=float("-inf"))
    for n in range(most):
        limit = tl.load(levels + n * n_rows + i, mask=real_row, other=float("inf"))[:, None]
        reached = tl.sum(((values >= limit) & inside).to(tl.int32), 1)
        tl.atomic_add(counts + n * n_rows + i, reached, mask=real_row)


def count_reaching(scores: Tensor, levels: Tensor) -> Tensor:
    """How many scores of each row (B, C) are as high as its levels (P, B), or higher: (P, B). Scores are read once."""
    rows, columns = scores.shape
    assert scores.stride(1) == 1
    assert levels.is_contiguous()
    counts = torch.zeros_like(levels, dtype=torch.int32)
    _count_reaching[(triton.cdiv(rows, 64), triton.cdiv(columns, 256))](
        scores, levels, counts, rows, columns, scores.stride(0), len(levels),
        ROWS=64, COLUMNS=256, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return counts
