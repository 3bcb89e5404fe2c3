"""Which groups are in which batch. A batch is a pure function of seed, epoch and step: nothing else has to be saved."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """What one batch is: the numbers of its groups, in order, and a seed for everything random about it.

    Without a seed nothing is: all captions, nothing left out, pictures as for evaluation.
    """

    groups: np.ndarray
    seed: int | None


class GroupSampler:
    """Batches of groups, shuffled anew each epoch; every group comes once per epoch, or as often as its weight says:
    with weight 2.5 twice, and every other time thrice. Only a group with a weight above 1 may come twice in a batch.

    sources: the data set of each group. Then a batch has groups of one data set only, but for one batch at each border.

    With several ranks a batch of `batch_size` groups is cut into as many slices, whose sizes differ by at most one: all
    ranks together see the very batches that one would see alone. What is left at the end of an epoch is a smaller
    batch, which is left out when it has fewer groups than there are ranks, or a single group, which would have no
    negatives.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        weights: np.ndarray | None = None,
        sources: np.ndarray | None = None,
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
        if size < least:
            raise ValueError(
                f"size: {size} groups do not make one batch of {batch_size}. Use a smaller batch_size or more data."
            )
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.rank, self.world = rank, world
        self.weights, self.sources = weights, sources
        drawn = size if weights is None else int(self._ends(weights)[-1])
        if drawn < least:
            raise ValueError(f"weights: an epoch takes {drawn} of {size} groups; use larger weights.")
        full, rest = divmod(drawn, batch_size)
        self._count = full + (rest >= least)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._count

    def plans(self, epoch: int, start: int = 0) -> Iterator[BatchPlan]:
        """The batches of an epoch, from the one numbered `start` on."""
        order = np.argsort(random_words(self.size, self.seed, epoch), kind="stable")
        if self.weights is not None:
            order = self._weighted(order, epoch)
        batches = np.arange(len(self))
        if self.sources is not None:
            order = order[np.argsort(self.sources[order], kind="stable")]
            full = len(order) // self.batch_size  # what is left stays last
            batches[:full] = np.argsort(random_words(full, self.seed, epoch, 2), kind="stable")
        for step in range(start, len(self)):
            first = batches[step] * self.batch_size
            groups = order[first : first + self.batch_size]
            seed = int(random_words(1, self.seed, epoch, step, self.rank)[0] >> 1)  # torch's seeds have 63 bits
            yield BatchPlan(np.array_split(groups, self.world)[self.rank].copy(), seed)

    def _weighted(self, order: np.ndarray, epoch: int) -> np.ndarray:
        """Each group as often as its weight says. The fractions of shuffled groups are added up, and one comes once
        more whenever their sum passes a whole number: that is right on average, and the total is the same every epoch.
        """
        assert self.weights is not None
        repeated = np.repeat(order, np.diff(self._ends(self.weights[order]), prepend=0))
        return repeated[np.argsort(random_words(len(repeated), self.seed, epoch, 1), kind="stable")]

    @staticmethod
    def _ends(weights: np.ndarray) -> np.ndarray:
        ends: np.ndarray = np.floor(np.round(np.cumsum(weights), 6) + 0.5).astype(np.int64)
        return ends


def random_words(count: int, *seed: int) -> np.ndarray:
    """64 random bits each. Raw bits, since NumPy promises them to be the same in every version."""
    return np.asarray(np.random.PCG64(seed).random_raw(count))
