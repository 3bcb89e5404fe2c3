"""What the doctor says of the machine: processors, memory, disks, and a browser for the tests of the page."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from maxmatch.cli.finding import Finding
from maxmatch.memory import free_memory

BROWSER_CURE = "apt-get install chromium (or set MAXMATCH_CHROMIUM to the path of another Chromium)"
_GIB = 2**30
_LITTLE_DISK, _LITTLE_MEMORY, _LITTLE_SHARED = 2 * _GIB, 2 * _GIB, _GIB
_SHARED = Path("/dev/shm")


def findings() -> Iterator[Finding]:
    """All of them."""
    yield from _devices()
    yield _memory()
    if _SHARED.is_dir():
        yield _shared_memory()
    for name, folder in {"disk here": Path.cwd(), "disk for temporary files": Path(tempfile.gettempdir())}.items():
        yield _disk(name, folder)
    yield _browser()


def chromium_path() -> str | None:
    """The path of a Chromium, for the tests of the page."""
    given = os.environ.get("MAXMATCH_CHROMIUM")
    names = [given] if given else ["chromium", "chromium-browser", "google-chrome"]
    return next((path for path in map(shutil.which, names) if path), None)


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a broken torch can raise anything
        detail = f"torch cannot be imported ({error})."
        yield Finding("devices", "fail", detail, "Run: pip install --force-reinstall -c constraints.txt torch")
        return
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("cpu", "ok", f"{usable} cores, torch uses {torch.get_num_threads()}")
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        yield Finding(f"cuda:{index}", "ok", f"{about.name}, {about.total_memory / _GIB:.0f} GiB")
    if torch.backends.mps.is_available():
        yield Finding("mps", "ok", "Apple GPU")
    elif not torch.cuda.is_available():
        yield _no_gpu(torch.version.cuda, shutil.which("nvidia-smi") is not None)


def _no_gpu(made_for_cuda: str | None, has_driver: bool) -> Finding:
    """Why there is no GPU: none, or one that torch does not see."""
    if not has_driver:
        return Finding("gpu", "note", "none found: everything runs on the CPU")
    if made_for_cuda is None:
        detail = "this machine has NVIDIA's driver, but this torch was made for the CPU alone."
        return Finding("gpu", "note", detail, "Install a torch for CUDA.")
    detail = f"this machine has NVIDIA's driver, but torch (CUDA {made_for_cuda}) sees no GPU."
    return Finding("gpu", "note", detail, "Run nvidia-smi: is the driver too old, or CUDA_VISIBLE_DEVICES empty?")


def _memory() -> Finding:
    free = free_memory()
    if free is None:
        return Finding("memory", "note", "unknown on this system")
    little = free < _LITTLE_MEMORY
    cure = "Use smaller batches (train.batch_size=…, --batch-size), or end other programs." if little else ""
    return Finding("memory", "note" if little else "ok", f"{free / _GIB:.1f} GiB free", cure)


def _shared_memory() -> Finding:
    """Batches go through it from the processes that read pictures; containers often have 64 MB of it."""
    total = shutil.disk_usage(_SHARED).total
    if total >= _LITTLE_SHARED:
        return Finding("shared memory", "ok", f"{total / _GIB:.1f} GiB")
    cure = "Give the container more (docker run --shm-size=8g), or read without processes: train.workers=0."
    return Finding("shared memory", "note", f"{total / 2**20:.0f} MiB: little for processes that read pictures.", cure)


def _disk(name: str, folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    detail = f"{free / _GIB:.1f} GiB free in {folder}"
    if not os.access(folder, os.W_OK):
        return Finding(name, "note", f"{detail}, which cannot be written to.", "Say where results go, with --out.")
    if free < _LITTLE_DISK:
        return Finding(name, "note", f"{detail}: little for runs and indexes.", "Free some, or name another disk.")
    return Finding(name, "ok", detail)


def _browser() -> Finding:
    found = chromium_path()
    if found is not None:
        return Finding("browser", "ok", found)
    detail = "no Chromium: `make test` leaves out the tests of the page; all else works."
    return Finding("browser", "note", detail, f"For developers: {BROWSER_CURE}")
