"""Word vectors and a bidirectional GRU."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from maxmatch.checks import check_ids, check_right_padded
from maxmatch.encoders.protocol import mask_for
from maxmatch.layers.positions import sine_positions
from maxmatch.types import Features

Directions = Literal["mean", "concatenate"]


class GRUEncoder(nn.Module):
    """Local features: the word vectors, after dropout. Global feature: the GRU's last state, after dropout.

    directions: "mean" runs each direction at the full width D and averages them; "concatenate" runs each at D/2.
    word_vectors: what the vectors start from (see `read_glove`); N(0, 1) otherwise. They are trained either way, that
    of the padding token too.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_width: int = 300,
        width: int = 1024,
        directions: Directions = "mean",
        dropout: float = 0.1,
        word_vectors: Float[Tensor, "V W"] | None = None,
    ) -> None:
        super().__init__()
        if directions not in ("mean", "concatenate"):
            raise ValueError(f"directions: expected 'mean' or 'concatenate', got {directions!r}.")
        if directions == "concatenate" and width % 2:
            raise ValueError(f"width: two directions cannot share a width of {width}. Choose an even one.")
        if word_vectors is not None and word_vectors.shape != (vocabulary_size, word_width):
            raise ValueError(
                f"word_vectors: expected {vocabulary_size} words of width {word_width}, "
                f"got {tuple(word_vectors.shape)}. Read them for this vocabulary, and set word_width to their width."
            )
        self.local_width = word_width
        self.width = width
        self.directions = directions
        self.words = nn.Embedding(vocabulary_size, word_width)
        if word_vectors is not None:
            with torch.no_grad():
                self.words.weight.copy_(word_vectors)
        hidden = width if directions == "mean" else width // 2
        self.gru = nn.GRU(word_width, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"] | None = None) -> Features:
        """The features of B texts of up to N words, padded on the right."""
        check_ids(ids, self.words.num_embeddings)
        mask = mask_for(ids, mask)
        lengths = check_right_padded(mask)
        local = self.dropout(self.words(ids))
        packed = pack_padded_sequence(local, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.gru(packed)
        state = last.mean(0) if self.directions == "mean" else last.transpose(0, 1).flatten(1)
        return Features(local, mask, self.dropout(state), sine_positions(mask, self.local_width, local.dtype))
