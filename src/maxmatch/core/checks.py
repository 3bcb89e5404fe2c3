"""Checks of what a user gives; each message tells what was expected, what came, and what to do."""

import math
import warnings
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

import maxmatch.core.devices  # noqa: F401 (before anything is computed)
from maxmatch.core.array_checks import NotFiniteError, check_set_size, check_sets, shape_of

_UNIT_TOLERANCE = 1e-2  # rounding a unit vector to bfloat16 moves its norm by a few thousandths
_SAMPLE = 64
_ONE_THREAD = 2**15 - 1  # numbers: torch shares out work on more, and its threads spin for milliseconds after it

Array = Tensor | np.ndarray


class NotUnitLength(UserWarning):
    """Vectors whose norm is not 1 were given where cosines are meant."""


def as_array(name: str, given: object) -> Array:
    """A tensor or an array as it is; a list of numbers, arrays or tensors as one array or tensor."""
    if isinstance(given, Tensor):
        return given
    try:
        if isinstance(given, Sequence) and given and all(isinstance(one, Tensor) for one in given):
            return torch.stack(list(given))
        array = given if isinstance(given, np.ndarray) else np.asarray(given)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name}: a list whose parts have different lengths. Pad them to one shape, and say by a mask what is real."
        ) from error
    if array.dtype.kind not in "biuf" or array.itemsize > 8:
        raise ValueError(f"{name}: expected a tensor, an array or a list of numbers, got {given!r:.60}.")
    return array


def as_tensor(given: object, name: str = "array") -> Tensor:
    """The same as a tensor, to be read and not written to: a memory map is not copied."""
    array = as_array(name, given)
    if isinstance(array, Tensor):
        return array
    if not array.flags.writeable:
        _silence_read_only_warning()
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return torch.from_numpy(array.copy() if min(array.strides, default=0) < 0 else array)


@cache
def _silence_read_only_warning() -> None:
    """Torch warns once per process that an array is read-only: provoke the warning here, unseen."""
    nothing = np.zeros(1)
    nothing.flags.writeable = False
    with warnings.catch_warnings(action="ignore"):
        torch.from_numpy(nothing)


def refuse_vmap(tensor: Tensor, instead: str) -> None:
    """Refuse a tensor whose values `torch.func.vmap` hides: they decide what is computed."""
    inner = tensor
    while is_functorch_wrapped_tensor(inner):
        if is_batchedtensor(inner):
            raise ValueError(f"torch.func.vmap cannot be used here; {instead}")
        inner = get_unwrapped(inner)


def check_pair(a: Array, b: Array) -> None:
    """Refuse two batches of sets that cannot be compared."""
    check_sets("a", a)
    check_sets("b", b)
    if a.shape[2] != b.shape[2]:
        raise ValueError(
            f"a has vectors of width {a.shape[2]} and b of width {b.shape[2]}: they live in different spaces. "
            "Encode both with the same model."
        )
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.device != b.device:
        raise ValueError(f"a is on {a.device} and b on {b.device}: move one with .to().")


def check_mask(name: str, mask: Tensor | None, shape: tuple[int, ...]) -> None:
    """Refuse a mask of another shape or type, and one that leaves an item without vectors."""
    if mask is None:
        return
    if mask.dtype != torch.bool or tuple(mask.shape) != shape:
        raise ValueError(
            f"{name}: expected a boolean mask of shape {shape} (True = real), got {mask.dtype} {shape_of(mask)}."
        )
    if not torch.compiler.is_exporting() and not bool(mask.any(-1).all()):
        item = [int(i) for i in (~mask.any(-1)).nonzero()[0]]
        raise ValueError(f"{name}: item {item} has no vector left (its mask is all False). Leave such items out.")


def check_cosine_shape(cosines: Tensor) -> None:
    """Refuse what is not a batch of cosine matrices (..., K, L)."""
    if cosines.ndim < 2 or not cosines.is_floating_point():
        raise ValueError(
            f"cosines: expected floating-point matrices (..., K, L), got {cosines.dtype} of shape {shape_of(cosines)}."
        )
    rows, columns = cosines.shape[-2:]
    if rows == 0 or columns == 0:
        raise ValueError(f"cosines: a {rows}×{columns} matrix has nothing to match.")
    check_set_size("cosines", max(rows, columns))


def check_cosines_finite(cosines: Tensor) -> None:
    """Refuse NaN and infinite cosines."""
    if not bool(torch.isfinite(cosines).all()):
        block = [int(i) for i in (~torch.isfinite(cosines)).nonzero()[0]]
        raise NotFiniteError(
            f"cosines: not finite at {block}. Exclude vectors with row_mask and col_mask, not with inf."
        )


def range_of_norms(sets: Array, mask: Tensor | None) -> Tensor:
    """The smallest and the largest norm in a sample of the items, so small that it costs nothing."""
    norms = some_norms(sets, mask)
    return torch.stack(norms.aminmax()) if norms.numel() else norms.new_ones(2)


def some_norms(sets: Array, mask: Tensor | None) -> Tensor:
    """The norms (n, K) of a sample of the items in float32; 1 where there is no vector. On a GPU one launch."""
    step = max(1, math.ceil(len(sets) / _SAMPLE))
    sample = as_tensor(sets[::step]).detach()
    if sample.dtype not in (torch.float16, torch.bfloat16):
        sample = sample.float()
    piece = len(sample) if sample.is_cuda else _ONE_THREAD // math.prod(sample.shape[1:])
    pieces = torch.split(sample, max(1, piece))
    found = [torch.linalg.vector_norm(part, dim=-1, dtype=torch.float32) for part in pieces]
    norms = found[0] if len(found) == 1 else torch.cat(found)
    return norms if mask is None else norms.masked_fill(~mask[::step].to(norms.device), 1.0)


def warn_unless_unit(name: str, low: float, high: float, cure: str, stacklevel: int) -> None:
    """Warn where the range of norms shows vectors that are not of unit length."""
    if low < 1 - _UNIT_TOLERANCE or high > 1 + _UNIT_TOLERANCE:
        warnings.warn(
            f"{name}: vectors should have unit length, but their norms are {low:.3g} to {high:.3g}. "
            f"Their inner products are not cosines. {cure}",
            NotUnitLength,
            stacklevel=stacklevel + 1,
        )


def check_positive(scores: Tensor, positive: Tensor | None) -> Tensor:
    """`positive`, by default the diagonal. Refuse scores that are no matrix and a `positive` that does not go with
    them.
    """
    check_axes("scores", scores, ("images", "captions"))
    if positive is None:
        if scores.shape[0] != scores.shape[1]:
            raise ValueError(
                f"positive: by default the diagonal, but the scores are {shape_of(scores)}, not square. "
                "Say which are true pairs."
            )
        return torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    if not isinstance(positive, Tensor) or positive.dtype != torch.bool or positive.shape != scores.shape:
        raise ValueError(
            f"positive: expected a boolean tensor of the scores' shape {shape_of(scores)}, got {_seen(positive)}."
        )
    return positive


def check_axes(name: str, values: Tensor, axes: tuple[str, ...]) -> None:
    """Refuse what is not a floating-point tensor with these axes and something in each."""
    fits = isinstance(values, Tensor) and values.is_floating_point() and values.ndim == len(axes)
    if not fits or 0 in values.shape:
        raise ValueError(f"{name}: expected a floating-point tensor ({', '.join(axes)}), got {_seen(values)}.")


def _seen(value: object) -> str:
    return f"{value.dtype} {shape_of(value)}" if isinstance(value, Tensor) else type(value).__name__


def check_width(name: str, features: Tensor, axes: tuple[str, ...], width: int) -> None:
    """Refuse features of another number of axes or another width than the model was made for."""
    if features.ndim != len(axes) + 1 or features.shape[-1] != width:
        raise ValueError(
            f"{name}: expected shape ({', '.join(axes)}, {width}), got {shape_of(features)}. "
            f"Give features of width {width}, or build the model for theirs."
        )


def check_ids(ids: Tensor, vocabulary_size: int | None, max_length: int | None = None) -> None:
    """Refuse what is not a batch of token ids. Only the shape is checked on a GPU, where a look at them would wait, and
    while a graph is exported, which has no values yet.
    """
    if ids.ndim != 2 or ids.shape[1] == 0 or ids.is_floating_point():
        raise ValueError(f"ids: expected token ids (items, tokens), got {ids.dtype} of shape {shape_of(ids)}.")
    if max_length is not None and ids.shape[1] > max_length:
        raise ValueError(
            f"ids: {ids.shape[1]} tokens, but the model takes at most {max_length}. "
            f"Load the tokenizer with max_length={max_length}."
        )
    if vocabulary_size is None or ids.device.type != "cpu" or torch.compiler.is_exporting() or not ids.numel():
        return
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary_size:
        raise ValueError(
            f"ids: expected 0 to {vocabulary_size - 1}, got {int(ids.min())} to {int(ids.max())}. "
            "Encode the text with the tokenizer that the model was made with."
        )


def check_right_padded(mask: Tensor) -> Tensor:
    """The length of each item, on the CPU. Refuse an item whose real inputs do not all come first."""
    mask = mask.cpu()
    wrong = (mask[:, 1:] & ~mask[:, :-1]).any(1) | ~mask[:, :1].any(1)
    if bool(wrong.any()):
        raise ValueError(
            f"mask: item {int(wrong.nonzero()[0])} is empty or has padding before a real token. "
            "Pad on the right, and leave empty items out."
        )
    return mask.sum(1)


def check_images(images: Tensor) -> None:
    """Refuse what is not a batch of normalised images."""
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(
            f"images: expected normalised pixels (items, channels, height, width) in floating point, "
            f"got {images.dtype} of shape {shape_of(images)}. "
            "For one image use images[None]; for bytes use the model's transform first."
        )
