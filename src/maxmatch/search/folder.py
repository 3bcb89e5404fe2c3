"""The folder of an index: who may write in it, and what may lie in it before."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from maxmatch.files import is_draft, lock
from maxmatch.search.manifest import FILE

LOCK = ".lock"
TABLE = "items.lance"
_LEFT = (LOCK, TABLE, f"{TABLE}.sums", "milvus.json")  # by a `create` that was killed
_PATIENCE = 60.0
_PAUSE = 0.05


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the only one who writes; another one is waited for. The lock goes with the process, however it ends."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        with (folder / LOCK).open("ab") as file:
            try:
                lock(file, folder)
            except ValueError:
                if time.monotonic() > deadline:
                    raise
            else:
                yield
                return
        time.sleep(_PAUSE)


def empty_folder(folder: Path) -> None:
    """Make the folder of a new index. Refuse one that holds an index, or anything but what a `create` that was killed
    has left.
    """
    if (folder / FILE).exists():
        raise FileExistsError(
            f"{folder}: holds an index already. Open it with SetIndex.open, or choose another folder."
        )
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: a file. Choose a new folder for the index.")
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted(path.name for path in folder.iterdir() if not _is_left(path.name))
    if others:
        raise FileExistsError(f"{folder}: holds other files ({others[0]}). Choose an empty or a new folder.")


def _is_left(name: str) -> bool:
    return name in _LEFT or is_draft(name, FILE) or is_draft(name, "milvus.json")
