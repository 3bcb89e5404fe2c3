"""The whole of training, from a recipe to a checkpoint."""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from maxmatch.data.sampler import GroupSampler
from maxmatch.files import write_whole
from maxmatch.model import SetEncoder
from maxmatch.recipe import Recipe
from maxmatch.recipe_files import load_recipe
from maxmatch.training import watch
from maxmatch.training.average import Average, with_average
from maxmatch.training.criterion import criterion_for
from maxmatch.training.distributed import Processes, any_process, processes, same_everywhere
from maxmatch.training.graph import RecordedSteps, Step, can_record, compile_layers
from maxmatch.training.log import LossWindow, RunLog, epoch_line
from maxmatch.training.optim import Group, freeze_for, optimiser, parameter_groups, set_learning_rates
from maxmatch.training.pairing import align_slots
from maxmatch.training.prepare import Prepared, prepare
from maxmatch.training.run_folder import RunFolder, open_run
from maxmatch.training.signals import StopFlag, stopping
from maxmatch.training.state import Progress, States, restore
from maxmatch.training.update import updating
from maxmatch.training.validation import encode_split, measures
from maxmatch.training.watch import Trouble

_PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_MOST_RECOVERIES = 3
_PAIRING_GROUPS = 10_000  # of the training set, on which the pairing of the slots is measured
_WELL_ABOVE_CHANCE = 3.0  # times: from there on a state is worth going back to


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop; its state is saved."""


class TrainingFailed(RuntimeError):
    """Training cannot go on."""


@dataclass
class _Run:
    """What a run holds while it goes on."""

    recipe: Recipe
    folder: RunFolder
    here: Processes
    parts: Prepared
    sampler: GroupSampler
    groups: list[Group]
    adam: torch.optim.AdamW
    scaler: torch.amp.GradScaler
    average: Average | None
    states: States
    progress: Progress
    log: RunLog
    unsaved_best: dict[str, Tensor] | None = None
    """The weights of the best epoch, until they are on the disk."""
    saved_at: float = -math.inf
    recorded: tuple[object, RecordedSteps] | None = None
    """Steps recorded on the GPU, and what they were recorded for."""

    @property
    def precision(self) -> torch.dtype | None:
        """What the encoders work in."""
        asked = self.recipe.train.precision
        return _PRECISIONS[("bf16" if self.here.device.type == "cuda" else "fp32") if asked == "auto" else asked]


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    resume: bool = False,
    auto_recover: bool = False,
    device: str | torch.device | None = None,
    show_progress: bool | None = None,
) -> dict[str, float]:
    """Train the model of a recipe; everything is written to the run's folder. Returns the measures of the best epoch.

    resume: go on where the run in the folder stands, to the bit. auto_recover: where training fails in a way that is
    known, go back to a good state, apply the cure and go on. Ctrl-C and SIGTERM save the state first.
    """
    with processes(device) as here, stopping() as stop:
        place = open_run(Path(folder), recipe, resume, here.first)
        if place.done.exists():
            return place.result()
        run = _begin(recipe, place, here, show_progress)
        with run.log:
            while run.progress.epoch < run.recipe.train.epochs:
                trouble = _train_epoch(run, stop)
                if trouble is None:
                    trouble = _after_epoch(run)
                if trouble is not None:
                    run.log.say(f"! {trouble}")
                    if auto_recover and trouble.changes and len(run.progress.recoveries) < _MOST_RECOVERIES:
                        _recover(run, trouble)
                    elif trouble.kind == "not_finite":
                        raise TrainingFailed(str(trouble))
                if _is_over(run):
                    break
            return _finish(run) if here.first else {}


def _begin(recipe: Recipe, folder: RunFolder, here: Processes, show_progress: bool | None) -> _Run:
    """Everything at its start, or where an earlier run of the folder stopped."""
    log = RunLog(folder.path, recipe, here.first, show_progress)
    states = folder.states(recipe.train.keep_checkpoints)
    parts = prepare(recipe, here, log.say)
    sampler = GroupSampler(
        parts.train.size, recipe.train.batch_size, recipe.seed, rank=here.rank, world=here.world
    )  # fmt: skip
    groups = parameter_groups(parts.model, recipe.train)
    average = Average(parts.model, recipe.train.ema) if recipe.train.ema is not None else None
    scaler = torch.amp.GradScaler(here.device.type, enabled=recipe.train.precision == "fp16")
    adam = optimiser(groups, recipe.train)
    run = _Run(recipe, folder, here, parts, sampler, groups, adam, scaler, average, states, Progress(), log)
    if recipe.train.compile and here.device.type == "cuda":
        compile_layers(parts.model)
    newest = states.newest()
    if newest is not None:
        _restore(run, newest)
    else:
        _save(run, good=True)
    log.begin(run.progress.step, len(sampler) * recipe.train.epochs)
    return run


def _train_epoch(run: _Run, stop: StopFlag) -> Trouble | None:
    """The rest of an epoch, step by step."""
    recipe, progress, model = run.recipe, run.progress, run.parts.model
    frozen = list(freeze_for(model.train(), recipe.train, progress.epoch))
    window = LossWindow()
    plans = list(run.sampler.plans(progress.epoch, progress.position))
    if not progress.position and frozen:
        run.log.say(f"epoch {progress.epoch + 1}: frozen backbones: {', '.join(frozen)}")
    step = _step(run, frozen)
    for plan, batch in zip(plans, run.parts.feed.batches(plans), strict=True):
        started = time.monotonic()
        assert plan.seed is not None
        rate = set_learning_rates(run.adam, recipe.train, progress.step, len(run.sampler))
        terms = step(batch, plan.seed)
        progress.step += 1
        progress.position += 1
        progress.seconds += time.monotonic() - started
        window.add(terms, sum(len(groups) for groups in batch.groups.values()))
        run.log.step()
        due = progress.position == len(run.sampler) or stop.asked or not progress.step % recipe.train.log_every
        saving = recipe.train.checkpoint_every is not None and not progress.step % recipe.train.checkpoint_every
        if due or saving:
            figures = window.flush(progress.losses, watch.watched_steps(len(run.sampler)))
            run.log.record("train", progress.step, progress.epoch, {**figures, "lr": rate})
            run.log.show(progress.epoch, figures)
            trouble = watch.not_finite(recipe, figures["loss"])
            if trouble is not None:
                return trouble
            if any_process(stop.asked, run.here.device):
                _save(run)
                raise Interrupted(f"{run.folder.path}: interrupted at step {progress.step}; go on with --resume.")
        if saving:
            _save(run)
    return watch.stuck(recipe, progress.epoch, progress.losses, len(run.sampler))


def _step(run: _Run, frozen: list[str]) -> Step:
    """What a batch does to the model in this epoch; recorded and played back where that can be done and pays."""
    recipe, model = run.recipe, run.parts.model
    criterion = criterion_for(recipe, run.progress.epoch)

    step = updating(
        model, run.groups, run.adam, run.scaler, criterion, precision=run.precision, chunks=recipe.train.accumulate,
        clip=recipe.train.clip, average=run.average,
    )  # fmt: skip
    negatives = criterion.options["negatives"]
    if run.parts.runs_backbones or not can_record(recipe.train, negatives, run.here.device):
        return step
    what = (tuple(frozen), criterion.options)
    if run.recorded is None or run.recorded[0] != what:
        run.recorded = (what, RecordedSteps(step))
    return run.recorded[1]


def _after_epoch(run: _Run) -> Trouble | None:
    """Validate, keep the best, and put down where the run stands."""
    progress, train = run.progress, run.recipe.train
    epoch, troubles, better = progress.epoch, [], False
    if not (epoch + 1) % train.validate_every or epoch + 1 == train.epochs:
        found = _validate(run)
        run.log.record("val", progress.step, epoch, found)
        run.log.say(epoch_line(epoch, train.epochs, found))
        better = found["rsum"] > progress.best_rsum
        if better:
            progress.best_rsum, progress.best_epoch = found["rsum"], epoch
            with with_average(run.average, run.parts.model):
                run.unsaved_best = {name: value.clone() for name, value in run.parts.model.state_dict().items()}
        troubles = _troubles(run, found)
    progress.epoch, progress.position = epoch + 1, 0
    good = better and found["rsum"] > _WELL_ABOVE_CHANCE * found.get("chance_rsum", 0.0)
    if time.monotonic() - run.saved_at >= train.checkpoint_seconds or epoch + 1 == train.epochs:
        _save(run, good)
    return troubles[0] if troubles else None


def _validate(run: _Run) -> dict[str, float]:
    """The measures on the validation split, the same in all processes; without such a split, the loss alone."""
    found: dict[str, float] = {}
    if run.here.first and run.parts.val is not None:
        assert run.parts.val_feed is not None
        with with_average(run.average, run.parts.model):
            encoded = encode_split(
                run.parts.model, run.parts.val_feed, run.parts.val.size, run.recipe.train.batch_size, run.precision
            )
        found = measures(encoded, run.recipe.objective.pairs[0], run.recipe.similarities[0])
    found["rsum"] = same_everywhere(found.get("rsum", 0.0), run.here.device)
    return found


def _troubles(run: _Run, found: dict[str, float]) -> list[Trouble]:
    """What the validation shows to be wrong."""
    sizes = run.parts.model.set_sizes
    seen = [
        watch.collapsed(run.recipe, found[f"{name}_log_variance"], sizes[name], name)
        for name in sizes
        if f"{name}_log_variance" in found
    ]
    seen += [watch.unused(run.recipe, found["slots_used"])] if "slots_used" in found else []
    return [trouble for trouble in seen if trouble is not None]


def _is_over(run: _Run) -> bool:
    """Whether the recipe's early stop says so."""
    patience, progress = run.recipe.train.early_stop, run.progress
    if patience is None or progress.epoch - 1 - progress.best_epoch < patience:
        return False
    run.log.say(f"no better RSUM than {progress.best_rsum:.1f} for {patience} epochs: stopped early")
    return True


def _recover(run: _Run, trouble: Trouble) -> None:
    """Back to the last good state, with the cure applied to the recipe."""
    recoveries = [*run.progress.recoveries, list(trouble.changes)]
    _restore(run, run.states.good)
    run.progress.recoveries, run.progress.losses = recoveries, []
    run.recipe = load_recipe(run.folder.recipe, run.progress.changes)
    run.log.back_to(run.progress.step)
    run.log.say(f"  back to step {run.progress.step}, with {' '.join(trouble.changes)}")
    _save(run)


def _finish(run: _Run) -> dict[str, float]:
    """The slots aligned as they meet on the training set, both checkpoints written, the result put down."""
    if run.unsaved_best is not None:
        _save(run)
    model, pair = run.parts.model, run.recipe.objective.pairs[0]
    with with_average(run.average, model):
        _align(run, model, run.folder.last)
    best = run.folder.best if run.folder.best.exists() else run.folder.last
    model = SetEncoder.from_pretrained(best, run.here.device)
    pairing = _align(run, model, best)
    found = {"best_epoch": float(run.progress.best_epoch), "seconds": run.progress.seconds, "stability": pairing}
    if run.parts.val is not None and run.parts.val_feed is not None:
        size, batch = run.parts.val.size, run.recipe.train.batch_size
        encoded = encode_split(model, run.parts.val_feed, size, batch, run.precision)
        found |= measures(encoded, pair, run.recipe.similarities[0])
    write_whole(run.folder.done, json.dumps(found, indent=2) + "\n")
    run.states.clear()
    return found


def _align(run: _Run, model: SetEncoder, folder: Path) -> float:
    """Order the slots of a model and write it; how stable their pairing is."""
    count = min(run.parts.train.size, _PAIRING_GROUPS)
    encoded = encode_split(model, run.parts.feed, count, run.recipe.train.batch_size, run.precision)
    stability = align_slots(model, encoded, run.recipe.objective.pairs[0]).stability
    model.save_pretrained(folder)
    return stability


def _save(run: _Run, good: bool = False) -> None:
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
    run.progress.loss_scale = run.scaler.state_dict()
    average = None if run.average is None else run.average.weights
    run.states.save(model, run.groups, run.adam, average, run.progress, good)
    run.saved_at = time.monotonic()


def _restore(run: _Run, state: Path) -> None:
    average = None if run.average is None else run.average.weights
    run.unsaved_best = None
    run.progress = restore(state, run.parts.model, run.groups, run.adam, average)
    if run.progress.loss_scale:
        run.scaler.load_state_dict(run.progress.loss_scale)
    if run.progress.recoveries:
        run.recipe = load_recipe(run.folder.recipe, run.progress.changes)
