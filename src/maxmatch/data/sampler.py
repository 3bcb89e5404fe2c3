"""Which groups are in which batch. A batch is a pure function of seed, epoch and step: nothing else has to be saved."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from maxmatch.data.dataset import Split
from maxmatch.model.inputs import Reader, TextReader


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """What one batch is: the numbers of its groups, in order, and a seed for everything random about it.

    Without a seed nothing is: all captions, nothing left out, pictures as for evaluation.
    """

    groups: np.ndarray
    seed: int | None


class GroupSampler:
    """Batches of distinct groups, shuffled anew each epoch; every group comes once an epoch.

    With several ranks a batch of `batch_size` groups is cut into as many slices, whose sizes differ by at most one: all
    ranks together see the very batches that one would see alone. What is left at the end of an epoch is a smaller
    batch, unless drop_last says otherwise. It is left out in any case when it has fewer groups than there are ranks, or
    a single group, which would have no negatives.

    epoch, position: how far training is. Plans may be drawn ahead of it; `advance` says that a batch was used.
    """

    def __init__(
        self, size: int, batch_size: int, seed: int, drop_last: bool = False, rank: int = 0, world: int = 1
    ) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"rank: expected 0 to {world - 1}, one of {world} ranks; got {rank}.")
        if seed < 0:
            raise ValueError(f"seed: expected 0 or more, got {seed}.")
        least = max(2, world)
        if batch_size < least:
            raise ValueError(
                f"batch_size: expected at least {least} groups, two to compare and one for each of {world} ranks; "
                f"got {batch_size}."
            )
        if size < (batch_size if drop_last else least):
            raise ValueError(
                f"size: {size} groups do not make one batch of {batch_size}. "
                "Take a smaller batch_size, keep the last batch, or take more data."
            )
        self.size, self.batch_size, self.seed, self.drop_last = size, batch_size, seed, drop_last
        self.rank, self.world = rank, world
        self.epoch = self.position = 0
        full, rest = divmod(size, batch_size)
        self._count = full + (rest >= least and not drop_last)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._count

    def plans(self, epoch: int, start: int = 0) -> Iterator[BatchPlan]:
        """The batches of an epoch, from the one numbered `start` on."""
        order = np.argsort(random_words(self.size, self.seed, epoch), kind="stable")
        for step in range(start, len(self)):
            groups = order[step * self.batch_size : (step + 1) * self.batch_size]
            seed = int(random_words(1, self.seed, epoch, step, self.rank)[0] >> 1)  # torch's seeds have 63 bits
            yield BatchPlan(np.array_split(groups, self.world)[self.rank].copy(), seed)

    def advance(self) -> None:
        """A batch was used: on to the next, and after the last one to the next epoch."""
        self.position += 1
        if self.position >= len(self):
            self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int | bool]:
        """Where training stands, and what the batches depend on."""
        return {"epoch": self.epoch, "position": self.position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved. The number of ranks may be another one; the batches are the same."""
        for name, mine in self._identity().items():
            if state.get(name) != mine:
                raise ValueError(
                    f"{name}: the saved state is of a run with {name}={state.get(name)}, this one has {mine} and so "
                    f"other batches. Resume with the saved {name}, or start anew."
                )
        epoch, position = state.get("epoch"), state.get("position")
        if not (isinstance(epoch, int) and isinstance(position, int) and epoch >= 0 and position >= 0):
            raise ValueError(f"state: expected an epoch and a position from 0 on, got {epoch!r} and {position!r}.")
        # With more ranks than before, a small last batch may be one that is now left out.
        self.epoch, self.position = (epoch, position) if position < len(self) else (epoch + 1, 0)

    def _identity(self) -> dict[str, int | bool]:
        return {"size": self.size, "batch_size": self.batch_size, "seed": self.seed, "drop_last": self.drop_last}


def random_words(count: int, *seed: int) -> np.ndarray:
    """64 random bits each. Raw bits, since NumPy promises them to be the same in every version."""
    return np.asarray(np.random.PCG64(seed).random_raw(count))


# Which items of each modality are in a batch: all of its groups, or some of each group's captions at random.


class Selection:
    """The places of a batch's items in their modalities. captions: at most so many texts of each group; None: all."""

    def __init__(self, split: Split, readers: Mapping[str, Reader], captions: int | None) -> None:
        absent = [modality for modality in readers if modality not in split.items]
        if absent:
            has, lacks = ", ".join(split.items), ", ".join(absent)
            raise ValueError(
                f"readers: this data has {has}, not {lacks}. Give data with all of them, as pictures with captions."
            )
        if captions is not None and captions < 1:
            raise ValueError(f"captions: expected at least 1 a group, or None for all; got {captions}.")
        self.groups = {modality: split[modality].groups for modality in readers}
        self._starts = {modality: split[modality].starts for modality in readers}
        self._most = {name: captions if isinstance(reader, TextReader) else None for name, reader in readers.items()}

    def __call__(self, plan: BatchPlan) -> dict[str, np.ndarray]:
        """The places of a batch's items, by modality; those of a group side by side, groups in the plan's order."""
        if plan.seed is None:
            return {modality: places_of(starts, plan.groups, None, 0) for modality, starts in self._starts.items()}
        return {
            modality: places_of(starts, plan.groups, self._most[modality], plan.seed + number)
            for number, (modality, starts) in enumerate(self._starts.items())
        }


def places_of(starts: np.ndarray, groups: np.ndarray, most: int | None, seed: int) -> np.ndarray:
    """The items of some groups: of each all, or as many as `most` at random; by group, in their own order.

    starts: where each group's items begin, see `Items.starts`.
    """
    counts = starts[groups + 1] - starts[groups]
    before = np.cumsum(counts) - counts
    number = np.arange(counts.sum()) - np.repeat(before, counts)  # of each item in its group
    items: np.ndarray = number + np.repeat(starts[groups], counts)
    if most is None or counts.max(initial=0) <= most:
        return items
    owner = np.repeat(np.arange(len(groups)), counts)
    shuffled = np.lexsort((random_words(len(items), seed), owner))  # within each group
    chosen: np.ndarray = items[np.sort(shuffled[number < most])]
    return chosen
