"""The paper's table with our figures beside it: mean and deviation over the seeds."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from maxmatch.evaluation.tables import Cell, Column, Table
from maxmatch.reproduce.jobs import Job
from maxmatch.reproduce.planning import Plan, PlannedLine
from maxmatch.reproduce.sweep import Outcome
from maxmatch.reproduce.targets import SLOTS

_HEADINGS = {"i2t_r1": "i→t R@1", "t2i_r1": "t→i R@1", "rsum": "RSUM"}
_PREFIXES = {"coco_1k_": "1K ", "coco_5k_": "5K "}
_COLLAPSE = (
    ("image_log_variance", "image", ".2f", "log(Var.)"),
    ("text_log_variance", "text", ".2f", "log(Var.)"),
    ("slots_used", "used", ".0%", "slots"),
    ("pairing_stability", "stable", ".0%", "slots"),
)
_QUICK = (
    "A quick version: small data, a small model, little training. It shows that all works, not which row is better."
)
Outcomes = Mapping[Path, Outcome]


def compared(plan: Plan, outcomes: Outcomes) -> list[dict[str, Any]]:
    """For each line what the paper reports and what we found: all figures, by name. For machines."""
    rows = []
    for planned in plan.lines:
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
                "runs": [str(job.folder) for job in planned.jobs],
                "failed": failed,
                "not_trained": planned.why_none,
            }
        )
    return rows


def table(plan: Plan, outcomes: Outcomes) -> Table:
    """The table for people."""
    return _by_slot(plan, outcomes) if plan.target.kind == "slots" else _by_line(plan, outcomes)


def _by_line(plan: Plan, outcomes: Outcomes) -> Table:
    names = plan.target.figures
    lines = [_figures(planned, outcomes) for planned in plan.lines]
    ours = [_known(name, [figures for line in lines for figures in line]) for name in names]
    reported = [name for name in names if any(name in planned.line.paper for planned in plan.lines)]
    columns = [
        *(Column(heading, heading) for heading in plan.target.headings),
        *(Column(_heading(name), f"paper_{name}", ".2f" if _is_rsum(name) else ".1f", "paper") for name in reported),
        *(Column(_heading(name), name, ".1f", "ours") for name in dict.fromkeys(ours)),
        *(Column(heading, name, form, over) for name, heading, form, over in _COLLAPSE),
    ]
    rows: list[list[Cell]] = []
    rules, notes, group = [], [], ""
    for planned, found in zip(plan.lines, lines, strict=True):
        if planned.line.group != group:
            group = planned.line.group
            rules.append(len(rows))
            rows.append([group, *[None] * (len(columns) - 1)])
        cells: list[Cell] = [*planned.line.title, *(planned.line.paper.get(name) for name in reported)]
        cells += [_shown(found, name, ".1f") for name in dict.fromkeys(ours)]
        cells += [_shown(found, name, form) for name, _, form, _ in _COLLAPSE]
        failures = _failures(planned, outcomes)
        if failures and not found:
            cells[len(planned.line.title) + len(reported)] = "failed"
        notes += [f"{_called(planned)}: {failure}" for failure in failures]
        rows.append(cells)
    return Table(columns, rows, [*_notes(plan, outcomes), *notes], rules)


def _by_slot(plan: Plan, outcomes: Outcomes) -> Table:
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
            row += [planned.line.paper.get("coco_5k_rsum" if name == whole else name), _shown(one, name, ".1f")]
        rows.append(row)
    for side in sizes:
        row = [f"{side}: log(Var.)"]
        for planned, one in zip(plan.lines, lines, strict=True):
            ours = _shown(one, f"{side}_log_variance", ".2f")
            row += [planned.line.paper.get("log_variance"), f"{ours:.2f}" if isinstance(ours, float) else ours]
        rows.append(row)
    told = "log(Var.): the paper gives one figure for both modalities, measured on Flickr30k."
    failed = [f"{_called(line)}: {failure}" for line in plan.lines for failure in _failures(line, outcomes)]
    return Table(columns, rows, [*_notes(plan, outcomes), told, *failed], [sizes["image"] + 1, len(kept)])


def one_line(job: Job, outcome: Outcome) -> str:
    """What came of a job, while the others go on."""
    if outcome.result is None:
        return f"{job.folder.name}: failed: {outcome.failure}"
    found = outcome.result["figures"]
    rsum = next(found[name] for name in ("coco_5k_rsum", "rsum") if name in found)
    took = "done before" if outcome.again else f"{outcome.result['seconds']:.0f} s"
    return f"{job.folder.name}: RSUM {rsum:.1f} ({took})"


def _notes(plan: Plan, outcomes: Outcomes) -> list[str]:
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


def _shown(found: Sequence[Mapping[str, float]], name: str, form: str) -> Cell:
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
    for prefix, said in _PREFIXES.items():
        if name.startswith(prefix):
            return said + _HEADINGS[name.removeprefix(prefix)]
    return _HEADINGS[name]


def _is_rsum(name: str) -> bool:
    return name.endswith("rsum")
