"""The values that travel between the parts, and the letters for their dimensions.

B  images (rows, queries)           K  vectors in a set (L: those of the other side, where they differ)
C  captions (columns, gallery)      D  width of the joint space
N  local features of an item        W  their width, which may differ from D

A *cosine* is between vectors, a *score* is between sets, a *loss* is minimised.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import _register_namedtuple

import maxmatch.core.devices  # noqa: F401 (before anything is computed)


class Inputs(NamedTuple):
    """What an encoder is called with: pixels, features or token ids, and which of them are real (None: all)."""

    values: Tensor
    mask: Tensor | None


class Phrases(NamedTuple):
    """Short texts beside the captions of a batch, as people type them into a search. fits: by modality, which of the
    batch's items each phrase fits.
    """

    inputs: Inputs
    fits: dict[str, Bool[Tensor, "_ P"]]


@dataclass(frozen=True)
class Batch:
    """What one training step sees: of each modality the inputs, the group that each item belongs to, and the place of
    each in its split, by which what a teacher made of it is found.

    A group is what belongs together, a picture and its captions; its number is the same wherever it turns up, in
    another batch or on another machine. `model("image", *batch.inputs["image"])` makes the sets.

    phrases: of a modality of texts.
    short: of a modality whose items come in the order of their length: how many of the first are short, and the length
    of the longest of these. They can then be encoded without the padding of the others.
    """

    inputs: dict[str, Inputs]
    groups: dict[str, Int[Tensor, "_"]]
    places: dict[str, Int[Tensor, "_"]] = field(default_factory=dict)
    phrases: dict[str, Phrases] = field(default_factory=dict)
    short: dict[str, tuple[int, int]] = field(default_factory=dict)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch elsewhere. non_blocking: do not wait for the copy, which takes pinned memory."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in memory that a GPU copies from by itself."""
        return self.map(Tensor.pin_memory)

    def tensors(self) -> list[Tensor]:
        """All its tensors, always in the same order."""
        of_each = [(*self.inputs[name], self.groups[name], self.places.get(name)) for name in self.inputs]
        of_phrases = [(*one.inputs, *one.fits.values()) for one in self.phrases.values()]
        return [tensor for tensors in (*of_each, *of_phrases) for tensor in tensors if tensor is not None]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The same batch with every tensor changed."""

        def changed(inputs: Inputs) -> Inputs:
            return Inputs(change(inputs.values), None if inputs.mask is None else change(inputs.mask))

        inputs = {name: changed(mine) for name, mine in self.inputs.items()}
        phrases = {
            name: Phrases(changed(one.inputs), {other: change(fits) for other, fits in one.fits.items()})
            for name, one in self.phrases.items()
        }
        groups = {name: change(groups) for name, groups in self.groups.items()}
        places = {name: change(places) for name, places in self.places.items()}
        return Batch(inputs, groups, places, phrases, self.short)


@dataclass(frozen=True)
class Features:
    """What an encoder makes of B items: N local features each, padded, and one global feature."""

    local: Float[Tensor, "B N W"]
    """The local features ψ: regions, grid cells, words."""
    mask: Bool[Tensor, "B N"]
    """True where a local feature is real. Every item has at least one."""
    pooled: Float[Tensor, "B D"]
    """The global feature φ."""
    positions: Float[Tensor, "B N W"] | None = None
    """Where each local feature lies, for attention keys only; None where order means nothing."""
    grid: tuple[int, int] | None = None
    """Rows and columns, when the N local features are the cells of a grid, row by row."""


class Sets(NamedTuple):
    """What a set head makes of B items. A tuple, so that `torch.export` and DataParallel can take it apart."""

    vectors: Float[Tensor, "B K D"]
    """The sets: unit vectors."""
    residual: Float[Tensor, "B K D"]
    """The slots before the pooled feature is added to them. Of a Gaussian head: its mean and its log variance, both of
    width D − 2.
    """
    pooled: Float[Tensor, "B D"]
    """The global feature φ (after its LayerNorm, if the head says so)."""
    attention: Float[Tensor, "B K N"] | None = None
    """How much each slot took from each of the N local features."""


_register_namedtuple(Sets, serialized_type_name="maxmatch.core.types.Sets")  # so that `torch.export.save` can name it


class TopHits(NamedTuple):
    """The k best columns of each row, best first; equal scores in the order of their indices."""

    scores: Float[Tensor, "B k"]
    indices: Int[Tensor, "B k"]


class Ranks(NamedTuple):
    """For each query the rank of its best true answer (1 is best) and how many wrong answers tie with it."""

    ranks: Int[Tensor, " n"]
    ties: Int[Tensor, " n"]


def __getattr__(name: str) -> Any:
    if name != "LossTerms":
        raise AttributeError(f"module 'maxmatch.core.types' has no attribute {name!r}")
    home = "maxmatch.losses.objective"
    text = f"LossTerms is now in {home}; the old path will be removed in 0.2."
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return import_module(home).LossTerms
