"""Word vectors and a bidirectional GRU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from maxmatch.checks import check_ids, check_right_padded
from maxmatch.encoders.protocol import mask_for
from maxmatch.layers.aligned import widened
from maxmatch.layers.positions import sine_positions
from maxmatch.types import Features

Directions = Literal["mean", "concatenate"]


class GRUEncoder(nn.Module):
    """Local features: the word vectors, after dropout. Global feature: the GRU's last state, after dropout.

    directions: "mean" runs each direction at the full width D and averages them; "concatenate" runs each at D/2.
    word_vectors: what the vectors start from (see `read_glove`); N(0, word_scale²) otherwise: the smaller, the faster
    they learn for their size. They are trained, that of the padding token too, unless train_words is False.
    vector_width: where given, the vectors are so wide, and a learned projection makes words of `word_width` of them,
    small ones at first where word_scale is small. With vectors that stay as they are, words are understood that no
    training caption had, if their vectors lie near those of others that one had. own_words: so many of the first words
    have a learned vector of their own beside that, which starts at zero.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_width: int = 300,
        width: int = 1024,
        directions: Directions = "mean",
        dropout: float = 0.1,
        word_vectors: Float[Tensor, "V W"] | None = None,
        vector_width: int | None = None,
        train_words: bool = True,
        word_scale: float = 1.0,
        own_words: int = 0,
    ) -> None:
        super().__init__()
        if directions not in ("mean", "concatenate"):
            raise ValueError(f"directions: expected 'mean' or 'concatenate', got {directions!r}.")
        if directions == "concatenate" and width % 2:
            raise ValueError(f"width: two directions cannot share a width of {width}. Choose an even one.")
        stored = vector_width or word_width
        if word_vectors is not None and word_vectors.shape != (vocabulary_size, stored):
            raise ValueError(
                f"word_vectors: expected {vocabulary_size} words of width {stored}, "
                f"got {tuple(word_vectors.shape)}. Read them for this vocabulary, and set "
                f"{'word_width' if vector_width is None else 'vector_width'} to their width."
            )
        self.local_width = word_width
        self.width = width
        self.directions = directions
        self.words = nn.Embedding(vocabulary_size, stored)
        self.words.weight.requires_grad_(train_words)
        self.projection = nn.Identity() if vector_width is None else nn.Linear(vector_width, word_width)
        with torch.no_grad():
            if isinstance(self.projection, nn.Linear):
                self.projection.weight.mul_(word_scale)
                self.projection.bias.mul_(word_scale)
            elif word_vectors is None:
                self.words.weight.mul_(word_scale)
            if word_vectors is not None:
                self.words.weight.copy_(word_vectors)
        # One row more, which stays zero: that of all words without a vector of their own.
        self.own = nn.Embedding(own_words + 1, word_width, padding_idx=own_words) if own_words else None
        if self.own is not None:
            nn.init.zeros_(self.own.weight)
        hidden = width if directions == "mean" else width // 2
        self.gru = nn.GRU(word_width, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"] | None = None) -> Features:
        """The features of B texts of up to N words, padded on the right."""
        check_ids(ids, self.words.num_embeddings)
        mask = mask_for(ids, mask)
        local = self.dropout(self.vectors(ids))
        last = self.last_states_on_device(local, mask) if local.is_cuda else self.last_states(local, mask)
        state = last.mean(0) if self.directions == "mean" else last.transpose(0, 1).flatten(1)
        return Features(local, mask, self.dropout(state), sine_positions(mask, self.local_width, local.dtype))

    def vectors(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N W"]:
        """The vectors of words."""
        vectors: Tensor = self.projection(self.words(ids))
        if self.own is None:
            return vectors
        own: Tensor = self.own(ids.clamp(max=self.own.num_embeddings - 1))
        return vectors + own

    def last_states(self, local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "2 B H"]:
        """The state of each direction after its last word. The lengths are needed on the host."""
        packed = pack_padded_sequence(local, check_right_padded(mask), batch_first=True, enforce_sorted=False)
        last: Tensor = self.gru(packed)[1]
        return last

    def last_states_on_device(self, local: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "2 B H"]:
        """The same without a look at the mask, which would stop the device's queue: each direction runs over the
        padding too, and its state is taken where the words end. In mixed precision it runs in that precision; left to
        itself, autocast would take float16, in which gradients as small as these vanish.
        """
        device = local.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else local.dtype
        length = mask.sum(1)
        with torch.autocast(device, enabled=False):
            words = widened(local.to(dtype))
            with _aside(words, length):
                place = torch.arange(mask.shape[1], device=mask.device)
                backwards = (length[:, None] - 1 - place).clamp(min=0)[..., None]
                last = self._run(words.gather(1, backwards.expand_as(words)), "_reverse", length)
            first = self._run(words, "", length)
            _join(words.device)
        return torch.stack([first, last])

    def _run(self, words: Tensor, direction: str, length: Tensor) -> Tensor:
        """One direction over padded words; its state at each text's last word."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        weights = [getattr(self.gru, f"{name}_l0{direction}").to(words.dtype) for name in names]
        weights[0] = widened(weights[0])
        start = words.new_zeros(1, len(words), self.gru.hidden_size)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single")  # they were just cast
            states, _ = torch.gru(words, start, weights, True, 1, 0.0, self.training, False, True)
        last: Tensor = states.gather(1, (length - 1)[:, None, None].expand(-1, 1, states.shape[2]))[:, 0]
        return last


@contextmanager
def _aside(*inputs: Tensor) -> Iterator[None]:
    """On a GPU, work that goes on beside what follows, until `_join`: a direction alone does not fill it."""
    if not inputs[0].is_cuda:
        yield
        return
    stream = _side_stream(inputs[0].device)
    stream.wait_stream(torch.cuda.current_stream(inputs[0].device))
    with torch.cuda.stream(stream):
        for tensor in inputs:
            tensor.record_stream(stream)  # their memory is not given to others before this stream is done with it
        yield


def _join(device: torch.device) -> None:
    """Wait, on the device, for the work aside."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_side_stream(device))


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
