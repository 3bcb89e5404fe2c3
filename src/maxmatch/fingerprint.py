"""A hash of a model, whoever runs it: of its weights and of how it divides texts."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from maxmatch.text import fingerprint


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
