"""`maxmatch export`: write a model in half precision, or as ONNX for programs without torch."""

import json
from pathlib import Path
from typing import Annotated

import typer


def export(
    model: Annotated[str, typer.Argument(help="The folder of a model or a run, or a name on the Hugging Face Hub.")],
    folder: Annotated[Path, typer.Argument(help="Where to write it: a new or empty folder, or that of a checkpoint.")],
    half: Annotated[
        bool,
        typer.Option(
            "--half", help="Store weights as float16: half the size. An index treats this as a different model."
        ),
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write ONNX graphs, so that a search does not need to load torch.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write a model in half precision or as ONNX.

    `maxmatch search` uses the ONNX graphs if the model's folder has them. To an index, the graphs and the original are
    the same model: what one has indexed, the other can search.

    Examples:

      maxmatch export runs/first small --half

      maxmatch export runs/first fast --onnx

      maxmatch search "two dogs in the snow" ~/Pictures --model fast
    """
    from maxmatch.cli.common import load_model, say

    if onnx:
        try:
            import onnxscript  # noqa: F401

            from maxmatch.model.onnx_export import export_onnx
        except ImportError as error:
            raise ValueError(f"--onnx needs {error.name}: pip install 'maxmatch[onnx]'") from error
    loaded = load_model(model, "cpu")
    place = loaded.save_pretrained(folder, "float16" if half else None)
    if onnx:
        say("exporting the graphs, which takes about a minute")
        export_onnx(place)
    files = {path.name: path.stat().st_size for path in sorted(place.iterdir()) if path.is_file()}
    if as_json:
        print(json.dumps({"folder": str(place), "files": files}))
    else:
        for name, size in files.items():
            print(f"{size / 2**20:8.1f} MB  {place / name}")
