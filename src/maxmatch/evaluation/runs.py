"""Several models, ensembles and similarities on one split: measured, compared, and printed beside the paper's rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from maxmatch.evaluation.metrics import (
    FOLD_SIZE,
    IMAGE_TEXT,
    LEVELS,
    MAX_MEMORY,
    EvaluatedModel,
    ModalityPair,
    NotCoco,
    ProtocolName,
    Result,
    SearchRanks,
    check_members,
    chosen,
    evaluate,
    extended,
    load_metrics,
    scores_of,
)
from maxmatch.evaluation.paper import OURS, ReportedRow, ReportedTable, tables
from maxmatch.evaluation.result_tables import Cell, Column, Table
from maxmatch.evaluation.significance import Difference, Interval, Sums, intervals, paired_test, resampled

# Which of the paper's rows stand beside a result.

_BACKBONES = {  # by a part of a recipe's name
    "region_bigru": "Faster R-CNN + Bi-GRU",
    "region_bert": "Faster R-CNN + BERT",
    "resnet152_bigru": "Resnet152 + Bi-GRU",
}
_SIZES = {"flickr30k": 1000, "coco": 5000}
_COMPARED = (OURS, "Set Div")


def paper_rows(
    label: str | None, names: Iterable[str], images: int, split: str | None = None
) -> tuple[str, Sequence[ReportedRow]] | None:
    """The label of a table and the rows to show of it; None where there is nothing to compare with.

    label: as in the paper, "none" for no table; without one, it is seen from the names of recipes and data
    (f30k_region_bigru, …/coco), from the split, where it is known, and from the number of images: it must be the test
    split. Where a name tells
    the backbones, the rows with these are shown; else MaxMatch and Set Div with any.
    """
    if label == "none":
        return None
    said = " ".join(names).lower().replace("f30k", "flickr30k")
    if label is None:
        label = _recognised(said, images) if split is None or split.startswith("test") else None
        if label is None:
            return None
    table = _table(label)
    groups = [group for part, group in _BACKBONES.items() if part in said]
    shown = [row for row in table.rows if row.group in groups]
    if not shown:
        named = [row for row in table.rows if row.method in _COMPARED]
        shown = named or list(table.rows)
    return table.label, shown


def _table(label: str) -> ReportedTable:
    known = tables()
    if label not in known:
        raise ValueError(f"--paper: expected one of {', '.join(known)}, or none; got {label!r}.")
    return known[label]


def _recognised(said: str, images: int) -> str | None:
    """The table of the first known data among the names."""
    for data, size in _SIZES.items():
        if data in said and images == size:
            if "resnext" in said:
                return "tab:resnext"
            if "pvse" in said and data == "flickr30k":
                return "tab:PVSE"
            return {"flickr30k": "table:flickr30k", "coco": "table:mscoco"}[data]
    return None


# Results as tables for people and as plain data for machines; the paper's rows stand below ours.

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


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's table beside ours."""

    method: str
    backbones: str
    ensemble: bool
    figures: Mapping[str, float]


def recall_table(lines: Sequence[ResultLine], paper: Sequence[PaperRow] = (), notes: Sequence[str] = ()) -> Table:
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


def as_data(lines: Sequence[ResultLine], paper: Sequence[PaperRow] = (), **about: Any) -> dict[str, Any]:
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


# Several models, ensembles and similarities on one split: each measured, and compared with the first.

SEED = 0
"""Of what is drawn for intervals and tests, so that a result has the same ones every time."""


def measure(
    teams: Sequence[Sequence[EvaluatedModel]],
    pair: ModalityPair = IMAGE_TEXT,
    protocol: ProtocolName = "auto",
    draws: int = 1000,
    max_memory: int = MAX_MEMORY,
    fold_size: int = FOLD_SIZE,
) -> tuple[list[ResultLine], list[str]]:
    """A line for each team, of one model or of an ensemble, with intervals and a test against the first; and notes.

    draws: of images, for both; 0 for none. All teams must hold the same items.
    """
    first = teams[0][0]
    check_members([first, *(member for team in teams for member in team)], pair)
    size = first.encoded.notes.get("groups")
    coco = chosen(protocol, first.encoded.groups[pair[0]], fold_size, size) == "coco"
    metrics, notes = _coco_metrics() if coco and pair == IMAGE_TEXT else (None, [])
    results = []
    for team in teams:
        scores = scores_of(team, pair, max_memory)
        result = evaluate(team, pair=pair, protocol=protocol, scores=scores, fold_size=fold_size)
        if metrics is not None:
            try:
                images, captions = (first.encoded.ids.get(name, ()) for name in pair)
                more = extended(scores, images, captions, metrics)
                result = replace(result, figures={**result.figures, **more})
            except NotCoco as error:
                metrics, notes = None, [f"CxC and ECCV Caption were not measured: {error}"]
        results.append(result)
        del scores  # before the next ones are made: one matrix is what is promised
    return [_line(result, None if n == 0 else results[0], draws) for n, result in enumerate(results)], notes


def _coco_metrics() -> tuple[Any, list[str]]:
    try:
        return load_metrics(), []
    except ImportError as error:
        return None, [str(error)]


def _line(result: Result, first: Result | None, draws: int) -> ResultLine:
    if not draws:
        return ResultLine(result)
    sure = {prefix: intervals(some, draws, np.random.default_rng(SEED)) for prefix, some in result.galleries.items()}
    if first is None:
        return ResultLine(result, sure)
    differences = {
        prefix: paired_test(first.galleries[prefix], some, draws, np.random.default_rng(SEED))
        for prefix, some in result.galleries.items()
    }
    return ResultLine(result, sure, differences)


# How well captions with certain words find their image, beside those without: of words that a model has never seen.

_WORD_RECALLS = tuple(f"t2i_r{level}" for level in LEVELS)
_SEED = 0  # so that a result has the same intervals every time


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


def by_words(lines: Sequence[ResultLine], met: np.ndarray, draws: int = 1000) -> list[ByWords]:
    """Each line's figures for the captions with the words (met: True, one for each caption of the split) and without.

    With folds, a caption counts where it is a query: all captions of all folds together. Intervals are by bootstrap
    over the images that have such captions; draws = 0 for none.
    """
    for wanted, said in ((met, "has any"), (~met, "has none")):
        if not wanted.any():
            raise ValueError(f"words: no caption of the split {said} of the words: there is nothing to compare.")
    found = []
    for prefix in lines[0].result.galleries:
        first = lines[0].result.galleries[prefix]
        for number, line in enumerate(lines):
            galleries = line.result.galleries[prefix]
            having, others = (_side(galleries, wanted, draws) for wanted in (met, ~met))
            ratio = _ratio(first, galleries, met, draws) if number else None
            result = line.result
            found.append(ByWords(result.name, result.similarity, GALLERIES[prefix], having, others, ratio))
    return found


def _side(galleries: Sequence[SearchRanks], wanted: np.ndarray, draws: int) -> CaptionRecalls:
    sums = _sums(galleries, wanted)
    recalls = 100 * sums.found.sum(0) / sums.asked.sum(0)
    sure = {}
    if draws:
        drawn = resampled([sums], draws, np.random.default_rng(_SEED))
        sure = {name: _interval(drawn[:, n]) for n, name in enumerate(_WORD_RECALLS)}
    return CaptionRecalls(int(wanted.sum()), {name: float(recalls[n]) for n, name in enumerate(_WORD_RECALLS)}, sure)


def _ratio(first: Sequence[SearchRanks], second: Sequence[SearchRanks], met: np.ndarray, draws: int) -> Ratio | None:
    """Both models are measured on the same drawn images. Drawings in which the second finds nothing are left out."""
    one, other = (_sums(galleries, met) for galleries in (first, second))
    last = len(LEVELS) - 1
    hits = one.found[:, last].sum(), other.found[:, last].sum()
    if not hits[1]:
        return None
    if not draws:
        return Ratio(float(hits[0] / hits[1]), None, None)
    both = Sums(np.stack([one.found[:, last], other.found[:, last]], 1), one.asked[:, :2])
    drawn = resampled([both], draws, np.random.default_rng(_SEED))
    drawn = drawn[drawn[:, 1] > 0]
    return Ratio(float(hits[0] / hits[1]), *_interval(drawn[:, 0] / drawn[:, 1]))


def _interval(drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(low), float(high))


def _sums(galleries: Sequence[SearchRanks], wanted: np.ndarray) -> Sums:
    """The captions that found their image, by the image that they belong to; images without such captions left out."""
    ranks = np.concatenate([gallery.t2i.ranks.cpu().numpy() for gallery in galleries])
    groups = np.concatenate([gallery.text_groups.cpu().numpy() for gallery in galleries])
    assert len(ranks) == len(wanted), "one answer is needed for each caption"
    place = np.unique(groups[wanted], return_inverse=True)[1]
    found = np.stack([np.bincount(place, ranks[wanted] <= level) for level in LEVELS], 1)
    return Sums(found, np.repeat(np.bincount(place).astype(float)[:, None], len(LEVELS), 1))


def words_table(found: Sequence[ByWords]) -> Table:
    """The two sides beside each other, R@10 with its interval; and what part of a later line the first one reaches."""
    columns = [Column("model", "model"), Column("similarity", "similarity"), Column("images", "gallery")]
    for side, over in (("met", "text to image, with the words"), ("others", "without")):
        columns += [Column("captions", f"{side}_captions", ",.0f", over)]
        columns += [Column(f"R@{level}", f"{side}_t2i_r{level}", ".1f", over) for level in LEVELS]
        columns += [Column("95 %", f"{side}_interval", "s", over)]
    rows: list[list[Cell]] = []
    for one in found:
        row: list[Cell] = [one.model, one.similarity, one.gallery]
        for part in (one.met, one.others):
            interval = part.intervals.get(_WORD_RECALLS[-1])
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
