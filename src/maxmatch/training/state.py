"""Exact resume: weights, optimiser, average and counters in one file. No pickle: safetensors and JSON.

A state is written under a temporary name, flushed to the disk and renamed, so that the newest one is always complete;
earlier ones stay until then. No random state is saved: batches and dropout depend on seed, epoch and step alone.
"""

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from maxmatch.core.files import locked, sync, usual_permissions
from maxmatch.model.encoder import SetEncoder
from maxmatch.recipe.schema import Train
from maxmatch.training.optim import Average, Group, optimiser, parameter_groups, with_average, with_weights

BEST = "best"
"""The folder of a run's best checkpoint."""
_PATIENCE = 10  # seconds; workers of a killed run hold its lock until they notice
_MODEL, _ADAM, _AVERAGE = "model/", "adam/", "average/"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")  # the last with train.amsgrad


@dataclass
class Progress:
    """How far a run has come, and what it has seen so far."""

    epoch: int = 0
    position: int = 0
    """Batches of the epoch that are done."""
    step: int = 0
    best_rsum: float = -1.0
    best_epoch: int = -1
    losses: list[float] = field(default_factory=list)
    """The triplet loss of the last steps."""
    loss_scale: dict[str, float] = field(default_factory=dict)
    recoveries: list[list[str]] = field(default_factory=list)
    """What each recovery changed in the recipe, as `key=value`."""
    seconds: float = 0.0
    """Spent on steps."""
    records: int = 0
    """Lines of metrics.jsonl."""

    @property
    def changes(self) -> list[str]:
        """The changes of all recoveries, in order."""
        return [change for changes in self.recoveries for change in changes]


@dataclass
class TrainingState:
    """All that changes while a model is trained: what is saved, and restored on resuming."""

    model: SetEncoder
    groups: list[Group]
    adam: torch.optim.AdamW
    scaler: torch.amp.GradScaler
    average: Average | None
    progress: Progress = field(default_factory=Progress)


def new_state(model: SetEncoder, train: Train) -> TrainingState:
    """The state before the first step."""
    groups = parameter_groups(model, train)
    device = next(iter(groups[0].parameters.values())).device
    scaler = torch.amp.GradScaler(device.type, enabled=train.precision == "fp16")
    average = Average(model, train.ema) if train.ema is not None else None
    return TrainingState(model, groups, optimiser(groups, train), scaler, average)


class StateError(ValueError):
    """A run that cannot be resumed."""


class States:
    """The last states of a run, and its best weights so far. Only the first process writes them.

    run: the run's folder. keep: how many states stay there.
    """

    def __init__(self, run: Path, keep: int, writes: bool = True) -> None:
        self.folder, self.best, self.keep, self.writes = run / "states", run / BEST, keep, writes
        self.good = self.folder / "good.safetensors"
        """The last good state: the start, then that of the best epoch."""
        self.unsaved_best: dict[str, Tensor] | None = None
        self._saved_at = -math.inf

    def all(self) -> list[Path]:
        """The states on the disk, oldest first; a run is resumed from the last."""
        return sorted(self.folder.glob("state-*.safetensors"))

    def locked(self) -> AbstractContextManager[None]:
        """Be the only process that trains into the run's folder. BusyError while another one does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return locked(self.folder, _PATIENCE)

    @property
    def seconds_since(self) -> float:
        """Seconds since a state was last written or restored."""
        return time.monotonic() - self._saved_at

    def keep_best(self, state: TrainingState) -> None:
        """Remember the weights (the averaged ones, if there are any) as the best; `save` writes them."""
        with with_average(state.average, state.model):
            self.unsaved_best = {name: value.clone() for name, value in state.model.state_dict().items()}

    def save(self, state: TrainingState, records: int = 0, good: bool = False) -> None:
        """Write the best weights, then the state that refers to them; only then remove those that are not kept.

        records: lines of metrics.jsonl that belong to it. good: worth going back to if training fails.
        """
        if not self.writes:
            return
        if self.unsaved_best is not None:
            with with_weights(self.unsaved_best, state.model):
                state.model.save_pretrained(self.best)
            self.unsaved_best = None
        progress = state.progress
        progress.records, progress.loss_scale = records, state.scaler.state_dict()
        # After a recovery a run is at an earlier step than before; the number of recoveries keeps names in order.
        path = self.folder / f"state-{len(progress.recoveries)}-{progress.step:08d}.safetensors"
        draft = path.with_suffix(".writing")
        self.folder.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)  # left by a killed run; it may be a link to the good one
        try:
            with usual_permissions(draft):
                save_file(_tensors(state), draft, metadata={"progress": json.dumps(asdict(progress))})
            sync(draft)
            if good:  # before it becomes the newest, which may already refer to it
                link = self.good.with_suffix(".writing")
                link.unlink(missing_ok=True)
                os.link(draft, link)
                os.replace(link, self.good)
            os.replace(draft, path)
            sync(self.folder)
        except (OSError, SafetensorError) as error:  # safetensors has its own for a disk that is full or read-only
            draft.unlink(missing_ok=True)
            raise OSError(
                *([error.errno] if isinstance(error, OSError) else []),
                f"{draft}: the run's state could not be written ({error}). Earlier states are intact: free some space "
                "or allow writing, then continue with --resume.",
            ) from error
        for old in self.all()[: -self.keep]:
            old.unlink(missing_ok=True)
        self._saved_at = time.monotonic()

    def restore(self, path: Path, state: TrainingState) -> None:
        """Go back to a saved state."""
        self.unsaved_best = None
        restore(path, state)
        self._saved_at = time.monotonic()

    def clear(self) -> None:
        """Remove all states: the run is finished, and its checkpoints hold the weights."""
        for path in [*self.all(), self.good, *self.folder.glob("*.writing")]:
            path.unlink(missing_ok=True)


def _tensors(state: TrainingState) -> dict[str, Tensor]:
    """All tensors of a state, by the names they have in its file."""
    tensors = {_MODEL + name: value for name, value in state.model.state_dict().items()}
    for name, parameter in _named(state.groups).items():
        tensors |= {f"{_ADAM}{key}/{name}": value for key, value in state.adam.state.get(parameter, {}).items()}
    if state.average is not None:
        tensors |= {_AVERAGE + name: value for name, value in state.average.weights.items()}
    return {name: torch.as_tensor(value).detach().cpu().contiguous() for name, value in tensors.items()}


def restore(path: Path, state: TrainingState) -> None:
    """Put a saved state into the model, the optimiser and everything else it was saved from."""
    device = next(iter(state.groups[0].parameters.values())).device
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            progress = Progress(**json.loads((file.metadata() or {})["progress"]))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: damaged state ({error}). Delete it to resume from the previous one.") from error
    weights = _under(_MODEL, stored)
    other = _differing(weights, state.model.state_dict())
    if other:
        raise StateError(
            f"{path}: the state of another model than this recipe's ({other[0]}; {len(other)} differences in all). "
            "Have the data or its vocabulary changed? Use another folder to start again."
        )
    state.model.load_state_dict(weights)
    known = _under(_ADAM, stored)
    state.adam.state.clear()
    for name, parameter in _named(state.groups).items():
        mine = {key: known[f"{key}/{name}"] for key in _MOMENTS if f"{key}/{name}" in known}
        if mine:
            if not state.adam.defaults.get("fused"):
                mine["step"] = mine["step"].cpu()
            state.adam.state[parameter] = mine
    for name, value in _under(_AVERAGE, stored).items():
        if state.average is not None and name in state.average.weights:
            state.average.weights[name].copy_(value)
    if progress.loss_scale:
        state.scaler.load_state_dict(progress.loss_scale)
    state.progress = progress


def _named(groups: list[Group]) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for group in groups for name, parameter in group.parameters.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _differing(stored: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> list[str]:
    """Where the shapes of two sets of weights differ."""
    shapes = [{name: str(list(value.shape)) for name, value in weights.items()} for weights in (stored, here)]
    return [
        f"{name}: {shapes[0].get(name, 'nothing')} there, {shapes[1].get(name, 'nothing')} here"
        for name in {**here, **stored}
        if shapes[0].get(name) != shapes[1].get(name)
    ]
