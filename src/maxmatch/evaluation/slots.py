"""What each slot does: cosines between slots, retrieval by one slot, attention, projections."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from maxmatch.evaluation.encoding import Paired
from maxmatch.evaluation.metrics import LEVELS, retrieval
from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.matching.scoring import first_largest, score_matrix
from maxmatch.matching.similarity import Similarity
from maxmatch.model.encoder import Explanation, SetEncoder

# Cosines within sets and between them: histograms, mean matrices of slots, and which slots hold the best pair.

_BLOCK = 4_096
_SAME = 1e-6  # float32 cosines closer than this count as equal


@dataclass(frozen=True)
class WithinSets:
    """How close the vectors of one set are to each other, over all sets of a modality."""

    counts: list[int]
    """How many pairs of vectors of one set have a cosine in each of equally wide bins from −1 to 1."""
    mean: float | None
    """Of all these cosines; None with one vector per set, which has no pairs."""
    cosines: Float[Tensor, "K K"]
    """The mean cosine of slot i with slot j of the same set; 1 on the diagonal."""
    edges: list[float]
    """Of the bins, one more than there are bins."""


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
    mean = float(total[first, second].mean()) if size > 1 else None
    return WithinSets(counts.tolist(), mean, total, [2 * place / bins - 1 for place in range(bins + 1)])


@dataclass(frozen=True)
class BetweenSets:
    """The cosines between the slots of two modalities."""

    true: Float[Tensor, "K L"]
    """Mean cosine of slot k of the first modality with slot l of the second, over all true pairs (fig:heatmap)."""
    wrong: Float[Tensor, "K L"] | None
    """The same over all pairs that are not true, for contrast; None if every pair is true."""
    best: Float[Tensor, "K L"]
    """The share of true pairs whose largest cosine is that of slots k and l; equally large ones share it. Sums to 1."""
    true_pairs: int
    """How many pairs are true."""
    usage: dict[str, list[float]]
    """By modality, for each slot the share of true pairs whose largest cosine it holds; each sums to 1."""


def between_sets(data: Paired) -> BetweenSets:
    """Cosines of true pairs and of wrong ones. Over the wrong ones the mean is exact, not that of a sample: the mean
    over all pairs is the product of the mean vectors.
    """
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
    best = (best / pairs).cpu()
    usage = dict(zip(data.names, (best.sum(1).tolist(), best.sum(0).tolist()), strict=True))
    return BetweenSets((true / pairs).cpu(), wrong, best, pairs, usage)


def _sum(sets: Tensor) -> Tensor:
    """Over all sets, slot by slot, in float64 without a copy of them all."""
    parts = [sets[start : start + _BLOCK].double().sum(0) for start in range(0, len(sets), _BLOCK)]
    return torch.stack(parts).sum(0)


# What each vector of a set is worth: retrieval with only slot i of one modality kept (table tab:5).


@dataclass(frozen=True)
class Elements:
    """The figures of retrieval (i2t_r1, …, rsum) with whole sets, and with one slot of one modality kept."""

    whole: dict[str, float]
    """With all vectors of both modalities."""
    kept: dict[str, list[dict[str, float]]]
    """By modality and slot: only that slot of that modality is kept, and all vectors of the other."""

    def rsum(self, modality: str) -> list[float]:
        """RSUM of each slot of a modality, kept alone."""
        return [figures["rsum"] for figures in self.kept[modality]]


def element_analysis(data: Paired, similarity: str | Similarity, whole: dict[str, float]) -> Elements:
    """Retrieval with one slot kept, for each slot of both modalities, by the same scores as in evaluation.

    In a collapsed model every slot does as well as the whole set; in one that uses a single slot, only that one does.
    whole: the figures with all vectors. Where slot i meets slot i alone ("paired"), it meets only that one here, too.
    """
    rows, columns = data.sets
    if similarity == "paired":
        slots = zip(torch.split(rows, 1, dim=1), torch.split(columns, 1, dim=1), strict=True)
        first = second = [retrieval(*parts, *data.groups, similarity) for parts in slots]
    else:
        first = [retrieval(part, columns, *data.groups, similarity) for part in torch.split(rows, 1, dim=1)]
        second = [retrieval(rows, part, *data.groups, similarity) for part in torch.split(columns, 1, dim=1)]
    return Elements(whole, dict(zip(data.names, (first, second), strict=True)))


# Retrieval by each vector of a query alone (fig:qualitative): do the slots find different things?

_ROWS = 1_024


class SlotAnswer(NamedTuple):
    """An item that was found."""

    item: int
    """Its place in the split."""
    id: str | None
    """Its name, where it is known."""
    score: float
    true: bool
    """Whether it belongs to the query."""


@dataclass(frozen=True)
class SlotExample:
    """What each slot of one query found."""

    item: int
    """The place of the query in the split."""
    id: str | None
    answers: list[list[SlotAnswer]]
    """For each slot the nearest items, nearest first; the score is a cosine."""


@dataclass(frozen=True)
class BySlot:
    """Retrieval by each slot, from one modality in another."""

    query: str
    gallery: str
    recalls: list[dict[str, float]]
    """For each slot r1, r5, r10: how many per cent of the queries find a true answer so high by that slot alone."""
    distinct: float
    """How many different items the K slots of a query have for first answer, on average: 1 collapsed, K all differ.
    Read it with the recalls: slots that tell nothing differ, too."""
    distinct_groups: float
    """The same, where items of one group (the captions of one image) count as one."""
    any_slot: dict[str, float]
    """r1, r5, r10 of the best slot of each query, chosen with hindsight: more than any slot has where they differ."""
    examples: list[SlotExample]


def by_slot(data: Paired, queries: Sequence[int], answers: int = 5) -> BySlot:
    """Retrieval of the columns by single vectors of the rows: an item is as near as the nearest of its vectors.

    queries: the places of those to be kept as examples, with so many answers for each slot. Equally near items come in
    the order of the split; in the recalls they count against the model.
    """
    rows, columns = data.sets
    chosen = torch.tensor(queries, dtype=torch.long, device=rows.device)
    firsts, ranks, found = [], [], [list[list[SlotAnswer]]() for _ in queries]
    for vectors in torch.split(rows, 1, dim=1):
        scores = score_matrix(vectors, columns, "mil")  # of a single vector and a set: the largest cosine
        firsts.append(torch.cat([first_largest(part, 1)[1] for part in torch.split(scores, _ROWS)]))
        ranks.append(ranks_both_ways(scores, *data.groups)[0].ranks)
        best = first_largest(scores[chosen], min(answers, len(columns)))
        for query, listed, *part in zip(queries, found, *best, strict=True):
            listed.append(answers_to(data, query, *part))
        del scores  # before the next one is made
    first, rank = torch.cat(firsts, 1), torch.stack(ranks, 1)
    return BySlot(
        query=data.names[0],
        gallery=data.names[1],
        recalls=[_recalls(ranks) for ranks in rank.T],
        distinct=_distinct(first),
        distinct_groups=_distinct(data.groups[1][first]),
        any_slot=_recalls(rank.amin(1)),
        examples=[SlotExample(one, data.name(0, one), listed) for one, listed in zip(queries, found, strict=True)],
    )


def answers_to(data: Paired, query: int, scores: Float[Tensor, " n"], places: Int[Tensor, " n"]) -> list[SlotAnswer]:
    """What was found for one of the rows: the columns at some places."""
    group = data.groups[0][query]
    return [
        SlotAnswer(place, data.name(1, place), score, bool(data.groups[1][place] == group))
        for place, score in zip(places.tolist(), scores.tolist(), strict=True)
    ]


def _recalls(ranks: Int[Tensor, " n"]) -> dict[str, float]:
    return {f"r{level}": 100 * (ranks <= level).double().mean().item() for level in LEVELS}


def _distinct(found: Int[Tensor, "n K"]) -> float:
    """The mean number of different values in a row."""
    ordered = found.sort(dim=1).values
    return float(1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1).double().mean())


# What each slot looks at: how widely, and whether slots look at the same places.


@dataclass(frozen=True)
class AttentionSummary:
    """The attention of K slots, averaged over items."""

    entropy: list[float]
    """Of each slot's attention, in nats: 0 where it is on one place, log N where it is even over N."""
    spread: list[float]
    """exp(entropy) / N of each slot: the share of the places that it looks at; 1 is all of them evenly."""
    overlap: Float[Tensor, "K K"]
    """Σ over places of the smaller of two slots' attention: 0 where they look at different places, 1 at the same."""

    @property
    def mean_overlap(self) -> float | None:
        """Of all pairs of different slots; None with one slot."""
        size = len(self.overlap)
        different = ~torch.eye(size, dtype=torch.bool)
        return float(self.overlap[different].mean()) if size > 1 else None


@dataclass(frozen=True)
class Attention:
    """What the slots of some pairs of an image and a text look at, and what they do on average."""

    pairs: list[Explanation]
    sides: dict[str, AttentionSummary]
    """Of the images and of the texts."""


def attention(model: SetEncoder, images: Sequence[Any], texts: Sequence[str]) -> Attention:
    """What the slots look at in images and texts, images[i] with texts[i]: raw items, as `SetEncoder.explain` takes."""
    if len(images) != len(texts) or not len(images):
        raise ValueError(f"attention: expected a text for each image, got {len(images)} images, {len(texts)} texts.")
    pairs = [model.explain(image, text) for image, text in zip(images, texts, strict=True)]
    maps = {"image": [pair.image_attention for pair in pairs], "text": [pair.text_attention for pair in pairs]}
    return Attention(pairs, {name: attention_summary(some) for name, some in maps.items()})


def attention_summary(maps: Sequence[Tensor]) -> AttentionSummary:
    """The averages over items of attention maps (K, places) or (K, rows, columns), places as many as an item has."""
    entropy, spread, overlap = [], [], []
    for one in maps:
        weights = one.double().flatten(1)
        weights = weights / weights.sum(1, keepdim=True)
        entropy.append(-torch.xlogy(weights, weights).sum(1))
        spread.append(entropy[-1].exp() / weights.shape[1])
        overlap.append(torch.minimum(weights[:, None], weights[None]).sum(2))
    means = [torch.stack(values).mean(0) for values in (entropy, spread, overlap)]
    return AttentionSummary(means[0].tolist(), means[1].tolist(), means[2])


# The vectors of some true pairs in two dimensions (fig:tsne).

METHODS = {"tsne": "t-SNE", "umap": "UMAP"}
_FEWEST = 4  # points, below which neither method has neighbours to keep together
_NEIGHBOURS = 30


@dataclass(frozen=True)
class Projection:
    """Vectors as points in the plane: of each pair all slots of the first modality, then all of the second."""

    method: str
    points: Float[np.ndarray, "n 2"]
    modality: list[str]
    """Of each point."""
    slot: list[int]
    """Of each point, counted from 0."""
    item: list[int]
    """Of each point, the place of its item in the split."""
    pair: list[int]
    """Of each point, the number of its pair among those that were drawn."""


def project(data: Paired, *, pairs: int = 200, method: str = "tsne", seed: int = 0) -> Projection:
    """The vectors of `pairs` true pairs, drawn at random, by t-SNE or UMAP. The same seed gives the same points.

    At most one pair of each group is drawn. Only nearness means something in the result: distances between clusters,
    directions and the scale do not.
    """
    row, column = (side.cpu().numpy() for side in data.true_pairs())
    order = np.random.default_rng(seed).permutation(len(row))
    _, first = np.unique(data.groups[0].cpu().numpy()[row[order]], return_index=True)
    drawn = np.sort(order[np.sort(first)[:pairs]])
    vectors, about = [], []
    for number, both in enumerate(zip(row[drawn].tolist(), column[drawn].tolist(), strict=True)):
        for name, sets, item in zip(data.names, data.sets, both, strict=True):
            vectors.append(sets[item])
            about += [(name, slot, item, number) for slot in range(sets.shape[1])]
    points = _reduced(torch.cat(vectors).float().cpu().numpy(), method, seed)
    return Projection(method, points, *map(list, zip(*about, strict=True)))


def _reduced(vectors: Float[np.ndarray, "n D"], method: str, seed: int) -> Float[np.ndarray, "n 2"]:
    if len(vectors) < _FEWEST:
        raise ValueError(f"pairs: a projection needs at least {_FEWEST} vectors, got {len(vectors)}. Draw more pairs.")
    check_installed(method)
    neighbours = min(_NEIGHBOURS, (len(vectors) - 1) // 3)
    if method == "umap":
        with warnings.catch_warnings():  # it misses TensorFlow, which is needed for nothing here
            warnings.simplefilter("ignore", ImportWarning)
            from umap import UMAP
        reducer: Any = UMAP(n_neighbors=max(2, neighbours // 2), random_state=seed, n_jobs=1)
    else:
        from sklearn.manifold import TSNE

        # Starting from the principal axes keeps more of the whole in view than a random start does.
        reducer = TSNE(perplexity=neighbours, init="pca", learning_rate="auto", random_state=seed)
    points: np.ndarray = reducer.fit_transform(vectors)
    return points.astype(np.float64)


def check_installed(method: str) -> None:
    """ImportError, with the cure, if the package of a method is missing."""
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}.")
    package, extra = {"tsne": ("sklearn", "plots"), "umap": ("umap", "umap")}[method]
    if find_spec(package) is None:
        raise ImportError(f"{METHODS[method]} needs a package that is not installed: pip install 'maxmatch[{extra}]'")
