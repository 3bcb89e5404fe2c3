"""All pairs of two collections of sets of unequal size: no padding where the similarity allows it, else little.

MaxSim is reduced straight from the product of all vectors, Σ over the rows of a set of the maximum over the columns of
another, on a CPU at nearly the cost of that product. Any other similarity gets sets of about one size at a time, padded
to the largest of them, with masks.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from maxmatch.core.array_checks import NotFiniteError, shape_of
from maxmatch.core.checks import Array, NotUnitLength, as_array, as_tensor, warn_unless_unit
from maxmatch.core.devices import chosen_device
from maxmatch.core.ragged_array import RaggedArray
from maxmatch.matching import SetSimilarity, similarity_named
from maxmatch.matching.products import NORMALISE, Tile, usual_memory

Similarity = Callable[..., Tensor]
_ALIKE = 1.25  # sizes of sets that are padded to one differ by at most this factor
_TENSORS = 20  # of the size of the squared blocks, alive at once in a similarity with masks
_BEST_ROWS, _BEST_COLUMNS = 512, 4096  # vectors in a tile, where memory allows
_BEST_PRODUCTS = 2**19  # of a tile, to stay in the caches
_BEST_PAIRS = 128 * 1024
_SAMPLE = 64  # items whose norms are looked at


class RaggedSets(NamedTuple):
    """Sets of unequal size, read part by part."""

    name: str
    sizes: np.ndarray
    """Vectors of each set."""
    width: int
    read: Callable[[slice], Tensor]
    """The vectors (N, D) of some sets, one after the other."""
    device: torch.device
    double: bool

    def __len__(self) -> int:
        return len(self.sizes)


def is_ragged(given: Any) -> bool:
    """Whether these are sets of unequal size: a list of (n, D) of which one has another n."""
    if isinstance(given, RaggedArray):
        return True
    if not isinstance(given, list | tuple):
        return False
    listed = all(isinstance(one, list | tuple) or getattr(one, "ndim", 0) > 0 for one in given)
    return listed and len({len(one) for one in given}) > 1


def ragged_sets(name: str, given: Any) -> RaggedSets:
    """Checked sets: a RaggedArray (N, D), or a list of arrays, tensors or lists (n, D), n at least 1."""
    if isinstance(given, RaggedArray):
        _check_vectors(name, given.values)
        if len(given) and not given.sizes.all():
            raise ValueError(f"{name}[{int(np.argmin(given.sizes))}]: has no vectors. Leave such items out.")

        def read_flat(part: slice) -> Tensor:
            return as_tensor(given[part].flat())

        double = given.values.dtype == np.float64
        return RaggedSets(name, given.sizes, given.values.shape[1], read_flat, torch.device("cpu"), double)
    sets = [as_array(f"{name}[{place}]", one) for place, one in enumerate(given)]
    for place, one in enumerate(sets):
        _check_vectors(f"{name}[{place}]", one)
        if not len(one):
            raise ValueError(f"{name}[{place}]: has no vectors. Leave such items out.")
        if one.shape[1] != sets[0].shape[1]:
            raise ValueError(
                f"{name}[{place}]: vectors of width {one.shape[1]}, but those before it of {sets[0].shape[1]}."
            )
    tensors = [one for one in sets if isinstance(one, Tensor)]
    if len({one.device for one in tensors}) > 1:
        raise ValueError(f"{name}: its sets are on {len({one.device for one in tensors})} devices: move them to one.")
    device = tensors[0].device if tensors else torch.device("cpu")

    def read(part: slice) -> Tensor:
        some = [as_tensor(one).detach() for one in sets[part]]
        common = max((one.dtype for one in some), key=lambda dtype: dtype.itemsize)
        return torch.cat([one.to(device, common) for one in some])

    double = any(one.dtype in (torch.float64, np.float64) for one in sets)
    return RaggedSets(name, np.array([len(one) for one in sets]), sets[0].shape[1], read, device, double)


def without_padding(name: str, sets: Array, mask: Bool[Tensor, "n K"] | None) -> RaggedSets:
    """Padded sets (n, K, D) by their real vectors alone; sets and mask are checked already."""
    count, size, width = sets.shape

    def read(part: slice) -> Tensor:
        block = as_tensor(sets[part]).detach()
        return block.reshape(-1, width) if mask is None else block[mask[part].to(block.device)]

    sizes = np.full(count, size) if mask is None else mask.sum(1).cpu().numpy()
    device = sets.device if isinstance(sets, Tensor) else torch.device("cpu")
    return RaggedSets(name, sizes, width, read, device, sets.dtype in (torch.float64, np.float64))


def _check_vectors(name: str, vectors: Array) -> None:
    floating = vectors.is_floating_point() if isinstance(vectors, Tensor) else vectors.dtype.kind == "f"
    if vectors.ndim != 2 or not floating:
        raise ValueError(
            f"{name}: expected the vectors of a set (vectors, width) in floating point, got {vectors.dtype} "
            f"{shape_of(vectors)}. Sets of unequal size are a list of such."
        )


def reduces(similarity: Any) -> bool:
    """Whether its scores are reduced from the product of all vectors, without padding."""
    return isinstance(similarity, SetSimilarity) and similarity.name == "maxsim"


class RaggedJob:
    """Two collections of sets of unequal size, the similarity, and where and in what memory to compute it."""

    def __init__(
        self,
        a: RaggedSets,
        b: RaggedSets,
        similarity: str | Similarity,
        max_memory: int | None,
        normalise: bool,
        device: torch.device | str | None,
    ) -> None:
        if a.width != b.width:
            raise ValueError(
                f"a has vectors of width {a.width} and b of width {b.width}: they live in different spaces. "
                "Encode both with the same model."
            )
        self.a, self.b, self.normalise = a, b, normalise
        self.similarity = similarity_named(similarity) if isinstance(similarity, str) else similarity
        elsewhere = (sets.device for sets in (a, b) if sets.device.type != "cpu")
        self.device = next(elsewhere, torch.device("cpu")) if device is None else chosen_device(device)
        self.dtype = torch.float64 if a.double or b.double else torch.float32
        self.max_memory = usual_memory(self.device) if max_memory is None else max_memory

    def tiles(self, scores: Tensor | None = None) -> Iterator[Tile]:
        """Score every tile, columns outermost; into `scores` (B, C) if given, else each into a tensor of its own."""
        reduced = reduces(self.similarity) and self.device.type == "cpu"
        score = _Reduction() if reduced else self._padded
        columns_at_once, rows_at_once = self._vectors_at_once(reduced)
        row_parts = list(_parts(self.a.sizes, rows_at_once))
        kept: dict[int, Tensor] = {}  # the rows' tiles come again with every tile of columns: kept, where they fit
        keeps = int(self.a.sizes.sum()) * self.a.width * self.dtype.itemsize <= self.max_memory // 8
        for columns in _parts(self.b.sizes, columns_at_once):
            y = self._load(self.b, columns)
            for rows in row_parts:
                x = kept.get(rows.start)
                if x is None:
                    x = self._load(self.a, rows)
                    if keeps:
                        kept[rows.start] = x
                if scores is None:
                    shape = rows.stop - rows.start, columns.stop - columns.start
                    tile = torch.empty(shape, dtype=self.dtype, device=self.device)
                else:
                    tile = scores[rows, columns]
                score(x, y, self.a.sizes[rows], self.b.sizes[columns], tile)
                if not bool(torch.isfinite(tile.sum())):
                    self._refuse_not_finite()
                yield Tile(rows, columns, tile)
        for side in () if self.normalise else (self.a, self.b):
            low, high = _norms(side)
            warn_unless_unit(side.name, low, high, NORMALISE, stacklevel=3)

    def _vectors_at_once(self, reduced: bool) -> tuple[int, int]:
        """Of columns and of rows in a tile: an eighth of the memory each, and for the reduction half for products."""
        share = max(1, self.max_memory // 8)
        most = max(1, share // (3 * self.b.width * self.dtype.itemsize))
        if not reduced:  # what a similarity takes is bounded by `_padded`
            return most, most
        products = max(1, 4 * share // (2 * self.dtype.itemsize))
        rows = max(1, min(most, int(self.a.sizes.sum()), _BEST_ROWS, math.isqrt(products)))
        return max(1, min(most, _BEST_COLUMNS, min(products, _BEST_PRODUCTS) // rows)), rows

    def _load(self, sets: RaggedSets, part: slice) -> Float[Tensor, "N D"]:
        vectors = sets.read(part).to(self.device)
        if not bool(torch.isfinite(vectors.sum(dtype=torch.float32))):  # a maximum may hide it
            self._refuse_not_finite()
        if self.normalise:  # in float32: what keeps a zero vector from being divided by zero is too small for half
            vectors = normalize(vectors.to(self.dtype), dim=-1)
        return vectors.to(self.dtype)

    def _padded(self, x: Tensor, y: Tensor, rows: np.ndarray, columns: np.ndarray, out: Tensor) -> None:
        """The scores of a tile, by the similarity itself: sets of about one size at a time."""
        in_order = isinstance(self.similarity, SetSimilarity) and self.similarity.in_order
        budget = max(1, self.max_memory // 2)
        of_rows, of_columns = _alike(rows, _BEST_PAIRS), _alike(columns, _BEST_PAIRS)
        for some_columns in of_columns:
            for some_rows in of_rows:
                tall, wide = int(rows[some_rows].max()), int(columns[some_columns].max())
                pairs = max(1, budget // (_TENSORS * max(tall, wide) ** 2 * self.dtype.itemsize))
                pairs = min(pairs, _BEST_PAIRS)
                width = min(len(some_columns), max(1, pairs // min(len(some_rows), 128)))
                height = max(1, pairs // width)
                if in_order:  # slot i meets slot i: both are padded to one size, and what both have counts
                    tall = wide = max(tall, wide)
                for these_columns in _chunks(some_columns, width):
                    b, b_mask = _pad(y, columns, these_columns, wide)
                    for these_rows in _chunks(some_rows, height):
                        a, a_mask = _pad(x, rows, these_rows, tall)
                        scored = self._score(a, b, a_mask, b_mask)
                        place = torch.from_numpy(these_rows)[:, None], torch.from_numpy(these_columns)
                        out[place[0].to(out.device), place[1].to(out.device)] = scored.to(out.dtype)

    def _score(self, a: Tensor, b: Tensor, a_mask: Tensor | None, b_mask: Tensor | None) -> Tensor:
        masks = {name: mask for name, mask in (("a_mask", a_mask), ("b_mask", b_mask)) if mask is not None}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotUnitLength)  # a warning that fits is given once, at the end
            return self.similarity(a, b, **masks)

    def _refuse_not_finite(self) -> None:
        """Name the item by its place in the whole."""
        for sets in (self.a, self.b):
            for place in range(len(sets)):
                if not bool(torch.isfinite(sets.read(slice(place, place + 1))).all()):
                    raise NotFiniteError(
                        f"{sets.name}: item {place} holds NaN or infinite values. "
                        "Find what made them (a zero vector that was normalised?) or leave such items out."
                    )
        raise NotFiniteError("a score is not finite, though every vector is. " + NORMALISE)


class _Reduction:
    """MaxSim of a tile: Σ over the vectors of a row's set of the maximum over those of a column's."""

    def __init__(self) -> None:
        self.space = torch.empty(0)  # for the products of all tiles: touching fresh memory costs more than the maximum

    def __call__(self, x: Tensor, y: Tensor, rows: np.ndarray, columns: np.ndarray, out: Tensor) -> None:
        if self.space.numel() < len(x) * len(y) or self.space.dtype != x.dtype:
            self.space = x.new_empty(len(x) * len(y))
        products = torch.mm(x, y.T, out=self.space[: len(x) * len(y)].view(len(x), len(y)))
        best = np.maximum.reduceat(products.numpy(), _begins(columns), axis=1)
        np.add.reduceat(best, _begins(rows), axis=0, out=out.numpy())


def _begins(sizes: np.ndarray) -> np.ndarray:
    begins: np.ndarray = np.cumsum(sizes) - sizes
    return begins


def _parts(sizes: np.ndarray, most: int) -> Iterator[slice]:
    """Consecutive items of at most so many vectors together, and at least one item."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(begin, end)
        begin = end


def _alike(sizes: np.ndarray, most: int) -> list[np.ndarray]:
    """The places of items in groups of about one size, at most so many in each."""
    order = np.argsort(sizes, kind="stable")
    groups, begin = [], 0
    while begin < len(order):
        end = int(np.searchsorted(sizes[order], _ALIKE * sizes[order[begin]], side="right"))
        end = min(end, begin + most)
        groups.append(order[begin:end])
        begin = end
    return groups


def _chunks(places: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (places[start : start + size] for start in range(0, len(places), size))


def _pad(
    vectors: Float[Tensor, "N D"], sizes: np.ndarray, places: np.ndarray, size: int
) -> tuple[Float[Tensor, "n K D"], Bool[Tensor, "n K"] | None]:
    """Some sets, padded to one size, and which of their vectors are real; None: all."""
    begins, own = torch.from_numpy(_begins(sizes)[places]), torch.from_numpy(sizes[places])
    slot = torch.arange(size)
    real = slot < own[:, None]
    at = (begins[:, None] + slot).masked_fill(~real, 0)
    padded = vectors[at.to(vectors.device)]
    return padded, None if bool(real.all()) else real.to(vectors.device)


def _norms(sets: RaggedSets) -> tuple[float, float]:
    """The smallest and the largest norm of the first vectors in a sample of the items."""
    places = range(0, len(sets), max(1, math.ceil(len(sets) / _SAMPLE)))
    sample = torch.cat([sets.read(slice(place, place + 1))[:1] for place in places])
    low, high = sample.float().norm(dim=-1).aminmax()
    return float(low), float(high)
