"""From a target and the command's options to the jobs that it takes. No torch here."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from maxmatch.recipe import Recipe
from maxmatch.recipe_files import load_recipe
from maxmatch.reproduce.jobs import Job, Protocol, ensemble, single
from maxmatch.reproduce.targets import Line, Target
from maxmatch.reproduce.variants import Variant, changes

SCENES = "scenes"
"""As data: generate it."""
CELLS = "cells"
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
class Options:
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
    """A line of the table and the jobs that its figures come from, one a seed. needs: those that these build upon.
    why_none: where there are none.
    """

    line: Line
    jobs: tuple[Job, ...] = ()
    needs: tuple[Job, ...] = ()
    why_none: str = ""


@dataclass(frozen=True)
class Plan:
    """The table to be."""

    target: Target
    options: Options
    base: str | None
    """The recipe that the rows are made from; None for the paper's own."""
    lines: tuple[PlannedLine, ...] = field(default=())

    @property
    def jobs(self) -> list[Job]:
        """All jobs, each once, ensembles after their members."""
        return jobs_of([self])


def jobs_of(plans: Iterable[Plan]) -> list[Job]:
    """The jobs of several tables, one that two of them need only once; ensembles after their members."""
    lines = [line for plan in plans for line in plan.lines]
    found = [job for line in lines for job in (*line.needs, *line.jobs)]
    in_order = sorted(found, key=lambda job: len(job.members))
    return list({job.folder: job for job in in_order}.values())


def plan(target: Target, options: Options) -> Plan:
    """The jobs of a target: each line's recipe, once for each seed."""
    elsewhere = options.base if options.base is not None else SCENES if SCENES in options.data else None
    base = target.base if elsewhere is None else elsewhere
    protocol: Protocol = "auto" if elsewhere is None and target.data == "coco" else "plain"
    lines = [line for line in target.lines if base is None or line.variant is not None]

    @cache  # most lines begin with the same file
    def load(name: str, *said: str) -> Recipe:
        return load_recipe(name, said)

    return Plan(target, options, base, tuple(_planned(line, protocol, options, base, load) for line in lines))


def _planned(line: Line, protocol: Protocol, options: Options, base: str | None, load: Load) -> PlannedLine:
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
    cells = options.out / CELLS
    jobs = tuple(single(cells, one, options.split, protocol) for one in seeds)
    if line.ensemble:
        return PlannedLine(line, (ensemble(cells, jobs[:_ENSEMBLE]),), jobs[:_ENSEMBLE])
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


def _recipe(name: str, variant: Variant | None, data: str, options: Options, load: Load) -> Recipe:
    """The recipe of a line: the small version, the user's changes, what makes the row, and the data."""
    said = [*(_quick(load(name)) if options.quick else ()), *options.changes]
    recipe = load(name, *said)
    if variant is not None:
        said += changes(variant, recipe)
    return load(name, *said, _data_path(recipe, data, options.out))


def _quick(recipe: Recipe) -> list[str]:
    if recipe.data.scenes is not None and recipe.model.config is not None:
        return list(_QUICK_SCENES)
    return [f"train.epochs={-(-recipe.train.epochs // _QUICK_SHARE)}"]


def _data_path(recipe: Recipe, data: str, out: Path) -> str:
    """Where the data is, as an override. Scenes lie where others of another number or size do not."""
    path = Path(data).expanduser()
    if data == SCENES:
        scenes = recipe.data.scenes
        if scenes is None:
            raise ValueError(f"{recipe.name}: says nothing of scenes. Take a recipe for them, or other --data.")
        path = out / f"scenes-{scenes.images}-{scenes.size}-{scenes.seed}"
    elif not path.exists():
        raise FileNotFoundError(f"--data {data}: no such file or folder. For generated data: --data {SCENES}")
    return f"data.path={json.dumps(str(path.absolute()))}"
