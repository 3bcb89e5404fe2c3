"""The machine: its cores, its memory, what compiled code of ours can run, and a torchvision that does not fit torch."""

import ctypes
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

_MACHINE = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")
_HEAPS = -8  # M_ARENA_MAX of glibc's mallopt


def free_memory() -> int | None:
    """Bytes: the machine's, or what a container's limit leaves where that is less. None where it is not known."""
    try:
        fields = dict(line.split(":", 1) for line in _MACHINE.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None
    try:
        limit, used = ((_CONTAINER / name).read_text().strip() for name in ("memory.max", "memory.current"))
        notes = dict(line.split() for line in (_CONTAINER / "memory.stat").read_text().splitlines())
    except OSError:
        return free
    if limit == "max":
        return free
    # Cached file pages count as used, but are freed when memory is needed.
    kept = int(notes.get("inactive_file", 0))
    return min(free, max(0, int(limit) - int(used) + kept))


def usable_cores(most: int | None = None) -> int:
    """The cores that this process may use, at most so many."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if most is None else min(cores, most)


@cache
def optional_module(name: str) -> ModuleType | None:
    """Compiled code of ours; None where what compiles it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None
    except RuntimeError as error:  # Numba's, where it may write to no cache
        cure = "Set NUMBA_CACHE_DIR to a folder that can be written to."
        warnings.warn(f"large jobs run slower than they could: {error}. {cure}", RuntimeWarning, stacklevel=2)
        return None


def return_memory() -> None:
    """Give freed memory back to the system. glibc keeps it, for every thread that ever used much; others do not."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def use_few_heaps(heaps: int = 2) -> None:
    """Have all threads share some heaps, before they are started. glibc gives each thread its own, which keeps what was
    once used: of a server with 100,000 photos a quarter of its memory. Other systems do not.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_HEAPS, heaps)


TORCHVISION_CURE = (
    "the installed torchvision does not fit this torch, and breaks transformers with it. MaxMatch does not need it. "
    "Run: pip uninstall torchvision"
)


@contextmanager
def torchvision_errors_explained() -> Iterator[None]:
    """Report a failure that torchvision causes as such, in place of the error of transformers."""
    try:
        yield
    except Exception as error:
        if torchvision_caused(error):
            raise ImportError(TORCHVISION_CURE) from error
        raise


def torchvision_caused(error: BaseException) -> bool:
    """Whether an error, or one that led to it, comes from importing a broken torchvision."""
    one: BaseException | None = error
    seen = set[int]()  # causes go in a circle where a library raises an error again, as gRPC does
    while one is not None and id(one) not in seen:
        files = (frame.f_code.co_filename.replace("\\", "/") for frame, _ in walk_tb(one.__traceback__))
        if any("/torchvision/" in file for file in files) or "operator torchvision::" in str(one):
            return True
        seen.add(id(one))
        one = one.__cause__ or one.__context__
    return False
