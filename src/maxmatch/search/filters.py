"""Filters on metadata: the parser, the tree that every engine turns into its own language, and what it means.

    year >= 2020 AND (album = 'Rome' OR album = 'Ostia') AND NOT blurred = true
    path LIKE 'holiday/%'          texts that begin so; % is allowed at the end only
    camera IN ('A1', 'B2')         any of these
    "taken by" IS NULL             no text, number or boolean under this key; IS NOT NULL: one

Keys are plain words, or anything in double quotes; texts are in single quotes, with '' for a quote inside. A comparison
holds only for an item that has the key, with a value of the same kind (text, number, boolean): for an item without a
year neither `year = 2020` nor `year != 2020` holds, and `NOT year = 2020` does. Texts are ordered by code point,
numbers are compared as float64. In a text (not in a tree that a program makes), a key that no item has, or has with
values of another kind only, is an error: see `check_kinds`.
"""

import math
import operator
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NoReturn

from maxmatch.core.array_checks import UsageError

Value = str | int | float | bool
ValueKind = Literal["text", "number", "boolean"]
Operator = Literal["=", "!=", "<", "<=", ">", ">="]
_KINDS: tuple[ValueKind, ...] = ("text", "number", "boolean")


@dataclass(frozen=True)
class Comparison:
    """The value under a key compared with another of its kind. Booleans know = and != only."""

    key: str
    operator: Operator
    value: Value
    kind: ValueKind | None = field(init=False, repr=False)
    """Tells `x = 1` from `x = true`: they pass other items, but for Python 1 equals True."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", kind_of(self.value))


@dataclass(frozen=True)
class Among:
    """The value is one of these, which are of one kind."""

    key: str
    values: tuple[Value, ...]
    kind: ValueKind | None = field(init=False, repr=False)
    """As in `Comparison`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", kind_of(self.values[0]) if self.values else None)

    @cached_property
    def known(self) -> frozenset[tuple[ValueKind | None, Value]]:
        """The values with their kinds, of which one is found at once among thousands."""
        return frozenset(map(_with_kind, self.values))


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


def kind_of(value: object) -> ValueKind | None:
    """Text, number or boolean; None for what a filter cannot see (lists, objects, null)."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else None


def check_kinds(
    condition: Condition, has_any: Callable[[Condition], bool], known: Callable[[str], Mapping[str, bool]]
) -> None:
    """UsageError where no item has a key with a value of the kind that it is compared with. A key that is null
    everywhere may be of any kind.

    has_any: whether any item passes. known: keys that items have, among them the given one where any item has it, and
    whether any of these items has a value other than null.
    """
    for key, kind in dict.fromkeys(_asked(condition)):
        if has_any(_is_of(key, kind)):
            continue
        there = [one for one in _KINDS if one != kind and has_any(_is_of(key, one))]
        if key == "taken" and has_any(_is_of("date_from", "text")):  # photos, of which none has a date by EXIF
            there = ["text"]
        if there == [kind]:
            continue
        if there:
            cure = "Write a text in single quotes, a number without any, a boolean as true or false."
            raise UsageError(f"where: {key!r} is a {' or '.join(there)}, and is compared with a {kind}. {cure}")
        keys = known(key)
        if key not in keys:
            raise UsageError(f"where: no item has {key!r}. Items have {', '.join(sorted(keys)[:40]) or 'no metadata'}.")
        if keys[key]:
            raise UsageError(f"where: {key!r} is a list or an object; only texts, numbers and booleans are compared.")


def _asked(condition: Condition) -> list[tuple[str, ValueKind]]:
    """The keys that are compared with values, and the kinds of these."""
    match condition:
        case Not(inner):
            return _asked(inner)
        case Every(parts) | Some(parts):
            return [one for part in parts for one in _asked(part)]
        case Missing():
            return []
        case Begins(key):
            return [(key, "text")]
        case Among(key, values):
            return [(key, kind) for kind in [kind_of(values[0])] if kind is not None]
        case Comparison(key, _, value):
            return [(key, kind) for kind in [kind_of(value)] if kind is not None]


def _is_of(key: str, kind: ValueKind) -> Condition:
    """Whether there is a value of a kind under a key."""
    if kind == "text":
        return Begins(key, "")
    if kind == "number":
        return Some((Comparison(key, "<", 0.0), Comparison(key, ">=", 0.0)))
    return Some((Comparison(key, "=", True), Comparison(key, "=", False)))


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
        case Among(key):
            found = metadata.get(key)
            return kind_of(found) is not None and _with_kind(found) in condition.known
        case Comparison(key, sign, value):
            return _compare(metadata.get(key), sign, value)


def _with_kind(value: Any) -> tuple[ValueKind | None, Value]:
    return kind_of(value), value  # 1 and 1.0 are equal, and hash alike


def _compare(found: Any, sign: Operator, value: Value) -> bool:
    if kind_of(found) != kind_of(value):
        return False
    if kind_of(value) == "number":
        found, value = float(found), float(value)
    return bool(_COMPARE[sign](found, value))


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")*") |
        (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?) |
        (?P<operator><=|>=|!=|<>|==|=|<|>) | (?P<mark>[(),]) | (?P<word>[^\W\d][\w.-]*) | (?P<unknown>\S.{0,11})
    )""",
    re.VERBOSE | re.DOTALL,
)
_RESERVED = {"AND", "OR", "NOT", "IN", "LIKE", "IS", "NULL", "TRUE", "FALSE"}
_MOST_NESTED = 50


def parse_where(text: str) -> Condition:
    """The tree of a filter. ValueError, with the place, for what the language does not know."""
    return _Reader(text).whole()


def condition_of(where: str | Mapping[str, Value] | Condition | None) -> Condition | None:
    """A filter as it is given: text, values that keys must have, a tree, or none."""
    if where is None or isinstance(where, Condition):
        return where
    if isinstance(where, str):
        return parse_where(where)
    if not isinstance(where, Mapping) or not where:
        raise UsageError(
            f'where: a text such as "year >= 2020", or values by key, got {where!r:.40} ({type(where).__name__}).'
        )
    for key, value in where.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise ValueError(f"where: expected a text, a number or a boolean for {key!r}, got {value!r:.40}.")
        if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
            raise ValueError(f"where: expected a finite number of 64 bits for {key!r}, got another.")
    return Every(tuple(Comparison(key, "=", value) for key, value in where.items()))


class _Reader:
    """Recursive descent: OR of ANDs of NOTs of comparisons."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []  # (kind, text, place)
        self.next = self.depth = 0
        for found in _TOKEN.finditer(text):
            kind = str(found.lastgroup)
            word, place = found[kind], found.start(kind)
            if kind == "unknown":
                cure = " A text needs a closing quote." if word[0] in "'\"" else ""
                self._refuse(f"{word!r} is not understood.{cure}", place)
            if kind == "word" and word.upper() in _RESERVED:
                kind, word = "reserved", word.upper()
            self.tokens.append((kind, word, place))
        self.tokens.append(("end", "", len(text)))

    def whole(self) -> Condition:
        condition = self._any()
        if self._peek()[0] != "end":
            self._unexpected("AND, OR or the end")
        return condition

    def _any(self) -> Condition:
        parts = [self._all()]
        while self._take("reserved", "OR"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def _all(self) -> Condition:
        parts = [self._negated()]
        while self._take("reserved", "AND"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def _negated(self) -> Condition:
        self.depth += 1
        if self.depth > _MOST_NESTED:
            self._refuse(f"more than {_MOST_NESTED} levels of brackets and NOT.", self._peek()[2])
        if self._take("reserved", "NOT"):
            condition: Condition = Not(self._negated())
        elif self._take("mark", "("):
            condition = self._any()
            self._need("mark", ")")
        else:
            condition = self._comparison()
        self.depth -= 1
        return condition

    def _comparison(self) -> Condition:
        key = self._key()
        kind, sign, place = self._peek()
        if kind == "operator":
            self.next += 1
            value = self._value()
            if isinstance(value, bool) and sign not in ("=", "==", "!=", "<>"):
                self._refuse(f"true and false have no order: {sign} cannot compare them.", place)
            same: Any = {"==": "=", "<>": "!="}.get(sign, sign)
            return Comparison(key, same, value)
        if self._take("reserved", "IS"):
            negated = self._take("reserved", "NOT")
            self._need("reserved", "NULL")
            return Not(Missing(key)) if negated else Missing(key)
        return Not(self._membership(key)) if self._take("reserved", "NOT") else self._membership(key)

    def _membership(self, key: str) -> Condition:
        if self._take("reserved", "LIKE"):
            place = self._peek()[2]
            pattern = self._value()
            if not isinstance(pattern, str) or not pattern.endswith("%") or "%" in pattern[:-1]:
                self._refuse("LIKE finds beginnings: expected a text with one % at its end, as 'holiday/%'.", place)
            return Begins(key, pattern[:-1])
        if not self._take("reserved", "IN"):
            self._unexpected("=, !=, <, <=, >, >=, IN, LIKE or IS")
        self._need("mark", "(")
        place = self._peek()[2]
        values = [self._value()]
        while self._take("mark", ","):
            values.append(self._value())
        self._need("mark", ")")
        if len({kind_of(value) for value in values}) > 1:
            self._refuse("the values of IN are of different kinds; join two filters with OR.", place)
        return Among(key, tuple(values))

    def _key(self) -> str:
        kind, word, _ = self._peek()
        if kind not in ("word", "quoted"):
            self._unexpected("the name of a key (in double quotes, if it is no plain word)")
        self.next += 1
        return word[1:-1].replace('""', '"') if kind == "quoted" else word

    def _value(self) -> Value:
        kind, word, place = self._peek()
        self.next += 1
        if kind == "text":
            return word[1:-1].replace("''", "'")
        if kind == "number":
            if not math.isfinite(float(word)):
                self._refuse(f"{word} is larger than numbers can be.", place)
            return float(word)
        if word not in ("TRUE", "FALSE") or kind != "reserved":
            self.next -= 1
            self._unexpected("a value: a number, true, false, or a text in single quotes")
        return word == "TRUE"

    def _peek(self) -> tuple[str, str, int]:
        return self.tokens[self.next]

    def _take(self, kind: str, word: str) -> bool:
        found = self._peek()[:2] == (kind, word)
        self.next += found
        return found

    def _need(self, kind: str, word: str) -> None:
        if not self._take(kind, word):
            self._unexpected(word)

    def _unexpected(self, expected: str) -> NoReturn:
        kind, word, place = self._peek()
        self._refuse(f"expected {expected}, got {'the end' if kind == 'end' else repr(word)}.", place)

    def _refuse(self, problem: str, place: int) -> NoReturn:
        raise UsageError(f"where: {problem}\n  {self.text}\n  {' ' * place}^")
