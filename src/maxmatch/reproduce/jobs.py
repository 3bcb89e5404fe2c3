"""From targets to jobs, one model to train and measure each; and the sweep that runs them in processes of their own."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from maxmatch.core.files import write_whole
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.reproduce.targets import TableLine, Target, Variant, changes

JobProtocol = Literal["plain", "auto"]
JOB, RESULT, LOG = "job.json", "result.json", "log.txt"
REASON = "maxmatch: "
"""Before the reason of a failure, in the log."""
_VERSION = 1
"""Raised by one when the same settings would give other figures."""


@dataclass(frozen=True)
class Job:
    """A model, or an ensemble of several that were trained before, and the split it is measured on.

    members: the folder of each recipe's run; of a single model this is the job's own. split: None for the recipe's, or
    what the data has. protocol: as of `maxmatch.evaluation.metrics`.
    """

    folder: Path
    recipes: tuple[Recipe, ...]
    members: tuple[Path, ...]
    split: str | None = None
    protocol: JobProtocol = "plain"

    @property
    def settings(self) -> dict[str, Any]:
        """All that the figures depend on, as JSON has it: a result with other settings is not this job's."""
        settings = {"recipes": list(map(_essence, self.recipes)), "split": self.split, "protocol": self.protocol}
        return {"version": _VERSION, **settings}

    def write(self) -> None:
        """Write the job to its folder, for the process that runs it."""
        recipes = [recipe.model_dump(mode="json") for recipe in self.recipes]
        content = {"members": list(map(str, self.members)), "recipes": recipes}
        text = json.dumps({**content, "split": self.split, "protocol": self.protocol}, indent=2)
        write_whole(self.folder / JOB, text + "\n")

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result; from then on the job is done."""
        write_whole(self.folder / RESULT, json.dumps({"settings": self.settings, **result}, indent=2) + "\n")

    def result(self) -> dict[str, Any] | None:
        """The result; None where it is not done, or was done with other settings."""
        try:
            found = json.loads((self.folder / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none yet, or a damaged one: the run's own files make it again
            return None
        return found if isinstance(found, dict) and found.get("settings") == self.settings else None


def read_job(folder: Path) -> Job:
    """The job that was written down in a folder."""
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    recipes = tuple(map(Recipe.model_validate, job["recipes"]))
    return Job(folder, recipes, tuple(map(Path, job["members"])), job["split"], job["protocol"])


def single(folder: Path, recipe: Recipe, split: str | None, protocol: JobProtocol) -> Job:
    """The job of one model. Its folder is named by what is trained: two tables that need the same model share it, and
    one that differs in anything has another folder.
    """
    recipe = recipe.model_copy(update={"name": kind(recipe), "description": ""})
    place = folder / f"{recipe.name}-seed{recipe.seed}-{_digest([_essence(recipe)])}"
    return Job(place, (recipe,), (place,), split, protocol)


def ensemble(folder: Path, jobs: tuple[Job, ...]) -> Job:
    """The job of several models whose scores are averaged."""
    recipes = tuple(job.recipes[0] for job in jobs)
    place = folder / f"ensemble{len(jobs)}-{recipes[0].name}-{_digest(list(map(_essence, recipes)))}"
    return Job(place, recipes, tuple(job.folder for job in jobs), jobs[0].split, jobs[0].protocol)


def kind(recipe: Recipe) -> str:
    """What a recipe trains, in short: similarity, head, set size, losses."""
    towers = recipe.model.resolved().towers
    sizes = "x".join(dict.fromkeys(str(tower.set_size) for tower in towers.values()))
    heads = [tower.head.name for tower in towers.values() if tower.head.name != "set"]
    losses = ("div", "mmd", "gd", "isd")
    there = [loss for loss in losses if getattr(recipe.objective, f"{loss}_weight")]
    return "-".join([recipe.model.similarity, *dict.fromkeys(heads), f"k{sizes}", *there])


def _essence(recipe: Recipe) -> dict[str, Any]:
    """A recipe without its names and texts. Generated scenes are the same in any folder, and no words held out
    is the default.
    """
    settings: dict[str, Any] = recipe.model_dump(mode="json", exclude={"name", "description"})
    del settings["data"]["licence"]
    if not recipe.data.hold_out_words:
        del settings["data"]["hold_out_words"]
    if recipe.data.scenes is not None:
        del settings["data"]["path"]
    return settings


def _digest(settings: Any) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


# From a target and options to the jobs that it takes.

SCENES = "scenes"
"""As data: generate it."""
CELLS = "cells"
"""The folder of all jobs."""
_ENSEMBLE = 2  # models, as in the paper
_QUICK_SCENES = (
    "data.scenes.images=800",
    "model.config.width=64",
    "train.batch_size=32",
    "train.epochs=5",
    "train.warmup_steps=10",
)
_QUICK_SHARE = 20  # of the epochs of a recipe for real data
Load = Callable[..., Recipe]


@dataclass(frozen=True)
class ReproduceOptions:
    """What is asked for.

    data: a path, or "scenes"; several as `region=PATH`, each for the recipes that have the word in their names. base:
    the recipe of MaxMatch that rows are made from; None for the paper's recipes, on the paper's data. changes: to all
    recipes, before the rows'.
    """

    data: Sequence[str]
    out: Path
    base: str | None = None
    seeds: int = 1
    quick: bool = False
    split: str | None = None
    changes: Sequence[str] = ()


@dataclass(frozen=True)
class PlannedLine:
    """A line of the table and the jobs that its figures come from, one per seed. needs: the jobs that these build upon.
    why_none: where there are none.
    """

    line: TableLine
    jobs: tuple[Job, ...] = ()
    needs: tuple[Job, ...] = ()
    why_none: str = ""


@dataclass(frozen=True)
class TablePlan:
    """The table to be."""

    target: Target
    options: ReproduceOptions
    base: str | None
    """The recipe that the rows are made from; None for the paper's own."""
    lines: tuple[PlannedLine, ...] = field(default=())

    @property
    def jobs(self) -> list[Job]:
        """All jobs, each once, ensembles after their members."""
        return jobs_of([self])


def jobs_of(plans: Iterable[TablePlan]) -> list[Job]:
    """The jobs of several tables, one that two of them need only once; ensembles after their members."""
    lines = [line for plan in plans for line in plan.lines]
    found = [job for line in lines for job in (*line.needs, *line.jobs)]
    in_order = sorted(found, key=lambda job: len(job.members))
    return list({job.folder: job for job in in_order}.values())


def plan(target: Target, options: ReproduceOptions) -> TablePlan:
    """The jobs of a target: each line's recipe, once for each seed."""
    elsewhere = options.base if options.base is not None else SCENES if SCENES in options.data else None
    base = target.base if elsewhere is None else elsewhere
    protocol: JobProtocol = "auto" if elsewhere is None and target.data == "coco" else "plain"
    lines = [line for line in target.lines if base is None or line.variant is not None]

    @cache  # most lines begin with the same file
    def load(name: str, *overrides: str) -> Recipe:
        return load_recipe(name, overrides)

    return TablePlan(target, options, base, tuple(_planned(line, protocol, options, base, load) for line in lines))


def _planned(
    line: TableLine, protocol: JobProtocol, options: ReproduceOptions, base: str | None, load: Load
) -> PlannedLine:
    name = line.recipe if base is None else base
    if line.recipe is None or name is None:
        return PlannedLine(line)
    if line.ensemble and options.seeds < _ENSEMBLE:
        return PlannedLine(line, why_none=f"an ensemble: takes --seeds {_ENSEMBLE}")
    data = data_for(name, options.data)
    if data is None:
        return PlannedLine(line, why_none=f"no --data for {name}")
    recipe = _recipe(name, line.variant if base is not None else None, data, options, load)
    seeds = [recipe.model_copy(update={"seed": recipe.seed + place}) for place in range(options.seeds)]
    folder = options.out / CELLS
    jobs = tuple(single(folder, one, options.split, protocol) for one in seeds)
    if line.ensemble:
        return PlannedLine(line, (ensemble(folder, jobs[:_ENSEMBLE]),), jobs[:_ENSEMBLE])
    return PlannedLine(line, jobs)


def data_for(recipe: str, data: Sequence[str]) -> str | None:
    """The data for a recipe: the first that is meant for it (`region=PATH`), or that is for all; None for none."""
    for one in data:
        word, equals, path = one.partition("=")
        if not equals or Path(one).exists():
            return one
        if word in recipe:
            return path
    return None


def _recipe(name: str, variant: Variant | None, data: str, options: ReproduceOptions, load: Load) -> Recipe:
    """The recipe of a line: the small version, the user's changes, what makes the row, and the data."""
    overrides = [*(_quick(load(name)) if options.quick else ()), *options.changes]
    recipe = load(name, *overrides)
    if variant is not None:
        overrides += changes(variant, recipe)
    return load(name, *overrides, _data_path(recipe, data, options.out))


def _quick(recipe: Recipe) -> list[str]:
    if recipe.data.scenes is not None and recipe.model.config is not None:
        return list(_QUICK_SCENES)
    return [f"train.epochs={-(-recipe.train.epochs // _QUICK_SHARE)}"]


def _data_path(recipe: Recipe, data: str, out: Path) -> str:
    """Where the data is, as an override. Scenes of each number and size have a folder of their own."""
    path = Path(data).expanduser()
    if data == SCENES:
        scenes = recipe.data.scenes
        if scenes is None:
            raise ValueError(f"{recipe.name}: has no data.scenes. Take a recipe for generated scenes, or other --data.")
        path = out / f"scenes-{scenes.images}-{scenes.size}-{scenes.seed}"
    elif not path.exists():
        raise FileNotFoundError(f"--data {data}: no such file or folder. For generated data: --data {SCENES}")
    return f"data.path={json.dumps(str(path.absolute()))}"


# Many jobs, some at a time, each in a process of its own; one that fails does not stop the others.

_LOOK_EVERY = 0.1  # seconds
_STOP_WITHIN = 60.0  # seconds to save a state, before a process is killed


@dataclass(frozen=True)
class Outcome:
    """The result of a job, or why there is none. again: whether it was done before."""

    result: Mapping[str, Any] | None
    failure: str = ""
    again: bool = False


ReportJob = Callable[[Job, Outcome], object]


def sweep(jobs: Sequence[Job], at_once: int, device: str | None, report: ReportJob) -> dict[Path, Outcome]:
    """Run all jobs, in their order; an ensemble when its members are done. The outcome of each, by folder.

    A job with a result is not done again. report is called for each job as it ends. When interrupted, all processes
    save their states and end; the next call resumes them.
    """
    outcomes: dict[Path, Outcome] = {}

    def note(job: Job, outcome: Outcome) -> None:
        outcomes[job.folder] = outcome
        report(job, outcome)

    waiting, running = [], dict[Path, tuple[Job, subprocess.Popen[bytes]]]()
    for job in jobs:
        result = job.result()
        if result is None:
            waiting.append(job)
        else:
            note(job, Outcome(result, again=True))
    try:
        while waiting or running:
            for job in [job for job in waiting if len(running) < at_once or _lost(job, outcomes)]:
                if _lost(job, outcomes):
                    waiting.remove(job)
                    note(job, Outcome(None, "one of its models failed"))
                elif len(running) < at_once and _ready(job, outcomes):
                    waiting.remove(job)
                    running[job.folder] = job, start(job, device)
            for job, process in list(running.values()):
                if process.poll() is not None:
                    _stop([process])
                    del running[job.folder]
                    note(job, _outcome(job, process.returncode))
            if running:
                time.sleep(_LOOK_EVERY)
    finally:
        _stop([process for _, process in running.values()])
    return outcomes


def start(job: Job, device: str | None) -> subprocess.Popen[bytes]:
    """The process of a job. It ends when its standard input does, so also when this process is killed."""
    job.write()
    environment = dict(os.environ)
    if device == "cpu":
        # One thread each, whatever the number of jobs: more would sum in another order.
        environment.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "maxmatch.reproduce.worker", str(job.folder), *([device] if device else [])]
    with (job.folder / LOG).open("wb") as log:
        # Ctrl-C in a terminal goes to a whole session; in sessions of their own they are told by us, once.
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )


def _ready(job: Job, outcomes: Mapping[Path, Outcome]) -> bool:
    return all(member == job.folder or member in outcomes for member in job.members)


def _lost(job: Job, outcomes: Mapping[Path, Outcome]) -> bool:
    return any(member in outcomes and outcomes[member].result is None for member in job.members)


def _outcome(job: Job, code: int) -> Outcome:
    result = job.result()
    if code == 0 and result is not None:
        return Outcome(result)
    if code < 0:
        return Outcome(None, f"killed by signal {-code}, perhaps out of memory: try fewer --jobs")
    if code == 130:
        return Outcome(None, "interrupted; run the command again to resume")
    log = (job.folder / LOG).read_text(encoding="utf-8", errors="replace").strip()
    _, marked, reason = log.rpartition(REASON)
    lines = (reason if marked else log).strip().splitlines() or [f"ended with exit code {code} and no result"]
    return Outcome(None, f"{lines[0] if marked else lines[-1]} ({job.folder / LOG})")


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes by closing their input, and wait until they have saved."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    last = time.monotonic() + _STOP_WITHIN
    for process in processes:
        try:
            process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
