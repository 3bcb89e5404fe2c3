"""Results as tables (text, Markdown, LaTeX) and as plain data for `--json`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from maxmatch.evaluation.measures import DEPTHS
from maxmatch.evaluation.metrics import GALLERIES, LEVELS
from maxmatch.evaluation.paper import ReportedRow
from maxmatch.evaluation.significance import ResultLine

Cell = str | int | float | bool | None
Style = Literal["text", "markdown", "latex"]


@dataclass(frozen=True)
class Column:
    """A column: its heading, the name of its cells in a row, and how its numbers are written.

    form: as of `format`, ".1f" for one decimal; without one, cells are aligned to the left. over: the heading above
    this one, which neighbours share.
    """

    heading: str
    name: str
    form: str = ""
    over: str = ""


@dataclass(frozen=True)
class Table:
    """Columns; rows, by the names of the columns: a cell that is missing, None or NaN stays empty; notes below.

    rules: the rows that a line is drawn above. title: stands above the table.
    """

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]
    notes: Sequence[str] = ()
    rules: Sequence[int] = ()
    title: str = ""


def filled(columns: Iterable[Column], rows: Sequence[Mapping[str, Cell]]) -> list[Column]:
    """The columns that some row has a cell for."""
    return [column for column in columns if any(row.get(column.name) is not None for row in rows)]


def render(table: Table, style: Style = "text") -> str:
    """The table in one of the styles, without a line break at its end."""
    return _STYLES[style](table)


def _as_text(table: Table) -> str:
    """For a terminal: columns of equal width, two spaces apart."""
    headings, body = [column.heading for column in table.columns], written(table)
    widths = [max(map(len, cells)) for cells in zip(headings, *body, strict=True)]
    above = []
    for over, places in _spans(table):
        room = sum(widths[place] for place in places) + 2 * (len(places) - 1)
        widths[places[-1]] += max(0, len(over) - room)  # a wide heading above makes room for itself
        above.append(f"{over:^{room}}")

    def line(cells: Sequence[str]) -> str:
        marks = (">" if column.form else "<" for column in table.columns)
        parts = zip(cells, marks, widths, strict=True)
        return "  ".join(f"{cell:{mark}{width}}" for cell, mark, width in parts).rstrip()

    rule = "  ".join("-" * width for width in widths)
    lines = [table.title] if table.title else []
    lines += ["  ".join(above).rstrip()] if any(column.over for column in table.columns) else []
    lines += [line(headings), rule]
    for number, row in enumerate(body):
        lines += [rule, line(row)] if number in table.rules else [line(row)]
    return "\n".join([*lines, *table.notes])


def _as_markdown(table: Table) -> str:
    """For GitHub and its like. Markdown has one line of headings: the one above goes in front."""
    headings = [" ".join(filter(None, (column.over, column.heading))) for column in table.columns]
    marks = ["--:" if column.form else ":--" for column in table.columns]
    rows = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (headings, *written(table))]
    lines = [f"## {table.title}", ""] if table.title else []
    lines += ["| " + " | ".join(row) + " |" for row in (rows[0], marks, *rows[1:])]
    notes = [line for note in table.notes for line in ("", note)]
    return "\n".join(lines + notes)


def _as_latex(table: Table) -> str:
    r"""A `tabular` for the package booktabs, every text escaped."""
    marks = "".join("r" if column.form else "l" for column in table.columns)
    lines = [f"% {table.title}"] if table.title else []
    lines += [rf"\begin{{tabular}}{{{marks}}}", r"\toprule"]
    if any(column.over for column in table.columns):
        spans = _spans(table)
        above = [rf"\multicolumn{{{len(places)}}}{{c}}{{{_escaped(over)}}}" if over else "" for over, places in spans]
        lines.append(" & ".join(above) + r" \\")
        lines += [rf"\cmidrule(lr){{{places[0] + 1}-{places[-1] + 1}}}" for over, places in spans if over]
    lines.append(" & ".join(_escaped(column.heading) for column in table.columns) + r" \\")
    lines.append(r"\midrule")
    for number, row in enumerate(written(table)):
        if number in table.rules:
            lines.append(r"\midrule")
        lines.append(" & ".join(map(_escaped, row)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines + [f"% {line}" for note in table.notes for line in note.splitlines()])


_STYLES: dict[Style, Callable[[Table], str]] = {"text": _as_text, "markdown": _as_markdown, "latex": _as_latex}
_ESCAPES = str.maketrans(
    {
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
)


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


def written(table: Table) -> list[list[str]]:
    """The cells of each row as they are shown."""
    return [[_cell(row.get(column.name), column.form) for column in table.columns] for row in table.rows]


def _cell(cell: Cell, form: str) -> str:
    if cell is None or cell != cell:
        return ""
    return format(cell, form) if form and not isinstance(cell, str | bool) else str(cell)


def _spans(table: Table) -> list[tuple[str, list[int]]]:
    """The headings above, each with the places of the neighbours that share it; an empty one is shared by nobody."""
    keys = [(column.over, -1 if column.over else place) for place, column in enumerate(table.columns)]
    return [(key[0], list(places)) for key, places in groupby(range(len(keys)), key=lambda place: keys[place])]


# Results of models: each with its intervals; the paper's rows below ours.

_WAYS = (("i2t", "image to text"), ("t2i", "text to image"))
_MODEL, _SIMILARITY = Column("model", "model"), Column("similarity", "similarity")
_GALLERY = Column("images", "gallery")
_RECALLS = [Column(f"R@{level}", f"{way}_r{level}", ".1f", over) for way, over in _WAYS for level in LEVELS]
_SURE = [
    Column("95 %", "interval", "s"),
    Column("to the first", "against_first", "s"),
    Column("p", "p", ".3g"),
]
_RANKS = [
    Column(heading, f"{way}_{name}", form, over)
    for way, over in _WAYS
    for heading, name, form in (("median", "median_rank", "g"), ("mean", "mean_rank", ".1f"), ("ties", "ties", ".0f"))
]
_COLLAPSE = [
    Column("image", "image_log_variance", ".2f", "log variance"),
    Column("text", "text_log_variance", ".2f", "log variance"),
    Column("slots used", "slots_used", ".0%"),
    Column("pairing stable", "pairing_stability", ".0%"),
]
ALL_ANSWERS = [
    Column(heading, f"{way}_{name}", ".1f", over)
    for way, over in (("i2t", "image to text: all captions"), ("t2i", "text to image: all images"))
    for heading, name in (
        ("mAP@R", "map_at_r"),
        ("R-P", "r_precision"),
        *((f"in {depth}", f"coverage_{depth}") for depth in DEPTHS),
    )
]
HARDEST = [
    Column(heading, f"{way}_hardest_{name}", form, f"{over}: hardest caption")
    for way, over in _WAYS
    for heading, name, form in (*((f"R@{n}", f"r{n}", ".1f") for n in LEVELS), ("median", "median_rank", "g"))
]
_EXTENDED = [
    Column(heading, f"{data}_{way}_{name}", ".1f", f"{title}, {over}")
    for data, title in (("cxc", "CxC"), ("eccv", "ECCV Caption"))
    for way, over in _WAYS
    for heading, name in (
        *((f"R@{level}", f"r{level}") for level in LEVELS),
        ("mAP@R", "map_at_r"),
        ("R-P", "rprecision"),
    )
]


def recall_table(lines: Sequence[ResultLine], paper: Sequence[ReportedRow] = ()) -> Table:
    """Recalls and RSUM; with intervals and tests, if they were made; the paper's rows below."""
    rows: list[Mapping[str, Cell]] = []
    rules = []
    for prefix in lines[0].result.galleries:
        theirs = [row for row in paper if f"{prefix}rsum" in row.figures]
        rules += [len(rows), len(rows) + len(lines)] if theirs else [len(rows)]
        rows += [{**_figures(line, prefix), **_sure(line, prefix)} for line in lines]
        rows += [
            {
                "model": f"paper: {row.method}",
                "kind": "ensemble" if row.ensemble else "single",
                "similarity": row.group,
                **_gallery(prefix),
                **_without(prefix, row.figures),
            }
            for row in theirs
        ]
    columns = [_MODEL, Column("kind", "kind"), _SIMILARITY, _GALLERY, *_RECALLS, Column("RSUM", "rsum", ".1f"), *_SURE]
    return Table(filled(columns, rows), rows, rules=rules[1:])


def rank_table(lines: Sequence[ResultLine]) -> Table:
    """Median and mean ranks, ties, and whether the sets collapse."""
    galleries = lines[0].result.galleries
    rows = [_figures(line, prefix) for prefix in galleries for line in lines]
    rules = [len(lines)] if len(galleries) > 1 else []
    return Table(filled([_MODEL, _SIMILARITY, _GALLERY, *_RANKS, *_COLLAPSE], rows), rows, rules=rules)


def captions_table(lines: Sequence[ResultLine]) -> Table | None:
    """All captions of an image, with the interval of mAP@R and the test of it; and the hardest of them."""
    galleries = [prefix for prefix in lines[0].result.galleries if f"{prefix}i2t_map_at_r" in lines[0].result.figures]
    rows = [{**_figures(line, prefix), **_sure(line, prefix, "i2t_map_at_r")} for prefix in galleries for line in lines]
    sure = [replace(column, over="i2t mAP@R") for column in _SURE]
    columns = filled([_MODEL, _SIMILARITY, _GALLERY, *ALL_ANSWERS, *sure, *HARDEST], rows)
    return Table(columns, rows, rules=[len(lines)] if len(galleries) > 1 else []) if rows else None


def sets_table(lines: Sequence[ResultLine]) -> Table | None:
    """What the sets of single models say about items, which slots make up true scores, and how large sets are."""
    rows = [
        _figures(line, "") for line in lines if any(name.endswith("_bytes_float32") for name in line.result.figures)
    ]
    known = dict.fromkeys(name for row in rows for name in row)

    def by_modality(end: str, over: str, form: str) -> list[Column]:
        return [Column(name.removesuffix(end), name, form, over) for name in known if name.endswith(end)]

    shares = [(name, *name.removesuffix("_share").split("_slot_")) for name in known if name.endswith("_share")]
    variation = [
        Column("found", "slot_variation", ".2f", "deciding slot varies"),
        Column("by chance", "slot_variation_chance", ".2f", "deciding slot varies"),
    ]
    columns = [
        *(_MODEL, _SIMILARITY),
        *by_modality("_content_log_variance", "content log variance", ".2f"),
        *(Column(slot, name, ".0%", f"share of {side} slots") for name, side, slot in shares),
        *variation,
        *by_modality("_bytes_float32", "bytes, float32", ",.0f"),
        *by_modality("_bytes_float16", "bytes, float16", ",.0f"),
    ]
    return Table(filled(columns, rows), rows) if rows else None


def extended_table(lines: Sequence[ResultLine]) -> Table | None:
    """CxC and ECCV Caption, if they were measured."""
    rows = [_figures(line, "") for line in lines if "cxc_rsum" in line.result.figures]
    return Table(filled([_MODEL, _SIMILARITY, *_EXTENDED], rows), rows) if rows else None


def pmrp_table(lines: Sequence[ResultLine]) -> Table | None:
    """PMRP both ways, if it was measured."""
    galleries = [prefix for prefix in lines[0].result.galleries if f"{prefix}i2t_pmrp" in lines[0].result.figures]
    rows = [_figures(line, prefix) for prefix in galleries for line in lines]
    pmrp = [Column("PMRP", f"{way}_pmrp", ".1f", over) for way, over in _WAYS]
    return Table(filled([_MODEL, _SIMILARITY, _GALLERY, *pmrp], rows), rows) if rows else None


def _figures(line: ResultLine, prefix: str) -> dict[str, Cell]:
    """A result as a row: its metrics of one protocol, and those that belong to no protocol."""
    one = line.result
    about = {"model": one.name, "kind": one.kind, "similarity": one.similarity, **_gallery(prefix)}
    return {**about, **one.figures, **_without(prefix, one.figures)}


def _gallery(prefix: str) -> dict[str, Cell]:
    return {"gallery": GALLERIES[prefix]} if prefix else {}


def _without(prefix: str, figures: Mapping[str, float]) -> dict[str, Cell]:
    return {name.removeprefix(prefix): value for name, value in figures.items() if name.startswith(prefix)}


def _sure(line: ResultLine, prefix: str, measure: str = "rsum") -> dict[str, Cell]:
    """The interval of a measure, and how it differs from that of the first line."""
    cells: dict[str, Cell] = {}
    if prefix in line.intervals:
        cells["interval"] = _between(*line.intervals[prefix][measure])
    if prefix in line.against_first:
        value, low, high, p = line.against_first[prefix][measure]
        cells |= {"against_first": f"{value:+.1f} ({_between(low, high)})", "p": p}
    return cells


def _between(low: float, high: float) -> str:
    return f"{low:.1f} to {high:.1f}"


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
                f"{prefix}{name}": {name: value, "low": low, "high": high, "p": p}
                for prefix, some in line.against_first.items()
                for name, (value, low, high, p) in some.items()
            }
        results.append(one)
    reported = [
        {"method": row.method, "backbones": row.group, "ensemble": row.ensemble, **row.figures} for row in paper
    ]
    return {**about, "results": results, **({"paper": reported} if paper else {})}


def words_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Captions with the words and without (`by_words`), and notes on the ratio of the first line of each similarity to
    the others of that similarity.
    """
    columns, notes = [_MODEL, _SIMILARITY, _GALLERY], []
    sides = (("with", "text to image, with the words"), ("without", "without"))
    for side, over in sides:
        columns.append(Column("captions", f"{side}_captions", ",.0f", over))
        columns += [Column(f"R@{level}", f"{side}_t2i_r{level}", ".1f", over) for level in LEVELS]
        columns.append(Column("95 %", f"{side}_interval", "s", over))
    several = len({one["similarity"] for one in found}) > 1
    rows, firsts = [], dict[str, str]()
    for one in found:
        row: dict[str, Cell] = {"model": one["model"], "similarity": one["similarity"], "gallery": one["images"]}
        firsts.setdefault(one["similarity"], one["model"])
        for side, _ in sides:
            row |= {f"{side}_{name}": value for name, value in one[side].items() if name != "intervals"}
            if "intervals" in one[side]:
                row[f"{side}_interval"] = _between(*one[side]["intervals"]["t2i_r10"])
        rows.append(row)
        if "first_to_this_r10" in one:
            ratio = one["first_to_this_r10"]
            sure = "" if ratio["low"] is None else f" (95 %: {ratio['low']:.0%} to {ratio['high']:.0%})"
            where = [one["similarity"]] if several else []
            where += [] if one["images"] == "all" else [one["images"]]
            first = f"R@10 of the captions with the words: {firsts[one['similarity']]} has {ratio['value']:.0%}{sure}"
            notes.append(", ".join([f"{first} of that of {one['model']}", *where]))
    return Table(columns, rows, notes)
