"""onnx.json: what an exported model consists of. Written last, so that a folder with it is whole."""

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from maxmatch.config import ModelConfig, Part
from maxmatch.described import description, read_described
from maxmatch.files import write_whole

FORMAT = "maxmatch.onnx"
FILE = "onnx.json"
SCHEMA_VERSION = 1
"""The version of what is written to onnx.json. A reader refuses a higher one."""


class OnnxError(ValueError):
    """A folder that is no exported model, or a damaged one."""


class Graph(Part):
    """The graph of one tower. Its inputs are `pixels`, `features` and `mask`, or `ids` and `mask`; its outputs
    `vectors` (B, K, D), of unit length, and `attention` (B, K, N).
    """

    file: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    sha256: str
    tokenizer: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = None
    """The file of the tower's tokenizer, for texts."""
    tokenizer_sha256: str | None = None


class Exported(Part):
    """A model as graphs."""

    schema_version: Literal[1] = 1
    identity: str
    """That of the model which was exported: an index takes both for the same."""
    opset: int
    """The version of ONNX's operators."""
    config: ModelConfig
    towers: dict[str, Graph]


def read_exported(folder: Path) -> Exported:
    """What is in a folder; of one that is no exported model, a refusal."""
    if not (folder / FILE).is_file():
        what = "holds no ONNX files" if folder.is_dir() else "no such folder"
        raise OnnxError(f"{folder}: {what} ({FILE} is missing). Make them: maxmatch export MODEL FOLDER --onnx")
    cure = "Export the model again."
    return read_described(
        folder / FILE, Exported, FORMAT, OnnxError, "an exported model of MaxMatch", cure, SCHEMA_VERSION
    )


def write_exported(folder: Path, exported: Exported) -> None:
    """Write onnx.json."""
    write_whole(folder / FILE, description(exported, FORMAT) + "\n")


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_exported(path: Path, sha256: str | None) -> Path:
    """A file of an exported model. One that is not what was exported is refused: its sets would pass for the model's
    own.
    """
    if not path.is_file():
        raise OnnxError(f"{path}: missing. Copy the whole folder, or export the model again.")
    if sha256 is None:
        raise OnnxError(f"{path}: this folder is of an older MaxMatch, which noted no hash. Export the model again.")
    if digest(path) != sha256:
        raise OnnxError(f"{path}: not the file that was exported. Copy the folder or export the model again.")
    return path
