"""Launching a Triton kernel again as it was launched before, by the handle of what was compiled.

An ordinary launch looks at every argument to find out which version of the kernel it needs, and at every global
variable: several times what the launch itself takes. While a GPU waits for the host that counts.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

_MOST = 256  # launches that are known: sizes that never come again must not pile up


class Launch:
    """A kernel with its constants (sizes, warps and so on), whose arguments are tensors, then numbers, then sizes."""

    def __init__(self, kernel: Any, **constants: Any) -> None:
        self._kernel, self._constants = kernel, constants
        self._sizes = tuple(constants[name] for name in kernel.arg_names if name in constants)
        self._compiled = isinstance(kernel, triton.JITFunction)  # and not interpreted
        self._known: dict[Any, Callable[..., None]] = {}

    def __call__(self, grid: tuple[int, int, int], tensors: tuple[Tensor, ...], *numbers: int) -> None:
        """What a version of the kernel depends on: the device, types, numbers, and what addresses are multiples of."""
        if not self._compiled:
            self._kernel[grid](*tensors, *numbers, **self._constants)
            return
        places = [tensor.data_ptr() for tensor in tensors]
        key = (
            torch.cuda.current_device(), grid, numbers,
            *[tensor.dtype for tensor in tensors], *[place & 15 for place in places],
        )  # fmt: skip
        again = self._known.get(key)
        if again is not None:
            again(*places, *numbers, *self._sizes)
            return
        made = self._kernel[grid](*tensors, *numbers, **self._constants)
        if isinstance(made, triton.compiler.CompiledKernel):
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[key] = made[grid]
