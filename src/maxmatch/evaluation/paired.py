"""Two modalities of an encoded split side by side, checked once: what every analysis begins with."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maxmatch.checks import check_pair, refuse_not_finite
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.ranking import true_pairs


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
