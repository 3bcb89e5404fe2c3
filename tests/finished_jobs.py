"""Jobs that are done without training."""

import io
from dataclasses import replace

import numpy as np
import torch

from maxmatch.core.types import Ranks
from maxmatch.evaluation.measures import beyond_rsum
from maxmatch.evaluation.metrics import SearchRanks, figures
from maxmatch.evaluation.ranking import PairRanks
from maxmatch.reproduce import worker
from maxmatch.reproduce.worker import PAIRS, write_ranks

COLLAPSE = {"image_log_variance": -1.5, "text_log_variance": -2.25, "slots_used": 1.0, "pairing_stability": 0.97}


SETS = {
    "image_content_log_variance": -1.75, "text_content_log_variance": -2.5, "slot_variation": 0.25,
    "slot_variation_chance": 0.5, "image_bytes_float16": 8192.0, "text_bytes_float16": 8192.0,
}  # fmt: skip


def search_of(easy, seed, images=40, captions=2, further=10):
    """What a model finds that answers so many queries at once. further: how much later than the first the other
    captions of an image are found, at most.
    """
    generator = np.random.default_rng(seed)
    groups = torch.arange(images), torch.arange(images).repeat_interleave(captions)
    ranks = [
        torch.from_numpy(np.where(generator.random(len(side)) < easy, 1, generator.integers(1, 21, len(side))))
        for side in groups
    ]
    later = torch.from_numpy(generator.integers(0, further + 1, (images, captions)))
    later[:, 0] = 0
    pairs = PairRanks(groups[1], torch.arange(len(groups[1])), (ranks[0][:, None] + later).flatten(), ranks[1])
    return SearchRanks(*(Ranks(side, torch.zeros_like(side)) for side in ranks), *groups, pairs)


def finish(job, search, split="test"):
    """Write the ranks and the result of a search, as a job does."""
    found = {**figures(search.i2t, search.t2i), **COLLAPSE, "chance_rsum": 3.0}
    found |= {} if search.pairs is None else {**beyond_rsum([search]), **SETS}
    about = {"split": split, "images": len(search.image_groups), "figures": found}
    job.finish({**about, **write_ranks(job.folder, search), "seconds": 1.0})


def finish_as_before(job, search, split="test"):
    """As `finish` in a version that measured RSUM alone."""
    (job.folder / PAIRS).unlink(missing_ok=True)
    finish(job, replace(search, pairs=None), split)


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
