"""Comparing sets of vectors: the best one-to-one matching, set similarities, and all pairs at scale.

The names below are imported when first used: a search by ONNX Runtime takes `arrays` from here and never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maxmatch.matching.assignment import maximal_assignment
    from maxmatch.matching.scoring import score_matrix, top_hits, top_hits_both

__all__ = ["maximal_assignment", "score_matrix", "top_hits", "top_hits_both"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'maxmatch.matching' has no attribute {name!r}")
    return getattr(import_module(f"maxmatch.matching.{'assignment' if name == __all__[0] else 'scoring'}"), name)
