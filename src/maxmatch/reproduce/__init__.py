"""The paper's tables and figures, reproduced: what is missing is trained, and compared with what the paper reports."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from maxmatch.core.array_checks import UsageError
from maxmatch.core.progress import Bar, no_bar
from maxmatch.reproduce.study import StudyPlan, is_study, load_study
from maxmatch.reproduce.targets import ReproduceOptions, jobs_of, plan, target_called

if TYPE_CHECKING:
    from maxmatch.evaluation.result_tables import Table


class Reproduced(NamedTuple):
    """A table or a figure: all figures as plain data, the files written, and of a table the table. further: those of a
    study that follow it.
    """

    name: str
    data: dict[str, Any]
    files: list[Path]
    table: "Table | None" = None
    further: Sequence["Table"] = ()


class Reproduction(NamedTuple):
    """What `reproduce` made, one for each target; how many models it took, and how many of them failed."""

    targets: list[Reproduced]
    models: int
    failed: int


def reproduce(
    targets: str | Sequence[str],
    data: str | Sequence[str],
    *,
    base: str | None = None,
    out: str | Path = "runs/reproduce",
    seeds: int | None = None,
    quick: bool = False,
    split: str | None = None,
    changes: Sequence[str] = (),
    only: Sequence[str] = (),
    jobs: int | None = None,
    device: str | None = None,
    dry_run: bool = False,
    say: Callable[[str], object] = lambda line: None,
    bar: Bar = no_bar,
) -> Reproduction:
    """Train what the paper's tables and figures need, measure it, and compare with what the paper reports.

    Args:
        targets: Names of tables and figures (`maxmatch reproduce --list`), or the paper's labels; or studies, whose
            models are then trained side by side.
        data: A path, or "scenes" to generate it. Several as "region=PATH", each for the recipes with that word.
        base: The recipe of MaxMatch that rows are made from, for data that is not the paper's.
        out: Where models and tables go; what is finished there is not done again.
        seeds: Models per row. None: 1, or as many as a study says.
        quick: A small version: shows that everything works, in minutes.
        split: To measure on. None: the recipe's, else validation's.
        changes: To all recipes: "train.epochs=5", …
        only: Of a study: the methods that are tuned and trained. The tables show the others as they were left.
        jobs: Models trained at the same time. None: one for each core, at most 8; on a GPU 1. 0: none is
            trained; the tables show what is done.
        device: None: a GPU if there is one.
        dry_run: Of a study: only count its models, epochs and images.
        say: Called with each message.
        bar: Opens a progress bar.

    Returns:
        Each target's figures, files and table. Models that failed are named in the tables.

    Example:
        >>> reproduce("ablation", "scenes", quick=True).targets[0].files  # doctest: +SKIP
    """
    from maxmatch.core.devices import chosen_device
    from maxmatch.evaluation.report.make_report import check_plots
    from maxmatch.reproduce.compare import draw, run_jobs, write

    names = [targets] if isinstance(targets, str) else targets
    given = [data] if isinstance(data, str) else data
    if any(map(is_study, names)):
        from maxmatch.reproduce.referee import run_studies

        others = [name for name in names if not is_study(name)]
        if others:
            raise UsageError(f"{', '.join(others)}: no study. Run tables and figures with a command of their own.")
        if quick:
            raise UsageError("quick: the size of a study is what its file says.")
        plans_of_studies = []
        for study in map(load_study, dict.fromkeys(names)):
            final = study.final.model_copy(
                update={"seeds": seeds or study.final.seeds, "split": split or study.final.split}
            )
            options = ReproduceOptions(given, Path(out), base, final.seeds, changes=changes)
            plans_of_studies.append(StudyPlan(study.model_copy(update={"final": final}), options, only))
        return run_studies(plans_of_studies, jobs, str(chosen_device(device)), dry_run=dry_run, say=say, bar=bar)
    if dry_run:
        raise UsageError("dry_run: only of a study is the work counted before it is done.")
    if only:
        raise UsageError(f"only: names methods of a study, and {', '.join(names)} is none.")
    wanted = {target.name: target for target in map(target_called, names)}
    if any(target.kind == "figure" for target in wanted.values()):
        check_plots()
    options = ReproduceOptions(given, Path(out), base, seeds or 1, quick, split, changes)
    plans = [plan(target, options) for target in wanted.values()]
    for one in plans:
        if not one.jobs:
            reasons = "; ".join(dict.fromkeys(line.why_none for line in one.lines if line.why_none))
            raise UsageError(f"{one.target.name}: nothing to train: {reasons}.")
    work, where = jobs_of(plans), str(chosen_device(device))
    for departure in dict.fromkeys(departure for one in plans for departure in one.departures):
        say(f"! {departure}")
    outcomes = run_jobs(work, Path(out), jobs, where, say, bar)
    made = []
    for one in plans:
        if one.target.kind == "figure":
            files = draw(one, outcomes, where)
            about = {"target": one.target.name, "label": one.target.label, "files": list(map(str, files))}
            made.append(Reproduced(one.target.name, about, files))
        else:
            made.append(write(one, outcomes))
    return Reproduction(made, len(outcomes), sum(outcome.result is None for outcome in outcomes.values()))
