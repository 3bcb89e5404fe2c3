"""What comes into an index, checked: every refusal names the item and says what to do."""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from maxmatch.search.engine import Rows
from maxmatch.search.manifest import Manifest
from maxmatch.set_checks import Array, check_sets, refuse_not_finite

_UNIT_TOLERANCE = 1e-2  # as in `maxmatch.checks`: half precision moves a norm by a few thousandths
LONGEST_ID = 1024


def rows_of(
    manifest: Manifest,
    ids: Sequence[str],
    sets: Array,
    metadata: Sequence[Mapping[str, Any] | None] | None,
    after: int,
) -> Rows:
    """Items as an engine stores them, numbered by the clock, above `after`."""
    names = checked_ids(ids)
    vectors = checked_sets(manifest, "sets", sets, names)
    if vectors.shape[1] != manifest.set_size:
        raise ValueError(
            f"sets: this index holds sets of {manifest.set_size} vectors, got {vectors.shape[1]}. "
            f"Make another index with set_size={vectors.shape[1]}."
        )
    if len(vectors) != len(names):
        raise ValueError(f"ids and sets: {len(names)} ids for {len(vectors)} sets; give one id for each set.")
    texts = ["{}"] * len(names) if metadata is None else _json_texts(names, metadata)
    added = np.arange(len(names), dtype=np.int64) + max(time.time_ns(), after + 1)
    flat = np.ascontiguousarray(vectors.reshape(len(vectors), manifest.set_size * manifest.dim), manifest.dtype)
    return Rows(names, added, flat, texts)


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


def checked_sets(manifest: Manifest, what: str, sets: Array, names: Sequence[str] | None = None) -> np.ndarray:
    """Sets as an array (n, K, D) on the CPU: of the index's width, finite, of unit length."""
    tensor = hasattr(sets, "detach")  # and not by its class: torch need not be loaded
    sets = sets if tensor else np.asarray(sets)
    if sets.ndim == 1 and not len(sets):
        return np.zeros((0, manifest.set_size, manifest.dim), np.float32)  # no sets at all, as an empty list
    check_sets(what, sets)
    if sets.shape[2] != manifest.dim:
        raise ValueError(
            f"{what}: this index holds vectors of width {manifest.dim}, got {sets.shape[2]}. "
            "Encode with the model that the index was made with, or make another index."
        )
    refuse_not_finite(what, sets)
    array: np.ndarray = sets.detach().float().cpu().numpy() if tensor else sets
    array = array if array.dtype in (np.float16, np.float32) else array.astype(np.float32)
    norms = np.sqrt(np.einsum("nkd,nkd->nk", array, array, dtype=np.float32))
    wrong = np.flatnonzero(np.abs(norms - 1).max(1, initial=0.0) > _UNIT_TOLERANCE)
    if len(wrong):
        item = int(wrong[0])
        name = f"item {item}" if names is None or item >= len(names) else repr(names[item])
        raise ValueError(
            f"{what}: {name} has vectors of length {norms[item].min():.3g} to {norms[item].max():.3g}; expected unit "
            "length. Normalise: torch.nn.functional.normalize(sets, dim=-1)."
        )
    return array


def refuse_known(names: Sequence[str], present: Collection[str]) -> None:
    """ValueError where some of the ids are in the index."""
    known = [name for name in names if name in present]
    if known:
        raise ValueError(
            f"ids: {known[0]!r} is in the index already ({len(known)} of {len(names)} are). "
            "Use upsert to replace items, or remove them first."
        )


def refuse_unknown(names: Sequence[str], present: Collection[str]) -> None:
    """ValueError where some of the ids are not in the index."""
    unknown = [name for name in names if name not in present]
    if unknown:
        raise ValueError(
            f"ids: {unknown[0]!r} is not in the index ({len(unknown)} of {len(names)} are not). Nothing was removed."
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
    for name, said in zip(names, metadata, strict=True):
        values = {} if said is None else said
        if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
            raise ValueError(f"metadata of {name!r}: expected a mapping with strings as keys, got {values!r:.80}.")
        try:
            text = json.dumps(dict(values), ensure_ascii=False, allow_nan=False, default=_plain)
            text.encode()
            for key, value in json.loads(text).items():
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    raise ValueError(f"{key!r}: a number of more than 64 bits; write it as a text")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"metadata of {name!r}: not to be written as JSON ({error}). "
                "Give texts, finite numbers, booleans, None, lists and mappings of these."
            ) from error
        texts.append(text)
    return texts


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's: they come out of tables."""
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):  # as are numbers of 128 bits
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")
