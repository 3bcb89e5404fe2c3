"""All pairs of two collections of sets, tile by tile under a bound on memory: all scores, or the best of them.

Inputs are tensors on any device or NumPy arrays, memory maps among them: only the tiles at work are read. `max_memory`
bounds what is allocated beside the inputs and the result: 1 GiB unless given, on a large GPU a sixteenth of its memory.
A similarity of your own must not write to what it is given.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from maxmatch.checks import Array
from maxmatch.matching.similarity import Similarity
from maxmatch.matching.tiles import Job
from maxmatch.types import TopHits


def score_matrix(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    similarity: str | Similarity = "maxmatch",
    max_memory: int | None = None,
    *,
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
    normalise: bool = False,
    device: torch.device | str | None = None,
) -> Float[Tensor, "B C"]:
    """The scores of all pairs. `device` says where to compute (default: where the tensors are; arrays: the CPU)."""
    job = Job.of(a, b, similarity, max_memory, a_mask, b_mask, normalise, device)
    scores = torch.empty(len(a), len(b), dtype=job.dtype, device=job.device)
    with torch.no_grad():
        for _ in job.tiles(scores):
            pass
    return scores


def top_hits(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    k: int,
    similarity: str | Similarity = "maxmatch",
    max_memory: int | None = None,
    *,
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
    normalise: bool = False,
    device: torch.device | str | None = None,
) -> TopHits:
    """The k best of b for each of a, best first; never holds the matrix. Equal scores: the lower index first."""
    job = Job.of(a, b, similarity, max_memory, a_mask, b_mask, normalise, device)
    best = _Best(len(a), _checked_k(k, len(b)), job)
    with torch.no_grad():
        for tile in job.tiles():
            best.add(tile.rows, tile.columns, tile.scores)
    return best.result()


def top_hits_both(
    a: Float[Array, "B K D"],
    b: Float[Array, "C L D"],
    k: int,
    similarity: str | Similarity = "maxmatch",
    max_memory: int | None = None,
    *,
    a_mask: Bool[Array, "B K"] | None = None,
    b_mask: Bool[Array, "C L"] | None = None,
    normalise: bool = False,
    device: torch.device | str | None = None,
) -> tuple[TopHits, TopHits]:
    """`top_hits` of a in b and of b in a, in one pass: both directions of retrieval at the price of one product."""
    job = Job.of(a, b, similarity, max_memory, a_mask, b_mask, normalise, device)
    forth, back = _Best(len(a), _checked_k(k, len(b)), job), _Best(len(b), _checked_k(k, len(a)), job)
    with torch.no_grad():
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

    def __init__(self, rows: int, k: int, job: "Job") -> None:
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
    values, places = scores.topk(k, dim=1)
    # topk takes any of those that tie for the last place: rows where it had a choice are sorted whole.
    undecided = ((scores >= values[:, -1:]).sum(1) > k).nonzero()[:, 0]
    if len(undecided):
        sorted_values, order = scores[undecided].sort(dim=1, descending=True, stable=True)
        values[undecided], places[undecided] = sorted_values[:, :k], order[:, :k]
    places, by_place = places.sort(dim=1)
    values, by_value = values.gather(1, by_place).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, by_value)
