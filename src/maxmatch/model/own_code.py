"""Encoders and heads that are not part of the package, by name: `module:Class` in a config.

A config is data, and may come from anyone, so a class is imported only where the user allows its name: by
`SetEncoder.from_pretrained(..., allow=["module:Class"])`, or in the environment variable MAXMATCH_ALLOW_CODE, separated
by commas; "module" alone allows all classes in it. Modules are found as Python finds any other, never in the folder of
a checkpoint.
"""

import os
from collections.abc import Collection
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from maxmatch.model.config import ModelConfig, OwnEncoder, OwnHead

ALLOWED = "MAXMATCH_ALLOW_CODE"
"""The environment variable that lists what may be imported."""


def own_part(
    part: OwnEncoder | OwnHead, needs: Collection[str], allow: Collection[str], *given: Any, **named: Any
) -> Any:
    """The module that a part of a config names, built from what is given and its options. needs: the attributes that it
    must have. ValueError where the user has not allowed it, or it cannot be built.
    """
    kind = _allowed_class(part.code, allow)
    try:
        built = kind(*given, **named, **part.options)
    except TypeError as error:
        raise ValueError(f"{part.code}: cannot be built ({error}). Its options are {part.options}.") from error
    lacks = [name for name in ("state_dict", *needs) if not hasattr(built, name)]
    if lacks:
        raise ValueError(f"{part.code}: expected a torch module with {', '.join(needs)}; it lacks {', '.join(lacks)}.")
    return built


def refuse_code_in(folder: Path, config: ModelConfig) -> None:
    """Refuse a checkpoint whose classes would be imported from its own folder, allowed or not."""
    for tower in config.towers.values():
        for part in (tower.encoder, tower.head):
            if not isinstance(part, OwnEncoder | OwnHead):
                continue
            try:
                found = find_spec(part.code.partition(":")[0].partition(".")[0])
            except ValueError:  # a module that was made by hand has none
                continue
            places = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
            if any(place and Path(place).resolve().is_relative_to(folder.resolve()) for place in places):
                raise ValueError(
                    f"{part.code} would be imported from the checkpoint's own folder, which MaxMatch never does. "
                    "Install the package, or start Python in another folder."
                )


def _allowed_class(code: str, allow: Collection[str]) -> Any:
    module, _, name = code.partition(":")
    listed = [one.strip() for one in os.environ.get(ALLOWED, "").split(",")]
    if {code, module}.isdisjoint([*allow, *listed]):
        raise ValueError(
            f"{code} is code that is not part of MaxMatch, and is run only where you allow it. If you trust it: "
            f'SetEncoder.from_pretrained(..., allow=["{code}"]), or set {ALLOWED}={code} in the environment.'
        )
    try:
        found: Any = import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{code}: cannot be imported ({error}). Install its package, or put its folder on PYTHONPATH."
        ) from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise ValueError(f"{code}: {module} has no {name}. Check the name.") from error
    if not callable(found):
        raise ValueError(f"{code}: expected a class, got {type(found).__name__}.")
    return found
