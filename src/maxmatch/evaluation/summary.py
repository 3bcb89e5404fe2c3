"""Results as tables for people and as plain data for machines; the paper's rows stand below ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from maxmatch.evaluation.protocol import Result
from maxmatch.evaluation.significance import Difference, Interval
from maxmatch.evaluation.tables import Cell, Column, Table

GALLERIES = {"": "all", "coco_1k_": "1K", "coco_5k_": "5K"}
_I2T, _T2I = "image to text", "text to image"
_RECALLS = [
    Column(f"R@{level}", f"{way}_r{level}", ".1f", over)
    for way, over in (("i2t", _I2T), ("t2i", _T2I))
    for level in (1, 5, 10)
]
_RANKS = [
    Column(heading, f"{way}_{name}", form, over)
    for way, over in (("i2t", _I2T), ("t2i", _T2I))
    for heading, name, form in (("median", "median_rank", "g"), ("mean", "mean_rank", ".1f"), ("ties", "ties", ".0f"))
]
_SETS = [
    Column("image", "image_log_variance", ".2f", "log variance"),
    Column("text", "text_log_variance", ".2f", "log variance"),
    Column("slots used", "slots_used", ".0%"),
    Column("pairing stable", "pairing_stability", ".0%"),
]
_MORE = [
    Column("R@1", "{}_r1", ".1f"),
    Column("R@5", "{}_r5", ".1f"),
    Column("R@10", "{}_r10", ".1f"),
    Column("mAP@R", "{}_map_at_r", ".1f"),
    Column("R-P", "{}_rprecision", ".1f"),
]


@dataclass(frozen=True)
class Line:
    """A result and how sure it is, by the prefix of the protocol's figures."""

    result: Result
    intervals: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    against_first: Mapping[str, Difference] = field(default_factory=dict)
    """How its RSUM differs from that of the first line; empty for the first one itself."""


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's table beside ours."""

    method: str
    backbones: str
    ensemble: bool
    figures: Mapping[str, float]


def recall_table(lines: Sequence[Line], paper: Sequence[PaperRow] = (), notes: Sequence[str] = ()) -> Table:
    """Recalls and RSUM; with intervals and tests, where they were made; the paper's rows below."""
    head = [Column("model", "model"), Column("kind", "kind"), Column("similarity", "similarity")]
    prefixes = list(lines[0].result.galleries)
    several, sure = len(prefixes) > 1, any(line.intervals for line in lines)
    tested = any(line.against_first for line in lines)
    columns = [*head, *([Column("images", "gallery")] if several else []), *_RECALLS, Column("RSUM", "rsum", ".1f")]
    columns += [Column("95 %", "rsum_interval", "s")] if sure else []
    columns += [Column("to the first", "against_first", "s"), Column("p", "p", ".3g")] if tested else []
    rows: list[list[Cell]] = []
    rules = []
    for prefix in prefixes:
        rules.append(len(rows))
        for line in lines:
            result = line.result
            row: list[Cell] = [result.name, result.kind, result.similarity]
            row += [GALLERIES[prefix]] if several else []
            row += [result.figures[f"{prefix}{column.name}"] for column in _RECALLS]
            row.append(result.figures[f"{prefix}rsum"])
            interval, difference = line.intervals.get(prefix), line.against_first.get(prefix)
            row += [None if interval is None else _between(*interval["rsum"])] if sure else []
            row += _said(difference) if tested else []
            rows.append(row)
        shown = [row for row in paper if f"{prefix}rsum" in row.figures]
        rules += [len(rows)] if shown else []
        for theirs in shown:
            kind = "ensemble" if theirs.ensemble else "single"
            row = [f"paper: {theirs.method}", kind, theirs.backbones, *([GALLERIES[prefix]] if several else [])]
            row += [theirs.figures.get(f"{prefix}{column.name}") for column in _RECALLS]
            row.append(theirs.figures[f"{prefix}rsum"])
            rows.append(row + [None] * (len(columns) - len(row)))
    return Table(columns, rows, notes, rules[1:])


def _between(low: float, high: float) -> str:
    return f"{low:.1f} to {high:.1f}"


def _said(difference: Difference | None) -> list[Cell]:
    if difference is None:
        return [None, None]
    return [f"{difference.rsum:+.1f} ({_between(difference.low, difference.high)})", difference.p]


def rank_table(lines: Sequence[Line]) -> Table:
    """Median and mean ranks, ties, and whether the sets collapse."""
    prefixes = list(lines[0].result.galleries)
    several = len(prefixes) > 1
    head = [Column("model", "model"), Column("similarity", "similarity")]
    columns = [*head, *([Column("images", "gallery")] if several else []), *_RANKS, *_SETS]
    rows: list[list[Cell]] = []
    for prefix in prefixes:
        for line in lines:
            result = line.result
            row: list[Cell] = [result.name, result.similarity, *([GALLERIES[prefix]] if several else [])]
            row += [result.figures[f"{prefix}{column.name}"] for column in _RANKS]
            rows.append(row + [result.figures.get(column.name) for column in _SETS])
    return Table(columns, rows, rules=[len(lines)] if several else [])


def extended_table(lines: Sequence[Line]) -> Table | None:
    """CxC and ECCV Caption, where they were measured."""
    measured = [line for line in lines if "cxc_rsum" in line.result.figures]
    if not measured:
        return None
    columns = [Column("model", "model"), Column("similarity", "similarity")]
    rows: list[list[Cell]] = [[line.result.name, line.result.similarity] for line in measured]
    for data, title in (("cxc", "CxC"), ("eccv", "ECCV Caption")):
        for way, over in (("i2t", _I2T), ("t2i", _T2I)):
            for column in _MORE:
                name = column.name.format(f"{data}_{way}")
                if name in measured[0].result.figures:
                    columns.append(Column(column.heading, name, column.form, f"{title}, {over}"))
                    for row, line in zip(rows, measured, strict=True):
                        row.append(line.result.figures[name])
    return Table(columns, rows)


def as_data(lines: Sequence[Line], paper: Sequence[PaperRow] = (), **about: Any) -> dict[str, Any]:
    """Everything, unrounded, for `--json`."""
    results = []
    for line in lines:
        result = line.result
        one: dict[str, Any] = {
            "model": result.name,
            "kind": result.kind,
            "members": result.members,
            "similarity": result.similarity,
            **result.figures,
        }
        if line.intervals:
            one["intervals"] = {
                f"{prefix}{name}": list(interval)
                for prefix, some in line.intervals.items()
                for name, interval in some.items()
            }
        if line.against_first:
            one["against_first"] = {
                f"{prefix}rsum": difference._asdict() for prefix, difference in line.against_first.items()
            }
        results.append(one)
    reported = [
        {"method": row.method, "backbones": row.backbones, "ensemble": row.ensemble, **row.figures} for row in paper
    ]
    return {**about, "results": results, **({"paper": reported} if paper else {})}
