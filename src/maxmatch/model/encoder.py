"""SetEncoder: the object a user holds. Towers by name, one per modality; each turns an item into a set of K vectors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, overload, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from maxmatch.core.checks import as_tensor
from maxmatch.core.types import Features, Inputs, Sets
from maxmatch.matching.assignment import maximal_assignment
from maxmatch.matching.similarity import SIMILARITIES, Similarity, with_options
from maxmatch.model.config import ModelConfig
from maxmatch.model.encoders import Encoder
from maxmatch.model.inputs import Reader, TextReader
from maxmatch.model.read_ahead import Skipped, checked_items, in_batches

# One modality of a model: how its items are read, what they become, and the set made of it.


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


# SetEncoder: the object a user holds. Towers by name, one per modality; each makes a set of K vectors of an item.


@dataclass(frozen=True)
class Encoded:
    """What `encode(..., errors="skip")` gives: the sets of the items that could be read, and which could not."""

    sets: Float[Tensor, "n K D"]
    kept: list[int]
    """The place in the input of each set, ascending."""
    skipped: list[Skipped]


class Pair(NamedTuple):
    """A slot of the image, the slot of the text that it was matched with, and their cosine."""

    image_slot: int
    text_slot: int
    cosine: float


@dataclass(frozen=True)
class Look:
    """One item as a model sees it."""

    vectors: Float[Tensor, "K D"]
    """Its set."""
    attention: Float[Tensor, "K rows columns"] | Float[Tensor, "K parts"]
    """How much each slot took from each cell of the grid, from each region, or from each word."""
    words: list[str] | None
    """The words of a text, as the tokenizer divides it, special tokens included; None for other items."""


@dataclass(frozen=True)
class Explanation:
    """Why an image and a text score as they do."""

    score: float
    """By the model's similarity."""
    pairs: list[Pair]
    """The best one-to-one matching, by image slot."""
    cosines: Float[Tensor, "K L"]
    """Of every image slot with every text slot."""
    image_attention: Float[Tensor, "K rows columns"] | Float[Tensor, "K regions"]
    """How much each image slot took from each cell of the grid, or from each region."""
    text_attention: Float[Tensor, "L words"]
    """How much each text slot took from each word."""
    words: list[str]
    """The words, as the tokenizer divides the text, special tokens included."""


class SetEncoder(nn.Module):
    """Images, texts and whatever else has a tower -> sets of K unit vectors in one space of width D.

    `build_model` makes one from a ModelConfig, `SetEncoder.from_pretrained` reads one from a folder. One
    put together by hand from towers works as well, but cannot be saved without its config.
    """

    def __init__(
        self, towers: Mapping[str, Tower], similarity: str = "maxmatch", config: ModelConfig | None = None
    ) -> None:
        super().__init__()
        widths = {name: tower.head.width for name, tower in towers.items()}
        if len(set(widths.values())) != 1:
            raise ValueError(f"towers: expected at least one, and one width for all; got {widths}.")
        if similarity not in SIMILARITIES:
            raise ValueError(f"similarity: expected one of {', '.join(SIMILARITIES)}, got {similarity!r}.")
        self.towers = nn.ModuleDict(dict(towers))
        self.dim: int = next(iter(widths.values()))
        self.similarity_name: str = similarity
        self.similarity_options = {} if config is None else dict(config.similarity_options)
        self.config: ModelConfig | None = config
        self.notes = ""  # Markdown for the model card: what it was trained on, how well it does

    @property
    def set_sizes(self) -> dict[str, int]:
        """K of each tower."""
        return {name: self.tower(name).head.set_size for name in self.towers}

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def tower(self, modality: str) -> Tower:
        """The tower of a modality."""
        if modality not in self.towers:
            raise ValueError(f"modality: this model has {', '.join(self.towers)}, got {modality!r}.")
        tower = self.towers[modality]
        assert isinstance(tower, Tower)
        return tower

    def forward(self, modality: str, inputs: Tensor, mask: Tensor | None = None) -> Sets:
        """The sets of a batch that was read already: pixels, features or token ids, and which of them are real."""
        sets: Sets = self.tower(modality)(inputs, mask)
        return sets

    @overload
    def encode(
        self,
        modality: str,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        errors: Literal["raise"] = "raise",
    ) -> Float[Tensor, "n K D"]: ...

    @overload
    def encode(
        self,
        modality: str,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        *,
        errors: Literal["skip"],
    ) -> Encoded: ...

    def encode(
        self,
        modality: str,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        errors: Literal["raise", "skip"] = "raise",
    ) -> Float[Tensor, "n K D"] | Encoded:
        """The sets of any number of raw items, in their order: float32 on the CPU, unit vectors.

        An item's set does not depend on the others, on the batch size or on the mode the model is in. Items of like
        length share a batch. show_progress: None shows a bar from 1,000 items on, in a terminal. errors: "raise" stops
        at an item that cannot be read, naming it; "skip" leaves it out, and an `Encoded` says which and why.
        """
        items = checked_items(items, batch_size, errors)
        tower = self.tower(modality)
        sets = torch.empty(len(items), tower.head.set_size, self.dim)

        def work(places: list[int], inputs: Inputs) -> None:
            values, mask = self._moved(inputs)
            sets[places] = tower(values, mask).vectors.float().cpu()

        with self._evaluating():
            kept, skipped = in_batches(tower.reader, items, modality, batch_size, show_progress, errors == "skip", work)
        return sets if errors == "raise" else Encoded(sets[kept] if skipped else sets, kept, skipped)

    @overload
    def encode_images(
        self,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        errors: Literal["raise"] = "raise",
    ) -> Float[Tensor, "n K D"]: ...

    @overload
    def encode_images(
        self,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        *,
        errors: Literal["skip"],
    ) -> Encoded: ...

    def encode_images(
        self,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        errors: Literal["raise", "skip"] = "raise",
    ) -> Float[Tensor, "n K D"] | Encoded:
        """The sets of pictures (paths, bytes, PIL images, arrays), or of region features where the model reads those.

        As `encode("image", …)`.
        """
        if errors == "skip":
            return self.encode("image", items, batch_size, show_progress, errors="skip")
        return self.encode("image", items, batch_size, show_progress, errors)

    def encode_texts(
        self, texts: Iterable[str], batch_size: int = 64, show_progress: bool | None = None
    ) -> Float[Tensor, "n K D"]:
        """The sets of texts. As `encode("text", …)`."""
        return self.encode("text", texts, batch_size, show_progress)

    def similarity(self, a: Tensor | np.ndarray, b: Tensor | np.ndarray) -> Float[Tensor, "n m"]:
        """The score of every set of `a` with every set of `b`, by the model's similarity."""
        return SIMILARITIES[self.similarity_name](as_tensor(a), as_tensor(b), **self.similarity_options)

    def similarity_like(self, name: str) -> str | Similarity:
        """A similarity by its name: with the options that this model was trained with, if it was trained with it."""
        return with_options(name, self.similarity_options if name == self.similarity_name else {})

    def explain(self, image: Any, text: str) -> Explanation:
        """Which slots of an image and a text were matched, how well, and what each of them looked at."""
        reader = self.tower("text").reader
        if not isinstance(reader, TextReader):
            raise ValueError("explain: the tower named 'text' reads no texts, so there are no words to show.")
        seen, read = self.look("image", image), self.look("text", text)
        cosines = seen.vectors @ read.vectors.T
        chosen = maximal_assignment(cosines)
        pairs = [Pair(i, int(j), float(cosines[i, j])) for i, j in enumerate(chosen) if j >= 0]
        score = self.similarity(seen.vectors[None], read.vectors[None])
        return Explanation(float(score), pairs, cosines, seen.attention, read.attention, read.words or [])

    def look(self, modality: str, item: Any) -> Look:
        """One item's set, and what each of its vectors was taken from."""
        tower = self.tower(modality)
        with self._evaluating():
            inputs = self._moved(tower.reader.collate([tower.reader.read(item)]))
            features = tower.encoder(*inputs)
            sets = tower.head(features)
        if sets.attention is None:
            raise ValueError(f"explain: the head of the tower {modality!r} gives no attention.")
        attention = sets.attention[0].float().cpu()
        attention = (
            attention[:, features.mask[0].cpu()] if features.grid is None else attention.view(-1, *features.grid)
        )
        words = tower.reader.words(inputs.values[0]) if isinstance(tower.reader, TextReader) else None
        return Look(sets.vectors[0].float().cpu(), attention, words)

    def record_pairing(self, pairing: Sequence[int], stability: float) -> None:
        """Note in the config which slots meet, as measured after training, so that the checkpoint says it."""
        if self.config is None:
            raise ValueError("pairing: this model was put together without a config to note it in.")
        known = self.config.model_dump()
        self.config = ModelConfig.model_validate(
            {**known, "pairing": list(pairing), "pairing_stability": float(stability)}
        )

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype | str | None = None, notes: str = "") -> Path:
        """Write the model into a folder that describes itself; see `maxmatch.model.checkpoint.save`."""
        from maxmatch.model.checkpoint import save

        return save(self, folder, dtype, notes)

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: str | torch.device | None = None) -> "SetEncoder":
        """A model by its folder, one that ships ("maxmatch-small"), or "organisation/name" on the hub."""
        from maxmatch.model.checkpoint import load

        return load(folder, device)

    def push_to_hub(self, name: str, private: bool = True) -> str:
        """Upload the model to the Hugging Face Hub as "organisation/name"."""
        from maxmatch.model.checkpoint import push

        return push(self, name, private)

    def _moved(self, inputs: Inputs) -> Inputs:
        """On the model's device, and pixels or features in its precision."""
        parameter = next(self.parameters())
        dtype = parameter.dtype if inputs.values.is_floating_point() else inputs.values.dtype
        mask = None if inputs.mask is None else inputs.mask.to(parameter.device)
        return Inputs(inputs.values.to(parameter.device, dtype), mask)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation and inference mode inside; every module as it was afterwards."""
        in_training = [module for module in self.modules() if module.training]
        for module in in_training:  # not `eval()`, which takes as long as a short text
            module.training = False
        try:
            with torch.inference_mode():
                yield
        finally:
            for module in in_training:
                module.training = True
