"""The text encoder in NumPy: a second search starts without torch, which takes longer to load than to search."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from maxmatch.model.config import GRU, ModelConfig, SetPrediction, TowerConfig
from maxmatch.model.names import WEIGHTS, encoder_hash, model_hash, read_config, restored
from maxmatch.model.text import Words, as_text, encode_arrays, known_words, load_tokenizer

if TYPE_CHECKING:
    from maxmatch.model.encoder import SetEncoder


_EPSILON = 1e-7  # of attention
_NORM_EPSILON = 1e-5  # of torch's LayerNorm
_TEMPERATURE = 10_000.0


class NumpyTextTower:
    """`GRUEncoder` and `SetHead` for one text at a time, which has no padding. weights: by their names in the tower."""

    def __init__(self, config: TowerConfig, weights: Mapping[str, np.ndarray]) -> None:
        assert isinstance(config.encoder, GRU)
        assert isinstance(config.head, SetPrediction)
        self.encoder = config.encoder
        self.head = config.head
        self.weights = weights

    def __call__(self, ids: Int[np.ndarray, "N"]) -> Float[np.ndarray, "K D"]:
        """The set of a text: unit vectors."""
        local = self._words(ids)
        states = [self._last_state(local, ""), self._last_state(local[::-1], "_reverse")]
        pooled = np.mean(states, 0) if self.encoder.directions == "mean" else np.concatenate(states)
        context = self._norm("head.block.context_norm", local)
        keys = self._heads((context + _positions(len(ids), local.shape[1])) @ self._taken("to_keys").T)
        values = self._heads(context @ self._taken("to_values").T)
        slots = self.weights["head.slots"]
        for _ in range(self.head.depth):
            slots = self._step(slots, keys, values)
        slots = slots[: len(slots) - self.head.spare_slots]
        fused = self._norm("head.residual_norm", slots) + self._norm("head.pooled_norm", pooled)
        vectors: np.ndarray = fused / np.maximum(np.linalg.norm(fused, axis=-1, keepdims=True), 1e-12)
        return vectors

    def _words(self, ids: np.ndarray) -> np.ndarray:
        vectors: np.ndarray = self.weights["encoder.words.weight"][ids]
        if self.encoder.vector_width is not None:
            vectors = self._linear("encoder.projection", vectors)
        if self.encoder.own_words:
            vectors = vectors + self.weights["encoder.own.weight"][ids.clip(max=self.encoder.own_words)]
        return vectors

    def _last_state(self, words: np.ndarray, direction: str) -> np.ndarray:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        of_input, of_state, input_bias, state_bias = (
            self.weights[f"encoder.gru.{name}_l0{direction}"] for name in names
        )
        state = np.zeros(of_state.shape[1], np.float32)
        for given in words @ of_input.T + input_bias:
            known = of_state @ state + state_bias
            (reset, update), fresh = _sigmoid(given + known)[: 2 * len(state)].reshape(2, -1), given[2 * len(state) :]
            fresh = np.tanh(fresh + reset * known[2 * len(state) :])
            state = (1 - update) * fresh + update * state
        return state

    def _step(self, slots: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """An aggregation block."""
        queries = self._heads(self._norm("head.block.query_norm", slots) @ self._taken("to_queries").T)
        logits = queries @ keys.transpose(0, 2, 1) * self.head.head_width**-0.5
        share = np.exp(logits - logits.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        taken = share / (share.sum(2, keepdims=True) + _EPSILON) @ values
        slots = slots + self._linear("head.block.attention.output.0", taken.transpose(1, 0, 2).reshape(len(slots), -1))
        inner = self._linear("head.block.feedforward.1", self._norm("head.block.feedforward.0", slots))
        step: np.ndarray = slots + self._linear("head.block.feedforward.4", _gelu(inner))
        return step

    def _heads(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), self.head.heads, -1).transpose(1, 0, 2)

    def _taken(self, name: str) -> np.ndarray:
        return self.weights[f"head.block.attention.{name}.weight"]

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        product: np.ndarray = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return product

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + _NORM_EPSILON)
        scaled: np.ndarray = normed * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return scaled


def _positions(count: int, width: int) -> np.ndarray:
    wave = np.arange(width)
    angle = 2 * math.pi * np.arange(1, count + 1)[:, None] / count / _TEMPERATURE ** (2 * (wave // 2) / width)
    return np.where(wave % 2 == 0, np.sin(angle), np.cos(angle)).astype(np.float32)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    half: np.ndarray = 0.5 * (1 + np.tanh(0.5 * x))  # which cannot overflow
    return half


def _gelu(x: np.ndarray) -> np.ndarray:
    # Not SciPy's, which takes longer to load than a text takes here.
    erf = np.fromiter(map(math.erf, (x / math.sqrt(2)).ravel().tolist()), np.float32, x.size)
    gelu: np.ndarray = 0.5 * x * (1 + erf.reshape(x.shape))
    return gelu


_TEXT = "text"
_FEW = 64  # texts, which NumPy encodes in less time than torch takes to load


def numpy_text_encoder(folder: Path, load: "Callable[[], SetEncoder]") -> "NumpyTextEncoder | None":
    """The model of a checkpoint's folder; None where NumPy cannot encode its texts, or where anything is wrong with the
    folder, which `load` of the whole model then reports.
    """
    try:
        from safetensors.numpy import load_file

        config = read_config(folder)
        encoder, head = config.towers[_TEXT].encoder, config.towers[_TEXT].head
        if not isinstance(encoder, GRU) or not isinstance(head, SetPrediction):
            return None
        if encoder.directions == "forward" or encoder.local == "states":
            return None
        tokenizer = load_tokenizer(folder / "tokenizer.json")  # of several towers of text each has a name of its own
        stored = restored(load_file(folder / WEIGHTS)).items()  # what is rounded to float16 is computed in float32
        weights = {name: value.astype(np.float32) if value.dtype.kind == "f" else value for name, value in stored}
        if len(weights[f"towers.{_TEXT}.encoder.words.weight"]) != tokenizer.get_vocab_size():
            return None
        model = NumpyTextEncoder(config, tokenizer, weights, load)
        model.encode_texts([""])  # weights of other names or sizes fail here
    except Exception:  # of many kinds: `safetensors` has its own
        return None
    return model


class NumpyTextEncoder:
    """The calls of `SetEncoder` that a search makes: texts in NumPy, pictures by the whole model, loaded for them."""

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
        self._tower = NumpyTextTower(config.towers[_TEXT], own)

    @property
    def set_sizes(self) -> dict[str, int]:
        """K of each tower."""
        return {name: tower.set_size for name, tower in self.config.towers.items()}

    @cached_property
    def identity(self) -> str:
        """What `maxmatch.model.names.model_identity` gives for the whole model."""
        weights = (
            (f"{name} torch.{value.dtype} {value.shape}", np.ascontiguousarray(value).data)
            for name, value in sorted(self._weights.items())
        )
        return model_hash(weights, {_TEXT: self._tokenizer})

    @cached_property
    def whole(self) -> "SetEncoder":
        """The model itself."""
        model = self._load()
        if encoder_hash(model) != self.identity:
            raise ValueError("the model was replaced while it was being read (by a training run?). Run this again.")
        return model

    def encode_texts(self, texts: Iterable[str], batch_size: int = 64, show_progress: bool | None = None) -> np.ndarray:
        """The sets (n, K, D) of texts, as `SetEncoder.encode_texts` gives them, to 1e-5. All but a short list of texts
        is given to the whole model.
        """
        items = texts if isinstance(texts, str | bytes) else list(texts)
        if isinstance(items, str | bytes) or batch_size < 1 or len(items) > _FEW:  # the model refuses the first two
            return self.whole.encode_texts(items, batch_size, show_progress).numpy()
        sets = [self._tower(encode_arrays(self._tokenizer, [as_text(text)]).ids[0]) for text in items]
        return np.array(sets, np.float32).reshape(len(sets), self.set_sizes[_TEXT], self.dim)

    def known_words(self, *texts: str) -> Words:
        """As `SetEncoder.known_words`."""
        return known_words(self._tokenizer, *texts)

    def encode_images(self, items: Iterable[Any], **options: Any) -> Any:
        """As `SetEncoder.encode_images`."""
        return self.whole.encode_images(items, **options)
