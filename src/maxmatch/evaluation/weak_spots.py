"""Where a model is weak: recall by the length or words of captions or by what images show; its worst queries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from maxmatch.evaluation.labels import Labels
from maxmatch.evaluation.metrics import LEVELS, Result, Scores, SearchRanks
from maxmatch.evaluation.result_tables import Cell, Column, Table, filled
from maxmatch.evaluation.significance import ResultLine, some_queries
from maxmatch.matching.scoring import first_largest
from maxmatch.model.text import split_into_words

By = Literal["length", "words", "label"]
WAYS = {"t2i": "text to image", "i2t": "image to text"}
_LEAST = 5  # queries that a part has at least; and half a per cent of all
_USUAL = 0.2  # a word of more captions than that says nothing about them
_SHOWN = 12  # rows of a table for each model; --json has all


@dataclass(frozen=True)
class Part:
    """Some of the queries: its name, and by direction which queries belong to it."""

    name: str
    wanted: Mapping[str, np.ndarray]


def parts_by_length(captions: Sequence[str]) -> list[Part]:
    """Captions in four parts of about the same number, by how many words they have."""
    lengths = np.array([len(words) for words in split_into_words(captions)])
    edges = np.unique(np.quantile(lengths, [0.25, 0.5, 0.75, 1], method="inverted_cdf")).tolist()
    parts, low = [], int(lengths.min())
    for high in map(int, edges):
        name = f"{low} words" if low == high else f"{low} to {high} words"
        parts.append(Part(name, {"t2i": (lengths >= low) & (lengths <= high)}))
        low = high + 1
    return parts


def parts_by_words(captions: Sequence[str]) -> list[Part]:
    """For each word that is neither rare nor in every fifth caption: the captions that have it."""
    places: dict[str, list[int]] = {}
    for place, words in enumerate(split_into_words(captions)):
        for word in set(words):
            if word.isalnum():
                places.setdefault(word, []).append(place)
    least = max(_LEAST, len(captions) // 200)
    parts = []
    for word, found in sorted(places.items()):
        if least <= len(found) <= max(_USUAL * len(captions), least):
            wanted = np.zeros(len(captions), np.bool_)
            wanted[found] = True
            parts.append(Part(word, {"t2i": wanted}))
    return parts


def parts_by_label(
    labels: Labels, image_ids: Sequence[str], image_groups: np.ndarray, text_groups: np.ndarray
) -> list[Part]:
    """For each name: the images that show it, and the captions of those."""
    shown = [labels.of(one) or () for one in image_ids]
    least = max(_LEAST, len(image_ids) // 200)
    parts = []
    for number, name in enumerate(labels.names):
        images = np.array([number in some for some in shown], np.bool_)
        if images.sum() >= least:
            parts.append(Part(name, {"t2i": np.isin(text_groups, image_groups[images]), "i2t": images}))
    return parts


def recalls_by_part(lines: Sequence[ResultLine], parts: Sequence[Part], draws: int) -> list[dict[str, Any]]:
    """For each line and part the recalls of its queries among all items, with intervals; draws = 0 for none."""
    found = []
    for line in lines:
        result = line.result
        galleries = [*result.galleries.values()][-1]  # all items; folds come before
        for part in parts:
            one: dict[str, Any] = {"model": result.name, "similarity": result.similarity, "part": part.name}
            for way, wanted in part.wanted.items():
                if wanted.any():
                    one[way] = some_queries(galleries, wanted, way, draws)
            found.append(one)
    return found


def part_table(by: By, found: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each part. By words and labels: for each model only those with the lowest R@10, weakest first."""
    heading = {"length": "caption", "words": "word", "label": "label"}[by]
    columns = [Column("model", "model"), Column(heading, "part")]
    for way, over in WAYS.items():
        columns.append(Column("queries", f"{way}_queries", ",.0f", over))
        columns += [Column(f"R@{level}", f"{way}_r{level}", ".1f", over) for level in LEVELS]
        columns.append(Column("95 % of R@10", f"{way}_interval", "s", over))
    rows: list[dict[str, Cell]] = []
    rules: list[int] = []
    for key in dict.fromkeys((one["model"], one["similarity"]) for one in found):
        mine = [one for one in found if (one["model"], one["similarity"]) == key]
        if by != "length":
            mine = sorted(mine, key=_weakest_first)[:_SHOWN]
        rules += [len(rows)] if rows else []
        rows += [_row(one) for one in mine]
    notes = [] if by == "length" else [f"the {_SHOWN} with the lowest R@10 of each model; --json has all"]
    return Table(filled(columns, rows), rows, notes, rules, title=f"by {by}")


def _weakest_first(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return *(one["t2i"][f"t2i_r{level}"] for level in reversed(LEVELS)), one["part"]


def _row(one: Mapping[str, Any]) -> dict[str, Cell]:
    row: dict[str, Cell] = {"model": one["model"], "part": one["part"]}
    for way in WAYS:
        if way in one:
            row |= {f"{way}_queries": one[way]["queries"]}
            row |= {f"{way}_r{level}": one[way][f"{way}_r{level}"] for level in LEVELS}
            if "intervals" in one[way]:
                low, high = one[way]["intervals"][f"{way}_r10"]
                row[f"{way}_interval"] = f"{low:.1f} to {high:.1f}"
    return row


# The worst queries of a model, from its scores some rows at a time.


@dataclass(frozen=True)
class Answer:
    """An item that was found: its place in the split, and its score."""

    item: int
    score: float


@dataclass(frozen=True)
class Case:
    """A query whose best true answer is not first: its place in the split, that answer, and wrong ones, best first."""

    item: int
    rank: int
    right: Answer
    wrong: Sequence[Answer]


def worst_cases(scores: Scores, result: Result, count: int, answers: int = 3) -> dict[str, list[Case]]:
    """The queries with the largest ranks both ways, worst first; at one rank in the order of the split."""
    (found,) = [*result.galleries.values()][-1]
    ranks = {way: (found.i2t if way == "i2t" else found.t2i).ranks.cpu().numpy() for way in WAYS}
    worst = {way: _worst(some, count) for way, some in ranks.items()}
    columns = torch.from_numpy(worst["t2i"])
    rows_of = {
        "i2t": [scores.rows(slice(one, one + 1))[0].cpu() for one in worst["i2t"].tolist()],
        "t2i": [*torch.cat([scores.rows(block)[:, columns].cpu() for block in scores.blocks()]).T],
    }
    mine = {"i2t": (found.image_groups, found.text_groups), "t2i": (found.text_groups, found.image_groups)}
    cases = {}
    for way in WAYS:
        own, others = (groups.cpu() for groups in mine[way])
        cases[way] = [
            _case(item, int(ranks[way][item]), row, others == own[item], answers)
            for item, row in zip(worst[way].tolist(), rows_of[way], strict=True)
        ]
    return cases


def _worst(ranks: np.ndarray, count: int) -> np.ndarray:
    order = np.argsort(-ranks, kind="stable")[:count]
    worst: np.ndarray = order[ranks[order] > 1]
    return worst


def _case(item: int, rank: int, scores: Tensor, true: Tensor, answers: int) -> Case:
    def best(hidden: Tensor, most: int) -> list[Answer]:
        values, places = first_largest(scores.masked_fill(hidden, -torch.inf)[None], most)
        return [Answer(*one) for one in zip(places[0].tolist(), values[0].tolist(), strict=True)]

    return Case(item, rank, best(~true, 1)[0], best(true, min(answers, rank - 1)))


Describe = Callable[[str, int], str]
"""From a modality and the place of an item to what is shown of it: a caption, or an id."""


def case_data(cases: Mapping[str, Sequence[Case]], describe: Describe) -> dict[str, list[dict[str, Any]]]:
    """The worst queries as plain data, with what they are."""
    sides = {"i2t": ("image", "text"), "t2i": ("text", "image")}

    def one(case: Case, query: str, gallery: str) -> dict[str, Any]:
        data = asdict(case)
        data["query"] = describe(query, case.item)
        for answer in (data["right"], *data["wrong"]):
            answer["name"] = describe(gallery, answer["item"])
        return data

    return {way: [one(case, *sides[way]) for case in some] for way, some in cases.items()}


def case_tables(model: str, cases: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Table]:
    """A table for each direction: the query, the rank of its answer, that answer, and what stood first."""
    columns = [
        Column("query", "query"), Column("rank", "rank", ",.0f"), Column("score", "score", ".3f", "true answer"),
        Column("", "right", "", "true answer"), Column("score", "first", ".3f", "found first"),
        Column("", "wrong", "", "found first"),
    ]  # fmt: skip
    tables = []
    for way, some in cases.items():
        rows: list[dict[str, Cell]] = [
            {
                "query": one["query"],
                "rank": one["rank"],
                "score": one["right"]["score"],
                "right": one["right"]["name"],
                "first": one["wrong"][0]["score"],
                "wrong": one["wrong"][0]["name"],
            }
            for one in some
        ]
        if rows:
            tables.append(Table(columns, rows, title=f"{model}, {WAYS[way]}: the worst queries"))
    return tables


def recall_curve(galleries: Sequence[SearchRanks], way: str, depth: int) -> np.ndarray:
    """R@1 to R@depth in per cent, for a figure."""
    sides = [(one.i2t if way == "i2t" else one.t2i).ranks.cpu().numpy() for one in galleries]
    levels = np.arange(1, depth + 1)
    curve: np.ndarray = np.mean([[100 * (ranks <= level).mean() for level in levels] for ranks in sides], 0)
    return curve
