"""Files that are there whole or not at all: written under another name, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def draft(path: Path) -> Path:
    """Where a file is written before it has its name."""
    return path.with_name(f"{path.name}.part")


def sync_folder(folder: Path) -> None:
    """Make the names of the files in a folder last."""
    if os.name != "nt":  # Windows cannot open folders, and needs no such thing
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, that gets its name and replaces an old one only once it is on the disk for good."""
    try:
        with draft(path).open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        draft(path).unlink(missing_ok=True)
        raise
    os.replace(draft(path), path)
    sync_folder(path.parent)
