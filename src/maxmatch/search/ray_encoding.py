"""Encoding on a cluster: every shard is a piece of work for whichever machine is free, by Ray Data.

The model, the source and the folder of the shards have to be on a file system that all machines share. What the shards
hold is what one machine would have written.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maxmatch.model import SetEncoder
from maxmatch.search.encoding_run import Job, encode_shards
from maxmatch.search.shards import read_manifest
from maxmatch.search.sources import list_source


@dataclass(frozen=True)
class Task:
    """What every machine needs to know."""

    model: str
    source: str
    folder: str
    format: str
    splits: Sequence[str] | None = None
    device: str = "cpu"
    batch_size: int = 16
    workers: int = 1


class Worker:
    """A process of the cluster: it holds the model and the list of the source, and makes one shard after the other."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.model = SetEncoder.from_pretrained(task.model, device=task.device)
        folder = Path(task.folder)
        manifest = read_manifest(folder)
        listing = list_source(task.source, manifest.modality, task.format, task.splits)
        if listing.digest() != manifest.source_digest:
            raise ValueError(f"{task.source}: another source on this machine. Put it where all machines see the same.")
        self.job = Job(listing, folder, manifest)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Make the shards of these numbers; how many items each covered."""
        numbers = [int(number) for number in batch["shard"]]
        left = [len(self.job.left(number)) for number in numbers]
        encode_shards(self.model, self.job, numbers, self.task.batch_size, self.task.workers)
        return {"items": np.array(left)}


def encode_on_ray(task: Task, numbers: Sequence[int], advance: Callable[[int], object]) -> None:
    """Make some shards on the cluster that RAY_ADDRESS names, or on this machine's cores where it is not set."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError("--ray needs Ray: pip install 'maxmatch[ray]'") from error
    if not numbers:
        return
    ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False  # the command has its own
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    gpus = 1 if task.device.startswith("cuda") else 0
    kind, each = ("GPU", 1) if gpus else ("CPU", task.workers)
    at_once = max(1, min(len(numbers), int(ray.cluster_resources().get(kind, 1)) // each))
    work = ray.data.from_items([{"shard": number} for number in numbers], override_num_blocks=len(numbers))
    done = work.map_batches(
        Worker,
        fn_constructor_args=(task,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=at_once),
        num_cpus=0 if gpus else each,
        num_gpus=gpus,
    )
    for row in done.iter_rows():
        advance(int(row["items"]))
