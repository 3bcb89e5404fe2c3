"""What can be reproduced: the paper's tables and figures as lists of models, and the jobs that train and measure these.

No torch here.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from maxmatch.core.array_checks import UsageError
from maxmatch.core.files import write_whole
from maxmatch.evaluation.paper import LOSSES, OURS, departures, tables
from maxmatch.model.config import GRU, PIE, Conv, SetPrediction, SimilarityName
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import load_recipe

# The models that the paper compares, as changes to a recipe of MaxMatch.

_WEIGHTS = {"Div": "div_weight", "MMD": "mmd_weight", "GD": "gd_weight", "ISD": "isd_weight"}
_PVSE_WEIGHT = 0.1  # of its own diversity loss, as in the recipe coco_pvse
_OF_A_SET_HEAD = [key for key in SetPrediction.model_fields if key not in PIE.model_fields]


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
ONE_VECTOR = Variant("mil", (), set_size=1)
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
    """The changes to head and set size, in a preset or in a whole config. PVSE's head comes with what its code has
    before it: raw cells, words that do not start small, and none left out.
    """
    pie, overrides = variant.head == "pie", list[str]()
    if pie and base.train.size_augmentation:
        overrides.append("train.size_augmentation=0.0")
    sizes = {tower: made.set_size for tower, made in base.model.resolved().towers.items()}
    # A size that the base has already is not set again: it would be the same model by another recipe.
    resized = [tower for tower, size in sizes.items() if variant.set_size not in (None, size)]
    if base.model.config is None:
        if pie:
            overrides += ["model.options.head=pie", "model.options.init=xavier"]
            others = [*_OF_A_SET_HEAD, "word_scale"]
            overrides += [f"model.options.{option}=null" for option in others if option in base.model.options]
            if any(isinstance(tower.encoder, Conv) for tower in base.model.resolved().towers.values()):
                overrides.append("model.options.projection=none")
        if resized:
            overrides.append(f"model.options.set_size={variant.set_size}")
        return overrides
    for tower, made in base.model.config.towers.items():
        if pie:
            overrides.append(f"model.config.towers.{tower}.head={{name: pie, init: xavier}}")
        if pie and isinstance(made.encoder, Conv):
            overrides.append(f"model.config.towers.{tower}.encoder.projection=none")
        if pie and isinstance(made.encoder, GRU):
            overrides.append(f"model.config.towers.{tower}.encoder.word_scale={GRU.model_fields['word_scale'].default}")
        if tower in resized:
            overrides.append(f"model.config.towers.{tower}.set_size={variant.set_size}")
    return overrides


SLOTS = 4  # in the paper's sets
_SET_SIZES = (1, 2, 4, 8)
_ONE_VECTOR_TITLE = "one vector, triplet loss"
_RESNET, _BIGRU, _BERT = "Resnet152 + Bi-GRU", "Faster R-CNN + Bi-GRU", "Faster R-CNN + BERT"
_RECIPES = {_RESNET: "resnet152_bigru", _BIGRU: "region_bigru", _BERT: "region_bert"}


@dataclass(frozen=True)
class TableLine:
    """A model of a table. One without a recipe is only listed with the paper's figures; nothing is trained.

    recipe: that ships, for the paper's data. variant: of a base recipe, for other data; None if that makes no sense.
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
    """The recipe that lines are made from on the paper's data too; None if each has one that ships."""
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


def target_called(name: str, studies: Iterable[str] = ()) -> Target:
    """A target by its name, or by the paper's label. studies: what else there is to name, for a message."""
    known = targets()
    by_label = {target.label: target for target in reversed(known.values())}
    by_label["fig:qualitativei2t"] = known["qualitative"]
    found = known.get(name) or by_label.get(name)
    if found is None:
        near = get_close_matches(name, [*known, *by_label, *studies], n=1)
        advice = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join([*known, *studies])}."
        raise UsageError(f"{name}: not a table or figure of the paper, nor a study. {advice}")
    return found


def _model_of(method: str, data: str, backbones: str) -> tuple[str | None, Variant | None]:
    """The recipe and the variant of one of the paper's methods; None for one that is only listed."""
    known: dict[str, tuple[str, Variant | None]] = {
        OURS: (f"{data}_{backbones}", MAXMATCH),
        "Set Div": (f"{data}_{backbones}_setdiv", SETDIV),
        "VSE++": (f"{data}_vsepp", ONE_VECTOR),
        "PVSE": (f"{data}_pvse", PVSE),
        **({"VSE∞": (f"{data}_vseinf_{backbones}", None)} if backbones.startswith("region_") else {}),
        "MaxMatch + PVSE": (f"{data}_pvse_maxmatch", MAXMATCH_ON_PVSE),
    }
    return known.get(method, (None, None))


def _main(name: str, label: str, data: Literal["coco", "flickr30k"], prefix: str, figures: tuple[str, ...]) -> Target:
    """table:flickr30k, table:mscoco. Elsewhere the rows are those of one group: backbones are the base's."""
    lines = []
    for row in tables()[label].rows:
        recipe, variant = _model_of(row.method, prefix, _RECIPES[row.group])
        title = f"{row.method}{'†' if row.ensemble else ''}{'‡' if row.external else ''}"
        elsewhere = variant if row.group == _RESNET else None
        reference = row.method == OURS and not row.ensemble
        lines.append(TableLine((title,), row.figures, recipe, elsewhere, row.group, row.ensemble, reference))
    return Target(name, label, tables()[label].caption, data, tuple(lines), figures=figures)


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
    """tab:resnext: of one data set, whose parts are joined to one line per method."""
    table = tables()["tab:resnext"]
    lines = []
    for method in ("VSE∞", "Set Div", OURS):
        found = [row.figures for row in table.rows if row.method == method and row.group in groups]
        paper = {key: value for figures in found for key, value in figures.items()}
        recipe, variant = _model_of(method, prefix, "resnext101_bert")
        lines.append(TableLine((method,), paper, recipe, variant, reference=method == OURS))
    figures = ("coco_1k_rsum", "coco_5k_rsum") if data == "coco" else ("i2t_r1", "t2i_r1", "rsum")
    return Target(name, table.label, f"{table.caption}: {' and '.join(groups)}", data, tuple(lines), figures=figures)


def _pvse() -> Target:
    table = tables()["tab:PVSE"]
    lines = []
    for row in table.rows:
        recipe, variant = _model_of(row.method, "f30k", _RECIPES[_RESNET])
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


# One job per model: what is trained and measured.

JobProtocol = Literal["plain", "auto"]
JOB, RESULT = "job.json", "result.json"
_VERSION = 1
"""Raised by one when the same settings would give other figures."""


@dataclass(frozen=True)
class Job:
    """A model, or an ensemble of several that were trained before, and the split it is measured on.

    members: the folder of each recipe's run; of a single model this is the job's own. split: None for the recipe's, or
    what the data has. protocol: as of `maxmatch.evaluation.metrics`.
    """

    folder: Path
    recipes: tuple[Recipe, ...]
    members: tuple[Path, ...]
    split: str | None = None
    protocol: JobProtocol = "plain"

    @property
    def settings(self) -> dict[str, Any]:
        """All that the figures depend on, as JSON has it: a result with other settings is not this job's."""
        recipes = list(map(_essence, self.recipes))
        return {"version": _VERSION, "recipes": recipes, "split": self.split, "protocol": self.protocol}

    def write(self) -> None:
        """Write the job to its folder, for the process that runs it."""
        write_whole(self.folder / JOB, TypeAdapter(Job).dump_json(self, indent=2).decode() + "\n")

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result; from then on the job is done."""
        write_whole(self.folder / RESULT, json.dumps({"settings": self.settings, **result}, indent=2) + "\n")

    def result(self) -> dict[str, Any] | None:
        """The result; None if it is not done, or was done with other settings."""
        try:
            found = json.loads((self.folder / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none yet, or a damaged one: the run's own files make it again
            return None
        return found if isinstance(found, dict) and found.get("settings") == self.settings else None


def read_job(folder: Path) -> Job:
    """The job that was written down in a folder."""
    return TypeAdapter(Job).validate_json((folder / JOB).read_bytes())


def single(folder: Path, recipe: Recipe, split: str | None, protocol: JobProtocol) -> Job:
    """The job of one model. Its folder is named by what is trained: two tables that need the same model share it, and
    one that differs in anything has another folder.
    """
    recipe = recipe.model_copy(update={"name": kind(recipe), "description": ""})
    place = folder / f"{recipe.name}-seed{recipe.seed}-{_digest([_essence(recipe)])}"
    return Job(place, (recipe,), (place,), split, protocol)


def ensemble(folder: Path, jobs: tuple[Job, ...]) -> Job:
    """The job of several models whose scores are averaged."""
    recipes = tuple(job.recipes[0] for job in jobs)
    place = folder / f"ensemble{len(jobs)}-{recipes[0].name}-{_digest(list(map(_essence, recipes)))}"
    return Job(place, recipes, tuple(job.folder for job in jobs), jobs[0].split, jobs[0].protocol)


def kind(recipe: Recipe) -> str:
    """What a recipe trains, in short: similarity, head, set size, losses."""
    towers = recipe.model.resolved().towers
    sizes = "x".join(dict.fromkeys(str(tower.set_size) for tower in towers.values()))
    heads = [tower.head.name for tower in towers.values() if tower.head.name != "set"]
    losses = [loss.lower() for loss, weight in _WEIGHTS.items() if getattr(recipe.objective, weight)]
    return "-".join([recipe.model.similarity, *dict.fromkeys(heads), f"k{sizes}", *losses])


def _essence(recipe: Recipe) -> dict[str, Any]:
    """A recipe without its names and texts, and without options that came later and are not used. Generated scenes are
    the same in any folder.
    """
    settings: dict[str, Any] = _without_unused(recipe.model_dump(mode="json", exclude={"name", "description"}))
    del settings["data"]["licence"]
    settings["train"].pop("picture_cache", None)  # changes nothing
    if recipe.data.scenes is not None:
        del settings["data"]["path"]
    if recipe.data.set_aside is not None:  # known by what it lists, wherever the file lies
        from maxmatch.data.load import read_ids

        settings["data"]["set_aside"] = _digest(sorted(set(read_ids(Path(recipe.data.set_aside).expanduser()))))
    return settings


_LATER: dict[str, Any] = {
    "hold_out_words": [], "trust_features": False, "global_feature": "raw", "projection": "linear", "init": "torch",
    "weights": None, "teachers": [], "distill_weight": 0.0, "distill_temperature": 0.05, "crop_ratio": [3 / 4, 4 / 3],
    "phrases": 0.0, "batches": "mixed", "crop_size": None, "phrase_weight": 0.0, "triplet_reduction": "mean",
    "times": None, "unit_pooled": False, "mlp_reads": "fc", "word_init": "normal", "local": "words", "start": None,
    "bce_weight": 0.0, "pseudo_positives": 0.1, "label_smoothing": 1e-4, "kl_weight": 0.0,
    "set_aside": None, "max_images": None, "gd_isd_centred": False,
    "caption_matching_weight": 0.0, "spare_slots": 0,
    "logit_scale": None, "logit_bias": None,
    "head": None, "set_size": None, "unfreeze": {}, "lora": None, "gradient_checkpointing": False,
    "plain_bce_epochs": 0, "reads": "both", "amsgrad": False,
}  # fmt: skip
"""The defaults of options that came after models had been reproduced, whose folders must still be found."""


def _without_unused(settings: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in settings.items() if key not in _LATER or value != _LATER[key]}
    return {key: _without_unused(value) if isinstance(value, dict) else value for key, value in kept.items()}


def _digest(settings: Any) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


# From a target and options to the jobs that it takes.

SCENES = "scenes"
"""As data: generate it."""
CELLS = "cells"
"""The folder of all jobs."""
_ENSEMBLE = 2  # models, as in the paper
_QUICK_SCENES = (
    "data.scenes.images=800",
    "model.config.width=64",
    "train.batch_size=32",
    "train.epochs=5",
    "train.warmup_steps=10",
)
_QUICK_SHARE = 20  # of the epochs of a recipe for real data


@dataclass(frozen=True)
class ReproduceOptions:
    """What is asked for.

    data: a path, or "scenes"; several as `region=PATH`, each for the recipes that have the word in their names. base:
    the recipe of MaxMatch that rows are made from; None for the paper's recipes, on the paper's data. changes: to all
    recipes, before the rows'.
    """

    data: Sequence[str]
    out: Path
    base: str | None = None
    seeds: int = 1
    quick: bool = False
    split: str | None = None
    changes: Sequence[str] = ()


@dataclass(frozen=True)
class PlannedLine:
    """A line of the table and the jobs that its figures come from, one per seed. why_none: if there are none.
    departures: what its recipe lacks that the paper used.
    """

    line: TableLine
    jobs: tuple[Job, ...] = ()
    why_none: str = ""
    departures: tuple[str, ...] = ()


@dataclass(frozen=True)
class TablePlan:
    """The table to be."""

    target: Target
    options: ReproduceOptions
    base: str | None
    """The recipe that the rows are made from; None for the paper's own."""
    lines: tuple[PlannedLine, ...]

    @property
    def jobs(self) -> list[Job]:
        """All jobs, each once, ensembles after their members."""
        return jobs_of([self])

    @property
    def departures(self) -> list[str]:
        """What the recipes lack that the paper used, each once."""
        return list(dict.fromkeys(one for line in self.lines for one in line.departures))


def jobs_of(plans: Iterable[TablePlan]) -> list[Job]:
    """The jobs of some tables, one that two of them need only once; ensembles after their members. The first seeds of
    all lines come first, so that a table which is not finished has equally many models in each line.
    """
    found = [(len(job.members), seed, job) for one in plans for line in one.lines for seed, job in enumerate(line.jobs)]
    return list({job.folder: job for *_, job in sorted(found, key=lambda each: each[:2])}.values())


def plan(target: Target, options: ReproduceOptions) -> TablePlan:
    """The jobs of a target: each line's recipe, once for each seed."""
    elsewhere = options.base if options.base is not None else SCENES if SCENES in options.data else None
    base = target.base if elsewhere is None else elsewhere
    protocol: JobProtocol = "auto" if elsewhere is None and target.data == "coco" else "plain"
    folder = options.out / CELLS

    @cache  # most lines begin with the same file
    def load(name: str, *overrides: str) -> Recipe:
        return load_recipe(name, overrides)

    def recipe_of(name: str, variant: Variant | None, data: str) -> Recipe:
        """The small version, the user's changes, what makes the row, and the data."""
        overrides = [*(_quick(load(name)) if options.quick else ()), *options.changes]
        recipe = load(name, *overrides)
        if variant is not None:
            overrides += changes(variant, recipe)
        return load(name, *overrides, data_override(recipe, data, options.out))

    def planned(line: TableLine) -> PlannedLine:
        if base is not None and line.variant == ONE_VECTOR:  # made from a base it is not VSE++
            line = replace(line, title=(_ONE_VECTOR_TITLE,), paper={})
        name = line.recipe if base is None else base
        if line.recipe is None or name is None:
            return PlannedLine(line)
        if line.ensemble and options.seeds < _ENSEMBLE:
            return PlannedLine(line, why_none=f"an ensemble: takes --seeds {_ENSEMBLE}")
        data = data_for(name, options.data)
        if data is None:
            return PlannedLine(line, why_none=f"no --data for {name}")
        recipe = recipe_of(name, line.variant if base is not None else None, data)
        seeds = [recipe.model_copy(update={"seed": recipe.seed + place}) for place in range(options.seeds)]
        jobs = tuple(single(folder, one, options.split, protocol) for one in seeds)
        # The members of an ensemble are jobs of the line above it: the same model alone.
        jobs = (ensemble(folder, jobs[:_ENSEMBLE]),) if line.ensemble else jobs
        return PlannedLine(line, jobs, departures=tuple(f"{name}: {one}" for one in departures(recipe)))

    lines = [line for line in target.lines if base is None or line.variant is not None]
    return TablePlan(target, options, base, tuple(map(planned, lines)))


def data_for(recipe: str, data: Sequence[str]) -> str | None:
    """The data for a recipe: the first that is meant for it (`region=PATH`), or that is for all; None for none."""
    for one in data:
        word, equals, path = one.partition("=")
        if not equals or Path(one).exists():
            return one
        if word in recipe:
            return path
    return None


def _quick(recipe: Recipe) -> list[str]:
    if recipe.data.scenes is not None and recipe.model.config is not None:
        return list(_QUICK_SCENES)
    return [f"train.epochs={-(-recipe.train.epochs // _QUICK_SHARE)}"]


def data_override(recipe: Recipe, data: str, out: Path) -> str:
    """Where the data is, as an override. Scenes of each number and size have a folder of their own."""
    path = Path(data).expanduser()
    if data == SCENES:
        scenes = recipe.data.scenes
        if scenes is None:
            raise ValueError(f"{recipe.name}: has no data.scenes. Take a recipe for generated scenes, or other --data.")
        path = out / f"scenes-{scenes.images}-{scenes.size}-{scenes.seed}"
    elif not path.exists():
        raise FileNotFoundError(f"--data {data}: no such file or folder. For generated data: --data {SCENES}")
    return f"data.path={json.dumps(str(path.absolute()))}"
