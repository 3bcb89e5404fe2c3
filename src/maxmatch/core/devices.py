"""Devices: the one a user names or the best available, a processor's threads, work in parallel on a GPU, float32 under
autocast, and a workaround for a race in MKL.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from threading import Thread
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

_MOST_AT_ONCE = 16  # batches: each takes memory, and Python's lock between its operations


def chosen_device(name: str | torch.device | None = None) -> torch.device:
    """The device of that name; by default a GPU where there is one, else the CPU. ValueError where it is not there."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: expected cpu, cuda, cuda:1 … or mps, got {name!r}.") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {name}: torch sees no GPU here. Ask `maxmatch doctor` why; cpu works anywhere.")
        count = torch.cuda.device_count()
        if device.index is not None and device.index >= count > 0:
            raise ValueError(f"device {name}: there are {count}, cuda:0 to cuda:{count - 1}. Name one of them.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device {name}: torch sees no Apple GPU here. Leave --device out, or use cpu.")
    return device


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A small array on the device. A GPU copies it in its turn: nobody waits for the work that is queued before it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def free_memory_of(device: torch.device) -> int | None:
    """Bytes that a GPU has free, with what torch keeps in reserve there. None for other devices."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


@contextmanager
def aside(*inputs: Tensor) -> Iterator[None]:
    """On a GPU, run this in parallel with what follows, until `join`: for work that does not fill it by itself."""
    if not inputs[0].is_cuda:
        yield
        return
    stream = _side_stream(inputs[0].device)
    stream.wait_stream(torch.cuda.current_stream(inputs[0].device))
    with torch.cuda.stream(stream):
        for tensor in inputs:
            tensor.record_stream(stream)  # their memory is not reused before this stream is done with it
        yield


def join(device: torch.device) -> None:
    """Wait, on the device, for what runs aside. What that made must be kept until the work with it is queued."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_side_stream(device))


def on_its_device(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which launches kernels of ours, with the device of its first tensor as the current one, for there
    they are launched. To enter a device takes microseconds, so it is asked first. A way back needs none of this:
    autograd sees to it.
    """

    @wraps(function)
    def there(*arguments: P.args, **options: P.kwargs) -> T:
        first: Any = arguments[0]
        place = (first if isinstance(first, Tensor) else first[0]).get_device()  # −1: the CPU
        if place < 0 or place == torch.cuda.current_device():
            return function(*arguments, **options)
        with torch.cuda.device(place):
            return function(*arguments, **options)

    return there


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def batches_at_once(device: torch.device) -> int:
    """How many batches are best encoded at the same time, each by a thread of its own. On a processor as many as torch
    has threads: they would wait for each other after every operation on one batch. Autocast holds in one thread alone.
    """
    if device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return 1
    return min(torch.get_num_threads(), _MOST_AT_ONCE)


@contextmanager
def sharing_threads(count: int) -> Iterator[Callable[[Callable[P, T]], Callable[P, T]]]:
    """Gives what makes functions that `count` threads may call at the same time: each computes in inference mode, with
    its share of torch's threads. Both are settings of a thread.
    """
    threads = torch.get_num_threads()

    def shared(function: Callable[P, T]) -> Callable[P, T]:
        def of_one(*arguments: P.args, **options: P.kwargs) -> T:
            torch.set_num_threads(max(threads // count, 1))
            with torch.inference_mode():
                return function(*arguments, **options)

        return of_one if count > 1 else function

    try:
        yield shared
    finally:
        if count > 1:
            torch.set_num_threads(threads)  # with which threads to come begin


def use_threads(count: int, others: int) -> None:
    """Compute with `count` of torch's threads in this thread of Python. Threads to come begin with `others`: torch has
    one number for all of them, so it is set once more, by a thread that ends.
    """
    torch.set_num_threads(count)
    assert torch.get_num_threads() == count  # asked, so that it stays: a thread takes its number when it first needs it
    last = Thread(target=torch.set_num_threads, args=(others,))
    last.start()
    last.join()


def in_float32(function: Callable[P, T]) -> Callable[P, T]:
    """The function on its floating-point tensors in float32 (or float64, where they are), also under autocast. In
    bfloat16 the differences between close vectors would be lost.
    """

    @wraps(function)
    def precise(*arguments: P.args, **options: P.kwargs) -> T:
        first = next((value for value in (*arguments, *options.values()) if isinstance(value, Tensor)), None)
        with torch.autocast("cpu" if first is None else first.device.type, enabled=False):
            named = {name: _at_least_float(value) for name, value in options.items()}
            return function(*map(_at_least_float, arguments), **named)

    return precise


def _at_least_float(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(torch.promote_types(value.dtype, torch.float32)) if floating else value


MKL_FUNCTIONS = (
    "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma",
    "log", "log10", "log1p", "log2", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


def _call_mkl_once() -> None:
    """Make the first call of each of torch's elementwise functions here, in one thread.

    MKL chooses its code for a function in that function's first call. Where several threads make it at once, one of
    them may silently get code that is right to twelve bits only: scores were wrong by 2e-5 once
    (https://github.com/pytorch/pytorch/issues/188792; docs/log.md has the measurement).
    """
    for name in MKL_FUNCTIONS:
        for dtype in (torch.float32, torch.float64):
            getattr(torch, name)(torch.ones(1, dtype=dtype, device="cpu"))


_call_mkl_once()
