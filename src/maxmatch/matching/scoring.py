"""All pairs of two collections of sets, tile by tile under a bound on memory: all scores, or the best of them.

Inputs are tensors on any device or NumPy arrays, memory maps among them: only the tiles at work are read. `max_memory`
bounds what is allocated beside the inputs and the result.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from maxmatch.checks import (
    NotFiniteError,
    NotUnitLength,
    as_tensor,
    check_mask,
    check_pair,
    range_of_norms,
    refuse_not_finite,
    warn_unless_unit,
)
from maxmatch.matching.backend import compiled_for, kernels_for
from maxmatch.matching.similarity import SIMILARITIES, Similarity, multiply
from maxmatch.types import TopHits

Array = Tensor | np.ndarray
_GIB = 2**30
_NORMALISE = "Pass normalise=True to have it done on the way."


def score_matrix(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    similarity: str | Similarity = "maxmatch",
    max_memory: int = _GIB,
    *,
    a_mask: Bool[Tensor, "B K"] | None = None,
    b_mask: Bool[Tensor, "C L"] | None = None,
    normalise: bool = False,
    device: torch.device | str | None = None,
) -> Float[Tensor, "B C"]:
    """The scores of all pairs. `device` says where to compute (default: where the tensors are; arrays: the CPU)."""
    job = _Job.of(a, b, similarity, max_memory, a_mask, b_mask, normalise, device)
    scores = torch.empty(len(a), len(b), dtype=job.dtype, device=job.device)
    for _ in job.tiles(scores):
        pass
    return scores


def top_hits(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    k: int,
    similarity: str | Similarity = "maxmatch",
    max_memory: int = _GIB,
    *,
    a_mask: Bool[Tensor, "B K"] | None = None,
    b_mask: Bool[Tensor, "C L"] | None = None,
    normalise: bool = False,
    device: torch.device | str | None = None,
) -> TopHits:
    """The k best of b for each of a, best first; never holds the matrix. Equal scores: the lower index first."""
    job = _Job.of(a, b, similarity, max_memory, a_mask, b_mask, normalise, device)
    best = _Best(len(a), _checked_k(k, len(b)), job)
    for tile in job.tiles():
        best.add(tile.rows, tile.columns, tile.scores)
    return best.result()


def top_hits_both(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    k: int,
    similarity: str | Similarity = "maxmatch",
    max_memory: int = _GIB,
    *,
    a_mask: Bool[Tensor, "B K"] | None = None,
    b_mask: Bool[Tensor, "C L"] | None = None,
    normalise: bool = False,
    device: torch.device | str | None = None,
) -> tuple[TopHits, TopHits]:
    """`top_hits` of a in b and of b in a, in one pass: both directions of retrieval at the price of one product."""
    job = _Job.of(a, b, similarity, max_memory, a_mask, b_mask, normalise, device)
    forth, back = _Best(len(a), _checked_k(k, len(b)), job), _Best(len(b), _checked_k(k, len(a)), job)
    for tile in job.tiles():
        forth.add(tile.rows, tile.columns, tile.scores)
        back.add(tile.columns, tile.rows, tile.scores.T)
    return forth.result(), back.result()


def _checked_k(k: int, available: int) -> int:
    if k < 1:
        raise ValueError(f"k: expected at least 1, got {k}.")
    return min(k, available)


class _Best:
    """The k best of every row so far. Tiles of one row come in the order of their columns."""

    def __init__(self, rows: int, k: int, job: "_Job") -> None:
        self.k = k
        self.scores = torch.full((rows, k), -torch.inf, dtype=job.dtype, device=job.device)
        self.indices = torch.full((rows, k), -1, device=job.device)

    def add(self, rows: slice, columns: slice, scores: Tensor) -> None:
        values, places = _first_largest(scores, min(self.k, scores.shape[1]))
        values = torch.cat([self.scores[rows], values], 1)
        places = torch.cat([self.indices[rows], places + columns.start], 1)
        order = values.sort(dim=1, descending=True, stable=True).indices[:, : self.k]
        self.scores[rows] = values.gather(1, order)
        self.indices[rows] = places.gather(1, order)

    def result(self) -> TopHits:
        return TopHits(self.scores, self.indices)


def _first_largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row in descending order, equal ones in the order of their columns."""
    values, places = scores.topk(k, dim=1)
    # topk takes any of those that tie for the last place: rows where it had a choice are sorted whole.
    undecided = ((scores >= values[:, -1:]).sum(1) > k).nonzero()[:, 0]
    if len(undecided):
        sorted_values, order = scores[undecided].sort(dim=1, descending=True, stable=True)
        values[undecided], places[undecided] = sorted_values[:, :k], order[:, :k]
    places, by_place = places.sort(dim=1)
    values, by_value = values.gather(1, by_place).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, by_value)


class _Tile(NamedTuple):
    rows: slice
    columns: slice
    scores: Tensor


@dataclass(frozen=True)
class _Scorer:
    """How the scores of a tile are made."""

    pack_rows: Callable[[Tensor], Any]
    pack_columns: Callable[[Tensor], Any]
    score: Callable[[Any, Any, Tensor, slice, slice], None]
    """(packed rows, packed columns, where to write the scores, which rows, which columns)"""
    bytes_per_pair: int
    best_tile: tuple[int, int]
    """Rows and columns of a tile where memory allows: small on the CPU, to stay in its caches."""


@dataclass(frozen=True)
class _Job:
    """Two collections, the similarity between them, and where and in what memory to compute it."""

    a: Array
    b: Array
    similarity: str | Similarity
    max_memory: int
    a_mask: Tensor | None
    b_mask: Tensor | None
    normalise: bool
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        a: Array,
        b: Array,
        similarity: str | Similarity,
        max_memory: int,
        a_mask: Tensor | None,
        b_mask: Tensor | None,
        normalise: bool,
        device: torch.device | str | None,
    ) -> "_Job":
        """Check everything at the border."""
        check_pair(a, b)
        if isinstance(similarity, str) and similarity not in SIMILARITIES:
            raise ValueError(f"similarity: expected one of {', '.join(SIMILARITIES)}, got {similarity!r}.")
        check_mask("a_mask", a_mask, (a.shape[0], a.shape[1]))
        check_mask("b_mask", b_mask, (b.shape[0], b.shape[1]))
        if device is None:
            device = next((x.device for x in (a, b) if isinstance(x, Tensor)), torch.device("cpu"))
        double = any(x.dtype in (torch.float64, np.float64) for x in (a, b))
        dtype = torch.float64 if double else torch.float32
        return cls(a, b, similarity, max_memory, a_mask, b_mask, normalise, torch.device(device), dtype)

    @torch.no_grad()
    def tiles(self, scores: Tensor | None = None) -> Iterator[_Tile]:
        """Score every tile, columns outermost; into `scores` (B, C) if given, else each into a tensor of its own."""
        if len(self.a) == 0 or len(self.b) == 0:
            return
        totals: list[Tensor] = []
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            scorer = self._scorer(pool, totals.append)
            height, width = self._tile_shape(scorer)
            packed: dict[int, Any] = {}  # the rows' tiles come again with every tile of columns: kept, where they fit
            keep_rows = self.a.nbytes <= self.max_memory // 4
            for j in range(0, len(self.b), width):
                columns = slice(j, min(j + width, len(self.b)))
                packed_columns = scorer.pack_columns(self._load(self.b, columns))
                for i in range(0, len(self.a), height):
                    rows = slice(i, min(i + height, len(self.a)))
                    packed_rows = packed.get(i)
                    if packed_rows is None:
                        packed_rows = scorer.pack_rows(self._load(self.a, rows))
                        if keep_rows:
                            packed[i] = packed_rows
                    if scores is None:
                        shape = rows.stop - rows.start, columns.stop - columns.start
                        tile = torch.empty(shape, dtype=self.dtype, device=self.device)
                    else:
                        tile = scores[rows, columns]
                    try:
                        scorer.score(packed_rows, packed_columns, tile, rows, columns)
                    except NotFiniteError:  # it names an item of the tile
                        self._refuse_not_finite()
                    if totals and self.device.type == "cpu" and not bool(torch.isfinite(totals.pop())):
                        self._refuse_not_finite()
                    yield _Tile(rows, columns, tile)
        # On a GPU nothing is looked at before all is under way: a look stops the queue of work.
        sides = () if self.normalise else (("a", self.a, self.a_mask), ("b", self.b, self.b_mask))
        norms = [range_of_norms(sets, mask).to(self.device) for _, sets, mask in sides]
        total, *found = torch.cat([self._sum(totals), *norms]).tolist()
        if not math.isfinite(total):
            self._refuse_not_finite()
        for (name, *_), low, high in zip(sides, found[::2], found[1::2], strict=True):
            warn_unless_unit(name, low, high, _NORMALISE, stacklevel=3)

    def _refuse_not_finite(self) -> NoReturn:
        """Name the item by its place in the whole."""
        refuse_not_finite("a", self.a)
        refuse_not_finite("b", self.b)
        raise NotFiniteError("a product is not finite, though every input is: the vectors are far too long.")

    def _sum(self, totals: list[Tensor]) -> Tensor:
        return torch.stack(totals).sum()[None] if totals else torch.zeros(1, device=self.device)

    def _load(self, sets: Array, part: slice) -> Tensor:
        block = as_tensor(sets[part]).to(self.device)
        return normalize(block, dim=-1) if self.normalise else block

    def _tile_shape(self, scorer: _Scorer) -> tuple[int, int]:
        """Tiles as large as the scorer likes them and memory allows; a few long rows where a is small."""
        most = max(1, self.max_memory * 3 // 4 // (scorer.bytes_per_pair + 4))
        tall, wide = scorer.best_tile
        pairs = min(most, tall * wide)
        height = min(len(self.a), tall, max(1, pairs // min(len(self.b), wide // 32)))
        return height, max(1, min(len(self.b), pairs // height))

    def _scorer(self, pool: ThreadPoolExecutor, watch: "Watch") -> _Scorer:
        """The fastest way there is. What a scorer gives to `watch` must be finite."""
        plain_maxmatch = self.similarity == "maxmatch" and self.a_mask is None and self.b_mask is None
        size = self.a.shape[1]
        probe = self._load(self.a, slice(0, 1))
        if plain_maxmatch and size == self.b.shape[1] and probe.dtype == self._load(self.b, slice(0, 1)).dtype:
            kernels = kernels_for(probe)
            if kernels is not None and kernels.can_fuse(probe):
                return _fused_scorer(kernels, watch)
            if kernels is not None and 1 < size <= kernels.MAX_PLANES:
                return _plane_scorer(kernels, size, watch)
            few = min(len(self.a), len(self.b)) * size < self.a.shape[2]  # then packing would cost more than it saves
            if size == 4 and not few:
                compiled = compiled_for(probe, pairs=len(self.a) * len(self.b))
                if compiled is not None:
                    return _compiled_scorer(compiled, pool, watch)
        return self._plain_scorer()

    def _plain_scorer(self) -> _Scorer:
        similarity = SIMILARITIES[self.similarity] if isinstance(self.similarity, str) else self.similarity

        def score(a: Tensor, b: Tensor, out: Tensor, rows: slice, columns: slice) -> None:
            masks = {}
            if self.a_mask is not None:
                masks["a_mask"] = self.a_mask[rows].to(self.device)
            if self.b_mask is not None:
                masks["b_mask"] = self.b_mask[columns].to(self.device)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotUnitLength)  # said once already, with the cure that fits here
                out.copy_(similarity(a, b, **masks))

        block = self.a.shape[1] * self.b.shape[1]
        tile = (128, 1024) if self.device.type == "cpu" else (4096, 4096)
        return _Scorer(_same, _same, score, bytes_per_pair=8 * 4 * block, best_tile=tile)


def _same(sets: Tensor) -> Tensor:
    return sets


def _slot_major(sets: Tensor) -> Tensor:
    """(B, K, D) -> (K·B, D): the vectors of slot 0 first, so that a product comes out in planes."""
    return sets.transpose(0, 1).reshape(-1, sets.shape[2])


Watch = Callable[[Tensor], None]


def _compiled_scorer(compiled: Any, pool: ThreadPoolExecutor, watch: Watch) -> _Scorer:
    """The CPU's: a product in planes, and compiled code for the matching."""
    space: dict[str, Tensor] = {}  # one for all tiles: touching fresh memory costs more than the matching

    def reuse(name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in space:
            space[name] = torch.empty(size)  # the first tile is the largest
        return space[name][:size].view(shape)

    def pack_columns(sets: Tensor) -> Tensor:
        count, size, width = sets.shape
        return reuse("columns", size, count, width).copy_(sets.transpose(0, 1)).view(-1, width)

    def score(x: Tensor, y: Tensor, out: Tensor, rows: slice, columns: slice) -> None:
        height, width = out.shape
        product = torch.mm(x, y.T, out=reuse("product", 4 * height, 4 * width))
        watch(product.sum())
        matched = reuse("matched", 4, height, width)
        compiled.matched_cosines(product.view(4, height, 4, width), matched, pool)
        torch.mean(matched.expm1_(), 0, out=out)

    return _Scorer(lambda a: _slot_major(a.float()), pack_columns, score, bytes_per_pair=20 * 4, best_tile=(512, 2048))


def _plane_scorer(kernels: Any, size: int, watch: Watch) -> _Scorer:
    """The GPU's for up to eight vectors and full float32: the library's product, then one kernel."""

    def score(x: Tensor, y: Tensor, out: Tensor, rows: slice, columns: slice) -> None:
        height, width = out.shape
        kernels.plane_scores(multiply(x, y).view(size, height, size, width).transpose(1, 2), out)
        watch(_total(x) + _total(y))

    return _Scorer(_slot_major, _slot_major, score, bytes_per_pair=4 * size**2, best_tile=(8192, 32768))


def _fused_scorer(kernels: Any, watch: Watch) -> _Scorer:
    """The GPU's for four vectors: product and matching in one kernel."""

    def score(x: Tensor, y: Tensor, out: Tensor, rows: slice, columns: slice) -> None:
        kernels.fused_scores(x, y, out)
        watch(_total(x) + _total(y))

    return _Scorer(kernels.pack_rows, kernels.pack_columns, score, bytes_per_pair=0, best_tile=(8192, 32768))


def _total(vectors: Tensor) -> Tensor:
    """A sum that is not finite if any of the values is not."""
    return vectors.sum(dtype=torch.float32)
