"""A table as a value, and as text for people, Markdown, LaTeX and JSON. No torch here."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

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
