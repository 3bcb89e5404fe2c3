"""The best items of each query: scored by the index's similarity, with the matching that each score is made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from maxmatch.matching.assignment import maximal_assignment
from maxmatch.matching.scoring import top_hits
from maxmatch.search.engine import Found


@dataclass
class Best:
    """The k best of one query so far: by score, equal ones in the order in which they were added."""

    scores: np.ndarray
    added: np.ndarray
    ids: list[str]
    partners: np.ndarray
    """(n, L): the slot of the item that each slot of the query was matched with, −1 for none."""
    cosines: np.ndarray
    """(n, L): theirs, 0 for none."""
    metadata: list[str] | None
    """Where the engine gave it along."""

    @classmethod
    def none(cls, slots: int) -> "Best":
        """Nothing yet."""
        return cls(
            np.empty(0, np.float32), np.empty(0, np.int64), [], np.empty((0, slots), int), np.empty((0, slots)), []
        )

    def merge(self, other: "Best", k: int) -> "Best":
        """The k best of both."""
        scores, added = np.concatenate([self.scores, other.scores]), np.concatenate([self.added, other.added])
        order = np.lexsort((added, -scores))[:k]
        ids = self.ids + other.ids
        texts = None if self.metadata is None or other.metadata is None else self.metadata + other.metadata
        return Best(
            scores[order],
            added[order],
            [ids[place] for place in order],
            np.concatenate([self.partners, other.partners])[order],
            np.concatenate([self.cosines, other.cosines])[order],
            None if texts is None else [texts[place] for place in order],
        )


def best_of_all(queries: Tensor, blocks: Iterable[Found], k: int, similarity: str) -> list[Best]:
    """The k best of each query (n, L, D) among all items, block after block."""
    best = [Best.none(queries.shape[1]) for _ in queries]
    for block in blocks:
        found = score(queries, block, k, similarity)
        best = [kept.merge(new, k) for kept, new in zip(best, found, strict=True)]
    return best


def score(queries: Tensor, found: Found, k: int, similarity: str) -> list[Best]:
    """The k best of each query among the same items."""
    if not found.ids:
        return [Best.none(queries.shape[1]) for _ in queries]
    order = np.argsort(found.added, kind="stable")  # so that equal scores come in this order
    in_order = bool((order[1:] > order[:-1]).all())
    vectors = found.vectors if in_order else found.vectors[order]
    # Arrow's memory is not to be written to, which torch has no notion of: hence a copy.
    sets = torch.from_numpy(np.array(vectors, dtype=np.float32)).view(len(order), -1, queries.shape[2])
    hits = top_hits(queries, sets, k, similarity)
    scores, places = hits.scores.numpy(), hits.indices
    partners, cosines = _matchings(queries, sets, places)
    results = []
    for row, chosen in enumerate(order[places.numpy()]):
        ids, texts = [found.ids[place] for place in chosen], found.metadata
        metadata = None if texts is None else [texts[place] for place in chosen]
        results.append(Best(scores[row], found.added[chosen], ids, partners[row], cosines[row], metadata))
    return results


def _matchings(queries: Tensor, sets: Tensor, places: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """For each query and each of its hits the slot that every slot of the query was matched with, and the cosines."""
    chosen = sets[places]  # (n, k, K, D)
    cosines = torch.einsum("nld,nmkd->nmlk", queries, chosen)
    partners = maximal_assignment(cosines)
    matched = cosines.gather(3, partners.clamp(min=0)[..., None])[..., 0].masked_fill(partners < 0, 0.0)
    return partners.numpy(), matched.numpy()


def score_each(queries: Tensor, candidates: Sequence[Found], k: int, similarity: str) -> list[Best]:
    """The k best of each query among its own candidates."""
    return [score(query[None], found, k, similarity)[0] for query, found in zip(queries, candidates, strict=True)]
