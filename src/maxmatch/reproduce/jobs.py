"""One model to train and measure: where it lies, what it was made with, and what came out. No torch here."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from maxmatch.files import write_whole
from maxmatch.recipe import Recipe

Protocol = Literal["plain", "auto"]
JOB, RESULT, LOG = "job.json", "result.json", "log.txt"
_VERSION = 1
"""Raised by one when the same settings would give other figures."""


@dataclass(frozen=True)
class Job:
    """A model, or an ensemble of several that were trained before, and the split it is measured on.

    members: the folder of each recipe's run; of a single model this is the job's own. split: None for the recipe's, or
    what the data has. protocol: as of `maxmatch.evaluation.protocol`.
    """

    folder: Path
    recipes: tuple[Recipe, ...]
    members: tuple[Path, ...]
    split: str | None = None
    protocol: Protocol = "plain"

    @property
    def settings(self) -> dict[str, Any]:
        """All that the figures depend on, as JSON has it: a result with other settings is not this job's."""
        said = {"recipes": list(map(_essence, self.recipes)), "split": self.split, "protocol": self.protocol}
        return {"version": _VERSION, **said}

    def write(self) -> None:
        """Put down what is to be done, for the process that does it."""
        recipes = [recipe.model_dump(mode="json") for recipe in self.recipes]
        said = {"members": list(map(str, self.members)), "recipes": recipes}
        text = json.dumps({**said, "split": self.split, "protocol": self.protocol}, indent=2)
        write_whole(self.folder / JOB, text + "\n")

    def finish(self, result: Mapping[str, Any]) -> None:
        """Put down what came out; from then on the job is done."""
        write_whole(self.folder / RESULT, json.dumps({"settings": self.settings, **result}, indent=2) + "\n")

    def result(self) -> dict[str, Any] | None:
        """What came out; None where it is not done, or was done with other settings."""
        try:
            found = json.loads((self.folder / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none yet, or a damaged one: the run's own files make it again
            return None
        return found if isinstance(found, dict) and found.get("settings") == self.settings else None


def read_job(folder: Path) -> Job:
    """The job that was written down in a folder."""
    said = json.loads((folder / JOB).read_text(encoding="utf-8"))
    recipes = tuple(map(Recipe.model_validate, said["recipes"]))
    return Job(folder, recipes, tuple(map(Path, said["members"])), said["split"], said["protocol"])


def single(cells: Path, recipe: Recipe, split: str | None, protocol: Protocol) -> Job:
    """The job of one model. Its folder is named by what is trained: two tables that need the same model share it, and
    one that differs in anything lies elsewhere.
    """
    recipe = recipe.model_copy(update={"name": kind(recipe), "description": ""})
    folder = cells / f"{recipe.name}-seed{recipe.seed}-{_digest([_essence(recipe)])}"
    return Job(folder, (recipe,), (folder,), split, protocol)


def ensemble(cells: Path, jobs: tuple[Job, ...]) -> Job:
    """The job of several models whose scores are averaged."""
    recipes = tuple(job.recipes[0] for job in jobs)
    folder = cells / f"ensemble{len(jobs)}-{recipes[0].name}-{_digest(list(map(_essence, recipes)))}"
    return Job(folder, recipes, tuple(job.folder for job in jobs), jobs[0].split, jobs[0].protocol)


def kind(recipe: Recipe) -> str:
    """What a recipe trains, in short: similarity, head, set size, losses."""
    towers = recipe.model.resolved().towers
    sizes = "x".join(dict.fromkeys(str(tower.set_size) for tower in towers.values()))
    heads = [tower.head.name for tower in towers.values() if tower.head.name != "set"]
    losses = ("div", "mmd", "gd", "isd")
    there = [loss for loss in losses if getattr(recipe.objective, f"{loss}_weight")]
    return "-".join([recipe.model.similarity, *dict.fromkeys(heads), f"k{sizes}", *there])


def _essence(recipe: Recipe) -> dict[str, Any]:
    """A recipe without its names and texts. Generated scenes are the same wherever they lie, and words that are not
    held out make no difference.
    """
    said: dict[str, Any] = recipe.model_dump(mode="json", exclude={"name", "description"})
    del said["data"]["licence"]
    if not recipe.data.hold_out_words:
        del said["data"]["hold_out_words"]
    if recipe.data.scenes is not None:
        del said["data"]["path"]
    return said


def _digest(settings: Any) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
