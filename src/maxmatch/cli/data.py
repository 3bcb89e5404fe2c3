"""`maxmatch data`: generate, check and convert data sets, and extract features."""

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from maxmatch.data.check import CheckReport, DataFinding, Level, Spread
    from maxmatch.data.near_duplicates import NearDuplicate


_SHOWN = 3  # problems of each kind
_TITLES: "dict[Level, str]" = {"error": "ERROR", "warning": "warning", "note": "note"}
_HEADS = ("image", "text")  # the modalities that have columns of their own


def check(
    path: Annotated[Path, typer.Argument(help="A data set in any format, a feature store, or BUTD files.")],
    format: Annotated[str | None, typer.Option(help="Its format, if not detected correctly.")] = None,
    images: Annotated[Path | None, typer.Option(help="The image folder, if the data does not name it.")] = None,
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Check the images.")] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not decode images completely, and do not read all features.")
    ] = False,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            help="Also list validation and test images that look like training images, within this data set and "
            "between it and another one (or itself). Repeatable."
        ),
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help=f"Print every problem, not {_SHOWN} of each kind.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Report what a data set holds and what is wrong with it.

    Counts splits, captions and words, decodes every image and reads every feature. Lists what is missing, damaged,
    duplicated or in two splits. The exit code is 1 if the data cannot be used as it is, else 0.

    Examples:

      maxmatch data check f30k/dataset_flickr30k.json --images f30k/images

      maxmatch data check coco_precomp --quick

      maxmatch data check photos --json > report.json

      maxmatch data check coco --against flickr8k
    """
    from maxmatch.cli.common import cores
    from maxmatch.core.progress import bar
    from maxmatch.data import check as looking

    report = looking.check(path, format, images=images, pictures=pictures, quick=quick, workers=cores(), bar=bar)
    content = report.as_json()
    alike = _near_duplicates([path, *against], cores()) if against and report.usable else None
    if alike is not None:
        content["near_duplicates"] = [one._asdict() for one in alike]
    print(json.dumps(content, indent=2, ensure_ascii=False) if as_json else describe(report, show_all))
    if alike is not None and not as_json:
        print("\n".join(["", *_alike(alike, show_all)]))
    if not report.usable:
        raise typer.Exit(1)


def _near_duplicates(paths: Sequence[Path], workers: int) -> "list[NearDuplicate]":
    from maxmatch.cli.common import say
    from maxmatch.core.progress import bar
    from maxmatch.data.load import load_data, source_names
    from maxmatch.data.near_duplicates import near_duplicates
    from maxmatch.recipe.schema import Data

    parts = [Data(path=str(path)) for path in dict.fromkeys(paths)]
    datasets = {name: load_data(part, say) for name, part in zip(source_names(parts), parts, strict=True)}
    return near_duplicates(datasets, workers=workers, bar=bar)


def _alike(found: "Sequence[NearDuplicate]", show_all: bool) -> Iterator[str]:
    if not found:
        yield "No picture held out of training looks like a training picture."
        return
    count = len({one.held_out for one in found})
    yield f"warning  {count:,} pictures held out of training look like training pictures:"
    for one in found if show_all else found[:_SHOWN]:
        (name, split, image), (other, trained, theirs) = one.held_out, one.train
        alike = f"correlation {one.correlation:.3f}"
        yield f"    {image!r} of {name} ({split}) and {theirs!r} of {other} ({trained}), {alike}"
    if len(found) > _SHOWN and not show_all:
        yield f"    … and {len(found) - _SHOWN:,} more; --all prints them"
    yield "    → Look at them. What is trained on cannot be tested on: leave one of the two out."


def describe(report: "CheckReport", show_all: bool = False) -> str:
    """The report as a person reads it."""
    lines = [f"{report.path}: {report.format or 'not recognised'}"]
    if report.splits:
        lines += ["", *_splits(report), "", *_contents(report)]
    for level, title in _TITLES.items():
        found = sorted((one for one in report.findings if one.level == level), key=lambda finding: finding.kind)
        for _, several in groupby(found, key=lambda finding: finding.kind):
            lines += ["", *_kind(title, list(several), show_all)]
    counts = {level: report.count(level) for level in _TITLES}
    found_all = ", ".join(f"{count:,} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count)
    if not report.usable:
        return "\n".join([*lines, "", f"Not usable as it is: {found_all}."])
    return "\n".join([*lines, "", f"Usable: {found_all}." if found_all else "Fine."])


def _splits(report: "CheckReport") -> Iterator[str]:
    width = max(5, *map(len, report.splits))
    others = dict.fromkeys(name for split in report.splits.values() for name in split.items if name not in _HEADS)
    heads = "".join(f"{name:>10}" for name in ("images", "captions", *others))
    yield f"{'split':<{width}}{heads}  captions per image"
    for name, split in report.splits.items():
        counts = "".join(f"{split.items.get(modality, 0):>10,}" for modality in (*_HEADS, *others))
        each = split.captions_per_image
        per_image = "" if each is None else _range(each)
        if each is not None and each.least < each.most:
            per_image += f", {each.mean:.2f} on average"
        yield f"{name:<{width}}{counts}  {per_image}".rstrip()


def _range(spread: "Spread") -> str:
    return f"{spread.least:,.0f}" + (f" to {spread.most:,.0f}" if spread.least < spread.most else "")


def _contents(report: "CheckReport") -> Iterator[str]:
    words, pictures = report.vocabulary, report.pictures
    if words is not None:
        yield (
            f"words     {words.words:,} in the split {words.split!r}, {words.frequent:,} of them at least "
            f"{words.min_count} times; the longest caption has {words.longest}"
        )
    if pictures is not None:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in pictures.kinds.items()) or "none"
        how = "decoded to their end" if pictures.decoded else "not decoded (--quick)"
        yield f"pictures  {kinds}; {pictures.bytes / 1e6:,.1f} MB; {how}"
        sides = {"width": pictures.widths, "height": pictures.heights}
        texts = [
            f"{name} {side.least:,.0f} to {side.most:,.0f}, median {side.median:,.0f}"
            for name, side in sides.items()
            if side is not None
        ]
        if texts:
            yield "          " + "; ".join(texts)
    by_text: dict[str, list[str]] = {}
    for name, features in report.features.items():
        unread = "" if features.scanned else "; values not read (--quick)"
        text = f"{_range(features.per_image)} × {features.width:,} {features.dtype} per image{unread}"
        by_text.setdefault(text, []).append(name)
    for text, names in by_text.items():
        yield f"features  {', '.join(names)}: {text}"


def _kind(title: str, findings: Sequence["DataFinding"], show_all: bool) -> Iterator[str]:
    """Problems of one kind: the first few, how many more, and the cure."""
    shown = findings if show_all else findings[:_SHOWN]
    cures = {finding.problem.cure for finding in shown}
    for finding in shown:
        problem = finding.problem
        where = str(problem.file) if problem.line is None else f"{problem.file}:{problem.line}"
        yield from _wrapped(f"{title}  ", f"{where}: {problem.what}.", "    ")
        if len(cures) > 1:
            yield from _wrapped("    → ", problem.cure, "      ")
    if len(findings) > len(shown):
        yield f"    … and {len(findings) - len(shown):,} more of this kind (--all shows them)"
    if len(cures) == 1:
        yield from _wrapped("    → ", cures.pop(), "      ")


def _wrapped(first: str, text: str, then: str) -> list[str]:
    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    )


def convert(
    source: Annotated[Path, typer.Argument(help="A data set in any format, a feature store, or BUTD files.")],
    target: Annotated[Path, typer.Argument(help="A new folder.")],
    to: Annotated[
        str,
        typer.Option(
            help="karpathy, imagefolder, csv, tsv, jsonl, parquet, webdataset, huggingface, folder, precomp, features."
        ),
    ],
    split: Annotated[list[str] | None, typer.Option(help="Only this split; repeatable.")] = None,
    format: Annotated[str | None, typer.Option(help="The format of the source, if not detected correctly.")] = None,
    images: Annotated[Path | None, typer.Option(help="The image folder, if the data does not name it.")] = None,
    features: Annotated[Path | None, typer.Option(help="A feature store to use instead of the images.")] = None,
    captions: Annotated[int | None, typer.Option(min=1, help="Keep only the first N captions of each image.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Keep only the first N images of each split.")] = None,
    skip_missing: Annotated[bool, typer.Option("--skip-missing", help="Skip images whose files are missing.")] = False,
    dtype: Annotated[
        Literal["float16", "float32"] | None, typer.Option(help="Type of stored features. Default: unchanged.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Reading threads. Default: one per core, up to 8.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a data set in another format. Ids, captions and splits are kept.

    If it is interrupted, run the same command again to resume. The folder gets its final name only when it is complete.
    Data that the format cannot hold is refused before anything is written.

    Examples:

      maxmatch data convert flickr8k f8k_shards --to webdataset

      maxmatch data convert trainval_36 regions --to features --dtype float16

      maxmatch data convert coco.json precomp --to precomp --features regions
    """
    from maxmatch.cli.common import cores, resumable, say
    from maxmatch.core.progress import bar
    from maxmatch.data.convert import convert as run
    from maxmatch.data.dataset import report_first

    with report_first(say) as report, resumable(target):
        done = run(
            source, target, to, format=format, images=images, features=features, splits=split, captions=captions,
            limit=limit, skip_missing=skip_missing, dtype=dtype, workers=workers or cores(), report=report, say=say,
            bar=bar,
        )  # fmt: skip
    if as_json:
        about = {"path": str(done.path), "format": done.format, "images": done.images, "captions": done.captions}
        print(json.dumps(about))
        return
    counts = ", ".join(
        f"{name} {count:,} images" + (f" with {done.captions[name]:,} captions" if name in done.captions else "")
        for name, count in done.images.items()
    )
    print(f"{done.path}: {done.format}; {counts}")


def features(
    data: Annotated[Path, typer.Argument(help="A data set with images, in any format.")],
    store: Annotated[Path, typer.Argument(help="A new folder for the features.")],
    model: Annotated[
        str,
        typer.Option(
            help="A checkpoint's folder, a preset, a CLIP or SigLIP (its folder or hub name), or hf:NAME for the "
            "bare backbone of a Hugging Face vision model."
        ),
    ],
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="float16 takes half the space.")] = "float16",
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images per batch. Default: 64 on a GPU, 4 on a CPU.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU if there is one.")] = None,
    split: Annotated[list[str] | None, typer.Option(help="Only this split; repeatable.")] = None,
    format: Annotated[str | None, typer.Option(help="The format of the data, if not detected correctly.")] = None,
    images: Annotated[Path | None, typer.Option(help="The image folder, if the data does not name it.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that decode images; 0: threads instead. Default with a GPU: one per core, up to 16.",
        ),
    ] = None,
    texts: Annotated[
        bool, typer.Option(help="With a CLIP or SigLIP: also store the states of all tokens of all captions.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Run a frozen backbone once and store its features.

    Features are stored by image id, and one store serves all splits. If it is interrupted, run the same command again
    to resume. An image that cannot be read is reported and skipped. Of a CLIP or SigLIP the captions are encoded, too,
    so that sets train on top of it without running it again.

    Examples:

      maxmatch data features flickr8k f8k_grid --model efficientnet_lite0_bigru

      maxmatch data features flickr8k f8k --model openai/clip-vit-base-patch32

      maxmatch data features flickr8k f8k_dino --model hf:facebook/dinov2-base

      maxmatch train flickr8k_maxmatch data.path=flickr8k data.features=f8k_grid
    """
    from maxmatch.cli.common import resumable, say
    from maxmatch.core.devices import chosen_device
    from maxmatch.core.progress import bar
    from maxmatch.data.dataset import report_first
    from maxmatch.data.extraction import (
        TEXTS,
        decoding_workers,
        describe_store,
        distinct_texts,
        extract,
        extract_texts,
        load_backbone,
    )
    from maxmatch.data.features import FeatureWriter
    from maxmatch.data.load import read_dataset

    place = chosen_device(device)
    batch_size = batch_size or (4 if place.type == "cpu" else 64)  # larger ones only wait for memory on a CPU
    workers = decoding_workers(place) if workers is None else workers
    backbone = load_backbone(model, place)
    info = describe_store(backbone, dtype)
    say(f"{info.source}")
    with report_first(say) as report:
        options = {} if images is None else {"images": images.expanduser()}
        dataset = read_dataset(data, format, report, **options)
        if split:
            dataset = replace(dataset, splits={name: dataset.split(name) for name in split})
        total = len({image for part in dataset.splits.values() for image in part["image"].ids})
        with resumable(store), bar("pictures", total) as advance, FeatureWriter(store.expanduser(), info) as writer:
            extract(backbone, dataset, writer, batch_size, report, advance, workers)
            done = writer.finish()
        captions = len(distinct_texts(dataset)) if texts and backbone.texts is not None else 0
        if captions and backbone.texts is not None:
            described = backbone.texts.describe(dtype)
            with (
                resumable(store),
                bar("captions", captions) as advance,
                FeatureWriter(store.expanduser() / TEXTS, described) as writer,
            ):
                extract_texts(backbone.texts, dataset, writer, batch_size, advance)
                writer.finish()
    if as_json:
        counts = {"images": len(done), "left_out": total - len(done), "texts": captions}
        print(json.dumps({"path": str(store), **counts, **asdict(info)}))
        return
    left_out = f", {total - len(done):,} left out" if total > len(done) else ""
    print(f"{store}: {len(done):,} images{left_out}, {len(done.values[0])} × {info.width} {dtype} each")
    if captions:
        print(f"{store / TEXTS}: {captions:,} captions, each with its vector and the states of its tokens")


_HELP = """Generate, check and convert data sets.

Formats: Karpathy's JSON, precomp folders, BUTD files, tables (CSV, TSV,
JSON lines, Parquet), image folders, WebDataset tar files, Hugging Face data
sets, plain folders of images, and feature stores.

Check the data before training; problems are listed with a fix:

  maxmatch data check f30k/dataset_flickr30k.json --images f30k/images

Convert to another format (an interrupted command resumes when run again):

  maxmatch data convert flickr8k f8k_shards --to webdataset

Store the features of a frozen backbone once, and train on them:

  maxmatch data features flickr8k f8k_grid --model efficientnet_lite0_bigru

  maxmatch train flickr8k_maxmatch data.path=flickr8k data.features=f8k_grid

Generate data for experiments:

  maxmatch data scenes scenes --images 2000
"""

app = typer.Typer(help=_HELP, short_help="Generate, check and convert data sets.", no_args_is_help=True)
app.command()(check)
app.command()(convert)
app.command()(features)


@app.command()
def scenes(
    folder: Annotated[Path, typer.Argument(help="The folder to write to; an interrupted run resumes.")],
    images: Annotated[int, typer.Option(min=1, help="Number of images.")] = 2_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same scenes.")] = 0,
    size: Annotated[int, typer.Option(min=32, max=1024, help="Width and height in pixels.")] = 96,
) -> None:
    """Generate images with five captions each.

    The scenes show shapes in various colours, sizes and textures, next to, above and inside one another. Use them to
    try things out. The meaning of each scene is stored as metadata.

    Examples:

      maxmatch data scenes scenes

      maxmatch data scenes scenes --images 6000 --size 128 --seed 1
    """
    from maxmatch.cli.common import cores, resumable
    from maxmatch.core.progress import bar
    from maxmatch.data.scenes import generate, split_sizes

    workers = cores() if images >= 500 else None  # fewer are drawn before other processes have started
    with resumable(folder), bar("scenes", images) as advance:
        generate(folder, images, seed, size, workers=workers, advance=advance)
    sizes = ", ".join(f"{name} {count:,}" for name, count in split_sizes(images).items())
    print(f"{folder}: {images:,} pictures with five captions each ({sizes})")
