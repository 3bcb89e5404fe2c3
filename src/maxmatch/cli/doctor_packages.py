"""What the doctor says of packages: those that are needed, those of extras, and whether the difficult ones load."""

import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from maxmatch.cli.finding import Finding
from maxmatch.torchvision import CURE

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_LONGEST_IMPORT = 120  # seconds; a cold disk is slow
_FOR_DEVELOPERS = {"all", "dev", "docs"}
# Native code that can be made for another machine or another torch: package -> what is lost when it does not load.
_DIFFICULT = {
    "lancedb": ("index and search", "pip install --force-reinstall lancedb"),
    "onnxruntime": ("models without torch", "pip install --force-reinstall onnxruntime"),
    "triton": ("the fast kernels on a GPU", "pip install --force-reinstall triton"),
}


def findings(uri: str | None) -> Iterator[Finding]:
    """All of them. uri: of a Milvus server that is to be asked."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    yield from _installed()
    yield _torchvision()
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
    for one in wanted:
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield _required(one)
    for extra in sorted(set(about.metadata.get_all("Provides-Extra") or ()) - _FOR_DEVELOPERS):
        parts = [one for one in wanted if one.marker is not None and one.marker.evaluate({"extra": extra})]
        yield _extra(extra, [one for one in parts if not one.marker or not one.marker.evaluate({"extra": ""})])


def _required(wanted: "Requirement") -> Finding:
    version = _version(wanted.name)
    cure = f"Run: pip install '{_bare(wanted)}'"
    if version is None:
        return Finding(wanted.name, "fail", "not installed.", cure)
    if not wanted.specifier.contains(version, prereleases=True):
        return Finding(wanted.name, "fail", f"{version}, but {wanted.specifier} is needed.", cure)
    return Finding(wanted.name, "ok", version)


def _extra(name: str, wanted: "Sequence[Requirement]") -> Finding:
    found = {one.name: _version(one.name) for one in wanted}
    missing = [one for one, version in found.items() if version is None]
    cure = f"If wanted: pip install 'maxmatch[{name}]'"
    if missing:
        return Finding(f"extra {name}", "note", f"not installed: {', '.join(missing)}.", cure)
    for one in wanted:
        if not one.specifier.contains(found[one.name] or "", prereleases=True):
            detail = f"{one.name} {found[one.name]}, but {one.specifier} is needed."
            return Finding(f"extra {name}", "fail", detail, f"Run: pip install '{_bare(one)}'")
    return Finding(f"extra {name}", "ok", ", ".join(f"{one} {version}" for one, version in found.items()))


def _bare(wanted: "Requirement") -> str:
    return f"{wanted.name}{wanted.specifier}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torchvision() -> Finding:
    """Beside another torch than its own it breaks transformers, and so whatever imports it."""
    if find_spec("torchvision") is None:
        return Finding("torchvision", "ok", "not installed (not needed)")
    well, what = _imported("torchvision")
    return Finding("torchvision", "ok", what) if well else Finding("torchvision", "fail", "broken:", CURE)


def _loads(package: str, use: str, cure: str) -> Finding:
    well, what = _imported(package)
    if well:
        return Finding(f"{package} loads", "ok", what)
    return Finding(f"{package} loads", "fail", f"no: {what}. Without it there is no {use}.", f"Run: {cure}")


def _imported(package: str) -> tuple[bool, str]:
    """Whether a package can be imported, and its version or the last thing it said. In a process of its own: one that
    was made for another machine can end it.
    """
    code = f"import {package}; print(getattr({package}, '__version__', 'yes'))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_LONGEST_IMPORT, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"not imported after {_LONGEST_IMPORT} seconds"
    if done.returncode == 0:
        return True, done.stdout.strip().splitlines()[-1]
    said = done.stderr.strip().splitlines()
    return False, said[-1] if said else f"the process ended with {done.returncode}"


def _milvus(uri: str) -> Finding:
    """Whether a server answers, and which version it is."""
    from maxmatch.search.engine import Place
    from maxmatch.search.engines.milvus_server import server_of

    place = Place(Path(), width=1, settings={"uri": uri, "timeout": 10})
    try:
        server = server_of(place)
        client = server.connect()
        with server.talking():
            version = client.get_server_version(timeout=server.seconds)
        client.close()
    except (ValueError, OSError, ImportError) as error:
        return Finding("milvus server", "fail", str(error))
    return Finding("milvus server", "ok", f"{uri}: Milvus {str(version).removeprefix('v')}")
