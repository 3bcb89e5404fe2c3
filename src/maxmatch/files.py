"""Files that are there whole or not at all: written under another name, put on the disk, then renamed."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from typing import IO


def draft(path: Path) -> Path:
    """Where a file is written before it has its name: hidden, beside its place."""
    return path.with_name(f".{path.name}.part")


def user_cache() -> Path:
    """Where this user's programs keep what they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def whole(path: Path) -> Iterator[BufferedWriter]:
    """A file to write, that gets its name, and replaces an old one, only once it is on the disk for good. Its folder is
    made where there is none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with draft(path).open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        draft(path).unlink(missing_ok=True)
        raise
    os.replace(draft(path), path)
    sync(path.parent)


def lock(file: IO[bytes], path: Path) -> None:
    """Be the only process that writes at a path, as long as the file is open. ValueError where another one does."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # a file system that knows no locks
            raise ValueError(f"{path}: another process is writing there. Wait for it, or stop it first.") from error


def write_whole(path: Path, text: str) -> None:
    """Write a text file, as `whole` does."""
    try:
        with whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise OSError(
            error.errno, f"{path}: could not be written ({error.strerror or error}). Free some space or permit it."
        ) from error
