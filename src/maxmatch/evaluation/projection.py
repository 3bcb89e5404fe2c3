"""The vectors of some true pairs in two dimensions (fig:tsne)."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.paired import paired

METHODS = ("tsne", "umap")
_FEWEST = 4  # points, below which neither method has neighbours to keep together
_NEIGHBOURS = 30


@dataclass(frozen=True)
class Projection:
    """Vectors as points in the plane: of each pair all slots of the first modality, then all of the second."""

    method: str
    points: Float[np.ndarray, "n 2"]
    modality: list[str]
    """Of each point."""
    slot: list[int]
    """Of each point, counted from 0."""
    item: list[int]
    """Of each point, the place of its item in the split."""
    pair: list[int]
    """Of each point, the number of its pair among those that were drawn."""


def project(
    encoded: EncodedSplit, pair: tuple[str, str], *, pairs: int = 200, method: str = "tsne", seed: int = 0
) -> Projection:
    """The vectors of `pairs` true pairs, drawn at random, by t-SNE or UMAP. The same seed gives the same points.

    At most one pair of each group is drawn. Only nearness means something in the result: distances between clusters,
    directions and the scale do not.
    """
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}.")
    data = paired(encoded, pair)
    row, column = (side.cpu().numpy() for side in data.true_pairs())
    chosen = _drawn(row, column, data.groups[0].cpu().numpy(), pairs, seed)
    vectors, modality, slot, item, number = [], [], [], [], []
    for place, both in enumerate(chosen.tolist()):
        for name, sets, which in zip(pair, data.sets, both, strict=True):
            size = sets.shape[1]
            vectors.append(sets[which])
            modality += [name] * size
            slot += list(range(size))
            item += [which] * size
            number += [place] * size
    points = _reduced(torch.cat(vectors).float().cpu().numpy(), method, seed)
    return Projection(method, points, modality, slot, item, number)


def _drawn(row: np.ndarray, column: np.ndarray, groups: np.ndarray, pairs: int, seed: int) -> Int[np.ndarray, "n 2"]:
    """True pairs drawn at random, one of a group, in the order of the split."""
    order = np.random.default_rng(seed).permutation(len(row))
    _, first = np.unique(groups[row[order]], return_index=True)
    kept = np.sort(order[np.sort(first)[:pairs]])
    return np.stack([row[kept], column[kept]], 1)


def _reduced(vectors: Float[np.ndarray, "n D"], method: str, seed: int) -> Float[np.ndarray, "n 2"]:
    if len(vectors) < _FEWEST:
        raise ValueError(f"pairs: a projection needs at least {_FEWEST} vectors, got {len(vectors)}. Draw more pairs.")
    neighbours = min(_NEIGHBOURS, (len(vectors) - 1) // 3)
    if method == "umap":
        reducer: Any = _umap()(n_neighbors=max(2, neighbours // 2), random_state=seed, n_jobs=1)
    else:
        # Starting from the principal axes keeps more of the whole in view than a random start does.
        reducer = _tsne()(perplexity=neighbours, init="pca", learning_rate="auto", random_state=seed)
    points: np.ndarray = reducer.fit_transform(vectors)
    return points.astype(np.float64)


def _tsne() -> Any:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ImportError("t-SNE needs scikit-learn. Run: pip install 'maxmatch[plots]'") from error
    return TSNE


def _umap() -> Any:
    try:
        with warnings.catch_warnings():  # it misses TensorFlow, which is needed for nothing here
            warnings.simplefilter("ignore", ImportWarning)
            from umap import UMAP
    except ImportError as error:
        raise ImportError("UMAP needs umap-learn. Run: pip install 'maxmatch[umap]'") from error
    return UMAP
