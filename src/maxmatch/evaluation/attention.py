"""What each slot looks at: how widely, and whether slots look at the same places."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from maxmatch.model import Explanation, SetEncoder


@dataclass(frozen=True)
class AttentionSummary:
    """The attention of K slots, averaged over items."""

    entropy: list[float]
    """Of each slot's attention, in nats: 0 where it is on one place, log N where it is even over N."""
    spread: list[float]
    """exp(entropy) / N of each slot: the share of the places that it looks at; 1 is all of them evenly."""
    overlap: Float[Tensor, "K K"]
    """Σ over places of the smaller of two slots' attention: 0 where they look at different places, 1 at the same."""

    @property
    def mean_overlap(self) -> float | None:
        """Of all pairs of different slots; None with one slot."""
        size = len(self.overlap)
        different = ~torch.eye(size, dtype=torch.bool)
        return float(self.overlap[different].mean()) if size > 1 else None


@dataclass(frozen=True)
class Attention:
    """What the slots of some pairs of an image and a text look at, and what they do on average."""

    pairs: list[Explanation]
    image: AttentionSummary
    text: AttentionSummary


def attention(model: SetEncoder, images: Sequence[Any], texts: Sequence[str]) -> Attention:
    """What the slots look at in images and texts, images[i] with texts[i]: raw items, as `SetEncoder.explain` takes."""
    if len(images) != len(texts) or not images:
        raise ValueError(f"expected a text for each image, at least one; got {len(images)} and {len(texts)}.")
    pairs = [model.explain(image, text) for image, text in zip(images, texts, strict=True)]
    return Attention(
        pairs,
        attention_summary([pair.image_attention for pair in pairs]),
        attention_summary([pair.text_attention for pair in pairs]),
    )


def attention_summary(maps: Sequence[Tensor]) -> AttentionSummary:
    """The averages over items of attention maps (K, places) or (K, rows, columns), places as many as an item has."""
    entropy, spread, overlap = [], [], []
    for one in maps:
        weights = one.double().flatten(1)
        weights = weights / weights.sum(1, keepdim=True)
        entropy.append(-torch.xlogy(weights, weights).sum(1))
        spread.append(entropy[-1].exp() / weights.shape[1])
        overlap.append(torch.minimum(weights[:, None], weights[None]).sum(2))
    return AttentionSummary(_mean(entropy).tolist(), _mean(spread).tolist(), _mean(overlap))


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean(0)
