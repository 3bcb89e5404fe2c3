"""Studies at work: every method is tuned with the same budget, what was chosen is frozen, the finalists are trained and
compared; a table, curves and a page.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from maxmatch.core.array_checks import UsageError
from maxmatch.core.files import read_metrics, write_whole
from maxmatch.core.progress import Bar
from maxmatch.data.dataset import Dataset
from maxmatch.data.load import Say, load_data
from maxmatch.data.sampler import GroupSampler
from maxmatch.evaluation.report.make_report import data_uri, render_page
from maxmatch.evaluation.result_tables import ALL_ANSWERS, HARDEST, Cell, Column, Table, filled, render, written
from maxmatch.recipe.schema import Recipe
from maxmatch.reproduce import Reproduced, Reproduction
from maxmatch.reproduce.compare import (
    COLLAPSE,
    Outcomes,
    by_rsum,
    cell_of,
    draw_curves,
    failures,
    figures_data,
    run_jobs,
    why_no_figure,
)
from maxmatch.reproduce.study import SET_ASIDE, Chosen, StudyPlan, Trial, Values, cells_of
from maxmatch.reproduce.targets import Job, PlannedLine, TableLine, TablePlan, Target, jobs_of
from maxmatch.reproduce.verdict import against_reference, called, goal_table, judge, reference_table
from maxmatch.reproduce.worker import Outcome, sweep
from maxmatch.training.diagnostics import ended_stuck
from maxmatch.training.prepare import group_sources, group_weights, training_split

Trials = Mapping[str, Sequence[Trial]]
"""By method."""


class AtWork(NamedTuple):
    """A study before its models are trained: trials of all methods, those of the methods that are wanted, what was
    chosen before, and the budget.
    """

    plan: StudyPlan
    trials: Trials
    ours: Trials
    frozen: dict[str, Chosen]
    budget: "Budget"

    @property
    def to_tune(self) -> list[str]:
        """The methods that are wanted and have no frozen values."""
        return [title for title in self.ours if title not in self.frozen]


def run_studies(
    plans: Sequence[StudyPlan], at_once: int | None, device: str, *, dry_run: bool, say: Say, bar: Bar
) -> Reproduction:
    """Run both phases of studies, of the methods that are wanted; what is done already is not done again. The trials
    of all studies are trained side by side, and then the finals of all. dry_run: only count what there is to do.
    """
    _refuse_mixed(plans)
    works = [_prepared(plan, say, features=dry_run or at_once != 0) for plan in plans]
    if dry_run:
        return Reproduction([_counted(one) for one in works], 0, 0)
    out = plans[0].options.out
    for one in works:
        for phase in one.budget.phases:
            say(f"{one.plan.study.name}: {phase.name}: {phase.models} models, {phase.done} of them done before")
    tuned = _once(trial.job for one in works for title in one.to_tune for trial in one.trials[title])
    tried = run_jobs(tuned, out, at_once, device, say, bar)
    chosen = [_choose_values(one, tried, say) for one in works]
    tables = [finals_plan(one.plan, values) for one, values in zip(works, chosen, strict=True)]
    wanted = {
        job.folder
        for one, table in zip(works, tables, strict=True)
        for line in table.lines
        if line.line.title[0] in one.ours
        for job in line.jobs
    }
    jobs = jobs_of(tables)
    outcomes = run_jobs([job for job in jobs if job.folder in wanted], out, at_once, device, say, bar)
    failed = {folder for done in (tried, outcomes) for folder, outcome in done.items() if outcome.result is None}
    models = len(tried.keys() | outcomes.keys())
    outcomes |= sweep([job for job in jobs if job.folder not in wanted], 0, device, lambda job, outcome: None)
    made = [
        write_study(one, values, table, tried, outcomes)
        for one, values, table in zip(works, chosen, tables, strict=True)
    ]
    return Reproduction(made, models, len(failed))


def _refuse_mixed(plans: Sequence[StudyPlan]) -> None:
    """Refuse studies that would write over each other's results."""
    names = [plan.study.name for plan in plans]
    if len(set(names)) < len(names):
        raise UsageError(f"{', '.join(names)}: two studies of one name. Rename a file: results are kept by the name.")
    splits = sorted({plan.study.final.split for plan in plans})
    if len(splits) > 1:
        raise UsageError(
            f"{', '.join(names)}: their finals are measured on different splits ({', '.join(splits)}). Run them one "
            "after the other, or give --split."
        )


def _prepared(plan: StudyPlan, say: Say, *, features: bool) -> AtWork:
    """Its jobs, and what they take. features: see `count_budget`."""
    study, frozen = plan.study, plan.read_chosen()
    if not study.tuning.trials:
        frozen = {title: Chosen(trial=0, cells=()) for title in study.methods}
    trials = {title: plan.trials(title) for title in study.methods}
    ours = {title: trials[title] for title in plan.wanted}
    ready = {title: one for title, one in frozen.items() if title in ours}
    work = AtWork(plan, trials, ours, frozen, count_budget(plan, ours, ready, say, features=features))
    for title in work.to_tune:
        for trial in trials[title]:
            _score(trial, trial.job.result(), study.main)  # refuses what cannot be compared, before any training
    return work


def _counted(one: AtWork) -> Reproduced:
    """What a dry run shows."""
    name = one.plan.study.name
    about = {"target": name, "dry_run": True, **one.budget.to_json()}
    return Reproduced(name, about, [], budget_table(one.plan, one.budget))


def _choose_values(one: AtWork, outcomes: Outcomes, say: Say) -> dict[str, Chosen]:
    """What each method goes into the finals with; what is new is written down."""
    plan = one.plan
    frozen = plan.read_chosen() | one.frozen  # another command may have chosen for other methods meanwhile
    chosen = {}
    for title, tried in one.trials.items():
        if title not in one.ours and title not in frozen:
            continue
        name = f"{plan.study.name}: {title}"
        stopped = 0 if title in frozen else sum(outcomes[trial.job.folder].stopped for trial in tried)
        best = frozen.get(title) or choose(tried, outcomes, plan.study.main)
        if stopped:  # with fewer trials it would have another budget
            left = f"{stopped} of its trials were stopped, or not started"
            say(f"{name}: {left}; it is not in the finals. Run the command again")
        elif best is None:
            say(f"{name}: all its trials failed; it is not in the finals")
        else:
            chosen[title] = best
            if best.failed and title not in frozen:
                say(
                    f"{name}: {best.failed} of its {len(best.cells)} trials failed; values are chosen without them. "
                    f"To try them again, remove its entry from {plan.chosen_file}"
                )
    if chosen.keys() - frozen.keys():
        plan.write_chosen(chosen)
    if plan.study.tuning.trials:
        say(f"chosen values: {plan.chosen_file}")
    return chosen


def _once(jobs: Iterable[Job]) -> list[Job]:
    return list({job.folder: job for job in jobs}.values())


def _score(trial: Trial, result: Mapping[str, Any] | None, measure: str) -> float | None:
    """How well a trial did; None where it has no result."""
    if result is None:
        return None
    assert result["split"] == SET_ASIDE
    if measure not in result["figures"]:
        raise UsageError(
            f"{trial.job.folder}: an older version has not measured {measure}. Remove its result.json: it is "
            "measured again, not trained."
        )
    return float(result["figures"][measure])


def choose(trials: Sequence[Trial], outcomes: Outcomes, measure: str) -> Chosen | None:
    """The trial that did best among the images set aside, of equals the first; None if all failed."""
    found = {
        number: _score(trial, outcomes[trial.job.folder].result, measure)
        for number, trial in enumerate(trials, start=1)
    }
    scores = {number: score for number, score in found.items() if score is not None}
    if not scores:
        return None
    best = max(scores, key=lambda number: (scores[number], -number))
    trial, failed = trials[best - 1], len(trials) - len(scores)
    return Chosen(
        trial=best,
        cells=cells_of(trials),
        score=scores[best],
        failed=failed,
        values=trial.values,
        changes=trial.changes,
    )


def finals_plan(plan: StudyPlan, chosen: Mapping[str, Chosen]) -> TablePlan:
    """The finalists as the lines of a table."""
    study = plan.study
    lines = []
    for title, method in study.methods.items():
        line = TableLine((title,), {}, method.recipe or study.base, reference=title == study.reference)
        if title in chosen:
            lines.append(PlannedLine(line, plan.finals(title, chosen[title].changes)))
        else:
            lines.append(PlannedLine(line, why_none="its trials failed, or have not ended"))
    target = Target(
        study.name, study.name, study.description, "coco", tuple(one.line for one in lines),
        reference_name=study.reference,
    )  # fmt: skip
    return TablePlan(target, plan.options, study.base, tuple(lines))


# The budget: how many models, epochs and images each phase takes.


class Phase(NamedTuple):
    """What a phase takes in all. epochs and images, those shown in training, are the most: models may stop early."""

    name: str
    methods: int
    models: int
    done: int
    epochs: int
    images: int


class Budget(NamedTuple):
    """Both phases, and the images there are: for tuning, for the finals, set aside, and in the final split."""

    phases: tuple[Phase, Phase]
    tuning_images: int
    final_images: int
    set_aside: int
    final_split: int

    @property
    def total(self) -> Phase:
        """Both phases together."""
        first, second = self.phases
        models, done, epochs, images = (one + other for one, other in zip(first[2:], second[2:], strict=True))
        return Phase("in all", second.methods, models, done, epochs, images)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        phases = {phase.name: phase._asdict() for phase in (*self.phases, self.total)}
        return {"phases": phases, **{name: getattr(self, name) for name in self._fields[1:]}}


def count_budget(
    plan: StudyPlan, trials: Trials, frozen: Mapping[str, Chosen], say: Say, *, features: bool = True
) -> Budget:
    """Count before anything is trained. The data is read: what cannot be read is refused here. features: False where
    nothing will be trained, and stores of features need not be there.
    """

    datasets: dict[str, Dataset] = {}
    shown: dict[tuple[str, int], int] = {}  # images in an epoch, by data and batch size

    def loaded(recipe: Recipe) -> Dataset:
        whole = recipe.data.model_copy(update={"max_images": None, **({} if features else {"features": None})})
        key = whole.model_dump_json()
        if key not in datasets:
            datasets[key] = load_data(whole, say, recipe.model.resolved().towers)
            datasets[key].split(plan.study.final.split)  # refuses one that is not there
        return datasets[key]

    def images_of(job: Job) -> int:
        recipe = job.recipes[0]
        key = recipe.data.model_dump_json(), recipe.train.batch_size
        if key not in shown:
            train = training_split(recipe.data, loaded(recipe), lambda line: None)
            sampler = GroupSampler(
                train.size, recipe.train.batch_size, recipe.seed, weights=group_weights(recipe.data, train),
                sources=group_sources(recipe.data, train),
            )  # fmt: skip
            shown[key] = sum(len(batch.groups) for batch in sampler.plans(0))
        return recipe.train.epochs * shown[key]

    def phase(name: str, methods: int, jobs: Sequence[Job], done: int) -> Phase:
        epochs = sum(job.recipes[0].train.epochs for job in jobs)
        return Phase(name, methods, len(jobs), done, epochs, sum(map(images_of, jobs)))

    tried = _once(
        trial.job
        for title, own in trials.items()
        for trial in own
        if title not in frozen or trial.job.result() is not None
    )
    known = _once(job for title, one in frozen.items() for job in plan.finals(title, one.changes))
    # What is not chosen yet takes as long, whatever is chosen.
    others = [job for title in trials if title not in frozen for job in plan.finals(title, ())]
    tuning = phase("tuning", len(trials), tried, sum(job.result() is not None for job in tried))
    finals = phase("finals", len(trials), [*known, *others], sum(job.result() is not None for job in known))
    dataset = loaded((known or others)[0].recipes[0])
    tuned = [trial.job for own in trials.values() for trial in own]
    few, many = (
        training_split(jobs[0].recipes[0].data, dataset, lambda line: None).size if jobs else 0
        for jobs in (tuned, known or others)
    )
    aside, final = (dataset.split(name).size for name in (SET_ASIDE, plan.study.final.split))
    return Budget((tuning, finals), few, many, aside, final)


def budget_table(plan: StudyPlan, budget: Budget) -> Table:
    """What there is to do, for people."""
    columns = [
        Column("phase", "name"), Column("methods", "methods", ",d"), Column("models", "models", ",d"),
        Column("done before", "done", ",d"), Column("epochs, at most", "epochs", ",d"),
        Column("images shown, at most", "images", ",d"),
    ]  # fmt: skip
    rows: list[Mapping[str, Cell]] = [phase._asdict() for phase in (*budget.phases, budget.total)]
    return Table(columns, rows, [*_protocol(plan, budget), "A dry run: nothing was trained."], [len(rows) - 1])


def _protocol(plan: StudyPlan, budget: Budget) -> list[str]:
    study = plan.study
    tuning, final = study.tuning, study.final
    seeds = f"{final.seeds} seeds" if final.seeds > 1 else "one seed"
    longer = [f"{title} ({method.passes})" for title, method in study.methods.items() if method.passes > 1]
    chosen = (
        f"Tuning: {tuning.trials} trials for every method, the first with its recipe's own values, on "
        f"{budget.tuning_images:,} training images for at most {tuning.epochs} epochs; the best "
        f"{called(study.main)} on {budget.set_aside:,} training images that are set aside is chosen."
    )
    lines = [
        chosen if tuning.trials else "Tuning: none; every method has its recipe's own values.",
        f"Finals: {seeds}, at most {final.epochs} epochs on {budget.final_images:,} training images; the images "
        f"set aside choose the epoch. The {budget.final_split:,} images of {final.split!r} are looked at once per "
        f"model. Methods are compared by {', '.join(map(called, study.measures))}.",
    ]
    if plan.only:
        lines.append(f"Tuned and trained by this command: {'; '.join(plan.wanted)}. The others are as they were left.")
    if longer:
        lines.append(f"Of these, several epochs count as one, since each shows fewer captions: {', '.join(longer)}.")
    return lines


# The result: table, JSON, curves, page.


def write_study(
    work: AtWork, chosen: Mapping[str, Chosen], finals: TablePlan, trained: Outcomes, outcomes: Outcomes
) -> Reproduced:
    """Write the tables as Markdown and all data as JSON, the curves, if they can be drawn, and the page. trained: the
    trials; outcomes: the finals.
    """
    plan, budget = work.plan, work.budget
    study, out = plan.study, plan.options.out
    rows = study_data(finals, chosen, outcomes, study.measures)
    goal = None if study.goal is None else judge(study.goal, study.measures, finals, outcomes)
    late = plan.named_late()
    made = study_table(plan, budget, rows, outcomes, finals.jobs)
    further = [measures_table(rows), reference_table(rows, study.reference, study.measures, late)]
    further += [] if goal is None else [goal_table(goal, study.measures)]
    tried = {title: trials_data(own, chosen.get(title), trained, study.main) for title, own in work.trials.items()}
    data = {
        "target": study.name, "about": study.description, "measure": study.main, "measures": list(study.measures),
        "named_late": late, "reference": study.reference, "budget": budget.to_json(), "rows": rows, "goal": goal,
        "tuning": tried,
    }  # fmt: skip
    paths = [out / f"{study.name}.{kind}" for kind in ("md", "json")]
    tables = "\n\n".join(render(table, "markdown") for table in (made, *further))
    for path, text in zip(paths, (tables, json.dumps(data, indent=2)), strict=True):
        write_whole(path, text + "\n")
    curves = draw_curves(finals, outcomes)
    page = out / f"{study.name}.html"
    write_whole(page, study_page(plan, [made, *further], goal, tried, curves))
    written_files = [*paths, *([curves] if curves is not None else []), page]
    written_files += [plan.chosen_file] if study.tuning.trials else []
    return Reproduced(study.name, data, written_files, made, further)


def study_data(
    finals: TablePlan, chosen: Mapping[str, Chosen], outcomes: Outcomes, measures: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows of `figures_data`, with what was chosen, which seeds are stuck, and the tests against the reference by
    each measure; that of RSUM is also where other tables have it.
    """
    rows, tests = figures_data(finals, outcomes), against_reference(finals, measures, outcomes)
    for row, line in zip(rows, finals.lines, strict=True):
        title = row["title"]["method"]
        one = chosen.get(title)
        row["stuck"] = _stuck(line.jobs, outcomes)
        row["chosen"] = one and one.model_dump(mode="json")
        row["tests"] = {measure: asdict(test) for measure, test in tests[title].items()}
        test = tests[title].get("rsum")
        row["against_reference"] = test and by_rsum(test)
    return rows


_STUCK = (
    "Stuck: the triplet loss of the last epoch is at least 2 × margin, so that all pairs have nearly the same score."
)
_NOT_MEASURED = "not measured"


def _over_seeds(row: Mapping[str, Any], column: Column) -> Cell:
    """A figure over the seeds; "not measured" where an older version has measured RSUM alone, if only for one seed."""
    ours = row["ours"]

    def whole(name: str) -> bool:
        return name in ours and len(ours[name]["seeds"]) == len(ours["rsum"]["seeds"])

    if not ours or whole(column.name):
        return cell_of(row, column.name, column.form)
    return None if whole("i2t_map_at_r") else _NOT_MEASURED


def study_table(
    plan: StudyPlan, budget: Budget, data: Sequence[dict[str, Any]], outcomes: Outcomes, jobs: Sequence[Job]
) -> Table:
    """The finalists, for people: what was chosen, the measures named, R@1 and collapse. data: that of `study_data`."""
    study = plan.study
    ours = [Column(called(name), name, ".1f") for name in dict.fromkeys((*study.measures, "i2t_r1", "t2i_r1"))]
    columns = [Column("method", "method"), Column("tuned", "tuned"), Column("trial", "trial"), *ours]
    columns += [Column("stuck", "stuck"), *COLLAPSE]
    rows: list[Mapping[str, Cell]] = []
    for row in data:
        cells: dict[str, Cell] = {"method": row["title"]["method"]}
        cells |= {column.name: _over_seeds(row, column) for column in (*ours, *COLLAPSE)}
        one = row["chosen"]
        if one is not None and one["trial"]:
            cells |= {"tuned": _shown(one["values"]), "trial": f"{one['trial']} of {len(one['cells'])}"}
        if not row["ours"]:
            cells[study.measures[0]] = why_no_figure(row)
        cells["stuck"] = _stuck_seeds(row["stuck"])
        rows.append(cells)
    chances = {
        f"{result['figures']['chance_rsum']:.1f}"
        for job in jobs
        if (result := outcomes[job.folder].result) is not None and "chance_rsum" in result["figures"]
    }
    notes = [f"{study.name}: {study.description}.", *_protocol(plan, budget)]
    notes += [f"RSUM by chance: {', '.join(sorted(chances))}."] if chances else []
    notes += [_STUCK] if any(row["stuck"] for row in rows) else []
    for row in data:
        title, one = row["title"]["method"], row["chosen"]
        notes += [f"{title}: not in the finals: {row['not_trained']}."] if row["not_trained"] else []
        notes += (
            [f"{title}: {one['failed']} of its {len(one['cells'])} trials failed."] if one and one["failed"] else []
        )
        notes += failures(row, title)
    return Table(filled(columns, rows), rows, notes)


def _stuck(jobs: Sequence[Job], outcomes: Outcomes) -> list[bool | None]:
    """Which of the seeds that were trained ended with all pairs near the same score; None where no record says so."""
    found = []
    for job in jobs:
        if outcomes[job.folder].result is not None:
            records = read_metrics(job.folder, "train")
            last = records[-1]["epoch"] if records else 0
            losses = [one["triplet"] for one in records if one["epoch"] == last and "triplet" in one]
            found.append(ended_stuck(job.recipes[0], last, losses))
    return found


def _stuck_seeds(seeds: Sequence[bool | None]) -> Cell:
    known = [one for one in seeds if one is not None]
    return f"{sum(known)} of {len(known)} seed{'s' if len(known) > 1 else ''}" if known else None


_BYTES = [Column(side, f"{side}_bytes_float16", ",.0f", "bytes, float16") for side in ("image", "text")]
_BEYOND = [
    *(column for column in ALL_ANSWERS if column.name.startswith("i2t")),
    *(replace(column, form=".1f") for column in HARDEST),  # also of medians: they are averaged over the seeds
    *(Column(side, f"{side}_content_log_variance", ".2f", "content log variance") for side in ("image", "text")),
    Column("found", "slot_variation", ".2f", "deciding slot varies"),
    Column("by chance", "slot_variation_chance", ".2f", "deciding slot varies"),
]


def measures_table(data: Sequence[Mapping[str, Any]]) -> Table:
    """All captions of an image and the hardest of them, what the sets say, and their size. data: of `study_data`."""
    rows: list[Mapping[str, Cell]] = []
    for row in data:
        cells: dict[str, Cell] = {"method": row["title"]["method"]}
        cells |= {column.name: _over_seeds(row, column) for column in (*_BEYOND, *_BYTES)}
        sizes = [column.name for column in _BYTES if column.name in row["ours"]]
        rows.append(cells | {name: row["ours"][name]["mean"] for name in sizes})
    notes = []
    if any(_NOT_MEASURED in cells.values() for cells in rows):
        notes = [
            "Not measured: by an older version, which kept the best answers alone. Remove result.json from the run's "
            "folder: the model is measured again, not trained."
        ]
    return Table(filled([Column("method", "method"), *_BEYOND, *_BYTES], rows), rows, notes, title="Beyond RSUM")


def trials_data(
    trials: Sequence[Trial], chosen: Chosen | None, outcomes: Outcomes, measure: str
) -> list[dict[str, Any]]:
    """The trials of a method, as plain data. Those of a method that was chosen before are read from their folders."""
    kept = {} if chosen is None else {chosen.trial: chosen.score}  # its folder may have the result of a final by now
    rows = []
    for number, trial in enumerate(trials, start=1):
        outcome = outcomes.get(trial.job.folder) or Outcome(trial.job.result(), again=True)
        result = outcome.result
        rows.append(
            {
                "trial": number,
                "values": trial.values,
                "score": kept.get(number) if result is None else result["figures"].get(measure),
                "chosen": number in kept,
                "failed": outcome.failure if result is None else None,
                "run": str(trial.job.folder),
            }
        )
    return rows


def study_page(
    plan: StudyPlan,
    made: Sequence[Table],
    goal: Mapping[str, Any] | None,
    tried: Mapping[str, Sequence[dict[str, Any]]],
    curves: Path | None,
) -> str:
    """The page: tables, curves and trials. It stands alone. goal: what `judge` found."""
    study = plan.study
    tables = {title: _trials_table(rows, study.main) for title, rows in tried.items() if rows}
    return render_page(
        files("maxmatch.reproduce").joinpath("referee.html").read_text(encoding="utf-8"),
        study=study,
        measure=called(study.main),
        goal=goal,
        results=[_for_page(table) for table in made],
        curves=None if curves is None else data_uri(curves.read_bytes(), "image/png"),
        trials={title: _for_page(table) for title, table in tables.items()},
    )


def _trials_table(rows: Sequence[Mapping[str, Any]], measure: str) -> Table:
    keys = list(rows[0]["values"])
    columns = [
        Column("trial", "trial"),
        *(Column(key, key, "g") for key in keys),
        Column(f"{called(measure)}, set aside", "score", ".1f"),
        Column("", "mark"),
    ]
    cells: list[Mapping[str, Cell]] = [
        {
            **{
                key: value if isinstance(value, int | float) else json.dumps(value)
                for key, value in row["values"].items()
            },
            "trial": row["trial"],
            "score": row["score"],
            "mark": "chosen" if row["chosen"] else f"failed: {row['failed']}" if row["failed"] else "",
        }
        for row in rows
    ]
    return Table(columns, cells)


def _for_page(table: Table) -> dict[str, Any]:
    headings = [" ".join(filter(None, (column.over, column.heading))) for column in table.columns]
    return {"title": table.title, "headings": headings, "rows": written(table), "notes": table.notes}


def _shown(values: Values) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {json.dumps(value)}" for key, value in values.items())
