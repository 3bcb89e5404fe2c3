"""Picture files read by processes, each on a core of its own, into memory that they share with this process.

Threads decode pictures at the same time, but open, convert and copy them one after the other: Python's lock. On many
cores that holds them back. A first process is started afresh, so that it has no threads and knows nothing of GPUs. It
imports what reads pictures, then forks a worker per core. Workers take tasks from one pipe, (slot, place of the file),
and report to another: (slot, 0), or (slot, length of the error that is written where the pixels would be).

Nothing outlives this process: at its end, also by SIGKILL, its pipe to the first process closes, which ends workers;
the memory has no name and goes with the last of them. Where a worker dies, all are ended, and the caller reads on.
"""

import mmap
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

EightBits = Callable[[str | Path], np.ndarray]
"""Reads a file to pixels of eight bits. It can be pickled, and its module loads no torch."""

_RECORD = struct.Struct("<ii")
_READY = _RECORD.pack(-1, 0)
_LEAST = 16_384  # bytes of a slot, so that an error fits into it
MOST_SLOTS = 4096  # so that all tasks fit into a pipe, which holds 64 KiB
_AT_ONCE = 512  # records read at once
_SECONDS = 0.2  # between two looks whether all workers live
_START = "import sys; sys.path[:] = {path!r}; from maxmatch.model.photo_processes import serve; serve({fds!r})"


def available() -> bool:
    """Whether this system has what is needed (Linux), and `sys.executable` is Python itself."""
    return hasattr(os, "memfd_create") and bool(sys.executable) and not getattr(sys, "frozen", False)


class PhotoProcesses:
    """Some processes that read `files[place]` into the memory of a slot (`pixels`). Close them in the end.

    loads: modules to import before the workers are forked: once, not by each of them.
    """

    def __init__(
        self,
        read: EightBits,
        files: Sequence[str | Path],
        slots: int,
        shape: tuple[int, ...],
        workers: int,
        loads: Sequence[str] = (),
    ) -> None:
        from PIL import Image, ImageFile

        assert 0 < slots <= MOST_SLOTS
        limits = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES  # settings of the user's, for all of Python
        self.slots = slots
        self._ready = False
        memory, job = (os.memfd_create(name) for name in ("pixels", "job"))
        self._shape, each = shape, max(int(np.prod(shape)), _LEAST)
        os.truncate(memory, slots * each)
        tasks, self._tasks = os.pipe()
        self._results, results = os.pipe()
        try:
            self._memory = np.ndarray((slots, each), np.uint8, buffer=mmap.mmap(memory, 0))
            with open(job, "wb", closefd=False) as file:
                pickle.dump((read, list(map(str, files)), (slots, each), workers, tuple(loads), limits), file)
            os.lseek(job, 0, os.SEEK_SET)
            fds = job, memory, tasks, results
            self._server = subprocess.Popen(
                [sys.executable, "-c", _START.format(path=sys.path, fds=fds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=fds,
                process_group=0,  # Ctrl-C in a terminal is for this process alone
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        except BaseException:
            os.close(self._tasks)
            os.close(self._results)
            raise
        finally:
            for fd in (job, memory, tasks, results):
                os.close(fd)

    def ready(self) -> bool:
        """Whether the workers are there. False as well where they could not be started."""
        if not self._ready and select.select([self._results], [], [], 0)[0]:
            self._ready = os.read(self._results, _RECORD.size) == _READY
        return self._ready

    def begin(self, slot: int, place: int) -> bool:
        """Have a file read into a slot. False: nobody is left to do it."""
        try:
            os.write(self._tasks, _RECORD.pack(slot, place))
        except BrokenPipeError:
            return False
        return True

    def pixels(self, slot: int) -> UInt8[np.ndarray, "..."]:
        """What was read into a slot: a view of it."""
        return self._memory[slot, : int(np.prod(self._shape))].reshape(self._shape)

    def finished(self) -> Iterator[tuple[int, Exception | None]]:
        """The slots that were filled since the last call, at least one, and the errors of those that were not. None at
        all: the processes have ended.
        """
        for slot, length in _RECORD.iter_unpack(os.read(self._results, _AT_ONCE * _RECORD.size)):
            yield slot, pickle.loads(self._memory[slot, :length].tobytes()) if length else None

    def close(self) -> None:
        """End them."""
        os.close(self._tasks)
        os.close(self._results)
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


def serve(fds: tuple[int, int, int, int]) -> None:
    """What the first process does: fork workers, and end with them when one of them, or the caller, ends."""
    from PIL import Image, ImageFile

    job, memory, tasks, results = fds
    with open(job, "rb") as file:
        read, files, shape, workers, loads, limits = pickle.load(file)
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = limits
    for name in loads:
        __import__(name)
    warnings.simplefilter("ignore")
    slots = np.ndarray(shape, np.uint8, buffer=mmap.mmap(memory, 0))
    pids = []
    try:
        for _ in range(workers):
            pid = os.fork()
            if not pid:
                _work(read, files, slots, tasks, results)
            pids.append(pid)
        os.write(results, _READY)
        os.close(results)
        os.close(tasks)
        while not select.select([0], [], [], _SECONDS)[0] and not os.waitpid(-1, os.WNOHANG)[0]:
            pass
    finally:
        for pid in pids:
            with suppress(ProcessLookupError, ChildProcessError):  # the one that died
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _work(read: EightBits, files: list[str], slots: np.ndarray, tasks: int, results: int) -> None:
    """What a worker does until there are no more tasks. It never returns."""
    try:
        os.close(0)
        while record := os.read(tasks, _RECORD.size):
            slot, place = _RECORD.unpack(record)
            length = 0
            try:
                made = read(files[place]).reshape(-1)
            except Exception as error:
                made = np.frombuffer(_pickled(error), np.uint8)
                length = len(made)
            slots[slot, : len(made)] = made
            os.write(results, _RECORD.pack(slot, length))
    finally:
        os._exit(0)


def _pickled(error: Exception) -> bytes:
    """An error made of its message alone, of the same kind where that can be."""
    said = str(error)[:2000]
    try:
        found = pickle.dumps(type(error)(said))
        if str(pickle.loads(found)) == said:
            return found
    except Exception:
        pass
    return pickle.dumps((OSError if isinstance(error, OSError) else ValueError)(said))
