"""Encoded sets on the disk, in the order of their source, for an index to take in or another program to read.

    manifest.json                what made them: model, K, D, precision, source; how many there are once all are
    shard-000000.safetensors     `sets` (n, K, D)
    shard-000000.jsonl           {"id": …, "metadata": {…}} for each of the n
    skipped.jsonl                {"id": …, "reason": …} for each item that could not be encoded

A shard covers a fixed part of the source, and is there once its .safetensors is. Until then its batches lie beside it
as hidden files, each whole: whatever ends the process, the next one goes on after the last batch.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from safetensors import SafetensorError, safe_open

from maxmatch.config import Count, Part, SimilarityName
from maxmatch.described import read_described
from maxmatch.search.listing import LeftOut

FORMAT = "maxmatch.shards"
MANIFEST, SKIPPED = "manifest.json", "skipped.jsonl"


class ShardError(ValueError):
    """A folder that holds no shards, or damaged ones."""


class ShardManifest(Part):
    """What a folder of shards says about itself."""

    model: str | None = None
    """Where the model was when it was used."""
    identity: str
    """Of the model: see `maxmatch.search.identity`."""
    similarity: SimilarityName = "maxmatch"
    stability: Annotated[float, Field(ge=0, le=1)] | None = None
    """How often slot i meets slot i in true pairs of this model; None where that was not measured."""
    modality: str
    set_size: Count
    dim: Count
    dtype: Literal["float32", "float16"]
    source: str
    source_format: str
    source_digest: str
    """Of the ids, and of texts."""
    items: int
    """How many the source has."""
    shard_size: Count
    encoded: int | None = None
    """How many sets there are; None until all shards are there."""

    @property
    def shards(self) -> int:
        """How many shards there are to be."""
        return -(-self.items // self.shard_size)

    def places(self, number: int) -> range:
        """The part of the source that a shard covers."""
        return range(number * self.shard_size, min((number + 1) * self.shard_size, self.items))


@dataclass(frozen=True)
class Encoded:
    """Items that were encoded, and those that could not be. places: in the source, ascending."""

    places: list[int]
    ids: list[str]
    metadata: list[dict[str, Any]]
    sets: np.ndarray
    """(n, K, D)"""
    skipped: list[LeftOut]


def shard_file(folder: Path, number: int) -> Path:
    """The file of a shard's sets."""
    return folder / f"shard-{number:06d}.safetensors"


def read_shard(folder: Path, number: int, manifest: ShardManifest) -> Encoded:
    """A shard's sets with their ids and metadata."""
    path = shard_file(folder, number)
    with opened(path) as file:
        sets, skipped = file.get_tensor("sets"), left_out_in(notes_of(file))
    rows = _rows(path.with_suffix(".jsonl"))
    if sets.shape != (len(rows), manifest.set_size, manifest.dim):
        expected = f"({len(rows)}, {manifest.set_size}, {manifest.dim})"
        raise ShardError(
            f"{path}: expected sets {expected}, as many as lines in {path.stem}.jsonl, found {sets.shape}. "
            "The two are of different runs: remove both, and encode again."
        )
    gone = {one.place for one in skipped}
    places = [place for place in manifest.places(number) if place not in gone]
    return Encoded(places, [row["id"] for row in rows], [row["metadata"] for row in rows], sets, skipped)


def read_manifest(folder: Path) -> ShardManifest:
    """The manifest of a folder of shards."""
    path = folder / MANIFEST
    if not path.is_file():
        what = "holds no shards of sets" if folder.is_dir() else "no such folder"
        raise ShardError(f"{folder}: {what} ({MANIFEST} is missing). Make some with: maxmatch encode")
    return read_described(
        path, ShardManifest, FORMAT, ShardError, "shards of sets of MaxMatch", "Encode again, to a new folder."
    )


def left_out_in(notes: Mapping[str, Any]) -> list[LeftOut]:
    """Which items a file's notes say could not be encoded."""
    return [LeftOut(**one) for one in notes["skipped"]]


def notes_of(file: Any) -> dict[str, Any]:
    """What a file of sets says beside them."""
    notes: dict[str, Any] = json.loads(file.metadata()[FORMAT])
    return notes


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
        if not all(isinstance(row["id"], str) and isinstance(row["metadata"], dict) for row in rows):
            raise ValueError("a line without id or metadata")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShardError(f"{path}: not readable ({error}). Remove the shard's two files, and encode again.") from error
    return rows


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file of ours; one that is damaged is named."""
    try:
        with safe_open(path, "numpy") as file:
            if FORMAT not in (file.metadata() or {}):
                raise ShardError(f"{path}: no shard of ours. Remove it, and encode again.")
            yield file
    except (SafetensorError, OSError) as error:
        cure = "Remove the file, and run the same `maxmatch encode` again: the rest is kept."
        raise ShardError(f"{path}: not a whole safetensors file ({error}). {cure}") from error
