"""Data sets by path or recipe: which format a folder has, its reader, and the splits a recipe asks for."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from maxmatch.data.dataset import (
    IMAGE,
    TEXT,
    DataError,
    Dataset,
    Items,
    LazyItems,
    Problem,
    Report,
    Split,
    first_of_each,
    joined,
    refuse,
    report_first,
    without_items,
)
from maxmatch.data.features import FeatureStore, with_features
from maxmatch.data.formats import folder, huggingface, imagefolder, karpathy, precomp, stored, tables, webdataset
from maxmatch.data.formats.shared import PARTIAL
from maxmatch.model.text import split_into_words
from maxmatch.recipe.schema import Data


@runtime_checkable
class Format(Protocol):
    """What a module of `maxmatch.data.formats` has."""

    LOOKS_LIKE: str
    """The files by which the format is recognised, in words."""
    KEEPS_METADATA: bool
    """Whether it can hold the metadata of items."""

    def recognises(self, path: Path, /) -> bool:
        """Whether the file or folder is in this format."""
        ...

    @property
    def read(self) -> Callable[..., dict[str, Split]]:
        """`read(path, report, …)`: the splits. Further options differ between formats."""
        ...

    @property
    def write(self) -> Callable[..., None]:
        """`write(splits, path, advance, workers, …)`: writes a new folder."""
        ...


# In the order of recognition: what has a name of its own before what any table or picture could be.
FORMATS: dict[str, Format] = {
    "features": stored,
    "huggingface": huggingface,
    "karpathy": karpathy,
    "precomp": precomp,
    "webdataset": webdataset,
    "imagefolder": imagefolder,
    "table": tables,
    "folder": folder,
}


def read_dataset(path: str | Path, format: str | None = None, report: Report = refuse, **options: Any) -> Dataset:
    """Read a data set. format: its name; None recognises it by the names of files.

    report: what to do with each problem; by default the first one is raised as DataError. `options` are those of the
    format's `read`.
    """
    path = Path(path).expanduser()
    if format is None:
        format = recognise(path)
    elif format not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}.")
    for option in options.keys() - _options(format):
        raise ValueError(f"{option}: data in the format {format!r} takes no such option; leave it out.")
    return Dataset(path, format, FORMATS[format].read(path, report, **options))


def _options(format: str) -> Collection[str]:
    return signature(FORMATS[format].read).parameters if format in FORMATS else ()


def read_all(path: Path, format: str | None, images: Path | None, report: Report) -> Dataset:
    """Read a data set with every caption, also where a format has a usual number of them per image.

    images: the folder of the pictures, where the data does not say.
    """
    format = format or recognise(path)
    options: dict[str, Any] = {} if images is None else {"images": images.expanduser()}
    if "captions_per_image" in _options(format):
        options["captions_per_image"] = None
    return read_dataset(path, format, report, **options)


def recognise(path: Path) -> str:
    """The name of the format that a file or folder is in."""
    if path.name.startswith(".") and path.name.endswith(PARTIAL):
        cure = "Run the same command again: it resumes."
        raise DataError(Problem(path, "what an interrupted write left behind", cure, fatal=True))
    for name, format in FORMATS.items():
        if format.recognises(path):
            return name
    if not path.exists():
        raise DataError(Problem(path, "no such file or folder", "Check the path.", fatal=True))
    looked_for = "; ".join(f"{name}: {format.LOOKS_LIKE}" for name, format in FORMATS.items())
    what = f"not a data set in a known format. Looked for {looked_for}. Found {_found(path)}"
    raise DataError(
        Problem(path, what, "Name the format with 'format', or convert the data to one of these.", fatal=True)
    )


def _found(path: Path) -> str:
    """The first few names in a folder."""
    if not path.is_dir():
        return "a file with this suffix" if path.suffix else "a file"
    names = sorted(entry.name for entry in path.iterdir())
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more if names else "nothing: the folder is empty"


def with_arrays(split: Split) -> Split:
    """The split with the arrays themselves in the place of the names of .npy files, for all but pictures and texts."""
    return Split({name: items if name in (IMAGE, TEXT) else _opened(items) for name, items in split.items.items()})


def _opened(items: Items) -> Items:
    arrays = all(isinstance(value, Path) and value.suffix.lower() == ".npy" for value in items.values)
    return replace(items, values=LazyItems(items.values, _loaded)) if arrays else items


def _loaded(path: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: cannot be read as a .npy file ({error}). Write it again with numpy.save.") from error
    return array


Say = Callable[[str], object]


def load_data(data: Data, say: Say, modalities: Collection[str] = ()) -> Dataset:
    """The data set of a recipe; several are joined. Problems of single items are reported; the items are left out.

    modalities: the towers of the model. Beside pictures and texts, each is a column of its name in a table, with .npy
    files of features (count, width).
    """
    parts = data.sources()
    read = [_load_one(part, say, modalities) for part in parts]
    return read[0] if len(read) == 1 else joined(dict(zip(source_names(parts), read, strict=True)))


def source_names(parts: Sequence[Data]) -> list[str]:
    """A short name for each of several data sets: that of its file or folder; where two are alike, with the folder
    around it.
    """
    paths = [Path(str(part.path or "")).expanduser() for part in parts]
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [f"{path.absolute().parent.name}-{path.stem}" for path in paths]
    if len(set(names)) < len(names):
        raise ValueError(f"data.path: the same data set twice, or two of one name: {', '.join(names)}. Rename one.")
    return names


def _load_one(data: Data, say: Say, modalities: Collection[str]) -> Dataset:
    if data.path is None:
        raise ValueError("data.path: the recipe does not say where the data is. Give it: data.path=FOLDER")
    assert isinstance(data.path, str)
    assert not isinstance(data.images, tuple)
    assert not isinstance(data.features, tuple)
    path = Path(data.path).expanduser()
    if data.scenes is not None and not (path / "metadata.jsonl").exists():
        from maxmatch.data.scenes import generate

        say(f"generating {data.scenes.images} scenes in {path}")
        generate(path, data.scenes.images, data.scenes.seed, data.scenes.size)
    options: dict[str, Any] = {} if data.images is None else {"images": Path(data.images).expanduser()}
    others = {name: name for name in modalities if name not in (IMAGE, TEXT)}
    if others and "modalities" in _options(data.format or recognise(path)):
        options["modalities"] = others
    with report_first(say) as report:
        dataset = read_dataset(path, data.format, report, **options)
        dataset = replace(dataset, splits={name: with_arrays(split) for name, split in dataset.splits.items()})
        if data.captions_per_image is not None:
            dataset = first_of_each(dataset, TEXT, data.captions_per_image)
        if data.features is not None:
            dataset = with_features(dataset, FeatureStore.open(Path(data.features).expanduser()), report)
    return dataset


def checked_words(words: Iterable[str], option: str) -> frozenset[str]:
    """The words as captions are divided into them: lower-cased, each a whole one. option: where they were given."""
    known = set()
    for word in words:
        (parts,) = split_into_words([word])
        if len(parts) != 1:
            raise ValueError(
                f"{option}: expected single words, but {word!r} is divided into {parts}. Give the one that matters."
            )
        known.add(parts[0])
    return frozenset(known)


def words_met(captions: Iterable[str], words: frozenset[str]) -> list[frozenset[str]]:
    """Which of the words each caption has, as `word_tokenizer` divides captions."""
    return [words.intersection(own) for own in split_into_words(captions)]


def hold_out(train: Split, words: Sequence[str], say: Callable[[str], object]) -> Split:
    """The training split without the captions that have any of the words, and without the images that have no other.

    An image with fewer captions than others brings those to a batch that it has; none is repeated. `say` is called
    with how many are left out, and with the words that no caption has.
    """
    option = "data.hold_out_words"
    wanted, texts = checked_words(words, option), train[TEXT]
    of_each = words_met(texts.values, wanted)
    met = np.array([len(own) > 0 for own in of_each], np.bool_)
    if met.all():
        raise ValueError(f"{option}: every training caption has one of these words. Hold out fewer.")
    kept = without_items(train, TEXT, np.flatnonzero(met))
    say(
        f"held out: {int(met.sum())} of {len(texts)} training captions ({met.mean():.1%}), with any of {len(wanted)} "
        f"words, and {train.size - kept.size} of {train.size} images, which have no other caption"
    )
    unmet = wanted.difference(*of_each)
    if unmet:
        say(f"{option}: no training caption has {', '.join(sorted(unmet))}")
    return kept
