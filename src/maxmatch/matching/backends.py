"""Which faster code is available for a job on this machine. Without it, the torch code gives the same results."""

import sys
import warnings
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor

_COMPILED = "maxmatch.matching.numba_backend"
_WORTH_COMPILING = 1_000_000


def kernels_for(cosines: Tensor) -> Any | None:
    """The GPU kernels, where the tensor is float32 on a CUDA device and Triton is installed."""
    return _module("maxmatch.matching.triton_backend") if cosines.is_cuda and cosines.element_size() <= 4 else None


def compiled_for(sets: Tensor, pairs: int) -> Any | None:
    """The compiled CPU code, for at most float32 on the CPU, where Numba is installed.

    A job of few pairs does not load it (plain torch is done before), but uses it when an earlier one has.
    """
    if sets.device.type != "cpu" or sets.element_size() > 4:
        return None
    worth_it = pairs >= _WORTH_COMPILING or _COMPILED in sys.modules
    return _module(_COMPILED) if worth_it else None


@cache
def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None
    except RuntimeError as error:  # Numba's, where it may write to no cache
        cure = "Set NUMBA_CACHE_DIR to a folder that can be written to."
        warnings.warn(f"large jobs are slower than need be: {error}. {cure}", RuntimeWarning, stacklevel=2)
        return None
