"""Launch a kernel for a GPU that is not there, several times: `python launched_kernels.py`. Prints, as JSON, what was
handed to the driver in each launch. Apart from the tests, in which Triton interprets.
"""

import json
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel

from maxmatch.matching import triton_launch
from maxmatch.matching.triton_backend import _blocks


class NoGPU:
    """As much of a driver as a launch asks for."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def launches() -> list[dict[str, Any]]:
    """Of one kernel by `Launch`: with sizes and addresses that are new, known, and new again."""
    handed: list[list[Any]] = []
    ordinary: list[int] = []
    triton.runtime.driver.set_active(NoGPU())
    torch.cuda.current_device = lambda: 0
    CompiledKernel._init_handles = lambda self: None
    CompiledKernel.run = property(lambda self: lambda *given: handed.append([self.hash, *given]))
    run = triton.JITFunction.run

    def counted(self: Any, *given: Any, **options: Any) -> Any:
        ordinary.append(1)
        return run(self, *given, **options)

    triton.JITFunction.run = counted
    launch = triton_launch.Launch(_blocks)
    numbers = torch.zeros(256)
    found = []
    for cosines, scores, columns in (
        (numbers[:64], numbers[64:68], 2),
        (numbers[128:192], numbers[192:196], 2),  # elsewhere
        (numbers[:32], numbers[64:66], 1),  # of another size
        (numbers[1:65], numbers[65:69], 2),  # not aligned
        (numbers[:64], numbers[64:68], 2),
        (numbers[1:65], numbers[65:69], 2),
    ):
        before = len(ordinary)
        launch((2, 1), (cosines, scores), (columns, columns, 1), BACK=False, BLOCK=128, num_warps=4)
        kernel, *given = handed[-1]
        places = [one.data_ptr() if isinstance(one, torch.Tensor) else one for one in given[9:11]]
        right = places == [cosines.data_ptr(), scores.data_ptr()] and given[:4] == [2, 1, 1, 7]
        found.append({"kernel": kernel, "ordinary": len(ordinary) > before, "right": right, "numbers": given[11:]})
    return found


if __name__ == "__main__":
    print(json.dumps(launches()))
