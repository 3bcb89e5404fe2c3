"""How the models of a table came to be: validation RSUM by epoch, as a picture beside it."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from maxmatch.files import whole
from maxmatch.reproduce.planning import Plan, PlannedLine
from maxmatch.reproduce.sweep import Outcome
from maxmatch.reproduce.targets import Target

Curve = dict[int, float]
"""RSUM by epoch, counted from 1."""


def curves(plan: Plan, outcomes: Mapping[Path, Outcome]) -> dict[str, list[Curve]]:
    """For each line that was trained, by what it is called, the curve of every seed that did not fail.

    Ensembles have none: nothing was trained for them.
    """
    from maxmatch.training.log import read_metrics

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


def draw_curves(plan: Plan, outcomes: Mapping[Path, Outcome]) -> Path | None:
    """The picture in the folder of the table; None without matplotlib, or where nothing is to be drawn."""
    if find_spec("matplotlib") is None:
        return None
    found = curves(plan, outcomes)
    if not found:
        return None
    from maxmatch.report.figures_compared import validation_curves
    from maxmatch.report.figures_style import render

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
    ticked = [heading for heading, said in zip(target.headings[1:], others, strict=True) if said]
    named = f"{first} ({', '.join(ticked)})" if ticked else first
    return f"{planned.line.group}: {named}" if planned.line.group else named
