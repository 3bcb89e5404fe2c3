"""Rows of unequal length in one array: how sets of unequal size are kept without padding."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np


class RaggedArray(Sequence[np.ndarray]):
    """Rows one after the other: row i is values[starts[i] : starts[i + 1]]. To its users a list of arrays.

    A slice is a view; `at` copies.
    """

    def __init__(self, values: np.ndarray, starts: np.ndarray) -> None:
        """values: (N, …). starts: (rows + 1,), rising; what lies outside of them belongs to no row."""
        self.values = values
        self.starts = starts

    @classmethod
    def of(cls, rows: Sequence[np.ndarray]) -> "RaggedArray":
        """Rows of a list, copied; of an empty list an array without rows."""
        starts = np.cumsum([0, *map(len, rows)])
        return cls(np.concatenate(list(rows)) if len(rows) else np.zeros(0, np.float32), starts)

    @property
    def sizes(self) -> np.ndarray:
        """How long each row is."""
        return np.diff(self.starts)

    def flat(self) -> np.ndarray:
        """The values of all rows, without those that belong to none: a view."""
        return self.values[self.starts[0] : self.starts[-1]]

    def divided(self, width: int) -> "RaggedArray":
        """Rows of n·width numbers as rows of n vectors."""
        return RaggedArray(self.flat().reshape(-1, width), (self.starts - self.starts[0]) // width)

    def at(self, places: Sequence[int] | np.ndarray) -> "RaggedArray":
        """The rows at some places, in that order."""
        chosen = np.asarray(places, np.int64)
        sizes = self.sizes[chosen]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
        return RaggedArray(self.values[np.repeat(self.starts[chosen], sizes) + within], starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, place: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, place: slice | np.ndarray | list[int]) -> "RaggedArray": ...
    def __getitem__(self, place: int | slice | np.ndarray | list[int]) -> "np.ndarray | RaggedArray":
        if isinstance(place, np.ndarray | list):
            return self.at(place)
        if isinstance(place, slice):
            first, last, step = place.indices(len(self))
            if step != 1:
                return self.at(range(first, last, step))
            return RaggedArray(self.values, self.starts[first : max(first, last) + 1])
        if not -len(self) <= place < len(self):
            raise IndexError(f"row {place} of {len(self)}")
        begin = place % len(self)
        return self.values[self.starts[begin] : self.starts[begin + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.values[begin:end] for begin, end in zip(self.starts[:-1], self.starts[1:], strict=True))
