"""Where the model of an index lies, so that a search need not be told; and items encoded on their way into an index."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from maxmatch.files import write_whole
from maxmatch.model import SetEncoder
from maxmatch.search.encoding_run import Dtype, describe, encode_shards, started
from maxmatch.search.listing import LeftOut, Listing
from maxmatch.search.shard_writing import finish
from maxmatch.search.shards import MANIFEST, ShardError, ShardManifest, read_manifest

FILE = "encoder.json"


class Origin(NamedTuple):
    """Where a model was when its sets were made, and of what modality they are."""

    model: str
    modality: str | None


def write_origin(folder: Path, origin: Origin) -> None:
    """Note it in the folder of an index."""
    write_whole(folder / FILE, json.dumps(origin._asdict()) + "\n")


def read_origin(folder: Path) -> Origin | None:
    """What was noted; None where nothing was."""
    try:
        return Origin(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / FILE}: not readable ({error}). Remove it, and say --model.") from error


def waiting_shards(folder: Path) -> Path:
    """Where items are encoded before they go into an index: beside it."""
    folder = folder.expanduser().resolve()
    return folder.with_name(f".{folder.name}.encoding")


def encode_for(
    folder: Path,
    model: SetEncoder,
    listing: Listing,
    dtype: Dtype,
    name: str,
    batch_size: int,
    workers: int,
    advance: Callable[[int], object],
    report: Callable[[LeftOut], object],
) -> ShardManifest:
    """Encode a source to shards beside an index. What a killed process has encoded is kept, unless the source or the
    model is another by now.
    """
    place = waiting_shards(folder)
    asked = describe(model, listing, dtype, name=name)
    if (place / MANIFEST).exists():
        there = _manifest(place)
        same = ("identity", "source", "source_digest", "modality", "dtype")
        if there is None or any(getattr(there, field) != getattr(asked, field) for field in same):
            shutil.rmtree(place)
    with started(listing, place, asked) as job:
        encode_shards(model, job, job.unfinished(), batch_size, workers, advance, report)
        return finish(place, job.manifest, listing.left_out)


def _manifest(place: Path) -> ShardManifest | None:
    try:
        return read_manifest(place)
    except ShardError:
        return None
