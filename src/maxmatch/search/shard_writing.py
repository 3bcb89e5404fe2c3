"""Writing shards, over several processes where one is interrupted, and never the same item twice."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from maxmatch.described import description
from maxmatch.files import draft, lock, whole, write_whole
from maxmatch.search.listing import LeftOut
from maxmatch.search.shards import (
    FORMAT,
    MANIFEST,
    SKIPPED,
    Encoded,
    ShardManifest,
    left_out_in,
    notes_of,
    opened,
    read_manifest,
    shard_file,
)

_LOCK = ".lock"


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
    with (folder / _LOCK).open("wb") as file:
        lock(file, folder)
        yield


def begin(folder: Path, manifest: ShardManifest) -> ShardManifest:
    """Make a folder for shards; or take up one that is there, if it was made from the same. Its manifest."""
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
            said = f"{there.model}, not {manifest.model}" if name == "identity" else f"{old}, not {new}"
            detail = f"; {there.items:,} items, now {manifest.items:,}" if name == "source_digest" else f" ({said})"
            raise FileExistsError(f"{folder}: holds {what}{detail}. Give a new folder with --out, or remove this one.")
    return there


def write_batch(folder: Path, number: int, batch: Encoded) -> None:
    """Keep some items of a shard that is not complete, for good."""
    rows = [{"id": name, "metadata": known} for name, known in zip(batch.ids, batch.metadata, strict=True)]
    notes = {"places": batch.places, "rows": rows, "skipped": [asdict(one) for one in batch.skipped]}
    places = [*batch.places, *(one.place for one in batch.skipped if one.place is not None)]
    with whole(folder / f".{shard_file(folder, number).stem}.{min(places):09d}") as file:
        file.write(save({"sets": np.ascontiguousarray(batch.sets)}, {FORMAT: json.dumps(notes)}))


def batches(folder: Path, number: int) -> list[Encoded]:
    """What is there of a shard that is not complete."""
    return [_read_batch(file) for file in _batch_files(folder, number)]


def complete(folder: Path, number: int, manifest: ShardManifest) -> None:
    """Put the batches of a shard together, in the order of the source."""
    parts = batches(folder, number)
    covered = sorted(place for part in parts for place in (*part.places, *(one.place or 0 for one in part.skipped)))
    assert covered == list(manifest.places(number)), "a place of the shard is missing, or was encoded twice"
    places = np.array([place for part in parts for place in part.places], np.int64)
    order = np.argsort(places, kind="stable")
    rows = [(name, known) for part in parts for name, known in zip(part.ids, part.metadata, strict=True)]
    sets = np.concatenate([part.sets for part in parts])
    skipped = sorted((one for part in parts for one in part.skipped), key=lambda one: one.place or 0)
    file = shard_file(folder, number)
    lines = (json.dumps({"id": rows[at][0], "metadata": rows[at][1]}, ensure_ascii=False) for at in order)
    with whole(file.with_suffix(".jsonl")) as out:
        out.writelines(f"{line}\n".encode() for line in lines)
    notes = {"skipped": [asdict(one) for one in skipped]}  # under one name: safetensors keeps no order among several
    with whole(file) as out:
        out.write(save({"sets": np.ascontiguousarray(sets[order])}, {FORMAT: json.dumps(notes)}))
    for used in _batch_files(folder, number):
        used.unlink()


def finish(folder: Path, manifest: ShardManifest, left_out: Sequence[LeftOut]) -> ShardManifest:
    """Say that all shards are there, once they are. left_out: what of the source was never listed."""
    encoded, skipped = 0, list(left_out)
    for number in range(manifest.shards):
        with opened(shard_file(folder, number)) as file:
            encoded += file.get_slice("sets").get_shape()[0]
            skipped += left_out_in(notes_of(file))
        for leftover in _batch_files(folder, number):  # of a process that ended between completing and removing
            leftover.unlink()
    with whole(folder / SKIPPED) as out:
        rows = ({"id": one.id, "reason": one.reason} for one in skipped)
        out.writelines(f"{json.dumps(row, ensure_ascii=False)}\n".encode() for row in rows)
    done = manifest.model_copy(update={"encoded": encoded})
    _write(folder, done)
    return done


def _write(folder: Path, manifest: ShardManifest) -> None:
    write_whole(folder / MANIFEST, description(manifest, FORMAT) + "\n")


def _batch_files(folder: Path, number: int) -> list[Path]:
    """Drafts that a killed process left have another ending, and are never read."""
    return sorted(folder.glob(f".{shard_file(folder, number).stem}.[0-9]*[0-9]"))


def _read_batch(path: Path) -> Encoded:
    with opened(path) as file:
        notes = notes_of(file)
        return Encoded(
            notes["places"],
            [row["id"] for row in notes["rows"]],
            [row["metadata"] for row in notes["rows"]],
            file.get_tensor("sets"),
            left_out_in(notes),
        )
