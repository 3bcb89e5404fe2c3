"""A hash of a model, whoever runs it: of its weights and of how it divides texts."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from maxmatch.text import fingerprint

if TYPE_CHECKING:
    from maxmatch.model import SetEncoder


class Weight(NamedTuple):
    """A tensor by its name in the model, and its values as bytes. dtype: torch's name of it, "torch.float32"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: memoryview


def model_fingerprint(weights: Iterable[Weight], tokenizers: Mapping[str, Any]) -> str:
    """The hash of these weights, in the order in which they come, and of the tokenizers by their towers."""
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(f"{weight.name} {weight.dtype} {weight.shape}\n".encode())
        digest.update(weight.values)
    for tower, tokenizer in tokenizers.items():
        digest.update(f"{tower} {fingerprint(tokenizer)}\n".encode())
    return digest.hexdigest()


def encoder_fingerprint(model: "SetEncoder") -> str:
    """The hash of a model that torch runs."""
    import torch

    from maxmatch.readers import TextReader

    def values(tensor: torch.Tensor) -> memoryview:
        return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data

    weights = (
        Weight(name, str(tensor.dtype), tuple(tensor.shape), values(tensor))
        for name, tensor in sorted(model.state_dict().items())
    )
    readers = {name: model.tower(name).reader for name in model.towers}
    texts = {name: reader.tokenizer for name, reader in readers.items() if isinstance(reader, TextReader)}
    return model_fingerprint(weights, texts)
