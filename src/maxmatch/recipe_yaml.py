"""YAML 1.2 as recipes use it: plain data, each key once, and where each stands. `1e-3` is a number, `no` a word."""

import re
from typing import Any, NamedTuple

import yaml

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
    """A recipe that cannot be read or makes no sense."""


class Said(NamedTuple):
    """What a text says, and where: the place of each path of keys; that of the empty path is the text itself."""

    values: Any
    places: dict[tuple[Key, ...], str]


class _Loader(yaml.SafeLoader):
    """Nothing but the scalars of YAML 1.2's core; those of YAML 1.1, which PyYAML reads, hold surprises."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As in any loader; but a reference could make a small file large, or go in a circle."""
        if self.check_event(yaml.AliasEvent):
            event: Any = self.get_event()  # type: ignore[no-untyped-call]
            what = "references (*name) are not read; write it out"
            raise yaml.composer.ComposerError(None, None, what, event.start_mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever YAML 1.1 or 1.2 would take for something other than a text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Everything is written out."""
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        """A list stands on one line."""
        return super().represent_sequence(tag, sequence, flow_style=True)


for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_CORE + _tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_CORE + _tag, _pattern, _first)


def parse(text: str, source: str) -> Said:
    """Plain data from YAML. source: what errors call the text; a line number follows."""
    places: dict[tuple[Key, ...], str] = {(): source}
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
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
    return Said(values, places)


def dump(values: dict[str, Any]) -> str:
    """Plain data as YAML."""
    text: str = yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120
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
                raise _refusal(
                    key_node, source, f"{key!r} was said before ({places[(*path, key)]}); each key counts once"
                )
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
