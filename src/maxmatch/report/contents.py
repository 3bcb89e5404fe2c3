"""What a report is made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from maxmatch.evaluation.analysis import Analysis
from maxmatch.evaluation.attention import Attention
from maxmatch.evaluation.projection import Projection
from maxmatch.report.shown import Shown

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
