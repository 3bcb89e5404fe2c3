"""Validation during training, and warnings when training does not work: what it looks like, why, and what to try."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.metrics import EvaluatedModel, chance, evaluate
from maxmatch.matching.similarity import with_options
from maxmatch.recipe.schema import Recipe

# How good the model is now: retrieval on the validation split, and whether its sets collapse.


def measures(
    encoded: EncodedSplit, pair: tuple[str, str], similarity: str, options: Mapping[str, int | float] | None = None
) -> dict[str, float]:
    """Recalls and RSUM between two modalities, and the collapse of each. options: those of the similarity."""
    model = EvaluatedModel("model", encoded, with_options(similarity, options or {}))
    by_chance = chance(*(encoded.groups[name].cpu() for name in pair))
    figures = evaluate([model], pair=pair, protocol="plain").figures
    return {**figures, **{f"chance_{name}": value for name, value in by_chance.items()}}


# Training that does not work says so: what it looks like, why, and what to try.

_WINDOW = 20  # steps that must agree before training is called stuck
_NEAR = 0.02  # of 2 × margin
_COLLAPSED = -9.0  # log circular variance: vectors of a set whose cosines are 0.9998 and more
DiagnosisKind = Literal["stuck", "not_finite", "collapsed", "unused"]


@dataclass(frozen=True)
class Diagnosis:
    """What went wrong, in words a person can act on."""

    kind: DiagnosisKind
    what: str
    cure: str
    changes: tuple[str, ...] = ()
    """The cure as changes of the recipe, `key=value`; what --auto-recover applies."""

    def __str__(self) -> str:
        return f"{self.what} {self.cure}"


def watched_steps(steps_per_epoch: int) -> int:
    """How many steps back one looks: within an epoch, where it is long enough."""
    return max(_WINDOW, min(100, steps_per_epoch // 2))


def not_finite(value: float, recipe: Recipe) -> Diagnosis:
    """A loss, or what was validated, that is no number any more."""
    return Diagnosis(
        "not_finite",
        f"The loss is {value}: the weights are no numbers any more.",
        f"Try a smaller learning rate (train.lr={recipe.train.lr / 2:g}) or train.precision=fp32.",
        (f"train.lr={recipe.train.lr / 2:g}",),
    )


def stuck(recipe: Recipe, epoch: int, losses: Sequence[float], steps_per_epoch: int) -> Diagnosis | None:
    """A triplet loss that stands at 2 × margin with hardest negatives: all pairs score alike."""
    goal = recipe.objective
    window = losses[-watched_steps(steps_per_epoch) :]
    if goal.keywords(epoch)["negatives"] != "hardest" or not goal.triplet_weight or goal.margin == 0:
        return None
    level = 2 * goal.margin * len(goal.pairs)
    if len(window) < watched_steps(steps_per_epoch) or abs(fmean(window) - level) > _NEAR * level:
        return None
    if max(window) - min(window) > 4 * _NEAR * level:
        return None
    return Diagnosis(
        "stuck",
        f"The triplet loss has stood at {fmean(window):.4f} for {len(window)} steps: 2 × margin = {level:g} is what it "
        "is when every caption scores alike with every image. With hardest negatives from the start, training often "
        "falls into this state and stays.",
        "Start with the contrastive term (objective.con_weight=0.1 objective.temperature=0.05), or with the mean over "
        f"all negatives (objective.mean_negatives_epochs={epoch + 3}).",
        (
            f"objective.con_weight={max(goal.con_weight, 0.1):g}",
            f"objective.temperature={max(goal.temperature, 0.05):g}",
            f"objective.mean_negatives_epochs={epoch + 3}",
        ),
    )


def collapsed(recipe: Recipe, log_variance: float, set_size: int, modality: str) -> Diagnosis | None:
    """Sets whose vectors are all the same."""
    if set_size == 1 or log_variance > _COLLAPSED:
        return None
    goal = recipe.objective
    gd, isd = max(0.1, 2 * goal.gd_weight), max(0.1, 2 * goal.isd_weight)
    return Diagnosis(
        "collapsed",
        f"The vectors of a set have become one (log circular variance of {modality}s {log_variance:.1f}): a set then "
        "says no more than a single vector.",
        f"Give the terms that hold them apart more weight: objective.gd_weight={gd:g} objective.isd_weight={isd:g}.",
        (f"objective.gd_weight={gd:g}", f"objective.isd_weight={isd:g}"),
    )


def unused(recipe: Recipe, used: float) -> Diagnosis | None:
    """Vectors that never decide a score, and so learn nothing."""
    if used > 0.999:
        return None
    return Diagnosis(
        "unused",
        f"{100 * (1 - used):.0f} % of the slots never decide the score of a true pair: they learn nothing.",
        f"The similarity {recipe.model.similarity!r} allows it; model.similarity=maxmatch uses every vector.",
    )
