"""The largest inner products of one query with many short keys, compiled for the CPU (Numba)."""

import numba
import numpy as np


@numba.njit("void(i1[:,::1], i4[::1], i8[::1], i8[::1], i2[::1], i8, i4[::1], i8[::1])", nogil=True, cache=True)
def keep_best(
    keys: np.ndarray,
    passing: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    query: np.ndarray,
    shift: int,
    products: np.ndarray,
    places: np.ndarray,
) -> None:
    """Compare a query (p,) with keys (n, p), of those that pass, whose places are listed: with some stretches of the
    list. The best so far are a heap: `products` with the least first, and `places`, those of the keys plus `shift`.
    """
    size, width = len(products), keys.shape[1]
    for stretch in range(len(begins)):
        for listed in range(begins[stretch], ends[stretch]):
            place = passing[listed]
            product = np.int32(0)
            for n in range(width):  # in 32 bits, which Numba would widen: at most 2.7 times as fast on older processors
                product = np.int32(product + np.int32(np.int32(keys[place, n]) * np.int32(query[n])))
            if product <= products[0]:
                continue
            hole = 0
            while True:
                child = 2 * hole + 1
                if child >= size:
                    break
                if child + 1 < size and products[child + 1] < products[child]:
                    child += 1
                if products[child] >= product:
                    break
                products[hole] = products[child]
                places[hole] = places[child]
                hole = child
            products[hole] = product
            places[hole] = place + shift
