"""Reading a filter; what it means is in `maxmatch.search.where`."""

import math
import re
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from maxmatch.search.where import Among, Begins, Comparison, Condition, Every, Missing, Not, Some, Value, kind_of

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")*") |
        (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?) |
        (?P<operator><=|>=|!=|<>|==|=|<|>) | (?P<mark>[(),]) | (?P<word>[^\W\d][\w.-]*)
    )""",
    re.VERBOSE,
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
        raise ValueError(
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
        self.depth = 0
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                start = place + len(text[place:]) - len(text[place:].lstrip())
                cure = " A text needs a closing quote." if text[start] in "'\"" else ""
                self._refuse(f"{text[start : start + 12]!r} is not understood.{cure}", start)
            assert found.lastgroup is not None
            kind, word = found.lastgroup, found[found.lastgroup]
            if kind == "word" and word.upper() in _RESERVED:
                kind, word = "reserved", word.upper()
            self.tokens.append((kind, word, found.start(found.lastgroup)))
            place = found.end()
        self.tokens.append(("end", "", len(text)))
        self.next = 0

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
        if self._take("reserved", "IS"):
            negated = self._take("reserved", "NOT")
            self._need("reserved", "NULL")
            return Not(Missing(key)) if negated else Missing(key)
        if self._take("reserved", "NOT"):
            return Not(self._membership(key))
        if self._peek()[0] == "operator":
            place = self._peek()[2]
            word = self._advance()
            operator: Any = {"==": "=", "<>": "!="}.get(word, word)
            value = self._value()
            if isinstance(value, bool) and operator not in ("=", "!="):
                self._refuse(f"true and false have no order: {operator} cannot compare them.", place)
            return Comparison(key, operator, value)
        return self._membership(key)

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
        self._advance()
        return word[1:-1].replace('""', '"') if kind == "quoted" else word

    def _value(self) -> Value:
        kind, word, place = self._peek()
        if kind == "text":
            self._advance()
            return word[1:-1].replace("''", "'")
        if kind == "number":
            self._advance()
            if not math.isfinite(float(word)):
                self._refuse(f"{word} is larger than numbers can be.", place)
            return float(word)
        if (kind, word) not in (("reserved", "TRUE"), ("reserved", "FALSE")):
            self._unexpected("a value: a number, true, false, or a text in single quotes")
        self._advance()
        return word == "TRUE"

    def _peek(self) -> tuple[str, str, int]:
        return self.tokens[self.next]

    def _advance(self) -> str:
        self.next += 1
        return self.tokens[self.next - 1][1]

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
        raise ValueError(f"where: {problem}\n  {self.text}\n  {' ' * place}^")
