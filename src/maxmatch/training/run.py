"""What a run holds while it goes on; how it is begun, put down and taken up."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from maxmatch.data.sampler import GroupSampler
from maxmatch.recipe import Recipe
from maxmatch.recipe_files import load_recipe
from maxmatch.training.average import Average
from maxmatch.training.distributed import Processes
from maxmatch.training.graph import RecordedSteps, compile_layers
from maxmatch.training.log import RunLog
from maxmatch.training.optim import Group, optimiser, parameter_groups
from maxmatch.training.prepare import Prepared, prepare
from maxmatch.training.run_folder import RunFolder
from maxmatch.training.state import Progress, States, restore
from maxmatch.training.watch import Trouble

_PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Run:
    """All that the loop works with."""

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
        _take_up(run, newest)
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


def recover(run: Run, trouble: Trouble) -> None:
    """Back to the last good state, with the cure applied to the recipe."""
    recoveries = [*run.progress.recoveries, list(trouble.changes)]
    _take_up(run, run.states.good)
    run.progress.recoveries, run.progress.losses = recoveries, []
    run.recipe = load_recipe(run.folder.recipe, run.progress.changes)
    run.log.back_to(run.progress.step)
    run.log.say(f"  back to step {run.progress.step}, with {' '.join(trouble.changes)}")
    save(run)


def _take_up(run: Run, state: Path) -> None:
    average = None if run.average is None else run.average.weights
    run.unsaved_best, run.recorded = None, None  # a recorded step would go on with the optimiser's former tensors
    run.progress = restore(state, run.parts.model, run.groups, run.adam, average)
    run.saved_at = time.monotonic()
    if run.progress.loss_scale:
        run.scaler.load_state_dict(run.progress.loss_scale)
    if run.progress.recoveries:
        run.recipe = load_recipe(run.folder.recipe, run.progress.changes)
