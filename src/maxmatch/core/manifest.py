"""JSON manifests: the file by which a checkpoint, an index or a folder of shards describes itself."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from maxmatch import __version__

Manifest = TypeVar("Manifest", bound=BaseModel)


def load_manifest(
    path: Path,
    kind: type[Manifest],
    form: str,
    refusal: type[ValueError],
    called: str,
    cure: str,
    version: int = 1,
    too_new: type[ValueError] | None = None,
) -> Manifest:
    """Read and check a manifest. `refusal` is raised for what is not JSON, of another format, too new or wrong.

    called: what the folder should be, as in "a checkpoint of MaxMatch". cure: what to do where it is not JSON. too_new:
    raised instead for a newer version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise refusal(f"{path}: not readable as JSON ({error}). {cure}") from error
    if not isinstance(data, dict) or data.pop("format", None) != form:
        raise refusal(f"{path}: not {called} (its format is not {form!r}).")
    data.pop("written_by", None)
    newer = data.get("schema_version")
    if isinstance(newer, int) and newer > version:
        raise (too_new or refusal)(
            f"{path}: schema version {newer}, but this MaxMatch ({__version__}) reads up to {version}. "
            "Upgrade: pip install --upgrade maxmatch"
        )
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise refusal(f"{path}: {problems(error)}") from error


def manifest_text(manifest: BaseModel, form: str) -> str:
    """The text of a manifest file."""
    head = {"format": form, "written_by": f"maxmatch {__version__}"}
    return json.dumps({**head, **manifest.model_dump(mode="json")}, indent=2, ensure_ascii=False)


def problems(error: ValidationError) -> str:
    """What is wrong with a configuration, one line per problem: where, what was expected, what came."""
    return "\n".join(map(describe, error.errors()))


def describe(problem: ErrorDetails) -> str:
    """One problem in one line."""
    where = ".".join(map(str, location(problem))) or "config"
    text = problem["msg"].removeprefix("Value error, ")
    if problem["type"] not in ("value_error", "missing", "refusal"):
        text += f", got {problem['input']!r}"[:200]
    return f"{where}: {text}"


def location(problem: ErrorDetails) -> tuple[int | str, ...]:
    """Where a problem is: the keys from the outside in."""
    return (*problem["loc"], *problem["ctx"]["keys"]) if problem["type"] == "refusal" else problem["loc"]
