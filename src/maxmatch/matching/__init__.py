"""Comparing sets of vectors: the table of similarities, the best one-to-one matching, and all pairs at scale.

Importing this loads neither torch nor NumPy: a recipe asks the table for names and options, and a search of a few
thousand items scores with NumPy alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from maxmatch.matching.assignment import maximal_assignment
    from maxmatch.matching.scoring import score_matrix, top_hits, top_hits_both

__all__ = [
    "SIMILARITIES",
    "SetSimilarity",
    "maximal_assignment",
    "score_matrix",
    "similarity_named",
    "top_hits",
    "top_hits_both",
]

Option = int | float | None


@dataclass(frozen=True)
class SetSimilarity:
    """A similarity of sets. Its formula is the function of its name in `matching.similarity` (torch) and in
    `matching.numpy_backend` (NumPy).
    """

    name: str
    options: Mapping[str, Option] = field(default_factory=dict)
    """What it takes beside the sets, with the defaults."""
    one_vector: bool = False
    """Whether it is large where slot i is near slot i, so that sets may be searched as one vector."""
    fast: bool = False
    """Whether the score is the mean of exp(c) − 1 over the matched cosines c: what the compiled code (`numba_backend`,
    `triton_backend`) computes, and what a search has at hand with the matching that it reports.
    """
    set_size: int | None = None
    """How many vectors its sets have, where each has a meaning of its own; None: any number of vectors alike."""
    in_order: bool = False
    """Whether slot i meets slot i and no other: then sets have one size, and no matching is looked for."""

    def __call__(self, a: Any, b: Any, *masks: Any, **given: Any) -> "Tensor":
        """The scores of all pairs, by torch: (B, K, D), (C, L, D) -> (B, C)."""
        return self.torch(a, b, *masks, **{**self.options, **given})

    @property
    def torch(self) -> "Callable[..., Tensor]":
        """The function of `matching.similarity`."""
        function: Callable[..., Tensor] = getattr(import_module("maxmatch.matching.similarity"), self.name)
        return function

    def of_planes(self, cosines: "np.ndarray") -> "np.ndarray":
        """The scores (P,) of cosine planes (K, L, P), by NumPy."""
        function = getattr(import_module("maxmatch.matching.numpy_backend"), self.name)
        scores: np.ndarray = function(cosines, **self.options)
        return scores

    def with_options(self, options: Mapping[str, Option]) -> "SetSimilarity":
        """The same similarity with other values for some of its options."""
        return replace(self, options={**self.options, **options})


SIMILARITIES: dict[str, SetSimilarity] = {
    entry.name: entry
    for entry in (
        SetSimilarity("maxmatch", one_vector=True, fast=True),
        SetSimilarity("top_k", {"k": None}, one_vector=True),
        SetSimilarity("smooth_chamfer", {"alpha": 16.0}, one_vector=True),
        SetSimilarity("chamfer", one_vector=True),
        SetSimilarity("mil"),
        SetSimilarity("mean"),
        SetSimilarity("maxsim", one_vector=True),
        SetSimilarity("paired", one_vector=True, in_order=True),
        SetSimilarity("sinkhorn", {"epsilon": 0.05, "iterations": 50}, one_vector=True),
        SetSimilarity("csd", set_size=2),
    )
}
"""Every similarity. A new one is a line here and its formula in torch and in NumPy."""


def similarity_named(name: str) -> SetSimilarity:
    """The entry of a similarity. ValueError, with the names there are, for one that is not in the table."""
    if name not in SIMILARITIES:
        raise ValueError(f"similarity: expected one of {', '.join(SIMILARITIES)}, got {name!r}.")
    return SIMILARITIES[name]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'maxmatch.matching' has no attribute {name!r}")
    return getattr(import_module(f"maxmatch.matching.{'assignment' if name.startswith('max') else 'scoring'}"), name)
