"""Files that are whole or not there."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """Write a text file under another name, put it on the disk and rename it."""
    draft = path.with_name(f".{path.name}.writing-{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        sync(draft)
        os.replace(draft, path)
    except OSError as error:
        raise OSError(error.errno, f"{path}: could not be written ({error}). Free some space or permit it.") from error
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)
