"""Atomic writes and locks: a file is written under another name, synced, then renamed, so that it is never partial."""

import errno
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from typing import IO, Any

_BUSY = "{}: another process is writing there. Wait for it, or stop it first."
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP)  # a file system without locks: every process may write


class BusyError(ValueError):
    """Another process holds the lock."""


def draft(path: Path, writer: str = "") -> Path:
    """The hidden name beside a file under which it is written at first. writer: distinguishes processes that write the
    same file at the same time.
    """
    return path.with_name(f".{path.name}{writer and f'.{writer}'}.part")


def is_draft(name: str, of: str) -> bool:
    """Whether a name is that of a draft of a file."""
    return name.startswith(f".{of}.") and name.endswith(".part")


def user_cache() -> Path:
    """The user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def user_data() -> Path:
    """The user's data folder: for what must not be lost when caches are emptied."""
    given = os.environ.get("XDG_DATA_HOME")
    if given:
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path.home() / ".local" / "share"


def content_hash(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal: the same under every name."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
def whole(path: Path, synced: bool = True) -> Iterator[BufferedWriter]:
    """A file to write that gets its name, and replaces an old file, only once it is complete and on the disk. Its
    folder is made where there is none. Where several processes write it at once, the last one to finish wins.

    synced: False does not wait for the disk. A power cut may then leave a file that is cut short.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file, place = _own_draft(path)
    with file:  # remove the draft before the lock is released: another process could reuse it
        try:
            yield file
            file.flush()
            if synced:
                os.fsync(file.fileno())
            _release(file)
            os.replace(place, path)
        except BaseException:
            _release(file)
            place.unlink(missing_ok=True)
            raise
    if synced:
        sync(path.parent)


def _release(file: IO[bytes]) -> None:
    if sys.platform == "win32":  # cannot rename or remove an open file, and has no locks here
        file.close()


def _own_draft(path: Path) -> tuple[BufferedWriter, Path]:
    """An empty file that no other process writes, and its path. The draft of a killed process is reused, so that drafts
    do not pile up; only while another process is writing is a second one made.
    """
    place = draft(path)
    file = open(place, "wb", opener=_keeping)  # noqa: SIM115 (closed by the caller)
    locked = _locked(file)
    try:
        if locked and os.path.samestat(os.fstat(file.fileno()), os.stat(place)):
            file.truncate()
            return file, place
    except FileNotFoundError:  # it got its name just now
        pass
    file.close()
    if locked is None:  # no locks here: each writer uses a name of its own
        place.unlink(missing_ok=True)
    place = draft(path, secrets.token_hex(4))
    return place.open("xb"), place


def _keeping(path: str, flags: int) -> int:
    """Open a file without emptying it: it may be another process's."""
    return os.open(path, flags & ~os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o666)


@contextmanager
def usual_permissions(path: Path) -> Iterator[None]:
    """A new file that a library writes gets the permissions of any other (the umask); safetensors makes it private."""
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


def lock(file: IO[bytes], path: Path) -> None:
    """Lock a path for this process as long as the file is open. BusyError where another process holds it."""
    if _locked(file) is False:
        raise BusyError(_BUSY.format(path))


@contextmanager
def locked(folder: Path, patience: float = 0) -> Iterator[None]:
    """Be the only process that writes in a folder, by the file `.lock` in it. patience: how many seconds to wait for
    another one before BusyError. A process that ends, however it does, holds no lock.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock", timeout=patience)
    try:
        lock.acquire()
    except Timeout as error:
        raise BusyError(_BUSY.format(folder)) from error
    except (OSError, NotImplementedError) as error:  # filelock's two ways to report a file system without locks
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()


def _locked(file: IO[bytes]) -> bool | None:
    """Whether this process now holds the lock; None on a system without locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in _NO_LOCKS else False
    return True


def write_whole(path: Path, text: str) -> None:
    """Write a text file, as `whole` does."""
    try:
        with whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise OSError(
            error.errno, f"{path}: could not be written ({error.strerror or error}). Free some space or permit it."
        ) from error


def append_line(path: Path, line: str) -> None:
    """Append a line to a text file and wait until it is on the disk. Several processes may do so at once: each line
    stays whole. A line that a killed process left unfinished is ended first, so that it spoils no other.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        _wait_for_lock(file)
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        left = memoryview(f"{line}\n".encode())
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
        _release(file)


def _wait_for_lock(file: IO[bytes]) -> None:
    """Until this process alone may write; the lock ends with the process or the file. Without locks, go on at once:
    a file opened to append takes each short line whole.
    """
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


METRICS = "metrics.jsonl"
"""The records of a run, one per line."""


def read_metrics(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The records of a run, of one kind or all."""
    path = folder / METRICS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [record for record in map(parsed_record, lines) if record is not None]
    return [record for record in records if kind in (None, record["kind"])]


def parsed_record(line: str) -> dict[str, Any] | None:
    """A record; None for a line that a crash cut short."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "step" in record else None
