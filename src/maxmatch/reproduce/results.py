"""Before and after a sweep: data that is to be generated, and tables on the disk."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from maxmatch.evaluation.tables import Table, render
from maxmatch.files import write_whole
from maxmatch.reproduce.compare import compared, table
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
    """A table as it was written: for people, and with all figures for machines."""

    table: Table
    whole: dict[str, Any]


def write(plan: Plan, outcomes: Mapping[Path, Outcome]) -> Written:
    """Put the table into the folder, as Markdown and as JSON. outcomes: its own, and any of other tables."""
    target, made = plan.target, table(plan, outcomes)
    rows = compared(plan, outcomes)
    whole = {"target": target.name, "label": target.label, "quick": plan.options.quick, "rows": rows}
    write_whole(plan.options.out / f"{target.name}.json", json.dumps(whole, indent=2) + "\n")
    write_whole(plan.options.out / f"{target.name}.md", render(made, "markdown") + "\n")
    return Written(made, whole)
