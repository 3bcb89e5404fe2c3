"""Recipes as YAML files: `extends`, overrides from the command line, and errors that name the file and the line."""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from maxmatch.core.manifest import describe, location
from maxmatch.recipe.schema import Recipe

# YAML 1.2 as recipes use it: plain data, each key once, and where each stands. `1e-3` is a number, `no` a word.

Key = str | int
_CORE = "tag:yaml.org,2002:"
_SCALARS = {
    "null": (re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    "bool": (re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    "int": (re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789")),
    "float": (
        re.compile(
            r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
        ),
        list("-+.0123456789"),
    ),
}


class RecipeError(ValueError):
    """A recipe that cannot be read or is invalid."""


class LocatedValues(NamedTuple):
    """The values of a YAML text, and the line of each path of keys; the empty path is the text itself."""

    values: Any
    places: dict[tuple[Key, ...], str]


class _Loader(yaml.SafeLoader):
    """Only the scalars of YAML 1.2's core schema; those of YAML 1.1, PyYAML's own, hold surprises."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As in any loader, but references are refused: they could make a small file huge, or a cycle."""
        if self.check_event(yaml.AliasEvent):
            event: Any = self.get_event()  # type: ignore[no-untyped-call]
            what = "references (*name) are not read; write it out"
            raise yaml.composer.ComposerError(None, None, what, event.start_mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever YAML 1.1 or 1.2 would take for something other than a text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out."""
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        """Write a list on one line."""
        return super().represent_sequence(tag, sequence, flow_style=True)


for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_CORE + _tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_CORE + _tag, _pattern, _first)


def parse(text: str, source: str) -> LocatedValues:
    """Plain data from YAML. source: what errors call the text; a line number follows."""
    places: dict[tuple[Key, ...], str] = {(): source}
    try:
        node = yaml.compose(text, Loader=_Loader)
        values = None if node is None else _value(node, (), source, places)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise RecipeError(f"{source}{line}: not readable as YAML: {what}.") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{source}: not readable as YAML: {error}.") from error
    except RecursionError as error:
        raise RecipeError(f"{source}: not readable as YAML: nested too deeply.") from error
    return LocatedValues(values, places)


def dump(values: dict[str, Any], one_line: bool = False) -> str:
    """Plain data as YAML; lists always on one line."""
    width = 10**9 if one_line else 120
    text: str = yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=one_line, width=width
    )
    return text


def _value(node: yaml.Node, path: tuple[Key, ...], source: str, places: dict[tuple[Key, ...], str]) -> Any:
    if isinstance(node, yaml.MappingNode) and node.tag == f"{_CORE}map":
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if key_node.tag != f"{_CORE}str":
                raise _refusal(key_node, source, f"expected the name of an option, got {key!r}")
            if key in values:
                raise _refusal(key_node, source, f"duplicate key {key!r}, first given at {places[(*path, key)]}")
            places[(*path, key)] = _place(key_node, source)
            values[key] = _value(value_node, (*path, key), source, places)
        return values
    if isinstance(node, yaml.SequenceNode) and node.tag == f"{_CORE}seq":
        for number, item in enumerate(node.value):
            places[(*path, number)] = _place(item, source)
        return [_value(item, (*path, number), source, places) for number, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode) and node.tag.removeprefix(_CORE) in ("str", *_SCALARS):
        return _scalar(node, source)
    raise _refusal(node, source, f"expected plain data, got the tag {node.tag!r}")


def _scalar(node: yaml.ScalarNode, source: str) -> Any:
    kind, text = node.tag.removeprefix(_CORE), node.value
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    try:
        if kind == "int":
            return int(text)
        return float(re.sub(r"\.(?=[a-zA-Z])", "", text)) if kind == "float" else text
    except ValueError as error:
        raise _refusal(node, source, f"expected a number, got {text[:40]!r}") from error


def _place(node: yaml.Node, source: str) -> str:
    return f"{source}:{node.start_mark.line + 1}"


def _refusal(node: yaml.Node, source: str, why: str) -> RecipeError:
    return RecipeError(f"{_place(node, source)}: {why}.")


SHIPPED = Path(__file__).resolve().parent / "recipes"
# In these the dots of a key belong to it: `train.freeze.image.backbone=3`.
_DOTTED = (("train", "lr_factors"), ("train", "freeze"))


def load_recipe(path_or_name: str | PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a file (`.yaml`), or one that ships, by its name (`list_recipes`).

    `extends:` in a file names another, relative to the file, or one that ships. Mappings are merged; lists and values
    are replaced, and so is a part whose `name` or `source` changes; `null` resets a value. Name and
    description are not inherited; without a name a recipe has that of its file. overrides: "train.lr=2e-4", the value
    in YAML.
    """
    path = _find(str(path_or_name), Path())
    found = read_extended(path, _find)
    for override in overrides:
        found = _merge(found, _override(override))
    own_name = _name(path) if path.is_relative_to(SHIPPED) else path.stem
    values = found.values | {"name": own_name if found.values.get("name") is None else found.values["name"]}
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        lines = [f"{place_of_keys(found, location(problem))}: {describe(problem)}" for problem in error.errors()]
        raise RecipeError("\n".join(lines)) from error


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as YAML, every value written out. Loaded again it is equal."""
    return dump(recipe.model_dump(mode="json"))


def list_recipes() -> list[tuple[str, str]]:
    """The recipes that ship: name and description, by name."""
    files = sorted(SHIPPED.rglob("*.yaml"))
    return [(_name(file), str(parse_file(file).values.get("description", ""))) for file in files]


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
            raise RecipeError(f"{beside / wanted}: not a recipe: the name of your own file must end in .yaml.")
        near = get_close_matches(wanted, names, n=1)
        advice = f"Did you mean {near[0]!r}?" if near else "`maxmatch train --list` shows those that ship."
        raise RecipeError(f"{wanted}: no recipe of this name. {advice} The name of your own file must end in .yaml.")
    return names[wanted]


def parse_file(path: Path) -> LocatedValues:
    """The keys and values of a YAML file."""
    try:
        found = parse(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 ({error}). Save it as UTF-8.") from error
    if found.values is None:
        return LocatedValues({}, found.places)
    if not isinstance(found.values, dict):
        raise RecipeError(f"{path}: expected keys with values, such as `train:`, got {found.values!r}."[:200])
    return found


def read_extended(path: Path, find: Callable[[str, Path], Path], chain: tuple[Path, ...] = ()) -> LocatedValues:
    """A file merged with all that it extends. find: the file that a name stands for, in a file of this folder."""
    own = parse_file(path)
    wanted = own.values.pop("extends", None)
    if wanted is None:
        return own
    place = own.places[("extends",)]
    if not isinstance(wanted, str):
        raise RecipeError(f"{place}: extends: expected a file or a name, got {wanted!r}.")
    try:
        base = find(wanted, path.parent)
    except ValueError as error:
        raise RecipeError(f"{place}: extends: {error}") from error
    chain = (*chain, path)
    if base in chain:
        circle = " -> ".join(file.name for file in (*chain[chain.index(base) :], base))
        raise RecipeError(f"{place}: extends: a cycle: {circle}.")
    inherited = read_extended(base, find, chain)
    for key in ("name", "description"):
        inherited.values.pop(key, None)
    return _merge(inherited, own)


def _override(text: str) -> LocatedValues:
    """The values of "train.lr=2e-4"."""
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
    return LocatedValues(values, places)


def _merge(base: LocatedValues, over: LocatedValues) -> LocatedValues:
    places = dict(base.places)
    values = _merged(base.values, over.values, (), places)
    return LocatedValues(values, places | over.places)


def _merged(
    base: dict[str, Any], over: dict[str, Any], path: tuple[Key, ...], places: dict[tuple[Key, ...], str]
) -> dict[str, Any]:
    """Both merged. The places of replaced values are dropped."""
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


def place_of_keys(found: LocatedValues, keys: tuple[Key, ...]) -> str:
    """Where the innermost of the keys was given. What is no key of the data (the name of a choice) is skipped."""
    place, path, value = found.places[()], tuple[Key, ...](), found.values
    for key in keys:
        known = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        if key in known:
            path, value = (*path, key), value[key]
            # Of "train" in the override `train.lr=3` there is no place of its own: that of something in it will do.
            inside = (at for inner, at in found.places.items() if inner[: len(path)] == path)
            place = found.places.get(path) or next(inside, place)
    return place
