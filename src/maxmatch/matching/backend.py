"""Which faster code there is for a job on this machine. Whatever is missing, the torch code gives the same results."""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor


def kernels_for(cosines: Tensor) -> Any | None:
    """The GPU kernels, where the tensor is float32 on a CUDA device and Triton is installed."""
    return _module("maxmatch.matching.kernels") if cosines.is_cuda and cosines.element_size() <= 4 else None


def compiled_for(product: Tensor) -> Any | None:
    """The compiled CPU code, where the tensor is float32 on the CPU and Numba is installed."""
    is_float_on_cpu = product.device.type == "cpu" and product.is_floating_point() and product.element_size() <= 4
    return _module("maxmatch.matching.compiled") if is_float_on_cpu else None


@cache
def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None
