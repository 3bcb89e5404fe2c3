"""Features of other modalities, one .npy file an item: read when they are asked for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

import numpy as np

from maxmatch.data.items import IMAGE, TEXT, Items, Split


class ArrayFiles(Sequence[np.ndarray]):
    """The arrays in some .npy files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, position: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, position: slice) -> "ArrayFiles": ...
    def __getitem__(self, position: int | slice) -> "np.ndarray | ArrayFiles":
        if isinstance(position, slice):
            return ArrayFiles(self.paths[position])
        path = self.paths[position]
        try:
            array: np.ndarray = np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(
                f"{path}: no .npy file that can be read ({error}). Write it again with numpy.save."
            ) from error
        return array


def with_arrays(split: Split) -> Split:
    """The split with the arrays themselves in the place of the names of .npy files, for all but pictures and texts."""
    return Split({name: items if name in (IMAGE, TEXT) else _opened(items) for name, items in split.items.items()})


def _opened(items: Items) -> Items:
    paths = [value for value in items.values if isinstance(value, Path) and value.suffix.lower() == ".npy"]
    return replace(items, values=ArrayFiles(paths)) if paths and len(paths) == len(items) else items
