"""Training, from a recipe to a checkpoint: `train` is the whole of it, `train_epoch` one epoch."""

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from maxmatch.core.checks import NotFiniteError
from maxmatch.data.feed import Feed
from maxmatch.data.sampler import GroupSampler
from maxmatch.evaluation.encoding import encode_split
from maxmatch.recipe.schema import Recipe, Train
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training import diagnostics
from maxmatch.training.diagnostics import Diagnosis, measures
from maxmatch.training.distributed import Processes, any_process, processes, same_everywhere
from maxmatch.training.log import LossWindow, RunLog, epoch_line
from maxmatch.training.optim import freeze_for, set_learning_rates, with_average
from maxmatch.training.prepare import TrainingParts, prepare
from maxmatch.training.run import RECIPE, RunFolder, finish, open_run
from maxmatch.training.state import Progress, Saver, TrainingState, new_state
from maxmatch.training.step import RecordedSteps, TrainStep, can_record, compile_layers, criterion_for, make_step

_PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class StopFlag:
    """Whether Ctrl-C or SIGTERM arrived."""

    asked: bool = False


@contextmanager
def stopping() -> Iterator[StopFlag]:
    """Note the first Ctrl-C or SIGTERM, so that the state can be saved; the second one ends the program at once."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield flag
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        flag.asked = True
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_MOST_RECOVERIES = 3
_WELL_ABOVE_CHANCE = 3.0  # times chance: from there on a state is worth going back to
_ASK_EVERY = 10  # steps, after which processes tell each other whether one was asked to stop


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop; its state is saved."""


class TrainingFailed(RuntimeError):
    """Training cannot continue."""


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

    Ctrl-C and SIGTERM save the state first.

    Args:
        recipe: the experiment.
        folder: of the run; created if it does not exist.
        resume: continue the run in the folder, exactly where it stopped.
        auto_recover: when training fails in a known way, go back to a good state, apply the cure and continue.
        device: where to train; None takes a GPU if there is one.
        show_progress: a progress bar; None shows it in a terminal.
    """
    with processes(device) as here, stopping() as stop:
        place = open_run(Path(folder), recipe, resume) if here.first else RunFolder(Path(folder))
        if place.done.exists():
            place.states(recipe.train.keep_checkpoints).clear()  # in case it was killed between the two
            return place.result()
        log = RunLog(place.path, recipe, here.first, show_progress)
        parts = prepare(recipe, here, log.print)
        sampler = GroupSampler(parts.train.size, recipe.train.batch_size, recipe.seed, rank=here.rank, world=here.world)
        state = new_state(parts.model, recipe.train)
        saver = Saver(place.states(recipe.train.keep_checkpoints), place.best, here.first)
        if recipe.train.compile and here.device.type == "cuda":
            compile_layers(parts.model)
        newest = saver.states.newest()
        if newest is not None:
            saver.restore(newest, state)
            if state.progress.recoveries:
                recipe = load_recipe(place.recipe, state.progress.changes)
        elif here.first:
            place.begin(recipe)
            saver.save(state, 0, good=True)
        with log:
            log.begin(state.progress.step, len(sampler) * recipe.train.epochs, state.progress.records)
            recipe = _train_epochs(recipe, parts, state, sampler, saver, log, here, stop, auto_recover)
            if not here.first:
                return {}
            if saver.unsaved_best is not None:
                saver.save(state, log.records)
            return finish(recipe, place, parts, state, _precision(recipe.train, here.device))


def _train_epochs(
    recipe: Recipe, parts: TrainingParts, state: TrainingState, sampler: GroupSampler, saver: Saver, log: RunLog,
    here: Processes, stop: StopFlag, auto_recover: bool,
) -> Recipe:  # fmt: skip
    """All epochs that remain, each followed by its validation. Returns the recipe with the changes of recoveries."""
    recorded: dict[object, RecordedSteps] = {}
    reported: set[str] = set()
    while state.progress.epoch < recipe.train.epochs and not _stops_early(recipe.train, state.progress, log):
        step = _step_for_epoch(recipe, parts, state, here.device, log, recorded)
        figures, problems = train_epoch(recipe, state, step, parts.feed, sampler, saver, log, here, stop)
        good = False
        if not _failed(problems) and _validation_due(recipe.train, state.progress.epoch):
            found = _validate(recipe, parts, state, here)
            rsum = found.get("rsum", state.progress.best_rsum)
            if math.isfinite(rsum):
                if found:
                    log.record("val", state.progress.step, state.progress.epoch, found)
                left = _seconds_left(state.progress, len(sampler) * recipe.train.epochs)
                log.print(epoch_line(state.progress.epoch, recipe.train.epochs, {**figures, **found}, left))
                if rsum > state.progress.best_rsum or parts.val is None:  # without validation the latest is the best
                    state.progress.best_rsum, state.progress.best_epoch = rsum, state.progress.epoch
                    saver.keep_best(state)
                    good = rsum > _WELL_ABOVE_CHANCE * found.get("chance_rsum", math.inf)
                problems += diagnostics.of_validation(recipe, found, state.model.set_sizes)
            else:
                problems.append(diagnostics.not_finite(rsum, recipe))
        for problem in problems:
            if problem.kind not in reported:  # once, as long as it lasts
                log.print(f"! {problem}")
        reported = {problem.kind for problem in problems}
        cure = next((problem for problem in problems if problem.changes), None)
        if auto_recover and cure is not None and len(state.progress.recoveries) < _MOST_RECOVERIES:
            recorded.clear()  # a recorded step would update the optimiser's former tensors
            recipe = _recover(recipe, cure, state, saver, log)
        elif _failed(problems):
            raise TrainingFailed(str(problems[-1]))
        else:
            state.progress.epoch, state.progress.position = state.progress.epoch + 1, 0
            if saver.seconds_since >= recipe.train.checkpoint_seconds or state.progress.epoch == recipe.train.epochs:
                saver.save(state, log.records, good)
    return recipe


def train_epoch(
    recipe: Recipe, state: TrainingState, step: TrainStep, feed: Feed, sampler: GroupSampler, saver: Saver, log: RunLog,
    here: Processes, stop: StopFlag,
) -> tuple[dict[str, float], list[Diagnosis]]:  # fmt: skip
    """Train for the rest of an epoch. Returns the latest losses, and what is wrong with them."""
    progress, options = state.progress, recipe.train
    figures: dict[str, float] = {}
    window = LossWindow()
    plans = list(sampler.plans(progress.epoch, progress.position))
    for plan, batch in zip(plans, feed.batches(plans), strict=True):
        assert plan.seed is not None
        rate = set_learning_rates(state.adam, options, progress.step, len(sampler))
        try:
            terms = step(batch, plan.seed)
        except NotFiniteError:
            return figures, [diagnostics.not_finite(math.nan, recipe)]
        progress.step += 1
        progress.position += 1
        window.add(terms, sum(len(groups) for groups in batch.groups.values()))
        log.step()
        stopped = _asked_to_stop(stop, progress.step, here)
        saving = options.checkpoint_every is not None and not progress.step % options.checkpoint_every
        if stopped or saving or progress.position == len(sampler) or not progress.step % options.log_every:
            figures = window.flush(progress.losses, diagnostics.watched_steps(len(sampler)))
            progress.seconds += window.seconds
            log.record("train", progress.step, progress.epoch, {**figures, "lr": rate})
            log.show(progress.epoch, figures)
            if not math.isfinite(figures["loss"]):
                return figures, [diagnostics.not_finite(figures["loss"], recipe)]
        if stopped or saving:
            saver.save(state, log.records)
        if stopped:
            line = f"{log.folder}: interrupted at step {progress.step}; continue with --resume."
            log.print(line)
            raise Interrupted(line)
    stuck = diagnostics.stuck(recipe, progress.epoch, progress.losses, len(sampler))
    return figures, [] if stuck is None else [stuck]


def _asked_to_stop(stop: StopFlag, step: int, here: Processes) -> bool:
    """Whether any of the processes was asked to stop. They look at the same step, since they stop together."""
    if here.world == 1:
        return stop.asked
    return not step % _ASK_EVERY and any_process(stop.asked, here.device)


def _step_for_epoch(
    recipe: Recipe, parts: TrainingParts, state: TrainingState, device: torch.device, log: RunLog,
    recorded: dict[object, RecordedSteps],
) -> TrainStep:  # fmt: skip
    """What a batch does to the model in this epoch, with the epoch's backbones frozen.

    Recorded and replayed on a GPU where possible; `recorded` keeps that for epochs of the same kind.
    """
    train, epoch = recipe.train, state.progress.epoch
    frozen = tuple(freeze_for(state.model.train(), train, epoch))
    if not state.progress.position and frozen:
        log.print(f"epoch {epoch + 1}: frozen backbones: {', '.join(frozen)}")
    criterion = criterion_for(recipe, epoch)
    step = make_step(
        state.model, state.groups, state.adam, state.scaler, criterion, precision=_precision(train, device),
        chunks=train.accumulate, clip=train.clip, average=state.average,
    )  # fmt: skip
    if parts.runs_backbones or not can_record(train, criterion.options["negatives"], device):
        return step
    kind = (frozen, tuple(criterion.options.items()))
    if kind not in recorded:
        recorded.clear()
        recorded[kind] = RecordedSteps(step)
    return recorded[kind]


def _validate(recipe: Recipe, parts: TrainingParts, state: TrainingState, here: Processes) -> dict[str, float]:
    """The measures on the validation split, the same in all processes; empty without such a split."""
    found: dict[str, float] = {}
    if here.first and parts.val is not None and parts.val_feed is not None:
        similarity, precision = recipe.similarities[0], _precision(recipe.train, here.device)
        try:
            with with_average(state.average, state.model):
                encoded = encode_split(state.model, parts.val_feed, parts.val.size, recipe.train.batch_size, precision)
            options = recipe.similarity_options(similarity)
            found = measures(encoded, recipe.objective.pairs[0], similarity, options)
        except NotFiniteError:
            found = {"rsum": math.nan}
    return same_everywhere(found, here.device)


def _recover(recipe: Recipe, cure: Diagnosis, state: TrainingState, saver: Saver, log: RunLog) -> Recipe:
    """Back to the last good state. Returns the recipe with the cure applied."""
    recoveries = [*state.progress.recoveries, list(cure.changes)]
    saver.restore(saver.states.good, state)
    state.progress.recoveries, state.progress.losses = recoveries, []
    log.back_to(state.progress.step)
    log.print(f"  back to step {state.progress.step}, with {' '.join(cure.changes)}")
    saver.save(state, log.records)
    return load_recipe(log.folder / RECIPE, state.progress.changes)


def _failed(problems: list[Diagnosis]) -> bool:
    return any(problem.kind == "not_finite" for problem in problems)


def _validation_due(train: Train, epoch: int) -> bool:
    return not (epoch + 1) % train.validate_every or epoch + 1 == train.epochs


def _stops_early(train: Train, progress: Progress, log: RunLog) -> bool:
    """Whether the recipe's early stop applies. Epochs without validation cannot be better."""
    if train.early_stop is None or progress.position or progress.epoch % train.validate_every:
        return False
    if progress.epoch - 1 - progress.best_epoch < train.early_stop:
        return False
    log.print(f"no better RSUM than {progress.best_rsum:.1f} for {train.early_stop} epochs: stopped early")
    return True


def _precision(train: Train, device: torch.device) -> torch.dtype | None:
    """What the encoders compute in; None for float32."""
    automatic = "bf16" if device.type == "cuda" else "fp32"
    return _PRECISIONS[automatic if train.precision == "auto" else train.precision]


def _seconds_left(progress: Progress, total_steps: int) -> float:
    """For the steps to come, judging by those so far."""
    return progress.seconds / max(progress.step, 1) * (total_steps - progress.step)
