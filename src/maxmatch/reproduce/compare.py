"""The paper's tables with our figures beside them: mean and deviation over the seeds, paired tests, curves, figures."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from maxmatch.core.files import read_metrics, whole, write_whole
from maxmatch.core.machine import usable_cores
from maxmatch.core.progress import Bar
from maxmatch.data.load import load_data
from maxmatch.evaluation.encoding import Paired, Say, encode_model, paired
from maxmatch.evaluation.measures import mean_measures
from maxmatch.evaluation.metrics import SearchRanks
from maxmatch.evaluation.result_tables import Cell, Column, Table, render
from maxmatch.evaluation.runs import analyse_run
from maxmatch.evaluation.significance import cohens_d, paired_tests, seeds_test
from maxmatch.evaluation.slots import between_sets, project
from maxmatch.reproduce import Reproduced
from maxmatch.reproduce.targets import SLOTS, Job, PlannedLine, TablePlan, Target
from maxmatch.reproduce.worker import NOT_YET, Outcome, data_of, read_ranks, sources_of, sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Outcomes = Mapping[Path, Outcome]

# How far each line of a table is from its reference, and how sure that is.

DRAWS, _SEED = 2000, 0


@dataclass(frozen=True)
class Comparison:
    """The mean of a measure of a line minus that of another, by the same queries.

    low, high, p: by the paired test over images, answers averaged over the seeds: what other images would change.
    p_seeds: by Welch's test over the seeds: what other seeds would change. effect_size: Cohen's d over the seeds. Both
    are None if there are not two of each, or none of them varies.
    """

    difference: float
    low: float
    high: float
    p: float
    p_seeds: float | None
    effect_size: float | None


def by_rsum(test: Comparison) -> dict[str, float | None]:
    """A test by RSUM, as the JSON of a table has it."""
    found = asdict(test)
    return {"rsum": found.pop("difference"), **found}


def compare_with_references(plan: TablePlan, outcomes: Outcomes) -> list[Comparison | None]:
    """The RSUM of each line against that of the reference of its group; None for the reference itself, and where it
    cannot be tested.
    """
    references = {line.line.group: line for line in plan.lines if line.line.reference}
    found = []
    for line in plan.lines:
        reference = references.get(line.line.group)
        tests = {} if reference is None or reference is line else compare_lines(line, reference, outcomes)
        found.append(tests.get("rsum"))
    return found


def compare_lines(
    line: PlannedLine, other: PlannedLine, outcomes: Outcomes, measures: Sequence[str] = ("rsum",), draws: int = DRAWS
) -> dict[str, Comparison]:
    """One line against another, by each measure that all their models have; none if one line failed, was measured
    elsewhere, or did not keep what queries found.
    """
    sides = [_searches(one.jobs, outcomes) for one in (other, line)]
    searches = [search for side in sides for search in side]
    if not all(sides) or not all(_same_queries(searches[0], one) for one in searches[1:]):
        return {}
    known = {"rsum", *mean_measures([search.gallery for search in searches])}
    first, second = ([[search.gallery] for search in side] for side in sides)
    tests = paired_tests(
        first, second, draws, np.random.default_rng(_SEED), measures=[name for name in measures if name in known]
    )
    found = {}
    for measure, test in tests.items():
        seeds = [[_figure(search.result, measure) for search in side] for side in sides]
        found[measure] = Comparison(*test, seeds_test(*seeds), cohens_d(*seeds))
    return found


class _Search(NamedTuple):
    """What one seed's model found, where, and its result."""

    gallery: SearchRanks
    where: tuple[str | tuple[str, ...] | None, str]
    result: Mapping[str, Any]


def _searches(jobs: Sequence[Job], outcomes: Outcomes) -> list[_Search]:
    """Of all seeds that did not fail; none if one of them did not keep its ranks: the rest have another mean."""
    found = []
    for job in jobs:
        result = outcomes[job.folder].result
        if result is None:
            continue
        gallery = read_ranks(job.folder, result)
        if gallery is None:
            return []
        found.append(_Search(gallery, (job.recipes[0].data.path, result["split"]), result))
    return found


def _same_queries(one: _Search, other: _Search) -> bool:
    pairs = ((side.gallery.image_groups, side.gallery.text_groups) for side in (one, other))
    return one.where == other.where and all(torch.equal(*groups) for groups in zip(*pairs, strict=True))


# The paper's table with our figures beside it, from the data that is written for machines.

HEADINGS = {
    f"{prefix}{name}": f"{over}{heading}"
    for prefix, over in (("", ""), ("coco_1k_", "1K "), ("coco_5k_", "5K "))
    for name, heading in (("i2t_r1", "i→t R@1"), ("t2i_r1", "t→i R@1"), ("rsum", "RSUM"))
}
COLLAPSE = [
    Column("image", "image_log_variance", ".2f", "log(Var.)"),
    Column("text", "text_log_variance", ".2f", "log(Var.)"),
    Column("used", "slots_used", ".0%", "slots"),
    Column("stable", "pairing_stability", ".0%", "slots"),
]
_QUICK = (
    "A quick version: small data, a small model, little training. It shows that all works, not which row is better."
)
_TESTED = (
    "Against another: its mean RSUM is taken off. 95 % and p are of the paired test over images (bootstrap, "
    "permutation), what a query finds averaged over the seeds: what other images would change. p seeds is of Welch's "
    "test over the seeds: what other seeds would change. A difference stands where both are small; they are not "
    "corrected for the number of lines."
)


def table_data(plan: TablePlan, outcomes: Outcomes) -> list[dict[str, Any]]:
    """For each line what the paper reports and what we found: all figures, by name, and the test. For machines."""
    rows = figures_data(plan, outcomes)
    for row, test in zip(rows, compare_with_references(plan, outcomes), strict=True):
        row["against_reference"] = test and by_rsum(test)
    return rows


def figures_data(plan: TablePlan, outcomes: Outcomes) -> list[dict[str, Any]]:
    """`table_data` without the tests."""
    rows = []
    for planned in plan.lines:
        ended = [outcomes[job.folder] for job in planned.jobs]
        found = [outcome.result["figures"] for outcome in ended if outcome.result is not None]
        names = dict.fromkeys(name for figures in found for name in figures)
        rows.append(
            {
                "title": dict(zip(plan.target.headings, planned.line.title, strict=True)),
                "group": planned.line.group,
                "paper": dict(planned.line.paper),
                "ours": {name: _spread([figures[name] for figures in found if name in figures]) for name in names},
                "runs": [str(job.folder) for job in planned.jobs],
                "failed": [outcome.failure for outcome in ended if outcome.result is None],
                "not_trained": planned.why_none,
            }
        )
    return rows


def _spread(values: Sequence[float]) -> dict[str, Any]:
    assert all(map(math.isfinite, values))
    deviation = stdev(values) if len(values) > 1 else None
    return {"mean": mean(values), "deviation": deviation, "seeds": list(values)}


Row = Mapping[str, Any]
"""One of `table_data`."""


def table(plan: TablePlan, outcomes: Outcomes, data: Sequence[Row]) -> Table:
    """The table for people. data: that of `table_data`."""
    return _by_slot(plan, outcomes, data) if plan.target.kind == "slots" else _by_line(plan, outcomes, data)


def _by_line(plan: TablePlan, outcomes: Outcomes, data: Sequence[Row]) -> Table:
    names, over = plan.target.figures, f"against {plan.target.reference_name}"
    tested = any(row["against_reference"] for row in data)
    reported = [name for name in names if any(name in row["paper"] for row in data)]
    ours = [Column(HEADINGS[name], name, ".1f", "ours") for name in dict.fromkeys(_known(name, data) for name in names)]
    tests = [
        Column("RSUM", "rsum_difference", "+.1f", over),
        Column("95 %", "interval", ".1f", over),
        Column("p", "p", ".4f", over),
        Column("p seeds", "p_seeds", ".4f", over),
    ]
    columns = [
        *(Column(heading, heading) for heading in plan.target.headings),
        *(Column(HEADINGS[one], f"paper_{one}", ".2f" if one.endswith("rsum") else ".1f", "paper") for one in reported),
        *ours,
        *COLLAPSE,
        *(tests if tested else []),
    ]
    rows: list[Mapping[str, Cell]] = []
    rules, group = [], ""
    for row in data:
        if row["group"] != group:
            group = row["group"]
            rules.append(len(rows))
            rows.append({plan.target.headings[0]: group})
        cells = {**row["title"], **{f"paper_{name}": value for name, value in row["paper"].items()}}
        cells |= {column.name: cell_of(row, column.name, column.form) for column in (*ours, *COLLAPSE)}
        if row["failed"] and not row["ours"]:
            cells[ours[0].name] = why_no_figure(row)
        test = row["against_reference"]
        if test is not None:
            cells |= {"rsum_difference": test["rsum"], "interval": between(test["low"], test["high"])}
            cells |= {"p": test["p"], "p_seeds": test["p_seeds"]}
        rows.append(cells)
    return Table(columns, rows, _notes(plan, outcomes, data, [_TESTED] if tested else []), rules)


def _by_slot(plan: TablePlan, outcomes: Outcomes, data: Sequence[Row]) -> Table:
    """tab:5: for each kept slot a row, for each model what the paper has and what we found."""
    found = {name for row in data for name in row["ours"]}
    sizes = {
        side: max([SLOTS, *(int(name.split("_")[2]) for name in found if name.startswith(f"{side}_slot_"))])
        for side in ("image", "text")
    }
    whole = _known("coco_5k_rsum", data)
    kept = []  # what is kept; the names of its figure in the paper and here; and how it is written
    for side, size in sizes.items():
        kept.append((f"{side}: all slots", "coco_5k_rsum", whole, ".1f"))
        slots = ((slot, f"{side}_slot_{slot}_rsum") for slot in range(1, size + 1))
        kept += [(f"{side}: only slot {slot}", name, name, ".1f") for slot, name in slots]
    kept += [(f"{side}: log(Var.)", "log_variance", f"{side}_log_variance", ".2f") for side in sizes]
    columns, rows = [Column("kept", "kept")], [dict[str, Cell](kept=title) for title, *_ in kept]
    for row in data:
        over = next(iter(row["title"].values()))
        columns += [Column("paper", f"paper_{over}", ".2f", over), Column("ours", over, ".1f", over)]
        for cells, (_, theirs, ours, form) in zip(rows, kept, strict=True):
            cells |= {f"paper_{over}": row["paper"].get(theirs), over: cell_of(row, ours, form)}
    notes = ["log(Var.): the paper gives one figure for both modalities, measured on Flickr30k."]
    notes += [
        f"{_called(second)} against {_called(first)}: {_sentence(test)}."
        for (other, first), (line, second) in combinations(zip(plan.lines, data, strict=True), 2)
        if (test := compare_lines(line, other, outcomes).get("rsum")) is not None
    ]
    notes += [_TESTED] if len(notes) > 1 else []
    return Table(columns, rows, _notes(plan, outcomes, data, notes), [sizes["image"] + 1, len(kept) - len(sizes)])


def _notes(plan: TablePlan, outcomes: Outcomes, data: Sequence[Row], more: Sequence[str]) -> list[str]:
    """What the figures are of; more; and what failed."""
    splits = {
        f"{result['split']} ({result['images']:,} images, RSUM {result['figures']['chance_rsum']:.1f} by chance)"
        for job in plan.jobs
        if (result := outcomes[job.folder].result) is not None
    }
    notes = [f"{plan.target.label}: {plan.target.about}."]
    if splits:
        measured = {"coco": "COCO", "flickr30k": "Flickr30k"}[plan.target.data]
        paper = f"Paper: on {measured}. " if any(row["paper"] for row in data) else ""
        recipes = "the recipes that ship" if plan.base is None else f"changes to the recipe {plan.base}"
        seeds = f"mean ± standard deviation over {plan.options.seeds} seeds" if plan.options.seeds > 1 else "one seed"
        notes.append(f"{paper}Ours: {recipes}, split {', '.join(sorted(splits))}, {seeds}.")
    missing = dict.fromkeys(row["not_trained"] for row in data if row["not_trained"])
    notes += [f"Not trained: {'; '.join(missing)}."] if missing else []
    notes += plan.departures
    notes += [_QUICK] if plan.options.quick else []
    return [*notes, *more, *(line for row in data for line in failures(row, _called(row)))]


def _called(row: Row) -> str:
    return " ".join(filter(None, (row["group"], *row["title"].values())))


def between(low: float, high: float) -> str:
    """An interval, to stand in a cell."""
    return f"{low:+.1f} … {high:+.1f}"


def _sentence(test: Comparison) -> str:
    seeds = "" if test.p_seeds is None else f", p seeds {test.p_seeds:.4f}"
    return f"RSUM {test.difference:+.1f}, 95 % {between(test.low, test.high)}, p {test.p:.4f}{seeds}"


def _known(name: str, data: Sequence[Row]) -> str:
    """What a figure of the paper's is called on our data: without COCO's prefix if ours is not COCO."""
    plain = name.removeprefix("coco_1k_").removeprefix("coco_5k_")
    return name if any(name in row["ours"] for row in data) else plain


def cell_of(row: Row, name: str, form: str) -> Cell:
    """A figure over the seeds, to stand in a cell."""
    if name not in row["ours"]:
        return None
    ours = row["ours"][name]
    deviation = "" if ours["deviation"] is None else f" ± {ours['deviation']:{form}}"
    return f"{ours['mean']:{form}}{deviation}"


def why_no_figure(row: Row) -> str:
    """Why no model of a line has a figure, to stand in a cell."""
    if row["not_trained"]:
        return "not trained"
    return NOT_YET if set(row["failed"]) == {NOT_YET} else "failed"


def failures(row: Row, called: str) -> list[str]:
    """Why models of a line have no figures, each reason once."""
    return [f"{called}: {why if why == NOT_YET else f'failed: {why}'}" for why in dict.fromkeys(row["failed"])]


def outcome_line(job: Job, outcome: Outcome) -> str:
    """The outcome of a job in one line."""
    if outcome.result is None:
        return f"{job.folder.name}: failed: {outcome.failure}"
    took = "done before" if outcome.again else f"{outcome.result['seconds']:.0f} s"
    return f"{job.folder.name}: RSUM {_figure(outcome.result, 'rsum'):.1f} ({took})"


def _figure(result: Mapping[str, Any], measure: str) -> float:
    """Of the search that is kept: among the whole split."""
    figures = result["figures"]
    return float(figures[f"coco_5k_{measure}" if f"coco_5k_{measure}" in figures else measure])


# Validation RSUM by epoch of the models of a table, as a picture.

Curve = dict[int, float]
"""RSUM by epoch, counted from 1."""


def curves(plan: TablePlan, outcomes: Outcomes) -> dict[str, list[Curve]]:
    """For each line that was trained, by what it is called, the curve of every seed that did not fail.

    Ensembles have none: nothing was trained for them.
    """
    found = {}
    for planned in plan.lines:
        jobs = [job for job in planned.jobs if len(job.members) == 1 and outcomes[job.folder].result is not None]
        seeds = [
            {
                record["epoch"] + 1: record["rsum"]
                for record in read_metrics(job.folder, "val")
                if record.get("rsum") is not None
            }
            for job in jobs
        ]
        if any(seeds):
            found[label(plan.target, planned)] = [seed for seed in seeds if seed]
    return found


def draw_curves(plan: TablePlan, outcomes: Outcomes) -> Path | None:
    """The picture, in the folder of the table; None without matplotlib, or where nothing is to be drawn."""
    if find_spec("matplotlib") is None:
        return None
    found = curves(plan, outcomes)
    if not found:
        return None
    from maxmatch.evaluation.report.figures import render, validation_curves

    references = [label(plan.target, line) for line in plan.lines if line.line.reference]
    reference = references[0] if len(references) == 1 else None  # with one per group, none stands out
    path = plan.options.out / f"{plan.target.name}-curves.png"
    content = render(validation_curves(found, reference), "png")
    with whole(path) as file:
        file.write(content)
    return path


def label(target: Target, planned: PlannedLine) -> str:
    """What a line is called where it stands alone: ticks by the names of their columns."""
    first, *others = planned.line.title
    ticked = [heading for heading, tick in zip(target.headings[1:], others, strict=True) if tick]
    named = f"{first} ({', '.join(ticked)})" if ticked else first
    return f"{planned.line.group}: {named}" if planned.line.group else named


# A sweep with what comes before and after it: generated data, messages, and tables on disk.


def run_jobs(
    work: Sequence[Job], out: Path, at_once: int | None, device: str, say: Say, bar: Bar
) -> dict[Path, Outcome]:
    """Do all jobs that are not done, and report each. at_once: None for one per core, at most 8, and one on a GPU; 0 to
    do none.
    """
    if at_once is None:
        at_once = 1 if device.startswith("cuda") else usable_cores(8)
    if at_once:
        make_data(work, say)
    with bar("models", len(work)) as advance:

        def report(job: Job, outcome: Outcome) -> None:
            say(outcome_line(job, outcome))
            advance(1)

        try:
            return sweep(work, at_once, device, report, say)
        except KeyboardInterrupt:
            say(f"{out}: interrupted; all models at work are saved. Resume with the same command.")
            raise


def make_data(jobs: Sequence[Job], say: Say) -> None:
    """Generate the scenes that jobs need, once, before all of them would."""
    missing = {str(job.recipes[0].data.path): job.recipes[0].data for job in jobs if job.result() is None}
    for path, data in missing.items():
        if data.path is not None and data.scenes is not None and not (Path(path) / "metadata.jsonl").exists():
            load_data(data, say)


def write(plan: TablePlan, outcomes: Outcomes) -> Reproduced:
    """Put the table into the folder, as Markdown and as JSON, and the curves of its models, if they can be drawn.

    outcomes: its own, and any of other tables.
    """
    target, rows = plan.target, table_data(plan, outcomes)
    made = table(plan, outcomes, rows)
    data = {"target": target.name, "label": target.label, "quick": plan.options.quick, "rows": rows}
    files = [plan.options.out / f"{target.name}.{kind}" for kind in ("md", "json")]
    for file, text in zip(files, (render(made, "markdown"), json.dumps(data, indent=2)), strict=True):
        write_whole(file, text + "\n")
    drawn = draw_curves(plan, outcomes)
    return Reproduced(target.name, data, files if drawn is None else [*files, drawn], made)


# The paper's figures from trained models: t-SNE, heatmap, and what each slot finds.

Models = Mapping[str, Job]
"""The models of a figure, by what they are called in it."""


def draw(plan: TablePlan, outcomes: Outcomes, device: str) -> list[Path]:
    """Draw the figure of a target with the models of the first seed that did not fail; the files that were written."""
    models = {
        planned.line.title[0]: job
        for planned in plan.lines
        for job in planned.jobs[:1]
        if outcomes[job.folder].result is not None
    }
    return list(_FIGURES[plan.target.name](plan.options.out, models, device))


def _tsne(out: Path, models: Models, device: str) -> Iterator[Path]:
    from maxmatch.evaluation.report.figures import projected

    for title, job in models.items():
        data = _sets(job, device)
        yield from _saved(projected(project(data), data.names), out / f"tsne-{_file_name(title)}")


def _heatmap(out: Path, models: Models, device: str) -> Iterator[Path]:
    from maxmatch.evaluation.report.figures import heatmap

    cosines = {title: between_sets(_sets(job, device)).true.numpy() for title, job in models.items()}
    if cosines:
        yield from _saved(heatmap(cosines, *_pair(next(iter(models.values())))), out / "heatmap")


def _qualitative(out: Path, models: Models, device: str) -> Iterator[Path]:
    """A report of each model: what its slots find, both ways, and failures, with the pictures."""
    for title, job in models.items():
        recipe = job.recipes[0]
        yield analyse_run(
            job.folder,
            recipe.data,
            out / f"qualitative-{_file_name(title)}",
            split=data_of(job).split,
            title=title,
            device=device,
            batch_size=recipe.train.batch_size,
            say=lambda line: None,
        ).report


_FIGURES: dict[str, Callable[[Path, Models, str], Iterator[Path]]] = {
    "tsne": _tsne,
    "heatmap": _heatmap,
    "qualitative": _qualitative,
}


def _pair(job: Job) -> tuple[str, str]:
    return job.recipes[0].objective.pairs[0]


def _sets(job: Job, device: str) -> Paired:
    """What the model of a job makes of its split."""
    (source,), batch_size = sources_of(job), job.recipes[0].train.batch_size
    return paired(encode_model(source, data_of(job), device=device, batch_size=batch_size), _pair(job))


def _saved(figure: "Figure", path: Path) -> Iterator[Path]:
    """A figure as PDF, for print, and as PNG."""
    from maxmatch.evaluation.report.figures import render

    for kind in ("pdf", "png"):
        file = path.with_name(f"{path.name}.{kind}")
        with whole(file) as opened:
            opened.write(render(figure, kind))
        yield file


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
