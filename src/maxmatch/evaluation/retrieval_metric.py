"""`RetrievalMetric`, filled batch by batch, and `compute_metrics` for `transformers.Trainer`."""

from functools import partial
from typing import Any

import numpy as np
import torch

from maxmatch.core.checks import as_tensor
from maxmatch.evaluation.evaluator import (
    ArrayLike,
    RetrievalResult,
    SetsAndMask,
    as_groups,
    as_sets,
    check_similarity_name,
    evaluate_embeddings,
    joined,
)
from maxmatch.evaluation.metrics import ProtocolName, check_protocol
from maxmatch.matching.similarity import Similarity


class RetrievalMetric:
    """Retrieval measured over batches: `update` with each, then `compute`; the methods are those of torchmetrics.

    Vectors are kept on the device they come from until `reset`. The object can be pickled, so that the processes of a
    distributed evaluation can exchange theirs and `merge` them.

    Args:
        similarity: As in `evaluate_embeddings`: "cosine" or "dot" for single vectors, or one of sets.
        normalise: Scale every vector to unit length first; "cosine" always does.
        name: Of the model, for tables.
        protocol: "plain", or "coco" for 1K in five folds, and 5K.

    Examples:
        >>> import torch
        >>> from maxmatch.evaluation import RetrievalMetric
        >>> metric = RetrievalMetric("cosine")
        >>> for batch in torch.eye(6).split(2):  # here each text is its image
        ...     metric.update(images=batch, texts=batch, groups=batch.argmax(1))
        >>> metric.compute().figures["rsum"]
        600.0
    """

    def __init__(
        self,
        similarity: str | Similarity = "maxmatch",
        *,
        normalise: bool = False,
        name: str = "model",
        protocol: ProtocolName = "plain",
    ) -> None:
        check_similarity_name(similarity)  # now, not after all batches
        check_protocol(protocol)
        self.similarity = similarity
        self.normalise = normalise
        self.name = name
        self.protocol: ProtocolName = protocol
        self.reset()

    def update(
        self,
        images: ArrayLike | None = None,
        texts: ArrayLike | None = None,
        image_groups: ArrayLike | None = None,
        text_groups: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        image_mask: ArrayLike | None = None,
        text_mask: ArrayLike | None = None,
    ) -> None:
        """Add a batch: images, texts or both.

        Args:
            images: Vectors (n, D), sets (n, K, D) or a list of sets.
            texts: The same; the number of texts may differ.
            image_groups: The group of each image. Every image that is added counts as one more in the collection.
            text_groups: The group of each text.
            groups: In place of both, for batches of pairs: image i and text i belong to group i. An image that comes
                with each of its captions counts once: the first of each group is taken.
            image_mask: Which vectors of the images' sets are real, where they are padded.
            text_mask: The same for texts.
        """
        if groups is not None:
            if image_groups is not None or text_groups is not None:
                raise ValueError("groups: are those of images and texts alike. Leave image_groups and text_groups out.")
            if images is None or texts is None or len(images) != len(texts):
                found = [0 if side is None else len(side) for side in (images, texts)]
                raise ValueError(
                    f"groups: expected as many images as texts, got {found[0]} and {found[1]}. "
                    "Give image_groups and text_groups instead."
                )
            image_groups = text_groups = groups
        sides = (("image", images, image_groups, image_mask), ("text", texts, text_groups, text_mask))
        checked = [_batch(*side) for side in sides if side[1] is not None or side[2] is not None]
        if not checked:
            raise ValueError("update: expected images, texts or both, got neither.")
        for side, sets, numbers in checked:  # not before all of it was checked
            if not len(numbers):
                continue
            self._sets[side].append(sets)
            self._groups[side].append(numbers)
            if side == "image":
                self._repeats.append(np.full(len(numbers), groups is not None))

    def compute(self) -> RetrievalResult:
        """Measure all that was added, since the beginning or the last `reset`.

        Returns:
            The figures, the rank of each query, intervals and tests.
        """
        for side, parts in self._sets.items():
            if not parts:
                raise ValueError(f"RetrievalMetric: there are no {side}s yet. Call update with some first.")
        if len({part.dtype.kind for parts in self._groups.values() for part in parts}) > 1:
            raise ValueError("groups: numbers in some batches and strings in others. Name them alike in all.")
        images, texts = (joined(f"{side}s", parts) for side, parts in self._sets.items())
        image_groups, text_groups = (np.concatenate(parts) for parts in self._groups.values())
        kept = _first_of_each(image_groups, np.concatenate(self._repeats))
        if len(kept) < len(image_groups):
            places, image_groups = torch.from_numpy(kept), image_groups[kept]
            mask = None if images.mask is None else images.mask[places.to(images.mask.device)]
            vectors = as_tensor(images.vectors)
            images = SetsAndMask(vectors[places.to(vectors.device)], mask)
        return evaluate_embeddings(
            images.vectors, texts.vectors, image_groups, text_groups, self.similarity, image_mask=images.mask,
            text_mask=texts.mask, normalise=self.normalise, name=self.name, protocol=self.protocol,
        )  # fmt: skip

    def _key(self) -> tuple[Any, bool, str]:
        """What metrics to be merged have in common. A partial that was pickled is another one: its parts are equal."""
        one = self.similarity
        parts = (one.func, one.args, one.keywords) if isinstance(one, partial) else one
        return parts, self.normalise, self.protocol

    def reset(self) -> None:
        """Forget all that was added."""
        self._sets: dict[str, list[SetsAndMask]] = {"image": [], "text": []}
        self._groups: dict[str, list[np.ndarray]] = {"image": [], "text": []}
        self._repeats: list[np.ndarray] = []

    def merge(self, other: "RetrievalMetric") -> None:
        """Add all that was added to another, as of another process; the other stays as it is.

        Args:
            other: A metric with the same similarity, normalise and protocol.
        """
        for option, mine, theirs in zip(
            ("similarity", "normalise", "protocol"), self._key(), other._key(), strict=True
        ):
            if mine != theirs:
                raise ValueError(f"merge: expected a metric with {option} {mine!r}, got {theirs!r}.")
        for side in self._sets:
            self._sets[side] += other._sets[side]
            self._groups[side] += other._groups[side]
        self._repeats += other._repeats


def _batch(side: str, given: Any, groups: Any, mask: Any) -> tuple[str, SetsAndMask, np.ndarray]:
    """One side of a batch, checked, and copied: the caller may write to it afterwards."""
    for name, value in ((f"{side}s", given), (f"{side}_groups", groups)):
        if value is None:
            raise ValueError(f"{name}: missing. {side}s and {side}_groups come together.")
    sets = as_sets(f"{side}s", given, mask)
    vectors = as_tensor(sets.vectors).detach().clone()
    kept = SetsAndMask(vectors, None if sets.mask is None else sets.mask.clone())
    return side, kept, as_groups(f"{side}_groups", groups, len(vectors), f"{side}s").copy()


def _first_of_each(groups: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    """The places of what counts: all, but of those that may be repeats the first of each group."""
    places = np.flatnonzero(repeats)
    first = places[np.unique(groups[places], return_index=True)[1]]
    return np.sort(np.concatenate([np.flatnonzero(~repeats), first]))


def compute_metrics(prediction: Any, similarity: str | Similarity = "cosine") -> dict[str, float]:
    """The figures of embeddings, for `transformers.Trainer(compute_metrics=compute_metrics)`.

    Args:
        prediction: An `EvalPrediction`. `predictions`: image and text embeddings, two arrays (n, D) or (n, K, D).
            `label_ids`: the group of each row, which is an image with one of its captions; the first image of each
            group is taken. Or two arrays: the groups of images and of texts; then every row counts.
        similarity: As in `evaluate_embeddings`; another by `functools.partial(compute_metrics, similarity="maxmatch")`.

    Returns:
        Every measure by its name.

    Examples:
        >>> import numpy as np
        >>> from transformers import EvalPrediction
        >>> from maxmatch.evaluation import compute_metrics
        >>> vectors = np.eye(3, dtype=np.float32)
        >>> compute_metrics(EvalPrediction((vectors, vectors), np.arange(3)))["t2i_r1"]
        100.0
    """
    predictions, labels = prediction.predictions, prediction.label_ids
    if not isinstance(predictions, tuple | list) or len(predictions) != 2:
        found = len(predictions) if isinstance(predictions, tuple | list) else type(predictions).__name__
        raise ValueError(
            f"predictions: expected two arrays, image embeddings and text embeddings, got {found}. Return these two "
            "from the Trainer's preprocess_logits_for_metrics."
        )
    if labels is None:
        raise ValueError("label_ids: missing; the group of each row. Name its column in TrainingArguments.label_names.")
    metric = RetrievalMetric(similarity)
    if isinstance(labels, tuple | list) and len(labels) == 2 and not np.isscalar(labels[0]):
        metric.update(predictions[0], predictions[1], labels[0], labels[1])
    else:
        metric.update(predictions[0], predictions[1], groups=labels)
    return dict(metric.compute().figures)
