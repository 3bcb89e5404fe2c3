"""The sets of a whole split: each item encoded once, with its group and its name."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from maxmatch.core.checks import check_pair, refuse_not_finite
from maxmatch.core.files import whole
from maxmatch.core.progress import Advance, Skipped, quiet
from maxmatch.data.dataset import Split
from maxmatch.data.feed import Feed, choose_feed
from maxmatch.data.modality import log_skipped
from maxmatch.data.sampler import BatchPlan
from maxmatch.evaluation.ranking import true_pairs
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.inputs import FeatureReader, PixelReader, Reader


@dataclass(frozen=True)
class EncodedSplit:
    """The sets of a split, by modality; the group of each, and where they are asked for, the names of the items.

    notes: what else is to be known of them, for whoever reads them from a file: model, data, similarity; and "groups",
    how many the split has, those left out included.
    """

    sets: Mapping[str, Tensor]
    groups: Mapping[str, Tensor]
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def partners(self, pair: tuple[str, str]) -> Tensor:
        """For each item of the second modality the place of one of the first that belongs to it."""
        rows, columns = (self.groups[name] for name in pair)
        order = rows.argsort(stable=True)
        return order[torch.searchsorted(rows[order], columns)]


def in_order(size: int, batch_size: int) -> list[BatchPlan]:
    """All groups, one after the other."""
    return [BatchPlan(np.arange(start, min(start + batch_size, size)), None) for start in range(0, size, batch_size)]


def encode_split(
    model: SetEncoder,
    feed: Feed,
    size: int,
    batch_size: int,
    precision: torch.dtype | None = None,
    advance: Advance = quiet,
) -> EncodedSplit:
    """The sets of `size` groups, in evaluation mode, on the model's device."""
    sets: dict[str, list[Tensor]] = {name: [] for name in model.towers}
    groups: dict[str, list[Tensor]] = {name: [] for name in model.towers}
    mode = model.training
    model.eval()
    mixed = torch.autocast(model.device.type, precision) if precision is not None else nullcontext()
    try:
        with torch.inference_mode(), mixed:
            plans = in_order(size, batch_size)
            for plan, batch in zip(plans, feed.batches(plans), strict=False):
                for name, inputs in batch.inputs.items():
                    sets[name].append(model(name, *inputs).vectors.float())
                    groups[name].append(batch.groups[name])
                advance(len(plan.groups))
    finally:
        model.train(mode)
    if not any(groups.values()):
        raise ValueError("not one item could be read. See what is wrong with them: maxmatch data check")
    return EncodedSplit(
        {name: torch.cat(parts) for name, parts in sets.items()},
        {name: torch.cat(parts) for name, parts in groups.items()},
    )


def encode_items(
    model: SetEncoder,
    split: Split,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    precision: torch.dtype | None = None,
    report: Callable[[Skipped], None] = log_skipped,
    advance: Advance = quiet,
) -> EncodedSplit:
    """The sets of all items of a split and their names. A group with an item that cannot be read is reported and left
    out; the groups keep their numbers.
    """
    if split.size == 0:
        raise ValueError("the split is empty: there is nothing to measure. Choose another with --split.")
    readers = readers_for(model, split)
    feed = choose_feed(split, readers, model.device, workers=workers, report=report)
    encoded = encode_split(model, feed, split.size, batch_size, precision, advance)
    kept = {name: np.isin(split[name].groups, groups.cpu().numpy()) for name, groups in encoded.groups.items()}
    ids = {
        name: [str(split[name].ids[place]) for place in np.flatnonzero(keep).tolist()] for name, keep in kept.items()
    }
    return EncodedSplit(encoded.sets, encoded.groups, ids, {"groups": split.size})


def readers_for(model: SetEncoder, split: Split) -> dict[str, Reader]:
    """How each modality is read: as its tower says, or, where the split holds what a backbone made of the pictures
    before, as features.
    """
    readers: dict[str, Reader] = {}
    for name in model.towers:
        reader: Reader = model.tower(name).reader
        if isinstance(reader, PixelReader):
            first = split[name].values[0]
            if isinstance(first, np.ndarray) and first.ndim == 2:  # cells and their width; a picture has colours too
                reader = FeatureReader(first.shape[1])
        readers[name] = reader
    return readers


def save_encoded(encoded: EncodedSplit, path: Path) -> None:
    """Write sets, groups, names and notes into one safetensors file."""
    tensors = {
        f"{kind}.{name}": tensor.cpu().clone(memory_format=torch.contiguous_format)  # one may stand for two modalities
        for kind, tensors in (("sets", encoded.sets), ("groups", encoded.groups))
        for name, tensor in tensors.items()
    }
    names = {name: list(ids) for name, ids in encoded.ids.items()}
    with whole(path) as file:
        known = {"format": _FORMAT, "ids": json.dumps(names), "notes": json.dumps(dict(encoded.notes))}
        file.write(save(tensors, known))


def load_encoded(path: Path) -> EncodedSplit:
    """What `save_encoded` wrote."""
    try:
        with safe_open(path, "pt") as file:
            notes = file.metadata() or {}
            if notes.get("format") != _FORMAT:
                raise ValueError(f"{path}: holds no encoded split. Make one with `maxmatch evaluate … --save-sets`.")
            found: dict[str, dict[str, Tensor]] = {"sets": {}, "groups": {}}
            for key in file.keys():  # noqa: SIM118 (it is no dict)
                kind, name = key.split(".", 1)
                found[kind][name] = file.get_tensor(key)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: cannot be read as an encoded split ({error}). Make it again.") from error
    return EncodedSplit(found["sets"], found["groups"], json.loads(notes["ids"]), json.loads(notes.get("notes", "{}")))


_FORMAT = "maxmatch-sets-1"


# Two modalities of an encoded split side by side, checked once: what every analysis begins with.


@dataclass(frozen=True)
class Paired:
    """The sets of two modalities, the first of them called the rows and the second the columns, as in a score matrix.

    ids: the names of the items; empty where they are not known.
    """

    names: tuple[str, str]
    sets: tuple[Tensor, Tensor]
    groups: tuple[Tensor, Tensor]
    ids: tuple[Sequence[str], Sequence[str]]

    def turned(self) -> "Paired":
        """The other way round: the columns as rows."""
        return Paired(self.names[::-1], self.sets[::-1], self.groups[::-1], self.ids[::-1])

    def true_pairs(self) -> tuple[Tensor, Tensor]:
        """The places of all pairs of equal group, by row and within a row by column."""
        return true_pairs(*self.groups)

    def name(self, side: int, place: int) -> str | None:
        """The name of an item of the rows (0) or the columns (1)."""
        return str(self.ids[side][place]) if len(self.ids[side]) else None


def paired(encoded: EncodedSplit, pair: tuple[str, str]) -> Paired:
    """Two modalities of a split. ValueError where there is nothing to measure, or the numbers are none."""
    rows, columns = pair
    for name in pair:
        if name not in encoded.sets:
            raise ValueError(f"pair: the split has {', '.join(encoded.sets)}, got {name!r}.")
        if len(encoded.sets[name]) == 0:
            raise ValueError(f"{name}: the split has no items of it: there is nothing to measure.")
    sets = encoded.sets[rows], encoded.sets[columns]
    check_pair(*sets)
    for name, vectors in zip(pair, sets, strict=True):
        refuse_not_finite(name, vectors)
    row_groups, column_groups = (encoded.groups[name].to(sets[0].device).contiguous() for name in pair)
    if not bool(torch.isin(row_groups, column_groups).all() & torch.isin(column_groups, row_groups).all()):
        raise ValueError(f"pair: some {rows} has no true {columns}, or some {columns} no true {rows}. Leave it out.")
    return Paired(pair, sets, (row_groups, column_groups), (encoded.ids.get(rows, ()), encoded.ids.get(columns, ())))
