"""The models that the paper compares, as changes to a recipe of MaxMatch. No torch here."""

from dataclasses import dataclass
from typing import Literal

from maxmatch.config import SimilarityName
from maxmatch.evaluation.reported import LOSSES
from maxmatch.recipe import Recipe

_WEIGHTS = {"Div": "div_weight", "MMD": "mmd_weight", "GD": "gd_weight", "ISD": "isd_weight"}
_PVSE_WEIGHT = 0.1  # of its own diversity loss, as in the recipe coco_pvse
_OF_A_SET_HEAD = ("heads", "head_width", "depth")


@dataclass(frozen=True)
class Variant:
    """What is compared and how the set is kept apart; everything else is the base's.

    losses: which of Div, MMD, GD and ISD it has, with the weights of the base. set_size: None for the base's.
    diversity: "pvse" takes PVSE's Div, with its weight.
    """

    similarity: SimilarityName = "maxmatch"
    losses: tuple[str, ...] = LOSSES
    head: Literal["set", "pie"] = "set"
    set_size: int | None = None
    diversity: Literal["uniformity", "pvse"] = "uniformity"


MAXMATCH = Variant()
MIL = Variant("mil", ("Div", "MMD"))
SETDIV = Variant("smooth_chamfer", ("Div", "MMD"))
VSEPP = Variant("mil", (), set_size=1)
PVSE = Variant("mil", ("Div", "MMD"), "pie", 2, "pvse")
MAXMATCH_ON_PVSE = Variant(head="pie")


def changes(variant: Variant, base: Recipe) -> list[str]:
    """How a recipe of MaxMatch becomes the variant, as overrides of `load_recipe`.

    As in the recipes of the ablation, losses are left out and nothing else moves: the contrastive term stays too.
    """
    if base.model.similarity != "maxmatch":
        raise ValueError(
            f"{base.name}: trains with {base.model.similarity}. The rows are made by leaving something out of a recipe "
            "of MaxMatch: give one with --base (maxmatch train --list shows them)."
        )
    said = [f"model.similarity={variant.similarity}"]
    if variant.similarity != "maxmatch":
        said.append("evaluate.similarities=null")  # the one it is trained with
    for loss, weight in _WEIGHTS.items():
        if loss not in variant.losses:
            said.append(f"objective.{weight}=0.0")
        elif not getattr(base.objective, weight):
            raise ValueError(
                f"{base.name}: has no {loss} (objective.{weight}=0), which some rows need. Give it a weight, such as "
                f"objective.{weight}=0.1, or another recipe with --base."
            )
    if variant.diversity == "pvse":
        said += ["objective.diversity=pvse", f"objective.div_weight={_PVSE_WEIGHT}"]
    return said + _model(variant, base)


def _model(variant: Variant, base: Recipe) -> list[str]:
    """The changes to head and set size, in a preset or in a whole config."""
    said = []
    sizes = {tower: made.set_size for tower, made in base.model.resolved().towers.items()}
    # A size that the base has already is not said again: it would be the same model by another recipe.
    resized = [tower for tower, size in sizes.items() if variant.set_size not in (None, size)]
    if base.model.config is None:
        if variant.head == "pie":
            said.append("model.options.head=pie")
            said += [f"model.options.{option}=null" for option in _OF_A_SET_HEAD if option in base.model.options]
        if resized:
            said.append(f"model.options.set_size={variant.set_size}")
        return said
    for tower in base.model.config.towers:
        if variant.head == "pie":
            said.append(f"model.config.towers.{tower}.head={{name: pie}}")
        if tower in resized:
            said.append(f"model.config.towers.{tower}.set_size={variant.set_size}")
    return said
