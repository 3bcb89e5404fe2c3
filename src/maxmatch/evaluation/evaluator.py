"""`evaluate_scores` and `evaluate_embeddings`: any retrieval model measured, from its scores or its vectors.

Ranking, measures, intervals and tests are those of `maxmatch evaluate`. Ties count against the model: at equal scores
the wrong answers stand first.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from maxmatch.core.array_checks import NotFiniteError, check_sets, refuse_not_finite, shape_of
from maxmatch.core.checks import Array, NotUnitLength, as_array, as_tensor, range_of_norms, warn_unless_unit
from maxmatch.core.devices import chosen_device
from maxmatch.evaluation.measures import beyond_rsum, figures_at
from maxmatch.evaluation.metrics import (
    MAX_MEMORY,
    SINGLE_VECTORS,
    Grades,
    ProtocolName,
    Result,
    Scores,
    SearchRanks,
    averaged,
    name_of_similarity,
    products,
    search,
)
from maxmatch.evaluation.ranking import Fold, ranks_of_parts
from maxmatch.evaluation.result_tables import Column, Table, as_data, recall_table, render
from maxmatch.evaluation.significance import SEED, Difference, Interval, compared, paired_tests
from maxmatch.evaluation.significance import intervals as bootstrap_intervals
from maxmatch.matching import SIMILARITIES
from maxmatch.matching.scoring import score_matrix
from maxmatch.matching.similarity import Similarity

ArrayLike = Array | Sequence[Any]
"""A tensor, an array, a memory map or a list."""


@dataclass(frozen=True, repr=False, eq=False)
class RetrievalResult(Result):
    """What `evaluate_scores`, `evaluate_embeddings` and `RetrievalMetric` found.

    figures: every measure by its name, in per cent but for ranks and ties: i2t_r1, …, rsum, i2t_mrr, i2t_map, …
    """

    @property
    def ranks(self) -> dict[str, np.ndarray]:
        """The rank of the best true answer of each query, 1 is best: "i2t" of each image, "t2i" of each text."""
        return {"i2t": self._whole.i2t.ranks.cpu().numpy(), "t2i": self._whole.t2i.ranks.cpu().numpy()}

    @property
    def _whole(self) -> SearchRanks:
        """The search among all items; folds come before it."""
        *_, (whole,) = self.galleries.values()
        return whole

    def at(self, depth: int) -> dict[str, float]:
        """R@K (hit@K), precision, coverage and nDCG at any depth K, in per cent: i2t_r20, i2t_precision_20, …"""
        if not isinstance(depth, int | np.integer) or depth < 1:
            raise ValueError(f"depth: expected a whole number of at least 1, got {depth!r}.")
        return {
            f"{prefix}{name}": value
            for prefix, some in self.galleries.items()
            for name, value in figures_at(some, depth).items()
        }

    def intervals(self, draws: int = 1000, level: float = 0.95) -> dict[str, Interval]:
        """The bootstrap interval (low, high) of each measure that is a mean over queries, and of RSUM.

        Groups are drawn with repetition: an image with all its captions. The seed is fixed.
        """
        return {
            f"{prefix}{name}": one
            for prefix, some in self.galleries.items()
            for name, one in bootstrap_intervals(some, draws, np.random.default_rng(SEED), level).items()
        }

    def compare(self, other: "RetrievalResult", draws: int = 1000, level: float = 0.95) -> dict[str, Difference]:
        """How much higher each measure is than that of another model on the same data: (value, low, high, p).

        A positive value means that this model is better. low and high: the paired bootstrap interval. p: by a
        permutation test that swaps the answers of the two, two-sided, not corrected for the number of measures.
        """
        self._check_same_data(other)
        return {
            f"{prefix}{name}": one
            for prefix, mine in self.galleries.items()
            for name, one in paired_tests(
                [other.galleries[prefix]], [mine], draws, np.random.default_rng(SEED), level
            ).items()
        }

    def _check_same_data(self, other: Result) -> None:
        cure = "Evaluate both with the same groups, in the same order, by the same protocol."
        if not isinstance(other, Result):
            raise ValueError(f"compare: expected the result of another model, got {type(other).__name__}.")
        if list(self.galleries) != list(other.galleries):
            raise ValueError(f"{self.name} and {other.name} were measured by different protocols. {cure}")
        for prefix, mine in self.galleries.items():
            for one, two in zip(mine, other.galleries[prefix], strict=True):
                for side, a, b in (
                    ("images", one.image_groups, two.image_groups),
                    ("texts", one.text_groups, two.text_groups),
                ):
                    if not torch.equal(a.cpu(), b.cpu()):
                        seen = f"{len(a)} and {len(b)}" if len(a) != len(b) else f"{len(a)}, of other groups"
                        raise ValueError(f"{side} of {self.name} and {other.name} differ: {seen}. {cure}")

    def to_json(self, draws: int = 1000) -> dict[str, Any]:
        """All figures, unrounded, with their intervals, as plain data for `json.dump`. draws: 0 for no intervals."""
        (one,) = as_data([compared(self, self, draws)])["results"]
        return {**one, "images": len(self._whole.image_groups), "texts": len(self._whole.text_groups)}

    def to_latex(self, *others: "RetrievalResult", draws: int = 1000) -> str:
        """A LaTeX table (booktabs) of recalls and RSUM with its interval; further models follow, each with its
        difference to this one. draws: 0 for no intervals and tests.
        """
        for other in others:
            self._check_same_data(other)
        return render(recall_table([compared(one, self, draws) for one in (self, *others)]), "latex")

    def to_frame(self, draws: int = 1000) -> Any:
        """A pandas DataFrame: a row per measure; columns value, low, high (the interval, where there is one)."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install pandas; `figures` has the same as a dict.") from error
        sure = self.intervals(draws) if draws else {}
        rows = [(value, *sure.get(name, (np.nan, np.nan))) for name, value in self.figures.items()]
        return pd.DataFrame(rows, index=list(self.figures), columns=["value", "low", "high"])

    def __repr__(self) -> str:
        images, texts = len(self._whole.image_groups), len(self._whole.text_groups)
        lines = [f"RetrievalResult of {self.name} by {self.similarity}: {images:,} images, {texts:,} texts"]
        for prefix in self.galleries:
            rows = [
                {"way": f"{prefix}{title}", **{name: self.figures.get(f"{prefix}{way}_{name}") for name in _SHOWN}}
                for way, title in (("i2t", "image to text"), ("t2i", "text to image"))
            ]
            columns = [Column("", "way"), *(Column(heading, name, form) for name, (heading, form) in _SHOWN.items())]
            note = f"RSUM {self.figures[f'{prefix}rsum']:.1f}"
            lines.append(render(Table(columns, rows, [note])))
        return "\n".join(lines)


_SHOWN = {
    **{f"r{level}": (f"R@{level}", ".1f") for level in (1, 5, 10)},
    "median_rank": ("median", "g"),
    "mrr": ("MRR", ".1f"),
    "map": ("mAP", ".1f"),
    "ndcg_10": ("nDCG@10", ".1f"),
    "ties": ("ties", ".0f"),
}


def evaluate_scores(
    matrix: ArrayLike,
    image_groups: ArrayLike | None = None,
    text_groups: ArrayLike | None = None,
    *,
    relevance: ArrayLike | None = None,
    name: str = "model",
    protocol: ProtocolName = "plain",
    max_memory: int = MAX_MEMORY,
) -> RetrievalResult:
    """Measure a model by its scores of all images with all texts, both ways.

    Args:
        matrix: Scores (images, texts), higher is better: an array, a tensor on any device, a list or a memory map.
        image_groups: The group of each image, a number or a string. Items of the same group are true answers to each
            other: any number of texts per image, and of images per text.
        text_groups: The group of each text.
        relevance: In place of groups, a matrix (images, texts): 0 for a wrong answer, more for a better one. nDCG takes
            it as the gain; all other measures count any positive relevance as true.
        name: Of the model, for tables.
        protocol: "plain", or "coco" for 1K in five folds, and 5K.
        max_memory: How many bytes of scores to read at once.

    Returns:
        The figures, the rank of each query, intervals and tests.

    Examples:
        >>> from maxmatch.evaluation import evaluate_scores
        >>> found = evaluate_scores([[0.9, 0.8, 0.1], [0.3, 0.2, 0.7]], [0, 1], [0, 0, 1])
        >>> found.figures["i2t_r1"], found.figures["rsum"]
        (100.0, 600.0)
        >>> found.ranks["t2i"]
        array([1, 1, 1])
    """
    array = as_array("matrix", matrix)
    if array.ndim != 2:
        raise ValueError(f"matrix: expected scores (images, texts), got shape {shape_of(array)}.")
    _check_not_empty(array.shape[0], array.shape[1])

    def rows(part: slice) -> Tensor:
        block = as_tensor(array[part]).detach()
        return block if block.is_floating_point() else block.double()

    scores = Scores(rows, (array.shape[0], array.shape[1]), max(1, max_memory // (8 * array.shape[1])))
    device = array.device if isinstance(array, Tensor) else torch.device("cpu")
    truth = _truth(image_groups, text_groups, relevance, scores.shape, device)
    try:
        return _measured(scores, truth, protocol, name, "given scores")
    except NotFiniteError as error:
        raise NotFiniteError(_where_nan(scores)) from error


def evaluate_embeddings(
    images: ArrayLike,
    texts: ArrayLike,
    image_groups: ArrayLike | None = None,
    text_groups: ArrayLike | None = None,
    similarity: str | Similarity = "maxmatch",
    *,
    relevance: ArrayLike | None = None,
    image_mask: ArrayLike | None = None,
    text_mask: ArrayLike | None = None,
    normalise: bool = False,
    name: str = "model",
    protocol: ProtocolName = "plain",
    max_memory: int = MAX_MEMORY,
    device: torch.device | str | None = None,
) -> RetrievalResult:
    """Measure a model by its vectors of images and texts, both ways. Scores are made block by block.

    Args:
        images: Vectors (images, D), sets (images, K, D), or a list of sets (K, D) of different sizes: arrays, tensors
            or memory maps.
        texts: The same for texts; K may differ.
        image_groups: The group of each image, as in `evaluate_scores`.
        text_groups: The group of each text.
        similarity: "cosine" or "dot" for single vectors; for sets a name of `maxmatch.matching.SIMILARITIES`
            ("maxmatch", "maxsim", …); or a function (a, b) -> scores, as in `maxmatch.score_matrix`.
        relevance: In place of groups, as in `evaluate_scores`.
        image_mask: Which vectors of the sets are real (images, K), where they are padded; None: all.
        text_mask: The same for texts.
        normalise: Scale every vector to unit length first; "cosine" always does.
        name: Of the model, for tables.
        protocol: "plain", or "coco" for 1K in five folds, and 5K.
        max_memory: How many bytes of scores to hold at once. If all do not fit, they are computed twice.
        device: Where to compute; None: where the tensors are, and on the CPU for arrays.

    Returns:
        The figures, the rank of each query, intervals and tests.

    Examples:
        >>> import numpy as np
        >>> from maxmatch.evaluation import evaluate_embeddings
        >>> images = np.eye(4)  # each text is a copy of its image
        >>> found = evaluate_embeddings(images, images[[0, 0, 1, 2, 3]], range(4), [0, 0, 1, 2, 3], "cosine")
        >>> found.figures["rsum"], found.figures["i2t_map"]
        (600.0, 100.0)
    """
    a, b = as_sets("images", images, image_mask), as_sets("texts", texts, text_mask)
    _check_not_empty(len(a.vectors), len(b.vectors))
    if a.vectors.shape[2] != b.vectors.shape[2]:
        raise ValueError(
            f"images have vectors of width {a.vectors.shape[2]} and texts of {b.vectors.shape[2]}. "
            "Encode both with the same model."
        )
    _check_similarity(similarity, a.vectors, b.vectors)
    where = (side.vectors.device for side in (a, b) if isinstance(side.vectors, Tensor))
    computed_on = next(where, torch.device("cpu")) if device is None else chosen_device(device)
    normalise = normalise or similarity == "cosine"
    for side, (vectors, mask) in (("images", a), ("texts", b)):
        refuse_not_finite(side, vectors, mask)
        if not normalise and similarity != "dot":
            low, high = range_of_norms(vectors, mask).tolist()
            warn_unless_unit(side, low, high, "Pass normalise=True to have it done on the way.", stacklevel=2)

    def rows(part: slice) -> Tensor:
        if similarity in SINGLE_VECTORS:
            return products(a.vectors[part], b.vectors, normalise, computed_on)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotUnitLength)  # given above, once
            return score_matrix(
                a.vectors[part], b.vectors, similarity, normalise=normalise, device=computed_on, b_mask=b.mask,
                a_mask=None if a.mask is None else a.mask[part],
            )  # fmt: skip

    shape = len(a.vectors), len(b.vectors)
    height = max(1, max_memory // (8 * shape[1]))
    truth = _truth(image_groups, text_groups, relevance, shape, computed_on)
    return _measured(Scores(rows, shape, height), truth, protocol, name, name_of_similarity(similarity))


class SetsAndMask(NamedTuple):
    """Sets (n, K, D), and which of their vectors are real (n, K); None: all."""

    vectors: Array
    mask: Tensor | None


def as_sets(name: str, given: Any, mask: Any = None) -> SetsAndMask:
    """Vectors (n, D), sets (n, K, D) or a list of sets of different sizes, as sets with a mask."""
    try:
        array = as_array(name, given)
    except ValueError:
        if mask is not None or isinstance(given, str) or not hasattr(given, "__len__"):
            raise
        return joined(name, [_one_set(f"{name}[{number}]", one) for number, one in enumerate(given)])
    if array.ndim == 2:
        array = array[:, None]
    if array.ndim != 3:
        raise ValueError(
            f"{name}: expected vectors (items, width) or sets (items, vectors, width), got shape {shape_of(array)}."
        )
    check_sets(name, array)
    real = None if mask is None else as_tensor(mask, f"mask of {name}")
    if real is not None and (real.dtype != torch.bool or real.shape != array.shape[:2]):
        raise ValueError(
            f"mask of {name}: expected True or False for each vector, {array.shape[0]}×{array.shape[1]}, "
            f"got {real.dtype} of shape {shape_of(real)}."
        )
    if real is not None and not bool(real.any(1).all()):
        place = int((~real.any(1)).nonzero()[0])
        raise ValueError(f"mask of {name}: item {place} has no vector left. Leave such items out.")
    return SetsAndMask(array, real)


def _one_set(name: str, given: Any) -> SetsAndMask:
    one = as_array(name, given)
    if one.ndim != 2:
        raise ValueError(f"{name}: expected a set (vectors, width), got shape {shape_of(one)}.")
    return as_sets(name, one[None])


def joined(name: str, parts: Sequence[SetsAndMask]) -> SetsAndMask:
    """Several batches of sets as one, padded to the largest set where sizes differ."""
    tensors = [as_tensor(part.vectors, name) for part in parts]
    widths = sorted({tensor.shape[2] for tensor in tensors})
    if len(widths) > 1:
        raise ValueError(f"{name}: vectors of width {' and '.join(map(str, widths))}; one model makes one width.")
    sizes = {tensor.shape[1] for tensor in tensors}
    if len(sizes) == 1 and all(part.mask is None for part in parts):
        return SetsAndMask(torch.cat(tensors), None)
    count, start = sum(map(len, tensors)), 0
    precision = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    vectors = tensors[0].new_zeros(count, max(sizes), widths[0], dtype=precision)
    mask = torch.zeros(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
    for tensor, part in zip(tensors, parts, strict=True):
        these = slice(start, start + len(tensor))
        vectors[these, : tensor.shape[1]] = tensor.to(vectors)
        mask[these, : tensor.shape[1]] = True if part.mask is None else part.mask.to(mask.device)
        start = these.stop
    return SetsAndMask(vectors, mask)


def _check_not_empty(images: int, texts: int) -> None:
    for name, count in (("images", images), ("texts", texts)):
        if not count:
            raise ValueError(f"{name}: there are none, so there is nothing to measure. Give at least one.")


def _check_similarity(similarity: str | Similarity, a: Array, b: Array) -> None:
    check_similarity_name(similarity)
    if isinstance(similarity, str) and similarity in SINGLE_VECTORS:
        for name, vectors in (("images", a), ("texts", b)):
            if vectors.shape[1] != 1:
                raise ValueError(
                    f"similarity {similarity!r} compares single vectors, but {name} are sets of {vectors.shape[1]}. "
                    f"Choose one of {', '.join(SIMILARITIES)}."
                )


def check_similarity_name(similarity: str | Similarity) -> None:
    """Refuse what is neither a function nor the name of a similarity."""
    if not callable(similarity) and similarity not in (*SINGLE_VECTORS, *SIMILARITIES):
        known = ", ".join([*SINGLE_VECTORS, *SIMILARITIES])
        raise ValueError(f"similarity: expected a function or one of {known}, got {similarity!r}.")


# Which answers are true.


class _Truth(NamedTuple):
    """Groups, as numbers from 0 on; with relevance also the true pairs, in the order of their rows, and their gains."""

    image_groups: Tensor
    text_groups: Tensor
    pairs: tuple[Tensor, Tensor] | None = None
    gain: Tensor | None = None


def _truth(image_groups: Any, text_groups: Any, relevance: Any, shape: tuple[int, int], device: torch.device) -> _Truth:
    if relevance is not None:
        if image_groups is not None or text_groups is not None:
            raise ValueError("relevance: stands in place of groups. Leave image_groups and text_groups out.")
        return _graded(relevance, shape, device)
    if image_groups is None or text_groups is None:
        raise ValueError("image_groups, text_groups: both are needed to know which answers are true (or relevance).")
    lengths = tuple(len(given) if hasattr(given, "__len__") else 0 for given in (image_groups, text_groups))
    if lengths == shape[::-1] != shape:
        raise ValueError(
            f"image_groups, text_groups: {lengths[0]} and {lengths[1]}, but there are {shape[0]} images and {shape[1]} "
            "texts: one is the other way round. Scores are (images, texts); swap the groups, or transpose the scores."
        )
    sides = (("image", image_groups, shape[0]), ("text", text_groups, shape[1]))
    images, texts = (as_groups(f"{side}_groups", given, count, f"{side}s") for side, given, count in sides)
    check_groups_meet(images, texts, ("image_groups", "text_groups"))
    of_images, of_texts = (torch.from_numpy(side).to(device) for side in numbered_groups(images, texts))
    return _Truth(of_images, of_texts)


def numbered_groups(images: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Groups that meet, as numbers from 0 on in the order in which their images come: folds are made of them."""
    names, first = np.unique(images, return_index=True)
    order = first.argsort().argsort()
    return order[np.searchsorted(names, images)], order[np.searchsorted(names, texts)]


_OTHER = {"image": "text", "text": "image"}


def as_groups(name: str, given: Any, count: int, items: str) -> np.ndarray:
    """Groups as an array of whole numbers (int64) or of strings. Refuse those that are not one for each item."""
    groups = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if groups.dtype.kind in "ui":
        groups = groups.astype(np.int64)
    elif groups.dtype.kind in "OTU" and all(isinstance(one, str) for one in groups.ravel().tolist()):
        groups = groups.astype(np.str_)
    elif groups.size:
        raise ValueError(f"{name}: expected whole numbers or strings, got {groups.dtype}. Number the groups.")
    if groups.shape != (count,):
        found = len(groups) if groups.ndim == 1 else f"shape {shape_of(groups)}"
        raise ValueError(
            f"{name}: expected one group for each of the {count} {items}, got {found}. "
            "Items of one group belong together."
        )
    return groups


def check_groups_meet(images: np.ndarray, texts: np.ndarray, names: tuple[str, str]) -> None:
    """Refuse groups that are on one side only. names: what the groups of images and of texts are called."""
    if images.dtype.kind != texts.dtype.kind:
        kinds = ["numbers" if side.dtype.kind == "i" else "strings" for side in (images, texts)]
        raise ValueError(
            f"{names[0]} are {kinds[0]} and {names[1]} {kinds[1]}: they never meet. Number or name both alike."
        )
    for name, side, mine, others in ((names[0], "image", images, texts), (names[1], "text", texts, images)):
        alone = np.flatnonzero(~np.isin(mine, others))
        if len(alone):
            raise ValueError(
                f"{name}: {side} {alone[0]} has group {mine[alone[0]]}, which no {_OTHER[side]} has "
                f"({len(alone)} such in all). Every item needs a true answer: leave it out, or add its partner."
            )


def _graded(given: Any, shape: tuple[int, int], device: torch.device) -> _Truth:
    """Groups are what is connected by true pairs: it succeeds or fails together."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    tensor = as_tensor(given, "relevance").detach().cpu()
    relevance = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # NumPy knows no bfloat16
    if relevance.shape != shape:
        raise ValueError(
            f"relevance: expected a number for each image and text, {shape[0]}×{shape[1]}, "
            f"got shape {shape_of(relevance)}."
        )
    if not (np.isfinite(relevance).all() and (relevance >= 0).all()):
        raise ValueError("relevance: expected finite numbers, 0 for a wrong answer; some are negative or not finite.")
    for axis, side in ((1, "image"), (0, "text")):
        alone = np.flatnonzero(~(relevance > 0).any(axis))
        if len(alone):
            raise ValueError(
                f"relevance: {side} {alone[0]} has no relevant {_OTHER[side]} ({len(alone)} such in all). "
                "Every item needs a true answer: leave it out."
            )
    row, column = map(np.ascontiguousarray, np.nonzero(relevance))
    graph = coo_array((np.ones(len(row)), (row, column + shape[0])), (sum(shape), sum(shape)))
    groups = torch.from_numpy(connected_components(graph, directed=False)[1].astype(np.int64)).to(device)
    pairs = torch.from_numpy(row).to(device), torch.from_numpy(column).to(device)
    gain = torch.from_numpy(relevance[row, column].astype(np.float64)).to(device)
    return _Truth(groups[: shape[0]], groups[shape[0] :], pairs, gain)


# From scores to figures.


def _measured(scores: Scores, truth: _Truth, protocol: ProtocolName, name: str, similarity: str) -> RetrievalResult:
    galleries: Mapping[str, Sequence[SearchRanks]]
    if truth.pairs is None:
        galleries = search(scores, truth.image_groups, truth.text_groups, protocol, pairs=True)
    else:
        galleries = {"": [_graded_search(scores, truth, protocol)]}
    galleries = {prefix: [one.cpu() for one in some] for prefix, some in galleries.items()}
    figures = {
        f"{prefix}{key}": value
        for prefix, some in galleries.items()
        for key, value in {**averaged(some), **beyond_rsum(some)}.items()
    }
    return RetrievalResult(name, similarity, 1, figures, galleries)


def _graded_search(scores: Scores, truth: _Truth, protocol: ProtocolName) -> SearchRanks:
    if protocol == "coco":
        raise ValueError("protocol 'coco': its folds are made of groups. Give groups, or take 'plain'.")
    whole = Fold(slice(0, scores.shape[0]), slice(0, scores.shape[1]))
    groups = truth.image_groups, truth.text_groups
    (found,) = ranks_of_parts(scores.rows, scores.height, *groups, [whole], pairs=True, true=truth.pairs)
    assert found.pair_scores is not None
    assert truth.gain is not None
    return SearchRanks(found.rows, found.columns, *groups, found.pairs, Grades(truth.gain, found.pair_scores))


def _where_nan(scores: Scores) -> str:
    for block in scores.blocks():
        found = scores.rows(block).isnan().nonzero()
        if len(found):
            row, column = found[0].tolist()
            return f"matrix: NaN at image {block.start + row}, text {column}. Look for NaN in the model's output."
    return "matrix: NaN among the scores."
