"""Rows into tables: CSV, TSV, JSON lines and Parquet. What is not there, and None, is an empty cell."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from maxmatch.data.formats.table_files import cell_of
from maxmatch.data.formats.writing import plain

if TYPE_CHECKING:
    import pyarrow as pa

Rows = Sequence[Mapping[str, Any]]


def column_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """All columns of these rows, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def write_csv(file: BinaryIO, rows: Rows, delimiter: str = ",") -> None:
    """Fields separated by commas (or tabs), quoted where they have to be. Metadata that is no text is JSON."""
    names = column_names(rows)
    special = re.compile(rf'[{delimiter}"\r\n]')

    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"' if special.search(cell) else cell

    def field(name: str, value: Any) -> str:
        if value is None:
            return ""
        return quoted(cell_of(_plain(value)) if "." in name else value)

    file.write((delimiter.join(map(quoted, names)) + "\n").encode())
    for row in rows:
        file.write((delimiter.join(field(name, row.get(name)) for name in names) + "\n").encode())


def write_jsonl(file: BinaryIO, rows: Rows) -> None:
    """One JSON object a line."""
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False, default=plain).encode() + b"\n")


def write_parquet(file: BinaryIO, rows: Rows) -> None:
    """A Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    columns = {name: arrow_column(name, [row.get(name) for row in rows]) for name in column_names(rows)}
    parquet.write_table(pa.table(columns), file)


def arrow_column(name: str, values: Sequence[Any]) -> "pa.Array[Any]":
    """These values as a column of one type, if there is one that keeps them as they are."""
    import pyarrow as pa

    values = [_plain(value) for value in values]
    try:
        column: pa.Array[Any] = pa.array(values)
        if column.to_pylist() == values:
            return column
    except (pa.ArrowException, OverflowError):
        pass
    kinds = ", ".join(sorted({type(value).__name__ for value in values}))
    raise ValueError(
        f"the column {name!r} holds values of different kinds ({kinds}), which Parquet and Arrow do not. "
        "Write a table of the kind 'csv' or 'jsonl'."
    )


def _plain(value: Any) -> Any:
    """Without numpy's numbers and arrays."""
    return json.loads(json.dumps(value, default=plain)) if not isinstance(value, str | int | float | None) else value


WRITERS: dict[str, Callable[[BinaryIO, Rows], None]] = {
    "csv": write_csv,
    "tsv": partial(write_csv, delimiter="\t"),
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}
