"""Cosines within sets and between them: histograms, mean matrices of slots, and which slots hold the best pair."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.paired import paired

_BLOCK = 4_096
_SAME = 1e-6  # float32 cosines closer than this are not told apart


@dataclass(frozen=True)
class WithinSets:
    """How close the vectors of one set are to each other, over all sets of a modality."""

    counts: list[int]
    """How many pairs of vectors of one set have a cosine in each of equally wide bins from −1 to 1."""
    mean: float | None
    """Of all these cosines; None with one vector a set, which has no pairs."""
    cosines: Float[Tensor, "K K"]
    """The mean cosine of slot i with slot j of the same set; 1 on the diagonal."""

    @property
    def edges(self) -> list[float]:
        """The edges of the bins, one more than there are bins."""
        bins = len(self.counts)
        return [2 * place / bins - 1 for place in range(bins + 1)]


def within_sets(sets: Float[Tensor, "n K D"], bins: int = 50) -> WithinSets:
    """The cosines within sets: all at 1 where sets collapse, around 0 where their vectors are unrelated."""
    size = sets.shape[1]
    counts = torch.zeros(bins, dtype=torch.long)
    total = torch.zeros(size, size, dtype=torch.float64)
    first, second = torch.triu_indices(size, size, 1).unbind()
    for start in range(0, len(sets), _BLOCK):
        part = sets[start : start + _BLOCK].double()
        cosines = (part @ part.transpose(1, 2)).cpu()
        total += cosines.sum(0)
        place = ((cosines[:, first, second] + 1) / 2 * bins).long().clamp(0, bins - 1)
        counts += torch.bincount(place.flatten(), minlength=bins)
    total /= len(sets)
    return WithinSets(counts.tolist(), float(total[first, second].mean()) if size > 1 else None, total)


@dataclass(frozen=True)
class BetweenSets:
    """The cosines between the slots of two modalities."""

    true: Float[Tensor, "K L"]
    """Mean cosine of slot k of the first modality with slot l of the second, over all true pairs (fig:heatmap)."""
    wrong: Float[Tensor, "K L"] | None
    """The same over all pairs that are not true, for contrast; None where every pair is true."""
    best: Float[Tensor, "K L"]
    """The share of true pairs whose largest cosine is that of slots k and l; equally large ones share it. Sums to 1."""
    true_pairs: int
    """How many pairs are true."""

    @property
    def usage(self) -> tuple[list[float], list[float]]:
        """For each slot of either modality, the share of true pairs whose largest cosine it holds; each sums to 1."""
        return self.best.sum(1).tolist(), self.best.sum(0).tolist()


def between_sets(encoded: EncodedSplit, pair: tuple[str, str]) -> BetweenSets:
    """Cosines of true pairs and of wrong ones. Over the wrong ones the mean is exact, not that of a sample: the mean
    over all pairs is the product of the mean vectors.
    """
    data = paired(encoded, pair)
    rows, columns = data.sets
    row, column = data.true_pairs()
    true = torch.zeros(rows.shape[1], columns.shape[1], dtype=torch.float64, device=rows.device)
    best = torch.zeros_like(true)
    for start in range(0, len(row), _BLOCK):
        part = slice(start, start + _BLOCK)
        cosines = rows[row[part]].double() @ columns[column[part]].double().transpose(1, 2)
        true += cosines.sum(0)
        largest = (cosines >= cosines.amax((1, 2), keepdim=True) - _SAME).double()
        best += (largest / largest.sum((1, 2), keepdim=True)).sum(0)
    pairs = len(row)
    others = len(rows) * len(columns) - pairs
    all_pairs = _sum(rows) @ _sum(columns).T
    wrong = ((all_pairs - true) / others).cpu() if others else None
    return BetweenSets((true / pairs).cpu(), wrong, (best / pairs).cpu(), pairs)


def _sum(sets: Tensor) -> Tensor:
    """Over all sets, slot by slot, in float64 without a copy of them all."""
    parts = [sets[start : start + _BLOCK].double().sum(0) for start in range(0, len(sets), _BLOCK)]
    return torch.stack(parts).sum(0)
