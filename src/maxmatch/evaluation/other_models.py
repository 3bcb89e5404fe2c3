"""Models of other libraries on a split: sentence-transformers, or nothing but vectors or scores in .npy files.

Rows of such files are in the order of the data: the images and captions as `maxmatch.data` reads them, or as a groups
file lists them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from maxmatch.core.array_checks import NotFiniteError, UsageError, shape_of
from maxmatch.core.devices import chosen_device
from maxmatch.core.progress import Advance, Bar, Skipped, no_bar, quiet
from maxmatch.data.dataset import IMAGE, TEXT
from maxmatch.evaluation.encoding import (
    EncodedSplit,
    LoadedData,
    ModelSource,
    Say,
    left_out,
    log_line,
    vector_files,
)
from maxmatch.evaluation.evaluator import SetsAndMask, as_groups, as_sets, check_groups_meet, joined, numbered_groups
from maxmatch.evaluation.metrics import GIVEN, SINGLE_VECTORS, EvaluatedModel
from maxmatch.matching import SIMILARITIES
from maxmatch.matching.similarity import Similarity, maxsim, with_options
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.images import ImageError, load_image
from maxmatch.model.names import model_hash, model_identity

_SIDES = {IMAGE: "images", TEXT: "texts"}


class ItemList(NamedTuple):
    """Which items there are, in the order of the rows of a file.

    groups, ids: by modality. captions: the texts themselves, where they are known. size: how many groups.
    """

    groups: dict[str, Tensor]
    ids: dict[str, list[str]]
    captions: list[str] | None
    size: int


def items_of(loaded: LoadedData) -> ItemList:
    """The images and texts of a split."""
    part = loaded.part
    groups = {name: torch.from_numpy(np.ascontiguousarray(part[name].groups, np.int64)) for name in (IMAGE, TEXT)}
    ids = {name: [str(one) for one in part[name].ids] for name in (IMAGE, TEXT)}
    return ItemList(groups, ids, [str(one) for one in part[TEXT].values], part.size)


def read_groups(path: str | Path) -> ItemList:
    """The items of a groups file: {"images": [group of each image], "texts": [group of each text]}.

    A group is a number or a string; items of the same group belong together. "captions": the texts, if wanted. Where
    every image has a group of its own, the group is the image's id: results know data by ids.
    """
    path = Path(path).expanduser()
    cure = 'Expected {"images": [group of each image], "texts": [group of each text]}.'
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file. {cure}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not readable as JSON ({error}). {cure}") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(key), list) for key in _SIDES.values()):
        raise ValueError(f"{path}: not a groups file. {cure}")
    given = {}
    for name, key in _SIDES.items():
        if not found[key]:
            raise ValueError(f"{path}: {key} is empty. {cure}")
        given[name] = as_groups(f"{path}: {key}", found[key], len(found[key]), key)
    check_groups_meet(given[IMAGE], given[TEXT], (f"{path}: images", f"{path}: texts"))
    sides = numbered_groups(given[IMAGE], given[TEXT])
    groups = {name: torch.from_numpy(some) for name, some in zip(_SIDES, sides, strict=True)}
    size = int(sides[0].max()) + 1
    ids = {name: [str(number) for number in range(len(some))] for name, some in groups.items()}
    if size == len(groups[IMAGE]):
        ids[IMAGE] = given[IMAGE].astype(np.str_).tolist()
    captions = found.get("captions")
    if captions is not None and (not isinstance(captions, list) or len(captions) != len(groups[TEXT])):
        raise ValueError(f"{path}: captions: expected one for each of the {len(groups[TEXT])} texts.")
    return ItemList(groups, ids, captions, size)


# Vectors and scores in .npy files.


def open_array(path: Path) -> np.ndarray:
    """An array of a .npy file, as a memory map."""
    cure = "Write it with numpy.save."
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file. {cure}") from None
    except (ValueError, EOFError) as error:  # NumPy takes any other file for a pickled object
        raise ValueError(f"{path}: not a .npy file of numbers. {cure}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise ValueError(f"{path}: expected one array of numbers. {cure}")
    return array


def vectors_of(source: ModelSource, items: ItemList) -> EncodedSplit:
    """The vectors (n, D) or sets (n, K, D) of images.npy and texts.npy."""
    files = vector_files(source)
    sets = {}
    for name, file in zip(_SIDES, files, strict=True):
        array = open_array(file)
        _check_rows(file, len(array) if array.ndim else 0, items, name)
        try:
            sets[name] = torch.tensor(as_sets(str(file), array).vectors, dtype=torch.float32)
        except ValueError as error:
            raise ValueError(f"{source.name}: {error}") from error
    if sets[IMAGE].shape[2] != sets[TEXT].shape[2]:
        raise ValueError(
            f"{source.name}: {files[0]} has vectors of width {sets[IMAGE].shape[2]} and {files[1]} of "
            f"{sets[TEXT].shape[2]}. Encode both with the same model."
        )
    single = all(one.shape[1] == 1 for one in sets.values())
    notes = {"groups": items.size, "model": source.name, "similarity": "cosine" if single else "maxmatch"}
    units = {name: torch.nn.functional.normalize(one, dim=-1) for name, one in sets.items()}
    return EncodedSplit(units, items.groups, items.ids, notes)


def scores_member(source: ModelSource, items: ItemList) -> EvaluatedModel:
    """A model that is known by its scores (images, texts): a .npy file, read some rows at a time."""
    file = Path(source.path)
    matrix = open_array(file)
    expected = len(items.groups[IMAGE]), len(items.groups[TEXT])
    if matrix.shape != expected:
        hint = " It is the other way round: save its transpose." if matrix.shape == expected[::-1] else ""
        raise ValueError(
            f"{file}: expected the score of every image with every text, {expected[0]}×{expected[1]}, "
            f"got {shape_of(matrix)}.{hint}"
        )
    encoded = EncodedSplit({}, items.groups, items.ids, {"groups": items.size, "model": source.name})
    return EvaluatedModel(source.name, encoded, GIVEN, _rows_of(matrix, file))


def _rows_of(matrix: np.ndarray, file: Path) -> Callable[[slice], Tensor]:
    """What reads some rows of a matrix, in single or double precision. NotFiniteError where one is NaN."""
    precision = np.float64 if matrix.dtype.kind != "f" or matrix.dtype.itemsize > 4 else np.float32

    def read(part: slice) -> Tensor:
        rows = np.array(matrix[part], precision)
        if np.isnan(rows).any():
            row, column = np.argwhere(np.isnan(rows))[0].tolist()
            place = f"image {(part.start or 0) + row}, text {column}"
            raise NotFiniteError(f"{file}: NaN at {place}. Look for NaN in the model's output.")
        return torch.from_numpy(rows)

    return read


def without_unread(member: EvaluatedModel, groups: Tensor) -> EvaluatedModel:
    """A model without the items of groups that another one could not read: only those of `groups` are left."""
    wanted = np.unique(groups.cpu().numpy())
    encoded = member.encoded.only(wanted)
    if member.given is None:
        return replace(member, encoded=encoded)
    kept = [np.isin(member.encoded.groups[name].numpy(), wanted) for name in (IMAGE, TEXT)]
    whole = member.given(slice(0, len(kept[0])))
    part = whole[torch.from_numpy(kept[0])][:, torch.from_numpy(kept[1])]
    return replace(member, encoded=encoded, given=lambda rows: part[rows])


def _check_rows(file: Path, found: int, items: ItemList, name: str) -> None:
    expected = len(items.groups[name])
    if found != expected:
        raise ValueError(
            f"{file}: expected a row for each of the {expected:,} {_SIDES[name]} of the data, in their order, "
            f"got {found:,}."
        )


# sentence-transformers.


@dataclass(frozen=True)
class SentenceModel:
    """A model of sentence-transformers that encodes pictures and texts to one vector each, or to several.

    similarity: "cosine" or "dot" for one vector; for several a name of `LATE`.
    """

    name: str
    library: Any
    similarity: str
    several: bool

    @classmethod
    def load(cls, source: ModelSource, device: str | None = None) -> "SentenceModel":
        """From a folder or the hub, as sentence-transformers loads it; code that a model brings along is not run."""
        try:
            from sentence_transformers import MultiVectorEncoder, SentenceTransformer
        except ImportError as error:
            raise ImportError(
                f"{source.name}: needs sentence-transformers: pip install 'maxmatch[sentence-transformers]'"
            ) from error
        several = _several_vectors(Path(source.path).expanduser())
        kind = MultiVectorEncoder if several else SentenceTransformer
        try:
            library = kind(str(Path(source.path).expanduser()), device=str(chosen_device(device)))
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{source.name}: sentence-transformers cannot load it ({error}).") from error
        known = LATE if several else SINGLE_VECTORS
        name = str(getattr(library.similarity_fn_name, "value", library.similarity_fn_name))
        return cls(source.name, library, name if name in known else next(iter(known)), several)

    def identity(self) -> str:
        """A hash of its weights."""
        weights = sorted(self.library.state_dict().items())
        lines = ((f"{name} {one.dtype} {tuple(one.shape)}", one) for name, one in weights)
        return model_hash(((line, _bytes(one)) for line, one in lines), {})

    def encode(self, modality: str, items: Sequence[Any], batch_size: int = 64) -> SetsAndMask:
        """Pictures (PIL) or texts as sets (n, K, D), padded where they have different sizes."""
        method = "encode" if not self.several else "encode_query" if modality == TEXT else "encode_document"
        call: Callable[..., Any] = getattr(self.library, method)
        try:
            made = call(list(items), batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True)
        except Exception as error:  # whatever the model is made of raises its own
            raise ValueError(
                f"{self.name}: cannot encode {_SIDES[modality]} ({type(error).__name__}: {error}). Retrieval needs a "
                "model for both, such as a CLIPModel."
            ) from error
        vectors = [np.asarray(one, np.float32) for one in made] if self.several else np.asarray(made, np.float32)
        sets = as_sets(_SIDES[modality], vectors)
        units = torch.nn.functional.normalize(torch.as_tensor(sets.vectors), dim=-1)
        return SetsAndMask(torch.as_tensor(sets.vectors) if self.similarity == "dot" else units, sets.mask)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def _several_vectors(folder: Path) -> bool:
    """Whether the config of a folder names a multi-vector encoder; one on the hub is taken for one of single vectors
    unless it is in a folder.
    """
    try:
        found = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("model_type") == "MultiVectorEncoder"


def encode_sentence_model(
    source: ModelSource,
    loaded: LoadedData,
    *,
    device: str | None = None,
    batch_size: int = 64,
    identify: bool = False,
    say: Say = log_line,
    bar: Bar = no_bar,
) -> EncodedSplit:
    """What a model of sentence-transformers makes of a split. An unreadable picture is left out, with its captions."""
    model = SentenceModel.load(source, device)
    identity = {"identity": model.identity()} if identify else {}
    part = loaded.part
    images, texts = part[IMAGE], part[TEXT]
    with bar(f"{source.name}: images", len(images)) as advance:
        pictures, kept = encode_pictures(model.encode, images.values, images.ids, batch_size, left_out(say), advance)
    if pictures is None:
        raise ValueError(f"{source.name}: not one picture of {loaded.dataset.path} could be read.")
    wanted = np.isin(texts.groups, images.groups[kept])
    captions = [str(one) for one in compress(texts.values, wanted)]
    keep = {IMAGE: kept, TEXT: wanted}
    encoded = as_split(
        {IMAGE: pictures, TEXT: model.encode(TEXT, captions, batch_size)},
        {name: [str(one) for one in compress(part[name].ids, keep[name])] for name in keep},
    )
    return replace(
        encoded,
        groups={name: torch.from_numpy(part[name].groups[keep[name]].astype(np.int64)) for name in keep},
        notes={"groups": part.size, "model": source.name, "similarity": model.similarity, **identity},
    )


def as_split(sides: Mapping[str, SetsAndMask], ids: Mapping[str, Sequence[str]]) -> EncodedSplit:
    """Sets of images and of texts as a split. Each item is a group of its own; masks are of both sides, if of one."""
    sets = {name: torch.as_tensor(side.vectors) for name, side in sides.items()}
    groups = {name: torch.arange(len(one), device=one.device) for name, one in sets.items()}
    masks = {}
    if any(side.mask is not None for side in sides.values()):
        whole = {name: torch.ones(one.shape[:2], dtype=torch.bool, device=one.device) for name, one in sets.items()}
        masks = {name: whole[name] if side.mask is None else side.mask for name, side in sides.items()}
    return EncodedSplit(sets, groups, ids, masks=masks)


Encode = Callable[[str, Sequence[Any], int], SetsAndMask]
"""From a modality, items and the size of a batch to their sets."""


def encode_pictures(
    encode: Encode,
    values: Sequence[Any],
    ids: Sequence[str],
    batch_size: int,
    report: Callable[[Skipped], None],
    advance: Advance = quiet,
) -> tuple[SetsAndMask | None, np.ndarray]:
    """The sets of pictures that can be read, and which those are; None if there is not one."""
    parts, kept = [], np.zeros(len(values), np.bool_)
    for start in range(0, len(values), batch_size):
        places = range(start, min(start + batch_size, len(values)))
        pictures = []
        for place in places:
            try:
                pictures.append(load_image(values[place]))
            except (ImageError, OSError, TypeError, ValueError) as error:
                report(Skipped(str(ids[place]), str(error), place))
            else:
                kept[place] = True
        if pictures:
            parts.append(encode(IMAGE, pictures, batch_size))
        advance(len(places))
    return (joined("images", parts) if parts else None), kept


def similarity_of(encoded: EncodedSplit, asked: str | None) -> str | Similarity:
    """The similarity that the vectors of another library are compared by: their own, or the one asked for."""
    own = str(encoded.notes["similarity"])
    if asked is None:
        return LATE.get(own, own)
    if encoded.masks and SIMILARITIES[asked].in_order:
        raise UsageError(f"similarity: {encoded.notes['model']} makes sets of different sizes, which have no order.")
    return asked


def maxsim_of_texts(a: Tensor, b: Tensor, a_mask: Tensor | None = None, b_mask: Tensor | None = None) -> Tensor:
    """Late interaction with the texts as queries, in both directions: Σ_y max_x c over the text's vectors y."""
    return maxsim(b, a, b_mask, a_mask).T


def meanmaxsim_of_texts(a: Tensor, b: Tensor, a_mask: Tensor | None = None, b_mask: Tensor | None = None) -> Tensor:
    """`maxsim_of_texts`, divided by the number of the text's vectors."""
    count = b.new_full((len(b),), b.shape[1]) if b_mask is None else b_mask.sum(1)
    return maxsim_of_texts(a, b, a_mask, b_mask) / count


LATE: dict[str, Similarity] = {"maxsim": maxsim_of_texts, "meanmaxsim": meanmaxsim_of_texts}
"""How sentence-transformers compares several vectors."""


# Models that encode pictures and texts: of this package, or of sentence-transformers.


class AnyEncoder(NamedTuple):
    """What encodes items, how their sets are compared, and the model itself."""

    encode: Encode
    similarity: str | Similarity
    library: SetEncoder | SentenceModel

    def identity(self) -> str:
        """A hash of its weights."""
        model = self.library
        return model.identity() if isinstance(model, SentenceModel) else model_identity(model)


def check_encoders(sources: Sequence[ModelSource]) -> None:
    """Refuse files of sets, vectors or scores: UsageError."""
    for source in sources:
        if source.kind not in ("checkpoint", "sentence-transformers"):
            raise UsageError(
                f"{source.name}: a file of {source.kind} cannot encode new pictures and texts. Give the model itself: "
                "a checkpoint, a run, a two-tower model of transformers (CLIP, SigLIP, …) or one of "
                "sentence-transformers."
            )


def open_encoder(source: ModelSource, device: str | None = None) -> AnyEncoder:
    """A model that encodes pictures and texts."""
    check_encoders([source])
    if source.kind == "sentence-transformers":
        other = SentenceModel.load(source, device)
        return AnyEncoder(other.encode, LATE.get(other.similarity, other.similarity), other)
    model = SetEncoder.from_pretrained(source.path, chosen_device(device))

    def encode(modality: str, items: Sequence[Any], batch_size: int) -> SetsAndMask:
        return SetsAndMask(model.encode(modality, items, batch_size, show_progress=False), None)

    return AnyEncoder(encode, with_options(model.similarity_name, dict(model.similarity_options)), model)
