"""Training, from a recipe to a checkpoint: `train` is the whole of it, `Trainer.train_epoch` one epoch."""

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import torch

from maxmatch.core.array_checks import NotFiniteError
from maxmatch.core.files import write_whole
from maxmatch.data.sampler import GroupSampler
from maxmatch.evaluation.encoding import encode_split
from maxmatch.model.layers import ResidualSetHead
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import dump_recipe, load_recipe
from maxmatch.training import diagnostics
from maxmatch.training.diagnostics import Diagnosis, measures
from maxmatch.training.distributed import Processes, any_process, processes, same_everywhere
from maxmatch.training.log import LossWindow, RunLog, epoch_line
from maxmatch.training.optim import freeze_for, kept_weights, set_learning_rates, with_average
from maxmatch.training.prepare import TrainingParts, group_sources, group_weights, prepare
from maxmatch.training.run import DONE, RECIPE, begun, check_folder, finish, result_of
from maxmatch.training.state import Progress, States, TrainingState, new_state
from maxmatch.training.step import RecordedSteps, TrainStep, can_record, compile_layers, criterion_for, make_step

_PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_MOST_RECOVERIES = 3
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
    folder = Path(folder)
    with processes(device) as here, stopping() as stop, ExitStack() as lock:
        states = States(folder, recipe.train.keep_checkpoints, writes=here.first)
        new = not states.folder.exists() and not begun(folder)
        if here.first:
            if not new and not (folder / DONE).exists():
                lock.enter_context(states.locked())
            check_folder(folder, recipe, resume)
        if (folder / DONE).exists():
            states.clear()  # in case it was killed between the two
            return result_of(folder)
        log = RunLog(folder, recipe, here.first, show_progress)
        if here.first and not begun(folder):
            states.clear()  # a run that failed before its first step
        parts = prepare(recipe, here, log.print)
        if here.first and new:  # nothing is written before the data is read
            lock.enter_context(states.locked())
            check_folder(folder, recipe, resume=False)  # another process may have been faster
        state = new_state(parts.model, recipe.train)
        if recipe.train.compile and here.device.type == "cuda":
            compile_layers(parts.model)
        saved = states.all()
        if saved:
            encoded_by = kept_weights(parts.model, recipe.train)
            states.restore(saved[-1], state)
            if not all(map(torch.equal, encoded_by, kept_weights(parts.model, recipe.train))):
                raise ValueError(
                    f"{folder}: the model that this run started from, {recipe.model.start}, is not what it was then. "
                    "Restore it, or start anew in another folder."
                )
            if state.progress.recoveries:
                recipe = load_recipe(folder / RECIPE, state.progress.changes)
        elif here.first:
            write_whole(folder / RECIPE, dump_recipe(recipe))
            states.save(state, good=True)
        trainer = Trainer(recipe, parts, state, states, log, here, stop)
        with log:
            log.begin(state.progress.step, trainer.total_steps, state.progress.records)
            trainer.train(auto_recover)
            if not here.first:
                return {}
            if states.unsaved_best is not None:
                states.save(state, log.records)
            result = finish(folder, trainer.recipe, parts, state, trainer.precision)
            states.clear()
            return result


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Note the first Ctrl-C or SIGTERM, so that the state can be saved; the second one ends the program at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield asked
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        asked.set()
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        restore()


class Trainer:
    """A run while it trains: its recipe, parts and state, and where it writes."""

    def __init__(
        self, recipe: Recipe, parts: TrainingParts, state: TrainingState, states: States, log: RunLog, here: Processes,
        stop: threading.Event,
    ) -> None:  # fmt: skip
        self.recipe, self.parts, self.state, self.states = recipe, parts, state, states
        self.log, self.here, self.stop = log, here, stop
        options = recipe.train
        self.sampler = GroupSampler(
            parts.train.size, options.batch_size, recipe.seed, rank=here.rank, world=here.world,
            weights=group_weights(recipe.data, parts.train), sources=group_sources(recipe.data, parts.train),
        )  # fmt: skip
        self.total_steps = len(self.sampler) * options.epochs
        automatic = "bf16" if here.device.type == "cuda" else "fp32"
        self.precision = _PRECISIONS[automatic if options.precision == "auto" else options.precision]
        """What the encoders compute in; None for float32."""
        self._recorded: dict[object, RecordedSteps] = {}

    @property
    def progress(self) -> Progress:
        """How far the run has come."""
        return self.state.progress

    def train(self, auto_recover: bool) -> None:
        """All epochs that remain, each followed by its validation."""
        reported: set[str] = set()
        sets_on_a_model = any(isinstance(part, ResidualSetHead) for part in self.state.model.modules())
        while self.progress.epoch < self.recipe.train.epochs and not self._stops_early():
            if sets_on_a_model and not self.progress.step:
                self._measure_start()
            losses, problems = self.train_epoch(self._step_for_epoch())
            good, due = False, self._validation_due()
            if due and not _failed(problems):
                good, found = self._validate(losses)
                problems += found
            for problem in problems:
                if problem.kind not in reported:  # once, as long as it lasts
                    self.log.print(f"! {problem}")
            if due:
                reported = {problem.kind for problem in problems}
            cure = next((problem for problem in problems if problem.changes), None)
            if auto_recover and cure is not None and len(self.progress.recoveries) < _MOST_RECOVERIES:
                self._recover(cure)
            elif _failed(problems):
                raise TrainingFailed(str(problems[-1]))
            else:
                self._end_epoch(good)

    def train_epoch(self, step: TrainStep) -> tuple[dict[str, float], list[Diagnosis]]:
        """The rest of an epoch. Returns the latest losses, and what is wrong with them."""
        progress, options, steps = self.progress, self.recipe.train, len(self.sampler)
        losses: dict[str, float] = {}
        window = LossWindow()
        plans = list(self.sampler.plans(progress.epoch, progress.position))
        for plan, batch in zip(plans, self.parts.feed.batches(plans), strict=True):
            assert plan.seed is not None
            rate = set_learning_rates(self.state.adam, options, progress.step, steps)
            try:
                terms = step(batch, plan.seed)
            except NotFiniteError:
                return losses, [diagnostics.not_finite(math.nan, self.recipe)]
            progress.step += 1
            progress.position += 1
            window.add(terms, sum(len(groups) for groups in batch.groups.values()))
            self.log.step()
            stopped = self._asked_to_stop()
            saving = options.checkpoint_every is not None and not progress.step % options.checkpoint_every
            if stopped or saving or progress.position == steps or not progress.step % options.log_every:
                losses = window.flush(progress.losses, diagnostics.watched_steps(steps))
                progress.seconds += window.seconds
                self.log.record("train", progress.step, progress.epoch, {**losses, "lr": rate})
                self.log.show(progress.epoch, losses)
                if not math.isfinite(losses["loss"]):
                    return losses, [diagnostics.not_finite(losses["loss"], self.recipe)]
            if stopped or saving:
                self.states.save(self.state, self.log.records)
            if stopped:
                line = f"{self.log.folder}: interrupted at step {progress.step}; continue with --resume."
                self.log.print(line)
                raise Interrupted(line)
        return losses, []

    def _step_for_epoch(self) -> TrainStep:
        """What a batch does to the model in this epoch, with the epoch's backbones frozen. Recorded and replayed on a
        GPU where possible, over all epochs of the same kind.
        """
        options, state, epoch = self.recipe.train, self.state, self.progress.epoch
        frozen = tuple(freeze_for(state.model.train(), options, epoch))
        if not self.progress.position and frozen:
            self.log.print(f"epoch {epoch + 1}: frozen backbones: {', '.join(frozen)}")
        criterion = criterion_for(self.recipe, epoch, self.parts.teachers)
        step = make_step(state, criterion, precision=self.precision, chunks=options.accumulate, clip=options.clip)
        if self.parts.runs_backbones or not can_record(options, criterion.options["negatives"], self.here.device):
            return step
        kind = (frozen, tuple(criterion.options.items()))
        if kind not in self._recorded:
            self._recorded = {kind: RecordedSteps(step)}
        return self._recorded[kind]

    def _asked_to_stop(self) -> bool:
        """Whether any of the processes was asked to stop. They look at the same step, since they stop together."""
        if self.here.world == 1:
            return self.stop.is_set()
        return not self.progress.step % _ASK_EVERY and any_process(self.stop.is_set(), self.here.device)

    def _validation_due(self) -> bool:
        done = self.progress.epoch + 1
        return not done % self.recipe.train.validate_every or done == self.recipe.train.epochs

    def _validate(self, losses: dict[str, float]) -> tuple[bool, list[Diagnosis]]:
        """Measure and report the epoch, and keep its weights if they are the best. Returns whether the state is worth
        going back to, and what is wrong with it.
        """
        progress = self.progress
        found = same_everywhere(self._measures(), self.here.device)
        rsum = found.get("rsum", progress.best_rsum)
        if not math.isfinite(rsum):
            return False, [diagnostics.not_finite(rsum, self.recipe)]
        if found:
            self.log.record("val", progress.step, progress.epoch, found)
        seconds_left = progress.seconds / max(progress.step, 1) * (self.total_steps - progress.step)
        self.log.print(epoch_line(progress.epoch, self.recipe.train.epochs, {**losses, **found}, seconds_left))
        good = False
        if rsum > progress.best_rsum or self.parts.val is None:  # without validation the latest is the best
            progress.best_rsum, progress.best_epoch = rsum, progress.epoch
            self.states.keep_best(self.state)
            good = diagnostics.well_above_chance(found)
        stuck = diagnostics.stuck(self.recipe, progress.epoch, progress.losses, len(self.sampler), found)
        problems = diagnostics.of_validation(self.recipe, found, self.state.model.set_sizes)
        return good, problems if stuck is None else [stuck, *problems]

    def _measure_start(self) -> None:
        """Validate the model that sets start from, before the first step: the best epoch is never worse."""
        found = same_everywhere(self._measures(), self.here.device)
        if found and math.isfinite(found["rsum"]):
            self.log.record("val", 0, -1, found)
            self.log.print(f"before the first step: RSUM {found['rsum']:.1f}, that of the model which sets start from")
            self.progress.best_rsum = found["rsum"]
            self.states.keep_best(self.state)

    def _measures(self) -> dict[str, float]:
        """The measures on the validation split; empty without one, and in all processes but the first, which have no
        feed for it.
        """
        model, val, feed = self.state.model, self.parts.val, self.parts.val_feed
        if val is None or feed is None:
            return {}
        similarity = self.recipe.similarities[0]
        try:
            with with_average(self.state.average, model):
                encoded = encode_split(model, feed, val.size, self.recipe.train.batch_size, self.precision)
            options = self.recipe.similarity_options(similarity)
            return measures(encoded, self.recipe.objective.pairs[0], similarity, options, val.sources)
        except NotFiniteError:
            return {"rsum": math.nan}

    def _recover(self, cure: Diagnosis) -> None:
        """Back to the last good state, with the cure applied to the recipe."""
        self._recorded.clear()  # a recorded step would update the optimiser's former tensors
        recoveries = [*self.progress.recoveries, list(cure.changes)]
        self.states.restore(self.states.good, self.state)
        self.progress.recoveries, self.progress.losses = recoveries, []
        self.log.back_to(self.progress.step)
        self.log.print(f"  back to step {self.progress.step}, with {' '.join(cure.changes)}")
        self.states.save(self.state, self.log.records)
        self.recipe = load_recipe(self.log.folder / RECIPE, self.progress.changes)

    def _end_epoch(self, good: bool) -> None:
        options, progress = self.recipe.train, self.progress
        progress.epoch, progress.position = progress.epoch + 1, 0
        if self.states.seconds_since >= options.checkpoint_seconds or progress.epoch == options.epochs:
            self.states.save(self.state, self.log.records, good)

    def _stops_early(self) -> bool:
        """Whether the recipe's early stop applies. Epochs without validation cannot be better."""
        options, progress = self.recipe.train, self.progress
        if options.early_stop is None or progress.position or progress.epoch % options.validate_every:
            return False
        if progress.epoch - 1 - progress.best_epoch < options.early_stop:
            return False
        self.log.print(f"no better RSUM than {progress.best_rsum:.1f} for {options.early_stop} epochs: stopped early")
        return True


def _failed(problems: list[Diagnosis]) -> bool:
    return any(problem.kind == "not_finite" for problem in problems)
