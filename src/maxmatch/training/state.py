"""Where a run stands, in one file: weights, optimiser, average, counters. No pickle: safetensors and JSON.

A state is written whole under another name, put on the disk and renamed, so the newest one is always whole; the ones
before it stay until then. Random numbers need no saving: batches and dropout are drawn from seed, epoch and step.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from maxmatch.core.files import sync
from maxmatch.model.encoder import SetEncoder
from maxmatch.training.optim import Group

_MODEL, _ADAM, _AVERAGE = "model/", "adam/", "average/"


@dataclass
class Progress:
    """How far a run is, and what it has seen so far."""

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
    """What was changed in the recipe each time training was rescued, as `key=value`."""
    seconds: float = 0.0
    """Spent on steps."""
    records: int = 0
    """Lines of metrics.jsonl."""

    @property
    def changes(self) -> list[str]:
        """All that was changed, in order."""
        return [change for changes in self.recoveries for change in changes]


class StateError(ValueError):
    """A run that cannot be gone on with."""


class States:
    """The last states of a run, in a folder of their own."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def save(
        self,
        model: SetEncoder,
        groups: list[Group],
        adam: torch.optim.Optimizer,
        average: Mapping[str, Tensor] | None,
        progress: Progress,
        good: bool = False,
    ) -> Path:
        """Write a state; only then remove those that are not kept. good: one worth going back to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {_MODEL + name: value for name, value in model.state_dict().items()}
        for name, parameter in _named(groups).items():
            tensors |= {f"{_ADAM}{key}/{name}": value for key, value in adam.state.get(parameter, {}).items()}
        tensors |= {_AVERAGE + name: value for name, value in (average or {}).items()}
        # After a rescue a run is at an earlier step than before, and further on all the same.
        path = self.folder / f"state-{len(progress.recoveries)}-{progress.step:08d}.safetensors"
        draft = path.with_suffix(".writing")
        draft.unlink(missing_ok=True)  # of a run that was killed; it may be the good one, under another name
        try:
            packed = {name: torch.as_tensor(value).detach().cpu().contiguous() for name, value in tensors.items()}
            save_file(packed, draft, metadata={"progress": json.dumps(asdict(progress))})
            sync(draft)
            if good:  # before it is the newest, for what comes after that may go back to it
                self._keep_as_good(draft)
            os.replace(draft, path)
            sync(self.folder)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise OSError(error.errno, _advice(error, draft)) from error
        except SafetensorError as error:  # how safetensors says that the disk is full or read-only
            draft.unlink(missing_ok=True)
            raise OSError(_advice(error, draft)) from error
        for old in self.all()[: -self.keep]:
            old.unlink(missing_ok=True)
        return path

    def _keep_as_good(self, state: Path) -> None:
        link = self.good.with_suffix(".writing")
        link.unlink(missing_ok=True)
        os.link(state, link)
        os.replace(link, self.good)

    @property
    def good(self) -> Path:
        """The last state worth going back to: the start, then that of the best epoch."""
        return self.folder / "good.safetensors"

    def newest(self) -> Path | None:
        """The state to go on from."""
        states = self.all()
        return states[-1] if states else None

    def all(self) -> list[Path]:
        """The states that are there, oldest first."""
        return sorted(self.folder.glob("state-*.safetensors"))

    def clear(self) -> None:
        """Remove all states: the run is done, and its checkpoints hold the weights."""
        for path in [*self.all(), self.good, *self.folder.glob("*.writing")]:
            path.unlink(missing_ok=True)


def restore(
    path: Path,
    model: SetEncoder,
    groups: list[Group],
    adam: torch.optim.Optimizer,
    average: Mapping[str, Tensor] | None,
) -> Progress:
    """Put a state back where it was saved from."""
    device = next(iter(groups[0].parameters.values())).device
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            progress = Progress(**json.loads((file.metadata() or {})["progress"]))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: not a whole state ({error}). Remove it to go on from the one before.") from error
    weights = _under(_MODEL, stored)
    other = _differing(weights, model.state_dict())
    if other:
        raise StateError(
            f"{path}: of another model than this recipe's ({other[0]}; {len(other)} differences in all). Were the data "
            "and its vocabulary changed? Start in another folder."
        )
    model.load_state_dict(weights)
    known = _under(_ADAM, stored)
    adam.state.clear()
    for name, parameter in _named(groups).items():
        mine = {key: known[f"{key}/{name}"] for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}/{name}" in known}
        if mine:
            if not adam.defaults.get("fused"):
                mine["step"] = mine["step"].cpu()
            adam.state[parameter] = mine
    for name, value in _under(_AVERAGE, stored).items():
        if average is not None and name in average:
            average[name].copy_(value)
    return progress


def _named(groups: list[Group]) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for group in groups for name, parameter in group.parameters.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _differing(stored: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> list[str]:
    """Where the shapes of two sets of weights differ, in words."""
    shapes = [{name: str(list(value.shape)) for name, value in weights.items()} for weights in (stored, here)]
    return [
        f"{name}: {shapes[0].get(name, 'nothing')} there, {shapes[1].get(name, 'nothing')} here"
        for name in {**here, **stored}
        if shapes[0].get(name) != shapes[1].get(name)
    ]


def _advice(error: Any, path: Path) -> str:
    return (
        f"{path}: the run's state could not be written ({error}). Earlier states are intact: free some space or "
        "permit writing, then go on with --resume."
    )
