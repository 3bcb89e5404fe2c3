"""Feeding from the disk: worker processes read whole batches ahead, and the device copies them from pinned memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from traceback import format_exc
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from maxmatch.data.augment import SizeAugmentation
from maxmatch.data.items import Items, Split
from maxmatch.data.sampler import Plan
from maxmatch.data.selection import Selection
from maxmatch.data.sides import Side, Unreadable, log_unreadable, side_for
from maxmatch.data.transforms import Augmentation
from maxmatch.readers import Reader
from maxmatch.types import Batch, Inputs


class MappedFeed:
    """Pictures decoded, features read and texts looked up by `workers` processes (0: by this one, not ahead).

    readers: those of the model's towers, by modality. captions: at most so many texts a group, chosen at random. drop:
    the share of regions or words that is left out, by modality. crops: how pictures are cropped or mirrored at random,
    by modality; the others are read as for evaluation.

    A batch is a function of its plan alone; how many workers there are changes nothing. A group with an item that
    cannot be read is left out of its batch, and the item is reported the first time; `unreadable` keeps all of them.
    Only a batch of which nothing is left stops the feed.
    """

    def __init__(
        self,
        split: Split,
        readers: Mapping[str, Reader],
        device: torch.device | str,
        *,
        workers: int = 4,
        captions: int | None = None,
        drop: Mapping[str, float] | None = None,
        crops: Mapping[str, Augmentation] | None = None,
        report: Callable[[Unreadable], None] = log_unreadable,
        ahead: int = 2,
    ) -> None:
        self.device = torch.device(device)
        self.unreadable: dict[tuple[str, str], str] = {}
        self._report = report
        self._augment = SizeAugmentation(drop or {}, readers, self.device)
        selection = Selection(split, readers, captions)
        sides = {modality: side_for(modality, split, readers, crops or {}) for modality in readers}
        self._plans = _Plans()
        self._loader = DataLoader(
            _Maker(selection, sides, {modality: split[modality] for modality in readers}),
            batch_size=None,
            sampler=self._plans,
            num_workers=workers,
            prefetch_factor=ahead if workers else None,
            persistent_workers=workers > 0,
            pin_memory=self.device.type == "cuda",
            collate_fn=_as_it_is,
            generator=torch.Generator(),  # workers get a seed from it, which would else come from the global generator
        )

    def batches(self, plans: Iterable[Plan]) -> Iterator[Batch]:
        """The batches, on the device, in the order of their plans. One such iterator at a time."""
        self._plans.current = plans
        for made in self._loader:
            for item in made.unreadable:
                if (item.modality, item.id) not in self.unreadable:
                    self.unreadable[item.modality, item.id] = item.reason
                    self._report(item)
            if made.fault:
                raise RuntimeError(made.fault)
            if made.batch is None:
                raise ValueError(
                    f"no group of a batch could be read. The first reason: {made.unreadable[0]} "
                    "Check the data with `maxmatch data check`."
                )
            yield self._augment(_single(made.batch.to(self.device, non_blocking=True)), made.seed)


class _Made(NamedTuple):
    """What a worker makes of a plan."""

    batch: Batch | None
    seed: int | None
    unreadable: list[Unreadable]
    fault: str = ""
    """Why the program cannot go on."""


class _Plans:
    """What the loader iterates over: another sequence of plans each time, while its workers stay."""

    current: Iterable[Plan] = ()

    def __iter__(self) -> Iterator[Plan]:
        """The plans of this time."""
        return iter(self.current)


class _Maker(Dataset[_Made]):
    """Makes batches of plans; a copy of it lives in each worker."""

    def __init__(self, selection: Selection, sides: Mapping[str, Side], items: Mapping[str, Items]) -> None:
        self.selection, self.sides, self.items = selection, sides, items

    def __getitem__(self, plan: Plan) -> _Made:
        """The batch of a plan. A fault travels as a text: one that a worker raises costs seconds a worker to end it."""
        try:
            return self._make(plan)
        except Exception:
            return _Made(None, plan.seed, [], f"a batch could not be made.\n{format_exc()}")

    def _make(self, plan: Plan) -> _Made:
        places = self.selection(plan)
        inputs, unreadable, lost = {}, [], np.zeros(0, np.int64)
        for modality, side in self.sides.items():
            items = self.items[modality]
            inputs[modality], failed = side.read(places[modality], plan.seed)
            unreadable += [Unreadable(modality, str(items.ids[place]), why) for place, why in failed.items()]
            lost = np.union1d(lost, items.groups[list(failed)])
        groups = {modality: self.selection.groups[modality][places[modality]] for modality in inputs}
        if len(lost):
            kept = {modality: ~np.isin(groups[modality], lost) for modality in inputs}
            if not all(keep.any() for keep in kept.values()):
                return _Made(None, plan.seed, unreadable)
            inputs = {modality: _rows(inputs[modality], keep) for modality, keep in kept.items()}
            groups = {modality: groups[modality][keep] for modality, keep in kept.items()}
        tensors = {modality: torch.from_numpy(of) for modality, of in groups.items()}
        return _Made(Batch(inputs, tensors), plan.seed, unreadable)


def _rows(inputs: Inputs, keep: np.ndarray) -> Inputs:
    """Some items of a batch, no wider than the longest of them."""
    values, mask = inputs
    chosen = torch.from_numpy(keep)
    if mask is None:
        return Inputs(values[chosen], None)
    mask = mask[chosen]
    longest = int(mask.sum(1).max())
    return Inputs(values[chosen, :longest], mask[:, :longest])


def _single(batch: Batch) -> Batch:
    """Features in single precision. They travel as they are stored."""
    inputs = {
        name: Inputs(values.float() if values.is_floating_point() else values, mask)
        for name, (values, mask) in batch.inputs.items()
    }
    return Batch(inputs, batch.groups)


def _as_it_is(made: Any) -> Any:
    return made
