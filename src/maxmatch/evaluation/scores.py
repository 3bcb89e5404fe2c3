"""The scores of a model, or of several together, on a split: held where they fit in memory, else made block by block.

Memory, beside the sets: `max_memory` for scores, and 1 GiB for the tiles at work, more on a large GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from jaxtyping import Float
from torch import Tensor

from maxmatch.checks import NotFiniteError
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.matching.scoring import score_matrix
from maxmatch.matching.similarity import Similarity

Pair = tuple[str, str]
IMAGE_TEXT: Pair = ("image", "text")
MAX_MEMORY = 2 * 2**30
"""Bytes that scores may take: COCO 5K takes a quarter of it."""


@dataclass(frozen=True)
class Member:
    """A model as it is evaluated: its name, what it made of a split, and the similarity its sets are compared by."""

    name: str
    encoded: EncodedSplit
    similarity: str | Similarity = "maxmatch"


@dataclass(frozen=True)
class Scores:
    """All scores of a split (B, C), `height` rows at a time. A block asked for again is the same bit for bit."""

    rows: Callable[[slice], Float[Tensor, "n C"]]
    shape: tuple[int, int]
    height: int

    def blocks(self) -> list[slice]:
        """The rows of each block."""
        return [slice(start, min(start + self.height, self.shape[0])) for start in range(0, self.shape[0], self.height)]


def scores_of(members: Sequence[Member], pair: Pair = IMAGE_TEXT, max_memory: int = MAX_MEMORY) -> Scores:
    """The scores of one model, or of an ensemble: the mean of its members' scores, who may differ in K and D.

    Members must hold the same items in the same order.
    """
    check_members(members, pair)
    height, width = (len(members[0].encoded.groups[name]) for name in pair)
    matrices = 1 if len(members) == 1 else 2  # the sum so far, and what is added to it
    fitting = max(1, max_memory // (4 * max(width, 1) * matrices))
    if fitting < height:
        return Scores(lambda rows: _mean(members, pair, rows), (height, width), fitting)
    held = _mean(members, pair, slice(0, height))
    return Scores(lambda rows: held[rows], (height, width), max(height, 1))


def _mean(members: Sequence[Member], pair: Pair, rows: slice) -> Tensor:
    total = _scores(members[0], pair, rows)
    for member in members[1:]:
        total += _scores(member, pair, rows).to(total.device)
    return total.div_(len(members)) if len(members) > 1 else total


def _scores(member: Member, pair: Pair, rows: slice) -> Tensor:
    a, b = (member.encoded.sets[name] for name in pair)
    try:
        return score_matrix(a[rows], b, member.similarity)
    except NotFiniteError as error:
        raise NotFiniteError(f"{member.name}: {_culprit(member.encoded, pair) or error}") from error


def _culprit(encoded: EncodedSplit, pair: Pair) -> str | None:
    """The first item whose vectors are no numbers."""
    for name in pair:
        bad = ~torch.isfinite(encoded.sets[name]).flatten(1).all(1)
        if bool(bad.any()):
            place = int(bad.nonzero()[0])
            known = f" ({encoded.ids[name][place]})" if encoded.ids.get(name) else ""
            return (
                f"the vectors of {name} {place}{known} hold NaN or infinite values. The model has diverged, or the "
                "item's features are damaged: look at its training, or check the data with `maxmatch data check`."
            )
    return None


def check_members(members: Sequence[Member], pair: Pair) -> None:
    """Refuse what cannot be evaluated, and members of an ensemble that were not encoded from the same items."""
    assert members
    first = members[0]
    for member in members:
        for name in pair:
            if name not in member.encoded.sets:
                raise ValueError(f"{member.name}: has {', '.join(member.encoded.sets) or 'no sets'}, but no {name}.")
            if not len(member.encoded.sets[name]):
                raise ValueError(f"{member.name}: the split is empty: there is nothing to measure.")
    for other in members[1:]:
        for name in pair:
            _check_same(first, other, name)


def _check_same(first: Member, other: Member, name: str) -> None:
    """The first difference between two members' items is named."""
    advice = "Encode both from the same split of the same data."
    splits = [member.encoded.notes.get("split") for member in (first, other)]
    if None not in splits and splits[0] != splits[1]:
        raise ValueError(f"{first.name} is of the split {splits[0]!r} and {other.name} of {splits[1]!r}. {advice}")
    one, two = (member.encoded.ids.get(name) for member in (first, other))
    if one is not None and two is not None:
        for place, (mine, theirs) in enumerate(zip_longest(one, two)):
            if mine != theirs:
                raise ValueError(
                    f"{name} {place} is {_said(mine)} in {first.name} and {_said(theirs)} in {other.name}: scores of "
                    f"different items, or of the same in another order, cannot be averaged or compared. {advice}"
                )
    groups = [member.encoded.groups[name].cpu() for member in (first, other)]
    if len(groups[0]) != len(groups[1]):
        raise ValueError(f"{first.name} has {len(groups[0])} {name}s and {other.name} {len(groups[1])}. {advice}")
    if not torch.equal(*groups):
        place = int((groups[0] != groups[1]).nonzero()[0])
        raise ValueError(
            f"{name} {place} belongs to group {int(groups[0][place])} in {first.name} and to {int(groups[1][place])} "
            f"in {other.name}. {advice}"
        )


def _said(name: str | None) -> str:
    return "missing" if name is None else repr(name)
