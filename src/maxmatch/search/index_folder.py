"""The folder of an index: its manifest (index.json), its lock, and checks of what is added."""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, JsonValue, model_validator

from maxmatch.core.array_checks import (
    MAX_SET_SIZE,
    Array,
    NotFiniteError,
    check_set_size,
    check_sets,
    refuse_not_finite,
    shape_of,
)
from maxmatch.core.files import is_draft, locked, user_cache, write_whole
from maxmatch.core.manifest import load_manifest, manifest_text
from maxmatch.core.ragged_array import RaggedArray
from maxmatch.matching import SIMILARITIES, SetSimilarity
from maxmatch.model.config import ConfigPart, Count, Positive, SimilarityName, check_similarity_options, refusal
from maxmatch.model.names import model_title, package_version
from maxmatch.search.engine import ItemRows, Vectors

FORMAT = "maxmatch.SetIndex"
FILE = "index.json"
ANY_SIZE = 2
"""The schema version of an index of sets of any size."""
_HEAD = 4096  # bytes; the format is named at the beginning
TABLE = "items.lance"
KEYS = "items.keys"
"""The short keys of a table's items: a cache, which may be missing."""


class IndexFolderError(ValueError):
    """A folder that is not an index, or a damaged one, or one of a newer version."""


class NewerIndexError(IndexFolderError):
    """An index of a newer version."""


class ReplacedIndexError(ValueError):
    """An index that `maxmatch index rebuild` has replaced since it was opened."""


class Tuning(ConfigPart):
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


class Manifest(ConfigPart):
    """What an index is made of."""

    schema_version: Literal[1, 2] = 1
    """2: of sets of any size, which releases that know version 1 alone refuse; 1: of all others."""
    set_size: Annotated[int, Field(ge=1, le=16)] | None
    """The number of vectors of every item; None: each has its own."""
    dim: Count
    dtype: Literal["float32", "float16"] = "float32"
    similarity: SimilarityName = "maxmatch"
    similarity_options: dict[str, int | Positive] = Field(default_factory=dict)
    """What the model was trained with, as the alpha of smooth_chamfer; where not given, the similarity's own."""
    model: str | None = None
    """The identity of the model that made the sets; see `maxmatch.model.names`."""
    stability: Annotated[float, Field(ge=0, le=1)] | None = None
    """How often slot i meets slot i in a true pair. None: not known."""
    engine: str = "lance"
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    tuning: Tuning | None = None

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        check_similarity_options(self.similarity, self.similarity_options)
        size = SIMILARITIES[self.similarity].set_size
        if (self.set_size is None) != (self.schema_version == ANY_SIZE):
            raise refusal(f"sets of {self.set_size or 'any number of'} vectors do not go with it", "schema_version")
        if self.set_size is None:
            self._check_any_size()
        if size not in (None, self.set_size):
            raise refusal(f"{self.similarity} compares sets of {size} vectors, got {self.set_size}", "set_size")
        return self

    def _check_any_size(self) -> None:
        """Refuse what needs sets of one size."""
        if self.engine == "milvus":
            raise refusal("milvus stores sets of one size; for sets of any size take lance or exhaustive", "engine")
        if self.scoring.in_order or self.scoring.set_size is not None:
            raise refusal(f"{self.similarity} compares sets of one size; take another, as maxsim", "similarity")

    @property
    def any_size_limit(self) -> int | None:
        """How many vectors a set may have: of those that are matched one to one 16; None: any number."""
        return MAX_SET_SIZE if self.set_size is not None or self.scoring.fast else None

    @property
    def scoring(self) -> SetSimilarity:
        """The similarity with its options."""
        return SIMILARITIES[self.similarity].with_options(self.similarity_options)


def is_index(folder: Path) -> bool:
    """Whether a folder is an index, a damaged one too; index.json is a common name, so that it alone is no proof."""
    try:
        with (folder / FILE).open("rb") as file:
            return f'"{FORMAT}"'.encode() in file.read(_HEAD) or (folder / TABLE).is_dir()
    except OSError:
        return False


def photo_caches() -> Path:
    """Where the indexes of folders of photos are kept: in the user's cache."""
    return user_cache() / "maxmatch" / "photos"


def cure_of(folder: Path) -> str:
    """What to do about a damaged index. That of a folder of photos is a cache, which is built again when it is gone."""
    if photo_caches() in folder.parents:
        return f"It is a cache: delete {folder.parent}, and the next `maxmatch search` or `serve` builds it again."
    return "Restore it from a copy."


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index; of a folder that is none, or of a newer version, a refusal."""
    path = folder / FILE
    if not path.is_file():
        what = "holds no index" if folder.is_dir() else "no such folder"
        cure = "Make one with `maxmatch index build` or SetIndex.create."
        if is_half_replaced(folder):
            cure = f"A rebuild was interrupted at its end; to finish: maxmatch index rebuild {shlex.quote(str(folder))}"
        raise IndexFolderError(f"{folder}: {what} ({FILE} is missing). {cure}")
    called = "an index of MaxMatch"
    cure = cure_of(folder)
    return load_manifest(path, Manifest, FORMAT, IndexFolderError, called, cure, ANY_SIZE, too_new=NewerIndexError)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace index.json."""
    write_whole(folder / FILE, manifest_text(manifest, FORMAT) + "\n")


ORIGIN = "encoder.json"


class Origin(NamedTuple):
    """Where the model of an index was when its sets were made, and of what modality they are."""

    model: str
    modality: str | None
    version: str | None = None
    """Of the MaxMatch that made the sets; None where that was not noted yet."""


def write_origin(folder: Path, origin: Origin) -> None:
    """Note it in the folder of an index."""
    write_whole(folder / ORIGIN, json.dumps(origin._asdict()) + "\n")


def read_origin(folder: Path) -> Origin | None:
    """What was noted; None where nothing was."""
    try:
        return Origin(**json.loads((folder / ORIGIN).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / ORIGIN}: cannot be read ({error}). Remove it, and give --model.") from error


def model_version(folder: Path, manifest: Manifest) -> str | None:
    """The version of the package whose model made the sets of an index; None where it is no model that ships."""
    origin = read_origin(folder)
    recorded = (None, None) if origin is None else (origin.model, origin.version)
    return package_version(manifest.model, *recorded)


def other_model(folder: Path, manifest: Manifest, given: str, named: str | None = None) -> ValueError:
    """The error for an index that was made by another model than the one given. named: how the user named that one."""
    origin, version = read_origin(folder), model_version(folder, manifest)
    title = model_title(manifest.model or "unknown", origin.model if origin else None, version)
    option = "" if named is None else f" --model {shlex.quote(named)}"
    again = f"encode its items again: maxmatch index rebuild {shlex.quote(str(folder))}{option}"
    if version is None:
        cure = f"Name the right one with --model, or {again}"
    else:
        cure = f"{again[0].upper()}{again[1:]}. To search it as it is: install maxmatch {version}."
    return ValueError(
        f"{folder}: another model than {given} made its sets: {title}. Scores between the two are meaningless. {cure}"
    )


_LEFT = (".lock", TABLE, f"{TABLE}.sums", "milvus.json")  # by a `create` that was killed
FILES = (*_LEFT, FILE, ORIGIN, KEYS)
_PATIENCE = 60.0  # seconds


def writing(folder: Path) -> AbstractContextManager[None]:
    """Hold the writers' lock, waiting for another writer."""
    return locked(folder, _PATIENCE)


def empty_folder(folder: Path) -> None:
    """Make the folder of a new index; one that holds anything but what a killed `create` left is refused."""
    if (folder / FILE).exists():
        raise FileExistsError(
            f"{folder}: holds an index already. Open it with SetIndex.open, or choose another folder."
        )
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: a file. Choose a new folder for the index.")
    folder.mkdir(parents=True, exist_ok=True)
    if others := other_files(folder, _LEFT):
        raise FileExistsError(f"{folder}: holds other files ({others[0]}). Choose an empty or a new folder.")


def other_files(folder: Path, known: Sequence[str]) -> list[str]:
    """What a folder holds beside known files and drafts of an index's files."""
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if name not in known and not any(is_draft(name, of) for of in (FILE, *known))]


def refuse_replaced(folder: Path, model: str | None, checked: object) -> object:
    """Refuse to mix sets of two models: `maxmatch index rebuild` may have replaced an index since it was opened.

    model: that of its sets. checked: what the last call returned, the state of index.json. To see that it is the same
    takes microseconds.
    """
    try:
        state = (folder / FILE).stat()
    except OSError:
        return checked  # the engine tells what is wrong
    now = (state.st_ino, state.st_mtime_ns)
    if now != checked and read_manifest(folder).model != model:
        raise ReplacedIndexError(
            f"{folder}: encoded again by another model since it was opened. Open it again; restart a server."
        )
    return now


def rebuilt_folder(folder: Path) -> Path:
    """Where the index is built that is to replace the one in a folder (`maxmatch.search.rebuild`): beside it."""
    return folder.with_name(f".{folder.name}.rebuilt")


def replaced_folder(folder: Path) -> Path:
    """Where the old index is while the new one gets its name."""
    return folder.with_name(f".{folder.name}.replaced")


def is_half_replaced(folder: Path) -> bool:
    """Whether a process was killed between these two steps."""
    return not folder.exists() and replaced_folder(folder).is_dir()


# What comes into an index, checked: every error names the item and what to do.

UNIT_TOLERANCE = 1e-2  # as in `maxmatch.core.checks`: half precision moves a norm by a few thousandths
LONGEST_ID = 1024


def rows_of(
    manifest: Manifest,
    ids: Sequence[str],
    sets: Array,
    metadata: Sequence[Mapping[str, Any] | None] | None,
    after: int,
) -> ItemRows:
    """Items as an engine stores them, numbered by the clock, above `after`."""
    names = checked_ids(ids)
    vectors: Any
    if manifest.set_size is None:
        vectors = checked_ragged(manifest, sets, names)
    else:
        vectors = checked_sets(manifest, sets, names)
        if vectors.shape[1] != manifest.set_size:
            raise ValueError(
                f"sets: this index holds sets of {manifest.set_size} vectors, got {vectors.shape[1]}. Queries may have "
                f"another size; items of another need an index of their own, set_size={vectors.shape[1]}, or None."
            )
    if len(vectors) != len(names):
        raise ValueError(f"ids and sets: {len(names)} ids for {len(vectors)} sets; give one id for each set.")
    texts = ["{}"] * len(names) if metadata is None else _json_texts(names, metadata)
    added = np.arange(len(names), dtype=np.int64) + max(time.time_ns(), after + 1)
    if manifest.set_size is None:
        numbers = np.ascontiguousarray(vectors.flat().ravel(), manifest.dtype)
        return ItemRows(names, added, RaggedArray(numbers, vectors.starts * manifest.dim), texts)
    flat = np.ascontiguousarray(vectors.reshape(len(vectors), manifest.set_size * manifest.dim), manifest.dtype)
    return ItemRows(names, added, flat, texts)


def checked_count(what: str, count: int) -> int:
    """A whole number of 1 or more."""
    whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if not whole or count < 1:
        raise ValueError(f"{what}: expected {'at least 1' if whole else 'a whole number'}, got {count!r}.")
    return int(count)


def checked_ids(ids: Sequence[str]) -> list[str]:
    """A list of distinct strings."""
    if isinstance(ids, str | bytes):
        raise ValueError(f"ids: expected a list of strings, got one {type(ids).__name__}. For one item use [id].")
    names = list(ids)
    seen: set[str] = set()
    for place, name in enumerate(names):
        if not isinstance(name, str):
            raise ValueError(
                f"ids: expected strings, got {name!r} ({type(name).__name__}) at {place}. Use [str(id) for id in ids]."
            )
        if not 0 < len(name) <= LONGEST_ID or "\0" in name or not is_text(name):
            raise ValueError(
                f"ids: {name[:40]!r} at {place}: expected 1 to {LONGEST_ID} characters that can be written as UTF-8."
            )
        if name in seen:
            raise ValueError(f"ids: {name!r} comes twice. Give every item once.")
        seen.add(name)
    return names


def checked_sets(manifest: Manifest, sets: Array, names: Sequence[str] = ()) -> np.ndarray:
    """Sets as an array (n, K, D) on the CPU: of the index's width, finite, of unit length. names: for messages."""
    tensor = hasattr(sets, "detach")  # and not by its class: torch need not be loaded
    sets = sets if tensor else _one_array(sets, manifest)
    if sets.ndim == 1 and not len(sets):
        assert manifest.set_size is not None
        return np.zeros((0, manifest.set_size, manifest.dim), np.float32)  # no sets at all, as an empty list
    check_sets("sets", sets)
    check_set_size("sets", sets.shape[1])  # every hit tells which slots were matched
    if sets.shape[2] != manifest.dim:
        raise ValueError(
            f"sets: this index holds vectors of width {manifest.dim}, got {sets.shape[2]}. "
            "Encode with the model that the index was made with, or make another index."
        )
    refuse_not_finite("sets", sets)
    array = _as_floats(sets)
    norms = np.sqrt(np.einsum("nkd,nkd->nk", array, array, dtype=np.float32))
    wrong = np.flatnonzero(np.abs(norms - 1).max(1, initial=0.0) > UNIT_TOLERANCE)
    if len(wrong):
        item = int(wrong[0])
        raise _not_unit(_called(names, item), norms[item])
    return array


def _one_array(sets: Any, manifest: Manifest) -> np.ndarray:
    try:
        return np.asarray(sets)
    except ValueError as error:
        raise ValueError(
            f"sets: of unequal size or width, but this index holds sets of {manifest.set_size} vectors of width "
            f"{manifest.dim}. Sets of any size need an index of their own: set_size=None."
        ) from error


def checked_ragged(manifest: Manifest, sets: Any, names: Sequence[str] = ()) -> RaggedArray:
    """Sets of any size: a list of (n_i, D), arrays or tensors, or sets (n, K, D); as rows of vectors (N, D)."""
    if isinstance(sets, RaggedArray):
        vectors, sizes = sets.flat(), sets.sizes
    else:
        rows = [_one_set(manifest, one, _called(names, place)) for place, one in enumerate(sets)]
        vectors = np.concatenate(rows) if rows else np.zeros((0, manifest.dim), np.float32)
        sizes = np.array([len(one) for one in rows], np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float32))
    wrong = np.flatnonzero(~(np.abs(norms - 1) <= UNIT_TOLERANCE))
    if len(wrong):
        item = int(np.searchsorted(starts, wrong[0], side="right")) - 1
        found = norms[starts[item] : starts[item + 1]]
        if not np.isfinite(found).all():
            raise NotFiniteError(f"sets: {_called(names, item)} holds NaN or infinite values. Leave such items out.")
        raise _not_unit(_called(names, item), found)
    return RaggedArray(vectors, starts)


def _one_set(manifest: Manifest, given: Any, called: str) -> np.ndarray:
    one = _as_floats(given if hasattr(given, "detach") else np.asarray(given))
    if one.ndim != 2 or one.dtype.kind != "f" or not len(one):
        raise ValueError(
            f"sets: {called}: expected vectors (n, {manifest.dim}), at least one, got {one.dtype} {shape_of(one)}. "
            "Give a list of such, or sets (items, vectors, width)."
        )
    if one.shape[1] != manifest.dim:
        raise ValueError(
            f"sets: {called}: this index holds vectors of width {manifest.dim}, got {one.shape[1]}. "
            "Encode with the model that the index was made with, or make another index."
        )
    if manifest.any_size_limit is not None and len(one) > manifest.any_size_limit:
        check_set_size(f"sets: {called}", len(one))
    return one


def as_sets(manifest: Manifest, vectors: Vectors) -> np.ndarray | RaggedArray:
    """What an engine stores of some items, as sets (n, K, D) in float32, or as rows of any number of vectors."""
    if manifest.set_size is None:
        rows = vectors.divided(manifest.dim)
        return RaggedArray(np.array(rows.values, np.float32), rows.starts)
    return np.array(vectors, dtype=np.float32).reshape(-1, manifest.set_size, manifest.dim)


def _as_floats(sets: Any) -> np.ndarray:
    """In half precision or float32, on the CPU."""
    array: np.ndarray = sets.detach().float().cpu().numpy() if hasattr(sets, "detach") else sets
    return array if array.dtype in (np.float16, np.float32) or array.dtype.kind != "f" else array.astype(np.float32)


def _called(names: Sequence[str], item: int) -> str:
    return repr(names[item]) if item < len(names) else f"item {item}"


def _not_unit(called: str, norms: np.ndarray) -> ValueError:
    return ValueError(
        f"sets: {called} has vectors of length {norms.min():.3g} to {norms.max():.3g}; expected unit "
        "length. Normalise: torch.nn.functional.normalize(sets, dim=-1)."
    )


def is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8; names of files may hold any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json_texts(names: Sequence[str], metadata: Sequence[Mapping[str, Any] | None]) -> list[str]:
    metadata = metadata if isinstance(metadata, Mapping) else list(metadata)
    if isinstance(metadata, Mapping) or len(metadata) != len(names):
        came = "one mapping" if isinstance(metadata, Mapping) else str(len(metadata))
        raise ValueError(f"metadata: expected a mapping for each of the {len(names)} items, got {came}.")
    texts = []
    for name, given in zip(names, metadata, strict=True):
        values = {} if given is None else given
        if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
            raise ValueError(f"metadata of {name!r}: expected a mapping with strings as keys, got {values!r:.80}.")
        try:
            text = json.dumps(dict(values), ensure_ascii=False, allow_nan=False, default=_plain)
            text.encode()
            for key, value in json.loads(text).items():  # NumPy's integers too
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    raise ValueError(f"{key!r}: a number of more than 64 bits; write it as a text")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"metadata of {name!r}: cannot be written as JSON ({error}). "
                "Give texts, finite numbers, booleans, None, lists and mappings of these."
            ) from error
        texts.append(text)
    return texts


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's: they come out of tables."""
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):  # as are numbers of 128 bits
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")
