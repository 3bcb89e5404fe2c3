"""Validation during training, and diagnoses when training does not work: the symptom, the cause and the cure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np

from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.metrics import EvaluatedModel, chance, evaluate
from maxmatch.matching.similarity import with_options
from maxmatch.recipe.schema import Recipe


def measures(
    encoded: EncodedSplit,
    pair: tuple[str, str],
    similarity: str,
    options: Mapping[str, int | float] | None = None,
    sources: np.ndarray | None = None,
) -> dict[str, float]:
    """Recalls and RSUM between two modalities, and the collapse of each. options: those of the similarity.

    sources: the data set of each group, where several were joined. Each is then measured by itself ("coco/rsum"), and
    a figure without a name is their mean.
    """
    if sources is not None:
        parts = {
            str(name): measures(encoded.only(np.flatnonzero(sources == name)), pair, similarity, options)
            for name in dict.fromkeys(sources)
        }
        means = {key: fmean(part[key] for part in parts.values()) for key in next(iter(parts.values()))}
        named = [key for key in means if f"chance_{key}" in means]
        return means | {f"{name}/{key}": part[key] for name, part in parts.items() for key in named}
    model = EvaluatedModel("model", encoded, with_options(similarity, options or {}))
    by_chance = chance(*(encoded.groups[name].cpu() for name in pair))
    figures = evaluate([model], pair=pair, protocol="plain").figures
    return {**figures, **{f"chance_{name}": value for name, value in by_chance.items()}}


_WINDOW = 20  # steps that must agree before training is called stuck
_NEAR = 0.02  # of 2 × margin
_ENDED_AT = 0.995  # likewise; 20 models that were stuck ended at 1.005 to 1.014
_WELL_ABOVE_CHANCE = 3.0  # times chance; trained on 1,000 photos of Flickr8k, models that were stuck had 2.3 to 2.8
_COLLAPSED = -9.0  # log circular variance: vectors of a set whose cosines are 0.9998 and more
DiagnosisKind = Literal["stuck", "not_finite", "collapsed", "unused"]


@dataclass(frozen=True)
class Diagnosis:
    """A problem and its cure."""

    kind: DiagnosisKind
    what: str
    cure: str
    changes: tuple[str, ...] = ()
    """The cure as changes of the recipe, `key=value`; what --auto-recover applies."""

    def __str__(self) -> str:
        return f"{self.what} {self.cure}"


def watched_steps(steps_per_epoch: int) -> int:
    """How many of the last steps are looked at: within an epoch, if it is long enough."""
    return max(_WINDOW, min(100, steps_per_epoch // 2))


def not_finite(value: float, recipe: Recipe) -> Diagnosis:
    """A loss or a measure that is NaN or infinite."""
    return Diagnosis(
        "not_finite",
        f"The loss is {value}: the weights are NaN or infinite.",
        f"Try a smaller learning rate (train.lr={recipe.train.lr / 2:g}) or train.precision=fp32.",
        (f"train.lr={recipe.train.lr / 2:g}",),
    )


def well_above_chance(found: Mapping[str, float]) -> bool:
    """Whether the measures on the validation split are those of a model that has learned something."""
    return found.get("rsum", 0.0) > _WELL_ABOVE_CHANCE * found.get("chance_rsum", math.inf)


def twice_the_margin(recipe: Recipe, epoch: int) -> float | None:
    """The triplet loss of a pair where all pairs have the same score; None in an epoch without hardest negatives, or
    without this loss.
    """
    goal = recipe.objective
    if goal.keywords(epoch)["negatives"] != "hardest" or not goal.triplet_weight:
        return None
    return 2 * goal.margin * len(goal.pairs) or None


def _pairs_per_batch(recipe: Recipe) -> int | None:
    """None where a batch has all captions of its images, however many they are."""
    captions = recipe.train.batch_captions or recipe.data.captions_per_image
    return captions and recipe.train.batch_size * captions


def ended_stuck(recipe: Recipe, epoch: int, losses: Sequence[float]) -> bool | None:
    """Whether a training ended with a triplet loss of 2 × margin or more. losses: of its last epoch, each a mean over
    some steps. None where that says nothing: without hardest negatives, without this loss, without a record, or where
    it is a sum over an unknown number of pairs.

    Unlike `stuck`, whatever the recalls: a model may still rank well above chance. Of sums the largest counts, since
    the last batch of an epoch may be smaller.
    """
    level = twice_the_margin(recipe, epoch)
    if level is None or not losses:
        return None
    if recipe.objective.triplet_reduction == "mean":
        return fmean(losses) >= _ENDED_AT * level
    pairs = _pairs_per_batch(recipe)
    return None if pairs is None else max(losses) >= _ENDED_AT * level * pairs


def stuck(
    recipe: Recipe, epoch: int, losses: Sequence[float], steps_per_epoch: int, found: Mapping[str, float]
) -> Diagnosis | None:
    """A triplet loss that stays at 2 × margin with hardest negatives: all pairs have the same score.

    A model that learns may pass slowly by this loss, as VSE++ and VSE∞ do: its hardest negatives then score like its
    positives on average. So a model that ranks well above chance is not stuck. found: the epoch's measures on the
    validation split; empty without one, and the loss alone decides.
    """
    if well_above_chance(found):
        return None
    level, watched = twice_the_margin(recipe, epoch), watched_steps(steps_per_epoch)
    goal, window = recipe.objective, losses[-watched:]
    if level is None or len(window) < watched:
        return None
    if goal.triplet_reduction == "sum":  # of a full batch, by pair; the last batch of an epoch may be smaller
        pairs = _pairs_per_batch(recipe)
        if pairs is None:
            return None
        window = [loss / pairs for loss in sorted(window)[math.ceil(watched / steps_per_epoch) :]]
    if not window or abs(fmean(window) - level) > _NEAR * level:
        return None
    if max(window) - min(window) > 4 * _NEAR * level:
        return None
    return Diagnosis(
        "stuck",
        f"The triplet loss has stayed at {fmean(window):.4f} for {len(window)} steps: 2 × margin = {level:g} means "
        "that all pairs have the same score. With hardest negatives from the start, training often gets stuck there.",
        "Start with the contrastive term (objective.con_weight=0.1 objective.temperature=0.05), or with the mean over "
        f"all negatives (objective.mean_negatives_epochs={epoch + 3}).",
        (
            f"objective.con_weight={max(goal.con_weight, 0.1):g}",
            f"objective.temperature={max(goal.temperature, 0.05):g}",
            f"objective.mean_negatives_epochs={epoch + 3}",
        ),
    )


def collapsed(recipe: Recipe, log_variance: float, set_size: int, modality: str) -> Diagnosis | None:
    """Sets whose vectors are nearly equal. Those on a model of one vector start so."""
    if set_size == 1 or log_variance > _COLLAPSED or recipe.model.head is not None:
        return None
    goal = recipe.objective
    gd, isd = max(0.1, 2 * goal.gd_weight), max(0.1, 2 * goal.isd_weight)
    return Diagnosis(
        "collapsed",
        f"The vectors of a set are nearly equal (log circular variance of {modality}s {log_variance:.1f}): a set then "
        "holds no more than a single vector.",
        f"Give more weight to the terms that keep them apart: objective.gd_weight={gd:g} objective.isd_weight={isd:g}.",
        (f"objective.gd_weight={gd:g}", f"objective.isd_weight={isd:g}"),
    )


def of_validation(recipe: Recipe, found: Mapping[str, float], set_sizes: Mapping[str, int]) -> list[Diagnosis]:
    """What the measures on the validation split show to be wrong. set_sizes: of each tower."""
    seen = [
        collapsed(recipe, found[f"{name}_log_variance"], size, name)
        for name, size in set_sizes.items()
        if f"{name}_log_variance" in found
    ]
    seen += [unused(recipe, found["slots_used"])] if "slots_used" in found else []
    return [diagnosis for diagnosis in seen if diagnosis is not None]


def unused(recipe: Recipe, used: float) -> Diagnosis | None:
    """Slots that never decide a score, and so learn nothing."""
    if used > 0.999:
        return None
    return Diagnosis(
        "unused",
        f"{100 * (1 - used):.0f} % of the slots never decide the score of a true pair: they learn nothing.",
        f"The similarity {recipe.model.similarity!r} allows it; model.similarity=maxmatch uses every vector.",
    )
