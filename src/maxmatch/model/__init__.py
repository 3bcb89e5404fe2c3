"""Models: from a config to a SetEncoder, its checkpoints, and the same model in NumPy and ONNX."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maxmatch.model.encoder import Encoded, Explanation, Head, Look, Pair, SetEncoder, Tower

__all__ = ["Encoded", "Explanation", "Head", "Look", "Pair", "SetEncoder", "Tower"]


def __getattr__(name: str) -> Any:  # imported when first used: it loads torch
    if name not in __all__:
        raise AttributeError(f"module 'maxmatch.model' has no attribute {name!r}")
    return getattr(import_module("maxmatch.model.encoder"), name)
