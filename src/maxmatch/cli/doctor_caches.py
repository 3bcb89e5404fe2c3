"""What the doctor says of caches, and of the model that ships."""

import os
from collections.abc import Iterator
from pathlib import Path

import maxmatch
from maxmatch.cli.finding import Finding
from maxmatch.files import user_cache

_GIB = 2**30


def findings() -> Iterator[Finding]:
    """All of them."""
    yield _hub()
    yield _compiled()
    yield _photos()
    yield _shipped(Path(maxmatch.__file__).parent / "models")


def _hub() -> Finding:
    """Where models of the Hugging Face Hub are kept once fetched."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE
    except ImportError as error:
        return Finding("hub cache", "fail", f"{error}.", "Run: pip install huggingface_hub")
    place = Path(HF_HUB_CACHE)
    models = len(list(place.glob("models--*"))) if place.is_dir() else 0
    offline = "; HF_HUB_OFFLINE is set: only these can be loaded" if HF_HUB_OFFLINE else ""
    return _cache("hub cache", place, f"{models} models{offline}", "set HF_HOME to a folder that can")


def _compiled() -> Finding:
    """Where Numba keeps the compiled matching: beside the code, or in the user's cache."""
    beside = Path(maxmatch.__file__).parent / "matching" / "__pycache__"
    given = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(given)] if given else [beside, user_cache() / "numba"]
    for place in places:
        if _writable(place):
            done = any(place.rglob("compiled._match_rows*.nbc")) if place.is_dir() else False
            what = "the matching is compiled" if done else "compiled at the first large job, in two seconds"
            return Finding("numba cache", "ok", f"{place}: {what}")
    cure = "Set NUMBA_CACHE_DIR to a folder that can."
    return Finding("numba cache", "note", f"{places[-1]}: cannot be written to: large jobs on the CPU are slow.", cure)


def _photos() -> Finding:
    """Where `maxmatch search WORDS FOLDER` keeps the indexes of folders."""
    place = user_cache() / "maxmatch" / "photos"
    folders = len(list(place.iterdir())) if place.is_dir() else 0
    return _cache("photo indexes", place, f"{folders} folders", "set XDG_CACHE_HOME to a folder that can")


def _cache(name: str, place: Path, holds: str, cure: str) -> Finding:
    if not _writable(place):
        return Finding(name, "note", f"{place}: cannot be written to.", f"Make it writable, or {cure}.")
    if not place.is_dir():
        return Finding(name, "ok", f"{place}: not there yet")
    size = sum(file.lstat().st_size for file in place.rglob("*") if file.is_file() and not file.is_symlink())
    return Finding(name, "ok", f"{place}: {holds}, {size / _GIB:.1f} GiB")


def _writable(place: Path) -> bool:
    """Whether a folder can be written to, or be made."""
    there = next((one for one in (place, *place.absolute().parents) if one.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _shipped(models: Path) -> Finding:
    """The models in the package, whole or not."""
    found = sorted(path.parent for path in models.glob("*/config.json"))
    if not found:
        detail = "no trained model is in this installation."
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
