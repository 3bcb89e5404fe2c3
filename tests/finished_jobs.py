"""Jobs that are done without training."""

import io

import numpy as np
import torch

from maxmatch.core.types import Ranks
from maxmatch.evaluation.metrics import SearchRanks, figures
from maxmatch.reproduce import worker
from maxmatch.reproduce.worker import write_ranks

COLLAPSE = {"image_log_variance": -1.5, "text_log_variance": -2.25, "slots_used": 1.0, "pairing_stability": 0.97}


def search_of(easy, seed, images=40, captions=2):
    """What a model finds that answers so many queries at once."""
    generator = np.random.default_rng(seed)
    groups = torch.arange(images), torch.arange(images).repeat_interleave(captions)
    ranks = [
        torch.from_numpy(np.where(generator.random(len(side)) < easy, 1, generator.integers(1, 21, len(side))))
        for side in groups
    ]
    return SearchRanks(*(Ranks(side, torch.zeros_like(side)) for side in ranks), *groups)


def finish(job, search, split="test"):
    """Write the ranks and the result of a search, as a job does."""
    found = {**figures(search.i2t, search.t2i), **COLLAPSE, "chance_rsum": 3.0}
    about = {"split": split, "images": len(search.image_groups), "figures": found}
    job.finish({**about, "ranks": write_ranks(job.folder, search), "seconds": 1.0})


class Ended:
    """A process that has ended."""

    def __init__(self, code=0):
        self.returncode, self.stdin = code, io.BytesIO()

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        return self.returncode


def at_once(job, device):
    """In place of a process of its own, where only the start takes seconds."""
    job.write()
    with worker.alone(job.folder):
        worker.work(job, device)
    return Ended()


def failed(job, reason):
    """In place of a process that fails."""
    job.write()
    (job.folder / worker.LOG).write_text(f"Traceback\nmaxmatch: {reason}\n")
    return Ended(1)
