"""Which model made a set: a hash of its weights and tokenizers, so that sets of two models are never mixed."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from maxmatch.model.config import ModelConfig
from maxmatch.model.text import fingerprint

if TYPE_CHECKING:
    from maxmatch.model.encoder import SetEncoder


class Weight(NamedTuple):
    """A tensor by its name in the model, and its values as bytes. dtype: torch's name of it, "torch.float32"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: memoryview


def model_fingerprint(weights: Iterable[Weight], tokenizers: Mapping[str, Any]) -> str:
    """The hash of these weights, in this order, and of the tokenizers by their towers."""
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(f"{weight.name} {weight.dtype} {weight.shape}\n".encode())
        digest.update(weight.values)
    for tower, tokenizer in tokenizers.items():
        digest.update(f"{tower} {fingerprint(tokenizer)}\n".encode())
    return digest.hexdigest()


def encoder_fingerprint(model: "SetEncoder") -> str:
    """The hash of a SetEncoder."""
    import torch

    from maxmatch.model.inputs import TextReader

    def values(tensor: torch.Tensor) -> memoryview:
        return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data

    weights = (
        Weight(name, str(tensor.dtype), tuple(tensor.shape), values(tensor))
        for name, tensor in sorted(model.state_dict().items())
    )
    readers = {name: model.tower(name).reader for name in model.towers}
    texts = {name: reader.tokenizer for name, reader in readers.items() if isinstance(reader, TextReader)}
    return model_fingerprint(weights, texts)


@runtime_checkable
class AnyModel(Protocol):
    """What search needs of a model: a `SetEncoder`, or the same run by ONNX Runtime (`maxmatch.model.onnx_runtime`)."""

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


def model_identity(model: AnyModel | str) -> str:
    """A hash of a model's weights and tokenizers. A string (a hash from before, or the name of another library's model)
    is returned as it is; an exported model has the identity of the model it was exported from.
    """
    if isinstance(model, str):
        if not model.strip():
            raise ValueError("model: expected a SetEncoder, its hash or a name, got an empty string.")
        return model
    own = getattr(model, "identity", None)
    if isinstance(own, str):
        return own
    from maxmatch.model.encoder import SetEncoder

    assert isinstance(model, SetEncoder)
    return encoder_fingerprint(model)


def check_same_model(known: str | None, model: AnyModel | str | None) -> None:
    """Refuse sets of another model than the index's. Where either is None there is nothing to compare."""
    if known is None or model is None:
        return
    given = model_identity(model)
    if given != known:
        raise ValueError(
            f"model: this index holds sets of the model {known[:16]}, got those of {given[:16]}: "
            "their vectors cannot be compared. Encode with that model, or make a new index for this one."
        )


def slot_stability(model: AnyModel) -> float | None:
    """How often slot i meets slot i in a true pair, as measured after training; None where it was not measured.

    0 where the slots meet in another order: flattened sets then cannot be searched as one vector.
    """
    if model.config is None or model.config.pairing is None:
        return None
    aligned = model.config.pairing == list(range(len(model.config.pairing)))
    return model.config.pairing_stability if aligned else 0.0
