"""What a report is made from, and items as a person sees them: small pictures, texts, names."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from maxmatch.data.dataset import Items, Split
from maxmatch.evaluation.analysis import Analysis
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.slots import Attention, Projection
from maxmatch.model.images import ImageError, load_image

# Items as a person sees them: pictures small, texts as they are, and names where there is nothing to see.

SIDE = 160
"""Pixels of a thumbnail's long side."""


@dataclass(frozen=True)
class Shown:
    """The items of one modality, by their places in an encoded split.

    values: the raw items of the data. place: for each encoded item its place in there. ids: the names of the encoded
    items.
    """

    values: Sequence[Any]
    place: Sequence[int]
    ids: Sequence[str]

    def raw(self, item: int) -> Any:
        """The item as the data has it."""
        return self.values[self.place[item]]

    def picture(self, item: int) -> Image.Image | None:
        """The picture, where it is one that can be opened; None for features and texts."""
        value = self.raw(item)
        pixels = isinstance(value, np.ndarray) and value.dtype == np.uint8
        if not (pixels or isinstance(value, Path | bytes | Image.Image)):
            return None
        try:
            return load_image(value, at_least=2 * SIDE)
        except (ImageError, OSError):
            return None

    def text(self, item: int) -> str | None:
        """The text, where it is one."""
        value = self.raw(item)
        return value if isinstance(value, str) else None

    def name(self, item: int) -> str:
        """What the item is called in its source."""
        return str(self.ids[item])


def shown_items(split: Split, encoded: EncodedSplit) -> dict[str, Shown]:
    """How the items of an encoded split are shown: those of `split`, found by their names."""
    return {name: _shown(split[name], encoded.ids[name]) for name in encoded.sets if encoded.ids.get(name)}


def _shown(items: Items, ids: Sequence[str]) -> Shown:
    places: Mapping[str, int] = {str(name): place for place, name in enumerate(items.ids)}
    return Shown(items.values, [places[name] for name in ids], ids)


def thumbnail(picture: Image.Image, side: int = SIDE) -> bytes:
    """A small JPEG. A picture that is small already keeps its size."""
    small = picture.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    with io.BytesIO() as file:
        small.convert("RGB").save(file, "JPEG", quality=82, optimize=True)
        return file.getvalue()


# What a report is made from.

METHODS = {"tsne": "t-SNE", "umap": "UMAP"}


@dataclass(frozen=True)
class Contents:
    """All that a report shows; whatever is not there is left out of it.

    title: the model's name. facts: what was analysed, by name, for the head of the page. items: how the items of each
    modality are shown. seen: of each pair in `attention` the picture as the model sees it; None where that is no
    picture. records: those of the run's metrics.jsonl.
    """

    title: str
    analysis: Analysis
    facts: Mapping[str, str] = field(default_factory=dict)
    items: Mapping[str, Shown] = field(default_factory=dict)
    projection: Projection | None = None
    attention: Attention | None = None
    seen: Sequence[Image.Image | None] = ()
    records: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if self.attention is not None and len(self.seen) != len(self.attention.pairs):
            raise ValueError(
                f"seen: expected a picture, or None, for each of {len(self.attention.pairs)} pairs of `attention`, "
                f"got {len(self.seen)}."
            )
