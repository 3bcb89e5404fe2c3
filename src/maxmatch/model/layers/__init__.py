"""What turns the features of an item into a set of vectors: positions, attention, pooling and the two heads."""

from maxmatch.model.layers.heads import PIEHead, SetHead

__all__ = ["PIEHead", "SetHead"]
