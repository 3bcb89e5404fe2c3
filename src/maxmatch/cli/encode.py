"""`maxmatch encode`: encode images or texts to sets on disk, for an index or another program."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from maxmatch.cli.common import resumable

if TYPE_CHECKING:
    from maxmatch.core.progress import Skipped


def _something(first: str | None) -> str:
    if first is None:
        raise typer.BadParameter("name what to encode: maxmatch encode ~/Pictures --out sets")
    return first


def encode(
    out: Annotated[Path, typer.Option(help="The folder for the sets. An interrupted run resumes there.")],
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model's folder, or its name on the Hugging Face Hub. Default: the one that ships.",
            callback=_something,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A folder of images (or, with --modality audio, of .wav files), a table, WebDataset tar files, or a "
            ".txt file with one caption per line."
        ),
    ] = None,
    modality: Annotated[
        str | None, typer.Option(help="image, text, audio … Default: image if the source has images.")
    ] = None,
    dtype: Annotated[Literal["fp16", "fp32"], typer.Option(help="fp16 takes half the space.")] = "fp16",
    shard_size: Annotated[int, typer.Option(min=1, help="Items per file.")] = 10_000,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Items per batch. Default: 64 on a GPU, 16 on a CPU.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Reading threads. Default: one per core, up to 8.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU if there is one.")] = None,
    format: Annotated[
        str | None, typer.Option(help="The format of the source, if not detected correctly: folder, table, lines …")
    ] = None,
    split: Annotated[list[str] | None, typer.Option(help="Only this split of a data set; repeatable.")] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Use a Ray cluster (RAY_ADDRESS), one shard per task; needs 'maxmatch[ray]'.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Encode images or texts to sets of vectors.

    The sets are written to files, with their ids and metadata. Items that cannot be read are skipped, and listed in
    skipped.jsonl with the reason. If it is stopped or killed, run the same command again to resume; nothing is encoded
    twice.

    Examples:

      maxmatch encode ~/Pictures --out sets

      maxmatch encode runs/coco/best ~/Pictures --out sets

      maxmatch encode runs/coco/best captions.txt --out captions --modality text

      maxmatch index build photos --from sets
    """
    from maxmatch.cli.common import cores, default_model, load_model, say
    from maxmatch.core.progress import bar
    from maxmatch.model.names import name_to_record
    from maxmatch.search.encode_files import describe, encode_shards, started
    from maxmatch.search.shards import SKIPPED, finish
    from maxmatch.search.sources import list_source

    assert model is not None
    if source is None:
        source, model = Path(model), default_model("MODEL, before SOURCE")
    begun = time.monotonic()
    listing = list_source(source, modality, format, split)
    say(f"{source}: {len(listing):,} items ({listing.modality}, {listing.format}), {len(listing.left_out):,} left out")
    encoder = load_model(model, device, listing.modality)
    size = batch_size or (16 if encoder.device.type == "cpu" else 64)
    precision: Literal["float16", "float32"] = "float16" if dtype == "fp16" else "float32"
    report = first_reasons(out / SKIPPED)
    with started(
        listing, out.expanduser(), describe(encoder, listing, precision, shard_size, name_to_record(model))
    ) as job:
        numbers = job.unfinished()
        left = sum(len(job.left(number)) for number in numbers)
        if left < len(listing):
            say(f"{out}: {len(listing) - left:,} of {len(listing):,} are there already")
        with resumable(out), bar(listing.modality, left) as advance:
            if ray:
                from maxmatch.search.encode_files import Task, encode_on_ray

                places = (name_to_record(model), str(listing.path), str(job.folder.resolve()))
                task = Task(*places, listing.format, split, encoder.device.type, size, workers or 1)
                encode_on_ray(task, numbers, advance)
            else:
                encode_shards(encoder, job, numbers, size, workers or cores(), advance, report)
        done = finish(job.folder, job.manifest, listing.left_out)
    assert done.encoded is not None
    seconds = time.monotonic() - begun
    skipped = done.items - done.encoded + len(listing.left_out)
    if as_json:
        facts = {"path": str(out), **done.model_dump(mode="json"), "skipped": skipped, "seconds": round(seconds, 1)}
        print(json.dumps(facts))
    else:
        lost = f"; {skipped:,} left out, see {out / SKIPPED}" if skipped else ""
        print(f"{out}: {done.encoded:,} sets {done.set_size} × {done.dim} {dtype}{lost}")
    if not done.encoded:
        raise ValueError(f"{source}: nothing could be encoded. {out / SKIPPED} gives the reasons.")


def first_reasons(full: Path) -> "Callable[[Skipped], None]":
    """A report that prints the first items that are left out, and the file that will list all of them."""
    from maxmatch.cli.common import say

    shown = 0

    def report(one: "Skipped") -> None:
        nonlocal shown
        shown += 1
        if shown <= 5:
            say(f"left out: {one}")
        elif shown == 6:
            say(f"more was left out; {full} will have all of it, with reasons")

    return report
