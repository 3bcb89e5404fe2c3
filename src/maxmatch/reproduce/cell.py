"""Train and measure one job, in a process of its own: `python -m maxmatch.reproduce.cell FOLDER [DEVICE]`.

It goes on where an earlier process stopped. When the process that started it ends, however that came to be, its
standard input is closed; then it saves where it stands and ends too.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from maxmatch.files import lock
from maxmatch.reproduce.jobs import Job, read_job

_PATIENCE = 120.0  # seconds for a process that was left behind to save its state and end
SAID = "maxmatch: "
"""Before the reason of a failure, in the log."""


def work(job: Job, device: str | None = None) -> None:
    """Train what is missing, measure, and write the result."""
    from maxmatch.reproduce.measure import measure
    from maxmatch.reproduce.ranks import write_ranks
    from maxmatch.training.loop import train

    started = time.monotonic()
    for recipe, folder in zip(job.recipes, job.members, strict=True):
        train(recipe, folder, resume=True, device=device, show_progress=False)
    measured = measure(job, device)
    ranks = write_ranks(job.folder, measured.search)  # first: a job with a result has them
    job.finish({**measured.found, "ranks": ranks, "seconds": time.monotonic() - started})


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only one at work in a folder; one that was left behind is waited for."""
    folder.mkdir(parents=True, exist_ok=True)
    last = time.monotonic() + _PATIENCE
    with (folder / ".lock").open("wb") as file:
        while True:
            try:
                lock(file, folder)
                break
            except ValueError:
                if time.monotonic() > last:
                    raise
                time.sleep(0.2)
        yield


def end_with_the_parent() -> None:
    """Ask this process to stop, as Ctrl-C does, when its standard input ends."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """The process. Why it failed is the last thing it says."""
    folder, *device = sys.argv[1:]
    end_with_the_parent()
    try:
        with alone(Path(folder)):
            work(read_job(Path(folder)), device[0] if device else None)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        traceback.print_exc()
        text = str(error).strip()
        named = isinstance(error, ValueError | OSError) and text
        print(f"{SAID}{text if named else f'{type(error).__name__}: {text}'}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
