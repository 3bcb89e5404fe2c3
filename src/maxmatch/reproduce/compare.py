"""The paper's table with our figures beside it: mean and deviation over the seeds, paired tests, curves, figures."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from maxmatch.core.files import read_metrics, whole, write_whole
from maxmatch.data.load import load_data
from maxmatch.evaluation.encoding import EncodedSplit, Say, encode_model
from maxmatch.evaluation.metrics import SearchRanks
from maxmatch.evaluation.result_tables import Cell, Column, Table, render
from maxmatch.evaluation.runs import analyse_run
from maxmatch.evaluation.significance import paired_test_of_seeds, seeds_test
from maxmatch.reproduce import Reproduced
from maxmatch.reproduce.jobs import Job, Outcome, PlannedLine, TablePlan
from maxmatch.reproduce.targets import SLOTS, Target
from maxmatch.reproduce.worker import data_of, read_ranks, sources_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# How far each line of a table is from its reference, and how sure that is.

_DRAWS, _SEED = 2000, 0


class Comparison(NamedTuple):
    """The mean RSUM of a line minus that of another, by the same queries.

    low, high, p: by the paired test over images, answers averaged over the seeds: what other photos would change.
    p_seeds: by Welch's test over the seeds: what other seeds would change; None where there are not two of each.
    """

    rsum: float
    low: float
    high: float
    p: float
    p_seeds: float | None


def compare_with_references(plan: TablePlan, outcomes: Mapping[Path, Outcome]) -> list[Comparison | None]:
    """Each line against the reference of its group; None for the reference itself, and where it cannot be tested."""
    references = {line.line.group: line for line in plan.lines if line.line.reference}
    found = []
    for line in plan.lines:
        reference = references.get(line.line.group)
        found.append(None if reference is None or reference is line else compare_lines(line, reference, outcomes))
    return found


def compare_lines(line: PlannedLine, other: PlannedLine, outcomes: Mapping[Path, Outcome]) -> Comparison | None:
    """One line against another; None where one failed, was measured elsewhere, or did not keep what queries found."""
    sides = [_searches(one.jobs, outcomes) for one in (other, line)]
    searches = [search for side in sides for search in side]
    if not all(sides) or not all(_same_queries(searches[0], one) for one in searches[1:]):
        return None
    first, second = ([[search.gallery] for search in side] for side in sides)
    found = paired_test_of_seeds(first, second, _DRAWS, np.random.default_rng(_SEED))
    return Comparison(*found, seeds_test(*([search.rsum for search in side] for side in sides)))


class _Search(NamedTuple):
    """What one seed's model found, where, and the RSUM of it."""

    gallery: SearchRanks
    where: tuple[str | None, str]
    rsum: float


def _searches(jobs: Sequence[Job], outcomes: Mapping[Path, Outcome]) -> list[_Search]:
    """Of all seeds that did not fail; none where one of them did not keep its ranks: the rest have another mean."""
    found = []
    for job in jobs:
        result = outcomes[job.folder].result
        if result is None:
            continue
        gallery, figures = read_ranks(job.folder, result), result["figures"]
        if gallery is None:
            return []
        rsum = next(figures[name] for name in ("coco_5k_rsum", "rsum") if name in figures)
        found.append(_Search(gallery, (job.recipes[0].data.path, result["split"]), rsum))
    return found


def _same_queries(one: _Search, other: _Search) -> bool:
    pairs = ((side.gallery.image_groups, side.gallery.text_groups) for side in (one, other))
    return one.where == other.where and all(torch.equal(*groups) for groups in zip(*pairs, strict=True))


# The paper's table with our figures beside it: mean and deviation over the seeds.

_HEADINGS = {"i2t_r1": "i→t R@1", "t2i_r1": "t→i R@1", "rsum": "RSUM"}
_PREFIXES = {"coco_1k_": "1K ", "coco_5k_": "5K "}
_COLLAPSE = (
    ("image_log_variance", "image", ".2f", "log(Var.)"),
    ("text_log_variance", "text", ".2f", "log(Var.)"),
    ("slots_used", "used", ".0%", "slots"),
    ("pairing_stability", "stable", ".0%", "slots"),
)
_COMPARISON = (
    ("rsum_difference", "RSUM", "+.1f"),
    ("interval", "95 %", ".1f"),
    ("p", "p", ".4f"),
    ("p_seeds", "p seeds", ".4f"),
)
_QUICK = (
    "A quick version: small data, a small model, little training. It shows that all works, not which row is better."
)
_TESTED = (
    "Against another: its mean RSUM is taken off. 95 % and p are of the paired test over images (bootstrap, "
    "permutation), what a query finds averaged over the seeds: what other images would change. p seeds is of Welch's "
    "test over the seeds: what other seeds would change. A difference stands where both are small; they are not "
    "corrected for the number of lines."
)
Outcomes = Mapping[Path, Outcome]
Tests = Sequence[Comparison | None]
"""One for each line of a plan; none at all where nothing was tested."""


def table_data(plan: TablePlan, outcomes: Outcomes, tests: Tests = ()) -> list[dict[str, Any]]:
    """For each line what the paper reports and what we found: all figures, by name. For machines."""
    rows = []
    for planned, test in zip(plan.lines, tests or [None] * len(plan.lines), strict=True):
        found = _figures(planned, outcomes)
        names = list(dict.fromkeys(name for figures in found for name in figures))
        ours = {name: _spread([figures[name] for figures in found if name in figures]) for name in names}
        failed = [outcomes[job.folder].failure for job in planned.jobs if outcomes[job.folder].failure]
        rows.append(
            {
                "title": dict(zip(plan.target.headings, planned.line.title, strict=True)),
                "group": planned.line.group,
                "paper": dict(planned.line.paper),
                "ours": ours,
                "against_reference": test and test._asdict(),
                "runs": [str(job.folder) for job in planned.jobs],
                "failed": failed,
                "not_trained": planned.why_none,
            }
        )
    return rows


def table(plan: TablePlan, outcomes: Outcomes, tests: Tests = ()) -> Table:
    """The table for people."""
    return _by_slot(plan, outcomes) if plan.target.kind == "slots" else _by_line(plan, outcomes, tests)


def _by_line(plan: TablePlan, outcomes: Outcomes, tests: Tests) -> Table:
    tested, over = any(tests), f"against {plan.target.reference_name}"
    names = plan.target.figures
    lines = [_figures(planned, outcomes) for planned in plan.lines]
    ours = [_known(name, [figures for line in lines for figures in line]) for name in names]
    reported = [name for name in names if any(name in planned.line.paper for planned in plan.lines)]
    columns = [
        *(Column(heading, heading) for heading in plan.target.headings),
        *(Column(_heading(name), f"paper_{name}", ".2f" if _is_rsum(name) else ".1f", "paper") for name in reported),
        *(Column(_heading(name), name, ".1f", "ours") for name in dict.fromkeys(ours)),
        *(Column(heading, name, form, above) for name, heading, form, above in _COLLAPSE),
        *(Column(heading, name, form, over) for name, heading, form in _COMPARISON if tested),
    ]
    rows: list[list[Cell]] = []
    rules, notes, group = [], [], ""
    for planned, found, test in zip(plan.lines, lines, tests or [None] * len(lines), strict=True):
        if planned.line.group != group:
            group = planned.line.group
            rules.append(len(rows))
            rows.append([group, *[None] * (len(columns) - 1)])
        cells: list[Cell] = [*planned.line.title, *(planned.line.paper.get(name) for name in reported)]
        cells += [_cell(found, name, ".1f") for name in dict.fromkeys(ours)]
        cells += [_cell(found, name, form) for name, _, form, _ in _COLLAPSE]
        cells += _difference(test) if tested else []
        failures = _failures(planned, outcomes)
        if failures and not found:
            cells[len(planned.line.title) + len(reported)] = "failed"
        notes += [f"{_called(planned)}: {failure}" for failure in failures]
        rows.append(cells)
    explained = [_TESTED] if tested else []
    return Table(columns, rows, [*_notes(plan, outcomes), *explained, *notes], rules)


def _by_slot(plan: TablePlan, outcomes: Outcomes) -> Table:
    """tab:5: for each kept slot a row, for each model what the paper has and what we found."""
    lines = [_figures(planned, outcomes) for planned in plan.lines]
    found = [name for line in lines for figures in line for name in figures]
    sizes = {
        side: max([SLOTS, *(int(name.split("_")[2]) for name in found if name.startswith(f"{side}_slot_"))])
        for side in ("image", "text")
    }
    whole = _known("coco_5k_rsum", [figures for line in lines for figures in line])
    kept = [
        (f"{side}: {f'only slot {slot}' if slot else 'all slots'}", f"{side}_slot_{slot}_rsum" if slot else whole)
        for side in sizes
        for slot in range(sizes[side] + 1)
    ]
    columns = [Column("kept", "kept")]
    for planned in plan.lines:
        over = planned.line.title[0]
        columns += [Column("paper", f"paper_{over}", ".2f", over), Column("ours", over, ".1f", over)]
    rows: list[list[Cell]] = []
    for title, name in kept:
        row: list[Cell] = [title]
        for planned, one in zip(plan.lines, lines, strict=True):
            row += [planned.line.paper.get("coco_5k_rsum" if name == whole else name), _cell(one, name, ".1f")]
        rows.append(row)
    for side in sizes:
        row = [f"{side}: log(Var.)"]
        for planned, one in zip(plan.lines, lines, strict=True):
            ours = _cell(one, f"{side}_log_variance", ".2f")
            row += [planned.line.paper.get("log_variance"), f"{ours:.2f}" if isinstance(ours, float) else ours]
        rows.append(row)
    variance = "log(Var.): the paper gives one figure for both modalities, measured on Flickr30k."
    failed = [f"{_called(line)}: {failure}" for line in plan.lines for failure in _failures(line, outcomes)]
    differences = [
        f"{_called(line)} against {_called(other)}: {_sentence(test)}."
        for other, line in combinations(plan.lines, 2)
        if (test := compare_lines(line, other, outcomes)) is not None
    ]
    differences += [_TESTED] if differences else []
    notes = [*_notes(plan, outcomes), variance, *differences, *failed]
    return Table(columns, rows, notes, [sizes["image"] + 1, len(kept)])


def _difference(test: Comparison | None) -> list[Cell]:
    if test is None:
        return [None] * len(_COMPARISON)
    return [test.rsum, f"{test.low:+.1f} … {test.high:+.1f}", test.p, test.p_seeds]


def _sentence(test: Comparison) -> str:
    seeds = "" if test.p_seeds is None else f", p seeds {test.p_seeds:.4f}"
    return f"RSUM {test.rsum:+.1f}, 95 % {test.low:+.1f} … {test.high:+.1f}, p {test.p:.4f}{seeds}"


def outcome_line(job: Job, outcome: Outcome) -> str:
    """The outcome of a job in one line."""
    if outcome.result is None:
        return f"{job.folder.name}: failed: {outcome.failure}"
    found = outcome.result["figures"]
    rsum = next(found[name] for name in ("coco_5k_rsum", "rsum") if name in found)
    took = "done before" if outcome.again else f"{outcome.result['seconds']:.0f} s"
    return f"{job.folder.name}: RSUM {rsum:.1f} ({took})"


def _notes(plan: TablePlan, outcomes: Outcomes) -> list[str]:
    """What the figures are of."""
    measured = {"coco": "COCO", "flickr30k": "Flickr30k"}[plan.target.data]
    results = [result for job in plan.jobs if (result := outcomes[job.folder].result) is not None]
    splits = sorted(
        {
            f"{result['split']} ({result['images']:,} images, RSUM {result['figures']['chance_rsum']:.1f} by chance)"
            for result in results
        }
    )
    data = "the recipes that ship" if plan.base is None else f"changes to the recipe {plan.base}"
    seeds = f"mean ± standard deviation over {plan.options.seeds} seeds" if plan.options.seeds > 1 else "one seed"
    notes = [f"{plan.target.label}: {plan.target.about}."]
    paper = f"Paper: on {measured}. " if any(planned.line.paper for planned in plan.lines) else ""
    notes += [f"{paper}Ours: {data}, split {', '.join(splits)}, {seeds}."] if splits else []
    missing = dict.fromkeys(line.why_none for line in plan.lines if line.why_none)
    notes += [f"Not trained: {'; '.join(missing)}."] if missing else []
    return notes + ([_QUICK] if plan.options.quick else [])


def _called(planned: PlannedLine) -> str:
    return " ".join(filter(None, (planned.line.group, *planned.line.title)))


def _figures(planned: PlannedLine, outcomes: Outcomes) -> list[Mapping[str, float]]:
    """Those of each seed that did not fail."""
    results = [outcomes[job.folder].result for job in planned.jobs]
    return [result["figures"] for result in results if result is not None]


def _failures(planned: PlannedLine, outcomes: Outcomes) -> list[str]:
    return [f"failed: {outcomes[job.folder].failure}" for job in planned.jobs if outcomes[job.folder].result is None]


def _known(name: str, found: Sequence[Mapping[str, float]]) -> str:
    """What a figure of the paper's is called on our data: without COCO's prefix where ours is not COCO."""
    plain = name.removeprefix("coco_1k_").removeprefix("coco_5k_")
    return name if any(name in figures for figures in found) else plain


def _cell(found: Sequence[Mapping[str, float]], name: str, form: str) -> Cell:
    """A figure over the seeds, to stand in a cell."""
    values = [figures[name] for figures in found if name in figures]
    if len(values) < 2:
        return values[0] if values else None
    return f"{mean(values):{form}} ± {stdev(values):{form}}"


def _spread(values: Sequence[float]) -> dict[str, Any]:
    deviation = stdev(values) if len(values) > 1 else None
    assert all(map(math.isfinite, values))
    return {"mean": mean(values), "deviation": deviation, "seeds": list(values)}


def _heading(name: str) -> str:
    for prefix, heading in _PREFIXES.items():
        if name.startswith(prefix):
            return heading + _HEADINGS[name.removeprefix(prefix)]
    return _HEADINGS[name]


def _is_rsum(name: str) -> bool:
    return name.endswith("rsum")


# Validation RSUM by epoch of the models of a table, as a picture.

Curve = dict[int, float]
"""RSUM by epoch, counted from 1."""


def curves(plan: TablePlan, outcomes: Mapping[Path, Outcome]) -> dict[str, list[Curve]]:
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


def draw_curves(plan: TablePlan, outcomes: Mapping[Path, Outcome]) -> Path | None:
    """The picture, in the folder of the table; None without matplotlib, or where nothing is to be drawn."""
    if find_spec("matplotlib") is None:
        return None
    found = curves(plan, outcomes)
    if not found:
        return None
    from maxmatch.evaluation.report.figures import render, validation_curves

    references = [label(plan.target, line) for line in plan.lines if line.line.reference]
    reference = references[0] if len(references) == 1 else None  # one a group: they are no more than the others
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


# Before and after a sweep: generated data, and tables on the disk.


def make_data(jobs: Sequence[Job], say: Say) -> None:
    """Generate the scenes that jobs need, once, before all of them would."""
    missing = {job.recipes[0].data.path: job.recipes[0].data for job in jobs if job.result() is None}
    for path, data in missing.items():
        if path is not None and data.scenes is not None and not (Path(path) / "metadata.jsonl").exists():
            load_data(data, say)


def write(plan: TablePlan, outcomes: Mapping[Path, Outcome]) -> Reproduced:
    """Put the table into the folder, as Markdown and as JSON, and the curves of its models, where they can be drawn.

    outcomes: its own, and any of other tables.
    """
    tests = compare_with_references(plan, outcomes)
    target, made = plan.target, table(plan, outcomes, tests)
    rows = table_data(plan, outcomes, tests)
    data = {"target": target.name, "label": target.label, "quick": plan.options.quick, "rows": rows}
    files = [plan.options.out / f"{target.name}.{kind}" for kind in ("md", "json")]
    for file, text in zip(files, (render(made, "markdown"), json.dumps(data, indent=2)), strict=True):
        write_whole(file, text + "\n")
    drawn = draw_curves(plan, outcomes)
    return Reproduced(target.name, data, files if drawn is None else [*files, drawn], made)


# The paper's figures from trained models: t-SNE, heatmap, and what each slot finds.

_KINDS: tuple[Literal["pdf"], Literal["png"]] = ("pdf", "png")


class _Model(NamedTuple):
    """A model of the figure: what it is called, and its job."""

    title: str
    job: Job

    @property
    def pair(self) -> tuple[str, str]:
        """The two modalities."""
        return self.job.recipes[0].objective.pairs[0]

    def encoded(self, device: str) -> EncodedSplit:
        """Its sets."""
        (source,), batch_size = sources_of(self.job), self.job.recipes[0].train.batch_size
        return encode_model(source, data_of(self.job), device=device, batch_size=batch_size)


def draw(plan: TablePlan, outcomes: Mapping[Path, Outcome], device: str) -> list[Path]:
    """Draw the figure of a target with the models of the first seed that did not fail; the files that were written."""
    from maxmatch.evaluation.report.make_report import check_plots

    check_plots()
    models = [
        _Model(planned.line.title[0], job)
        for planned in plan.lines
        for job in planned.jobs[:1]
        if outcomes[job.folder].result is not None
    ]
    return list(_FIGURES[plan.target.name](plan, models, device))


def _tsne(plan: TablePlan, models: Sequence[_Model], device: str) -> Iterator[Path]:
    import numpy as np

    from maxmatch.evaluation.report.figures import scatter
    from maxmatch.evaluation.slots import project

    for one in models:
        found = project(one.encoded(device), one.pair, seed=0)
        of = np.array([one.pair.index(name) for name in found.modality])
        figure = scatter(found.points, np.array(found.slot), one.pair, of, "t-SNE")
        yield from _saved(figure, plan.options.out / f"tsne-{_file_name(one.title)}")


def _heatmap(plan: TablePlan, models: Sequence[_Model], device: str) -> Iterator[Path]:
    from maxmatch.evaluation.report.figures import heatmap
    from maxmatch.evaluation.slots import between_sets

    cosines = {one.title: between_sets(one.encoded(device), one.pair).true.cpu().numpy() for one in models}
    if cosines:
        yield from _saved(heatmap(cosines, *models[0].pair), plan.options.out / "heatmap")


def _qualitative(plan: TablePlan, models: Sequence[_Model], device: str) -> Iterator[Path]:
    """A report of each model: what its slots find, both ways, and failures, with the pictures."""
    for one in models:
        recipe = one.job.recipes[0]
        folder = plan.options.out / f"qualitative-{_file_name(one.title)}"
        yield analyse_run(
            one.job.folder,
            recipe.data,
            folder,
            split=data_of(one.job).split,
            title=one.title,
            device=device,
            batch_size=recipe.train.batch_size,
            say=lambda line: None,
        ).report


_FIGURES: dict[str, Callable[[TablePlan, Sequence[_Model], str], Iterator[Path]]] = {
    "tsne": _tsne,
    "heatmap": _heatmap,
    "qualitative": _qualitative,
}


def _saved(figure: "Figure", path: Path) -> Iterator[Path]:
    """A figure as PDF, for print, and as PNG."""
    from maxmatch.evaluation.report.figures import render

    for kind in _KINDS:
        file = path.with_name(f"{path.name}.{kind}")
        with whole(file) as opened:
            opened.write(render(figure, kind))
        yield file


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
