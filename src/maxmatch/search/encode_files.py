"""Encoding a source to shards: reads ahead, keeps every batch, and resumes where an earlier run stopped."""

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from maxmatch import __version__
from maxmatch.core.devices import batches_at_once
from maxmatch.core.progress import Advance, Skipped, quiet
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.inputs import FeatureReader, PixelReader, ReadBatch, Reader, TextReader, encode_ahead
from maxmatch.model.names import model_identity, slot_stability
from maxmatch.search.shards import (
    MANIFEST,
    EncodedItems,
    ShardError,
    ShardManifest,
    alone,
    batches,
    begin,
    complete,
    finish,
    read_manifest,
    shard_file,
    write_batch,
)
from maxmatch.search.sources import Listing, list_source

Dtype = Literal["float16", "float32"]
SHARD_SIZE = 10_000
_COMMIT_SECONDS = 0.25  # of work at most are lost when the process is killed, beside the batch in hand
_BUFFER = re.compile(r" <_io\.[^>]*>")
_NOT_FINITE = "the model gives NaN or infinite values for it. Look at the item; if all are so, at the model's weights."


def describe(
    model: SetEncoder, listing: Listing, dtype: Dtype, shard_size: int = SHARD_SIZE, name: str | None = None
) -> ShardManifest:
    """The manifest of the shards that a model makes of a source. name: where the model lies."""
    return ShardManifest.model_validate(
        {
            "model": name,
            "version": __version__,
            "identity": model_identity(model),
            "similarity": model.similarity_name,
            "similarity_options": model.similarity_options,
            "stability": slot_stability(model),
            "modality": listing.modality,
            "set_size": model.tower(listing.modality).head.set_size,
            "dim": model.dim,
            "dtype": dtype,
            "source": str(listing.path),
            "source_format": listing.format,
            "source_digest": listing.digest(),
            "items": len(listing),
            "shard_size": shard_size,
        }
    )


@dataclass(frozen=True)
class EncodingJob:
    """Shards to be made of a source, some of which may be there."""

    listing: Listing
    folder: Path
    manifest: ShardManifest

    def unfinished(self) -> list[int]:
        """The numbers of the shards that are not complete."""
        return [number for number in range(self.manifest.shards) if not shard_file(self.folder, number).exists()]

    def left(self, number: int) -> list[int]:
        """The places of a shard that no batch of an earlier run covers. Texts of like length come together."""
        done = {place for batch in batches(self.folder, number) for place in batch.covered}
        places = [place for place in self.manifest.places(number) if place not in done]
        if isinstance(self.listing.values[0], str):
            places.sort(key=lambda place: -len(self.listing.values[place]))
        return places


@contextmanager
def started(listing: Listing, folder: Path, manifest: ShardManifest) -> Iterator[EncodingJob]:
    """The job in a folder, which no other process works on meanwhile."""
    with alone(folder):
        yield EncodingJob(listing, folder, begin(folder, manifest))


def encode_shards(
    model: SetEncoder,
    job: EncodingJob,
    numbers: Iterable[int],
    batch_size: int = 64,
    workers: int | None = None,
    advance: Advance = quiet,
    report: Callable[[Skipped], object] = lambda one: None,
) -> None:
    """Make some shards of a job. An item that cannot be read is reported and left out.

    Which items share a batch depends on the source and the batch size alone, so that a run that was interrupted gives
    the same numbers as one that was not.
    """
    if not len(job.listing):
        return
    reader = _reader(model, job)
    at_once = batches_at_once(model.device) if isinstance(reader, PixelReader) else 1
    if isinstance(reader, PixelReader):
        reader = reader.for_device(model.device)
    plan = []
    for number in numbers:
        left = job.left(number)
        plan += [(number, left[start : start + batch_size]) for start in range(0, len(left), batch_size)]
        if not left:  # stopped between the last batch and completing
            complete(job.folder, number, job.manifest)
    pending: list[EncodedItems] = []
    kept = time.monotonic()
    gpu, queued = model.device.type != "cpu", partial(model.sets_of, job.listing.modality)
    exact = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    with model.evaluating(), exact:
        encoded = encode_ahead(
            reader,
            job.listing.values,
            [places for _, places in plan],
            skip=True,
            encode_batch=queued if gpu else lambda inputs: queued(inputs).numpy(),
            fetch=(lambda sets: sets.cpu().numpy()) if gpu else None,
            workers=workers,
            ahead=gpu,
            threads=min(at_once, workers or at_once),
        )
        for at, (batch, vectors) in enumerate(encoded):
            number, places = plan[at]
            pending.append(_encoded(job, batch, vectors))
            for one in pending[-1].skipped:
                report(one)
            last = at + 1 == len(plan) or plan[at + 1][0] != number
            if last or time.monotonic() - kept >= _COMMIT_SECONDS:
                write_batch(job.folder, number, EncodedItems.joined(pending))
                pending, kept = [], time.monotonic()
            if last:
                complete(job.folder, number, job.manifest)
            advance(len(places))


def encode_source(
    model: SetEncoder,
    listing: Listing,
    folder: str | Path,
    dtype: Dtype = "float16",
    shard_size: int = SHARD_SIZE,
    batch_size: int = 64,
    workers: int | None = None,
    name: str | None = None,
    advance: Advance = quiet,
    report: Callable[[Skipped], object] = lambda one: None,
) -> ShardManifest:
    """Encode all items of a source to shards in a folder; those that are there already are not encoded again."""
    folder = Path(folder).expanduser()
    with started(listing, folder, describe(model, listing, dtype, shard_size, name)) as job:
        encode_shards(model, job, job.unfinished(), batch_size, workers, advance, report)
        return finish(folder, job.manifest, listing.left_out)


def _encoded(job: EncodingJob, batch: ReadBatch, vectors: np.ndarray | None) -> EncodedItems:
    """The sets of a batch that was read and encoded, in the precision of the shards."""
    listing, manifest = job.listing, job.manifest
    skipped = [
        Skipped(listing.ids[one.index], _why(one.reason, listing, one.index), one.index) for one in batch.skipped
    ]
    sets = np.zeros((0, manifest.set_size, manifest.dim), manifest.dtype)
    places = batch.places
    if vectors is not None:
        finite = np.isfinite(vectors).all(axis=(1, 2))
        skipped += [
            Skipped(listing.ids[place], _NOT_FINITE, place)
            for place, fine in zip(places, finite, strict=True)
            if not fine
        ]
        places = [place for place, fine in zip(places, finite, strict=True) if fine]
        sets = vectors[finite].astype(manifest.dtype)
    ids = [listing.ids[place] for place in places]
    return EncodedItems(places, ids, [dict(listing.metadata[place]) for place in places], sets, skipped)


def _why(reason: str, listing: Listing, place: int) -> str:
    """A reason without the path, which the id gives, and without Pillow's name for the open file."""
    where = listing.metadata[place].get("path")
    return _BUFFER.sub("", reason.removeprefix(f"{where}: "))


def _reader(model: SetEncoder, job: EncodingJob) -> Reader:
    """How items are read: as the tower reads them, or as features where they are the output of its backbone."""
    reader: Reader = model.tower(job.listing.modality).reader
    first = job.listing.values[0]
    if isinstance(reader, PixelReader) and isinstance(first, np.ndarray) and first.ndim == 2:
        return FeatureReader(first.shape[1])
    if isinstance(reader, FeatureReader) and not isinstance(first, np.ndarray):
        raise ValueError(
            f"{job.listing.path}: holds pictures, and this model reads features extracted beforehand. Extract them "
            "with `maxmatch data features` and encode that store, or take a model that reads pixels."
        )
    if isinstance(reader, TextReader) != isinstance(first, str):
        raise ValueError(f"{job.listing.path}: the model's tower {job.listing.modality!r} does not read such items.")
    return reader


# Encoding on a cluster: every shard is a piece of work for whichever machine is free, by Ray Data.
#
# The model, the source and the folder of the shards have to be on a file system that all machines share. What the
# shards hold is what one machine would have written.


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
        self.job = EncodingJob(listing, folder, manifest)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Make the shards of these numbers; how many items each covered."""
        numbers = [int(number) for number in batch["shard"]]
        left = [len(self.job.left(number)) for number in numbers]
        encode_shards(self.model, self.job, numbers, self.task.batch_size, self.task.workers)
        return {"items": np.array(left)}


def encode_on_ray(task: Task, numbers: Sequence[int], advance: Advance) -> None:
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


def waiting_shards(folder: Path) -> Path:
    """Where items are encoded before they go into an index: beside it."""
    folder = folder.expanduser().resolve()
    return folder.with_name(f".{folder.name}.encoding")


def encode_for(
    folder: Path, model: SetEncoder, listing: Listing, dtype: Dtype = "float16", **options: Any
) -> ShardManifest:
    """Encode a source to shards beside an index, as `encode_source` does. What a killed process has encoded is kept,
    unless it is of another source or model.
    """
    place = waiting_shards(folder)
    if (place / MANIFEST).exists() and not _continues(place, describe(model, listing, dtype)):
        shutil.rmtree(place)
    return encode_source(model, listing, place, dtype, **options)


def _continues(place: Path, asked: ShardManifest) -> bool:
    """Whether the shards in a folder are those of the same source and model."""
    try:
        there = read_manifest(place)
    except ShardError:
        return False
    same = ("identity", "source", "source_digest", "modality", "dtype")
    return all(getattr(there, field) == getattr(asked, field) for field in same)
