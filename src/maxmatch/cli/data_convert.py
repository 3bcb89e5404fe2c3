"""`maxmatch data convert`: from one format to another."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer


def convert(
    source: Annotated[Path, typer.Argument(help="A data set in any format, a store of features, or BUTD files.")],
    target: Annotated[Path, typer.Argument(help="A new folder.")],
    to: Annotated[
        str,
        typer.Option(
            help="karpathy, imagefolder, csv, tsv, jsonl, parquet, webdataset, huggingface, folder, precomp, features."
        ),
    ],
    split: Annotated[list[str] | None, typer.Option(help="Only this split; may be given again.")] = None,
    format: Annotated[str | None, typer.Option(help="The source's format, if not the one recognised.")] = None,
    images: Annotated[Path | None, typer.Option(help="The folder of the pictures, where the data do not say.")] = None,
    features: Annotated[Path | None, typer.Option(help="A store whose features replace the pictures.")] = None,
    captions: Annotated[int | None, typer.Option(min=1, help="Only the first captions of each image.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first images of each split.")] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out images whose files are missing.")
    ] = False,
    dtype: Annotated[
        Literal["float16", "float32"] | None, typer.Option(help="Of the features in a store; else as they are.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="At once; as many as there are cores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a data set in another format. Ids, captions and splits stay what they are.

    What was interrupted goes on when the same command runs again; the folder has its name only when all of it is there.
    What a format cannot hold is refused before anything is written.

    Examples:

      maxmatch data convert flickr8k f8k_shards --to webdataset

      maxmatch data convert trainval_36 regions --to features --dtype float16

      maxmatch data convert dataset_coco.json coco_precomp --to precomp --features regions --captions 5
    """
    from maxmatch.cli.progress import bar, cores, say
    from maxmatch.data.convert import convert as run
    from maxmatch.data.problems import saying_the_first

    with saying_the_first(say) as report:
        done = run(
            source, target, to, format=format, images=images, features=features, splits=split, captions=captions,
            limit=limit, skip_missing=skip_missing, dtype=dtype, workers=workers or cores(), report=report, say=say,
            progress=bar,
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
