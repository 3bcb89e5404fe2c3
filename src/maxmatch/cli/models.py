"""`maxmatch models`: list the models that ship, are in the hub's cache, or can be downloaded."""

import json
from typing import Annotated

import typer


def models(as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False) -> None:
    """List models that ship, are cached, or can be downloaded.

    Use their names with the --model option of other commands. This command downloads nothing.

    Examples:

      maxmatch models

      maxmatch search "a dog" ~/Pictures --model openai/clip-vit-base-patch32
    """
    from maxmatch.model.names import KNOWN_MODELS, cached_models, shipped_models

    cached = cached_models()
    here = {model.name for model in cached}
    listed = {
        "ships": shipped_models(),
        "cached": cached,
        "hub": [model for model in KNOWN_MODELS if model.name not in here],
    }
    if as_json:
        print(json.dumps({place: [model._asdict() for model in models] for place, models in listed.items()}))
        return
    titles = {"ships": "Ships with MaxMatch", "cached": "In the hub's cache", "hub": "On the hub, for instance"}
    for place, title in titles.items():
        print(title)
        for model in listed[place]:
            size = "" if model.size is None else f"{model.size / 1e6:,.0f} MB"
            print(f"  {model.name:<46}{model.kind:<14}{size:>9}  {model.licence or 'licence: see its model card'}")
        if not listed[place]:
            print("  none")
