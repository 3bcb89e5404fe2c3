"""`maxmatch doctor`: check the installation and the machine, and show how to fix problems."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import maxmatch
from maxmatch.core.files import user_cache
from maxmatch.core.machine import TORCHVISION_CURE, free_memory, usable_cores
from maxmatch.model.names import MODELS, SHIPPED, cached_models, has_newer, interrupted_downloads

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. status: "note" works, but is worth knowing. cure: what to do, where anything is."""

    name: str
    status: Literal["ok", "note", "fail"]
    detail: str
    cure: str = ""


_LONGEST_IMPORT = 120  # seconds; a cold disk is slow
_FOR_DEVELOPERS = {"all", "dev", "docs"}
# Native code that can be made for another machine or another torch: package -> what is lost when it does not load.
_DIFFICULT = {
    "lancedb": ("index and search", "pip install --force-reinstall lancedb"),
    "onnxruntime": ("models without torch", "pip install --force-reinstall onnxruntime"),
    "triton": ("the fast kernels on a GPU", "pip install --force-reinstall triton"),
}


def package_findings(uri: str | None) -> Iterator[Finding]:
    """Required packages, extras, and whether the difficult ones load. uri: of a Milvus server to ask."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    yield from _installed()
    yield _torchvision()
    yield _avif()
    for package, (use, cure) in _DIFFICULT.items():
        if find_spec(package) is not None:
            yield _loads(package, use, cure)
    if uri is not None:
        yield _milvus(uri)


def _installed() -> Iterator[Finding]:
    """The package itself, what it needs, and its extras, as its metadata has them."""
    try:
        about = metadata.distribution("maxmatch")
    except metadata.PackageNotFoundError:
        yield Finding("maxmatch", "note", "runs from its sources; what it needs was not checked.", "pip install .")
        return
    yield Finding("maxmatch", "ok", about.version)
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield Finding("packaging", "fail", "not installed; no version was checked.", "Run: pip install packaging")
        return
    wanted = [Requirement(line) for line in about.requires or ()]
    always = [one for one in wanted if _applies(one, "")]
    yield from map(_required, always)
    for extra in sorted(set(about.metadata.get_all("Provides-Extra") or ()) - _FOR_DEVELOPERS):
        yield _extra(extra, [one for one in wanted if one not in always and _applies(one, extra)])


def _applies(wanted: "Requirement", extra: str) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def _required(wanted: "Requirement") -> Finding:
    version = _version(wanted.name)
    if version is not None and wanted.specifier.contains(version, prereleases=True):
        return Finding(wanted.name, "ok", version)
    detail = "not installed." if version is None else f"{version}, but {wanted.specifier} is needed."
    return Finding(wanted.name, "fail", detail, f"Run: pip install '{wanted.name}{wanted.specifier}'")


def _extra(name: str, wanted: "Sequence[Requirement]") -> Finding:
    missing = [one.name for one in wanted if _version(one.name) is None]
    if missing:
        cure = f"If wanted: pip install 'maxmatch[{name}]'"
        return Finding(f"extra {name}", "note", f"not installed: {', '.join(missing)}.", cure)
    found = [_required(one) for one in wanted]
    for one in found:
        if one.status == "fail":
            return replace(one, name=f"extra {name}", detail=f"{one.name} {one.detail}")
    return Finding(f"extra {name}", "ok", ", ".join(f"{one.name} {one.detail}" for one in found))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _avif() -> Finding:
    from PIL import features

    if features.check("avif"):
        return Finding("AVIF", "ok", "pictures can be read")
    return Finding("AVIF", "note", "this Pillow cannot read AVIF pictures.", "Run: pip install -U 'Pillow>=11.3'")


def _torchvision() -> Finding:
    """Next to a torch it was not built for, it breaks transformers and whatever imports that."""
    if find_spec("torchvision") is None:
        return Finding("torchvision", "ok", "not installed (not needed)")
    well, what = _imported("torchvision")
    return Finding("torchvision", "ok", what) if well else Finding("torchvision", "fail", "broken:", TORCHVISION_CURE)


def _loads(package: str, use: str, cure: str) -> Finding:
    well, what = _imported(package)
    if well:
        return Finding(f"{package} loads", "ok", what)
    return Finding(f"{package} loads", "fail", f"no: {what}. Without it there is no {use}.", f"Run: {cure}")


def _imported(package: str) -> tuple[bool, str]:
    """Whether a package can be imported, and its version or the last line of the error. In a process of its own, which
    a package built for another machine may crash.
    """
    code = f"import {package}; print(getattr({package}, '__version__', 'yes'))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_LONGEST_IMPORT, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"not imported after {_LONGEST_IMPORT} seconds"
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    return not done.returncode, lines[-1] if lines else f"the process ended with {done.returncode}"


def _milvus(uri: str) -> Finding:
    """Whether a server answers, and which version it is."""
    from maxmatch.search.engine import Location, engine_function

    place = Location(Path(), width=1, settings={"uri": uri, "timeout": 10})
    try:
        server = engine_function("milvus", "server_of")(place)
        client = server.connect()
        with server.talking():
            version = client.get_server_version(timeout=server.timeout)
        client.close()
    except (ValueError, OSError, ImportError) as error:
        return Finding("milvus server", "fail", str(error))
    return Finding("milvus server", "ok", f"{uri}: Milvus {str(version).removeprefix('v')}")


BROWSER_CURE = "apt-get install chromium (or set MAXMATCH_CHROMIUM to the path of another Chromium)"
_GIB = 2**30
_LITTLE_DISK, _LITTLE_MEMORY, _LITTLE_SHARED = 2 * _GIB, 2 * _GIB, _GIB
_SHARED = Path("/dev/shm")


def machine_findings() -> Iterator[Finding]:
    """Processors, memory, disks, and a browser for the tests of the page."""
    yield from _devices()
    yield _memory()
    if _SHARED.is_dir():
        yield _shared_memory()
    yield _disk("disk here", Path.cwd())
    yield _disk("disk for temporary files", Path(tempfile.gettempdir()))
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
    yield Finding("cpu", "ok", f"{usable_cores()} cores, torch uses {torch.get_num_threads()}")
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
        detail = "this machine has NVIDIA's driver, but this torch is built for the CPU only."
        return Finding("gpu", "note", detail, "Install a torch for CUDA.")
    detail = f"this machine has NVIDIA's driver, but torch (CUDA {made_for_cuda}) sees no GPU."
    return Finding("gpu", "note", detail, "Run nvidia-smi: is the driver too old, or CUDA_VISIBLE_DEVICES empty?")


def _memory() -> Finding:
    free = free_memory()
    if free is None:
        return Finding("memory", "note", "unknown on this system")
    detail = f"{free / _GIB:.1f} GiB free"
    if free >= _LITTLE_MEMORY:
        return Finding("memory", "ok", detail)
    cure = "Use smaller batches (train.batch_size=…, --batch-size), or close other programs."
    return Finding("memory", "note", detail, cure)


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
        cure = "Choose where results are written with --out."
        return Finding(name, "note", f"{detail}, which cannot be written to.", cure)
    if free < _LITTLE_DISK:
        return Finding(name, "note", f"{detail}: little for runs and indexes.", "Free some, or name another disk.")
    return Finding(name, "ok", detail)


def _browser() -> Finding:
    found = chromium_path()
    if found is not None:
        return Finding("browser", "ok", found)
    detail = "no Chromium: `make test` skips the tests of the page; everything else works."
    return Finding("browser", "note", detail, f"For developers: {BROWSER_CURE}")


def cache_findings() -> Iterator[Finding]:
    """Caches, and the model that ships."""
    yield from _hub()
    yield _compiled()
    yield _photos()
    yield _shipped(MODELS)


def _hub() -> Iterator[Finding]:
    """Where models fetched from the Hugging Face Hub are kept, and which of them can be used."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE
    except ImportError as error:
        yield Finding("hub cache", "fail", f"{error}.", "Run: pip install huggingface_hub")
        return
    place = Path(HF_HUB_CACHE)
    models = len(list(place.glob("models--*"))) if place.is_dir() else 0
    offline = "; HF_HUB_OFFLINE is set: only these can be loaded" if HF_HUB_OFFLINE else ""
    yield _cache("hub cache", place, f"{models} models{offline}", "set HF_HOME to a folder that can")
    cached, cut_off = cached_models(), interrupted_downloads()
    if cached:
        detail = ", ".join(f"{one.name} ({one.kind}, {(one.size or 0) / _GIB:.1f} GiB)" for one in cached)
        yield Finding("cached models", "ok", detail)
    if cut_off:
        cure = "Name it with --model while there is a network: what is missing is fetched."
        yield Finding("half-fetched models", "note", f"{', '.join(cut_off)}: the download was interrupted.", cure)


def _compiled() -> Finding:
    """Where Numba keeps the compiled matching: beside the code, or in the user's cache."""
    beside = Path(maxmatch.__file__).parent / "matching" / "__pycache__"
    given = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(given)] if given else [beside, user_cache() / "numba"]
    for place in places:
        if _writable(place):
            done = any(place.rglob("numba_backend._four_rows*.nbc")) if place.is_dir() else False
            what = "the matching is compiled" if done else "compiled at the first large job, in four seconds"
            return Finding("numba cache", "ok", f"{place}: {what}")
    cure = "Set NUMBA_CACHE_DIR to a folder that can."
    return Finding("numba cache", "note", f"{places[-1]}: cannot be written to: large jobs on the CPU are slow.", cure)


_SHOWN = 3


def _photos() -> Finding:
    """Where `maxmatch search WORDS FOLDER` keeps the indexes of folders."""
    place = user_cache() / "maxmatch" / "photos"
    folders = list(place.iterdir()) if place.is_dir() else []
    found = _cache("photo indexes", place, f"{len(folders)} folders", "set XDG_CACHE_HOME to a folder that can")
    old = sorted(filter(_is_outdated, folders))
    if not old or found.status != "ok":
        return found
    first = ", ".join(map(str, old[:_SHOWN])) + (f" and {len(old) - _SHOWN} more" if len(old) > _SHOWN else "")
    cure = f"The next maxmatch search in such a folder replaces its own. To free the space at once, delete {first}."
    return replace(found, status="note", detail=f"{found.detail}, {len(old)} of an older {SHIPPED}.", cure=cure)


def _is_outdated(place: Path) -> bool:
    """Whether the index of a folder was made by a model that shipped before."""
    from maxmatch.search.index_folder import IndexFolderError, read_manifest

    try:
        return has_newer(read_manifest(place / "index").model or "")
    except (IndexFolderError, OSError):
        return False


def _cache(name: str, place: Path, holds: str, cure: str) -> Finding:
    if not _writable(place):
        return Finding(name, "note", f"{place}: cannot be written to.", f"Make it writable, or {cure}.")
    if not place.is_dir():
        return Finding(name, "ok", f"{place}: not created yet")
    size = sum(file.lstat().st_size for file in place.rglob("*") if file.is_file() and not file.is_symlink())
    return Finding(name, "ok", f"{place}: {holds}, {size / _GIB:.1f} GiB")


def _writable(place: Path) -> bool:
    """Whether a folder can be written to, or created."""
    there = next((one for one in (place, *place.absolute().parents) if one.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _shipped(models: Path) -> Finding:
    """The models in the package, complete or damaged."""
    found = sorted(path.parent for path in models.glob("*/config.json"))
    if not found:
        detail = "this installation has no trained model."
        return Finding("shipped model", "note", detail, "Name one with --model, or train one: maxmatch train --list")
    from safetensors import SafetensorError, safe_open

    about = []
    for folder in found:
        weights = folder / "model.safetensors"
        try:
            with safe_open(str(weights), "numpy") as tensors:
                about.append(f"{folder.name}, {len(tensors.keys())} tensors, {weights.stat().st_size / 2**20:.1f} MiB")
        except (OSError, SafetensorError) as error:
            detail = f"{weights}: missing or damaged ({error})."
            return Finding("shipped model", "fail", detail, "Run: pip install --force-reinstall --no-deps maxmatch")
    return Finding("shipped model", "ok", "; ".join(about))


def doctor(
    uri: Annotated[
        str | None,
        typer.Option(help="Also check this Milvus server, e.g. http://localhost:19530.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check the installation: find problems and show how to fix them.

    Checks packages and their versions, a torchvision that does not fit, devices, memory and disk, caches and the models
    in them, index engines, and the model that ships. It changes nothing and, except for --uri, uses no network. The
    exit code is 1 if something is broken. Other remarks, such as an extra that is not installed, are notes.

    Examples:

      maxmatch doctor

      maxmatch doctor --uri http://localhost:19530

      maxmatch doctor --json > report.json
    """
    findings = [*package_findings(uri), *machine_findings(), *cache_findings()]
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{finding.status:<6}{finding.name:<{width}}  {finding.detail} {finding.cure}".rstrip())
        broken = [finding.name for finding in findings if finding.status == "fail"]
        print(
            f"{len(broken)} of {len(findings)} need attention: {', '.join(broken)}."
            if broken
            else "Everything needed is installed."
        )
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)
