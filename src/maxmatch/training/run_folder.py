"""The folder of a run: its recipe, metrics, states and checkpoints."""

import json
from dataclasses import dataclass
from pathlib import Path

from maxmatch.files import write_whole
from maxmatch.recipe import Recipe
from maxmatch.recipe_files import dump_recipe, load_recipe
from maxmatch.training.log import METRICS
from maxmatch.training.state import States

RECIPE, DONE = "recipe.yaml", "done.json"


@dataclass(frozen=True)
class RunFolder:
    """Where everything of a run lies.

    recipe.yaml    the recipe as it was resolved
    metrics.jsonl  losses, validation, collapse
    tracker-id.txt by what wandb or trackio knows the run, where the recipe asks for one
    states/        where the run stands, for going on
    best/, last/   checkpoints that `SetEncoder.from_pretrained` reads
    done.json      the results, once it is finished
    """

    path: Path

    @property
    def best(self) -> Path:
        """The checkpoint with the best RSUM."""
        return self.path / "best"

    @property
    def last(self) -> Path:
        """The checkpoint of the end."""
        return self.path / "last"

    @property
    def done(self) -> Path:
        """What says that the run is finished."""
        return self.path / DONE

    @property
    def recipe(self) -> Path:
        """The recipe as it was resolved."""
        return self.path / RECIPE

    def begin(self, recipe: Recipe) -> None:
        """Make the folder, and write down what is trained in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.recipe, dump_recipe(recipe))

    def result(self) -> dict[str, float]:
        """The measures of the best epoch of a run that is finished."""
        return dict(json.loads(self.done.read_text(encoding="utf-8")))

    def states(self, keep: int) -> States:
        """The states of the run."""
        return States(self.path / "states", keep)


def open_run(path: Path, recipe: Recipe, resume: bool) -> RunFolder:
    """The folder of a run: a new one, or with `resume` one that holds the same recipe. Nothing is written yet."""
    known = path / RECIPE
    if known.exists():
        if not resume:
            raise FileExistsError(
                f"{path}: holds a run already. Go on with it by --resume, or choose another folder with --out."
            )
        if load_recipe(known) != recipe:
            raise ValueError(
                f"{known}: the run there was started with another recipe. Resume it with its own "
                f"(maxmatch train {known} --resume --out {path}), or choose another folder."
            )
    elif path.exists() and (any(path.glob("state*")) or (path / METRICS).exists()):
        raise FileExistsError(f"{path}: holds files of a run, but no {RECIPE}. Choose another folder.")
    return RunFolder(path)
