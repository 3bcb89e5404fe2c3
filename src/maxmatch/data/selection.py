"""Which items of each modality are in a batch: all of its groups, or some of each group's captions at random."""

from collections.abc import Mapping

import numpy as np

from maxmatch.data.items import Split
from maxmatch.data.sampler import Plan, random_words
from maxmatch.readers import Reader, TextReader


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

    def __call__(self, plan: Plan) -> dict[str, np.ndarray]:
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
