"""What a run has to say in the model card of what it trained: data, command, figures and limits."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from maxmatch.data.items import Split
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.protocol import evaluate
from maxmatch.evaluation.scores import Member
from maxmatch.evaluation.significance import Interval, intervals
from maxmatch.matching.similarity import with_options
from maxmatch.recipe import Recipe
from maxmatch.recipe_files import load_recipe
from maxmatch.recipe_yaml import RecipeError, dump

_DRAWS = 1000
_PATHS = ("path", "images", "features", "word_vectors", "tokenizer")
_LIMITS = """## Limits

It knows what its training photos and captions showed, in their language, and repeats what is unbalanced in them. A
score says which of several items fits best, not whether one fits. Faces, places and writing were not taught."""


def training_notes(recipe: Recipe, train: Split, epochs: int) -> str:
    """How a model was trained, and how to train it again, in Markdown. epochs: those that made it what it is."""
    data = recipe.data
    named = f" ({recipe.description})" if recipe.description else ""
    source = "generated scenes" if data.scenes is not None else f"`{_last(data.path or '')}`"
    counts = ", ".join(f"{len(items):,} {name}s" for name, items in train.items.items())
    lines = [
        f"Recipe `{recipe.name}`{named}, seed {recipe.seed}, on the split `{data.train_split}` of {source}: {counts}.",
        f"These are the weights after epoch {epochs} of {recipe.train.epochs}.",
    ]
    if data.hold_out_words:
        lines.append(f"Captions with any of these words were left out: {', '.join(data.hold_out_words)}.")
    licence = data.licence or "That of the data it was trained on, which its maker has to name."
    parts = ["## Training", "\n".join(lines), "To train it again:", f"```\n{command(recipe)}\n```"]
    return "\n\n".join([*parts, "## Licence", licence, _LIMITS])


def figure_notes(
    encoded: EncodedSplit, pair: tuple[str, str], similarity: str, options: Mapping[str, float], split: str
) -> str:
    """How well the model retrieves on a split, with intervals by bootstrap over the images, in Markdown."""
    member = Member("model", encoded, with_options(similarity, dict(options)))
    result = evaluate([member], pair=pair, protocol="plain")
    sure = intervals(result.galleries[""], _DRAWS, np.random.default_rng(0))
    counts = " and ".join(f"{len(encoded.groups[name]):,} {name}s" for name in pair)
    rows = [
        f"| {one} to {other} | " + " | ".join(_figure(result.figures, sure, f"{way}_r{n}") for n in (1, 5, 10)) + " |"
        for way, one, other in (("i2t", *pair), ("t2i", *pair[::-1]))
    ]
    head = "| per cent (95 % interval) | R@1 | R@5 | R@10 |\n|---|---|---|---|\n"
    return "\n\n".join(
        [
            "## How well it retrieves",
            f"On the split `{split}`: {counts}, one model, compared by `{similarity}`.",
            head + "\n".join(rows),
            f"RSUM {_figure(result.figures, sure, 'rsum')}.",
        ]
    )


def command(recipe: Recipe) -> str:
    """The command that trains a recipe: the one that ships with what differs from it, or a file of one's own. Files and
    folders are named without the path to them.
    """
    name = recipe.name
    try:
        shipped = load_recipe(name).model_dump(mode="json")
        changes = list(_changes(recipe.model_dump(mode="json"), shipped))
        same = load_recipe(name, [f"{key}={_inline(value)}" for key, value in changes]) == recipe
    except RecipeError:  # none of this name, or one that no overrides lead to
        same = False
    if same:
        said = [f"{key}={_inline(_without_folder(key, value))}" for key, value in changes]
        return " ".join(["maxmatch train", name, *map(shlex.quote, said)])
    return "maxmatch train recipe.yaml  # of the run's folder"


def _changes(mine: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of which two recipes say different things, dotted, with the first one's values."""
    for key in [*mine, *(key for key in theirs if key not in mine)]:
        one, other, path = mine.get(key), theirs.get(key), f"{prefix}{key}"
        if isinstance(one, dict) and isinstance(other, dict) and path not in ("train.schedule", "model.config"):
            yield from _changes(one, other, f"{path}.")
        elif one != other:
            yield path, one


def _inline(value: Any) -> str:
    """A value in YAML on one line."""
    text = dump({"value": value})
    return text.removeprefix("value: ").strip() if "\n" not in text.strip() else _flow(value)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return dump({"value": value}).removeprefix("value: ").strip()


def _without_folder(key: str, value: Any) -> Any:
    section, _, name = key.partition(".")
    return _last(value) if section == "data" and name in _PATHS and isinstance(value, str) else value


def _last(path: str) -> str:
    return PurePath(path).name or path


def _figure(figures: Mapping[str, float], sure: Mapping[str, Interval], name: str) -> str:
    low, high = sure[name]
    return f"{figures[name]:.1f} ({low:.1f} to {high:.1f})"
