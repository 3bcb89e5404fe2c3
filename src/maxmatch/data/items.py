"""What every format is read into: the items of each modality, and the group each belongs to.

A *group* is what belongs together: a picture and its captions, and whatever other modality describes the same thing.
Between any two modalities, items of one group are true pairs and all others are not.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch.data.rows import pick

IMAGE, TEXT = "image", "text"


@dataclass(frozen=True)
class Items:
    """The items of one modality, those of a group side by side.

    values: the raw items as `SetEncoder.encode` takes them: the `Path` or the bytes of a picture, a text, an array of
    features. Indexing reads one item from the disk, where that is where it is; nothing is read before.
    groups: the group of each item, ascending from 0, none left out.
    ids: the name of each item in its source (COCO's image and caption ids, file names); no two are the same.
    metadata: whatever else the source says about each item.
    """

    values: Sequence[Any]
    groups: np.ndarray
    ids: Sequence[str]
    metadata: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        assert len(self.values) == len(self.groups) == len(self.ids)
        assert self.metadata is None or len(self.metadata) == len(self.values)
        steps = np.diff(self.groups, prepend=0)
        assert not len(steps) or (self.groups[0] == 0 and steps.min() >= 0 and steps.max() <= 1), "groups have gaps"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def starts(self) -> np.ndarray:
        """Where each group begins, and at the end how many items there are: group g is starts[g]:starts[g + 1]."""
        counts = np.bincount(self.groups) if len(self.groups) else np.zeros(0, np.int64)
        return np.concatenate([[0], np.cumsum(counts)])


@dataclass(frozen=True)
class Split:
    """One split of a data set. Every modality has the same groups."""

    items: Mapping[str, Items]

    def __post_init__(self) -> None:
        counts = {name: int(items.groups[-1]) + 1 if len(items) else 0 for name, items in self.items.items()}
        assert len(set(counts.values())) == 1, f"the modalities have different groups: {counts}"

    def __getitem__(self, modality: str) -> Items:
        if modality not in self.items:
            raise ValueError(f"modality: this data has {', '.join(self.items)}, got {modality!r}.")
        return self.items[modality]

    @property
    def size(self) -> int:
        """How many groups there are."""
        items = next(iter(self.items.values()))
        return int(items.groups[-1]) + 1 if len(items) else 0


@dataclass(frozen=True)
class Dataset:
    """A data set as it was found on the disk: splits by name ("train", "val", "test", …)."""

    path: Path
    format: str
    splits: Mapping[str, Split] = field(default_factory=dict)

    def split(self, name: str) -> Split:
        """A split by its name."""
        if name not in self.splits:
            raise ValueError(f"{self.path}: has the splits {', '.join(self.splits)}, not {name!r}.")
        return self.splits[name]


def first_of_each(dataset: Dataset, modality: str, most: int) -> Dataset:
    """The data set with the first so many items of a modality in each group."""
    splits = {}
    for name, split in dataset.splits.items():
        items = split.items.get(modality)
        if items is not None:
            place = np.arange(len(items)) - items.starts[items.groups]
            split = Split({**split.items, modality: _at(items, np.flatnonzero(place < most))})
        splits[name] = split
    return replace(dataset, splits=splits)


def without_groups(split: Split, groups: Collection[int] | np.ndarray) -> Split:
    """The split without some groups."""
    gone = np.fromiter(groups, np.int64)
    kept = {}
    for name, items in split.items.items():
        kept[name] = _at(items, np.flatnonzero(~np.isin(items.groups, gone)))
    return Split(kept)


def without_items(split: Split, modality: str, places: Collection[int] | np.ndarray) -> Split:
    """The split without some items of a modality, and without the groups that have no other item of it."""
    items = split[modality]
    kept = np.setdiff1d(np.arange(len(items)), np.fromiter(places, np.int64))
    bare = np.setdiff1d(items.groups, items.groups[kept])
    return Split({**without_groups(split, bare).items, modality: _at(items, kept)})


def _at(items: Items, places: np.ndarray) -> Items:
    """The items at some places; the groups that are left are counted anew."""
    if len(places) == len(items):
        return items
    metadata = None if items.metadata is None else pick(items.metadata, places)
    groups = np.unique(items.groups[places], return_inverse=True)[1]
    return Items(pick(items.values, places), groups, pick(items.ids, places), metadata)
