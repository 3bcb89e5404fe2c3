"""Short keys: every item's vector as some tens of bytes, by which its inner product with a query is estimated.

A vector of K·D numbers, less the mean, is written in the directions in which items differ most, each coordinate in one
byte. What these leave out has a length, which is one more byte. The estimate is

    q · x ≈ q · mean + Σ q_i x_i + ½ |rest of q| · |rest of x|

The rest of an item that is like the query points where the query's does. With the last term, half of what that could be
worth, an item unlike all others is still found; without it, its key says nothing of it.

The first key of an item has few coordinates. More of them, the finer key, are compared with the query only for those
that are among the best by the first. Keys lie in cells (k-means), of which a search looks at the nearest. They only
propose: scores are computed from the vectors themselves.
"""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from maxmatch.core.files import whole
from maxmatch.matching.numpy_backend import product_in_this_thread

_WIDTHS = tuple(range(31, 256, 32))  # coordinates; with the rest, a key has a multiple of 32 bytes
_KEPT = 0.97  # of the variance: a key has so many coordinates that it keeps this
_WORTH_IT = 0.9  # where the finer key keeps less, the engine's own index finds more
_PASSES = 2  # over the sample, to find the directions
_SAMPLE_BYTES = 32 * 2**20
_CELL = 1_000  # items in one
_MOST_CELLS = 8_192
_PER_CELL = 40  # sampled items
_ROUNDS = 8  # of k-means
_LARGEST_REST = 3  # times the largest of the sample: longer ones are counted as this
_REST = 0.5
_FEW = 256
_HIGHEST = 32_767  # of the numbers of a query: 256 products with 127 stay below 2³¹
AT_ONCE = 4_096
"""Vectors that are read at once."""


class Keys(NamedTuple):
    """The keys of n items."""

    first: np.ndarray
    """(n, c + 1) int8: coordinates, and the length of the rest."""
    finer: np.ndarray
    """(n, p - c + 1) int8: the coordinates after those, and the length of the rest of all."""

    def at(self, places: np.ndarray) -> "Keys":
        """Those at some places."""
        return Keys(self.first[places], self.finer[places])


class Weights(NamedTuple):
    """What the keys of items are multiplied with for q queries: the products are estimates, but for a constant."""

    first: np.ndarray
    """(q, c + 1) int16: for the first keys alone, but for a scale."""
    both: np.ndarray
    """(q, p + 1): for the coordinates of both, and the length of the rest of all."""

    def estimates(self, query: int, keys: Keys) -> np.ndarray:
        """The inner products (n,) of one query with items, but for a constant."""
        known = keys.first.shape[1] - 1
        weights = self.both[query]
        first, finer = keys.first[:, :known].astype(np.float32), keys.finer.astype(np.float32)
        products: np.ndarray = np.einsum("np,p->n", first, weights[:known])  # in this thread
        products += np.einsum("np,p->n", finer, weights[known:])
        return products


class Directions(NamedTuple):
    """Where the coordinates of vectors of width w lie."""

    mean: np.ndarray
    """(w,)"""
    basis: np.ndarray
    """(w, p), orthonormal columns."""
    steps: np.ndarray
    """(p + 2,): what one unit of each byte stands for: coordinates, the rest of the first ones, the rest of all."""
    first: int
    """How many coordinates the first key has."""

    def coordinates(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates (n, p) of vectors (n, w), and what is left out: lengths (n, 2)."""
        centred = np.asarray(vectors, np.float32) - self.mean
        found = _product(centred, self.basis)
        squares = np.einsum("nw,nw->n", centred, centred)
        known = [np.einsum("np,np->n", part, part) for part in (found[:, : self.first], found)]
        rest = np.sqrt(np.maximum(np.stack([squares - one for one in known], 1), 0))
        return found, rest

    def keys(self, coordinates: np.ndarray, rest: np.ndarray) -> Keys:
        """The bytes of vectors with these coordinates."""
        numbers = np.concatenate([coordinates, rest], 1) / self.steps
        each = np.clip(np.rint(numbers), -127, 127).astype(np.int8)
        count = self.basis.shape[1]
        first, finer = [*range(self.first), count], [*range(self.first, count), count + 1]
        return Keys(np.ascontiguousarray(each[:, first]), np.ascontiguousarray(each[:, finer]))

    def weights(self, coordinates: np.ndarray, rest: np.ndarray) -> Weights:
        """Of queries with these coordinates."""
        of_mean = product_in_this_thread(self.mean[None], self.basis)
        both = np.concatenate([coordinates + of_mean, _REST * rest], 1) * self.steps
        first = np.concatenate([both[:, : self.first], both[:, -2:-1]], 1)
        largest = np.maximum(np.abs(first).max(1, keepdims=True), 1e-30)
        return Weights(np.rint(first * (_HIGHEST / largest)).astype(np.int16), np.delete(both, -2, axis=1))


class ShortKeys(NamedTuple):
    """The keys of some items, cell after cell."""

    directions: Directions
    centres: np.ndarray
    """(cells, c)"""
    ends: np.ndarray
    """(cells + 1,): where each cell begins, and where the last ends."""
    added: np.ndarray
    """(n,) int64: which item each is of."""
    keys: Keys
    trained_for: int
    """How many items there were."""

    @property
    def usable(self) -> bool:
        """Whether there are any: of items that differ in too many directions there are none."""
        return self.directions.first > 0

    def distances(self, coordinates: np.ndarray) -> np.ndarray:
        """From each (n, p) to each cell, squared, but for a constant of each."""
        return _distances(coordinates[:, : self.directions.first], self.centres)

    def keyed(self, vectors: np.ndarray) -> tuple[Keys, np.ndarray]:
        """The keys of vectors (n, w), and the cells they belong to."""
        coordinates, rest = self.directions.coordinates(vectors)
        return self.directions.keys(coordinates, rest), self.distances(coordinates).argmin(1)

    def holding(self, added: np.ndarray, keys: Keys, cells: np.ndarray) -> "ShortKeys":
        """The same directions and cells with these items."""
        order = np.argsort(cells, kind="stable")
        ends = np.searchsorted(cells[order], np.arange(len(self.centres) + 1))
        return self._replace(ends=ends, added=added[order], keys=keys.at(order))

    def cell_of_each(self) -> np.ndarray:
        """The cells of its own items, (n,)."""
        return np.repeat(np.arange(len(self.centres)), np.diff(self.ends))


Take = Callable[[np.ndarray], np.ndarray]
"""Places of items -> their vectors (n, w)."""


def trained(take: Take, items: int, width: int) -> ShortKeys:
    """Directions and cells for so many items, as yet without any; not usable where the keys would say too little."""
    random = np.random.default_rng(0)
    few = max(16 * _WIDTHS[-1], _SAMPLE_BYTES // (4 * width))
    places = random.permutation(items)
    sample = np.concatenate([take(part).astype(np.float32) for part in _parts(places[:few])])
    directions = _directions(sample, random)
    count = directions.first
    cells = max(1, min(items // _CELL, _MOST_CELLS)) if count else 1
    more = _parts(places[few : _PER_CELL * cells])
    points = [directions.coordinates(part)[0][:, :count] for part in (sample, *map(take, more))]
    centres = _centres(np.concatenate(points), cells, random) if count else np.empty((1, 0), np.float32)
    return ShortKeys(
        directions, centres, np.zeros(cells + 1, np.int64), np.empty(0, np.int64), empty_keys(directions, 0), items
    )


def empty_keys(directions: Directions, items: int) -> Keys:
    """Room for the keys of so many."""
    widths = directions.first + 1, directions.basis.shape[1] - directions.first + 1
    return Keys(*(np.empty((items, width), np.int8) for width in widths))


def _parts(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]


def _distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.einsum("cp,cp->c", centres, centres) - 2 * _product(points, centres.T)
    return found


def _product(vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of few vectors, a search's, in this thread; of many, while keys are made, by all."""
    if len(vectors) <= _FEW:
        return product_in_this_thread(vectors, others)
    found: np.ndarray = vectors @ others
    return found


def _directions(sample: np.ndarray, random: np.random.Generator) -> Directions:
    """Those of the largest variance, by subspace iteration; none where the most keep too little of it."""
    width = sample.shape[1]
    mean = sample.mean(0)
    centred = sample - mean
    total = float(np.einsum("nw,nw->", centred, centred))
    guess = min(width, _WIDTHS[-1] + 16)
    basis = np.linalg.qr(random.normal(size=(width, guess)).astype(np.float32)).Q
    for _ in range(_PASSES):
        basis = np.linalg.qr(centred.T @ (centred @ basis)).Q
    seen = centred @ basis
    variance, turn = np.linalg.eigh(seen.T @ seen)
    kept = np.cumsum(variance[::-1]) / max(total, 1e-30)
    most = min(width, _WIDTHS[-1])
    first = next((count for count in _WIDTHS if count < most and kept[count - 1] >= _KEPT), most)
    if kept[most - 1] < _WORTH_IT:
        first = most = 0
    found = Directions(
        mean, np.ascontiguousarray((basis @ turn[:, ::-1])[:, :most], np.float32), np.ones(most + 2, np.float32), first
    )
    coordinates, rest = found.coordinates(sample)
    largest = np.concatenate([np.abs(coordinates).max(0), _LARGEST_REST * rest.max(0)])
    return found._replace(steps=(np.maximum(largest, 1e-6) / 127).astype(np.float32))


def _centres(points: np.ndarray, cells: int, random: np.random.Generator) -> np.ndarray:
    """The centres of k-means, begun with some of the points; a cell that becomes empty keeps its centre."""
    centres = np.array(points[random.permutation(len(points))[:cells]])
    for _ in range(_ROUNDS):
        nearest = np.concatenate([_distances(part, centres).argmin(1) for part in _parts(points)])
        order = np.argsort(nearest, kind="stable")
        counts = np.bincount(nearest, minlength=len(centres))
        filled = np.flatnonzero(counts)
        sums = np.add.reduceat(points[order], (np.cumsum(counts) - counts)[filled], axis=0)
        centres[filled] = sums / counts[filled, None]
    return centres


def write_keys(path: Path, keys: ShortKeys) -> None:
    """Write a file of keys; it appears under its name once it is whole."""
    mean, basis, steps, first = keys.directions
    counts = np.array([first, keys.trained_for])
    vectors = {"mean": mean, "basis": basis, "steps": steps, "centres": keys.centres}
    items = {"ends": keys.ends, "added": keys.added, "keys": keys.keys.first, "finer": keys.keys.finer}
    with whole(path) as file:
        np.savez(file, allow_pickle=False, counts=counts, **vectors, **items)


def read_keys(path: Path, width: int) -> ShortKeys | None:
    """The keys in a file of vectors of that width; None where there is none. ValueError where it is damaged, which
    checksums of all parts tell, or of other vectors.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
            found = {name: parts[name] for name in parts.files}
        first, trained_for = found["counts"].tolist()
        directions = Directions(found["mean"], found["basis"], found["steps"], first)
        each = Keys(found["keys"], found["finer"])
        keys = ShortKeys(directions, found["centres"], found["ends"], found["added"], each, trained_for)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"cannot be read ({error})") from error
    except (
        ValueError,
        TypeError,
        KeyError,
        EOFError,
        zipfile.BadZipFile,
    ) as error:  # NumPy would advise to unpickle it
        raise ValueError("is damaged, or not a file of keys") from error
    count, cells = directions.basis.shape[-1], len(keys.centres)
    wanted = [part.shape for part in empty_keys(directions, len(keys.added))]
    shapes = [part.shape for part in (*directions[:3], keys.centres, keys.ends, *keys.keys)]
    if shapes != [(width,), (width, count), (count + 2,), (cells, directions.first), (cells + 1,), *wanted]:
        raise ValueError(f"not keys of vectors of {width} numbers")
    sizes = np.diff(keys.ends)
    if keys.keys.first.dtype != np.int8 or keys.ends[0] != 0 or sizes.sum() != len(keys.added) or sizes.min() < 0:
        raise ValueError("cells that do not fit its keys")
    return keys
