"""What can be reproduced: the paper's tables and figures as lists of models and of the figures reported for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from maxmatch.core.array_checks import UsageError
from maxmatch.evaluation.paper import LOSSES, OURS, ReportedRow, tables
from maxmatch.model.config import SimilarityName
from maxmatch.recipe.schema import Recipe

# The models that the paper compares, as changes to a recipe of MaxMatch. No torch here.

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
    overrides = [f"model.similarity={variant.similarity}"]
    if variant.similarity != "maxmatch":
        overrides.append("evaluate.similarities=null")  # the one it is trained with
    for loss, weight in _WEIGHTS.items():
        if loss not in variant.losses:
            overrides.append(f"objective.{weight}=0.0")
        elif not getattr(base.objective, weight):
            raise ValueError(
                f"{base.name}: has no {loss} (objective.{weight}=0), which some rows need. Give it a weight, such as "
                f"objective.{weight}=0.1, or another recipe with --base."
            )
    if variant.diversity == "pvse":
        overrides += ["objective.diversity=pvse", f"objective.div_weight={_PVSE_WEIGHT}"]
    return overrides + _model(variant, base)


def _model(variant: Variant, base: Recipe) -> list[str]:
    """The changes to head and set size, in a preset or in a whole config."""
    overrides = []
    sizes = {tower: made.set_size for tower, made in base.model.resolved().towers.items()}
    # A size that the base has already is not set again: it would be the same model by another recipe.
    resized = [tower for tower, size in sizes.items() if variant.set_size not in (None, size)]
    if base.model.config is None:
        if variant.head == "pie":
            overrides.append("model.options.head=pie")
            overrides += [f"model.options.{option}=null" for option in _OF_A_SET_HEAD if option in base.model.options]
        if resized:
            overrides.append(f"model.options.set_size={variant.set_size}")
        return overrides
    for tower in base.model.config.towers:
        if variant.head == "pie":
            overrides.append(f"model.config.towers.{tower}.head={{name: pie}}")
        if tower in resized:
            overrides.append(f"model.config.towers.{tower}.set_size={variant.set_size}")
    return overrides


SLOTS = 4  # in the paper's sets
_SET_SIZES = (1, 2, 4, 8)
_RESNET, _BIGRU, _BERT = "Resnet152 + Bi-GRU", "Faster R-CNN + Bi-GRU", "Faster R-CNN + BERT"
_RECIPES = {_RESNET: "resnet152_bigru", _BIGRU: "region_bigru", _BERT: "region_bert"}


@dataclass(frozen=True)
class TableLine:
    """A model of a table. One without a recipe is only listed with the paper's figures; nothing is trained.

    recipe: that ships, for the paper's data. variant: of a base recipe, for other data; None where that makes no sense.
    paper: what the paper reports, by the names of `maxmatch.evaluation.paper`, and `image_slot_1_rsum` … of tab:5.
    """

    title: tuple[str, ...]
    paper: Mapping[str, float]
    recipe: str | None = None
    variant: Variant | None = None
    group: str = ""
    ensemble: bool = False
    """Of the first two seeds' models: their scores averaged."""
    reference: bool = False
    """What the other lines of its group are tested against."""


@dataclass(frozen=True)
class Target:
    """A table or a figure of the paper, or one more of its kind."""

    name: str
    label: str
    """In the paper's source; its name, where the paper has no such table."""
    about: str
    data: Literal["coco", "flickr30k"]
    """What the paper measured on."""
    lines: tuple[TableLine, ...]
    headings: tuple[str, ...] = ("method",)
    figures: tuple[str, ...] = ()
    """Which of the paper's figures are listed, with ours."""
    kind: Literal["rows", "slots", "figure"] = "rows"
    """A line for each model, a column for each (tab:5), or a picture."""
    base: str | None = None
    """The recipe that lines are made from on the paper's data too; None where each has one that ships."""
    reference_name: str = OURS
    """What the line is called, in a heading, that the others are tested against."""


def targets() -> dict[str, Target]:
    """All of them, by name."""
    made = (
        _main("flickr30k", "table:flickr30k", "flickr30k", "f30k", ("i2t_r1", "t2i_r1", "rsum")),
        _main(
            "coco", "table:mscoco", "coco", "coco", ("coco_1k_rsum", "coco_5k_i2t_r1", "coco_5k_t2i_r1", "coco_5k_rsum")
        ),
        _ablation(),
        _elements(),
        _resnext("resnext", "coco", "coco", ("MS-COCO 1K Test Images", "MS-COCO 5K Test Images")),
        _resnext("resnext-flickr30k", "flickr30k", "f30k", ("Flickr30k Test Images",)),
        _pvse(),
        _sizes(),
        _figure("tsne", "fig:tsne", "t-SNE of the vectors by slot and modality: MIL, smooth-Chamfer, MaxMatch", 3),
        _figure("heatmap", "fig:heatmap", "Mean cosines of slots with slots: MIL, smooth-Chamfer, MaxMatch", 3),
        _figure("qualitative", "fig:qualitative", "What each slot retrieves: smooth-Chamfer (Set Div), MaxMatch", 2),
    )
    return {target.name: target for target in made}


def target_called(name: str) -> Target:
    """A target by its name, or by the paper's label."""
    known = targets()
    by_label = {target.label: target for target in reversed(known.values())}
    by_label["fig:qualitativei2t"] = known["qualitative"]
    found = known.get(name) or by_label.get(name)
    if found is None:
        near = get_close_matches(name, [*known, *by_label], n=1)
        advice = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
        raise UsageError(f"{name}: not a table or figure of the paper. {advice}")
    return found


def _main(name: str, label: str, data: Literal["coco", "flickr30k"], prefix: str, figures: tuple[str, ...]) -> Target:
    """table:flickr30k, table:mscoco. Elsewhere the rows are those of one group: backbones are the base's."""
    lines = []
    for row in tables()[label].rows:
        recipe = {
            OURS: f"{prefix}_{_RECIPES[row.group]}",
            "Set Div": f"{prefix}_{_RECIPES[row.group]}_setdiv",
            "VSE++": f"{prefix}_vsepp",
            "PVSE": f"{prefix}_pvse",
        }.get(row.method)
        variant = {OURS: MAXMATCH, "Set Div": SETDIV, "VSE++": VSEPP, "PVSE": PVSE}.get(row.method)
        elsewhere = variant if row.group == _RESNET else None
        reference = row.method == OURS and not row.ensemble
        lines.append(TableLine((_marked(row),), row.figures, recipe, elsewhere, row.group, row.ensemble, reference))
    return Target(name, label, tables()[label].caption, data, tuple(lines), figures=figures)


def _marked(row: ReportedRow) -> str:
    return f"{row.method}{'†' if row.ensemble else ''}{'‡' if row.external else ''}"


def _ablation() -> Target:
    similarities = {"MIL": "mil", "Smooth-Chamfer": "smooth_chamfer", "Maximal Pair Assignment": "maxmatch"}
    lines = []
    for number, row in enumerate(tables()["table_abl"].rows, start=1):
        losses = row.losses or ()
        title = (row.method, *("✓" if loss in losses else "" for loss in LOSSES))
        variant = Variant(similarities[row.method], losses)
        lines.append(TableLine(title, row.figures, f"ablation/{number:02}", variant, reference=variant == MAXMATCH))
    about = tables()["table_abl"].caption
    return Target("ablation", "table_abl", about, "coco", tuple(lines), ("similarity", *LOSSES), ("coco_5k_rsum",))


_THREE = (
    ("MIL", "MIL", MIL, "ablation/01"),
    ("Smooth Chamfer", "smooth-Chamfer", SETDIV, "ablation/02"),
    (OURS, OURS, MAXMATCH, "ablation/11"),
)


def _elements() -> Target:
    lines = []
    for method, title, variant, recipe in _THREE:
        paper: dict[str, float] = {}
        for row in tables()["tab:5"].rows:
            if row.method == method and row.slot is not None:
                paper[f"{row.group}_slot_{row.slot}_rsum"] = row.figures["coco_5k_rsum"]
            elif row.method == method and row.group == "image":
                paper["coco_5k_rsum"] = row.figures["coco_5k_rsum"]
            elif row.method == method and row.group == "circular variance":
                paper["log_variance"] = row.figures["log_variance"]
        lines.append(TableLine((title,), paper, recipe, variant, reference=variant == MAXMATCH))
    about = tables()["tab:5"].caption
    return Target("elements", "tab:5", about, "coco", tuple(lines), figures=("coco_5k_rsum",), kind="slots")


def _resnext(name: str, data: Literal["coco", "flickr30k"], prefix: str, groups: tuple[str, ...]) -> Target:
    """tab:resnext: of one data set, whose parts are joined to one line a method."""
    table = tables()["tab:resnext"]
    recipes = {OURS: f"{prefix}_resnext101_bert", "Set Div": f"{prefix}_resnext101_bert_setdiv"}
    variants = {OURS: MAXMATCH, "Set Div": SETDIV}
    lines = []
    for method in ("VSE∞", "Set Div", OURS):
        found = [row.figures for row in table.rows if row.method == method and row.group in groups]
        paper = {key: value for figures in found for key, value in figures.items()}
        variant = variants.get(method)
        lines.append(TableLine((method,), paper, recipes.get(method), variant, reference=variant == MAXMATCH))
    figures = ("coco_1k_rsum", "coco_5k_rsum") if data == "coco" else ("i2t_r1", "t2i_r1", "rsum")
    return Target(name, table.label, f"{table.caption}: {' and '.join(groups)}", data, tuple(lines), figures=figures)


def _pvse() -> Target:
    recipes: dict[str, tuple[str, Variant]] = {
        "VSE++": ("f30k_vsepp", VSEPP),
        "PVSE": ("f30k_pvse", PVSE),
        "Set Div": ("f30k_resnet152_bigru_setdiv", SETDIV),
        "MaxMatch + PVSE": ("f30k_pvse_maxmatch", MAXMATCH_ON_PVSE),
        OURS: ("f30k_resnet152_bigru", MAXMATCH),
    }
    table = tables()["tab:PVSE"]
    lines = []
    for row in table.rows:
        recipe, variant = recipes.get(row.method, (None, None))
        lines.append(TableLine((row.method,), row.figures, recipe, variant, reference=row.method == OURS))
    return Target("pvse", table.label, table.caption, "flickr30k", tuple(lines), figures=("i2t_r1", "t2i_r1", "rsum"))


def _sizes() -> Target:
    """Not in the paper, whose sets have four vectors. With one vector ISD and Div are zero: it has no pairs."""
    base = "coco_region_bert"
    lines = tuple(
        TableLine((f"K = {size}",), {}, base, Variant(set_size=size), reference=size == SLOTS) for size in _SET_SIZES
    )
    about = (
        "MaxMatch with K = 1, 2, 4, 8 vectors per set, all else equal. Not a table of the paper: it has no such figures"
    )
    figures = ("coco_5k_i2t_r1", "coco_5k_t2i_r1", "coco_5k_rsum")
    return Target(
        "sizes", "sizes", about, "coco", lines, ("set size",), figures, base=base, reference_name=f"K = {SLOTS}"
    )


def _figure(name: str, label: str, about: str, models: int) -> Target:
    lines = tuple(TableLine((title,), {}, recipe, variant) for _, title, variant, recipe in _THREE[-models:])
    return Target(name, label, about, "coco", lines, kind="figure")
