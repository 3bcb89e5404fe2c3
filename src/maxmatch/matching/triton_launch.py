"""Launching a Triton kernel again as it was launched before, by the handle of what was compiled.

An ordinary launch looks at every argument to find out which version of the kernel it needs, and asks the driver about
every address: several times what the launch itself takes. While a GPU waits for the host that counts.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

_MOST = 256  # launches that are known: sizes that never come again must not pile up

Grid = tuple[int] | tuple[int, int] | tuple[int, int, int]


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program can have; Hopper's where Triton interprets."""
    if device.type != "cuda":
        return 227 * 1024
    return int(triton.runtime.driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"])


class Launch:
    """A kernel whose arguments are tensors, then numbers, then sizes that are constants (`tl.constexpr`)."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled = isinstance(kernel, triton.JITFunction)  # and not interpreted
        self._known: dict[Any, tuple[Callable[..., None], list[Any]]] = {}

    def __call__(self, grid: Grid, tensors: tuple[Tensor, ...], numbers: tuple[int, ...], **constants: Any) -> None:
        """constants: the sizes, in their order, and options such as `num_warps`."""
        if not self._compiled:
            self._kernel[grid](*tensors, *numbers, **constants)
            return
        places = [tensor.data_ptr() for tensor in tensors]
        # All that a version of the kernel depends on, and more. Of addresses: whether they are multiples of 16.
        key = (
            torch.cuda.current_device(), grid, numbers, *constants.items(),
            *[tensor.dtype for tensor in tensors], *[tensor.is_cuda for tensor in tensors],
            *[place & 15 for place in places],
        )  # fmt: skip
        known = self._known.get(key)
        if known is not None:
            again, sizes = known
            again(*places, *numbers, *sizes)
            return
        made = self._kernel[grid](*tensors, *numbers, **constants)
        if isinstance(made, triton.compiler.CompiledKernel):
            if len(self._known) >= _MOST:
                self._known.clear()
            sizes = [constants[name] for name in self._kernel.arg_names[len(tensors) + len(numbers) :]]
            self._known[key] = made[(*grid, 1, 1)[:3]], sizes
