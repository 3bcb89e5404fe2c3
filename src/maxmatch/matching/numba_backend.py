"""Scores of sets of at most eight vectors, compiled for the CPU (Numba): of planes of cosines, and of a few sets with
many, which are read once, in place. For jobs large enough to pay for four seconds of compiling, once.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

MAX_PLANES = 8
"""Vectors in a set up to which the code works: its table has a line for each subset of them."""
_LANES = 128  # pairs at a time, where there is a table
_BLOCK = 2**15  # numbers of the many that are compared with all of the few before the next are read
_PLANES = 2**17  # cosines of a part of the work, which stay in a core's cache
_PARTS = 8  # of the work for each thread, at least
_KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_ANY_ORDER = {"reassoc", "contract", "nsz"}


@numba.njit(fastmath={"contract"})
def _exp(x: Any) -> Any:
    """eˣ by arithmetic, which is vectorised: 2ⁿ · e^r with |r| ≤ ½ log 2; infinite where float32 ends."""
    x = min(max(x, np.float32(-87)), np.float32(89))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = r * np.float32(1.9875691500e-4) + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (p * (r * r) + r + np.float32(1)) * power


@numba.njit("f8(f4[::1], f4[:])", nogil=True, cache=True, fastmath=_ANY_ORDER)
def _copied(row: np.ndarray, out: np.ndarray) -> float:
    """Write a row of scores; their sum."""
    total = np.float32(0)
    for n in range(len(row)):
        total += row[n]
    for n in range(len(row)):
        out[n] = row[n]
    return float(total)


@numba.njit("f8(f4[:,:,:,::1], f4[:,:], i8, i8)", nogil=True, cache=True)
def _four_rows(c: np.ndarray, out: np.ndarray, start: int, stop: int) -> float:
    """Of planes c (4, B, 4, at least C) write the scores (B, C) of rows start..stop, and return their sum: all ways to
    match four with four, in registers.
    """
    columns, total = out.shape[1], 0.0
    row = np.empty(columns, np.float32)
    for i in range(start, stop):
        for n in range(columns):
            # Rows 2 and 3 on each pair of columns xy: total m, cosine of row 2 (p) and of row 3 (q).
            a0, a1, a2, a3 = c[2, i, 0, n], c[2, i, 1, n], c[2, i, 2, n], c[2, i, 3, n]
            b0, b1, b2, b3 = c[3, i, 0, n], c[3, i, 1, n], c[3, i, 2, n], c[3, i, 3, n]
            s, t = a0 + b1, a1 + b0
            k = s >= t
            m01, p01, q01 = (s if k else t), (a0 if k else a1), (b1 if k else b0)
            s, t = a0 + b2, a2 + b0
            k = s >= t
            m02, p02, q02 = (s if k else t), (a0 if k else a2), (b2 if k else b0)
            s, t = a0 + b3, a3 + b0
            k = s >= t
            m03, p03, q03 = (s if k else t), (a0 if k else a3), (b3 if k else b0)
            s, t = a1 + b2, a2 + b1
            k = s >= t
            m12, p12, q12 = (s if k else t), (a1 if k else a2), (b2 if k else b1)
            s, t = a1 + b3, a3 + b1
            k = s >= t
            m13, p13, q13 = (s if k else t), (a1 if k else a3), (b3 if k else b1)
            s, t = a2 + b3, a3 + b2
            k = s >= t
            m23, p23, q23 = (s if k else t), (a2 if k else a3), (b3 if k else b2)
            # Row 1 takes one of three columns, for each column that row 0 may take; f0..f3 is the best so far.
            r0, r1, r2, r3 = c[1, i, 0, n], c[1, i, 1, n], c[1, i, 2, n], c[1, i, 3, n]
            best, f1, f2, f3 = r1 + m23, r1, p23, q23
            t = r2 + m13
            k = best >= t
            best, f1, f2, f3 = (best if k else t), (f1 if k else r2), (f2 if k else p13), (f3 if k else q13)
            t = r3 + m12
            k = best >= t
            best, f1, f2, f3 = (best if k else t), (f1 if k else r3), (f2 if k else p12), (f3 if k else q12)
            f0 = c[0, i, 0, n]
            best += f0
            top, g1, g2, g3 = r0 + m23, r0, p23, q23
            t = r2 + m03
            k = top >= t
            top, g1, g2, g3 = (top if k else t), (g1 if k else r2), (g2 if k else p03), (g3 if k else q03)
            t = r3 + m02
            k = top >= t
            top, g1, g2, g3 = (top if k else t), (g1 if k else r3), (g2 if k else p02), (g3 if k else q02)
            g0 = c[0, i, 1, n]
            top += g0
            k = best >= top
            best, f0 = (best if k else top), (f0 if k else g0)
            f1, f2, f3 = (f1 if k else g1), (f2 if k else g2), (f3 if k else g3)
            top, g1, g2, g3 = r0 + m13, r0, p13, q13
            t = r1 + m03
            k = top >= t
            top, g1, g2, g3 = (top if k else t), (g1 if k else r1), (g2 if k else p03), (g3 if k else q03)
            t = r3 + m01
            k = top >= t
            top, g1, g2, g3 = (top if k else t), (g1 if k else r3), (g2 if k else p01), (g3 if k else q01)
            g0 = c[0, i, 2, n]
            top += g0
            k = best >= top
            best, f0 = (best if k else top), (f0 if k else g0)
            f1, f2, f3 = (f1 if k else g1), (f2 if k else g2), (f3 if k else g3)
            top, g1, g2, g3 = r0 + m12, r0, p12, q12
            t = r1 + m02
            k = top >= t
            top, g1, g2, g3 = (top if k else t), (g1 if k else r1), (g2 if k else p02), (g3 if k else q02)
            t = r2 + m01
            k = top >= t
            top, g1, g2, g3 = (top if k else t), (g1 if k else r2), (g2 if k else p01), (g3 if k else q01)
            g0 = c[0, i, 3, n]
            k = best >= top + g0
            f0, f1, f2, f3 = (f0 if k else g0), (f1 if k else g1), (f2 if k else g2), (f3 if k else g3)
            row[n] = (_exp(f0) + _exp(f1) + _exp(f2) + _exp(f3)) / np.float32(4) - np.float32(1)
        total += _copied(row, out[i])
    return total


@numba.njit("f8(f4[:,:,:,::1], f4[:,:], i8, i8)", nogil=True, cache=True)
def _subset_rows(c: np.ndarray, out: np.ndarray, start: int, stop: int) -> float:
    """Of planes c (K, B, K, at least C) write the scores (B, C) of rows start..stop, and return their sum.

    best[S] is the largest total of the last |S| rows on the columns S (a bit mask), worth[S] the sum of the
    exponentials of the cosines in it; of equal totals the lexicographically first counts.
    """
    size, columns, total = c.shape[0], out.shape[1], 0.0
    cosines = np.empty((size, size, _LANES), np.float32)
    exponentials = np.empty_like(cosines)
    best = np.zeros((1 << size, _LANES), np.float32)
    worth = np.zeros_like(best)
    for i in range(start, stop):
        for begin in range(0, columns, _LANES):
            lanes = min(_LANES, columns - begin)
            for k in range(size):
                for m in range(size):
                    x, y = cosines[k, m], exponentials[k, m]
                    for n in range(lanes):
                        x[n] = c[k, i, m, begin + n]
                    for n in range(lanes):
                        y[n] = _exp(x[n])
            for subset in range(1, 1 << size):
                k = size
                for m in range(size):
                    k -= subset >> m & 1
                most, value = best[subset], worth[subset]
                most[:] = -np.inf
                for m in range(size):
                    if subset >> m & 1:
                        x, y = cosines[k, m], exponentials[k, m]
                        less, less_value = best[subset ^ 1 << m], worth[subset ^ 1 << m]
                        for n in range(lanes):
                            old, old_value, new, new_value = most[n], value[n], x[n] + less[n], y[n] + less_value[n]
                            keep = old >= new
                            old, old_value = (old if keep else new), (old_value if keep else new_value)
                            most[n] = old
                            value[n] = old_value
            row = worth[-1]
            for n in range(lanes):
                row[n] = row[n] / np.float32(size) - np.float32(1)
            total += _copied(row[:lanes], out[i, begin : begin + lanes])
    return total


@numba.njit("f4(i2[::1], f4[::1], i8)", nogil=True, cache=True)
def _widen(x: np.ndarray, y: np.ndarray, kind: int) -> float:
    """Write float16 or bfloat16 as float32. Infinite where a float16 is not finite: it is written as a number."""
    largest = np.int32(0)
    if kind == 1:  # the exponent is 112 less than in float32
        for w in range(len(x)):
            largest = max(largest, np.int32(x[w]) & np.int32(0x7FFF))
            bits = np.int32((np.int32(x[w]) << np.int32(13)) & np.int32(-0x70002000))
            y[w] = bits.view(np.float32) * np.float32(2.0**112)
    else:
        for w in range(len(x)):
            y[w] = np.int32(np.int32(x[w]) << np.int32(16)).view(np.float32)
    return np.inf if largest >= 0x7C00 else 0.0


@numba.njit(
    "f4(f4[:,::1], f4[:,:,::1], i2[:,::1], i8, f4[:,:,::1], f4[:,:,::1])",
    nogil=True,
    cache=True,
    fastmath=_ANY_ORDER,
)
def _products(
    few: np.ndarray, many: np.ndarray, halves: np.ndarray, kind: int, planes: np.ndarray, wide: np.ndarray
) -> float:
    """few (Q, D), many (C, K, D) -> their inner products (Q, K, C), and the sum of these; Q is a multiple of 4. If
    kind is not 0 the many are halves, made wide block by block.

    The first four of the few meet the many one by one, as they come from memory, the others four by four, in a cache.
    """
    width, size, count, total = few.shape[1], planes.shape[1], len(halves) if kind else len(many), np.float32(0)
    flat = wide.reshape(len(wide), -1)
    for begin in range(0, count, len(wide)):
        end = min(begin + len(wide), count)
        block = wide[: end - begin] if kind else many[begin:end]
        fours = len(block) // 4 * 4
        for q in range(0, len(few), 4):
            p, r, s, t = few[q], few[q + 1], few[q + 2], few[q + 3]
            out = planes[q : q + 4, :, begin:end]
            for n in range(fours if q else 0, len(block)):
                if kind and not q:
                    total += _widen(halves[begin + n], flat[n], kind)
                for m in range(size):
                    x = block[n, m]
                    p0 = r0 = s0 = t0 = np.float32(0)
                    for w in range(width):
                        p0, r0, s0, t0 = p0 + x[w] * p[w], r0 + x[w] * r[w], s0 + x[w] * s[w], t0 + x[w] * t[w]
                    out[0, m, n], out[1, m, n], out[2, m, n], out[3, m, n] = p0, r0, s0, t0
                    total += p0 + r0 + s0 + t0
            for n in range(0, fours if q else 0, 4):
                for m in range(size):
                    x, y, z, u = block[n, m], block[n + 1, m], block[n + 2, m], block[n + 3, m]
                    p0 = p1 = p2 = p3 = r0 = r1 = r2 = r3 = np.float32(0)
                    s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = np.float32(0)
                    for w in range(width):
                        a, b, c, d = p[w], r[w], s[w], t[w]
                        p0, r0, s0, t0 = p0 + x[w] * a, r0 + x[w] * b, s0 + x[w] * c, t0 + x[w] * d
                        p1, r1, s1, t1 = p1 + y[w] * a, r1 + y[w] * b, s1 + y[w] * c, t1 + y[w] * d
                        p2, r2, s2, t2 = p2 + z[w] * a, r2 + z[w] * b, s2 + z[w] * c, t2 + z[w] * d
                        p3, r3, s3, t3 = p3 + u[w] * a, r3 + u[w] * b, s3 + u[w] * c, t3 + u[w] * d
                    out[0, m, n], out[0, m, n + 1], out[0, m, n + 2], out[0, m, n + 3] = p0, p1, p2, p3
                    out[1, m, n], out[1, m, n + 1], out[1, m, n + 2], out[1, m, n + 3] = r0, r1, r2, r3
                    out[2, m, n], out[2, m, n + 1], out[2, m, n + 2], out[2, m, n + 3] = s0, s1, s2, s3
                    out[3, m, n], out[3, m, n + 1], out[3, m, n + 2], out[3, m, n + 3] = t0, t1, t2, t3
                    total += (p0 + p1 + p2 + p3) + (r0 + r1 + r2 + r3) + (s0 + s1 + s2 + s3) + (t0 + t1 + t2 + t3)
    return float(total)


def plane_scores(planes: Tensor, out: Tensor, pool: ThreadPoolExecutor) -> float:
    """Write the scores (B, C) of planes (K, B, K, C). Their sum."""
    source, target, score = planes.numpy(), out.numpy(), _score_rows(len(planes))
    step = _part(len(target), 1)

    def work(starts: Iterator[int]) -> float:
        return sum(score(source, target, begin, min(begin + step, len(target))) for begin in starts)

    return _shared_out(work, range(0, len(target), step), pool)


def few_scores(few: Tensor, many: Tensor, out: Tensor, pool: ThreadPoolExecutor) -> float:
    """Write the scores (B, C) of a few sets in slot order (K·B, D) with many (C, K, D), contiguous and of at most four
    bytes a number. A sum that is not finite if a value is not.
    """
    (count, size, width), rows, kind = many.shape, len(few), _KINDS[many.dtype]
    queries = pad(few, (0, 0, 0, -rows % 4)).numpy()
    singles = (many[:0].float() if kind else many).numpy()
    halves = (many if kind else many[:0].half()).view(torch.int16).flatten(1).numpy()
    target, score = out.numpy(), _score_rows(size)
    step = min(_part(count, 4), max(4, _PLANES // (rows * size)))
    block = max(1, _BLOCK // (4 * size * width)) * 4

    def work(starts: Iterator[int]) -> float:
        products = np.empty((len(queries), size, step), np.float32)
        wide = np.empty((block, size, width if kind else 0), np.float32)
        planes, total = products[:rows].reshape(size, -1, size, step), 0.0
        for begin in starts:
            part = slice(begin, min(begin + step, count))
            total += _products(queries, singles[part], halves[part], kind, products, wide)
            total += score(planes, target[:, part], 0, len(target))
        return total

    return _shared_out(work, range(0, count, step), pool)


def _score_rows(size: int) -> Callable[[np.ndarray, np.ndarray, int, int], float]:
    return _four_rows if size == 4 else _subset_rows


def _part(count: int, least: int) -> int:
    """How many at a time, so that no thread waits long for another at the end."""
    return max(least, -(-count // (_PARTS * torch.get_num_threads())))


def _shared_out(work: Callable[[Iterator[int]], float], starts: range, pool: ThreadPoolExecutor) -> float:
    """By our own threads, each of which takes the next part: torch's wait for each other at the end of every operation,
    and while they wait they keep the processor from other programs, and from the one they wait for.
    """
    left = iter(starts)
    return sum([one.result() for one in [pool.submit(work, left) for _ in range(torch.get_num_threads())]])
