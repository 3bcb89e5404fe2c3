"""The data set that a recipe names, or the options of a command: read, generated where it is not there yet, and
joined with features that were extracted before.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from maxmatch.data.array_files import with_arrays
from maxmatch.data.features import FeatureStore, with_features
from maxmatch.data.items import IMAGE, TEXT, Dataset, first_of_each
from maxmatch.data.problems import saying_the_first
from maxmatch.data.reading import FORMATS, read_dataset, recognise
from maxmatch.recipe import Data

Say = Callable[[str], object]


def load_data(data: Data, say: Say, modalities: Collection[str] = ()) -> Dataset:
    """The data set of a recipe. Problems of single items are said; the items are left out.

    modalities: the towers of the model. Beside pictures and texts, each is a column of its name in a table, with .npy
    files of features (count, width).
    """
    if data.path is None:
        raise ValueError("data.path: the recipe does not say where the data is. Give it: data.path=FOLDER")
    path = Path(data.path).expanduser()
    if data.scenes is not None and not (path / "metadata.jsonl").exists():
        from maxmatch.data.scenes import generate

        say(f"generating {data.scenes.images} scenes in {path}")
        generate(path, data.scenes.images, data.scenes.seed, data.scenes.size)
    options: dict[str, Any] = {} if data.images is None else {"images": Path(data.images).expanduser()}
    others = {name: name for name in modalities if name not in (IMAGE, TEXT)}
    format = FORMATS.get(data.format or recognise(path)) if others else None
    if format is not None and "modalities" in signature(format.read).parameters:
        options["modalities"] = others
    with saying_the_first(say) as report:
        dataset = read_dataset(path, data.format, report, **options)
        dataset = replace(dataset, splits={name: with_arrays(split) for name, split in dataset.splits.items()})
        if data.captions_per_image is not None:
            dataset = first_of_each(dataset, TEXT, data.captions_per_image)
        if data.features is not None:
            dataset = with_features(dataset, FeatureStore.open(Path(data.features).expanduser()), report)
    return dataset
