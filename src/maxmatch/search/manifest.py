"""index.json: what an index is made of. Written whole or not at all."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from maxmatch.config import Count, Part, SimilarityName
from maxmatch.described import description, read_described
from maxmatch.files import write_whole

FORMAT = "maxmatch.SetIndex"
FILE = "index.json"
_HEAD = 4096  # bytes; the format is said at the beginning
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


def is_index(folder: Path) -> bool:
    """Whether a folder is an index, a damaged one too; index.json is a usual name, so that it alone says nothing."""
    try:
        with (folder / FILE).open("rb") as file:
            return f'"{FORMAT}"'.encode() in file.read(_HEAD) or (folder / "items.lance").is_dir()
    except OSError:
        return False


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index; of a folder that is none, or of a newer version, a refusal."""
    path = folder / FILE
    if not path.is_file():
        what = "holds no index" if folder.is_dir() else "no such folder"
        raise IndexFolderError(
            f"{folder}: {what} ({FILE} is missing). Make one with `maxmatch index build` or SetIndex.create."
        )
    return read_described(
        path, Manifest, FORMAT, IndexFolderError, "an index of MaxMatch", "Restore it from a copy.", SCHEMA_VERSION
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace index.json."""
    write_whole(folder / FILE, description(manifest, FORMAT) + "\n")
