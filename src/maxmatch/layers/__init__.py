"""What turns the features of an item into a set of vectors: positions, attention, pooling and the two heads."""

from maxmatch.layers.pie_head import PIEHead
from maxmatch.layers.set_head import SetHead

__all__ = ["PIEHead", "SetHead"]
