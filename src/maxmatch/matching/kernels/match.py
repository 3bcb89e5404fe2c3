"""The best matching in the registers of one thread: the dynamic programming over subsets of columns, unrolled.

With eight rows, rows 0–3 and 4–7 are solved on every half of the columns and the best halves put together; ties between
totals may then fall differently from `assignment`.
"""

from itertools import combinations

import triton
import triton.language as tl

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
