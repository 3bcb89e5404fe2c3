"""What a run reports while it trains: metrics.jsonl, lines and a progress bar on the terminal, and trackers."""

import importlib.util
import json
import math
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor
from tqdm import tqdm

from maxmatch.core.files import METRICS, parsed_record, write_whole
from maxmatch.losses.objective import LossTerms
from maxmatch.recipe.schema import Recipe

TRACKED = "tracker-id.txt"


class RunLog:
    """The records of a run. On resuming, those of steps that will be done again are cut off."""

    def __init__(self, folder: Path, recipe: Recipe, writes: bool, show_progress: bool | None) -> None:
        self.folder, self.recipe, self.writes = folder, recipe, writes
        self._shown = writes and (sys.stderr.isatty() if show_progress is None else show_progress)
        self.records = 0
        """Lines in metrics.jsonl."""
        self._file: TextIO | None = None
        self._bar: Any = None
        self._board: Any = None
        self._tracker: Any = None
        _check_installed(recipe)

    def begin(self, from_step: int, total_steps: int, records: int = 0) -> None:
        """Open everything. records: how many lines of an earlier run are kept, all those up to `from_step`."""
        self._bar = tqdm(
            total=total_steps, initial=from_step, unit="step", disable=not self._shown, file=sys.stderr,
            dynamic_ncols=True,
        )  # fmt: skip
        if not self.writes:
            return
        path = self.folder / METRICS
        if path.exists():
            self.records = _cut(path, records)
        self._file = path.open("a", encoding="utf-8")
        self._board = _tensorboard(self.folder, from_step) if self.recipe.train.tensorboard else None
        if self.recipe.train.tracker == "trackio":
            self.print(
                "train.tracker=trackio is deprecated and will be removed in 0.2: use wandb or train.tensorboard."
            )
        self._tracker = _tracker(self.recipe, self.folder)

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *error: object) -> None:
        for thing in (self._bar, self._file, self._board):
            if thing is not None:
                with suppress(OSError):  # on a full disk; reported when it was written to
                    thing.close()
        if self._tracker is not None:
            self._tracker.finish()

    def back_to(self, step: int) -> None:
        """Go back to an earlier step. The records stay, since they show what went wrong."""
        self._bar.n = step
        self._bar.refresh()

    def step(self) -> None:
        """Count a step."""
        self._bar.update()

    def record(self, kind: str, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Write some figures to metrics.jsonl and the trackers."""
        if self._file is None:
            return
        rounded = {name: float(f"{value:.6g}") for name, value in values.items()}
        plain = {name: value if math.isfinite(value) else None for name, value in rounded.items()}  # JSON has no NaN
        try:
            self._file.write(json.dumps({"kind": kind, "step": step, "epoch": epoch, **plain}) + "\n")
            self._file.flush()
        except OSError as error:
            text = f"{self._file.name}: could not be written ({error}). Free some space, then continue with --resume."
            raise OSError(error.errno, text) from error
        self.records += 1
        named = {f"{kind}/{name}": value for name, value in rounded.items()}
        if self._board is not None:
            for name, value in named.items():
                self._board.add_scalar(name, value, step)
        if self._tracker is not None:
            self._tracker.log({**named, "epoch": epoch, "step": step})

    def show(self, epoch: int, values: Mapping[str, float]) -> None:
        """Show the latest figures beside the bar."""
        self._bar.set_description(f"epoch {epoch + 1}")
        self._bar.set_postfix_str(" ".join(f"{name} {value:.4g}" for name, value in values.items()))

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        if self.writes:
            tqdm.write(line, file=sys.stderr)


class LossWindow:
    """The loss terms of the last steps, on the device until they are needed.

    seconds: the time of the steps that were flushed last.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._names: list[str] = []
        self._terms: list[Tensor] = []
        self._items = 0
        self._since = time.monotonic()

    def add(self, terms: LossTerms, items: int) -> None:
        """Add a step."""
        computed = terms.computed()
        self._names = list(computed)
        self._terms.append(torch.stack(list(computed.values())))
        self._items += items

    def flush(self, losses: list[float], keep: int) -> dict[str, float]:
        """The mean of each term since the last flush, and items per second. The triplet losses are appended to
        `losses`, of which the last `keep` stay.
        """
        rows = torch.stack(self._terms).tolist()
        ranked = self._names.index("triplet") if "triplet" in self._names else 0
        losses[:] = [*losses, *(row[ranked] for row in rows)][-keep:]
        means = dict(zip(self._names, (sum(column) / len(rows) for column in zip(*rows, strict=True)), strict=True))
        now = time.monotonic()
        self.seconds = now - self._since
        means = {"loss": means.pop("total"), **means, "items_per_second": self._items / max(self.seconds, 1e-9)}
        self._terms, self._items, self._since = [], 0, now
        return means


def epoch_line(epoch: int, epochs: int, values: Mapping[str, float], seconds_left: float | None = None) -> str:
    """One epoch in one line: loss, retrieval, collapse, speed and the time left."""
    names = {
        "loss": "loss",
        "rsum": "RSUM",
        **{name: name.replace("/rsum", " RSUM") for name in values if name.endswith("/rsum")},
        "i2t_r1": "i→t R@1",
        "t2i_r1": "t→i R@1",
        **{name: f"log var {name.removesuffix('_log_variance')}" for name in values if name.endswith("_log_variance")},
        "slots_used": "slots used",
        "pairing_stability": "pairing",
        "items_per_second": "items/s",
    }
    shown = [f"{label} {values[name]:.4g}" for name, label in names.items() if name in values]
    if seconds_left is not None:
        shown.append(f"{tqdm.format_interval(seconds_left)} left")
    return f"epoch {epoch + 1}/{epochs}  " + "  ".join(shown)


def _cut(path: Path, records: int) -> int:
    """Keep the first `records` lines; returns how many there were."""
    with path.open(encoding="utf-8") as file:
        kept = [line for line in islice(file, records) if parsed_record(line) is not None]
    write_whole(path, "".join(kept))
    return len(kept)


def _check_installed(recipe: Recipe) -> None:
    """Fail early if a package is missing."""
    for option, package in (("tensorboard", "tensorboard"), ("tracker", recipe.train.tracker)):
        if getattr(recipe.train, option) and package and importlib.util.find_spec(package) is None:
            raise ImportError(f"train.{option}: {package} is not installed. pip install {package}, or leave it out.")


def _tensorboard(folder: Path, from_step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=from_step + 1)


def _tracker(recipe: Recipe, folder: Path) -> Any:
    """wandb and trackio have the same three functions. Neither is used unless the recipe asks for it.

    A resumed run continues there, too: wandb knows it by its id, trackio by its name, which contains the id.
    """
    if recipe.train.tracker is None:
        return None
    tracker = importlib.import_module(recipe.train.tracker)
    note = folder / TRACKED
    if not note.exists():
        write_whole(note, secrets.token_hex(4))
    known = note.read_text(encoding="utf-8").strip()
    by_id = {"id": known} if recipe.train.tracker == "wandb" else {}
    config = recipe.model_dump(mode="json")
    tracker.init(project="maxmatch", name=f"{folder.name}-{known}", config=config, resume="allow", **by_id)
    return tracker
