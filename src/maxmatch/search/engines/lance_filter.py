"""Metadata in a Lance table: a column for each key and kind of value, and filters as its SQL.

What a filter can see is stored twice: in the JSON text that is given back, and in a column `text_…`, `number_…` or
`boolean_…` of the key, null where the item has no such value. One key may so hold texts and numbers.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pyarrow as pa

from maxmatch.search.where import (
    Among,
    Begins,
    Comparison,
    Condition,
    Every,
    Kind,
    Missing,
    Not,
    Some,
    Value,
    kind_of,
)

_TYPES: dict[Kind, pa.DataType] = {"text": pa.string(), "number": pa.float64(), "boolean": pa.bool_()}
_PLAIN = re.compile("[a-z][a-z0-9_]*")
MOST_COLUMNS = 256


def column_of(kind: Kind, key: str) -> str:
    """The column's name. A key that SQL would not take as it is, is written in hexadecimal; none begins with 0."""
    return f"{kind}_{key if _PLAIN.fullmatch(key) else '0x' + key.encode().hex()}"


def metadata_columns(texts: Sequence[str]) -> dict[str, Any]:
    """The columns of some items, from their JSON texts: of each key and kind that any of them has."""
    values: dict[tuple[Kind, str], list[Value | None]] = {}
    for row, text in enumerate(texts):
        for key, value in json.loads(text).items() if text != "{}" else ():
            kind = kind_of(value)
            if kind is not None:
                column = values.setdefault((kind, key), [None] * len(texts))
                column[row] = float(value) if kind == "number" else value
    return {column_of(kind, key): pa.array(column, _TYPES[kind]) for (kind, key), column in values.items()}


def sql(condition: Condition, columns: Collection[str]) -> str:
    """The filter in SQL. Every part is true or false, never null: comparisons ask first whether there is a value."""
    match condition:
        case Not(inner):
            return f"(NOT {sql(inner, columns)})"
        case Every(parts):
            return "(" + " AND ".join(sql(part, columns) for part in parts) + ")"
        case Some(parts):
            return "(" + " OR ".join(sql(part, columns) for part in parts) + ")"
        case Missing(key):
            known = [column_of(kind, key) for kind in _TYPES if column_of(kind, key) in columns]
            return "(" + " AND ".join(f"{name} IS NULL" for name in known) + ")" if known else "true"
        case Begins(key, text):
            return _guarded(column_of("text", key), columns, f"starts_with({{}}, {literal(text)})")
        case Among(key, values):
            kind = kind_of(values[0])
            assert kind is not None
            return _guarded(column_of(kind, key), columns, f"{{}} IN ({literals(values)})")
        case Comparison(key, operator, value):
            kind = kind_of(value)
            assert kind is not None
            return _guarded(column_of(kind, key), columns, f"{{}} {operator} {literal(value)}")


def _guarded(column: str, columns: Collection[str], test: str) -> str:
    before, after = test.split("{}", 1)
    return f"({column} IS NOT NULL AND {before}{column}{after})" if column in columns else "false"


def literals(values: Iterable[Value]) -> str:
    """Values of a list."""
    return ", ".join(map(literal, values))


def literal(value: Value) -> str:
    """A value as SQL has it; a quote within a text is doubled, and nothing else has a meaning there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else f"CAST({value!r} AS DOUBLE)"
