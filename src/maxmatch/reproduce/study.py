"""Studies: a fair comparison of methods as one YAML file, and the jobs of its two phases, tuning and finals.

Every method is tuned with the same number of trials, on the same part of the training images, by what it finds among
training images that are set aside. The best values are frozen, and models with them are trained on all other training
images, by several seeds. The photos of the final split are looked at once per model. No torch here.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, JsonValue, TypeAdapter, ValidationError, model_validator

from maxmatch.core.array_checks import UsageError
from maxmatch.core.files import write_whole
from maxmatch.core.manifest import describe, location
from maxmatch.model.config import Count, Positive, refusal
from maxmatch.recipe.schema import Data, NotNegative, Recipe, Section, Whole
from maxmatch.recipe.yaml_files import RecipeError, dump, load_recipe, parse_file, place_of_keys, read_extended
from maxmatch.reproduce.targets import CELLS, Job, ReproduceOptions, data_for, data_override, single, targets

STUDIES = Path(__file__).resolve().parent / "studies"
SET_ASIDE = "set_aside"  # the split of what data.set_aside lists


def _whole_name(given: Any) -> Any:
    """All captions of an image are asked for by the image: `map_at_r` is `i2t_map_at_r`."""
    several = given in ("map_at_r", "r_precision", "coverage_5", "coverage_10", "coverage_20")
    return f"i2t_{given}" if several else given


Measure = Annotated[
    Literal[
        "rsum", "i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "i2t_map_at_r", "i2t_r_precision",
        "i2t_coverage_5", "i2t_coverage_10", "i2t_coverage_20",
        "i2t_map", "i2t_precision_5", "i2t_precision_10", "i2t_mrr", "i2t_ndcg_5", "i2t_ndcg_10",
        "t2i_map", "t2i_precision_5", "t2i_precision_10", "t2i_mrr", "t2i_ndcg_5", "t2i_ndcg_10",
        "i2t_hardest_r1", "i2t_hardest_r5", "i2t_hardest_r10", "t2i_hardest_r1", "t2i_hardest_r5", "t2i_hardest_r10",
    ],
    BeforeValidator(_whole_name),
]  # fmt: skip
"""What trials are chosen by and methods are compared by: RSUM, and the means over queries of `evaluation.measures`."""
Grid = Annotated[dict[str, list[JsonValue] | None], BeforeValidator(lambda given: given or {})]
"""The values that may be tried, by the recipe's key."""
Files = Annotated[
    tuple[str, ...], Field(min_length=1), BeforeValidator(lambda given: [given] if isinstance(given, str) else given)
]
_MOST = 100_000  # combinations of a grid


class Tuning(Section):
    """The first phase. Every method has as many trials; with none, all go into the finals as they are."""

    trials: Whole = 6
    images: Count | None = 10_000
    """Training images, a random part; None for all but those set aside."""
    epochs: Count = 12
    early_stop: Count | None = None
    seed: Whole = 0
    """Of the order in which trials are drawn."""


class Final(Section):
    """The second phase: models with the chosen values, trained on all training images but those set aside."""

    seeds: Count = 3
    epochs: Count = 15
    early_stop: Count | None = None
    split: str = "val"
    """Looked at once per model, when it is trained."""


class Method(Section):
    """One that is compared: a recipe, what changes in it, and what may be tuned.

    tune: beside what all methods may tune; null for a key takes it from this method. passes: how many of its epochs
    count as one; 5 where a batch has one of five captions of an image, so that all methods see as many captions.
    """

    recipe: str | None = None
    changes: tuple[str, ...] = ()
    tune: Grid = Field(default_factory=dict)
    passes: Count = 1


class Goal(Section):
    """What the finals are to show: that one of our methods leads every rival by enough of one measure.

    lead: at least so much, by measure; any one of them will do. at_equal: how much lower ours may be in a measure
    while it leads by another. p: both, over photos and over seeds, are to be smaller, corrected for rivals × measures.
    """

    ours: Annotated[tuple[str, ...], Field(min_length=1)]
    rivals: Annotated[tuple[str, ...], Field(min_length=1)]
    lead: Annotated[dict[Measure, Positive], Field(min_length=1)]
    at_equal: dict[Measure, NotNegative] = Field(default_factory=dict)
    p: Annotated[float, Field(gt=0, lt=1)] = 0.05


class Study(Section):
    """A comparison: what is compared, what may be tuned, and the budget.

    base: the recipe of methods that name none. measures: what the finals are compared by, named beforehand. measure:
    the one of them that trials are chosen by; None for the first. changes: to the recipes of all methods. tune: what
    every method may tune. set_aside: the ids of the training images to choose by, a file beside the study's; of several
    the first that fits the data. only: the methods that are compared, of those of a study that this one extends; None
    for all.
    """

    name: str
    description: str = ""
    base: str
    reference: str
    measures: Annotated[tuple[Measure, ...], Field(min_length=1)] = ("rsum",)
    measure: Measure | None = None
    goal: Goal | None = None
    set_aside: Files
    changes: tuple[str, ...] = ()
    tune: Grid = Field(default_factory=dict)
    tuning: Tuning = Tuning()
    final: Final = Final()
    methods: Annotated[dict[str, Method], Field(min_length=2)]
    only: Annotated[tuple[str, ...], Field(min_length=2)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _others_are_left_out(cls, given: Any) -> Any:
        only, methods = given.get("only"), given.get("methods")
        if not isinstance(only, list) or not isinstance(methods, dict):
            return given  # refused by their types, or all
        for title in only:
            if title not in methods:
                raise refusal(f"expected methods ({', '.join(methods)}), got {title!r}", "only")
        return {**given, "methods": {title: methods[title] for title in only}}

    @model_validator(mode="after")
    def _budget_is_equal(self) -> "Study":
        if self.reference not in self.methods:
            raise refusal(f"expected one of the methods {', '.join(self.methods)}, got {self.reference!r}", "reference")
        for title in self.methods:
            grid = self.grid(title)
            for key, values in grid.items():
                if not values:
                    raise refusal(f"{key}: no value to try", "methods", title)
            if grid and not self.tuning.trials:
                raise refusal("with no trials nothing is tuned; leave tune away", "methods", title)
            if prod(map(len, grid.values())) > _MOST:
                raise refusal(f"more than {_MOST:,} combinations; try fewer values", "methods", title)
        return self

    @model_validator(mode="after")
    def _measures_are_named(self) -> "Study":
        if len(set(self.measures)) < len(self.measures):
            raise refusal(f"expected each measure once, got {', '.join(self.measures)}", "measures")
        named = f"expected one of the measures {', '.join(self.measures)}"
        if self.measure not in (None, *self.measures):
            raise refusal(f"{named}, got {self.measure!r}", "measure")
        if self.goal is None:
            return self
        for key in ("ours", "rivals"):
            for title in getattr(self.goal, key):
                if title not in self.methods:
                    raise refusal(f"expected methods ({', '.join(self.methods)}), got {title!r}", "goal", key)
                if key == "rivals" and title in self.goal.ours:
                    raise refusal(f"{title!r} is one of ours", "goal", key)
        for key in ("lead", "at_equal"):
            for measure in getattr(self.goal, key):
                if measure not in self.measures:
                    raise refusal(f"{named}, got {measure!r}", "goal", key)
        return self

    @property
    def main(self) -> str:
        """The measure that trials are chosen by."""
        return self.measure or self.measures[0]

    def grid(self, title: str) -> dict[str, list[JsonValue]]:
        """What a method may tune: the common keys, then its own."""
        both = {**self.tune, **self.methods[title].tune}
        return {key: values for key, values in both.items() if values is not None}


def studies() -> dict[str, str]:
    """The studies that ship: name and description."""
    return {file.stem: str(parse_file(file).values.get("description", "")) for file in sorted(STUDIES.glob("*.yaml"))}


def is_study(name: str) -> bool:
    """Whether a target is a study: one that ships, or a file of one's own."""
    return name.endswith((".yaml", ".yml")) or (STUDIES / f"{name}.yaml").is_file()


def load_study(name: str) -> Study:
    """A study that ships, by its name, or from a file (`.yaml`). It may extend another, as recipes do; files that are
    named in a study lie beside it.
    """
    path = _find(name, Path())
    found = read_extended(path, _find)
    if path.stem in targets():
        raise UsageError(f"{path}: {path.stem!r} is also a table of the paper. Rename the file.")
    try:
        study = Study.model_validate({"name": path.stem, **found.values})
    except ValidationError as error:
        lines = [f"{place_of_keys(found, location(problem))}: {describe(problem)}" for problem in error.errors()]
        raise RecipeError("\n".join(lines)) from error

    def beside(file: str, *keys: str) -> str:
        written_in = Path(place_of_keys(found, keys).rpartition(":")[0])
        return str(written_in.resolve().parent / Path(file).expanduser())

    def recipe(wanted: str, *keys: str) -> str:
        return beside(wanted, *keys) if wanted.endswith((".yaml", ".yml")) else wanted

    methods = {
        title: method.model_copy(update={"recipe": recipe(method.recipe, "methods", title, "recipe")})
        if method.recipe
        else method
        for title, method in study.methods.items()
    }
    aside = tuple(beside(file, "set_aside") for file in study.set_aside)
    return study.model_copy(update={"set_aside": aside, "base": recipe(study.base, "base"), "methods": methods})


def _find(wanted: str, folder: Path) -> Path:
    """The file that a path (it ends in .yaml) or the name of a study stands for."""
    own = wanted.endswith((".yaml", ".yml"))
    path = folder / Path(wanted).expanduser() if own else STUDIES / f"{wanted}.yaml"
    if not path.is_file():
        raise UsageError(f"{wanted}: no such file. A study is a .yaml file, or one that ships: {', '.join(studies())}.")
    return path


# Trials.

Values = dict[str, Any]
"""By the recipe's key."""


def draw_trials(grid: Mapping[str, Sequence[Any]], own: Values, count: int, seed: int) -> list[Values]:
    """So many trials of a grid, none twice. The first has the recipe's own values; of the others each is one of those
    whose values were tried least so far, in an order drawn by the seed, so that all values come about equally often.
    """
    others = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    others = [one for one in others if one != own]
    if len(others) + 1 < count:
        raise ValueError(
            f"expected {count} trials, as of every method, but its grid and its own values make {len(others) + 1}. "
            "Give it more to tune."
        )
    left = [others[place] for place in np.random.default_rng(seed).permutation(len(others))]
    drawn, tried = [own], Counter(_marks(own))
    while len(drawn) < count:
        best = min(left, key=lambda one: sum(tried[mark] for mark in _marks(one)))
        left.remove(best)
        drawn.append(best)
        tried.update(_marks(best))
    return drawn


def _marks(values: Values) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


@dataclass(frozen=True)
class Trial:
    """Values that are tried, how they change the recipe, and the job that tries them."""

    values: Values
    changes: tuple[str, ...]
    job: Job


def cells_of(trials: Sequence[Trial]) -> tuple[str, ...]:
    """The names of their folders."""
    return tuple(trial.job.folder.name for trial in trials)


class Chosen(Section):
    """What a method goes into the finals with: the values of one trial, and how well it did."""

    trial: Whole
    """Counted from 1; the first has the recipe's own values. 0: nothing was tuned."""
    cells: tuple[str, ...]
    """The folders of all trials: with other data, recipes, grids or budgets they are others."""
    score: float | None = None
    failed: Whole = 0
    values: dict[str, JsonValue] = Field(default_factory=dict)
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyPlan:
    """The jobs of a study. options: the data, where all is written, and the user's changes to all recipes. only: the
    methods that are tuned and trained, where not all are; what is left of the others is shown.
    """

    study: Study
    options: ReproduceOptions
    only: Sequence[str] = ()
    _fitting: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The list of what is set aside that fits the data, by the data."""

    def __post_init__(self) -> None:
        known = {title.lower(): title for title in self.study.methods}
        for title in self.only:
            if title not in self.study.methods:
                near = [known[one] for one in get_close_matches(title.lower(), known, n=3)]
                advice = (
                    f"Did you mean {' or '.join(map(repr, near))}?" if near else f"It has {', '.join(known.values())}."
                )
                raise UsageError(f"only: {self.study.name} has no method {title!r}. {advice}")

    @property
    def wanted(self) -> list[str]:
        """The methods that are tuned and trained."""
        return [title for title in self.study.methods if not self.only or title in self.only]

    def trials(self, title: str) -> list[Trial]:
        """All trials of a method."""
        grid, tuning = self.study.grid(title), self.study.tuning
        if not tuning.trials:
            return []
        own = {key: _value_at(self._recipe(title), key) for key in grid}
        try:
            drawn = draw_trials(grid, own, tuning.trials, tuning.seed)
        except ValueError as error:
            raise UsageError(f"{self.study.name}: {title}: {error}") from error
        made = []
        for number, values in enumerate(drawn):
            changes = tuple(_marks(values)) if number else ()
            phase = self._phase(title, tuning)
            recipe = self._recipe(title, *changes, *phase, f"data.max_images={json.dumps(tuning.images)}")
            made.append(Trial(values, changes, single(self._cells, recipe, SET_ASIDE, "plain")))
        if len({trial.job.folder for trial in made}) < len(made):
            raise UsageError(f"{self.study.name}: {title}: two trials are the same model. Tune something that matters.")
        return made

    def finals(self, title: str, changes: Sequence[str]) -> tuple[Job, ...]:
        """The models of a method with the chosen values, one per seed."""
        final = self.study.final
        recipe = self._recipe(title, *changes, *self._phase(title, final))
        if final.split in (SET_ASIDE, recipe.data.train_split):
            raise UsageError(
                f"{self.study.name}: {title}: final.split is {final.split!r}, which the model was trained or chosen "
                "on. Take another split."
            )
        seeds = [recipe.model_copy(update={"seed": recipe.seed + place}) for place in range(final.seeds)]
        return tuple(single(self._cells, one, final.split, "plain") for one in seeds)

    def _phase(self, title: str, phase: Tuning | Final) -> list[str]:
        """How long a method is trained in a phase. Only where it differs, what else goes by epochs is changed too."""
        passes, stop = self.study.methods[title].passes, phase.early_stop
        epochs, stop = phase.epochs * passes, None if stop is None else stop * passes
        changes = [f"train.epochs={epochs}", f"train.early_stop={json.dumps(stop)}"]
        return changes if passes == 1 else [*changes, f"train.validate_every={passes}"]

    @property
    def _cells(self) -> Path:
        return self.options.out / CELLS

    def _recipe(self, title: str, *changes: str) -> Recipe:
        """What all share, the user's changes, what makes the method, what is tried, and the data."""
        method, study = self.study.methods[title], self.study
        name = method.recipe or self.options.base or study.base
        data = data_for(name, self.options.data)
        if data is None:
            raise UsageError(f"{study.name}: {title}: no --data for {name}.")
        # Each is measured by the similarity that it is trained with, unless the method says otherwise.
        first = ("evaluate.similarities=null", *study.changes, *self.options.changes, *method.changes)
        try:
            path = data_override(_load(name, *first, *changes), data, self.options.out)
            aside = (self._set_aside(_load(name, *first, path).data), f"data.val_split={SET_ASIDE}")
            return _load(name, *first, *changes, *aside, path)
        except RecipeError as error:
            raise RecipeError(f"{study.name}: {title}: {error}") from error

    def _set_aside(self, data: Data) -> str:
        """What is set aside, as an override: the user's list, else that of the study's which fits the data."""
        given = [one for one in self.options.changes if one.partition("=")[0].strip() == "data.set_aside"]
        if given:
            return given[-1]
        file, *others = self.study.set_aside
        if others:
            from maxmatch.data.load import fitting_list

            key = data.model_dump_json(exclude={"features"})
            if key not in self._fitting:
                self._fitting[key] = str(fitting_list([Path(one) for one in self.study.set_aside], data))
            file = self._fitting[key]
        return f"data.set_aside={json.dumps(file)}"

    # What was chosen, kept in a file: once it is there, it is not chosen again.

    @property
    def chosen_file(self) -> Path:
        """Where the chosen values are kept."""
        return self.options.out / f"{self.study.name}-chosen.yaml"

    def read_chosen(self) -> dict[str, Chosen]:
        """What was chosen before, by method; empty if nothing was."""
        if not self.chosen_file.exists():
            return {}
        frozen = self._frozen()
        try:
            found = TypeAdapter(dict[str, Chosen]).validate_python(frozen.get("methods"))
        except ValidationError as error:
            raise UsageError(f"{self.chosen_file}: {describe(error.errors()[0])}. Correct it, or remove it.") from error
        by = frozen.get("measure", "rsum")
        if by != self.study.main:
            raise UsageError(
                f"{self.chosen_file}: was chosen by {by}, the study asks for {self.study.main}. Set measure: {by} in "
                "the study, or take another --out."
            )
        known = {title: one for title, one in found.items() if title in self.study.methods}
        for title, one in known.items():
            if one.cells != cells_of(self.trials(title)):
                raise UsageError(
                    f"{self.chosen_file}: {title}: was chosen among other trials: with other data, another recipe, "
                    "grid, budget or list of images set aside. Remove its entry to tune it anew, or take another --out."
                )
        return known

    def write_chosen(self, chosen: Mapping[str, Chosen]) -> None:
        """Freeze what was chosen, and by which measures the finals will be compared, unless these are frozen."""
        study, methods = self.study, {title: one.model_dump(mode="json") for title, one in chosen.items()}
        about = {
            "study": study.name, "measure": study.main, "measures": self._named_first(),
            "tuning": study.tuning.model_dump(),
        }  # fmt: skip
        head = (
            "# Chosen on the images set aside, before the first final model. Remove an entry to tune its method anew.\n"
        )
        write_whole(self.chosen_file, head + dump({**about, "methods": methods}))

    def named_late(self) -> list[str]:
        """The measures that the study did not name yet when values were frozen: finals may have been seen by then."""
        first = self._named_first()
        return [measure for measure in self.study.measures if measure not in first]

    def _named_first(self) -> list[str]:
        """The measures that are named in the file, once there is one; before them there was only RSUM."""
        frozen = self._frozen()
        return list(frozen.get("measures") or ["rsum"]) if frozen else list(self.study.measures)

    def _frozen(self) -> dict[str, Any]:
        """The content of the file; empty without one."""
        return dict(parse_file(self.chosen_file).values) if self.chosen_file.exists() else {}


@cache  # many models begin with the same file
def _load(name: str, *overrides: str) -> Recipe:
    return load_recipe(name, overrides)


def _value_at(recipe: Recipe, key: str) -> Any:
    """A recipe's own value; None where it leaves it to the model or the function."""
    value: Any = recipe.model_dump(mode="json")
    parts = key.split(".")
    for place, part in enumerate(parts):
        if not isinstance(value, dict):
            return None
        rest = ".".join(parts[place:])
        if rest in value:  # the dots belong to the key: train.freeze.image.backbone
            return value[rest]
        value = value.get(part)
    return value
