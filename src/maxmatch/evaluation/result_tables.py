"""Results as tables (text, Markdown, LaTeX, JSON) and as plain data for `--json`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, NamedTuple

from maxmatch.evaluation.metrics import LEVELS, Result
from maxmatch.evaluation.paper import ReportedRow
from maxmatch.evaluation.significance import Difference, Interval

Cell = str | int | float | bool | None
"""None is a cell that stays empty."""
Style = Literal["text", "markdown", "latex", "json"]


@dataclass(frozen=True)
class Column:
    """A column: its heading, the name of its values in JSON, and how its numbers are written.

    form: as of `format`, ".1f" for one decimal; without one, values stand as they are, to the left. Texts in a column
    that has one stand to the right, like its numbers. over: the heading above this one, which neighbours share.
    """

    heading: str
    name: str
    form: str = ""
    over: str = ""


@dataclass(frozen=True)
class Table:
    """Columns, rows of as many cells, and notes that stand below. rules: the rows that a line is drawn above."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    rules: Sequence[int] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a table of {len(self.columns)} columns got a row of {len(row)} cells: {list(row)}.")


def render(table: Table, style: Style = "text") -> str:
    """The table in one of the styles, without a line break at its end."""
    return _STYLES[style](table)


def as_text(table: Table) -> str:
    """For a terminal: columns of equal width, two spaces apart."""
    body = _written(table)
    widths = [
        max(len(text) for text in (column.heading, *cells))
        for column, cells in zip(table.columns, _across(body, len(table.columns)), strict=True)
    ]
    for over, places in _spans(table):  # a wide heading above makes room for itself
        room = sum(widths[place] for place in places) + 2 * (len(places) - 1)
        widths[places[-1]] += max(0, len(over) - room)
    line = "  ".join("-" * width for width in widths)
    lines = []
    if any(column.over for column in table.columns):
        above = []
        for over, places in _spans(table):
            room = sum(widths[place] for place in places) + 2 * (len(places) - 1)
            above.append(f"{over:^{room}}")
        lines.append("  ".join(above).rstrip())
    lines.append(_aligned([column.heading for column in table.columns], widths, table.columns))
    lines.append(line)
    for number, row in enumerate(body):
        if number in table.rules:
            lines.append(line)
        lines.append(_aligned(row, widths, table.columns))
    return "\n".join([*lines, *table.notes])


def as_markdown(table: Table) -> str:
    """For GitHub and its like. Markdown has one line of headings: the one above goes in front."""
    headings = [" ".join(filter(None, (column.over, column.heading))) for column in table.columns]
    marks = ["--:" if column.form else ":--" for column in table.columns]
    rows = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (headings, *_written(table))]
    lines = ["| " + " | ".join(row) + " |" for row in (rows[0], marks, *rows[1:])]
    notes = [line for note in table.notes for line in ("", note)]
    return "\n".join(lines + notes)


def as_latex(table: Table) -> str:
    r"""A `tabular` for the package booktabs, every text escaped."""
    marks = "".join("r" if column.form else "l" for column in table.columns)
    lines = [rf"\begin{{tabular}}{{{marks}}}", r"\toprule"]
    if any(column.over for column in table.columns):
        spans = _spans(table)
        above = [
            rf"\multicolumn{{{len(places)}}}{{c}}{{{escape_latex(over)}}}" if over else "" for over, places in spans
        ]
        lines.append(" & ".join(above) + r" \\")
        lines += [rf"\cmidrule(lr){{{places[0] + 1}-{places[-1] + 1}}}" for over, places in spans if over]
    lines.append(" & ".join(escape_latex(column.heading) for column in table.columns) + r" \\")
    lines.append(r"\midrule")
    for number, row in enumerate(_written(table)):
        if number in table.rules:
            lines.append(r"\midrule")
        lines.append(" & ".join(map(escape_latex, row)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines + [f"% {line}" for note in table.notes for line in note.splitlines()])


def as_json(table: Table) -> str:
    """A list of the rows, each by the names of its columns, numbers unrounded; empty cells are left out."""
    names = [column.name for column in table.columns]
    rows = [
        {name: cell for name, cell in zip(names, row, strict=True) if cell is not None and cell == cell}
        for row in table.rows
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False)


def escape_latex(text: str) -> str:
    """Plain text as LaTeX prints it."""
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


_ESCAPES = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "†": r"\textdagger{}",
    "…": r"\ldots{}",
    "\n": " ",
}
_STYLES: dict[Style, Callable[[Table], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "json": as_json,
}


def _written(table: Table) -> list[list[str]]:
    return [[_cell(cell, column.form) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]


def _cell(cell: Cell, form: str) -> str:
    if cell is None or cell != cell:  # no number is an empty cell too
        return ""
    return format(cell, form) if form and not isinstance(cell, str | bool) else str(cell)


def _across(body: list[list[str]], columns: int) -> list[list[str]]:
    return [[row[place] for row in body] for place in range(columns)]


def _spans(table: Table) -> list[tuple[str, list[int]]]:
    """The headings above, each with the places of the neighbours that share it; an empty one is shared by nobody."""
    keys = [(column.over, -1 if column.over else place) for place, column in enumerate(table.columns)]
    return [(key[0], list(places)) for key, places in groupby(range(len(keys)), key=lambda place: keys[place])]


def _aligned(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> str:
    parts = (
        f"{cell:>{width}}" if column.form else f"{cell:<{width}}"
        for cell, width, column in zip(cells, widths, columns, strict=True)
    )
    return "  ".join(parts).rstrip()


# Results of models: each with how sure it is; the paper's rows stand below ours.

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
class ResultLine:
    """A result and how sure it is, by the prefix of the protocol's figures."""

    result: Result
    intervals: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    against_first: Mapping[str, Difference] = field(default_factory=dict)
    """How its RSUM differs from that of the first line; empty for the first one itself."""


def recall_table(lines: Sequence[ResultLine], paper: Sequence[ReportedRow] = (), notes: Sequence[str] = ()) -> Table:
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
            row += _difference_cells(difference) if tested else []
            rows.append(row)
        reported = [row for row in paper if f"{prefix}rsum" in row.figures]
        rules += [len(rows)] if reported else []
        for theirs in reported:
            kind = "ensemble" if theirs.ensemble else "single"
            row = [f"paper: {theirs.method}", kind, theirs.group, *([GALLERIES[prefix]] if several else [])]
            row += [theirs.figures.get(f"{prefix}{column.name}") for column in _RECALLS]
            row.append(theirs.figures[f"{prefix}rsum"])
            rows.append(row + [None] * (len(columns) - len(row)))
    return Table(columns, rows, notes, rules[1:])


def _between(low: float, high: float) -> str:
    return f"{low:.1f} to {high:.1f}"


def _difference_cells(difference: Difference | None) -> list[Cell]:
    if difference is None:
        return [None, None]
    return [f"{difference.rsum:+.1f} ({_between(difference.low, difference.high)})", difference.p]


def rank_table(lines: Sequence[ResultLine]) -> Table:
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


def extended_table(lines: Sequence[ResultLine]) -> Table | None:
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


def as_data(lines: Sequence[ResultLine], paper: Sequence[ReportedRow] = (), **about: Any) -> dict[str, Any]:
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
        {"method": row.method, "backbones": row.group, "ensemble": row.ensemble, **row.figures} for row in paper
    ]
    return {**about, "results": results, **({"paper": reported} if paper else {})}


# Captions with certain words, and those without.

WORD_RECALLS = tuple(f"t2i_r{level}" for level in LEVELS)


@dataclass(frozen=True)
class CaptionRecalls:
    """Some captions as queries: how many, the share in per cent that found their image, and how sure that is."""

    captions: int
    recalls: Mapping[str, float]
    intervals: Mapping[str, Interval]


class Ratio(NamedTuple):
    """What part of a second model's R@10 a first one reaches, for the captions with the words."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ByWords:
    """A model's captions with any of the words, and those with none. ratio: of the first model's R@10 of the captions
    with the words to that of this one; None for the first one itself, and where this one finds nothing.
    """

    model: str
    similarity: str
    gallery: str
    met: CaptionRecalls
    others: CaptionRecalls
    ratio: Ratio | None


def words_table(found: Sequence[ByWords]) -> Table:
    """Captions with the words and without, R@10 with its interval; and the ratio of the first line to the others."""
    columns = [Column("model", "model"), Column("similarity", "similarity"), Column("images", "gallery")]
    for side, over in (("met", "text to image, with the words"), ("others", "without")):
        columns += [Column("captions", f"{side}_captions", ",.0f", over)]
        columns += [Column(f"R@{level}", f"{side}_t2i_r{level}", ".1f", over) for level in LEVELS]
        columns += [Column("95 %", f"{side}_interval", "s", over)]
    rows: list[list[Cell]] = []
    for one in found:
        row: list[Cell] = [one.model, one.similarity, one.gallery]
        for part in (one.met, one.others):
            interval = part.intervals.get(WORD_RECALLS[-1])
            row += [part.captions, *part.recalls.values()]
            row.append(None if interval is None else f"{interval.low:.1f} to {interval.high:.1f}")
        rows.append(row)
    return Table(columns, rows, [line for one in found if (line := _sentence(found[0].model, one))])


def _sentence(first: str, one: ByWords) -> str | None:
    if one.ratio is None:
        return None
    value, low, high = one.ratio
    sure = "" if low is None else f" (95 %: {low:.0%} to {high:.0%})"
    where = "" if one.gallery == "all" else f", {one.gallery}"
    return f"R@10 of the captions with the words: {first} has {value:.0%}{sure} of that of {one.model}{where}"


def words_data(found: Sequence[ByWords], words: Sequence[str]) -> dict[str, Any]:
    """Everything, unrounded, for `--json`."""

    def side(part: CaptionRecalls) -> dict[str, Any]:
        sure = {name: list(interval) for name, interval in part.intervals.items()}
        return {"captions": part.captions, **part.recalls, **({"intervals": sure} if sure else {})}

    results = [
        {
            "model": one.model,
            "similarity": one.similarity,
            "images": one.gallery,
            "with": side(one.met),
            "without": side(one.others),
            **({} if one.ratio is None else {"first_to_this_r10": one.ratio._asdict()}),
        }
        for one in found
    ]
    return {"words": sorted(words), "results": results}
