"""The 4×4 matching compiled for the CPU (Numba), for jobs large enough to pay for two seconds of compiling, once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numba
import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")


@numba.njit("void(f4[:,:,:,::1], f4[:,:,::1], i8, i8)", nogil=True, cache=True)
def _match_rows(c: np.ndarray, matched: np.ndarray, start: int, stop: int) -> None:
    """For images start..stop write the four matched cosines of every pair: c (4, B, 4, C) -> matched (4, B, C)."""
    for i in range(start, stop):
        for n in range(c.shape[3]):
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
            matched[0, i, n] = f0 if k else g0
            matched[1, i, n] = f1 if k else g1
            matched[2, i, n] = f2 if k else g2
            matched[3, i, n] = f3 if k else g3


@numba.njit("f8(f4[:,:,::1], f4[:,:], i8, i8)", nogil=True, cache=True)
def _mean_rows(exponentials: np.ndarray, out: np.ndarray, start: int, stop: int) -> float:
    """For images start..stop write the scores, the mean of four exponentials less 1; return their sum."""
    total = 0.0
    for i in range(start, stop):
        for n in range(out.shape[1]):
            four = exponentials[0, i, n] + exponentials[1, i, n] + exponentials[2, i, n] + exponentials[3, i, n]
            out[i, n] = four / np.float32(4) - np.float32(1)
            total += out[i, n]
    return total


def matched_cosines(product: Tensor, matched: Tensor, pool: ThreadPoolExecutor) -> None:
    """Write the matched cosines (4, B, C) of a product (4, B, 4, C), the images shared out among the threads."""
    source, target = product.numpy(), matched.numpy()
    _shared_out(lambda start, stop: _match_rows(source, target, start, stop), len(target[0]), pool)


def mean_scores(exponentials: Tensor, out: Tensor, pool: ThreadPoolExecutor) -> float:
    """Write the mean of exponentials (4, B, C) less 1 to (B, C). The sum, which is not finite if a score is not."""
    source, target = exponentials.numpy(), out.numpy()
    return sum(_shared_out(lambda start, stop: _mean_rows(source, target, start, stop), len(target), pool))


def _shared_out(work: Callable[[int, int], T], rows: int, pool: ThreadPoolExecutor) -> list[T]:
    """By our own threads: torch's wait for each other at the end of every operation, and while they wait they keep the
    processor from other programs, and from the one they wait for.
    """
    parts = torch.get_num_threads()
    cuts = [rows * part // parts for part in range(parts + 1)]
    return [one.result() for one in [pool.submit(work, *cut) for cut in pairwise(cuts)]]
