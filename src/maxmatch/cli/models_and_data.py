"""What a verb takes as MODEL… DATA: checkpoints, runs, files of sets; and the data, which a run knows itself."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from maxmatch.model.names import shipped_model

if TYPE_CHECKING:
    from maxmatch.data.dataset import Dataset
    from maxmatch.recipe.schema import Data, Recipe

_MODELS = (
    "a checkpoint's folder (config.json, model.safetensors), a run's folder (recipe.yaml, best/), a model that ships, "
    "or a .safetensors file of --save-sets"
)
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
class ModelSource:
    """A model as it was named, and where it lies. recipe: of a run, which says where its data is."""

    name: str
    path: str
    kind: Literal["checkpoint", "sets"]
    recipe: "Recipe | None" = None


def divide(arguments: Sequence[str], say: Callable[[str], object]) -> tuple[list[ModelSource], str | None]:
    """The models and the data: the last argument is the data, unless it is a model too."""
    data = arguments[-1] if len(arguments) > 1 and _source(arguments[-1]) is None else None
    found = []
    for argument in arguments if data is None else arguments[:-1]:
        source = _source(argument)
        if source is None and _HUB_NAME.fullmatch(argument) and not Path(argument).exists():
            source = ModelSource(argument, argument, "checkpoint")
        if source is None:
            raise ValueError(f"{argument}: no model. Expected {_MODELS}.")
        if source.recipe is not None:
            say(f"{argument}: a run; its best epoch is taken ({source.path})")
        found.append(source)
    return _with_short_names(found), data


def _source(argument: str) -> ModelSource | None:
    """What an argument is, if it is a model."""
    from maxmatch.model.checkpoint import CONFIG
    from maxmatch.model.config import FORMAT

    path = Path(argument).expanduser()
    if path.suffix == ".safetensors":
        if not path.is_file():
            raise FileNotFoundError(f"{argument}: no such file. Write one with --save-sets.")
        if path.name == "model.safetensors" and (path.parent / CONFIG).is_file():
            raise ValueError(f"{argument}: the weights of a checkpoint. Give its folder: {path.parent}")
        return ModelSource(argument, str(path), "sets")
    if (path / "recipe.yaml").is_file():
        from maxmatch.recipe.yaml_files import load_recipe

        if not (path / "best" / CONFIG).is_file():
            raise ValueError(f"{argument}: a run without best/: no epoch is done yet. Wait, or go on with --resume.")
        return ModelSource(argument, str(path / "best"), "checkpoint", load_recipe(path / "recipe.yaml"))
    if (path / CONFIG).is_file():
        ours = f'"{FORMAT}"' in (path / CONFIG).read_text(encoding="utf-8", errors="replace")
        return ModelSource(argument, str(path), "checkpoint") if ours else None
    shipped = shipped_model(argument) if not path.exists() else None
    return ModelSource(argument, str(shipped), "checkpoint") if shipped is not None else None


def _with_short_names(sources: Sequence[ModelSource]) -> list[ModelSource]:
    """Their last names, where those are told apart by them; that of a run goes before best/ and last/."""
    paths = [Path(source.name).expanduser().absolute() for source in sources]
    short = [f"{path.parent.name}/{path.name}" if path.name in ("best", "last") else path.name for path in paths]
    return [
        replace(source, name=name) if short.count(name) == 1 else source
        for source, name in zip(sources, short, strict=True)
    ]


def data_of(sources: Sequence[ModelSource], path: str | None) -> "Data":
    """Where the data is: as said, or as the recipes of the runs say."""
    from maxmatch.recipe.schema import Data

    if path is not None:
        return Data(path=path)
    known = [source for source in sources if source.recipe is not None and source.recipe.data.path is not None]
    if not known:
        raise ValueError("DATA: which data to measure on? Give its folder after the models; only a run knows its own.")
    first = known[0].recipe
    assert first is not None
    for other in known[1:]:
        assert other.recipe is not None
        if other.recipe.data.path != first.data.path:
            raise ValueError(
                f"DATA: {known[0].name} was trained on {first.data.path} and {other.name} on {other.recipe.data.path}. "
                "Say which data to measure on, after the models."
            )
    return first.data


def choose_split(dataset: "Dataset", asked: str | None, usual: str, say: Callable[[str], object]) -> str:
    """The split that was asked for; without that the usual one. Where it is not there, "test", "val" or the only one
    that is, and that is said.
    """
    if asked is not None:
        dataset.split(asked)
        return asked
    only = [*dataset.splits] if len(dataset.splits) == 1 else []
    for name in (usual, "test", "val", *only):
        if name in dataset.splits:
            if name != usual:
                say(f"{dataset.path}: has no split {usual!r}; measured on {name!r}")
            return name
    dataset.split(usual)
    raise AssertionError("a split that is not there was found")
