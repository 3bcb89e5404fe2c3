"""Near-duplicates, shown as one: pictures whose sets are almost equal."""

from collections.abc import Mapping, Sequence

import numpy as np

# How near two sets are is the mean cosine of slot i with slot i: items of one modality have their slots in one order,
# so for near-duplicates this is their best matching. It is estimated from sketches: a random projection keeps squared
# distances to within √(2/width), here an eighth, so the estimate is precise where it matters, near 1.

NEAR_DUPLICATE = 0.99
_WIDTH = 128


class Sketcher:
    """From flattened sets (n, K·D) to sketches (n, 128) of unit length."""

    def __init__(self, width: int) -> None:
        self._projection = np.random.default_rng(0).standard_normal((width, _WIDTH), dtype=np.float32)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """The sketches in half precision."""
        sketches = np.asarray(vectors, dtype=np.float32) @ self._projection
        norms = np.linalg.norm(sketches, axis=1, keepdims=True)
        return np.asarray(sketches / np.maximum(norms, 1e-12), dtype=np.float16)


def group_near_duplicates(
    ids: Sequence[str], sketches: Mapping[str, np.ndarray], threshold: float = NEAR_DUPLICATE
) -> list[list[int]]:
    """Groups of positions in `ids`, best first. Each begins with its leader, the first that is near no earlier leader.

    A longer list begins with the same leaders, so that pages of results fit together. An id without a sketch stays
    alone.
    """
    known = [place for place, name in enumerate(ids) if name in sketches]
    if not known:
        return [[place] for place in range(len(ids))]
    vectors = np.stack([sketches[ids[place]] for place in known]).astype(np.float32)
    near = np.full((len(ids), len(ids)), -1.0, np.float32)
    near[np.ix_(known, known)] = vectors @ vectors.T
    np.fill_diagonal(near, -1.0)
    if near.max() < threshold:  # as a rule
        return [[place] for place in range(len(ids))]
    groups: list[list[int]] = []
    leaders: list[int] = []
    for place in range(len(ids)):
        best = int(near[place, leaders].argmax()) if leaders else -1
        if best >= 0 and near[place, leaders[best]] >= threshold:
            groups[best].append(place)
        else:
            leaders.append(place)
            groups.append([place])
    return groups
