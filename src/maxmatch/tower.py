"""One modality of a model: how its items are read, what they become, and the set made of it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from maxmatch.encoders import Encoder
from maxmatch.readers import Reader
from maxmatch.types import Features, Sets


@runtime_checkable
class Head(Protocol):
    """A module that turns the features of B items into B sets."""

    width: int
    set_size: int

    def __call__(self, features: Features, /) -> Sets:
        """The sets."""
        ...

    def reorder(self, order: Sequence[int], /) -> None:
        """Put the vectors of every set into another order: vector i becomes what vector order[i] was."""
        ...


class Tower(nn.Module):
    """One modality: a reader of raw items, an encoder and a head."""

    def __init__(self, encoder: Encoder, head: Head, reader: Reader) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.reader = reader

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Sets:
        """The sets of B items."""
        return self.head(self.encoder(inputs, mask))
