"""The best matching of a block of cosines in the registers of one thread (Triton): the dynamic programming over subsets
of columns, unrolled. A block is a tuple of rows, a row a tuple of tensors, one for each column.

With eight rows, rows 0–3 and 4–7 are solved on every half of the columns and the best halves put together; ties between
totals may then fall differently from `assignment`. Operations per pair, additions and comparisons or choices: 33 + 52
for four rows, 1,150 + 1,300 for eight.
"""

from itertools import combinations

import triton
import triton.language as tl

# --- four by four ---------------------------------------------------------------------------------------------------


@triton.jit
def _pair(a, b, X: tl.constexpr, Y: tl.constexpr):
    """The best total of rows a and b on the columns X and Y."""
    return tl.maximum(a[X] + b[Y], a[Y] + b[X])


@triton.jit
def _largest(x, y, z):
    return tl.maximum(tl.maximum(x, y), z)


@triton.jit
def _without(row, after_0, after_1, after_2):
    """The three of four columns that are left; after_n: whether the column taken is a later one than n."""
    return tl.where(after_0, row[0], row[1]), tl.where(after_1, row[1], row[2]), tl.where(after_2, row[2], row[3])


@triton.jit
def four(r0, r1, r2, r3, p0, p1, p2, p3):
    """What the best matching of a 4×4 block picks of the payloads, row by row. Ties: lexicographically first.

    First all totals, then the way back: the column of row 0, of row 1 among those left, and of the last two rows.
    """
    m01, m02, m03 = _pair(r2, r3, 0, 1), _pair(r2, r3, 0, 2), _pair(r2, r3, 0, 3)
    m12, m13, m23 = _pair(r2, r3, 1, 2), _pair(r2, r3, 1, 3), _pair(r2, r3, 2, 3)
    t0 = r0[0] + _largest(r1[1] + m23, r1[2] + m13, r1[3] + m12)
    t1 = r0[1] + _largest(r1[0] + m23, r1[2] + m03, r1[3] + m02)
    t2 = r0[2] + _largest(r1[0] + m13, r1[1] + m03, r1[3] + m01)
    t3 = r0[3] + _largest(r1[0] + m12, r1[1] + m02, r1[2] + m01)
    best = tl.maximum(t0, t1)
    is_1, is_2, is_3 = t1 > t0, t2 > best, t3 > tl.maximum(best, t2)  # the last that holds is the column of row 0
    f0 = tl.where(is_3, p0[3], tl.where(is_2, p0[2], tl.where(is_1, p0[1], p0[0])))
    after_1 = is_2 | is_3
    after_0 = is_1 | after_1
    x1, x2, x3 = (
        _without(r1, after_0, after_1, is_3),
        _without(r2, after_0, after_1, is_3),
        _without(r3, after_0, after_1, is_3),
    )
    q1, q2, q3 = (
        _without(p1, after_0, after_1, is_3),
        _without(p2, after_0, after_1, is_3),
        _without(p3, after_0, after_1, is_3),
    )
    u0 = x1[0] + tl.where(is_3, m12, tl.where(after_1, m13, m23))
    u1 = x1[1] + tl.where(is_3, m02, tl.where(after_0, m03, m13))
    u2 = x1[2] + tl.where(after_1, m01, tl.where(after_0, m02, m12))
    is_1, is_2 = u1 > u0, u2 > tl.maximum(u0, u1)
    f1 = tl.where(is_2, q1[2], tl.where(is_1, q1[1], q1[0]))
    after_0 = is_1 | is_2
    straight = tl.where(after_0, x2[0], x2[1]) + tl.where(is_2, x3[1], x3[2])
    crossed = tl.where(is_2, x2[1], x2[2]) + tl.where(after_0, x3[0], x3[1])
    keep = straight >= crossed
    left, right = tl.where(after_0, q2[0], q2[1]), tl.where(is_2, q2[1], q2[2])
    f2 = tl.where(keep, left, right)
    left, right = tl.where(after_0, q3[0], q3[1]), tl.where(is_2, q3[1], q3[2])
    f3 = tl.where(keep, right, left)
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


# --- eight by eight, the two halves of the rows in two threads ------------------------------------------------------


@triton.jit
def _across(x, AXIS: tl.constexpr):
    """What the other half holds, along an axis of length two: one shuffle, for x ^ y ^ x = y."""
    bits = x.to(tl.int32, bitcast=True)
    return (tl.xor_sum(bits, AXIS, keep_dims=True) ^ bits).to(x.dtype, bitcast=True)


@triton.jit
def shared_half(r0, r1, r2, r3, upper, AXIS: tl.constexpr):
    """Which half of the columns each half of the rows takes. Along the axis lie rows 0–3, then rows 4–7 of one block;
    upper: whether these are rows 0–3.

    Each tries the 35 halves with column 0 for itself, and has the other take the rest.
    """
    best = half(r0, r1, r2, r3)
    total = best[0] + _across(best[_OTHER_HALF[0]], AXIS)
    chosen = tl.full(total.shape, _HALF_MASK[0], tl.int32)
    for s in tl.static_range(1, 35):
        more = best[s] + _across(best[_OTHER_HALF[s]], AXIS)
        keep = total >= more
        total = tl.where(keep, total, more)
        chosen = tl.where(keep, chosen, _HALF_MASK[s])
    theirs, left = _across(total, AXIS), _across(chosen, AXIS) ^ 255
    # Of equal totals both must take the same.
    return tl.where((total > theirs) | (upper & (total == theirs)), chosen, left)
