"""Which model made a set: its name in an index is a hash of its weights and tokenizers, so that no other model's sets
come in.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from maxmatch.config import ModelConfig


@runtime_checkable
class Model(Protocol):
    """What search needs of a model: a `SetEncoder`, or the same run by ONNX Runtime (`maxmatch.onnx_runtime`)."""

    @property
    def dim(self) -> int:
        """D."""
        ...

    @property
    def similarity_name(self) -> str:
        """How its sets are compared."""
        ...

    @property
    def config(self) -> ModelConfig | None:
        """What it is made of."""
        ...

    @property
    def set_sizes(self) -> dict[str, int]:
        """K of each tower."""
        ...

    @property
    def encode_images(self) -> Callable[..., Any]:
        """The sets of pictures, tensors or arrays; see `SetEncoder.encode`."""
        ...

    @property
    def encode_texts(self) -> Callable[..., Any]:
        """The sets of texts."""
        ...


def model_identity(model: Model | str) -> str:
    """A hash of a model's weights and of how it divides texts; a string (a hash noted earlier, or the name of a foreign
    model) is given back. What was exported from a model says its identity itself.
    """
    if isinstance(model, str):
        if not model.strip():
            raise ValueError("model: expected a SetEncoder, its hash or a name, got an empty text.")
        return model
    noted = getattr(model, "identity", None)
    if isinstance(noted, str):
        return noted
    from maxmatch.fingerprint import encoder_fingerprint
    from maxmatch.model import SetEncoder

    assert isinstance(model, SetEncoder)
    return encoder_fingerprint(model)


def check_same_model(known: str | None, model: Model | str | None) -> None:
    """Refuse the sets of another model than an index was made for. What is not known is not compared."""
    if known is None or model is None:
        return
    given = model_identity(model)
    if given != known:
        raise ValueError(
            f"model: this index holds sets of the model {known[:16]}, got those of {given[:16]}: "
            "their vectors cannot be compared. Encode with that model, or make another index for this one."
        )


def slot_stability(model: Model) -> float | None:
    """How often slot i meets slot i in a true pair, as measured after training; None where it was not measured.

    0 where the slots meet in another order than their own: a flattened set then is of no use for search.
    """
    if model.config is None or model.config.pairing is None:
        return None
    aligned = model.config.pairing == list(range(len(model.config.pairing)))
    return model.config.pairing_stability if aligned else 0.0
