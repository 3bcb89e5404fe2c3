"""Tables line by line: CSV, TSV, JSON lines and Parquet. A bad line is reported and left out."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from maxmatch.data.formats.columns import IMAGE_COLUMNS
from maxmatch.data.formats.lines import not_utf8, raw_lines
from maxmatch.data.problems import Problem, Report, give_up

_JSON_BEGINS = frozenset('"[{-0123456789tfn')

Lines = Iterator[tuple[int, dict[str, Any]]]


def json_lines(path: Path, report: Report) -> Lines:
    """The objects of a file that has one a line."""
    for number, line in enumerate(_text_lines(path, report), start=1):
        try:
            cells = json.loads(line.decode())
        except UnicodeDecodeError as error:
            report(not_utf8(path, number, error))
        except (ValueError, RecursionError) as error:
            if line.strip():
                what, cure = f"not a whole JSON object ({error})", "It may be cut short: write it again, or remove it."
                report(Problem(path, what, cure, line=number))
            else:
                report(_empty(path, number))
        else:
            if isinstance(cells, dict):
                yield number, cells
            else:
                what = f"expected a JSON object, {{…}}, found {line.decode().strip()[:40]}"
                report(Problem(path, what, "Write one object a line.", line=number))


def csv_lines(path: Path, report: Report, delimiter: str = ",") -> Lines:
    """The records of a file of fields separated by commas (or tabs), each with the line it begins in. A field may hold
    line breaks between quotes.
    """
    lines = _text_lines(path, report)
    names: list[str] | None = None
    for first, last, cells, error in _records(lines, delimiter):
        problem = _wrong(path, lines[first - 1 : last], first, cells, error, names)
        if names is None:
            if problem is not None:
                give_up(report, problem)
            names = [name.strip() for name in cells]
        elif problem is not None:
            report(problem)
        else:
            yield first, {name: cell for name, cell in zip(names, cells, strict=True) if name}


def parquet_lines(path: Path, report: Report) -> Lines:
    """The rows of a Parquet file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError(f"{path}: Parquet needs pyarrow. Run: pip install 'maxmatch[data]'") from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for column in file.schema_arrow:
                kinds = (pa.types.is_struct, pa.types.is_binary, pa.types.is_large_binary)
                if column.name.lower() in IMAGE_COLUMNS and any(holds(column.type) for holds in kinds):
                    what = f"the column {column.name!r} holds {column.type}, not the paths of pictures"
                    cure = "Load it with datasets.load_dataset, and give that to `huggingface.from_loaded`."
                    give_up(report, Problem(path, what, cure))
            for batch in file.iter_batches(batch_size=1024):
                for cells in batch.to_pylist():
                    number += 1
                    yield number, cells
    except (pa.ArrowException, OSError) as error:
        cure = "It may be cut short: copy or write it again."
        give_up(report, Problem(path, f"not a readable Parquet file ({error})", cure))


TABLES: dict[str, Callable[[Path, Report], Lines]] = {
    ".csv": csv_lines,
    ".tsv": partial(csv_lines, delimiter="\t"),
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".parquet": parquet_lines,
}


def cell_of(value: Any) -> str:
    """How a CSV file holds metadata: a text as it is, anything else, and a text that looks like it, as JSON."""
    if isinstance(value, str) and value and value_of(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def value_of(cell: str) -> Any:
    """The metadata in a cell of a CSV file: nothing if it is empty, and what is written exactly as JSON is taken so."""
    if not cell:
        return None
    if cell[0] not in _JSON_BEGINS:
        return cell
    try:
        value = json.loads(cell, parse_constant=_not_json)
        return value if json.dumps(value, ensure_ascii=False) == cell else cell
    except (ValueError, RecursionError):
        return cell


def _not_json(name: str) -> None:
    raise ValueError(name)  # Python would take NaN and Infinity


def _text_lines(path: Path, report: Report) -> list[bytes]:
    """The lines with their ends, less the empty lines at the end."""
    lines = [line for _, line in raw_lines(path, report)]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _records(lines: Sequence[bytes], delimiter: str) -> Iterator[tuple[int, int, list[str], csv.Error | None]]:
    """Records with their first and last line, or the error of a malformed one, after which it goes on with the line
    after that one's first: a quote left open would swallow the rest of the file.
    """
    start = 0
    while start < len(lines):
        texts = (lines[number].decode("utf-8", "surrogateescape") for number in range(start, len(lines)))
        reader = csv.reader(texts, delimiter=delimiter, strict=True)
        begun = start
        try:
            for cells in reader:
                yield begun + 1, start + reader.line_num, cells, None
                begun = start + reader.line_num
            return
        except csv.Error as error:
            yield begun + 1, begun + 1, [], error
            start = begun + 1


def _wrong(
    path: Path,
    lines: Sequence[bytes],
    first: int,
    cells: Sequence[str],
    error: csv.Error | None,
    names: Sequence[str] | None,
) -> Problem | None:
    """What is wrong with a record, if anything."""
    for number, line in enumerate(lines, start=first):
        try:
            line.decode()
        except UnicodeDecodeError as bad:
            return not_utf8(path, number, bad)
    if error is not None:
        what = f"a quote is left open, or stands within a field ({error})"
        return Problem(path, what, "Close it; within a field write it twice, and quote the field.", line=first)
    if not cells:
        return _empty(path, first)
    if names is None:
        twice = {name for name in cells if name.strip() and cells.count(name) > 1}
        if not twice:
            return None
        return Problem(path, f"the columns {', '.join(sorted(twice))} come twice", "Rename one of each.", line=first)
    if len(cells) != len(names):
        what = f"{len(cells)} fields, where the first line has {len(names)}"
        return Problem(path, what, "Quote a field that holds the separator.", line=first)
    return None


def _empty(path: Path, line: int) -> Problem:
    return Problem(path, "an empty line", "Remove it.", line=line)
