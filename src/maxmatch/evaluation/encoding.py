"""The sets of a whole split: of a model in memory, of runs and checkpoints by name, or read from a file."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from maxmatch.core.array_checks import refuse_not_finite
from maxmatch.core.checks import check_pair
from maxmatch.core.devices import chosen_device
from maxmatch.core.files import whole
from maxmatch.core.progress import Advance, Bar, Skipped, no_bar, quiet
from maxmatch.data.dataset import Dataset, Items, Split
from maxmatch.data.extraction import check_features
from maxmatch.data.feed import Feed, FeedName, choose_feed, log_skipped
from maxmatch.data.load import load_data
from maxmatch.data.sampler import BatchPlan
from maxmatch.evaluation.ranking import true_pairs
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.hub.two_towers import FAMILIES
from maxmatch.model.inputs import FeatureReader, PixelReader, Reader, TextReader, TokenStateReader
from maxmatch.model.names import (
    CONFIG,
    OPEN_CLIP,
    hub_model_type,
    is_checkpoint,
    is_hub_name,
    local_model,
    model_identity,
)
from maxmatch.recipe.schema import Data, Recipe
from maxmatch.recipe.yaml_files import RecipeError, load_recipe


@dataclass(frozen=True)
class EncodedSplit:
    """The sets of a split, by modality; the group of each, and where they are asked for, the names of the items.

    notes: model, data, similarity, for who reads them from a file; and "groups": how many the split has, those left
    out included. masks: which vectors are real (n, K), where sets are padded.
    """

    sets: Mapping[str, Tensor]
    groups: Mapping[str, Tensor]
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    masks: Mapping[str, Tensor] = field(default_factory=dict)

    def partners(self, pair: tuple[str, str]) -> Tensor:
        """For each item of the second modality the place of one of the first that belongs to it."""
        return _partners(*(self.groups[name] for name in pair))

    def only(self, groups: np.ndarray) -> "EncodedSplit":
        """What belongs to some groups."""
        kept = {name: np.isin(mine.cpu().numpy(), groups) for name, mine in self.groups.items()}
        rows = {name: torch.from_numpy(np.flatnonzero(keep)) for name, keep in kept.items()}
        return EncodedSplit(
            {name: sets[rows[name].to(sets.device)] for name, sets in self.sets.items()},
            {name: mine[rows[name].to(mine.device)] for name, mine in self.groups.items()},
            {name: list(compress(ids, kept[name])) for name, ids in self.ids.items()},
            self.notes,
            {name: mask[rows[name].to(mask.device)] for name, mask in self.masks.items()},
        )


def _partners(rows: Tensor, columns: Tensor) -> Tensor:
    order = rows.argsort(stable=True)
    return order[torch.searchsorted(rows[order], columns)]


def in_order(size: int, batch_size: int) -> list[BatchPlan]:
    """All groups, one after the other."""
    return [BatchPlan(np.arange(start, min(start + batch_size, size)), None) for start in range(0, size, batch_size)]


def encode_split(
    model: SetEncoder,
    feed: Feed,
    size: int,
    batch_size: int,
    precision: torch.dtype | None = None,
    advance: Advance = quiet,
) -> EncodedSplit:
    """The sets of `size` groups, in evaluation mode, on the model's device."""
    sets: dict[str, list[Tensor]] = {name: [] for name in model.towers}
    groups: dict[str, list[Tensor]] = {name: [] for name in model.towers}
    mixed = torch.autocast(model.device.type, precision) if precision is not None else nullcontext()
    with model.evaluating(), mixed:
        plans = in_order(size, batch_size)
        for plan, batch in zip(plans, feed.batches(plans), strict=False):
            for name, inputs in batch.inputs.items():
                sets[name].append(model.sets_of(name, inputs))
                groups[name].append(batch.groups[name])
            advance(len(plan.groups))
    if not any(groups.values()):
        raise ValueError("not one item could be read. See what is wrong with them: maxmatch data check")
    return EncodedSplit(
        {name: torch.cat(parts) for name, parts in sets.items()},
        {name: torch.cat(parts) for name, parts in groups.items()},
    )


def encode_items(
    model: SetEncoder,
    split: Split,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    precision: torch.dtype | None = None,
    feed: FeedName = "auto",
    picture_cache: Path | None = None,
    report: Callable[[Skipped], None] = log_skipped,
    advance: Advance = quiet,
) -> EncodedSplit:
    """The sets of all items of a split and their names. A group with an item that cannot be read is reported and left
    out; the groups keep their numbers. feed, picture_cache: as of `choose_feed`.
    """
    if split.size == 0:
        raise ValueError("the split is empty: there is nothing to measure. Choose another with --split.")
    items = choose_feed(
        split, readers_for(model, split), model.device, feed=feed, workers=workers, picture_cache=picture_cache,
        report=report,
    )  # fmt: skip
    encoded = encode_split(model, items, split.size, batch_size, precision, advance)
    kept = {name: np.isin(split[name].groups, groups.cpu().numpy()) for name, groups in encoded.groups.items()}
    ids = {name: [str(one) for one in compress(split[name].ids, keep)] for name, keep in kept.items()}
    return replace(encoded, ids=ids, notes={"groups": split.size})


def readers_for(model: SetEncoder, split: Split) -> dict[str, Reader]:
    """How each modality is read: by its tower's reader, or as features, where the split holds what a backbone made
    of the pictures or texts.
    """
    readers: dict[str, Reader] = {name: model.tower(name).reader for name in model.towers}
    for name, reader in readers.items():
        if isinstance(reader, PixelReader | TextReader):
            first = split[name].values[0]
            if isinstance(first, np.ndarray) and first.ndim == 2:  # cells and their width; a picture has colours too
                kind = FeatureReader if isinstance(reader, PixelReader) else TokenStateReader
                readers[name] = kind(first.shape[1])
    return readers


GetItem = Callable[[int], Any]
"""From the place of an item in an encoded split to the item as the data has it."""


def raw_items(split: Split, encoded: EncodedSplit) -> dict[str, GetItem]:
    """The items of an encoded split as `split` has them, by modality; found by their names."""

    def by_place(items: Items, ids: Sequence[str]) -> GetItem:
        places = {str(name): place for place, name in enumerate(items.ids)}
        return lambda item: items.values[places[ids[item]]]

    return {name: by_place(split[name], ids) for name, ids in encoded.ids.items()}


def save_encoded(encoded: EncodedSplit, path: Path) -> None:
    """Write sets, groups, names and notes into one safetensors file."""
    tensors = {
        f"{kind}.{name}": tensor.cpu().clone(memory_format=torch.contiguous_format)  # one may stand for two modalities
        for kind, tensors in (("sets", encoded.sets), ("groups", encoded.groups))
        for name, tensor in tensors.items()
    }
    names = {name: list(ids) for name, ids in encoded.ids.items()}
    with whole(path) as file:
        known = {"format": _FORMAT, "ids": json.dumps(names), "notes": json.dumps(dict(encoded.notes))}
        file.write(save(tensors, known))


def load_encoded(path: Path) -> EncodedSplit:
    """What `save_encoded` wrote."""
    try:
        with safe_open(path, "pt") as file:
            notes = file.metadata() or {}
            if notes.get("format") != _FORMAT:
                raise ValueError(f"{path}: holds no encoded split. Make one with `maxmatch evaluate … --save-sets`.")
            found: dict[str, dict[str, Tensor]] = {"sets": {}, "groups": {}}
            for key in file.keys():  # noqa: SIM118 (not a dict)
                kind, name = key.split(".", 1)
                found[kind][name] = file.get_tensor(key)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: cannot be read as an encoded split ({error}). Make it again.") from error
    return EncodedSplit(found["sets"], found["groups"], json.loads(notes["ids"]), json.loads(notes.get("notes", "{}")))


_FORMAT = "maxmatch-sets-1"


# Two modalities of an encoded split, checked once: what every analysis begins with.


@dataclass(frozen=True)
class Paired:
    """The sets of two modalities, the first of them called the rows and the second the columns, as in a score matrix.

    ids: the names of the items; empty where they are not known.
    """

    names: tuple[str, str]
    sets: tuple[Tensor, Tensor]
    groups: tuple[Tensor, Tensor]
    ids: tuple[Sequence[str], Sequence[str]]

    def partners(self) -> Tensor:
        """For each column the place of one of the rows that belong to it."""
        return _partners(*self.groups)

    def turned(self) -> "Paired":
        """The other way round: the columns as rows."""
        return Paired(self.names[::-1], self.sets[::-1], self.groups[::-1], self.ids[::-1])

    def true_pairs(self) -> tuple[Tensor, Tensor]:
        """The places of all pairs of equal group, by row and within a row by column."""
        return true_pairs(*self.groups)

    def name(self, side: int, place: int) -> str | None:
        """The name of an item of the rows (0) or the columns (1)."""
        return str(self.ids[side][place]) if len(self.ids[side]) else None


def paired(encoded: EncodedSplit, pair: tuple[str, str]) -> Paired:
    """Two modalities of a split. ValueError if there is nothing to measure, or a vector is NaN or infinite."""
    rows, columns = pair
    for name in pair:
        if name not in encoded.sets:
            raise ValueError(f"pair: the split has {', '.join(encoded.sets)}, got {name!r}.")
        if len(encoded.sets[name]) == 0:
            raise ValueError(f"{name}: the split has no items of it: there is nothing to measure.")
        refuse_not_finite(name, encoded.sets[name])
    sets = encoded.sets[rows], encoded.sets[columns]
    check_pair(*sets)
    row_groups, column_groups = (encoded.groups[name].to(sets[0].device).contiguous() for name in pair)
    if not bool(torch.isin(row_groups, column_groups).all() & torch.isin(column_groups, row_groups).all()):
        raise ValueError(f"pair: some {rows} has no true {columns}, or some {columns} no true {rows}. Leave it out.")
    return Paired(pair, sets, (row_groups, column_groups), (encoded.ids.get(rows, ()), encoded.ids.get(columns, ())))


# Models as a person names them (checkpoints, runs, files of sets), and what each makes of one split of the data.

Say = Callable[[str], object]
log_line: Say = logging.getLogger(__name__).warning


def left_out(say: Say) -> Callable[[Skipped], None]:
    """What reports an item that could not be read."""

    def report(item: Skipped) -> None:
        say(f"{item} Left out, with what belongs to it.")

    return report


@dataclass(frozen=True)
class ModelSource:
    """A model: its name in tables, and the path of its checkpoint or file. recipe: of a run, which knows its data.

    kind: of this package "checkpoint" or "sets"; of others "sentence-transformers", "vectors" or "scores"
    (`maxmatch.evaluation.other_models`). path of vectors: their folder, or two files with a zero byte between,
    which no path has.
    """

    name: str
    path: str
    kind: Literal["checkpoint", "sets", "sentence-transformers", "vectors", "scores"]
    recipe: Recipe | None = None


def find_model(name: str | Path) -> ModelSource | None:
    """The model at a path, or the one that ships under a name; None if there is none."""
    path = Path(name).expanduser()
    if path.suffix == ".safetensors":
        if not path.is_file():
            raise FileNotFoundError(f"{name}: no such file. Write one with --save-sets.")
        if path.name == "model.safetensors" and (path.parent / CONFIG).is_file():
            raise ValueError(f"{name}: the weights of a checkpoint. Give its folder: {path.parent}")
        return ModelSource(str(name), str(path), "sets")
    folder = local_model(name) if not path.is_file() else None
    if folder is None or not (is_checkpoint(folder) or hub_model_type(folder) in FAMILIES):
        return None
    recipe = _recipe_of(path / "recipe.yaml", folder) if (path / "recipe.yaml").is_file() else None
    return ModelSource(str(name), str(folder), "checkpoint", recipe)


SENTENCE_MODEL = "st:"
"""Before a name: a model that sentence-transformers loads, from a folder or the hub."""
VECTORS = ("images.npy", "texts.npy")
"""The files of a folder of vectors."""
_BETWEEN = "\0"


def joined_files(images: Path, texts: Path) -> str:
    """Two files of vectors as the path of one source."""
    return f"{images}{_BETWEEN}{texts}"


def vector_files(source: ModelSource) -> list[Path]:
    """The files of images and of texts of a source of vectors."""
    parts = [Path(one).expanduser() for one in source.path.split(_BETWEEN)]
    return parts if len(parts) == 2 else [parts[0] / one for one in VECTORS]


def find_source(name: str | Path) -> ModelSource | None:
    """A model as `find_model` finds it, or one of another library: a folder of sentence-transformers (or "st:NAME"), a
    folder with images.npy and texts.npy, a .npy file of scores.
    """
    path = Path(name).expanduser()
    if str(name).startswith(SENTENCE_MODEL):
        return ModelSource(str(name), str(name).removeprefix(SENTENCE_MODEL), "sentence-transformers")
    if path.suffix == ".npy":
        if not path.is_file():
            raise FileNotFoundError(f"{name}: no such file. Expected scores (images, texts), written by numpy.save.")
        return ModelSource(str(name), str(path), "scores")
    if all((path / file).is_file() for file in VECTORS):
        return ModelSource(str(name), str(path), "vectors")
    found = find_model(name)
    if found is None and (path / "modules.json").is_file():
        return ModelSource(str(name), str(path), "sentence-transformers")
    return found


def _recipe_of(file: Path, checkpoint: Path) -> Recipe:
    """The recipe of a run. The model that it started from may be gone: its own checkpoint has the same config."""
    try:
        return load_recipe(file)
    except RecipeError as error:
        if "model.start" not in str(error):
            raise
        grown = ["model.head=null", "model.set_size=null"]  # a checkpoint has its sets
        return load_recipe(file, [f"model.start={json.dumps(str(checkpoint))}", *grown])


def find_models(names: Sequence[str | Path], say: Say = log_line) -> list[ModelSource]:
    """All of these models, by the shortest names that tell them apart."""
    found = []
    for name in map(str, names):
        source = find_source(name)
        fetched = (is_hub_name(name) or name.startswith(OPEN_CLIP)) and not Path(name).exists()
        if source is None and (fetched or hub_model_type(Path(name)) is not None):  # whose refusal says why
            source = ModelSource(name, name, "checkpoint")
        if source is None:
            raise ValueError(
                f"{name}: not a model. Expected a checkpoint's folder (config.json, model.safetensors), a run's folder "
                f"(recipe.yaml, best/), a model that ships, a two-tower model of transformers ({', '.join(FAMILIES)}), "
                "one of sentence-transformers (modules.json), a .safetensors file of --save-sets, a folder of vectors "
                f"({', '.join(VECTORS)}), or a .npy file of scores."
            )
        if source.recipe is not None:
            say(f"{name}: a run; its best epoch is taken ({source.path})")
        found.append(source)
    paths = [Path(source.name).expanduser().absolute() for source in found]
    short = [f"{path.parent.name}/{path.name}" if path.name in ("best", "last") else path.name for path in paths]
    return [
        replace(source, name=name) if short.count(name) == 1 else source
        for source, name in zip(found, short, strict=True)
    ]


def data_for(sources: Sequence[ModelSource], data: str | Path | Data | None, options: Mapping[str, Any]) -> Data:
    """The data as it was named, or as the recipes of the runs name it. options: keys of a recipe's `data` to change."""
    if isinstance(data, Data):
        return data.model_copy(update=dict(options))
    if data is not None:
        return Data(path=str(data)).model_copy(update=dict(options))
    known = [(one.name, one.recipe.data) for one in sources if one.recipe is not None and one.recipe.data.path]
    if not known:
        for one in sources:
            if not Path(one.path).exists():  # then it has the form of a name on the hub
                raise FileNotFoundError(
                    f"{one.path}: no such folder. Give that of a run or a checkpoint; for a model on the hub, name the "
                    "data after it."
                )
        files = any(one.kind in ("vectors", "scores") for one in sources)
        instead = " For vectors and scores alone, --groups FILE says what belongs together." if files else ""
        raise ValueError(
            f"DATA: which data to measure on? Give its folder after the models; only a run knows its own.{instead}"
        )
    name, first = known[0]
    if not isinstance(first.path, str):
        raise ValueError(
            f"DATA: {name} was trained on several data sets. Name the one to measure on after the models: "
            f"{' or '.join(first.path or ())}"
        )
    for other, its in known[1:]:
        if its.path != first.path:
            raise ValueError(
                f"DATA: {name} was trained on {first.path} and {other} on {its.path}. "
                "Name the data to measure on after the models."
            )
    return first.model_copy(update=dict(options))


class LoadedData(NamedTuple):
    """Some data, as it is described and as it was read, and the name of the split to measure on."""

    described: Data
    dataset: Dataset
    split: str

    @property
    def part(self) -> Split:
        """The split itself."""
        return self.dataset.split(self.split)


def load_for(
    sources: Sequence[ModelSource],
    data: str | Path | Data | None = None,
    split: str | None = None,
    options: Mapping[str, Any] | None = None,
    preferred: Sequence[str] = (),
    say: Say = log_line,
) -> LoadedData:
    """The data that models are measured on. Without `split` the first of these that it has: `preferred`, by default the
    split of the first run's recipe if its own data is read, else "test"; then, with a message, "test", "val" or the
    only one.
    """
    described = data_for(sources, data, options or {})
    recipes = [source.recipe for source in sources if source.recipe is not None]
    towers = {name for recipe in recipes for name in recipe.model.resolved().towers}
    dataset = load_data(described, say, towers)
    if split is None:
        wanted = [*preferred] or [recipes[0].evaluate.split if data is None and recipes else "test"]
        others = ["test", "val", *(dataset.splits if len(dataset.splits) == 1 else ())]
        split = next((name for name in wanted + others if name in dataset.splits), wanted[-1])
        if split not in wanted:
            say(f"{dataset.path}: has no split {wanted[-1]!r}; measured on {split!r}")
    dataset.split(split)  # refuses one that is not there
    return LoadedData(described, dataset, split)


def encode_model(
    source: ModelSource,
    loaded: LoadedData,
    *,
    device: str | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    identify: bool = False,
    say: Say = log_line,
    bar: Bar = no_bar,
) -> EncodedSplit:
    """What a model makes of a split, or what its file of sets holds. An unreadable item is reported and left out.

    identify: also note the hash of the model ("identity").
    """
    if source.kind == "sets":
        return load_encoded(Path(source.path))
    model = SetEncoder.from_pretrained(source.path, chosen_device(device))
    if len(model.towers) < 2:
        raise ValueError(f"{source.name}: has the tower {', '.join(model.towers)} alone; retrieval is between two.")
    about = {"data": str(loaded.dataset.path), "split": loaded.split}
    try:
        check_features(model, loaded.described, loaded.dataset)
        with bar(f"{source.name}: images", loaded.part.size) as advance:
            found = encode_items(
                model,
                loaded.part,
                batch_size=batch_size,
                workers=workers,
                report=left_out(say),
                advance=advance,
            )
    except ValueError as error:
        raise ValueError(f"{source.name} cannot encode {about['data']} ({about['split']}): {error}") from error
    if identify:
        about["identity"] = model_identity(model)
    similarity: dict[str, Any] = {
        "similarity": model.similarity_name,
        "similarity_options": model.similarity_options,
        "similarities": [] if source.recipe is None else list(source.recipe.similarities),
    }
    return replace(found, notes={**found.notes, **about, "model": source.name, **similarity})
