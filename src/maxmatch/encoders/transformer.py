"""Text through any Hugging Face text encoder."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from maxmatch.checks import check_ids
from maxmatch.encoders.backbone import output_width
from maxmatch.encoders.freezing import Freezable
from maxmatch.encoders.protocol import mask_for
from maxmatch.layers.pooling import POOLING
from maxmatch.layers.positions import sine_positions
from maxmatch.types import Features


def _first(local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B W"]:
    return local[:, 0]


_POOLING = {**POOLING, "first": _first}


class TransformerEncoder(Freezable):
    """Local features: the last hidden states, projected. Global feature: their maximum, special tokens included.

    backbone: a model that takes `input_ids` and `attention_mask` and gives `last_hidden_state`, from the hub or from
    `backbone_from_config`. pooling: "max", "mean", or "first" for the vector of [CLS].
    """

    def __init__(
        self, backbone: nn.Module, width: int = 1024, pooling: Literal["max", "mean", "first"] = "max"
    ) -> None:
        super().__init__()
        if pooling not in _POOLING:
            raise ValueError(f"pooling: expected one of {', '.join(_POOLING)}, got {pooling!r}.")
        self.backbone = backbone
        self.local_width = self.width = width
        self.pooling = _POOLING[pooling]
        device = next(backbone.parameters()).device
        probe = torch.ones(1, 2, dtype=torch.long, device=device)
        # Without a mask, at whose values the backbone may look: a model that is only planned ("meta") has none.
        channels = output_width(backbone, lambda: self._hidden(probe, None))
        self.projection = nn.Linear(channels, width)

    def forward(self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"] | None = None) -> Features:
        """The features of B texts of up to N tokens, padded on the right."""
        config = getattr(self.backbone, "config", None)
        check_ids(ids, getattr(config, "vocab_size", None), getattr(config, "max_position_embeddings", None))
        mask = mask_for(ids, mask)
        local = self.projection(self._hidden(ids, mask))
        return Features(local, mask, self.pooling(local, mask), sine_positions(mask, self.width, local.dtype))

    def _hidden(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        attention = None if mask is None else mask.long()
        hidden: Tensor = self.backbone(input_ids=ids, attention_mask=attention).last_hidden_state
        return hidden
