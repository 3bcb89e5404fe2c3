"""Whether sets collapse to a point, leave vectors unused, and which slots of two modalities meet."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from maxmatch.matching.assignment import maximal_assignment

_TINY = 1e-12  # a variance no float32 vectors can be told from zero by
_BLOCK = 8_192
_SMALL_BLOCK = 512


def log_circular_variance(sets: Float[Tensor, "n K D"]) -> float:
    """log of the mean over sets of 1 − ‖mean of the set's unit vectors‖² (table tab:5): the lower, the more collapsed.

    0 where the vectors of a set cancel out; −27.6 where they are all the same, and with K = 1.
    """
    # In blocks: all of it in double precision would take twice the memory of the sets. Normalised again, for float32's
    # unit vectors are so to 1e-7 only, which would show where all vectors of a set are the same.
    units = (normalize(part.double(), dim=-1) for part in torch.split(sets, _SMALL_BLOCK))
    variance = torch.cat([1 - part.mean(1).square().sum(-1) for part in units])
    return float(variance.mean().clamp(min=_TINY).log())


class Pairing(NamedTuple):
    """Which slots of two modalities meet in true pairs."""

    partner: list[int]
    """The slot of the second modality that slot i of the first meets most of the time; −1: none."""
    stability: float
    """The share of true pairs whose best matching is exactly that."""
    used: float
    """The share of slots, of both modalities, that ever decide a true pair's score."""
    counts: Int[Tensor, "K L"]
    """How often each slot was matched with each."""


def slot_pairing(
    images: Float[Tensor, "B K D"],
    texts: Float[Tensor, "C L D"],
    partner: Int[Tensor, " C"],
    similarity: str,
    k: int | None = None,
) -> Pairing:
    """How the slots of true pairs meet: text c with image partner[c].

    similarity decides what "used" means: by the one best pair ("mil"), by the k best ("top_k"), by the best one-to-one
    matching ("maxmatch"), by all pairs ("mean"), else by the nearest vector of the other set.
    """
    counts = torch.zeros(images.shape[1], texts.shape[1], dtype=torch.long)
    decisive = torch.zeros_like(counts)
    matchings = []
    for start in range(0, len(texts), _BLOCK):
        part = slice(start, start + _BLOCK)
        cosines = (images[partner[part]].float() @ texts[part].float().transpose(1, 2)).cpu()
        matched = maximal_assignment(cosines)
        matchings.append(matched)
        counts += _pairs(matched, texts.shape[1]).sum(0)
        decisive += _decisive(cosines, matched, similarity, k).sum(0)
    usual = maximal_assignment(counts.double())
    stable = (torch.cat(matchings) == usual).all(1).double().mean() if matchings else torch.tensor(0.0)
    used = torch.cat([decisive.any(1), decisive.any(0)]).double().mean()
    return Pairing(usual.tolist(), float(stable), float(used), counts)


def _pairs(matched: Tensor, columns: int) -> Tensor:
    """A matching as a matrix of zeros and ones."""
    return one_hot(matched + 1, columns + 1)[..., 1:]


def _decisive(cosines: Tensor, matched: Tensor, similarity: str, k: int | None) -> Tensor:
    """Which pairs of slots the score of each true pair is made of."""
    flat = cosines.flatten(1)
    if similarity == "mil":
        return one_hot(flat.argmax(1), flat.shape[1]).view(cosines.shape)
    if similarity == "top_k":
        best = flat.topk(k or min(cosines.shape[1:]), dim=1).indices
        return one_hot(best, flat.shape[1]).sum(1).view(cosines.shape)
    if similarity == "maxmatch":
        return _pairs(matched, cosines.shape[2])
    if similarity == "mean":
        return torch.ones_like(cosines, dtype=torch.long)
    return ((cosines == cosines.amax(2, keepdim=True)) | (cosines == cosines.amax(1, keepdim=True))).long()
