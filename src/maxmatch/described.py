"""JSON files by which a folder describes itself: a checkpoint, an index, shards of sets."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from maxmatch import __version__
from maxmatch.config import problems

Described = TypeVar("Described", bound=BaseModel)


def read_described(
    path: Path, kind: type[Described], form: str, refusal: type[ValueError], called: str, cure: str, version: int = 1
) -> Described:
    """What a file describes. Refused: what is no JSON (with the cure), of another format, of a newer version, or wrong.

    called: what the folder should be, as in "a checkpoint of MaxMatch".
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
        raise refusal(
            f"{path}: schema version {newer}, but this MaxMatch ({__version__}) reads up to {version}. "
            "Upgrade: pip install --upgrade maxmatch"
        )
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise refusal(f"{path}: {problems(error)}") from error


def description(described: BaseModel, form: str) -> str:
    """The text of such a file."""
    head = {"format": form, "written_by": f"maxmatch {__version__}"}
    return json.dumps({**head, **described.model_dump(mode="json")}, indent=2, ensure_ascii=False)
