"""`maxmatch data features`: a frozen backbone, run once."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

import typer


def features(
    data: Annotated[Path, typer.Argument(help="A data set of pictures, in any format.")],
    store: Annotated[Path, typer.Argument(help="A new folder for the features.")],
    model: Annotated[
        str, typer.Option(help="A checkpoint's folder, a preset, or hf:NAME for a vision model of Hugging Face.")
    ],
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="float16 takes half the room.")] = "float16",
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Pictures at once. Default: 64 on a GPU, 4 on a CPU.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: a GPU where there is one.")] = None,
    split: Annotated[list[str] | None, typer.Option(help="Only this split; may be given again.")] = None,
    format: Annotated[str | None, typer.Option(help="The data's format, if not the one recognised.")] = None,
    images: Annotated[Path | None, typer.Option(help="The folder of the pictures, where the data do not say.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Run a frozen backbone once. The grid it makes of each picture is kept, so that training does not have to.

    Features are known by the ids of the images; one store serves all splits. What was interrupted goes on when the same
    command runs again. A picture that cannot be read is named and left out.

    Examples:

      maxmatch data features flickr8k f8k_grid --model efficientnet_lite0_bigru

      maxmatch data features flickr8k f8k_dino --model hf:facebook/dinov2-base --dtype float32

      maxmatch train flickr8k_maxmatch data.path=flickr8k data.features=f8k_grid
    """
    from maxmatch.cli.progress import bar, say
    from maxmatch.data.feature_writer import FeatureWriter
    from maxmatch.data.problems import saying_the_first
    from maxmatch.data.reading import read_dataset
    from maxmatch.devices import chosen_device
    from maxmatch.extraction import describe_store, extract, load_backbone

    place = chosen_device(device)
    batch_size = batch_size or (4 if place.type == "cpu" else 64)  # larger ones only wait for memory on a CPU
    backbone = load_backbone(model, place)
    info = describe_store(backbone, dtype)
    say(f"{info.source}")
    with saying_the_first(say) as report:
        options = {} if images is None else {"images": images.expanduser()}
        dataset = read_dataset(data, format, report, **options)
        if split:
            dataset = replace(dataset, splits={name: dataset.split(name) for name in split})
        total = len({image for part in dataset.splits.values() for image in part["image"].ids})
        with bar("pictures", total) as advance, FeatureWriter(store.expanduser(), info) as writer:
            extract(backbone.encoder, backbone.reader, dataset, writer, batch_size, report, advance)
            done = writer.finish()
    if as_json:
        print(json.dumps({"path": str(store), "images": len(done), "left_out": total - len(done), **asdict(info)}))
        return
    left_out = f", {total - len(done):,} left out" if total > len(done) else ""
    print(f"{store}: {len(done):,} images{left_out}, {len(done[0])} × {info.width} {dtype} each")
