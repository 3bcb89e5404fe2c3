"""A checkpoint for search without torch, which takes longer to load than a search takes: texts are encoded in NumPy."""

from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from maxmatch.config import FORMAT, SCHEMA_VERSION, ModelConfig
from maxmatch.described import read_described
from maxmatch.fingerprint import Weight, encoder_fingerprint, model_fingerprint
from maxmatch.read_ahead import checked_items
from maxmatch.text import as_text, encode_arrays, load_tokenizer
from maxmatch.text_arrays import TextArrays, is_known

if TYPE_CHECKING:
    from maxmatch.model import SetEncoder

_TEXT = "text"
_FEW = 64  # texts, which NumPy has encoded one by one before torch would be loaded


def quick_encoder(folder: Path, load: "Callable[[], SetEncoder]") -> "QuickEncoder | None":
    """The model of a checkpoint's folder; None where its texts cannot be encoded here, or anything is wrong with the
    folder: then `load`, which gives the whole model, says what.
    """
    try:
        from safetensors.numpy import load_file

        config = read_described(
            folder / "config.json", ModelConfig, FORMAT, ValueError, "a checkpoint of MaxMatch", "", SCHEMA_VERSION
        )
        if _TEXT not in config.towers or not is_known(config.towers[_TEXT]):
            return None
        tokenizer = load_tokenizer(folder / "tokenizer.json")  # of several towers of text each has a name of its own
        weights = {name: _as_computed(value) for name, value in load_file(folder / "model.safetensors").items()}
        if len(weights[f"towers.{_TEXT}.encoder.words.weight"]) != tokenizer.get_vocab_size():
            return None
        quick = QuickEncoder(config, tokenizer, weights, load)
        quick.encode_texts([""])  # so that weights of other names or sizes are found out here
    except Exception:  # of many kinds: `safetensors` has its own
        return None
    return quick


def _as_computed(value: np.ndarray) -> np.ndarray:
    """Weights in float32, however they are kept."""
    return value.astype(np.float32) if np.issubdtype(value.dtype, np.floating) else value


class QuickEncoder:
    """The calls of `SetEncoder` that a search makes: texts in NumPy, pictures by the model itself, loaded for them."""

    def __init__(
        self, config: ModelConfig, tokenizer: Any, weights: dict[str, np.ndarray], load: "Callable[[], SetEncoder]"
    ) -> None:
        self.config = config
        self.dim = config.width
        self.similarity_name: str = config.similarity
        self._tokenizer = tokenizer
        self._weights = weights
        self._load = load
        prefix = f"towers.{_TEXT}."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        self._tower = TextArrays(config.towers[_TEXT], own)

    @property
    def set_sizes(self) -> dict[str, int]:
        """K of each tower."""
        return {name: tower.set_size for name, tower in self.config.towers.items()}

    @cached_property
    def identity(self) -> str:
        """As `search.identity.model_identity` has it of the whole model."""
        weights = (
            Weight(name, f"torch.{value.dtype}", value.shape, np.ascontiguousarray(value).data)
            for name, value in sorted(self._weights.items())
        )
        return model_fingerprint(weights, {_TEXT: self._tokenizer})

    @cached_property
    def whole(self) -> "SetEncoder":
        """The model itself."""
        model = self._load()
        if encoder_fingerprint(model) != self.identity:
            raise ValueError("the model was replaced while it was being read, by a training run? Run this again.")
        return model

    def encode_texts(self, texts: Iterable[str], batch_size: int = 64, show_progress: bool | None = None) -> np.ndarray:
        """The sets (n, K, D) of texts, as `SetEncoder.encode_texts` gives them, to 1e-5."""
        items = [as_text(text) for text in checked_items(texts, batch_size, "raise")]
        if len(items) > _FEW:
            return self.whole.encode_texts(items, batch_size, show_progress).numpy()
        sets = [self._tower(encode_arrays(self._tokenizer, [text]).ids[0]) for text in items]
        return np.array(sets, np.float32).reshape(len(sets), self.set_sizes[_TEXT], self.dim)

    def encode_images(self, items: Iterable[Any], **options: Any) -> Any:
        """As `SetEncoder.encode_images`."""
        return self.whole.encode_images(items, **options)
