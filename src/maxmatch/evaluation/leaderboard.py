"""A file of results, one JSON object per line: appended to by every evaluation, shown as a table by `maxmatch results`.

Each line says what was measured (the model's identity), on what (a digest of the items), and with which versions.
Results of different data are never put into one table.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch import __version__
from maxmatch.core.array_checks import UsageError
from maxmatch.core.files import append_line
from maxmatch.evaluation.encoding import EncodedSplit, ModelSource, vector_files
from maxmatch.evaluation.metrics import LEVELS
from maxmatch.evaluation.result_tables import Cell, Column, Style, Table, filled, render

FILE = "results.jsonl"
FORMAT, VERSION = "maxmatch-results", 1
_VERSIONS = ("torch", "transformers", "numpy", "sentence-transformers")
_RSUMS = ("coco_5k_rsum", "rsum")
_BLOCK = 2**22


def data_digest(encoded: EncodedSplit, captions: Sequence[str] | None = None) -> str:
    """A hash of what was measured: the ids of all items, which belong together, and the captions themselves.

    Pictures count by their ids, so that a model of pixels and one of features of the same pictures can be compared.
    """
    digest = hashlib.sha256()
    for name in sorted(encoded.groups):
        groups = np.unique(encoded.groups[name].cpu().numpy(), return_inverse=True)[1]
        digest.update(f"{name} {len(groups)}\n".encode() + groups.astype("<i8").tobytes())
        for one in encoded.ids.get(name, ()):
            digest.update(f"{one}\n".encode())
    for one in captions or ():
        digest.update(f"{one}\n".encode())
    return digest.hexdigest()


def file_hash(*paths: Path) -> str:
    """A hash of what files hold."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def identity_of(source: ModelSource, encoded: EncodedSplit) -> str:
    """What tells a model from all others: the hash that was noted when it encoded, else that of its files."""
    if "identity" in encoded.notes:
        return str(encoded.notes["identity"])
    place = Path(source.path).expanduser()
    if source.kind == "vectors":
        return file_hash(*vector_files(source))
    if place.is_dir():
        return file_hash(*sorted(one for one in place.rglob("*") if one.is_file()))
    return file_hash(place) if place.is_file() else source.path


def versions() -> dict[str, str]:
    """Of Python, this package and what it computes with."""
    found = {"python": platform.python_version(), "maxmatch": __version__}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Record:
    """One result. data: path and split, as they were given; digest, images, captions. protocol: "plain", "coco" or the
    name of a suite.
    """

    model: str
    identity: str
    similarity: str
    data: Mapping[str, Any]
    protocol: str
    figures: Mapping[str, float]
    versions: Mapping[str, str]
    time: str

    @property
    def what(self) -> tuple[str, str]:
        """What was measured on: results are compared only where this is the same."""
        return str(self.data["digest"]), self.protocol

    def describe(self) -> str:
        """The data in words."""
        counts = [f"{self.data[key]:,} {key}" for key in ("images", "captions") if key in self.data]
        where = [str(self.data[key]) for key in ("path", "split") if self.data.get(key)]
        return ", ".join([*where, *counts, self.protocol, f"digest {self.data['digest'][:12]}"])


def new_record(
    model: str, identity: str, similarity: str, data: Mapping[str, Any], protocol: str, figures: Mapping[str, float]
) -> Record:
    """A result of now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    numbers = {name: float(value) for name, value in figures.items()}
    return Record(model, identity, similarity, dict(data), protocol, numbers, versions(), now)


def append_record(path: str | Path, record: Record) -> None:
    """Append a result to a file; safe against a kill at any moment, and for several processes at once."""
    line = json.dumps({"format": FORMAT, "version": VERSION, **vars(record)}, ensure_ascii=False, allow_nan=False)
    append_line(Path(path).expanduser(), line)


def read_records(path: str | Path, say: Callable[[str], object] = print) -> list[Record]:
    """The results of a file. A line that cannot be read is reported and left out."""
    path = Path(path).expanduser()
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: no such file. Write one with `maxmatch evaluate … --results {path}`."
        ) from None
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']!r}")
            if found["version"] != VERSION:
                raise ValueError(f"version {found['version']}, while this MaxMatch reads {VERSION}")
            record = Record(**{name: found[name] for name in Record.__dataclass_fields__})
            record.describe()
        except (ValueError, TypeError, KeyError) as error:
            say(f"{path}:{number}: not a result, left out ({type(error).__name__}: {error})")
            continue
        records.append(record)
    return records


def _main_figure(record: Record) -> float:
    known = [record.figures[name] for name in (*_RSUMS, *record.figures) if name in record.figures]
    return known[0] if known else float("nan")


def result_tables(records: Sequence[Record]) -> list[Table]:
    """A table for each data set and protocol, best first. The number of a row is its place in the file."""
    tables = []
    for what in dict.fromkeys(record.what for record in records):
        mine = [(number, one) for number, one in enumerate(records, start=1) if one.what == what]
        mine.sort(key=lambda entry: -_main_figure(entry[1]))
        rows: list[dict[str, Cell]] = [
            {
                "number": number,
                "model": one.model,
                "similarity": one.similarity,
                "identity": one.identity[:12],
                "time": one.time[:16].replace("T", " "),
                "maxmatch": one.versions.get("maxmatch", ""),
                **one.figures,
            }
            for number, one in mine
        ]
        columns = [
            Column("#", "number", ".0f"),
            Column("model", "model"),
            Column("similarity", "similarity"),
            *_columns(mine[0][1]),
            Column("identity", "identity"),
            Column("measured", "time"),
            Column("maxmatch", "maxmatch"),
        ]
        tables.append(Table(filled(columns, rows), rows, title=mine[0][1].describe()))
    return tables


def _columns(record: Record) -> list[Column]:
    """Recalls and RSUM, with those of COCO's other answers where they are known; or the figures of a suite."""
    for prefix in ("coco_5k_", ""):
        if f"{prefix}rsum" in record.figures:
            recalls = [
                Column(f"R@{level}", f"{prefix}{way}_r{level}", ".1f", over)
                for way, over in (("i2t", "image to text"), ("t2i", "text to image"))
                for level in LEVELS
            ]
            more = [
                Column("CxC RSUM", "cxc_rsum", ".1f"),
                *(Column("mAP@R", f"eccv_{way}_map_at_r", ".1f", "ECCV Caption") for way in ("i2t", "t2i")),
            ]
            return [*recalls, Column("RSUM", f"{prefix}rsum", ".1f"), *more]
    return [Column(name.replace("_", " "), name, ".1f") for name in list(record.figures)[:8]]


def compare_records(records: Sequence[Record], numbers: Sequence[int]) -> Table:
    """Two results or more, figure by figure, and how much each differs from the first.

    UsageError if they were not measured on the same data by the same protocol. Whether a difference is more than
    chance takes the ranks of all queries: `maxmatch evaluate` with both models.
    """
    for number in numbers:
        if not 1 <= number <= len(records):
            raise UsageError(f"compare: expected numbers from 1 to {len(records)}, got {number}.")
    if len(numbers) < 2:
        raise UsageError("compare: takes two results or more: --compare 1 --compare 2.")
    chosen = [records[number - 1] for number in numbers]
    first, *others = chosen
    for number, other in zip(numbers[1:], others, strict=True):
        if other.what != first.what:
            raise UsageError(
                f"compare: {numbers[0]} and {number} were not measured on the same data: {first.describe()}; "
                f"{other.describe()}. Evaluate both on one data set."
            )
    shared = [name for name in first.figures if all(name in other.figures for other in others)]
    columns = [Column("figure", "figure"), Column(first.model, "0", ".2f")]
    rows: list[dict[str, Cell]] = [{"figure": name, "0": first.figures[name]} for name in shared]
    for place, other in enumerate(others, start=1):
        columns += [Column(other.model, str(place), ".2f"), Column("difference", f"d{place}", "+.2f")]
        for row, name in zip(rows, shared, strict=True):
            row |= {str(place): other.figures[name], f"d{place}": other.figures[name] - first.figures[name]}
    note = "whether a difference is more than chance: maxmatch evaluate MODEL MODEL DATA"
    return Table(columns, rows, [note], title=first.describe())


def render_results(records: Sequence[Record], style: Style = "text") -> str:
    """All tables as text, Markdown or LaTeX."""
    return "\n\n".join(render(table, style) for table in result_tables(records))
