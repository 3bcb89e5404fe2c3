"""Why an image and a text score as they do: what `SetEncoder.explain` and `SetEncoder.look` give.

A head whose slots attend to parts of an item reports its attention. For any other, such as CLIP's single vector, parts
are left out one at a time (occlusion): a part counts as much as the score falls without it. That takes one pass of
the model per part, and needs neither gradients nor anything from inside the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from maxmatch.core.types import Inputs
from maxmatch.matching import SIMILARITIES
from maxmatch.matching.assignment import maximal_assignment
from maxmatch.model.hub.preprocessing import PatchReader
from maxmatch.model.inputs import FeatureReader, PixelReader, Reader, TextReader, moved

if TYPE_CHECKING:
    from maxmatch.model.encoder import SetEncoder

_NOISE = 1e-6  # a cosine that falls by less has not changed
_WINDOWS = {"cpu": 4}  # of a picture, along each side: on a CPU, each pass takes a tenth of a second
_MORE_WINDOWS = 7
_AT_ONCE = 16  # items that lack a part


class Pair(NamedTuple):
    """A slot of the image, the slot of the text that it was matched with, and their cosine."""

    image_slot: int
    text_slot: int
    cosine: float


@dataclass(frozen=True)
class Look:
    """One item as a model sees it."""

    vectors: Float[Tensor, "K D"]
    """Its set."""
    attention: Float[Tensor, "K rows columns"] | Float[Tensor, "K parts"]
    """How much each slot took from each cell of the grid, from each region, or from each word."""
    words: list[str] | None
    """The words of a text, as the tokenizer divides it, special tokens included; None for other items."""


@dataclass(frozen=True)
class Explanation:
    """Why an image and a text score as they do."""

    score: float
    """By the model's similarity."""
    pairs: list[Pair]
    """The best one-to-one matching, by image slot."""
    cosines: Float[Tensor, "K L"]
    """Of every image slot with every text slot."""
    image_attention: Float[Tensor, "K rows columns"] | Float[Tensor, "K regions"]
    """How much each image slot took from each cell of the grid, or from each region."""
    text_attention: Float[Tensor, "L words"]
    """How much each text slot took from each word."""
    words: list[str]
    """The words, as the tokenizer divides the text, special tokens included."""


class NoAttentionError(ValueError):
    """A tower of which it cannot be told what its vectors were taken from."""


class Occlusions(NamedTuple):
    """An item without one of its parts, for each of P parts."""

    inputs: Inputs
    """(P, …): what the encoder reads."""
    part: Int[Tensor, "rows columns"] | Int[Tensor, " places"]
    """The part that each cell, region or token belongs to; −1: to none, and it is never left out."""


def occlusions(reader: Reader, item: object, inputs: Inputs) -> Occlusions | None:
    """An item without each of its parts. item, inputs: as it was read, and collated alone. None where the reader is of
    an unknown kind.

    A text lacks one token, but never a special one; an item of features lacks one of them. A window of a picture has
    the mean colour of the picture; there are 4 × 4 windows on a CPU and 7 × 7 elsewhere.
    """
    if isinstance(reader, TextReader):
        return _tokens(reader, str(item), inputs)
    if isinstance(reader, PatchReader):
        return _patches(inputs)
    if isinstance(reader, PixelReader):
        return _windows(inputs)
    return _features(inputs) if isinstance(reader, FeatureReader) else None


def occluded_shares(
    parts: Occlusions,
    whole: Float[Tensor, "K D"],
    targets: Float[Tensor, "K D"],
    encode: Callable[[Inputs], Float[Tensor, "B K D"]],
) -> Tensor:
    """What each cell, region or token counts for each slot, (K, …). whole: the item's set. targets: what each slot is
    compared with. encode: makes sets of inputs.
    """
    values, mask = parts.inputs
    without = [
        encode(Inputs(values[start : start + _AT_ONCE], None if mask is None else mask[start : start + _AT_ONCE]))
        for start in range(0, len(values), _AT_ONCE)
    ]
    return shares(whole, torch.cat(without) if without else whole.new_zeros(0, *whole.shape), targets, parts.part)


def shares(
    whole: Float[Tensor, "K D"], without: Float[Tensor, "P K D"], targets: Float[Tensor, "K D"], part: Int[Tensor, "*n"]
) -> Float[Tensor, "K *n"]:
    """drop_kp = max(0, ⟨s_k, t_k⟩ − ⟨s_k without part p, t_k⟩), shared evenly by the cells of part p, to sum 1.

    Where the cosine falls without none of the parts, all count alike.
    """
    drop = ((whole - without) * targets).sum(2).T  # (K, P)
    drop = drop.where(drop > _NOISE, 0.0)
    places, known = part.flatten(), part.flatten() >= 0
    sizes = torch.bincount(places[known], minlength=drop.shape[1])
    found = torch.zeros(len(whole), len(places))
    found[:, known] = (drop / sizes)[:, places[known]]
    alike = (known if bool(known.any()) else ~known).float()
    found = torch.where(found.sum(1, keepdim=True) > 0, found, alike)
    return (found / found.sum(1, keepdim=True)).view(-1, *part.shape)


def look_at(
    model: "SetEncoder", modality: str, item: object, against: Callable[[], Float[Tensor, "L D"]] | None
) -> Look:
    """`SetEncoder.look`."""
    tower = model.tower(modality)
    with model.evaluating():
        read = tower.reader.read(item)
        inputs = moved(tower.reader.collate([read]), next(model.parameters()))
        features = tower.encoder(*inputs)
        sets = tower.head(features)
    vectors = sets.vectors[0].float().cpu()
    if sets.attention is None:
        attention = _occluded(model, modality, read, inputs, vectors, against)
    else:
        attention, grid = sets.attention[0].float().cpu(), features.grid
        if grid is None:
            attention, grid = attention[:, features.mask[0].cpu()], patch_grid(tower.reader, inputs)
        attention = attention if grid is None else attention.view(-1, *grid)
    words = None
    if isinstance(tower.reader, TextReader):
        words = tower.reader.words(inputs.values[0])[: attention.shape[1]]
    return Look(vectors, attention, words)


def _occluded(
    model: "SetEncoder",
    modality: str,
    read: object,
    inputs: Inputs,
    vectors: Float[Tensor, "K D"],
    against: Callable[[], Float[Tensor, "L D"]] | None,
) -> Tensor:
    """How much the cosine of each slot with its partner falls without each part of an item."""
    gaussian = SIMILARITIES[model.similarity_name].set_size is not None
    parts = None if gaussian else occlusions(model.tower(modality).reader, read, inputs)
    if parts is None:
        raise NoAttentionError(
            f"explain: the head of the tower {modality!r} gives no attention, and what it reads cannot be taken "
            "apart. Pictures, features and texts can be, unless a model compares Gaussians."
        )
    targets = vectors
    if against is not None:
        others = against()
        chosen = partners(model.similarity_name, vectors @ others.T)
        targets = torch.where(chosen[:, None] >= 0, others[chosen], vectors)
    with model.evaluating():
        return occluded_shares(parts, vectors, targets, lambda some: model.sets_of(modality, some).cpu())


def partners(similarity: str, cosines: Float[Tensor, "K L"]) -> Int[Tensor, " K"]:
    """The slot that each slot is compared with; −1: none."""
    return torch.arange(len(cosines)) if SIMILARITIES[similarity].in_order else maximal_assignment(cosines)


def patch_grid(reader: Reader, inputs: Inputs) -> tuple[int, int] | None:
    """Rows and columns of a picture as patches; None for other items."""
    if not isinstance(reader, PatchReader) or inputs.mask is None:
        return None
    rows = int(inputs.mask.max())
    return rows, int((inputs.mask > 0).sum()) // rows


def _tokens(reader: TextReader, text: str, inputs: Inputs) -> Occlusions:
    padding = reader.tokenizer.padding or {}
    ids, read = inputs.values[0], reader.tokenizer.encode(text)
    length = max(sum(read.attention_mask), 1)  # without the padding of a tokenizer that always pads
    words = [place for place, special in enumerate(read.special_tokens_mask) if not special] if len(ids) > 1 else []
    part = torch.full((length,), -1)
    part[words] = torch.arange(len(words))
    end = ids.new_tensor([padding["pad_id"]] if padding.get("length") else [])
    rest = [torch.cat([ids[:place], ids[place + 1 :], end]) for place in words]
    values = torch.stack(rest) if rest else ids.new_zeros(0, len(ids))
    return Occlusions(Inputs(values, torch.ones_like(values, dtype=torch.bool)), part)


def _windows(inputs: Inputs) -> Occlusions:
    pixels = inputs.values  # (1, 3, H, W)
    height, width = pixels.shape[2:]
    most = _WINDOWS.get(pixels.device.type, _MORE_WINDOWS)
    rows, columns = min(most, height), min(most, width)
    number = _spans(height, rows)[:, None] * columns + _spans(width, columns)
    hidden = number.to(pixels.device) == torch.arange(rows * columns, device=pixels.device)[:, None, None]
    mean = pixels.mean((2, 3), keepdim=True)
    part = torch.arange(rows * columns).view(rows, columns)
    return Occlusions(Inputs(torch.where(hidden[:, None], mean, pixels), None), part)


def _patches(inputs: Inputs) -> Occlusions:
    patches, row = inputs.values, inputs.mask  # (1, N, P), (1, N)
    assert row is not None
    height = int(row.max())
    real = row[0] > 0
    width = int(real.sum()) // height
    most = _WINDOWS.get(patches.device.type, _MORE_WINDOWS) ** 2
    rows = min(max(round((most * height / width) ** 0.5), 1), height, most)
    columns = min(most // rows, width)
    rows = min(most // columns, height)
    part = _spans(height, rows)[:, None] * columns + _spans(width, columns)
    number = torch.full((len(real),), -1, device=patches.device)
    number[real] = part.flatten().to(patches.device)
    hidden = number == torch.arange(rows * columns, device=patches.device)[:, None]
    mean = patches[:, real].mean(1, keepdim=True)
    values = torch.where(hidden[..., None], mean, patches)
    return Occlusions(Inputs(values, row.expand(len(values), -1)), part)


def _features(inputs: Inputs) -> Occlusions:
    features = inputs.values[0]
    count = len(features) if len(features) > 1 else 0
    kept = ~torch.eye(count, dtype=torch.bool, device=features.device)
    values = features.expand(count, *features.shape)[kept].view(count, -1, features.shape[1]) if count else features[:0]
    part = torch.arange(count) if count else torch.full((len(features),), -1)
    return Occlusions(Inputs(values, torch.ones(values.shape[:2], dtype=torch.bool, device=features.device)), part)


def _spans(length: int, count: int) -> Int[Tensor, " length"]:
    """Which of `count` spans of nearly the same length each place is in."""
    return torch.arange(length) * count // length
