"""Pictures that are nearly the same, whatever their size, shape and compression: what a test set must not share with
training.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from PIL import Image

from maxmatch.core.progress import Bar, map_ahead, no_bar
from maxmatch.data.dataset import IMAGE, Dataset
from maxmatch.model.images import Source, load_image

SIDE = 24  # pixels of the thumbnails that are compared
ALIKE = 0.97  # correlation of two thumbnails from which on they count as the same picture
_ROWS = 1024  # thumbnails compared at once


_Located = tuple[tuple[str, str, str], Source]


class NearDuplicate(NamedTuple):
    """A held-out picture and a training picture that look the same: data set, split and id of each, and how alike."""

    held_out: tuple[str, str, str]
    train: tuple[str, str, str]
    correlation: float


def thumbnail(source: Source) -> Float[np.ndarray, " P"]:
    """The picture squashed to a small grey square, as a vector of mean 0 and length 1; zero if it is all one grey."""
    small = load_image(source, at_least=2 * SIDE).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    values = np.asarray(small, np.float32).reshape(-1)
    values = values - values.mean()
    length = float(np.linalg.norm(values))
    return values / length if length > SIDE else np.zeros_like(values)  # less than a grey level per pixel says nothing


def near_duplicates(
    datasets: Mapping[str, Dataset], train_split: str = "train", *, alike: float = ALIKE, workers: int = 1,
    bar: Bar = no_bar,
) -> list[NearDuplicate]:  # fmt: skip
    """Every picture of a split other than the training split that looks like a training picture, of the same data set
    or of another; the most alike first. Pictures that cannot be read are left out: `maxmatch data check` names them.
    """
    trained: list[_Located] = []
    held_out: list[_Located] = []
    for name, dataset in datasets.items():
        for split, part in dataset.splits.items():
            if IMAGE in part.items:
                places = [(name, split, str(one)) for one in part[IMAGE].ids]
                pairs = list(zip(places, part[IMAGE].values, strict=True))
                (trained if split == train_split else held_out).extend(pairs)
    with bar("thumbnails", len(trained) + len(held_out)) as advance:

        def made(pair: _Located) -> np.ndarray:
            try:
                found = thumbnail(pair[1])
            except (ValueError, OSError):
                found = np.zeros(SIDE * SIDE, np.float32)
            advance(1)
            return found

        seen, asked = (np.array(list(map_ahead(made, side, workers)), np.float32) for side in (trained, held_out))
    found = []
    for row, column, value in _above(asked, seen, alike) if len(asked) and len(seen) else ():
        found.append(NearDuplicate(held_out[row][0], trained[column][0], value))
    return sorted(found, key=lambda one: -one.correlation)


def _above(rows: np.ndarray, columns: np.ndarray, least: float) -> Iterator[tuple[int, int, float]]:
    for start in range(0, len(rows), _ROWS):
        cosines = rows[start : start + _ROWS] @ columns.T
        for row, column in zip(*np.nonzero(cosines >= least), strict=True):
            yield start + int(row), int(column), float(cosines[row, column])
