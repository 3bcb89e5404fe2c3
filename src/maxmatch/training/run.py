"""A run: its folder, how it starts, is saved and resumed, and how it ends."""

import json
import math
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from maxmatch.core.files import METRICS, write_whole
from maxmatch.data.dataset import Split
from maxmatch.data.sampler import GroupSampler
from maxmatch.evaluation.encoding import EncodedSplit, encode_split
from maxmatch.evaluation.metrics import EvaluatedModel, Pairing, slot_pairing
from maxmatch.evaluation.runs import measure
from maxmatch.evaluation.significance import Interval
from maxmatch.matching.similarity import with_options
from maxmatch.model.encoder import SetEncoder
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import RecipeError, dump, dump_recipe, load_recipe
from maxmatch.training.diagnostics import Diagnosis, measures
from maxmatch.training.distributed import Processes
from maxmatch.training.graph import RecordedSteps, compile_layers
from maxmatch.training.log import RunLog
from maxmatch.training.optim import Average, Group, optimiser, parameter_groups, with_average
from maxmatch.training.prepare import TrainingParts, prepare
from maxmatch.training.state import Progress, States, restore

# The folder of a run: its recipe, metrics, states and checkpoints.

RECIPE, DONE = "recipe.yaml", "done.json"


@dataclass(frozen=True)
class RunFolder:
    """Where everything of a run lies.

    recipe.yaml    the recipe as it was resolved
    metrics.jsonl  losses, validation, collapse
    tracker-id.txt by what wandb or trackio knows the run, where the recipe asks for one
    states/        where the run stands, for going on
    best/, last/   checkpoints that `SetEncoder.from_pretrained` reads
    done.json      the results, once it is finished
    """

    path: Path

    @property
    def best(self) -> Path:
        """The checkpoint with the best RSUM."""
        return self.path / "best"

    @property
    def last(self) -> Path:
        """The checkpoint of the end."""
        return self.path / "last"

    @property
    def done(self) -> Path:
        """What says that the run is finished."""
        return self.path / DONE

    @property
    def recipe(self) -> Path:
        """The recipe as it was resolved."""
        return self.path / RECIPE

    def begin(self, recipe: Recipe) -> None:
        """Make the folder, and write down what is trained in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.recipe, dump_recipe(recipe))

    def result(self) -> dict[str, float]:
        """The measures of the best epoch of a run that is finished."""
        return dict(json.loads(self.done.read_text(encoding="utf-8")))

    def states(self, keep: int) -> States:
        """The states of the run."""
        return States(self.path / "states", keep)


def open_run(path: Path, recipe: Recipe, resume: bool) -> RunFolder:
    """The folder of a run: a new one, or with `resume` one that holds the same recipe. Nothing is written yet."""
    known = path / RECIPE
    if known.exists():
        if not resume:
            raise FileExistsError(
                f"{path}: holds a run already. Go on with it by --resume, or choose another folder with --out."
            )
        if load_recipe(known) != recipe:
            raise ValueError(
                f"{known}: the run there was started with another recipe. Resume it with its own "
                f"(maxmatch train {known} --resume --out {path}), or choose another folder."
            )
    elif path.exists() and (any(path.glob("state*")) or (path / METRICS).exists()):
        raise FileExistsError(f"{path}: holds files of a run, but no {RECIPE}. Choose another folder.")
    return RunFolder(path)


# What a run holds while it goes on; how it is begun, put down and taken up.

_PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Run:
    """All that the loop works with."""

    recipe: Recipe
    folder: RunFolder
    here: Processes
    parts: TrainingParts
    sampler: GroupSampler
    groups: list[Group]
    adam: torch.optim.AdamW
    scaler: torch.amp.GradScaler
    average: Average | None
    states: States
    progress: Progress
    log: RunLog
    figures: dict[str, float] = field(default_factory=dict)
    """The latest losses."""
    unsaved_best: dict[str, Tensor] | None = None
    """The weights of the best epoch, until they are on the disk."""
    saved_at: float = -math.inf
    recorded: tuple[object, RecordedSteps] | None = None
    """Steps recorded on the GPU, and what they were recorded for."""
    said: set[str] = field(default_factory=set)
    """The troubles that stood at the last validation: they were said, and are not said again while they last."""

    @property
    def precision(self) -> torch.dtype | None:
        """What the encoders work in."""
        asked = self.recipe.train.precision
        return _PRECISIONS[("bf16" if self.here.device.type == "cuda" else "fp32") if asked == "auto" else asked]

    @property
    def seconds_left(self) -> float:
        """For the steps to come, going by those so far."""
        total = len(self.sampler) * self.recipe.train.epochs
        return self.progress.seconds / max(self.progress.step, 1) * (total - self.progress.step)


def begin(recipe: Recipe, folder: RunFolder, here: Processes, show_progress: bool | None) -> Run:
    """Everything at its start, or where an earlier run of the folder stopped."""
    log = RunLog(folder.path, recipe, here.first, show_progress)
    states = folder.states(recipe.train.keep_checkpoints)
    parts = prepare(recipe, here, log.say)
    sampler = GroupSampler(parts.train.size, recipe.train.batch_size, recipe.seed, rank=here.rank, world=here.world)
    groups = parameter_groups(parts.model, recipe.train)
    average = Average(parts.model, recipe.train.ema) if recipe.train.ema is not None else None
    scaler = torch.amp.GradScaler(here.device.type, enabled=recipe.train.precision == "fp16")
    adam = optimiser(groups, recipe.train)
    run = Run(recipe, folder, here, parts, sampler, groups, adam, scaler, average, states, Progress(), log)
    if recipe.train.compile and here.device.type == "cuda":
        compile_layers(parts.model)
    newest = states.newest()
    if newest is not None:
        _restore(run, newest)
    elif here.first:
        folder.begin(recipe)
        save(run, good=True)
    log.begin(run.progress.step, len(sampler) * recipe.train.epochs, run.progress.records)
    return run


def save(run: Run, good: bool = False) -> None:
    """Put the run's state on the disk, after the best weights that it speaks of."""
    if not run.here.first:
        return
    model = run.parts.model
    if run.unsaved_best is not None:
        own = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(run.unsaved_best)
        model.save_pretrained(run.folder.best)
        model.load_state_dict(own)
        run.unsaved_best = None
    run.progress.loss_scale, run.progress.records = run.scaler.state_dict(), run.log.records
    average = None if run.average is None else run.average.weights
    run.states.save(model, run.groups, run.adam, average, run.progress, good)
    run.saved_at = time.monotonic()


def recover(run: Run, trouble: Diagnosis) -> None:
    """Back to the last good state, with the cure applied to the recipe."""
    recoveries = [*run.progress.recoveries, list(trouble.changes)]
    _restore(run, run.states.good)
    run.progress.recoveries, run.progress.losses = recoveries, []
    run.recipe = load_recipe(run.folder.recipe, run.progress.changes)
    run.log.back_to(run.progress.step)
    run.log.say(f"  back to step {run.progress.step}, with {' '.join(trouble.changes)}")
    save(run)


def _restore(run: Run, state: Path) -> None:
    average = None if run.average is None else run.average.weights
    run.unsaved_best, run.recorded = None, None  # a recorded step would go on with the optimiser's former tensors
    run.progress = restore(state, run.parts.model, run.groups, run.adam, average)
    run.saved_at = time.monotonic()
    if run.progress.loss_scale:
        run.scaler.load_state_dict(run.progress.loss_scale)
    if run.progress.recoveries:
        run.recipe = load_recipe(run.folder.recipe, run.progress.changes)


# After training: which slots of two modalities meet, and the text slots put in that order.
#
# Slot i of the one then meets slot i of the other, so that a flattened set is one vector whose inner product with
# another
# is the sum of the matched cosines: what a search engine can index.


def align_slots(model: SetEncoder, encoded: EncodedSplit, pair: tuple[str, str]) -> Pairing:
    """Measure how the slots meet in true pairs, put those of the second modality in that order, and note both.

    encoded: what this very model made of the training set. Sets of the first modality that are larger than those of the
    second cannot all meet one; then nothing is moved.
    """
    rows, columns = (encoded.sets[name] for name in pair)
    found = slot_pairing(rows, columns, encoded.partners(pair), model.similarity_name)
    order = found.partner
    if -1 not in order:
        rest = [slot for slot in range(columns.shape[1]) if slot not in order]
        model.tower(pair[1]).head.reorder([*order, *rest])
        order = list(range(rows.shape[1]))
    if list(model.towers)[:2] == list(pair):  # the pair that a checkpoint has room for
        model.record_pairing(order, found.stability)
    return found._replace(partner=order)


# What a run has to say in the model card of what it trained: data, command, figures and limits.

_PATHS = ("path", "images", "features", "word_vectors", "tokenizer")
_LIMITS = """## Limits

It knows what its training photos and captions showed, in their language, and repeats what is unbalanced in them. A
score says which of several items fits best, not whether one fits. Faces, places and writing were not taught."""


def training_notes(recipe: Recipe, train: Split, epochs: int) -> str:
    """How a model was trained, and how to train it again, in Markdown. epochs: those that made it what it is."""
    data = recipe.data
    named = f" ({recipe.description})" if recipe.description else ""
    source = "generated scenes" if data.scenes is not None else f"`{_last(data.path or '')}`"
    counts = ", ".join(f"{len(items):,} {name}s" for name, items in train.items.items())
    lines = [
        f"Recipe `{recipe.name}`{named}, seed {recipe.seed}, on the split `{data.train_split}` of {source}: {counts}.",
        f"These are the weights after epoch {epochs} of {recipe.train.epochs}.",
    ]
    if data.hold_out_words:
        lines.append(f"Captions with any of these words were left out: {', '.join(data.hold_out_words)}.")
    licence = data.licence or "That of the data it was trained on, which its maker has to name."
    parts = ["## Training", "\n".join(lines), "To train it again:", f"```\n{command(recipe)}\n```"]
    return "\n\n".join([*parts, "## Licence", licence, _LIMITS])


def figure_notes(
    encoded: EncodedSplit, pair: tuple[str, str], similarity: str, options: Mapping[str, float], split: str
) -> str:
    """How well the model retrieves on a split, with intervals by bootstrap over the images, in Markdown."""
    member = EvaluatedModel("model", encoded, with_options(similarity, dict(options)))
    (line,), _ = measure([[member]], pair, "plain")
    figures, sure = line.result.figures, line.intervals[""]
    counts = " and ".join(f"{len(encoded.groups[name]):,} {name}s" for name in pair)
    rows = [
        f"| {one} to {other} | " + " | ".join(_figure(figures, sure, f"{way}_r{n}") for n in (1, 5, 10)) + " |"
        for way, one, other in (("i2t", *pair), ("t2i", *pair[::-1]))
    ]
    head = "| per cent (95 % interval) | R@1 | R@5 | R@10 |\n|---|---|---|---|\n"
    return "\n\n".join(
        [
            "## How well it retrieves",
            f"On the split `{split}`: {counts}, one model, compared by `{similarity}`.",
            head + "\n".join(rows),
            f"RSUM {_figure(figures, sure, 'rsum')}.",
        ]
    )


def command(recipe: Recipe) -> str:
    """The command that trains a recipe: the one that ships with what differs from it, or a file of one's own. Files and
    folders are named without the path to them.
    """
    name = recipe.name
    try:
        shipped = load_recipe(name).model_dump(mode="json")
        changes = list(_changes(recipe.model_dump(mode="json"), shipped))
        same = load_recipe(name, [f"{key}={_inline(value)}" for key, value in changes]) == recipe
    except RecipeError:  # none of this name, or one that no overrides lead to
        same = False
    if same:
        said = [f"{key}={_inline(_without_folder(key, value))}" for key, value in changes]
        return " ".join(["maxmatch train", name, *map(shlex.quote, said)])
    return "maxmatch train recipe.yaml  # of the run's folder"


def _changes(mine: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of which two recipes say different things, dotted, with the first one's values."""
    for key in [*mine, *(key for key in theirs if key not in mine)]:
        one, other, path = mine.get(key), theirs.get(key), f"{prefix}{key}"
        if isinstance(one, dict) and isinstance(other, dict) and path not in ("train.schedule", "model.config"):
            yield from _changes(one, other, f"{path}.")
        elif one != other:
            yield path, one


def _inline(value: Any) -> str:
    """A value in YAML on one line."""
    text = dump({"value": value})
    return text.removeprefix("value: ").strip() if "\n" not in text.strip() else _flow(value)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return dump({"value": value}).removeprefix("value: ").strip()


def _without_folder(key: str, value: Any) -> Any:
    section, _, name = key.partition(".")
    return _last(value) if section == "data" and name in _PATHS and isinstance(value, str) else value


def _last(path: str) -> str:
    return PurePath(path).name or path


def _figure(figures: Mapping[str, float], sure: Mapping[str, Interval], name: str) -> str:
    low, high = sure[name]
    return f"{figures[name]:.1f} ({low:.1f} to {high:.1f})"


# The end of a run: slots put in order, checkpoints written, the result put down.

_PAIRING_GROUPS = 10_000  # of the training set, on which the pairing of the slots is measured


def finish(run: Run) -> dict[str, float]:
    """The slots aligned as they meet on the training set, both checkpoints written; the measures of the best one.

    Whatever of it was done already is done again to the same effect.
    """
    if run.unsaved_best is not None:
        save(run)
    with with_average(run.average, run.parts.model):
        _align(run, run.parts.model)
        run.parts.model.notes = training_notes(run.recipe, run.parts.train, run.progress.epoch)
        run.parts.model.save_pretrained(run.folder.last)
    model = SetEncoder.from_pretrained(run.folder.best, run.here.device)
    stability = _align(run, model)
    model.notes = training_notes(run.recipe, run.parts.train, run.progress.best_epoch + 1)
    found = {"best_epoch": float(run.progress.best_epoch), "seconds": run.progress.seconds, "stability": stability}
    if run.parts.val is not None and run.parts.val_feed is not None:
        size, batch = run.parts.val.size, run.recipe.train.batch_size
        encoded = encode_split(model, run.parts.val_feed, size, batch, run.precision)
        similarity = run.recipe.similarities[0]
        options = run.recipe.similarity_options(similarity)
        found |= measures(encoded, run.recipe.objective.pairs[0], similarity, options)
        figures = figure_notes(encoded, run.recipe.objective.pairs[0], similarity, options, run.recipe.data.val_split)
        model.notes = f"{figures}\n\n{model.notes}"
    model.save_pretrained(run.folder.best)
    write_whole(run.folder.done, json.dumps(found, indent=2) + "\n")
    run.states.clear()
    return found


def _align(run: Run, model: SetEncoder) -> float:
    """Order the slots of a model; how stable their pairing is."""
    count = min(run.parts.train.size, _PAIRING_GROUPS)
    encoded = encode_split(model, run.parts.feed, count, run.recipe.train.batch_size, run.precision)
    return align_slots(model, encoded, run.recipe.objective.pairs[0]).stability
