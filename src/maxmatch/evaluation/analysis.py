"""Everything `maxmatch analyse` measures: slots, specialisation on scenes, the worst queries."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from maxmatch.data.dataset import Split
from maxmatch.evaluation.encoding import EncodedSplit, Paired, paired
from maxmatch.evaluation.metrics import Pairing, chance, figures, log_circular_variance, slot_pairing
from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.evaluation.slots import (
    BetweenSets,
    BySlot,
    Elements,
    SlotAnswer,
    WithinSets,
    answers_to,
    between_sets,
    by_slot,
    element_analysis,
    within_sets,
)
from maxmatch.matching.products import cosine_planes
from maxmatch.matching.scoring import first_largest, score_matrix
from maxmatch.matching.similarity import with_options

# What each caption is about, where the data has it: the facets of generated scenes.


def caption_facets(split: Split, encoded: EncodedSplit, pair: tuple[str, str] = ("image", "text")) -> list[str] | None:
    """The facet (its kind) of each encoded item of the second modality; None if the data has no facets.

    As in generated scenes: `facets` in the metadata of a picture lists them in the order of its captions.
    """
    pictures, captions = split[pair[0]], split[pair[1]]
    metadata = pictures.metadata
    if metadata is None or not any("facets" in known for known in metadata):
        return None
    kinds: dict[str, str] = {}
    for group in range(split.size):
        place = int(pictures.starts[group])
        listed = metadata[place].get("facets")
        names = captions.ids[int(captions.starts[group]) : int(captions.starts[group + 1])]
        if not isinstance(listed, list) or len(listed) < len(names):
            raise ValueError(
                f"{pair[0]} {pictures.ids[place]}: expected `facets`, one for each of its {len(names)} captions, "
                f"got {len(listed) if isinstance(listed, list) else 'none'}. "
                "Generate the scenes again, or remove `facets` everywhere."
            )
        for name, facet in zip(names, listed, strict=False):
            kinds[str(name)] = str(facet["kind"] if isinstance(facet, dict) else facet)
    return [kinds[str(name)] for name in encoded.ids.get(pair[1], captions.ids)]


# Do slots specialise? For generated scenes, where it is known what each caption is about.
#
# A caption is about one facet of its picture: an object, a place, the background. If slots specialise, captions about
# one facet are recognised by one slot of the picture, and captions about another facet by another slot.
#
# How clearly a slot recognises a caption: slot k of a picture is as near to a caption as the nearest of the caption's
# vectors. How far the true picture is above the average of all pictures, in their standard deviation, is the slot's
# standard score: 0 where the slot tells nothing, or is the same for all pictures. Likewise for the slots of captions:
# slot l is as near to a picture as the nearest of the picture's vectors.
#
# Specialisation compares two choices of one slot for each caption, by the mean standard score that they give:
#
#     own = by the slot that is best for the caption's facet
#     one = by the slot that is best for all captions
#     specialisation = (own − one) / own · n / (n − 1),   n = the smaller of the numbers of facets and slots
#
# Both are chosen on one half of the pictures and measured on the other, so that chance gives 0. It is 0 where slots
# are all equal, where one slot is best for everything, and where slots differ but not by facet; 1 where each facet is
# recognised by its own slot and no other. The interval is that of own − one, 95 %, over pictures.
#
# Preference is less: whether the facet has any influence on which slot recognises a caption most clearly. It is tested
# by the mutual information of the two, against random orders of the facets among the captions of each picture (among
# all captions, where no picture has several). A preference without specialisation is common: one slot is best for
# every facet, but by less for some of them, or some facets are so hard that noise decides.

_VALUES = 2**21  # cosines at a time: little enough that the memory is given back between times
_NO_SPREAD = 1e-6
_SAME = 1e-3  # standard scores that differ by less count as equal: float32 rounds


@dataclass(frozen=True)
class Specialisation:
    """Whether the slots of one modality specialise in facets."""

    modality: str
    """Whose slots."""
    facets: list[str]
    counts: list[int]
    """How many captions are about each facet."""
    scores: Float[np.ndarray, "F K"]
    """How clearly each slot recognises the captions about each facet: the mean standard score."""
    best: list[int]
    """The slot that recognises the captions about each facet most clearly."""
    shares: Float[np.ndarray, "F K"]
    """Of the captions about each facet, the share that each slot recognises more clearly than the others do."""
    own: float
    """Mean standard score by the slot that is best for the caption's facet, on the second half of the pictures."""
    one: float
    """Mean standard score by the slot that is best for all captions, on the second half of the pictures."""
    interval: tuple[float, float]
    """Of own − one, 95 %. If 0 is below it, slots specialise beyond chance."""
    specialisation: float
    """From 0, not at all, to 1, each facet has its own slot; by chance a little below or above 0."""
    information: float
    """Mutual information of a caption's facet and the slot that recognises it most clearly, in bits."""
    chance: float
    """What it is on average when the facets are dealt at random."""
    p_value: float
    """The share of random orders with as much information: whether there is a preference at all."""


def specialisation(
    data: Paired, facets: Sequence[str], *, seed: int = 0, orders: int = 999
) -> tuple[Specialisation, Specialisation]:
    """Whether the slots of the first and of the second modality specialise. facets: one for each item of the second."""
    captions = len(data.sets[1])
    if len(facets) != captions:
        raise ValueError(f"facets: expected one for each of {captions} items of {data.names[1]!r}, got {len(facets)}.")
    names, kind = np.unique(np.array(facets, dtype=str), return_inverse=True)
    pictures = data.partners().cpu().numpy()
    by_row, by_column = (
        _specialisation(name, names.tolist(), kind, scores, pictures, seed, orders)
        for name, scores in zip(data.names, standard_scores(data), strict=True)
    )
    return by_row, by_column


def standard_scores(data: Paired) -> tuple[Float[np.ndarray, "C K"], Float[np.ndarray, "C L"]]:
    """The standard score of each slot of the true picture, and of each slot of the caption, for every caption; see
    above.
    """
    (pictures, captions), partner = data.sets, data.partners()
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
    modality: str,
    names: list[str],
    kind: Int[np.ndarray, " C"],
    scores: Float[np.ndarray, "C K"],
    pictures: Int[np.ndarray, " C"],
    seed: int,
    orders: int,
) -> Specialisation:
    facets, slots = len(names), scores.shape[1]
    counts = np.bincount(kind, minlength=facets)
    means = _means(scores, kind, facets)
    chosen, measured = _halves(pictures, seed)
    # The slot that is best for all captions, and the one for each facet (the former where a facet is not there).
    one_slot = _largest(scores[chosen].mean(0, keepdims=True))[0]
    there = np.isin(np.arange(facets), kind[chosen])
    own_slot = np.where(there, _largest(_means(scores[chosen], kind[chosen], facets)), one_slot)
    one, own = scores[measured, one_slot], scores[measured, own_slot[kind[measured]]]
    clearest = _largest(scores)
    table = _counted(kind, clearest, (facets, slots))
    information = _information(table)
    drawn = _orders(pictures, orders, seed)
    dealt = [_information(_counted(kind[order], clearest, (facets, slots))) for order in drawn]
    least = min(facets, slots)
    gain, level = float(own.mean() - one.mean()), float(own.mean())
    reach = 1.96 * _standard_error(own - one, pictures[measured])
    return Specialisation(
        modality=modality,
        facets=names,
        counts=counts.tolist(),
        scores=means,
        best=_largest(means).tolist(),
        shares=table / counts[:, None],
        own=level,
        one=float(one.mean()),
        interval=(gain - reach, gain + reach),
        specialisation=gain / level * least / (least - 1) if least > 1 and level > _SAME else 0.0,
        information=information,
        chance=float(np.mean(dealt)),
        p_value=(1 + sum(value > information - _NO_SPREAD for value in dealt)) / (1 + orders),
    )


def _halves(pictures: Int[np.ndarray, " C"], seed: int) -> tuple[Bool[np.ndarray, " C"], Bool[np.ndarray, " C"]]:
    """The captions of one half of the pictures, drawn at random, and those of the other. One picture is both halves."""
    first: np.ndarray = (np.random.default_rng(seed).permutation(pictures.max() + 1) % 2 == 0)[pictures]
    return (first, ~first) if first.any() and not first.all() else (np.full_like(first, True),) * 2


def _orders(pictures: Int[np.ndarray, " C"], count: int, seed: int) -> Iterator[Int[np.ndarray, " C"]]:
    """Random orders of the captions: each takes the place of another of its picture; of any, where all are alone."""
    generator = np.random.default_rng(seed)
    _, place, sizes = np.unique(pictures, return_inverse=True, return_counts=True)
    picture = place if sizes.max() > 1 else np.zeros(len(pictures), np.int64)
    together = np.argsort(picture, kind="stable")
    for _ in range(count):
        order = np.empty(len(pictures), np.int64)
        order[together] = np.argsort(picture + generator.random(len(pictures)))
        yield order


def _counted(kind: np.ndarray, slot: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """How many captions about each facet each slot recognises."""
    return np.bincount(kind * shape[1] + slot, minlength=shape[0] * shape[1]).reshape(shape)


def _information(table: np.ndarray) -> float:
    """I(facet; slot) = H(facet) + H(slot) − H(both), in bits, of a table of counts."""
    return max(0.0, _entropy(table.sum(1)) + _entropy(table.sum(0)) - _entropy(table.ravel()))


def _entropy(counts: np.ndarray) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())


def _means(values: Float[np.ndarray, "n K"], kind: Int[np.ndarray, " n"], facets: int) -> Float[np.ndarray, "F K"]:
    """The mean of the rows of each facet; 0 for one that has none."""
    about = kind == np.arange(facets)[:, None]
    means: np.ndarray = about @ values / np.maximum(about.sum(1), 1)[:, None]
    return means


def _largest(values: Float[np.ndarray, "n K"]) -> Int[np.ndarray, " n"]:
    """Where the largest of a row is: the first of those that count as equal."""
    place: np.ndarray = (values >= values.max(1, keepdims=True) - _SAME).argmax(1)
    return place


def _standard_error(values: Float[np.ndarray, " C"], pictures: Int[np.ndarray, " C"]) -> float:
    """Of the mean, where captions of one picture may go together."""
    _, place = np.unique(pictures, return_inverse=True)
    together = np.bincount(place, values - values.mean())
    count = len(together)
    return float(np.sqrt((together**2).sum() * count / (count - 1)) / len(values)) if count > 1 else 0.0


# The worst queries: where the true answer came far down, and what stood above it.


@dataclass(frozen=True)
class Failure:
    """A query whose best true answer is not first."""

    item: int
    """The place of the query in the split."""
    id: str | None
    rank: int
    """Of the best true answer; ties count against us."""
    right: SlotAnswer
    """The best true answer."""
    wrong: list[SlotAnswer]
    """The best of the wrong answers that stood above it or tied with it, best first."""


@dataclass(frozen=True)
class Failures:
    """The worst queries of one modality in another, worst first."""

    query: str
    gallery: str
    worst: list[Failure]
    failed: int
    """How many queries have a wrong answer first."""


def worst_queries(
    scores: Float[Tensor, "B C"], data: Paired, ranks: Int[Tensor, " B"], worst: int = 10, answers: int = 5
) -> Failures:
    """The worst of the rows, by the rank of their best true answer; at the same rank the larger margin first, then the
    order of the split. A query whose true answer is first is not a failure.
    """
    row, column = data.true_pairs()
    best = scores.new_full((len(scores),), -torch.inf).scatter_reduce(0, row, scores[row, column], "amax")
    margin = scores.amax(1) - best  # where a wrong answer is first, the largest score is its
    by_margin = margin.sort(descending=True, stable=True).indices
    order = by_margin[ranks[by_margin].sort(descending=True, stable=True).indices]
    failed, found = int((ranks > 1).sum()), []
    for query in order[: min(worst, failed)].tolist():
        rank, true = int(ranks[query]), data.groups[1] == data.groups[0][query]
        listed = []
        for others, count in ((~true, 1), (true, min(rank - 1, answers))):
            values, places = first_largest(scores[query].masked_fill(others, -torch.inf)[None], count)
            listed.append(answers_to(data, query, values[0], places[0]))
        found.append(Failure(query, data.name(0, query), rank, listed[0][0], listed[1]))
    return Failures(*data.names, found, failed)


# All of it together: what `maxmatch analyse` writes and draws.


@dataclass(frozen=True)
class Analysis:
    """The analysis of two modalities of a split. Slots are counted from 0; matrices have a row for each slot of the
    first modality and a column for each of the second. Items are named by their places in the encoded split, and by
    their ids where these are known.
    """

    pair: tuple[str, str]
    similarity: str
    items: dict[str, int]
    """How many, by modality."""
    set_sizes: dict[str, int]
    """Vectors in a set, by modality."""
    width: int
    """Of a vector."""
    retrieval: dict[str, float]
    """i2t_r1, …, rsum, ranks and ties, as evaluation gives them; i2t is from the first modality to the second."""
    chance: dict[str, float]
    """Recalls and rsum of answers in random order."""
    log_variance: dict[str, float]
    """log circular variance by modality (table tab:5, below)."""
    within: dict[str, WithinSets]
    """Cosines within sets, by modality."""
    between: BetweenSets
    """Cosines between the slots of the two (fig:heatmap), and which slots hold the best pair."""
    pairing: Pairing
    """Which slots meet in the best matching of true pairs."""
    elements: Elements
    """Retrieval with one slot kept (table tab:5)."""
    by_slot: tuple[BySlot, BySlot]
    """Retrieval by each slot (fig:qualitative): from the first modality to the second, and back."""
    failures: tuple[Failures, Failures]
    """The worst queries, in the same order."""
    facets: tuple[Specialisation, Specialisation] | None
    """Whether the slots of either modality specialise; None if facets are not known."""

    def to_json(self) -> dict[str, Any]:
        """All of it as dicts, lists, plain numbers, texts and None; no NaN."""
        plain: dict[str, Any] = _plain(self)
        return plain


def analyse(
    encoded: EncodedSplit,
    pair: tuple[str, str],
    similarity: str,
    *,
    options: Mapping[str, int | float] | None = None,
    facets: Sequence[str] | None = None,
    examples: int = 8,
    answers: int = 5,
    worst: int = 10,
    seed: int = 0,
) -> Analysis:
    """Analyse the sets of two modalities, on the device that they are on.

    options: of the similarity, alpha or k, where they are not the usual ones. facets: what each item of the second
    modality is about, see `caption_facets`. examples: how many queries, drawn at random, are
    listed with the answers of each of their slots. worst: how many failures are listed each way; answers: with how
    many answers. The largest thing held is one score matrix.
    """
    data = paired(encoded, pair)
    rows, columns = data.sets
    scoring, k = with_options(similarity, options or {}), (options or {}).get("k")
    scores = score_matrix(rows, columns, scoring)
    ranks = ranks_both_ways(scores, *data.groups)
    found = figures(*ranks)
    failures = (
        worst_queries(scores, data, ranks[0].ranks, worst, answers),
        worst_queries(scores.T, data.turned(), ranks[1].ranks, worst, answers),
    )
    del scores
    drawn = np.random.default_rng(seed)
    forth, back = (
        by_slot(way, sorted(drawn.choice(count, min(examples, count), replace=False).tolist()), answers)
        for way, count in ((data, len(rows)), (data.turned(), len(columns)))
    )
    sides = dict(zip(pair, data.sets, strict=True))
    return Analysis(
        pair=pair,
        similarity=similarity,
        items={name: len(sets) for name, sets in sides.items()},
        set_sizes={name: sets.shape[1] for name, sets in sides.items()},
        width=rows.shape[2],
        retrieval=found,
        chance=chance(*data.groups),
        log_variance={name: log_circular_variance(sets) for name, sets in sides.items()},
        within={name: within_sets(sets) for name, sets in sides.items()},
        between=between_sets(data),
        pairing=slot_pairing(rows, columns, data.partners(), similarity, None if k is None else int(k)),
        elements=element_analysis(data, scoring, found),
        by_slot=(forth, back),
        failures=failures,
        facets=None if facets is None else specialisation(data, facets, seed=seed),
    )


def _plain(value: Any) -> Any:
    """A value as JSON has it. Every field of a dataclass and of a named tuple keeps its name."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Tensor | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    assert not isinstance(value, float) or math.isfinite(value)
    assert value is None or isinstance(value, str | int | float)
    return value
