"""Lance tables on the disk: checksums, errors a person can act on, metadata columns and filters as SQL."""

import errno
import json
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from maxmatch.core.files import sync, whole
from maxmatch.search.filters import (
    Among,
    Begins,
    Comparison,
    Condition,
    Every,
    Missing,
    Not,
    Some,
    Value,
    ValueKind,
    kind_of,
)
from maxmatch.search.index_folder import TABLE, IndexFolderError, cure_of

# The files of a Lance table on the disk: synced when written, and a list of their checksums.
#
# Lance's files never change once they are written, but carry no checksums, and its errors seldom say which file they
# mean. `items.lance.sums` has a line for each: size, CRC-32 and name. It is only ever used to find what was damaged.

_KINDS = ("data/*.lance", "_deletions/*", "_indices/*/*", "_versions/*.manifest")
_READ_BYTES = 2**20


def put_on_disk(table: Path) -> None:
    """Wait until every file that is not yet in the list is on the disk, then add it to the list."""
    known = _listed(table)
    new = [path for path in _files(table) if _name(table, path) not in known]
    for path in new:
        sync(path)
    hint = table / "_versions" / "latest_version_hint.json"  # the only file that changes; it can be done without
    for path in {hint, table, table.parent, *(path.parent for path in new), *(path.parent.parent for path in new)}:
        if path.exists():
            sync(path)
    with _list_of(table).open("ab") as file:
        for path in new:
            file.write(_line(table, path).encode())
        file.flush()
    sync(_list_of(table))


def forget_removed(table: Path) -> None:
    """Take files that are no longer there off the list."""
    listed = _listed(table)
    with whole(_list_of(table)) as file:
        for name, (size, checksum) in listed.items():
            if (table / name).exists():
                file.write(f"{size} {checksum:08x} {name}\n".encode())


def damaged(table: Path, thorough: bool = True) -> list[Path]:
    """The files whose size, or (thorough) content, is not what was written."""
    wrong = []
    for name, (size, checksum) in _listed(table).items():
        path = table / name
        if path.exists() and (path.stat().st_size != size or (thorough and _checksum(path) != checksum)):
            wrong.append(path)
    return wrong


def bytes_on_disk(table: Path) -> int:
    """What the table takes. What another process removes meanwhile takes nothing."""
    taken = 0
    for path in table.rglob("*"):
        with suppress(FileNotFoundError):
            taken += path.stat().st_size if path.is_file() else 0
    return taken


def _list_of(table: Path) -> Path:
    return table.with_name(f"{table.name}.sums")


def _files(table: Path) -> list[Path]:
    return [path for pattern in _KINDS for path in table.glob(pattern) if path.is_file()]


def _name(table: Path, path: Path) -> str:
    return path.relative_to(table).as_posix()


def _listed(table: Path) -> dict[str, tuple[int, int]]:
    path = _list_of(table)
    found = {}
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        parts = line.rstrip("\n").split(" ", 2)
        if line.endswith("\n") and len(parts) == 3:  # else it was being written when the process was killed
            found[parts[2]] = int(parts[0]), int(parts[1], 16)
    return found


def _line(table: Path, path: Path) -> str:
    return f"{path.stat().st_size} {_checksum(path):08x} {_name(table, path)}\n"


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            value = zlib.crc32(part, value)
    return value


# LanceDB's errors as a person can act on them: what is full, what is damaged.

# LanceDB raises RuntimeError, OSError and ValueError alike, with the cause in the text.
_RAISED = (RuntimeError, OSError, ValueError)
_SYSTEM = re.compile(r"os error (\d+)")


@contextmanager
def storing(folder: Path) -> Iterator[None]:
    """A write that the system refuses becomes an OSError that names the folder."""
    try:
        yield
    except _RAISED as error:
        found = _SYSTEM.search(str(error))
        if found is None and damaged(folder / TABLE):
            raise _damage(folder / TABLE, error) from error
        if found is None and not isinstance(error, OSError):
            raise
        code = int(found[1]) if found else error.errno or errno.EIO  # type: ignore[union-attr]
        raise OSError(
            code,
            f"{folder}: could not be written ({_short(error)}). Nothing was changed. Free some space or permit it.",
        ) from error


@contextmanager
def reading(table: Path) -> Iterator[None]:
    """What cannot be read becomes a refusal that names the file."""
    try:
        yield
    except IndexFolderError:
        raise
    except _RAISED as error:
        found = _SYSTEM.search(str(error))
        if found is not None and int(found[1]) != errno.ENOENT:  # the files may be whole
            raise OSError(int(found[1]), f"{table}: cannot be read ({_short(error)}).") from error
        raise _damage(table, error) from error


def _damage(table: Path, error: Exception) -> IndexFolderError:
    wrong = damaged(table, thorough=False) or damaged(table) or [table]
    names = ", ".join(map(str, wrong))
    return IndexFolderError(f"{names}: damaged ({_short(error)}). {cure_of(table.parent)}")


def _short(error: Exception) -> str:
    """Without the places in Lance's source."""
    return re.sub(r", [^,]*\.rs:\d+:\d+", "", str(error)).splitlines()[0][:300]


# Metadata in a Lance table: a column for each key and kind of value, and filters as its SQL.
#
# What a filter can see is stored twice: in the JSON text that is given back, and in a column `text_…`, `number_…` or
# `boolean_…` of the key, null where the item has no such value. One key may so hold texts and numbers.

_TYPES: dict[ValueKind, pa.DataType] = {"text": pa.string(), "number": pa.float64(), "boolean": pa.bool_()}
_PLAIN = re.compile("[a-z][a-z0-9_]*")
MOST_COLUMNS = 256


def column_of(kind: ValueKind, key: str) -> str:
    """The column's name. A key that SQL would not take as it is, is written in hexadecimal; none begins with 0."""
    return f"{kind}_{key if _PLAIN.fullmatch(key) else '0x' + key.encode().hex()}"


def metadata_columns(texts: Sequence[str]) -> dict[str, Any]:
    """The columns of some items, from their JSON texts: of each key and kind that any of them has."""
    values: dict[tuple[ValueKind, str], list[Value | None]] = {}
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
