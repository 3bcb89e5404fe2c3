"""Near-duplicates, shown as one: pictures whose sets are almost equal."""

import threading
from collections.abc import Mapping, Sequence

import numpy as np

# How near two sets are is the mean cosine of slot i with slot i: items of one modality have their slots in one order,
# so for near-duplicates this is their best matching. It is estimated from sketches: a random projection keeps squared
# distances to within √(2/width), here an eighth, so the estimate is precise where it matters, near 1.

NEAR_DUPLICATE = 0.99
_WIDTH = 128
_WINDOW = 2_000
_GROUPED = 512  # at once


class Sketcher:
    """From flattened sets (n, K·D) to sketches (n, 128) of unit length."""

    def __init__(self, width: int) -> None:
        self._projection = np.random.default_rng(0).standard_normal((width, _WIDTH), dtype=np.float32)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """The sketches in half precision."""
        sketches = np.asarray(vectors, dtype=np.float32) @ self._projection
        norms = np.linalg.norm(sketches, axis=1, keepdims=True)
        return np.asarray(sketches / np.maximum(norms, 1e-12), dtype=np.float16)


class Grouping:
    """Groups of positions in a list of ids, best first, made as far as they are asked for. Each begins with its leader,
    the first that is near no earlier leader.

    A longer list begins with the same leaders, so that pages of results fit together. An id without a sketch stays
    alone. Leaders more than 2,000 places before an item are not compared with it: of near-duplicates the scores and the
    dates are near, too, and among 100,000 items all pairs would take minutes.
    """

    def __init__(self, ids: Sequence[str], sketches: Mapping[str, np.ndarray], threshold: float) -> None:
        self._ids = ids
        self._sketches = sketches
        self._threshold = threshold
        self._group_of: dict[int, int] = {}
        """The groups of the last leaders."""
        self._done = 0
        self._lock = threading.Lock()
        self.groups: list[list[int]] = []

    def first(self, count: int) -> list[list[int]]:
        """So many groups, if there are; members further down may be missing."""
        with self._lock:
            while len(self.groups) < count and self._done < len(self._ids):
                self._group_block()
            return self.groups[:count]

    def _group_block(self) -> None:
        start, end = self._done, min(self._done + _GROUPED, len(self._ids))
        if start == 0 and self._all_alone(end):
            self._group_of = {place: place for place in range(end) if place > end - _WINDOW}
            self.groups = [[place] for place in range(end)]
            self._done = end
            return
        known = [place for place in range(start, end) if self._ids[place] in self._sketches]
        recent = list(self._group_of)
        near = np.full((end - start, len(recent) + end - start), -1.0, np.float32)
        if known:
            rows = [place - start for place in known]
            vectors, before = self._vectors(known), [at for at in recent if self._ids[at] in self._sketches]
            columns = [place for place, at in enumerate(recent) if self._ids[at] in self._sketches]
            if before:
                near[np.ix_(rows, columns)] = vectors @ self._vectors(before).T
            near[np.ix_(rows, [len(recent) + row for row in rows])] = vectors @ vectors.T
            near[range(end - start), range(len(recent), near.shape[1])] = -1.0
        alone = near.max(1) < self._threshold  # as a rule
        of_column = recent + list(range(start, end))
        for row, place in enumerate(range(start, end)):
            leaders = () if alone[row] else np.flatnonzero(near[row] >= self._threshold).tolist()
            leaders = [at for at in leaders if of_column[at] in self._group_of and of_column[at] > place - _WINDOW]
            if leaders:
                best = max(leaders, key=lambda column: near[row, column])
                self.groups[self._group_of[of_column[best]]].append(place)
            else:
                self._group_of[place] = len(self.groups)
                self.groups.append([place])
        self._group_of = {place: group for place, group in self._group_of.items() if place > end - _WINDOW}
        self._done = end

    def _all_alone(self, end: int) -> bool:
        """Whether no two of the first are near each other, as in most short lists: a fifth of the work of grouping."""
        sketches = [sketch for name in self._ids[:end] if (sketch := self._sketches.get(name)) is not None]
        if len(sketches) < 2:
            return True
        vectors = np.concatenate(sketches).astype(np.float32).reshape(len(sketches), -1)
        near = vectors @ vectors.T
        near.flat[:: len(near) + 1] = -1.0
        return bool(near.max() < self._threshold)

    def _vectors(self, places: Sequence[int]) -> np.ndarray:
        return np.stack([self._sketches[self._ids[place]] for place in places]).astype(np.float32)


def group_near_duplicates(
    ids: Sequence[str], sketches: Mapping[str, np.ndarray], threshold: float = NEAR_DUPLICATE
) -> list[list[int]]:
    """All groups of a list."""
    return Grouping(ids, sketches, threshold).first(len(ids))
