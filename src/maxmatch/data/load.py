"""Data sets by path or recipe: which format a folder has, its reader, and the splits a recipe asks for."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from maxmatch.core.progress import Advance, quiet
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
    without_groups,
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
    dataset = read[0] if len(read) == 1 else joined(dict(zip(source_names(parts), read, strict=True)))
    if data.set_aside is None:
        return dataset
    return set_aside(dataset, Path(data.set_aside).expanduser(), data.train_split, say)


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


def make_scenes(data: Data, say: Say, workers: int | None = None, advance: Advance = quiet) -> None:
    """Generate the scenes that a recipe asks for, where they are not there. workers: processes that draw them."""
    if data.scenes is None:
        return
    path = Path(str(data.path)).expanduser()
    if not (path / "metadata.jsonl").exists():
        from maxmatch.data.scenes import generate

        say(f"generating {data.scenes.images:,} scenes in {path}")
        generate(path, data.scenes.images, data.scenes.seed, data.scenes.size, workers=workers, advance=advance)


def _load_one(data: Data, say: Say, modalities: Collection[str]) -> Dataset:
    if data.path is None:
        raise ValueError("data.path: the recipe does not say where the data is. Give it: data.path=FOLDER")
    assert isinstance(data.path, str)
    assert not isinstance(data.images, tuple)
    assert not isinstance(data.features, tuple)
    path = Path(data.path).expanduser()
    make_scenes(data, say)
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


SET_ASIDE = "set_aside"
"""The split of the training images that are set aside."""


def read_ids(file: Path) -> list[str]:
    """The ids of a text file, one per line; empty lines and those that begin with # are not counted."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError as error:
        raise FileNotFoundError(f"data.set_aside: {file}: no such file. Give a text file of image ids.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"data.set_aside: {file}: not UTF-8 ({error}). Give a text file of image ids.") from error
    ids = [line for line in lines if line and not line.startswith("#")]
    if not ids:
        raise ValueError(f"data.set_aside: {file}: no id in it. Write image ids, one per line.")
    return ids


def set_aside(dataset: Dataset, file: Path, train_split: str, say: Say) -> Dataset:
    """The data set with the images of a file of ids in a split of their own, no longer in the training split."""
    option = f"data.set_aside: {file}"
    if SET_ASIDE in dataset.splits:
        raise ValueError(f"{option}: {dataset.path} has a split {SET_ASIDE!r} already. Rename it.")
    train = dataset.split(train_split)
    groups = _groups_of_ids(train)
    chosen, missing = set[int](), list[str]()
    for one in read_ids(file):
        found = groups.get(one, [])
        if len(found) > 1:
            where = ", ".join(
                dict.fromkeys(f"{train.sources[group]}/{one}" for group in found if train.sources is not None)
            )
            raise ValueError(f"{option}: {one} is in several data sets. Write one of {where}.")
        chosen.update(found)
        if not found:
            missing.append(one)
    if missing:
        elsewhere = [name for name, split in dataset.splits.items() if _groups_of_ids(split).keys() & set(missing)]
        where = f" Some are in {', '.join(elsewhere)}." if elsewhere else ""
        raise ValueError(
            f"{option}: {len(missing)} of its ids, such as {', '.join(missing[:3])}, are no images of the split "
            f"{train_split!r} of {dataset.path}.{where} Give ids of training images of this data."
        )
    others = np.setdiff1d(np.arange(train.size), list(chosen))
    if not len(others):
        raise ValueError(f"{option}: names all {train.size} training images. Leave some to train on.")
    say(f"set aside: {len(chosen):,} of {train.size:,} training images, by {file.name}")
    return replace(
        dataset,
        splits={
            **dataset.splits,
            train_split: without_groups(train, chosen),
            SET_ASIDE: without_groups(train, others),
        },
    )


def fitting_list(files: Sequence[Path], data: Data) -> Path:
    """Of several lists of ids the first whose ids are all training images of the data; where none is, the nearest one,
    which `set_aside` then refuses.
    """
    bare = data.model_copy(update={"features": None, "set_aside": None})
    known = _groups_of_ids(load_data(bare, lambda line: None).split(data.train_split)).keys()

    def strangers(file: Path) -> float:
        ids = read_ids(file)
        return sum(one not in known for one in ids) / len(ids)

    return min(files, key=strangers)


def _groups_of_ids(split: Split) -> dict[str, list[int]]:
    """The groups of each id; where data sets were joined, also of the id without the name of its data set."""
    items = split.items.get(IMAGE) or next(iter(split.items.values()))
    found: dict[str, list[int]] = {}
    for one, group in zip(items.ids, items.groups.tolist(), strict=True):
        found.setdefault(one, []).append(group)
        if split.sources is not None:
            found.setdefault(one.removeprefix(f"{split.sources[group]}/"), []).append(group)
    return found


def random_part(train: Split, images: int, say: Say) -> Split:
    """So many of the training images. Always the same ones, and a smaller part is in every larger one."""
    if images >= train.size:
        say(f"data.max_images: there are only {train.size:,} training images, not {images:,}; all are used")
        return train
    say(f"training on {images:,} of {train.size:,} images (data.max_images)")
    order = np.random.default_rng(0).permutation(train.size)
    return without_groups(train, order[images:])


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
