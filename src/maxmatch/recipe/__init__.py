"""Recipes: what an experiment is, as data. The recipes that ship lie in `recipes/`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maxmatch.recipe.schema import (
        Constant,
        Cosine,
        Data,
        Evaluate,
        ModelSection,
        Objective,
        Recipe,
        Scenes,
        Section,
        StepSchedule,
        Train,
    )

__all__ = [
    "Constant",
    "Cosine",
    "Data",
    "Evaluate",
    "ModelSection",
    "Objective",
    "Recipe",
    "Scenes",
    "Section",
    "StepSchedule",
    "Train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'maxmatch.recipe' has no attribute {name!r}")
    return getattr(import_module("maxmatch.recipe.schema"), name)
