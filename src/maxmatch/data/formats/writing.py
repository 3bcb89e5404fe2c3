"""Data sets are written whole or not at all, and what an interrupted write has done is kept for the next.

A data set grows in a hidden folder beside its place, `.NAME.partial`, which is renamed when all is done. Every file
in it was itself written under another name, so that whatever is there is whole.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch.data.items import IMAGE, TEXT, Items, Split
from maxmatch.files import is_draft, lock, sync, write_whole

MANIFEST = "maxmatch.json"
PARTIAL = ".partial"
Advance = Callable[[int], object]
_SAMPLE = 16  # items by which is judged whether two data sets are the same, where all would take too long


def quietly(count: int) -> None:
    """No sign of progress."""


def write_folder(
    path: Path,
    format: str,
    splits: Mapping[str, Split],
    fill: Callable[[Path], None],
    advance: Advance,
    **options: object,
) -> None:
    """Have `fill` fill a folder, which has the name `path` when all is done. Where the same data are there already,
    nothing happens; where a write of them was interrupted, the folder holds what that one did.

    options: whatever else decides what the files will be.
    """
    path = path.expanduser().resolve()
    manifest = _manifest(format, splits, options)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        if not path.is_dir() or _content(path) != manifest["content"]:
            raise FileExistsError(f"{path}: is there and holds something else. Give a new folder, or remove this one.")
        advance(sum(len(split[IMAGE]) for split in splits.values()))
        return
    draft = path.with_name(f".{path.name}{PARTIAL}")
    if draft.exists() and _content(draft) != manifest["content"]:
        _discard(draft)
    draft.mkdir(parents=True, exist_ok=True)
    if not (draft / MANIFEST).exists():
        write_whole(draft / MANIFEST, json.dumps(manifest, indent=2))
    with (draft / MANIFEST).open("r+b") as file:
        lock(file, path)
        fill(draft)
        for folder, _, _ in os.walk(draft):
            sync(Path(folder))
        if path.exists():
            path.rmdir()
        os.rename(draft, path)
    sync(path.parent)


def plain(value: object) -> Any:
    """What JSON does not know, as what it does: numpy's numbers and arrays."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise ValueError(f"metadata: expected texts, numbers, lists and dicts, got {type(value).__name__}. Convert it.")


def _discard(draft: Path) -> None:
    """Remove what a write of other data left behind; never a folder that is somebody's own."""
    if _content(draft) is None and any(not is_draft(other.name, MANIFEST) for other in draft.iterdir()):
        raise FileExistsError(f"{draft}: expected what an interrupted write left behind. Move it elsewhere.")
    shutil.rmtree(draft)


def _look(items: Items) -> list[object]:
    """What tells items other than texts from others: the size of every file, or the content of a few."""
    if not len(items):
        return []
    if isinstance(items.values[0], Path):
        return [_size(value) for value in items.values]
    numbers = np.unique(np.linspace(0, len(items) - 1, _SAMPLE).astype(np.int64)).tolist()
    return [_mark(items.values[number]) for number in numbers]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None  # said when the file is copied


def _mark(value: object) -> object:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else str(value)


def _content(folder: Path) -> str | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return str(manifest["content"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _manifest(format: str, splits: Mapping[str, Split], options: Mapping[str, object]) -> dict[str, Any]:
    """What a folder says about itself. Its `content` differs where texts, ids, groups or metadata do, or the sizes of
    files, or some of the features, at the price of a look at each file.
    """
    digest = hashlib.sha256()

    def take(*parts: object) -> None:
        digest.update(json.dumps(parts, default=plain).encode() + b"\n")

    take(format, sorted(options.items()))
    for name, split in splits.items():
        for modality, items in split.items.items():
            take(name, modality, len(items), list(items.ids), items.groups, items.metadata and list(items.metadata))
            take(list(items.values) if modality == TEXT else _look(items))
    return {
        "written_by": "maxmatch",
        "format": format,
        "splits": {
            name: {modality: len(items) for modality, items in split.items.items()} for name, split in splits.items()
        },
        "content": digest.hexdigest(),
    }
