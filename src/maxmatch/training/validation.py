"""How good the model is now: retrieval on the validation split, and whether its sets collapse."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from maxmatch.data.feed import Feed
from maxmatch.data.sampler import Plan
from maxmatch.evaluation.collapse import log_circular_variance, slot_pairing
from maxmatch.evaluation.retrieval import chance, retrieval
from maxmatch.model import SetEncoder


@dataclass(frozen=True)
class EncodedSplit:
    """The sets of a split, by modality, and the group of each."""

    sets: Mapping[str, Tensor]
    groups: Mapping[str, Tensor]


def in_order(size: int, batch_size: int) -> list[Plan]:
    """All groups, one after the other."""
    return [Plan(np.arange(start, min(start + batch_size, size)), None) for start in range(0, size, batch_size)]


def encode_split(
    model: SetEncoder, feed: Feed, size: int, batch_size: int, precision: torch.dtype | None = None
) -> EncodedSplit:
    """The sets of `size` groups, in evaluation mode."""
    sets: dict[str, list[Tensor]] = {name: [] for name in model.towers}
    groups: dict[str, list[Tensor]] = {name: [] for name in model.towers}
    mode = model.training
    model.eval()
    mixed = torch.autocast(model.device.type, precision) if precision is not None else nullcontext()
    try:
        with torch.inference_mode(), mixed:
            for batch in feed.batches(in_order(size, batch_size)):
                for name, inputs in batch.inputs.items():
                    sets[name].append(model(name, *inputs).vectors.float())
                    groups[name].append(batch.groups[name])
    finally:
        model.train(mode)
    return EncodedSplit(
        {name: torch.cat(parts) for name, parts in sets.items()},
        {name: torch.cat(parts) for name, parts in groups.items()},
    )


def measures(encoded: EncodedSplit, pair: tuple[str, str], similarity: str) -> dict[str, float]:
    """Recalls and RSUM between two modalities, and the collapse of each."""
    rows, columns = pair
    images, texts = encoded.sets[rows], encoded.sets[columns]
    found = retrieval(images, texts, encoded.groups[rows], encoded.groups[columns], similarity)
    by_chance = chance(encoded.groups[rows].cpu(), encoded.groups[columns].cpu())
    pairing = slot_pairing(images, texts, partners(encoded, pair), similarity)
    return {
        **found,
        **{f"chance_{name}": value for name, value in by_chance.items()},
        f"{rows}_log_variance": log_circular_variance(images),
        f"{columns}_log_variance": log_circular_variance(texts),
        "slots_used": pairing.used,
        "pairing_stability": pairing.stability,
    }


def partners(encoded: EncodedSplit, pair: tuple[str, str]) -> Tensor:
    """For each item of the second modality the place of one of the first that belongs to it."""
    rows, columns = (encoded.groups[name] for name in pair)
    order = rows.argsort(stable=True)
    return order[torch.searchsorted(rows[order], columns)]
