"""Filters in the language of Milvus.

What a filter can see of an item's metadata is kept in a JSON field of its own: the kind of a value is a part of its
key, and numbers are float64. So a comparison meets values of its own kind only, whatever a version of Milvus makes of
others. What Milvus makes of `not` before a comparison with a key that an item lacks differs between versions, too:
`not` is moved inwards, to stand before `exists` alone.
"""

import json
import re

from maxmatch.search.where import (
    Among,
    Begins,
    Comparison,
    Condition,
    Every,
    Missing,
    Not,
    Operator,
    Some,
    Value,
    kind_of,
)

FIELD = "filter"
_LETTER = {"text": "t", "number": "n", "boolean": "b"}
_OPPOSITE: dict[Operator, Operator] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def filterable(metadata: str) -> dict[str, Value]:
    """Of metadata, a JSON object as text, what filters can see: {"n:year": 2020.0, "t:album": "Rome"}."""
    return {
        f"{_LETTER[kind]}:{_plain(key)}": float(value) if kind == "number" else value
        for key, value in json.loads(metadata).items()
        if (kind := kind_of(value)) is not None
    }


def expression(condition: Condition, holds: bool = True) -> str:
    """The expression for what passes a condition, or (holds=False) for what does not."""
    match condition:
        case Not(inner):
            return expression(inner, not holds)
        case Every(parts) | Some(parts):
            word = " and " if isinstance(condition, Every) == holds else " or "
            return "(" + word.join(expression(part, holds) for part in parts) + ")"
        case Missing(key):
            there = [_there(_path(key, kind), not holds) for kind in _LETTER]
            return "(" + (" and " if holds else " or ").join(there) + ")"
        case Begins(key, text):
            end = _after_all_that_begin_with(text)
            low = Comparison(key, ">=", text)
            return expression(low if end is None else Every((low, Comparison(key, "<", end))), holds)
        case Among(key, values):
            return expression(Some(tuple(Comparison(key, "=", value) for value in values)), holds)
        case Comparison(key, operator, value):
            kind = kind_of(value)
            assert kind is not None
            path = _path(key, kind)
            if not holds:
                return f"({_compared(path, _OPPOSITE[operator], value)} or {_there(path, False)})"
            return _compared(path, operator, value)


def quoted(text: str) -> str:
    """A text between quotes."""
    return json.dumps(text, ensure_ascii=False)


def _compared(path: str, operator: Operator, value: Value) -> str:
    if operator == "!=" and isinstance(value, bool):
        operator, value = "=", not value
    if operator == "!=":  # which may hold for an item without the key
        return f"({path} < {_literal(value)} or {path} > {_literal(value)})"
    return f"{path} {'==' if operator == '=' else operator} {_literal(value)}"


def _there(path: str, holds: bool) -> str:
    """In brackets: `exists` binds weaker than `or`."""
    return f"(exists {path})" if holds else f"(not (exists {path}))"


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quoted(value) if isinstance(value, str) else repr(float(value))


def _path(key: str, kind: str) -> str:
    return f'{FIELD}["{_LETTER[kind]}:{_plain(key)}"]'


def _plain(key: str) -> str:
    """A key without the characters that mean something in a path or between quotes."""
    return re.sub(r"[^\w .-]", lambda found: f"%{ord(found[0]):x};", key)


def _after_all_that_begin_with(text: str) -> str | None:
    """The least text above all that begin so, by code point; None where there is none above."""
    stem = text.rstrip("\U0010ffff")
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # surrogates are no characters
