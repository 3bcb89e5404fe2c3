"""All pairs of two collections of sets, tile by tile under a bound on memory: all scores, or the best of them."""

import math
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from maxmatch.core.array_checks import MAX_SET_SIZE, NotFiniteError, check_sets, refuse_not_finite, shape_of
from maxmatch.core.checks import (
    Array,
    NotUnitLength,
    as_array,
    as_tensor,
    check_mask,
    check_pair,
    some_norms,
    warn_unless_unit,
)
from maxmatch.core.devices import chosen_device
from maxmatch.core.types import TopHits
from maxmatch.matching import SetSimilarity, similarity_named
from maxmatch.matching.products import (
    LEAST_MEMORY,
    NORMALISE,
    Tile,
    compiled_for,
    kernels_for,
    scans_for,
    usual_memory,
)
from maxmatch.matching.ragged import RaggedJob, RaggedSets, is_ragged, ragged_sets, reduces, without_padding
from maxmatch.matching.scorers import (
    Scorer,
    compiled_few_scorer,
    compiled_scorer,
    few_scorer,
    fused_scorer,
    plane_scorer,
    same,
)
from maxmatch.matching.similarity import Similarity

_WIDEST = 2**22  # columns of a tile: kernels count the cosines of a row in 32 bits


class PairwiseJob:
    """Two collections, the similarity between them, and where and in what memory to compute it."""

    def __init__(
        self,
        a: Array,
        b: Array,
        similarity: str | Similarity,
        max_memory: int | None,
        a_mask: Array | None,
        b_mask: Array | None,
        normalise: bool,
        device: torch.device | str | None,
    ) -> None:
        a, b = as_array("a", a), as_array("b", b)
        check_pair(a, b)
        self.a, self.b, self.normalise = a, b, normalise
        self.similarity = similarity_named(similarity) if isinstance(similarity, str) else similarity
        self.a_mask = None if a_mask is None else as_tensor(a_mask, "a_mask")
        self.b_mask = None if b_mask is None else as_tensor(b_mask, "b_mask")
        check_mask("a_mask", self.a_mask, (a.shape[0], a.shape[1]))
        check_mask("b_mask", self.b_mask, (b.shape[0], b.shape[1]))
        where = (x.device for x in (a, b) if isinstance(x, Tensor))
        self.device = next(where, torch.device("cpu")) if device is None else chosen_device(device)
        double = any(x.dtype in (torch.float64, np.float64) for x in (a, b))
        self.dtype = torch.float64 if double else torch.float32
        self._memory = max_memory

    @cached_property
    def max_memory(self) -> int:
        """Bytes. A GPU is asked only where it matters."""
        return usual_memory(self.device) if self._memory is None else self._memory

    def tiles(self, scores: Tensor | None = None) -> Iterator[Tile]:
        """Score every tile, columns outermost; into `scores` (B, C) if given, else each into a tensor of its own."""
        if len(self.a) == 0 or len(self.b) == 0:
            return
        totals: list[Tensor] = []
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            scorer = self._scorer(pool)
            height, width = self._tile_shape(scorer)
            packed: dict[int, Any] = {}  # the rows' tiles come again with every tile of columns: kept, where they fit
            keep_rows = self._item_bytes(self.a) * len(self.a) <= self.max_memory // 8
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
                        total = scorer.score(packed_rows, packed_columns, tile, rows, columns)
                    except NotFiniteError:  # it names an item of the tile
                        self._refuse_not_finite()
                    if total is not None and self.device.type != "cpu":
                        totals.append(total)
                    elif total is not None and not math.isfinite(total):
                        self._refuse_not_finite()
                    yield Tile(rows, columns, tile)
        self._look(torch.stack([torch.zeros((), device=self.device), *totals]))

    def best_where_they_lie(self, k: int, keep: Tensor | None) -> TopHits | None:
        """The k best of `b` for each of `a` by a kernel that reads `b` once, on its GPU; None where it cannot."""
        if not (isinstance(self.b, Tensor) and self.b.device == self.device and self._has_fast_path()):
            return None
        kernels = None if self.normalise else scans_for(self.b)
        rows = as_tensor(self.a)
        if kernels is None or not kernels.can_scan(rows, self.b, k):
            return None
        at_once = kernels.most_queries(self.device)
        each = kernels.scan_bytes(self.b.shape[0], k)
        if self._memory is not None or at_once * each > LEAST_MEMORY:
            at_once = min(at_once, self.max_memory // each)
        if at_once == 0:
            return None
        rows = rows.to(self.device)
        if rows.shape[0] <= at_once:
            scores, indices = kernels.best_hits(rows, self.b, k, keep)
        else:
            parts = [kernels.best_hits(part, self.b, k, keep) for part in torch.split(rows, at_once)]
            scores, indices = map(torch.cat, zip(*parts, strict=True))
        self._look(scores[:, 0], lowest=-math.inf)  # of none there is no score
        return TopHits(scores, indices)

    def _look(self, watched: Tensor, lowest: float = math.nan) -> None:
        """Refuse what is not finite, for then some of `watched` (n,) is not, or is `lowest`, and warn of vectors of
        another length. On a GPU nothing is looked at before all is under way, and then once: a look stops the queue of
        work.
        """
        sides = () if self.normalise else (("a", self.a, self.a_mask), ("b", self.b, self.b_mask))
        parts = [watched, *(some_norms(sets, mask).flatten().to(self.device) for _, sets, mask in sides)]
        values = torch.cat(parts).cpu().numpy()
        whole = values[: len(watched)]
        if not (np.isfinite(whole) | (whole == lowest)).all():
            self._refuse_not_finite()
        end = len(watched)
        for (name, *_), part in zip(sides, parts[1:], strict=True):
            norms, end = values[end : end + len(part)], end + len(part)
            warn_unless_unit(name, float(norms.min()), float(norms.max()), NORMALISE, stacklevel=4)

    def _refuse_not_finite(self) -> NoReturn:
        """Name the item by its place in the whole."""
        refuse_not_finite("a", self.a, self.a_mask)
        refuse_not_finite("b", self.b, self.b_mask)
        cure = NORMALISE if isinstance(self.similarity, SetSimilarity) else "Look for what the function divides by 0."
        raise NotFiniteError("a score is not finite, though every vector is. " + cure)

    def _load(self, sets: Array, part: slice) -> Tensor:
        block = as_tensor(sets[part]).to(self.device)
        if self._cast():
            block = block.to(self.dtype)
        if self.normalise:  # in float32: what keeps a zero vector from being divided by zero is too small for half
            block = normalize(block.to(self.dtype), dim=-1).to(block.dtype)
        return block

    def _cast(self) -> bool:
        """Whether tiles of two precisions are cast to one; a few rows on a CPU are multiplied without a cast."""
        named = isinstance(self.similarity, SetSimilarity)  # a function gets one precision, however many rows there are
        few = named and self.device.type == "cpu" and self.dtype == torch.float32 and self._few_rows()
        return _name(self.a) != _name(self.b) and not few

    def _tile_shape(self, scorer: Scorer) -> tuple[int, int]:
        """As large as the scorer likes it and memory allows: an eighth each for rows and columns, half for pairs."""
        share = self.max_memory // 8
        tall = max(1, min(len(self.a), scorer.best_tile[0], share // self._item_bytes(self.a)))
        widest = max(1, min(len(self.b), share // self._item_bytes(self.b), _WIDEST))
        pairs = max(1, min(math.prod(scorer.best_tile), 4 * share // (scorer.bytes_per_pair + self.dtype.itemsize)))
        height = max(1, min(tall, pairs // min(widest, scorer.best_tile[1] // 32 or 1)))
        return height, max(1, min(widest, pairs // height))

    def _item_bytes(self, sets: Array) -> int:
        """What the copies of one item take while its tile is at work."""
        if isinstance(sets, Tensor):
            resident = sets.device == self.device and not self.normalise and not self._cast() and sets.is_contiguous()
        else:
            resident = self.device.type == "cpu" and not self.normalise and sets.flags.c_contiguous
        if resident and self.device.type == "cuda":  # the kernels take every precision as it is
            few = self._few_rows() and self._has_fast_path()
            return 1 if few else math.prod(sets.shape[1:]) * sets.dtype.itemsize
        masked = self.a_mask is not None or self.b_mask is not None  # then padding is replaced in a copy
        as_it_is = resident and not masked and sets.dtype.itemsize == self.dtype.itemsize
        few = min(len(self.a) * self.a.shape[1], len(self.b) * self.b.shape[1]) < sets.shape[2]
        if resident and not masked and few and self.dtype == torch.float32:  # see few_products
            copies = 0 if as_it_is and sets is self.b else 1  # rows are packed
        else:
            copies = 1 if as_it_is else 3
        return max(1, copies * math.prod(sets.shape[1:]) * self.dtype.itemsize)

    def _scorer(self, pool: ThreadPoolExecutor) -> Scorer:
        """The fastest way there is."""
        size = self.a.shape[1]
        probe = self._load(self.a, slice(0, 1))
        if self._has_fast_path():
            kernels = kernels_for(probe)
            if kernels is not None and 1 < size <= kernels.MAX_PLANES and self._few_rows():
                return few_scorer(kernels, size)
            if kernels is not None and kernels.can_fuse(probe):
                return fused_scorer(kernels)
            if kernels is not None and 1 < size <= kernels.MAX_PLANES:
                return plane_scorer(kernels, size)
            compiled = compiled_for(probe, pairs=len(self.a) * len(self.b))
            if compiled is not None and size <= compiled.MAX_PLANES and self._few_rows():
                return compiled_few_scorer(compiled, pool)
            if compiled is not None and size <= compiled.MAX_PLANES and len(self.b) * size >= self.b.shape[2]:
                return compiled_scorer(compiled, pool, size)
        return self._plain_scorer()

    def _has_fast_path(self) -> bool:
        """Where the table gives one: for sets of one size, all of whose vectors are real."""
        unmasked = self.a_mask is None and self.b_mask is None
        fast = isinstance(self.similarity, SetSimilarity) and self.similarity.fast
        return fast and unmasked and self.a.shape[1] == self.b.shape[1]

    def _few_rows(self) -> bool:
        """Whether a packed copy of the columns would cost more than it saves. On a GPU: twice the columns' bytes, or
        four times those of the cosines; on a CPU, measured.
        """
        vectors = len(self.a) * self.a.shape[1]
        if self.device.type == "cuda":
            return 8 * vectors < self.b.shape[2] * self.b.dtype.itemsize
        return vectors < self.b.shape[2]

    def _plain_scorer(self) -> Scorer:
        def score(a: Tensor, b: Tensor, out: Tensor, rows: slice, columns: slice) -> None:
            masks = {}
            if self.a_mask is not None:
                masks["a_mask"] = self.a_mask[rows].to(self.device)
            if self.b_mask is not None:
                masks["b_mask"] = self.b_mask[columns].to(self.device)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotUnitLength)  # a warning that fits is given once, at the end
                found = self.similarity(a, b, **masks)
            own = not isinstance(self.similarity, SetSimilarity)  # a user's function may not check its input
            if own and found.shape != out.shape:  # it would be copied to all rows or columns
                raise ValueError(
                    f"similarity: expected the function to make scores {shape_of(out)} of {len(a)} and {len(b)} sets, "
                    f"got {shape_of(found)}. It compares every set of its first argument with every one of its second."
                )
            out.copy_(found)
            if own and bool(out.isnan().any()):
                raise NotFiniteError("NaN among the scores.")

        # Measured: up to ten tensors of the size of the (squared) blocks are alive at once, with masks twenty.
        tensors = 10 if self.a_mask is None and self.b_mask is None else 20
        block = max(self.a.shape[1], self.b.shape[1]) ** 2
        tile = (128, 1024) if self.device.type == "cpu" else (4096, 4096)
        return Scorer(same, same, score, bytes_per_pair=tensors * self.dtype.itemsize * block, best_tile=tile)


def _job(
    a: Any,
    b: Any,
    similarity: str | Similarity,
    max_memory: int | None,
    a_mask: Array | None,
    b_mask: Array | None,
    normalise: bool,
    device: torch.device | str | None,
) -> PairwiseJob | RaggedJob:
    """For sets of one size, or for sets of unequal size: where either side has those, and where padding is left out
    of a maximum over many vectors.
    """
    if not (is_ragged(a) or is_ragged(b)):
        job = PairwiseJob(a, b, similarity, max_memory, a_mask, b_mask, normalise, device)
        masked = job.a_mask is not None or job.b_mask is not None
        large = job.a.shape[1] * job.b.shape[1] > MAX_SET_SIZE**2
        if not (reduces(job.similarity) and job.device.type == "cpu" and (masked or large)):
            return job
        sides = without_padding("a", job.a, job.a_mask), without_padding("b", job.b, job.b_mask)
        return RaggedJob(*sides, similarity, max_memory, normalise, device)
    one, two = (_one_side(name, sets, mask) for name, sets, mask in (("a", a, a_mask), ("b", b, b_mask)))
    return RaggedJob(one, two, similarity, max_memory, normalise, device)


def _one_side(name: str, given: Any, mask: Array | None) -> RaggedSets:
    if is_ragged(given):
        if mask is not None:
            raise ValueError(f"{name}_mask: sets of unequal size have no padding. Leave it out, or pad them.")
        return ragged_sets(name, given)
    sets = as_array(name, given)
    check_sets(name, sets)
    real = None if mask is None else as_tensor(mask, f"{name}_mask")
    check_mask(f"{name}_mask", real, (sets.shape[0], sets.shape[1]))
    return without_padding(name, sets, real)


def _name(sets: Array) -> str:
    """Of its precision, the same for tensors and arrays."""
    return str(sets.dtype).removeprefix("torch.")


def score_matrix(
    a: Float[Array, "B K D"] | Sequence[Any],
    b: Float[Array, "C L D"] | Sequence[Any],
    similarity: str | Similarity = "maxmatch",
    max_memory: int | None = None,
    *,
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
    normalise: bool = False,
    device: torch.device | str | None = None,
) -> Float[Tensor, "B C"]:
    """The scores of all pairs, computed tile by tile, so that any two collections whose scores fit will do.

    No gradient is kept; in training call a similarity itself, such as `maxmatch.similarity.maxmatch`.

    Args:
        a: B sets of K unit vectors of width D: a tensor on any device, an array or a list. Of a memory map only the
            part at work is read. Sets of unequal size are a list of (n_i, D), or padded with a mask. Matching takes at
            most 16 vectors per set, other similarities any number.
        b: C sets of L unit vectors, or of unequal size.
        similarity: a name of `maxmatch.similarity.SIMILARITIES`, or a function (a, b) -> (B, C) that also takes
            `a_mask` and `b_mask` where you give them or sets are of unequal size, and does not write to its input.
        max_memory: how many bytes to allocate at most beside the inputs and the result; None: 1 GiB, on a large GPU a
            sixteenth of its memory.
        a_mask: which vectors of `a` are real (True) and which are padding; None: all are real.
        b_mask: the same for `b`.
        normalise: scale every vector to unit length first; otherwise vectors of another length cause a warning.
        device: where to compute; None: where the tensors are, and on the CPU for arrays.

    Returns:
        The score of every set of `a` with every set of `b`: float32, float64 where an input is.

    Examples:
        >>> import torch
        >>> from torch.nn.functional import normalize
        >>> from maxmatch import score_matrix
        >>> images = normalize(torch.randn(100, 4, 256), dim=-1)
        >>> captions = normalize(torch.randn(500, 4, 256), dim=-1)
        >>> score_matrix(images, captions).shape
        torch.Size([100, 500])
        >>> score_matrix(images, captions, "chamfer", max_memory=2**20).shape
        torch.Size([100, 500])
        >>> words = [normalize(torch.randn(count, 256), dim=-1) for count in (7, 12, 30)]  # a vector per token
        >>> score_matrix(words, images, "maxsim").shape
        torch.Size([3, 100])
    """
    job = _job(a, b, similarity, max_memory, a_mask, b_mask, normalise, device)
    scores = torch.empty(len(a), len(b), dtype=job.dtype, device=job.device)
    with torch.no_grad():
        for _ in job.tiles(scores):
            pass
    return scores


def top_hits(
    a: Float[Array, "B K D"] | Sequence[Any],
    b: Float[Array, "C L D"] | Sequence[Any],
    k: int,
    similarity: str | Similarity = "maxmatch",
    max_memory: int | None = None,
    *,
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
    keep: Bool[Array, " C"] | None = None,
    normalise: bool = False,
    device: torch.device | str | None = None,
) -> TopHits:
    """The k best of `b` for each of `a`, best first. Never holds all scores at once.

    Args:
        a: B sets, as in `score_matrix`.
        b: C sets.
        k: how many to keep; all of `b` where it has fewer.
        similarity: a name or a function, as in `score_matrix`.
        max_memory: how many bytes to allocate at most beside the inputs and the result.
        a_mask: which vectors of `a` are real.
        b_mask: which of `b`.
        keep: which of `b` to look at; None: at all. Where fewer than k are kept, scores end in −inf, indices in −1.
        normalise: scale every vector to unit length first.
        device: where to compute.

    Returns:
        Scores and indices into `b`, both (B, k). Of equal scores the lower index comes first.

    Examples:
        >>> import torch
        >>> from torch.nn.functional import normalize
        >>> from maxmatch import top_hits
        >>> images = normalize(torch.randn(100, 4, 256), dim=-1)
        >>> captions = normalize(torch.randn(500, 4, 256), dim=-1)
        >>> hits = top_hits(captions, images, k=10)
        >>> hits.indices.shape  # ten images for each caption
        torch.Size([500, 10])
        >>> bool((hits.scores[:, 0] >= hits.scores[:, 1]).all())
        True
    """
    job = _job(a, b, similarity, max_memory, a_mask, b_mask, normalise, device)
    wanted = _checked_k(k, len(b))
    kept = None if keep is None else as_tensor(keep, "keep").to(job.device)
    if kept is not None and (kept.dtype != torch.bool or kept.shape != (len(b),)):
        raise ValueError(f"keep: expected a boolean for each of {len(b)} sets, got {kept.dtype} {shape_of(kept)}.")
    with torch.no_grad():
        found = job.best_where_they_lie(wanted, kept) if isinstance(job, PairwiseJob) else None
        if found is not None:
            return found
        best = _Best(len(a), wanted, job)
        for tile in job.tiles():
            scores = tile.scores if kept is None else tile.scores.masked_fill(~kept[tile.columns], -torch.inf)
            best.add(tile.rows, tile.columns, scores)
    if kept is not None:
        best.indices[best.scores == -torch.inf] = -1
    return best.result()


def top_hits_both(
    a: Float[Array, "B K D"] | Sequence[Any],
    b: Float[Array, "C L D"] | Sequence[Any],
    k: int,
    similarity: str | Similarity = "maxmatch",
    max_memory: int | None = None,
    *,
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
    normalise: bool = False,
    device: torch.device | str | None = None,
) -> tuple[TopHits, TopHits]:
    """`top_hits` of `a` in `b` and of `b` in `a`, in one pass: both directions of retrieval for one product.

    Args:
        a: B sets, as in `score_matrix`.
        b: C sets.
        k: how many to keep; all where there are fewer.
        similarity: a name or a function, as in `score_matrix`.
        max_memory: how many bytes to allocate at most beside the inputs and the result.
        a_mask: which vectors of `a` are real.
        b_mask: which of `b`.
        normalise: scale every vector to unit length first.
        device: where to compute.

    Returns:
        The hits of `a` in `b` and those of `b` in `a`.

    Examples:
        >>> import torch
        >>> from torch.nn.functional import normalize
        >>> from maxmatch import top_hits_both
        >>> images = normalize(torch.randn(100, 4, 256), dim=-1)
        >>> captions = normalize(torch.randn(500, 4, 256), dim=-1)
        >>> captions_of_images, images_of_captions = top_hits_both(images, captions, k=5)
        >>> captions_of_images.indices.shape, images_of_captions.indices.shape
        (torch.Size([100, 5]), torch.Size([500, 5]))
    """
    job = _job(a, b, similarity, max_memory, a_mask, b_mask, normalise, device)
    forth, back = _Best(len(a), _checked_k(k, len(b)), job), _Best(len(b), _checked_k(k, len(a)), job)
    with torch.no_grad():
        for tile in job.tiles():
            forth.add(tile.rows, tile.columns, tile.scores)
            back.add(tile.columns, tile.rows, tile.scores.T)
    return forth.result(), back.result()


def _checked_k(k: int, available: int) -> int:
    whole = isinstance(k, int | np.integer) and not isinstance(k, bool)
    if not whole or k < 1:
        raise ValueError(f"k: expected {'at least 1' if whole else 'a whole number'}, got {k!r}.")
    return min(int(k), available)


class _Best:
    """The k best of every row so far. Tiles of one row come in the order of their columns."""

    def __init__(self, rows: int, k: int, job: PairwiseJob | RaggedJob) -> None:
        self.k = k
        self.filled: dict[int, int] = {}  # how many places of the rows from here on are taken
        self.scores = torch.full((rows, k), -torch.inf, dtype=job.dtype, device=job.device)
        self.indices = torch.full((rows, k), -1, device=job.device)

    def add(self, rows: slice, columns: slice, scores: Tensor) -> None:
        values, places = first_largest(scores, min(self.k, scores.shape[1]))
        filled = self.filled.get(rows.start, 0)
        values = torch.cat([self.scores[rows, :filled], values], 1)
        places = torch.cat([self.indices[rows, :filled], places + columns.start], 1)
        order = values.sort(dim=1, descending=True, stable=True).indices[:, : self.k]
        self.filled[rows.start] = filled = order.shape[1]
        self.scores[rows, :filled] = values.gather(1, order)
        self.indices[rows, :filled] = places.gather(1, order)

    def result(self) -> TopHits:
        return TopHits(self.scores, self.indices)


def first_largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row in descending order, equal ones in the order of their columns."""
    values, places = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    # topk takes any of those that tie for the last place: where it had a choice, the first of them are taken.
    undecided = (values[:, k:] == values[:, k - 1 : -1]).nonzero()[:, 0]
    values, places = values[:, :k], places[:, :k]
    if len(undecided):
        rows, last = scores[undecided], values[undecided, k - 1 :]
        larger, equal = rows > last, rows == last
        chosen = larger | (equal & (equal.cumsum(1) <= k - larger.sum(1, keepdim=True)))
        found = chosen.nonzero()[:, 1].view(-1, k)
        values[undecided], places[undecided] = rows.gather(1, found), found
    places, by_place = places.sort(dim=1)
    values, by_value = values.gather(1, by_place).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, by_value)
