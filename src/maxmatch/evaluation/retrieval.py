"""How well each side finds the other: R@1, 5, 10 both ways, RSUM, median and mean rank."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.matching.scoring import score_matrix
from maxmatch.matching.similarity import Similarity
from maxmatch.types import Ranks

LEVELS = (1, 5, 10)


def retrieval(
    images: Float[Tensor, "B K D"],
    texts: Float[Tensor, "C L D"],
    image_groups: Int[Tensor, " B"],
    text_groups: Int[Tensor, " C"],
    similarity: str | Similarity = "maxmatch",
) -> dict[str, float]:
    """The figures of retrieval between two collections of sets; items of one group are true answers to each other.

    Recalls in per cent. An image counts as answered by the best of its captions. Ties count against us.
    """
    return figures(*ranks_both_ways(score_matrix(images, texts, similarity), image_groups, text_groups))


def figures(i2t: Ranks, t2i: Ranks) -> dict[str, float]:
    """The figures of two lists of ranks, by the names that are used everywhere: i2t_r1, …, rsum."""
    recalls = {
        f"{way}_r{level}": 100 * (found.ranks <= level).double().mean().item()
        for way, found in (("i2t", i2t), ("t2i", t2i))
        for level in LEVELS
    }
    ranks = {
        f"{way}_{name}_rank": value
        for way, found in (("i2t", i2t), ("t2i", t2i))
        for name, value in (
            ("median", found.ranks.double().quantile(0.5).item()),
            ("mean", found.ranks.double().mean().item()),
        )
    }
    ties = {f"{way}_ties": float((found.ties > 0).sum()) for way, found in (("i2t", i2t), ("t2i", t2i))}
    return {**recalls, "rsum": sum(recalls.values()), **ranks, **ties}


def chance(image_groups: Int[Tensor, " B"], text_groups: Int[Tensor, " C"]) -> dict[str, float]:
    """The recalls and RSUM that answers in random order would give, on average."""
    true_texts = torch.bincount(text_groups, minlength=int(image_groups.max()) + 1)[image_groups]
    true_images = torch.bincount(image_groups, minlength=int(text_groups.max()) + 1)[text_groups]
    recalls = {
        f"{way}_r{level}": 100 * _chance(true, total, level)
        for way, true, total in (("i2t", true_texts, len(text_groups)), ("t2i", true_images, len(image_groups)))
        for level in LEVELS
    }
    return {**recalls, "rsum": sum(recalls.values())}


def _chance(true: Tensor, total: int, level: int) -> float:
    """That one of `true` answers is among the first `level` of `total`: 1 − Π_i (total − true − i)/(total − i)."""
    missed = torch.ones(len(true), dtype=torch.float64)
    for place in range(min(level, total)):
        missed = missed * ((total - true.double() - place).clamp(min=0) / (total - place))
    return float(1 - missed.mean())
