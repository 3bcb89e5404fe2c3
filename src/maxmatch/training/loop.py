"""The whole of training, from a recipe to a checkpoint."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from maxmatch.core.checks import NotFiniteError
from maxmatch.evaluation.encoding import encode_split
from maxmatch.recipe.schema import Recipe
from maxmatch.training import diagnostics
from maxmatch.training.diagnostics import Diagnosis, measures
from maxmatch.training.distributed import any_process, processes, same_everywhere
from maxmatch.training.graph import RecordedSteps, TrainStep, can_record
from maxmatch.training.log import LossWindow, epoch_line
from maxmatch.training.optim import freeze_for, set_learning_rates, with_average
from maxmatch.training.run import Run, RunFolder, begin, finish, open_run, recover, save
from maxmatch.training.step import criterion_for, updating

# Ctrl-C and SIGTERM: the step at work is finished and the state saved before the program ends.


@dataclass
class StopFlag:
    """Whether someone asked to stop."""

    asked: bool = False


@contextmanager
def stopping() -> Iterator[StopFlag]:
    """Note the first signal; the second one ends the program at once, as without us."""
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
_WELL_ABOVE_CHANCE = 3.0  # times: from there on a state is worth going back to
_ASK_EVERY = 10  # steps, after which processes tell each other whether one was asked to stop


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop; its state is saved."""


class TrainingFailed(RuntimeError):
    """Training cannot go on."""


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
        place = open_run(Path(folder), recipe, resume) if here.first else RunFolder(Path(folder))
        if place.done.exists():
            place.states(recipe.train.keep_checkpoints).clear()  # where a kill came between the two
            return place.result()
        run = begin(recipe, place, here, show_progress)
        with run.log:
            while run.progress.epoch < run.recipe.train.epochs and not _is_over(run):
                troubles, good = _train_epoch(run, stop), False
                failed = any(trouble.kind == "not_finite" for trouble in troubles)
                if not failed:
                    found, good = _validate(run)
                    troubles += found
                    failed = any(trouble.kind == "not_finite" for trouble in found)
                _report(run, troubles)
                cure = next((trouble for trouble in troubles if trouble.changes), None)
                if auto_recover and cure is not None and len(run.progress.recoveries) < _MOST_RECOVERIES:
                    recover(run, cure)
                elif failed:
                    raise TrainingFailed(str(troubles[-1]))
                else:
                    _next_epoch(run, good)
            return finish(run) if here.first else {}


def _train_epoch(run: Run, stop: StopFlag) -> list[Diagnosis]:
    """The rest of an epoch, step by step; what is wrong in the end."""
    recipe, progress, model = run.recipe, run.progress, run.parts.model
    frozen = list(freeze_for(model.train(), recipe.train, progress.epoch))
    window = LossWindow()
    plans = list(run.sampler.plans(progress.epoch, progress.position))
    if not progress.position and frozen:
        run.log.say(f"epoch {progress.epoch + 1}: frozen backbones: {', '.join(frozen)}")
    step = _step(run, frozen)
    for plan, batch in zip(plans, run.parts.feed.batches(plans), strict=True):
        assert plan.seed is not None
        rate = set_learning_rates(run.adam, recipe.train, progress.step, len(run.sampler))
        try:
            terms = step(batch, plan.seed)
        except NotFiniteError:
            return [diagnostics.not_finite(math.nan, recipe)]
        progress.step += 1
        progress.position += 1
        window.add(terms, sum(len(groups) for groups in batch.groups.values()))
        run.log.step()
        asked = _asked_to_stop(run, stop)
        due = progress.position == len(run.sampler) or asked or not progress.step % recipe.train.log_every
        saving = recipe.train.checkpoint_every is not None and not progress.step % recipe.train.checkpoint_every
        if due or saving:
            run.figures = window.flush(progress.losses, diagnostics.watched_steps(len(run.sampler)))
            progress.seconds += window.seconds
            run.log.record("train", progress.step, progress.epoch, {**run.figures, "lr": rate})
            run.log.show(progress.epoch, run.figures)
            if not math.isfinite(run.figures["loss"]):
                return [diagnostics.not_finite(run.figures["loss"], recipe)]
        if asked or saving:
            save(run)
        if asked:
            line = f"{run.folder.path}: interrupted at step {progress.step}; go on with --resume."
            run.log.say(line)
            raise Interrupted(line)
    stuck = diagnostics.stuck(recipe, progress.epoch, progress.losses, len(run.sampler))
    return [] if stuck is None else [stuck]


def _asked_to_stop(run: Run, stop: StopFlag) -> bool:
    """Whether someone asked any of the processes to stop. They look at the same step, since they stop together."""
    if run.here.world == 1:
        return stop.asked
    return not run.progress.step % _ASK_EVERY and any_process(stop.asked, run.here.device)


def _step(run: Run, frozen: list[str]) -> TrainStep:
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


def _validate(run: Run) -> tuple[list[Diagnosis], bool]:
    """Where validation is due: keep the best model. What is wrong, and whether this is a state worth going back to.

    Without a split to validate on, the latest model counts as the best.
    """
    progress, train = run.progress, run.recipe.train
    epoch = progress.epoch
    if (epoch + 1) % train.validate_every and epoch + 1 < train.epochs:
        return [], False
    found = _measures(run)
    rsum = found.get("rsum", progress.best_rsum)
    if not math.isfinite(rsum):
        return [diagnostics.not_finite(rsum, run.recipe)], False
    if found:
        run.log.record("val", progress.step, epoch, found)
    run.log.say(epoch_line(epoch, train.epochs, {**run.figures, **found}, run.seconds_left))
    better = rsum > progress.best_rsum or run.parts.val is None
    if better:
        progress.best_rsum, progress.best_epoch = rsum, epoch
        with with_average(run.average, run.parts.model):
            run.unsaved_best = {name: value.clone() for name, value in run.parts.model.state_dict().items()}
    return _troubles(run, found), better and rsum > _WELL_ABOVE_CHANCE * found.get("chance_rsum", math.inf)


def _measures(run: Run) -> dict[str, float]:
    """The measures on the validation split, the same in all processes; none without such a split."""
    found: dict[str, float] = {}
    if run.here.first and run.parts.val is not None:
        assert run.parts.val_feed is not None
        size, batch = run.parts.val.size, run.recipe.train.batch_size
        try:
            with with_average(run.average, run.parts.model):
                encoded = encode_split(run.parts.model, run.parts.val_feed, size, batch, run.precision)
            similarity = run.recipe.similarities[0]
            options = run.recipe.similarity_options(similarity)
            found = measures(encoded, run.recipe.objective.pairs[0], similarity, options)
        except NotFiniteError:
            found = {"rsum": math.nan}
    return same_everywhere(found, run.here.device)


def _troubles(run: Run, found: dict[str, float]) -> list[Diagnosis]:
    """What the validation shows to be wrong."""
    sizes = run.parts.model.set_sizes
    seen = [
        diagnostics.collapsed(run.recipe, found[f"{name}_log_variance"], sizes[name], name)
        for name in sizes
        if f"{name}_log_variance" in found
    ]
    seen += [diagnostics.unused(run.recipe, found["slots_used"])] if "slots_used" in found else []
    return [trouble for trouble in seen if trouble is not None]


def _report(run: Run, troubles: list[Diagnosis]) -> None:
    """Say what is wrong, once as long as it lasts."""
    for trouble in troubles:
        if trouble.kind not in run.said:
            run.log.say(f"! {trouble}")
    run.said = {trouble.kind for trouble in troubles}


def _next_epoch(run: Run, good: bool) -> None:
    """To the next epoch; where the run stands is put down, unless that was done just now."""
    progress, train = run.progress, run.recipe.train
    progress.epoch, progress.position = progress.epoch + 1, 0
    if time.monotonic() - run.saved_at >= train.checkpoint_seconds or progress.epoch == train.epochs:
        save(run, good)


def _is_over(run: Run) -> bool:
    """Whether the recipe's early stop says so. Epochs without validation cannot be better."""
    patience, progress = run.recipe.train.early_stop, run.progress
    if patience is None or progress.position or progress.epoch % run.recipe.train.validate_every:
        return False
    if progress.epoch - 1 - progress.best_epoch < patience:
        return False
    run.log.say(f"no better RSUM than {progress.best_rsum:.1f} for {patience} epochs: stopped early")
    return True
