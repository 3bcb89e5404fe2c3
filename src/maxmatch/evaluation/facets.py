"""Do slots specialise? For generated scenes, where it is known what each caption is about.

A caption is about one facet of its picture: an object, a place, the background. If slots specialise, then captions about
one facet are recognised by one slot of the picture, and captions about another facet by another slot.

*Which slot recognises a caption*: slot k of a picture is as near to a caption as the nearest of the caption's vectors.
How far above the average of slot k over all pictures the true picture is, in standard deviations of slot k over all
pictures, is the slot's *standard score*: how clearly that slot alone tells the true picture from others. The slot with
the largest one recognises the caption (the first of equally large ones). A slot that is the same for all pictures scores 0. The same
for the slots of captions: slot l is as near to a picture as the nearest of the picture's vectors.

*Specialisation*: the mutual information I between the facet and the slot, set between what chance gives (0) and the most
that is possible (1):

    (I − I_chance) / (I_most − I_chance),   I_most = min(H(facet), log2 K)

I_chance is the mean over many random orders of the facets among the captions of each picture (of all captions, where no
picture has several), the slots staying as they are. The share of these orders that give as much information as the true
one is the p-value. Thus facets that are easier than others, pictures that one slot recognises best, and slots that are
better than others do not count as specialisation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from maxmatch.data.items import Split
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.paired import Paired, paired
from maxmatch.matching.similarity import cosine_planes

_VALUES = 2**24  # cosines at a time
_NO_SPREAD = 1e-6
_SAME = 1e-3  # standard scores that differ by less are not told apart: in float32 equal slots need not be quite equal


@dataclass(frozen=True)
class Specialisation:
    """Whether the slots of one modality specialise in facets."""

    modality: str
    """Whose slots."""
    facets: list[str]
    counts: list[int]
    """How many captions are about each facet."""
    shares: Float[np.ndarray, "F K"]
    """The share of the captions about each facet that each slot recognises best; each row sums to 1."""
    overall: list[float]
    """The share of all captions that each slot recognises best: what a facet's row is without specialisation."""
    scores: Float[np.ndarray, "F K"]
    """The mean standard score: how clearly slot k alone tells the true picture of a caption about facet f."""
    information: float
    """Mutual information of facet and slot, in bits."""
    chance: float
    """What it is on average when facets are dealt at random."""
    most: float
    """The most that it can be."""
    specialisation: float
    """(information − chance) / (most − chance): 0 at chance, 1 where the facet decides the slot; 0 with one slot."""
    p_value: float
    """The share of random orders with as much information."""


def caption_facets(split: Split, encoded: EncodedSplit, pair: tuple[str, str] = ("image", "text")) -> list[str] | None:
    """The facet (its kind) of each encoded item of the second modality, where the data say it; else None.

    As in generated scenes: `facets` in the metadata of a picture lists them in the order of its captions.
    """
    pictures, captions = split[pair[0]], split[pair[1]]
    metadata = pictures.metadata
    if metadata is None or not any("facets" in known for known in metadata):
        return None
    starts, first = captions.starts, pictures.starts
    kinds: dict[str, str] = {}
    for group in range(split.size):
        place = int(first[group])
        listed = metadata[place].get("facets")
        span = range(int(starts[group]), int(starts[group + 1]))
        if not isinstance(listed, list) or len(listed) < len(span):
            raise ValueError(
                f"{pair[0]} {pictures.ids[place]}: expected `facets`, one for each of its {len(span)} captions, "
                f"got {_shown(listed)}. Generate the scenes again, or remove `facets` everywhere."
            )
        kinds |= {str(captions.ids[number]): _kind(facet) for number, facet in zip(span, listed, strict=False)}
    ids = encoded.ids.get(pair[1], captions.ids)
    return [kinds[str(name)] for name in ids]


def _shown(listed: Any) -> str:
    return f"{len(listed)}" if isinstance(listed, list) else "none"


def _kind(facet: Any) -> str:
    return str(facet["kind"] if isinstance(facet, dict) else facet)


def specialisation(
    encoded: EncodedSplit, pair: tuple[str, str], facets: Sequence[str], *, seed: int = 0, orders: int = 1_000
) -> tuple[Specialisation, Specialisation]:
    """Whether the slots of the first and of the second modality specialise. facets: one for each item of the second."""
    data = paired(encoded, pair)
    captions = len(data.sets[1])
    if len(facets) != captions:
        raise ValueError(f"facets: expected one for each of {captions} items of {pair[1]!r}, got {len(facets)}.")
    names, kind = np.unique(np.array(facets, dtype=str), return_inverse=True)
    groups = data.groups[1].cpu().numpy()
    by_row, by_column = (
        _specialisation(name, [str(facet) for facet in names], kind, scores, _orders(groups, orders, seed))
        for name, scores in zip(pair, standard_scores(data, encoded.partners(pair)), strict=True)
    )
    return by_row, by_column


def standard_scores(
    data: Paired, partner: Int[Tensor, " C"]
) -> tuple[Float[np.ndarray, "C K"], Float[np.ndarray, "C L"]]:
    """The standard score of each slot of the true picture partner[c], and of each slot of the caption, for every
    caption c; see above.
    """
    pictures, captions = data.sets
    step = max(1, _VALUES // (len(pictures) * pictures.shape[1] * captions.shape[1]))
    by_picture_slot, by_caption_slot = [], []
    for start in range(0, len(captions), step):
        part = slice(start, start + step)
        planes = cosine_planes(pictures, captions[part])
        by_picture_slot.append(_standard(planes.amax(1), partner[part]))
        by_caption_slot.append(_standard(planes.amax(0), partner[part]))
    return torch.cat(by_picture_slot).cpu().numpy(), torch.cat(by_caption_slot).cpu().numpy()


def _standard(near: Float[Tensor, "S B c"], partner: Int[Tensor, " c"]) -> Float[Tensor, "c S"]:
    """How far slot s of the true picture is above the average of all pictures, in standard deviations."""
    near = near.double()
    true = near.gather(1, partner.expand(len(near), 1, -1))[:, 0]
    spread = near.std(1, correction=0)
    return ((true - near.mean(1)) / spread).where(spread > _NO_SPREAD, 0.0).T


def _specialisation(
    modality: str, names: list[str], kind: np.ndarray, scores: np.ndarray, orders: Iterator[np.ndarray]
) -> Specialisation:
    slots = scores.shape[1]
    best = (scores >= scores.max(1, keepdims=True) - _SAME).argmax(1)
    table = _table(kind, best, len(names), slots)
    counts = table.sum(1)
    means = np.stack([np.bincount(kind, scores[:, slot], len(names)) / counts for slot in range(slots)], 1)
    information = _information(table)
    by_chance = np.array([_information(_table(kind[order], best, len(names), slots)) for order in orders])
    chance = float(by_chance.mean())
    most = min(_entropy(counts), float(np.log2(slots)))
    room = most - chance
    return Specialisation(
        modality=modality,
        facets=names,
        counts=counts.tolist(),
        shares=table / counts[:, None],
        overall=(table.sum(0) / len(kind)).tolist(),
        scores=means,
        information=information,
        chance=chance,
        most=most,
        specialisation=(information - chance) / room if room > _NO_SPREAD else 0.0,
        p_value=float((1 + (by_chance >= information - _NO_SPREAD).sum()) / (1 + len(by_chance))),
    )


def _orders(groups: np.ndarray, count: int, seed: int) -> Iterator[np.ndarray]:
    """Random orders of the captions: each takes the place of another of its picture; of any, where all are alone."""
    generator = np.random.default_rng(seed)
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    group = group if sizes.max() > 1 else np.zeros(len(groups), np.int64)
    place = np.argsort(group, kind="stable")
    for _ in range(count):
        order = np.empty(len(groups), np.int64)
        order[place] = np.argsort(group + generator.random(len(groups)))
        yield order


def _table(kind: np.ndarray, slot: np.ndarray, kinds: int, slots: int) -> np.ndarray:
    """How many captions about each facet each slot recognises."""
    return np.bincount(kind * slots + slot, minlength=kinds * slots).reshape(kinds, slots)


def _information(table: np.ndarray) -> float:
    """I(row; column) = H(row) + H(column) − H(both), in bits."""
    return _entropy(table.sum(1)) + _entropy(table.sum(0)) - _entropy(table.ravel())


def _entropy(counts: np.ndarray) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())
