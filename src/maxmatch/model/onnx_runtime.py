"""A model run by ONNX Runtime: it needs NumPy, Pillow and tokenizers, and no torch."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from maxmatch.core.manifest import load_manifest
from maxmatch.model.config import ConfigPart, Conv, HubImage, HubText, ModelConfig, OwnEncoder
from maxmatch.model.images import ImageTransform
from maxmatch.model.inputs import encode_items
from maxmatch.model.text import Words, as_text, encode_arrays, known_words, load_tokenizer, read_tokenizer, text_length

FORMAT = "maxmatch.onnx"
FILE = "onnx.json"
SCHEMA_VERSION = 1
"""The version of what is written to onnx.json. A reader refuses a higher one."""


class OnnxError(ValueError):
    """A folder that is not an exported model, or a damaged one."""


class Graph(ConfigPart):
    """The graph of one tower. Its inputs are `pixels`, `features` and `mask`, or `ids` and `mask`; its outputs
    `vectors` (B, K, D), of unit length, and `attention` (B, K, N).
    """

    file: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    sha256: str
    tokenizer: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = None
    """The file of the tower's tokenizer, for texts."""
    tokenizer_sha256: str | None = None


class Exported(ConfigPart):
    """onnx.json: what an exported model consists of. Written last, so that a folder with it is complete."""

    schema_version: Literal[1] = 1
    identity: str
    """That of the model which was exported, so that an index accepts both."""
    opset: int
    """The version of ONNX's operators."""
    config: ModelConfig
    towers: dict[str, Graph]


def read_exported(folder: Path) -> Exported:
    """What is in a folder. OnnxError where it is not an exported model."""
    if not (folder / FILE).is_file():
        what = "holds no ONNX files" if folder.is_dir() else "no such folder"
        raise OnnxError(f"{folder}: {what} ({FILE} is missing). Make them: maxmatch export MODEL FOLDER --onnx")
    called, cure = "an exported model of MaxMatch", "Export the model again."
    return load_manifest(folder / FILE, Exported, FORMAT, OnnxError, called, cure, SCHEMA_VERSION)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_exported(path: Path, sha256: str | None) -> Path:
    """A file of an exported model. Any other file is refused: its sets would pass for the model's own."""
    if not path.is_file():
        raise OnnxError(f"{path}: missing. Copy the whole folder, or export the model again.")
    if sha256 is None:
        raise OnnxError(f"{path}: written by an older MaxMatch, which recorded no hash. Export the model again.")
    if digest(path) != sha256:
        raise OnnxError(f"{path}: not the file that was exported. Copy the folder or export the model again.")
    return path


class OnnxEncoder:
    """The calls of `SetEncoder` that a search makes, in NumPy, to 1e-4. A tower's graph is loaded when first used.

    `maxmatch export MODEL exported --onnx` makes the folder for `OnnxEncoder.from_folder("exported")`.
    """

    def __init__(self, folder: Path, exported: Exported) -> None:
        self.folder = folder
        self.exported = exported
        self.config = exported.config
        self.identity = exported.identity
        self.dim = self.config.width
        self.similarity_name: str = self.config.similarity
        self._running: dict[str, tuple[Any, _Reader]] = {}
        self._tokenizers: dict[str, Any] = {}

    @classmethod
    def from_folder(cls, folder: str | Path) -> "OnnxEncoder":
        """The model that was exported to a folder."""
        folder = Path(folder).expanduser()
        return cls(folder, read_exported(folder))

    @property
    def towers(self) -> list[str]:
        """The modalities it reads."""
        return list(self.exported.towers)

    @property
    def set_sizes(self) -> dict[str, int]:
        """K of each tower."""
        return {name: self.config.towers[name].set_size for name in self.towers}

    def encode(
        self,
        modality: str,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        errors: Literal["raise", "skip"] = "raise",
    ) -> Any:
        """The sets (n, K, D) of raw items, as `SetEncoder.encode`: an array, or an `Encoded` with errors="skip"."""
        session, reader = self._tower(modality)
        return encode_items(
            modality,
            items,
            batch_size,
            show_progress,
            errors,
            reader=reader,
            empty=lambda count: np.empty((count, self.set_sizes[modality], self.dim), np.float32),
            encode_batch=lambda inputs: session.run(["vectors"], inputs)[0],
        )

    def encode_images(
        self,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        errors: Literal["raise", "skip"] = "raise",
    ) -> Any:
        """The sets of pictures: paths, bytes, PIL images, arrays. As `encode("image", …)`."""
        return self.encode("image", items, batch_size, show_progress, errors)

    def encode_texts(self, texts: Iterable[str], batch_size: int = 64, show_progress: bool | None = None) -> Any:
        """The sets of texts. As `encode("text", …)`."""
        return self.encode("text", texts, batch_size, show_progress)

    def known_words(self, *texts: str) -> Words:
        """As `SetEncoder.known_words`."""
        self._tower("text")
        return known_words(self._tokenizers["text"], *texts)

    def _tower(self, modality: str) -> "tuple[Any, _Reader]":
        """The session that runs a tower, and how its items are read."""
        if modality not in self.exported.towers:
            raise ValueError(f"modality: this model has {', '.join(self.towers)}, got {modality!r}.")
        if modality not in self._running:
            graph = self.exported.towers[modality]
            session = _session(self.folder / graph.file, graph.sha256)
            encoder = self.config.towers[modality].encoder
            if graph.tokenizer is not None:
                read = read_tokenizer if isinstance(encoder, HubText) else load_tokenizer
                tokenizer = read(as_exported(self.folder / graph.tokenizer, graph.tokenizer_sha256))
                self._tokenizers[modality] = tokenizer
                reader = _Reader(text_length, as_text, lambda items: encode_arrays(tokenizer, items)._asdict())
            elif isinstance(encoder, Conv | HubImage | OwnEncoder) and encoder.reads == "pixels":
                transform = _transform(encoder)
                reader = _Reader(lambda item: 1, transform.pixels, lambda items: {"pixels": np.stack(items)})
            else:
                raise OnnxError(f"{self.folder}: the tower {modality!r} reads neither pictures nor texts.")
            self._running[modality] = session, reader
        return self._running[modality]


def _transform(encoder: Conv | HubImage | OwnEncoder) -> ImageTransform:
    if not isinstance(encoder, HubImage):
        return ImageTransform(**encoder.pixels.values())
    from maxmatch.model.hub.preprocessing import processor_transform  # which needs transformers, and loads torch

    return processor_transform(encoder.preprocessor)


class _Reader(NamedTuple):
    """A `maxmatch.model.inputs.Reader` that collates arrays, by the names of a graph's inputs."""

    length: Callable[[Any], int]
    read: Callable[[Any], Any]
    collate: Callable[[Sequence[Any]], dict[str, np.ndarray]]


def _session(path: Path, sha256: str) -> Any:
    """A graph, ready to run."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ValueError(f"{path}: running it needs {error.name}: pip install 'maxmatch[onnx]'") from error
    as_exported(path, sha256)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that wait leave the cores alone
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
