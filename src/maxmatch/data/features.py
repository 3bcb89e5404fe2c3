"""Our own store of features: extracted once, read through a memory map.

store.json     what the features are (`StoreInfo`); a folder without it is unfinished
features.npy   (all features, width), the items one after the other
counts.npy     how many features each item has
ids.txt        the id of each item, one a line
boxes.npy      (all features, 4) where each feature lies in the picture, as its source says; not always there
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from maxmatch.data.formats.lines import read_lines
from maxmatch.data.items import IMAGE, Dataset, Split, without_groups
from maxmatch.data.problems import DataError, Problem, Report, give_up, refuse
from maxmatch.data.rows import Padded, RaggedRows, Rows, pick

FORMAT, SCHEMA_VERSION = "maxmatch.FeatureStore", 1
INFO, IDS, JOURNAL = "store.json", "ids.txt", "features.journal"
FEATURES, COUNTS, BOXES = "features.npy", "counts.npy", "boxes.npy"
_EXTRACT = "Extract them: maxmatch data features."
_AGAIN = "Run the command that writes it again: it goes on where it was."


@dataclass(frozen=True)
class StoreInfo:
    """What the features of a store are.

    source: where they come from, in words: the backbone and its preprocessing, or the files that were converted.
    grid: rows and columns of the features, where they are cells of a picture.
    """

    source: str
    width: int
    dtype: Literal["float16", "float32"] = "float32"
    grid: tuple[int, int] | None = None
    boxes: bool = False

    def text(self, **more: Any) -> str:
        """As JSON."""
        head = {"format": FORMAT, "schema_version": SCHEMA_VERSION}
        return json.dumps({**head, **asdict(self), **more}, ensure_ascii=False)

    @staticmethod
    def from_text(text: str) -> "StoreInfo":
        """From JSON. ValueError says what is wrong with it."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        if data.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"schema version {data.get('schema_version')!r}; this MaxMatch reads {SCHEMA_VERSION}")
        if data.get("dtype") not in ("float16", "float32"):
            raise ValueError(f"features of type {data.get('dtype')!r}")
        try:
            grid = None if data["grid"] is None else (int(data["grid"][0]), int(data["grid"][1]))
            return StoreInfo(str(data["source"]), int(data["width"]), data["dtype"], grid, bool(data["boxes"]))
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


class FeatureStore(Sequence[np.ndarray]):
    """The features of many items: item i is an array (features, width). Nothing is read before it is asked for.

    values: `Rows` where all items have equally many features, `RaggedRows` where not. boxes: likewise, or None.
    """

    def __init__(
        self, folder: Path, info: StoreInfo, ids: list[str], values: Rows | RaggedRows, boxes: Rows | RaggedRows | None
    ) -> None:
        self.folder, self.info, self.ids, self.values, self.boxes = folder, info, ids, values, boxes

    @staticmethod
    def open(folder: Path) -> "FeatureStore":
        """The store of a folder. DataError where it is unfinished, or its files do not belong together."""
        info = read_info(folder)
        features, counts = _array(folder / FEATURES), _array(folder / COUNTS)
        ids = [line or "" for _, line in read_lines(folder / IDS)]
        boxes = _array(folder / BOXES) if info.boxes else None
        total = int(counts.sum())
        fits = len(ids) == len(counts) > 0 and features.dtype == info.dtype and features.shape == (total, info.width)
        if not fits or (boxes is not None and boxes.shape != (total, 4)):
            what = f"its files do not belong together: {len(ids)} ids, {len(counts)} counts, features {features.shape}"
            raise DataError(Problem(folder, what, "Copy the whole folder again.", fatal=True))
        values = _by_item(features, counts)
        return FeatureStore(folder, info, ids, values, None if boxes is None else _by_item(boxes, counts))

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, position: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[np.ndarray]: ...
    def __getitem__(self, position: int | slice) -> np.ndarray | Sequence[np.ndarray]:
        return self.values[position]

    def __reduce__(self) -> tuple[Any, ...]:
        return (FeatureStore.open, (self.folder,))

    @cached_property
    def positions(self) -> dict[str, int]:
        """The position of each id."""
        return {name: position for position, name in enumerate(self.ids)}

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """The positions of some ids."""
        absent = [name for name in ids if name not in self.positions]
        if absent:
            raise ValueError(f"{self.folder}: no features of {len(absent)} ids, such as {absent[0]!r}. {_EXTRACT}")
        return np.array([self.positions[name] for name in ids], np.int64)

    def take(self, positions: Sequence[int] | np.ndarray) -> Padded:
        """A batch of items (items, most features, width), and which of the features are real."""
        if isinstance(self.values, RaggedRows):
            return self.values.take(positions)
        values = self.values.take(positions)
        return Padded(values, np.ones(values.shape[:2], np.bool_))


def recognises(path: Path) -> bool:
    """Whether the folder is a store of features, finished or not."""
    return (path / INFO).is_file() or (path / JOURNAL).is_file()


def read_info(folder: Path) -> StoreInfo:
    """What a finished store holds."""
    file = folder / INFO
    if not file.is_file():
        if (folder / JOURNAL).is_file():
            raise DataError(Problem(folder, "the store of features is unfinished", _AGAIN, fatal=True))
        raise DataError(Problem(file, "missing: no store of features", "Give the folder that holds it.", fatal=True))
    try:
        return StoreInfo.from_text(file.read_text(encoding="utf-8"))
    except ValueError as error:
        what = f"not a store of features that can be read ({error})"
        raise DataError(Problem(file, what, "Copy it again, or upgrade MaxMatch.", fatal=True)) from error


def with_features(dataset: Dataset, store: FeatureStore, report: Report = refuse) -> Dataset:
    """The data set with the store's features, found by id, in place of its images. A group without them is left out."""
    known = store.positions
    images = [name for split in dataset.splits.values() for name in split[IMAGE].ids]
    if not any(name in known for name in images):
        what = f"features of {store.ids[0]!r} and others, but of no image of {dataset.path}, such as {images[:1]}"
        give_up(
            report, Problem(store.folder / IDS, what, "The ids are not the same: extract the features from this data.")
        )
    splits = {}
    for name, split in dataset.splits.items():
        items = split[IMAGE]
        absent = np.array([image not in known for image in items.ids], np.bool_)
        for place in np.flatnonzero(absent).tolist():
            what = f"no features of image {items.ids[place]!r} of the split {name!r}, whose group is left out"
            report(Problem(store.folder / IDS, what, _EXTRACT))
        kept = without_groups(split, items.groups[absent])
        found = store.rows(kept[IMAGE].ids)
        if len(found):
            stored = replace(kept[IMAGE], values=pick(store.values, found))
            splits[name] = Split({**kept.items, IMAGE: stored})
    return replace(dataset, splits=splits)


def _by_item(array: np.ndarray, counts: np.ndarray) -> Rows | RaggedRows:
    if (counts == counts[0]).all():
        return Rows(array.reshape(len(counts), int(counts[0]), -1), np.arange(len(counts)))
    return RaggedRows(array, np.concatenate([[0], np.cumsum(counts)]), np.arange(len(counts)))


def _array(file: Path) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(file, mode="r")  # of a .npy and nothing else, never of a pickle
    except (ValueError, OSError, EOFError) as error:
        what = f"not a whole .npy array ({error})"
        raise DataError(Problem(file, what, "Copy the whole folder again.", fatal=True)) from error
