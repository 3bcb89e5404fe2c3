"""Filters on metadata: a tree that every engine turns into its own language, and what it means.

`parse_where` reads it from a text:

    year >= 2020 AND (album = 'Rome' OR album = 'Ostia') AND NOT blurred = true
    path LIKE 'holiday/%'          texts that begin so; % stands at the end only
    camera IN ('A1', 'B2')         any of these
    "taken by" IS NULL             no text, number or boolean under this key; IS NOT NULL: one

Keys are bare words, or anything in double quotes; texts are in single quotes, with '' for one. A comparison holds only
for an item that has the key, with a value of the same kind (text, number, boolean): of an item without a year neither
`year = 2020` nor `year != 2020` holds, and `NOT year = 2020` does. Texts are ordered by code point, numbers are
compared as float64.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Value = str | int | float | bool
Kind = Literal["text", "number", "boolean"]
Operator = Literal["=", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True)
class Comparison:
    """The value under a key compared with another of its kind. Booleans know = and != only."""

    key: str
    operator: Operator
    value: Value


@dataclass(frozen=True)
class Among:
    """The value is one of these, which are of one kind."""

    key: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Begins:
    """The value is a text that begins so."""

    key: str
    text: str


@dataclass(frozen=True)
class Missing:
    """There is no text, number or boolean under the key."""

    key: str


@dataclass(frozen=True)
class Not:
    """What does not pass the condition."""

    condition: "Condition"


@dataclass(frozen=True)
class Every:
    """What passes all of them."""

    conditions: tuple["Condition", ...]


@dataclass(frozen=True)
class Some:
    """What passes one at least."""

    conditions: tuple["Condition", ...]


Condition = Comparison | Among | Begins | Missing | Not | Every | Some


def kind_of(value: object) -> Kind | None:
    """Text, number or boolean; None for what a filter cannot see (lists, objects, null)."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else None


def keys_of(condition: Condition) -> list[str]:
    """The keys that a condition asks about, each once."""
    match condition:
        case Not(inner):
            return keys_of(inner)
        case Every(parts) | Some(parts):
            return list(dict.fromkeys(key for part in parts for key in keys_of(part)))
        case _:
            return [condition.key]


def passes(condition: Condition, metadata: Mapping[str, Any]) -> bool:
    """Whether metadata passes: what the words of the language mean."""
    match condition:
        case Not(inner):
            return not passes(inner, metadata)
        case Every(parts):
            return all(passes(part, metadata) for part in parts)
        case Some(parts):
            return any(passes(part, metadata) for part in parts)
        case Missing(key):
            return kind_of(metadata.get(key)) is None
        case Begins(key, text):
            found = metadata.get(key)
            return isinstance(found, str) and found.startswith(text)
        case Among(key, values):
            return any(_compare(metadata.get(key), "=", value) for value in values)
        case Comparison(key, operator, value):
            return _compare(metadata.get(key), operator, value)


def _compare(found: Any, operator: Operator, value: Value) -> bool:
    if kind_of(found) != kind_of(value):
        return False
    if kind_of(value) == "number":
        found, value = float(found), float(value)
    if operator in ("=", "!="):
        return bool((found == value) == (operator == "="))
    if operator in ("<", "<="):
        return bool(found < value if operator == "<" else found <= value)
    return bool(found > value if operator == ">" else found >= value)
