"""What is minimised."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from maxmatch.losses.objective import objective
from maxmatch.matching.similarity import SIMILARITIES
from maxmatch.recipe import Recipe
from maxmatch.types import LossTerms, Sets

Similarity = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Criterion:
    """What is minimised: the objective between each of the pairs of modalities, added up."""

    similarity: Similarity
    pairs: Sequence[tuple[str, str]]
    options: Mapping[str, Any]

    def __call__(self, sets: Mapping[str, Sets], groups: Mapping[str, Tensor]) -> LossTerms:
        """The loss of a batch."""
        terms = [
            objective(
                self.similarity(sets[rows].vectors, sets[columns].vectors),
                groups[rows][:, None] == groups[columns],
                sets[rows],
                sets[columns],
                **self.options,
            )
            for rows, columns in self.pairs
        ]
        return terms[0] if len(terms) == 1 else _added(terms)


def criterion_for(recipe: Recipe, epoch: int) -> Criterion:
    """What a recipe minimises in an epoch."""
    similarity = partial(SIMILARITIES[recipe.model.similarity], **recipe.model.similarity_options)
    return Criterion(similarity, recipe.objective.pairs, recipe.objective.keywords(epoch))


def _added(terms: Sequence[LossTerms]) -> LossTerms:
    """The sum of several losses, term by term. They have the same weights, and so the same terms."""
    names = [field.name for field in fields(LossTerms) if getattr(terms[0], field.name) is not None]
    return LossTerms(**{name: torch.stack([getattr(each, name) for each in terms]).sum() for name in names})
