"""index.json: what an index is made of. Written whole or not at all."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationError

from maxmatch import __version__
from maxmatch.config import Count, Part, SimilarityName, problems
from maxmatch.files import write_whole

FORMAT = "maxmatch.SetIndex"
FILE = "index.json"
SCHEMA_VERSION = 1
"""The version of what is written to index.json. A reader refuses a higher one."""


class IndexFolderError(ValueError):
    """A folder that is no index, a damaged one, or one of a newer version."""


class Tuning(Part):
    """How to search, as measured against the exhaustive scan."""

    candidates: Count
    """How many items are scored exactly, for the k best of `k`."""
    effort: Annotated[float, Field(gt=0)]
    k: Count
    recall: Annotated[float, Field(ge=0, le=1)]
    """The share of the k truly best that were found."""
    low: Annotated[float, Field(ge=0, le=1)]
    high: Annotated[float, Field(ge=0, le=1)]
    """The 95 % interval of the recall."""
    queries: Count
    """How many searches it was measured with."""
    items: Count
    """How many items there were."""
    real_queries: bool
    """Whether the queries were given (captions, say), or drawn from the items themselves."""


class Manifest(Part):
    """What an index is made of."""

    schema_version: Literal[1] = 1
    set_size: Annotated[int, Field(ge=1, le=16)]
    dim: Count
    dtype: Literal["float32", "float16"] = "float32"
    similarity: SimilarityName = "maxmatch"
    model: str | None = None
    """The identity of the model that made the sets; see `maxmatch.search.identity`."""
    stability: Annotated[float, Field(ge=0, le=1)] | None = None
    """How often slot i meets slot i in a true pair. None: not known."""
    engine: str = "lance"
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    tuning: Tuning | None = None


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index; of a folder that is none, or of a newer version, a refusal."""
    path = folder / FILE
    if not path.is_file():
        what = "holds no index" if folder.is_dir() else "no such folder"
        raise IndexFolderError(
            f"{folder}: {what} ({FILE} is missing). Make one with `maxmatch index build` or SetIndex.create."
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise IndexFolderError(f"{path}: not readable as JSON ({error}). Restore it from a copy.") from error
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise IndexFolderError(f"{path}: not an index of MaxMatch (its format is not {FORMAT!r}).")
    data.pop("written_by", None)
    version = data.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise IndexFolderError(
            f"{path}: schema version {version}, but this MaxMatch ({__version__}) reads up to {SCHEMA_VERSION}. "
            "Upgrade: pip install --upgrade maxmatch"
        )
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        raise IndexFolderError(f"{path}: {problems(error)}") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace index.json."""
    head = {"format": FORMAT, "written_by": f"maxmatch {__version__}"}
    text = json.dumps({**head, **manifest.model_dump(mode="json")}, indent=2, ensure_ascii=False)
    write_whole(folder / FILE, text + "\n")
