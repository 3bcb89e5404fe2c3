"""MaxMatch: sets of K vectors, compared by their best one-to-one matching.

The public names are imported when first used, so that `import maxmatch` stays fast.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from maxmatch.core import moved

if TYPE_CHECKING:
    from maxmatch import losses
    from maxmatch.matching import similarity
    from maxmatch.matching.assignment import maximal_assignment
    from maxmatch.matching.scoring import score_matrix, top_hits, top_hits_both
    from maxmatch.model.encoder import SetEncoder
    from maxmatch.recipe.schema import Recipe
    from maxmatch.search.set_index import SetIndex

__version__ = "0.1.2"

# Nothing leaves the machine: libraries that report their use read these when they are imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

moved.install()

__all__ = [
    "Recipe",
    "SetEncoder",
    "SetIndex",
    "losses",
    "maximal_assignment",
    "score_matrix",
    "similarity",
    "top_hits",
    "top_hits_both",
]

# public name -> (module, attribute in it; None for the module itself)
_HOMES: dict[str, tuple[str, str | None]] = {
    "Recipe": ("maxmatch.recipe.schema", "Recipe"),
    "SetEncoder": ("maxmatch.model.encoder", "SetEncoder"),
    "SetIndex": ("maxmatch.search.set_index", "SetIndex"),
    "losses": ("maxmatch.losses", None),
    "similarity": ("maxmatch.matching.similarity", None),
    "maximal_assignment": ("maxmatch.matching.assignment", "maximal_assignment"),
    "score_matrix": ("maxmatch.matching.scoring", "score_matrix"),
    "top_hits": ("maxmatch.matching.scoring", "top_hits"),
    "top_hits_both": ("maxmatch.matching.scoring", "top_hits_both"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'maxmatch' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, attribute = _HOMES[name]
    home = import_module(module)
    return home if attribute is None else getattr(home, attribute)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
