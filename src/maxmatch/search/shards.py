"""Encoded sets on the disk, in the order of their source, for an index to take in or another program to read.

    manifest.json                what made them: model, K, D, precision, source; how many there are once all are
    shard-000000.safetensors     `sets` (n, K, D)
    shard-000000.jsonl           {"id": …, "metadata": {…}} for each of the n
    skipped.jsonl                {"id": …, "reason": …} for each item that could not be encoded

A shard covers a fixed part of the source, and is there once its .safetensors is. Until then its batches lie beside it
as hidden files, each whole: however the process ends, the next one resumes after the last batch.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from maxmatch.core.files import draft, locked, whole, write_whole
from maxmatch.core.manifest import load_manifest, manifest_text
from maxmatch.core.progress import Skipped
from maxmatch.model.config import ConfigPart, Count, Positive, SimilarityName
from maxmatch.model.names import model_title

FORMAT = "maxmatch.shards"
MANIFEST, SKIPPED = "manifest.json", "skipped.jsonl"


class ShardError(ValueError):
    """A folder that holds no shards, or damaged ones."""


class ShardManifest(ConfigPart):
    """The manifest of a folder of shards."""

    model: str | None = None
    """Where the model was when it was used."""
    version: str | None = None
    """Of the MaxMatch that made them; None where that was not noted yet."""
    identity: str
    """Of the model: see `maxmatch.model.names`."""
    similarity: SimilarityName = "maxmatch"
    similarity_options: dict[str, int | Positive] = Field(default_factory=dict)
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
class EncodedItems:
    """Items that were encoded, and those that could not be. places: in the source, ascending."""

    places: list[int]
    ids: list[str]
    metadata: list[dict[str, Any]]
    sets: np.ndarray
    """(n, K, D)"""
    skipped: list[Skipped]

    @classmethod
    def joined(cls, parts: Sequence["EncodedItems"]) -> "EncodedItems":
        """Several as one."""
        lists = {
            name: [one for part in parts for one in getattr(part, name)]
            for name in ("places", "ids", "metadata", "skipped")
        }
        return cls(sets=np.concatenate([part.sets for part in parts]), **lists)

    @property
    def covered(self) -> list[int]:
        """The places of all, also of those that could not be encoded."""
        return [*self.places, *(one.index for one in self.skipped)]


def shard_file(folder: Path, number: int) -> Path:
    """The file of a shard's sets."""
    return folder / f"shard-{number:06d}.safetensors"


def read_shard(folder: Path, number: int, manifest: ShardManifest) -> EncodedItems:
    """A shard's sets with their ids and metadata."""
    path = shard_file(folder, number)
    with _opened(path) as (file, notes):
        sets, skipped = file.get_tensor("sets"), _skipped(notes)
    rows = _rows(path.with_suffix(".jsonl"))
    if sets.shape != (len(rows), manifest.set_size, manifest.dim):
        expected = f"({len(rows)}, {manifest.set_size}, {manifest.dim})"
        raise ShardError(
            f"{path}: expected sets {expected}, as many as lines in {path.stem}.jsonl, found {sets.shape}. "
            "The two are of different runs: remove both, and encode again."
        )
    gone = {one.index for one in skipped}
    places = [place for place in manifest.places(number) if place not in gone]
    return EncodedItems(places, [row["id"] for row in rows], [row["metadata"] for row in rows], sets, skipped)


def read_manifest(folder: Path) -> ShardManifest:
    """The manifest of a folder of shards."""
    path = folder / MANIFEST
    if not path.is_file():
        what = "holds no shards of sets" if folder.is_dir() else "no such folder"
        raise ShardError(f"{folder}: {what} ({MANIFEST} is missing). Make some with: maxmatch encode")
    return load_manifest(
        path, ShardManifest, FORMAT, ShardError, "shards of sets of MaxMatch", "Encode again, to a new folder."
    )


def _skipped(notes: Mapping[str, Any]) -> list[Skipped]:
    return [Skipped(one["id"], one["reason"], one["place"]) for one in notes["skipped"]]


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
        if not all(isinstance(row["id"], str) and isinstance(row["metadata"], dict) for row in rows):
            raise ValueError("a line without id or metadata")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShardError(f"{path}: not readable ({error}). Remove the shard's two files, and encode again.") from error
    return rows


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A safetensors file of ours, and what it holds beside the sets; one that is damaged is named."""
    try:
        with safe_open(path, "numpy") as file:
            if FORMAT not in (file.metadata() or {}):
                raise ShardError(f"{path}: not a shard of MaxMatch. Remove it, and encode again.")
            yield file, json.loads(file.metadata()[FORMAT])
    except (SafetensorError, OSError) as error:
        cure = "Remove the file, and run the same `maxmatch encode` again: the rest is kept."
        raise ShardError(f"{path}: not a whole safetensors file ({error}). {cure}") from error


def _write_sets(path: Path, sets: np.ndarray, skipped: Sequence[Skipped], **notes: Any) -> None:
    """The file that `_opened` opens. Its notes are under one name: safetensors keeps no order among several."""
    notes["skipped"] = [{"id": one.id, "reason": one.reason, "place": one.index} for one in skipped]
    with whole(path) as file:
        file.write(save({"sets": np.ascontiguousarray(sets)}, {FORMAT: json.dumps(notes)}))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only process that writes to a folder of shards, which is made where there is none. A folder of something
    else is refused, and stays as it is.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: is a file. Give a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MANIFEST).exists() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise FileExistsError(f"{folder}: holds files, but no shards of sets. Give a new folder.")
    with locked(folder):
        yield


def begin(folder: Path, manifest: ShardManifest) -> ShardManifest:
    """Start a folder of shards, or resume one that was made from the same source. Its manifest."""
    if not (folder / MANIFEST).exists():
        _write(folder, manifest)
        return manifest
    there = read_manifest(folder)
    for unfinished in folder.glob(draft(folder / "*").name):  # of a process that was killed
        unfinished.unlink()
    for name, what in (
        ("identity", "the sets of another model"),
        ("source", "the sets of another source"),
        ("modality", "sets of another modality"),
        ("dtype", "sets of another precision"),
        ("source_digest", "the sets of a source that has changed since: items were added, removed or renamed"),
    ):
        old, new = getattr(there, name), getattr(manifest, name)
        if old != new:
            if name == "identity":
                old, new = (model_title(one.identity, one.model) for one in (there, manifest))
            differs = f"{old}, not {new}"
            detail = f"; {there.items:,} items, now {manifest.items:,}" if name == "source_digest" else f" ({differs})"
            raise FileExistsError(f"{folder}: holds {what}{detail}. Give a new folder with --out, or remove this one.")
    return there


def write_batch(folder: Path, number: int, batch: EncodedItems) -> None:
    """Keep some items of a shard that is not complete, for good."""
    path = folder / f".{shard_file(folder, number).stem}.{min(batch.covered):09d}"
    _write_sets(path, batch.sets, batch.skipped, places=batch.places, rows=_rows_of(batch))


def _rows_of(items: EncodedItems) -> list[dict[str, Any]]:
    return [{"id": name, "metadata": known} for name, known in zip(items.ids, items.metadata, strict=True)]


def batches(folder: Path, number: int) -> list[EncodedItems]:
    """What is there of a shard that is not complete."""
    return [_read_batch(file) for file in _batch_files(folder, number)]


def complete(folder: Path, number: int, manifest: ShardManifest) -> None:
    """Put the batches of a shard together, in the order of the source."""
    found = EncodedItems.joined(batches(folder, number))
    assert sorted(found.covered) == list(manifest.places(number)), "a place is missing, or was encoded twice"
    order = np.argsort(np.array(found.places, np.int64))
    rows, file = _rows_of(found), shard_file(folder, number)
    _write_lines(file.with_suffix(".jsonl"), [rows[at] for at in order])
    _write_sets(file, found.sets[order], sorted(found.skipped, key=lambda one: one.index))
    for used in _batch_files(folder, number):
        used.unlink()


def finish(folder: Path, manifest: ShardManifest, left_out: Sequence[Skipped]) -> ShardManifest:
    """Record that all shards are complete. left_out: what of the source was never listed."""
    encoded, skipped = 0, list(left_out)
    for number in range(manifest.shards):
        with _opened(shard_file(folder, number)) as (file, notes):
            encoded += file.get_slice("sets").get_shape()[0]
            skipped += _skipped(notes)
        for leftover in _batch_files(folder, number):  # of a process that ended between completing and removing
            leftover.unlink()
    _write_lines(folder / SKIPPED, [{"id": one.id, "reason": one.reason} for one in skipped])
    done = manifest.model_copy(update={"encoded": encoded})
    _write(folder, done)
    return done


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with whole(path) as out:
        out.writelines(f"{json.dumps(row, ensure_ascii=False)}\n".encode() for row in rows)


def _write(folder: Path, manifest: ShardManifest) -> None:
    write_whole(folder / MANIFEST, manifest_text(manifest, FORMAT) + "\n")


def _batch_files(folder: Path, number: int) -> list[Path]:
    """Drafts that a killed process left have another ending, and are never read."""
    return sorted(folder.glob(f".{shard_file(folder, number).stem}.[0-9]*[0-9]"))


def _read_batch(path: Path) -> EncodedItems:
    with _opened(path) as (file, notes):
        ids, metadata = ([row[name] for row in notes["rows"]] for name in ("id", "metadata"))
        return EncodedItems(notes["places"], ids, metadata, file.get_tensor("sets"), _skipped(notes))
