"""Recipes as YAML files: `extends`, overrides from the command line, and errors that name the file and the line."""

from collections.abc import Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from maxmatch.config import describe, location
from maxmatch.recipe import Recipe
from maxmatch.recipe_yaml import Key, RecipeError, Said, dump, parse

__all__ = ["SHIPPED", "RecipeError", "dump_recipe", "list_recipes", "load_recipe"]

SHIPPED = Path(__file__).resolve().parent / "recipes"
# In these the dots of a key belong to it: `train.freeze.image.backbone=3`.
_DOTTED = (("train", "lr_factors"), ("train", "freeze"))


def load_recipe(path_or_name: str | PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a file (`.yaml`), or one that ships, by its name (`list_recipes`).

    `extends:` in a file names another, relative to the file, or one that ships. Mappings are merged; lists and values
    are replaced, and so is a part whose `name` or `source` changes; `null` takes back what was said. Name and
    description are not inherited; without a name a recipe has that of its file. overrides: "train.lr=2e-4", the value
    in YAML.
    """
    path = _find(str(path_or_name), Path())
    said = _read(path, ())
    for override in overrides:
        said = _merge(said, _override(override))
    own_name = _name(path) if path.is_relative_to(SHIPPED) else path.stem
    values = said.values | {"name": own_name if said.values.get("name") is None else said.values["name"]}
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        lines = [f"{_place(said, location(problem))}: {describe(problem)}" for problem in error.errors()]
        raise RecipeError("\n".join(lines)) from error


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as YAML, every value written out. Loaded again it is equal."""
    return dump(recipe.model_dump(mode="json"))


def list_recipes() -> list[tuple[str, str]]:
    """The recipes that ship: name and description, by name."""
    files = sorted(SHIPPED.rglob("*.yaml"))
    return [(_name(file), str(_parse_file(file).values.get("description", ""))) for file in files]


def _name(file: Path) -> str:
    return file.relative_to(SHIPPED).with_suffix("").as_posix()


def _find(wanted: str, beside: Path) -> Path:
    """The file that a path (it ends in .yaml) or the name of a shipped recipe stands for."""
    if wanted.endswith((".yaml", ".yml")):
        path = (beside / wanted).resolve()
        if not path.is_file():
            raise RecipeError(f"{beside / wanted}: no such file.")
        return path
    names = {_name(file): file for file in SHIPPED.rglob("*.yaml")}
    if wanted not in names:
        if (beside / wanted).is_file():
            raise RecipeError(f"{beside / wanted}: no recipe: the name of a file of your own ends in .yaml.")
        near = get_close_matches(wanted, names, n=1)
        advice = f"Did you mean {near[0]!r}?" if near else "`maxmatch train --list` shows those that ship."
        raise RecipeError(f"{wanted}: no recipe of this name. {advice} A file of your own ends in .yaml.")
    return names[wanted]


def _parse_file(path: Path) -> Said:
    try:
        said = parse(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 ({error}). Save it as UTF-8.") from error
    if said.values is None:
        return Said({}, said.places)
    if not isinstance(said.values, dict):
        raise RecipeError(f"{path}: expected keys with values, such as `train:`, got {said.values!r}."[:200])
    return said


def _read(path: Path, chain: tuple[Path, ...]) -> Said:
    """What a file says together with all that it extends."""
    own = _parse_file(path)
    wanted = own.values.pop("extends", None)
    if wanted is None:
        return own
    place = own.places[("extends",)]
    if not isinstance(wanted, str):
        raise RecipeError(f"{place}: extends: expected a file or the name of a recipe, got {wanted!r}.")
    try:
        base = _find(wanted, path.parent)
    except RecipeError as error:
        raise RecipeError(f"{place}: extends: {error}") from error
    chain = (*chain, path)
    if base in chain:
        circle = " -> ".join(file.name for file in (*chain[chain.index(base) :], base))
        raise RecipeError(f"{place}: extends: goes in a circle: {circle}.")
    inherited = _read(base, chain)
    for key in ("name", "description"):
        inherited.values.pop(key, None)
    return _merge(inherited, own)


def _override(text: str) -> Said:
    """What "train.lr=2e-4" says."""
    key, equals, value = text.partition("=")
    keys = tuple(part.strip() for part in key.split("."))
    if not equals or not all(keys):
        raise RecipeError(f"{text}: expected key=value, such as train.lr=2e-4.")
    if keys == ("extends",):
        raise RecipeError(f"{text}: only a file can extend another. Name that recipe instead.")
    for prefix in _DOTTED:
        if keys[: len(prefix)] == prefix and len(keys) > len(prefix):
            keys = (*prefix, ".".join(keys[len(prefix) :]))
    parsed = parse(value, text)
    places: dict[tuple[Key, ...], str] = {(*keys, *inner): text for inner in parsed.places}
    values = parsed.values
    for part in reversed(keys):
        values = {part: values}
    return Said(values, places)


def _merge(base: Said, over: Said) -> Said:
    places = dict(base.places)
    values = _merged(base.values, over.values, (), places)
    return Said(values, places | over.places)


def _merged(
    base: dict[str, Any], over: dict[str, Any], path: tuple[Key, ...], places: dict[tuple[Key, ...], str]
) -> dict[str, Any]:
    """Both together. The places of what is replaced are forgotten."""
    merged = dict(base)
    for key, new in over.items():
        old, here = merged.get(key), (*path, key)
        if isinstance(old, dict) and isinstance(new, dict) and not _another_part(old, new):
            merged[key] = _merged(old, new, here, places)
            continue
        merged[key] = new
        for inner in [inner for inner in places if inner[: len(here)] == here]:
            del places[inner]
    return merged


def _another_part(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether the new mapping chooses something else: the options of a step schedule mean nothing to a cosine."""
    return any(choice in new and new[choice] != old.get(choice) for choice in ("name", "source"))


def _place(said: Said, keys: tuple[Key, ...]) -> str:
    """Where the innermost of the keys was said. What is no key of the data (the name of a choice) is passed over."""
    place, path, value = said.places[()], tuple[Key, ...](), said.values
    for key in keys:
        known = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        if key in known:
            path, value = (*path, key), value[key]
            # Of "train" in the override `train.lr=3` there is no place of its own: that of something in it will do.
            inside = (at for inner, at in said.places.items() if inner[: len(path)] == path)
            place = said.places.get(path) or next(inside, place)
    return place
