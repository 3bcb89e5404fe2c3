"""The paper's losses as loops over Python floats, the paper's two listings, and inputs to try them on.

Nothing here comes from the package under test.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations

import torch
from cost import Cost
from torch import Tensor

Matrix = Sequence[Sequence[float]]
Truth = Sequence[Sequence[bool]]

# How many captions each image has: equal, unequal, one only, many.
CAPTION_COUNTS = [(5, 5, 5, 5), (1, 1, 1), (3, 1, 2, 5), (1, 12), (7, 1, 1, 2, 1), (2, 2)]
LONE_IMAGE = [(1,), (4,)]


def both_ways(one_way: Callable[[Matrix, Truth], float], scores: Tensor, positive: Tensor) -> float:
    """Images to captions, then captions to images; the two added."""
    return one_way(scores.tolist(), positive.tolist()) + one_way(scores.T.tolist(), positive.T.tolist())


def true_pairs(positive: Truth) -> Iterator[tuple[int, int]]:
    for i, row in enumerate(positive):
        for j, true in enumerate(row):
            if true:
                yield i, j


def negatives_of(i: int, scores: Matrix, positive: Truth) -> list[float]:
    return [score for score, true in zip(scores[i], positive[i], strict=True) if not true]


def hardest_terms(scores: Matrix, positive: Truth, margin: float) -> dict[tuple[int, int], float]:
    """One hinge for each true pair, against the best of the anchor's negatives; nothing where there is none."""
    terms = {}
    for i, j in true_pairs(positive):
        wrong = negatives_of(i, scores, positive)
        terms[i, j] = max(0.0, margin + max(wrong) - scores[i][j]) if wrong else 0.0
    return terms


def triplet(scores: Tensor, positive: Tensor, margin: float, negatives: str) -> float:
    def hardest(scores: Matrix, positive: Truth) -> float:
        terms = hardest_terms(scores, positive, margin)
        return sum(terms.values()) / len(terms)

    def violations(scores: Matrix, positive: Truth) -> list[float]:
        return [
            margin + wrong - scores[i][j]
            for i, j in true_pairs(positive)
            for wrong in negatives_of(i, scores, positive)
        ]

    def mean(scores: Matrix, positive: Truth) -> float:
        hinges = [max(0.0, violation) for violation in violations(scores, positive)]
        return sum(hinges) / len(hinges) if hinges else 0.0

    def semi_hard(scores: Matrix, positive: Truth) -> float:
        cut = [min(margin, violation) for violation in violations(scores, positive) if violation > 0]
        return sum(cut) / len(cut) if cut else 0.0

    return both_ways({"hardest": hardest, "mean": mean, "semi_hard": semi_hard}[negatives], scores, positive)


def contrastive_term(true: float, wrong: Sequence[float], temperature: float) -> float:
    """−log [e^p / (e^p + Σ e^n)] for one positive p and the negatives n, as log(1 + Σ e^(n − p))."""
    return math.log1p(sum(math.exp((score - true) / temperature) for score in wrong))


def contrastive(scores: Tensor, positive: Tensor, temperature: float) -> float:
    def one_way(scores: Matrix, positive: Truth) -> float:
        anchors = []
        for i, row in enumerate(positive):
            wrong = negatives_of(i, scores, positive)
            terms = [contrastive_term(scores[i][j], wrong, temperature) for j, true in enumerate(row) if true]
            anchors.append(sum(terms) / len(terms))
        return sum(anchors) / len(anchors)

    return both_ways(one_way, scores, positive)


def slot_captions(slots: Matrix, captions: Matrix, own: Sequence[int]) -> dict[int, int]:
    """Of all ways to give slots and own captions to each other, one to one and as many as there are of the fewer, that
    with the largest total of cosines: slot -> caption.
    """
    size = min(len(slots), len(own))
    ways = (
        dict(zip(chosen, order, strict=True))
        for chosen in combinations(range(len(slots)), size)
        for order in permutations(own, size)
    )
    return max(ways, key=lambda way: sum(cosine(slots[k], captions[j]) for k, j in way.items()))


def caption_matching(sets: Tensor, texts: Tensor, positive: Tensor, temperature: float) -> float:
    """Each slot and the caption it is given, a caption being the mean of its set, against captions of other images."""
    captions = [[average(column) for column in zip(*vectors, strict=True)] for vectors in texts.tolist()]
    images = []
    for slots, mine in zip(sets.tolist(), positive.tolist(), strict=True):
        own = [j for j, true in enumerate(mine) if true]
        terms = [
            contrastive_term(
                cosine(slots[k], captions[j]),
                [cosine(slots[k], caption) for caption, true in zip(captions, mine, strict=True) if not true],
                temperature,
            )
            for k, j in slot_captions(slots, captions, own).items()
        ]
        if terms:
            images.append(average(terms))
    return average(images)


def dot(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def unit(x: Sequence[float]) -> list[float]:
    norm = math.sqrt(dot(x, x))
    return [a / norm for a in x]


def cosine(x: Sequence[float], y: Sequence[float]) -> float:
    return dot(unit(x), unit(y))


def distance(x: Sequence[float], y: Sequence[float]) -> float:
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def mmd(a: Tensor, b: Tensor) -> float:
    x, y = a.flatten(0, 1).tolist(), b.flatten(0, 1).tolist()

    def kernel(left: Matrix, right: Matrix) -> float:
        return average([math.exp(-distance(p, q) / 2) for p in left for q in right])

    return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)


def global_discriminative(sets: Tensor, pooled: Tensor, margin: float, scale: float) -> float:
    return average(
        [
            math.exp(scale * (cosine(vector, phi) - margin))
            for vectors, phi in zip(sets.tolist(), pooled.tolist(), strict=True)
            for vector in vectors
        ]
    )


def pairs(vectors: Matrix) -> Iterator[tuple[Sequence[float], Sequence[float]]]:
    for j in range(len(vectors)):
        for k in range(j + 1, len(vectors)):
            yield vectors[j], vectors[k]


def intra_set_divergence(sets: Tensor, margin: float, scale: float) -> float:
    return average([math.exp(scale * (cosine(v, w) - margin)) for vectors in sets.tolist() for v, w in pairs(vectors)])


def without_mean(items: Sequence[Sequence[float]]) -> list[list[float]]:
    """Vectors, one per item, without their mean over the items."""
    mean = [average(column) for column in zip(*items, strict=True)]
    return [[x - m for x, m in zip(vector, mean, strict=True)] for vector in items]


def centred(sets: Tensor) -> Tensor:
    """Each slot without its mean over the items."""
    slots = [without_mean(sets[:, k].tolist()) for k in range(sets.shape[1])]
    return torch.tensor([[slot[i] for slot in slots] for i in range(len(sets))], dtype=torch.float64)


def uniformity(residual: Tensor) -> float:
    return average(
        [math.exp(-2 * distance(unit(v), unit(w)) ** 2) for vectors in residual.tolist() for v, w in pairs(vectors)]
    )


def pvse_diversity(residual: Tensor) -> float:
    def of_one(vectors: Matrix) -> float:
        size = len(vectors)
        off = [cosine(vectors[j], vectors[k]) for j in range(size) for k in range(size) if j != k]
        return math.sqrt(math.fsum(c * c for c in off)) / size**2

    return average([of_one(vectors) for vectors in residual.tolist()])


def listed_intra_set_divergence(sets: Tensor, margin: float, scale: float) -> Tensor:
    """The paper's listing "Intra-Set Divergence Loss", for unit vectors."""
    A = torch.bmm(sets, sets.transpose(1, 2))
    size = sets.size(1)
    mask = torch.triu(torch.ones(size, size), diagonal=1).bool().unsqueeze(0)
    loss = torch.exp((A.masked_select(mask) - margin) * scale)
    return loss.sum() / (sets.shape[0] * (size * (size - 1) / 2))


def listed_global_discriminative(sets: Tensor, pooled: Tensor, margin: float, scale: float) -> Tensor:
    """The paper's listing "Global Discriminative Loss" (lst:GD), for unit vectors."""
    A = torch.bmm(pooled.unsqueeze(1), sets.transpose(1, 2)).squeeze()
    return torch.mean(torch.exp(scale * (A - margin)))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def units(*shape: int, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(normal(*shape, seed=seed), dim=-1)


def truth(counts: Sequence[int], seed: int | None = None) -> Tensor:
    """Which caption describes which image: counts[i] captions for image i, the captions in any order."""
    owner = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    if seed is not None:
        owner = owner[torch.randperm(len(owner), generator=generator(seed))]
    return owner == torch.arange(len(counts))[:, None]


def batch(counts: Sequence[int], seed: int = 0, spread: float = 0.2) -> tuple[Tensor, Tensor]:
    """Scores as a half-trained model gives them, and what is true."""
    positive = truth(counts, seed)
    return spread * normal(*positive.shape, seed=seed) + 0.1 * positive, positive


def cost_of(loss: Callable[..., Tensor], *inputs: Tensor) -> Cost:
    """What a loss costs with its gradient."""
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    with Cost() as cost:
        torch.autograd.grad(loss(*leaves), [x for x in leaves if x.requires_grad])
    return cost


def gradients_are_finite(loss: Callable[..., Tensor], *inputs: Tensor) -> bool:
    """Whether the loss and its gradient in every input are finite."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    value = loss(*leaves)
    value.backward()
    return bool(value.isfinite()) and all(x.grad is not None and bool(x.grad.isfinite().all()) for x in leaves)
