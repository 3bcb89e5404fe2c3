"""Before and after a sweep: data that is to be generated, and tables on the disk."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from maxmatch.evaluation.tables import Table, render
from maxmatch.files import write_whole
from maxmatch.reproduce.against import against_reference
from maxmatch.reproduce.compare import compared, table
from maxmatch.reproduce.curves import draw_curves
from maxmatch.reproduce.jobs import Job
from maxmatch.reproduce.planning import Plan
from maxmatch.reproduce.sweep import Outcome


def make_data(jobs: Sequence[Job], say: Callable[[str], object]) -> None:
    """Generate the scenes that jobs wait for, or all of them would at once."""
    from maxmatch.data.loading import load_data

    missing = {job.recipes[0].data.path: job.recipes[0].data for job in jobs if job.result() is None}
    for path, data in missing.items():
        if path is not None and data.scenes is not None and not (Path(path) / "metadata.jsonl").exists():
            load_data(data, say)


class Written(NamedTuple):
    """A table as it was written: for people, with all figures for machines, and the files it went to."""

    table: Table
    whole: dict[str, Any]
    files: list[Path]


def write(plan: Plan, outcomes: Mapping[Path, Outcome]) -> Written:
    """Put the table into the folder, as Markdown and as JSON, and the curves of its models, where they can be drawn.

    outcomes: its own, and any of other tables.
    """
    tests = against_reference(plan, outcomes)
    target, made = plan.target, table(plan, outcomes, tests)
    rows = compared(plan, outcomes, tests)
    whole = {"target": target.name, "label": target.label, "quick": plan.options.quick, "rows": rows}
    files = [plan.options.out / f"{target.name}.{kind}" for kind in ("md", "json")]
    for file, text in zip(files, (render(made, "markdown"), json.dumps(whole, indent=2)), strict=True):
        write_whole(file, text + "\n")
    drawn = draw_curves(plan, outcomes)
    return Written(made, whole, files if drawn is None else [*files, drawn])
