"""Recipes: what an experiment is, as data. The recipes that ship lie in `recipes/`."""

from maxmatch.recipe.schema import *  # noqa: F403
from maxmatch.recipe.schema import __all__ as __all__
