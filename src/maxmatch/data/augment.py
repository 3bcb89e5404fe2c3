"""Augmentation: regions and words left out at random; random crops and mirrored pictures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor, from_numpy

from maxmatch.core.types import Batch, Inputs
from maxmatch.model.images import DRAFT, Channels, ImageTransform, Source, load_image, normalised
from maxmatch.model.inputs import FeatureReader, Reader, TextReader

_MASKED, _REPLACED = 0.5, 0.1  # of the words that are hit; the rest is deleted
_MASK_TOKENS = ("<mask>", "[MASK]")


@dataclass(frozen=True)
class WordIds:
    """What the augmentation has to know of a tokenizer.

    mask, padding: their ids. fixed: tokens that are no words and never touched, <start>, <end>, [CLS], [SEP], padding.
    words: what a word may be replaced by, the vocabulary without special tokens. continues: of every id, whether it is
    a wordpiece ("##ing") that continues the word before it; None where the tokenizer has none.
    """

    mask: int
    padding: int
    fixed: Int[Tensor, " F"]
    words: Int[Tensor, " V"]
    continues: Bool[Tensor, " T"] | None = None

    def to(self, device: torch.device | str) -> "WordIds":
        """The same on a device."""
        continues = None if self.continues is None else self.continues.to(device)
        return WordIds(self.mask, self.padding, self.fixed.to(device), self.words.to(device), continues)


def word_ids(tokenizer: Tokenizer) -> WordIds:
    """The ids of a tokenizer's special tokens and of its words."""
    ids = (tokenizer.token_to_id(token) for token in _MASK_TOKENS)
    mask = next((index for index in ids if index is not None), None)
    if mask is None:
        raise ValueError(
            f"drop: to leave out words takes a tokenizer with a mask token, one of {', '.join(_MASK_TOKENS)}; this one "
            "has none. Train without dropping words, or with another tokenizer."
        )
    padding = int((tokenizer.padding or {}).get("pad_id", 0))
    around = tokenizer.encode("").ids  # nothing but what is put around every text
    special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    words = sorted(set(tokenizer.get_vocab().values()) - {*special, *around, padding})
    if not words:
        raise ValueError("drop: the tokenizer's vocabulary has special tokens only. Train it on captions.")
    fixed = torch.tensor(sorted({*around, padding}))
    return WordIds(mask, padding, fixed, torch.tensor(words), _continuing(tokenizer))


def _continuing(tokenizer: Tokenizer) -> Bool[Tensor, " T"] | None:
    prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
    if not prefix:
        return None
    vocabulary = tokenizer.get_vocab()
    continues = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)
    continues[[index for piece, index in vocabulary.items() if piece.startswith(prefix)]] = True
    return continues


def drop_regions(mask: Bool[Tensor, "B N"], p: float, generator: torch.Generator) -> Bool[Tensor, "B N"]:
    """The regions that are left when each is dropped with probability p. One is left of every item that had any."""
    return regions_left(mask, p, torch.rand(mask.shape, generator=generator, device=mask.device))


def regions_left(mask: Bool[Tensor, "B N"], p: float, draws: Float[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Those whose draw reaches p; where none does, the largest draw."""
    largest = draws.masked_fill(~mask, 0.0).amax(1, keepdim=True)
    return mask & (draws >= largest.clamp(max=p))


def drop_words(
    ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"], p: float, known: WordIds, generator: torch.Generator
) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Each word is hit with probability p: of those, half become the mask token, a tenth a random word, and the rest is
    deleted; what follows moves up. One word is left of every text that had any. The pieces of a word share its fate; a
    random piece comes in place of each.
    """
    return words_left(ids, mask, p, known, torch.rand((3, *ids.shape), generator=generator, device=ids.device))


def words_left(
    ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"], p: float, known: WordIds, draws: Float[Tensor, "3 B N"]
) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """draws: whether a word is hit (below p), what becomes of it, and by which word it is replaced. Where every word
    would be deleted, the one with the largest first draw stays as it is.
    """
    word = mask & (ids[..., None] != known.fixed).all(-1)
    if known.continues is not None:  # then a piece has the draws of the word's first
        first = torch.arange(ids.shape[1], device=ids.device).masked_fill(known.continues[ids], 0).cummax(1).values
        draws = torch.cat([draws[:2].gather(2, first.expand(2, -1, -1)), draws[2:]])
    hit, fate = word & (draws[0] < p), draws[1]
    deleted = hit & (fate >= _MASKED + _REPLACED)
    none_left = (deleted == word).all(1, keepdim=True)
    deleted &= ~(none_left & (draws[0] >= draws[0].masked_fill(~word, 0.0).amax(1, keepdim=True)))
    chosen = known.words[(draws[2] * len(known.words)).long().clamp(max=len(known.words) - 1)]
    ids = torch.where(hit & (fate < _MASKED), known.mask, ids)
    ids = torch.where(hit & (fate >= _MASKED) & (fate < _MASKED + _REPLACED), chosen, ids)
    left = mask & ~deleted
    order = (~left).to(torch.uint8).argsort(dim=1, stable=True)
    left = left.gather(1, order)
    return ids.gather(1, order).masked_fill(~left, known.padding), left


class SizeAugmentation:
    """Leaves out regions and words of a batch. drop: how large a share of them, by modality."""

    def __init__(self, drop: Mapping[str, float], readers: Mapping[str, Reader], device: torch.device) -> None:
        self._drop = dict(drop)
        self._words: dict[str, WordIds] = {}
        self._device = device
        for modality, share in drop.items():
            reader = readers.get(modality)
            if not 0 <= share < 1:
                raise ValueError(f"drop: expected a share from 0 to below 1 for {modality!r}, got {share}.")
            if isinstance(reader, TextReader):
                self._words[modality] = word_ids(reader.tokenizer).to(device)
            elif not isinstance(reader, FeatureReader):
                kind = "no such modality" if reader is None else type(reader).__name__
                raise ValueError(
                    f"drop: only features and texts can be left out in part, but {modality!r} is read by: {kind}."
                )

    def __call__(self, batch: Batch, seed: int | None) -> Batch:
        """The batch with less in it; as it is without a seed."""
        if not self._drop or seed is None:
            return batch
        generator = torch.Generator(self._device).manual_seed(seed)
        inputs = dict(batch.inputs)
        for modality, share in self._drop.items():
            values, mask = inputs[modality]
            assert mask is not None
            if modality in self._words:
                inputs[modality] = Inputs(*drop_words(values, mask, share, self._words[modality], generator))
            else:
                inputs[modality] = Inputs(values, drop_regions(mask, share, generator))
        return Batch(inputs, batch.groups)


_TRIES = 10


@dataclass(frozen=True)
class RandomCrop:
    """A part of the picture, of random area and shape, as a square of `size` pixels; then (pixel − mean)/std.

    scale: the least and largest share of the picture's area; ratio: the same of width to height. flip: how often the
    part is mirrored, left to right.
    """

    size: int
    mean: Channels
    std: Channels
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what no part can have."""
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale: expected two shares of the area, 0 < least ≤ largest ≤ 1, got {self.scale}.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio: expected 0 < least ≤ largest width to height, got {self.ratio}.")

    def __call__(self, source: Source, generator: np.random.Generator) -> Float[Tensor, "3 {self.size} {self.size}"]:
        """A random part of the picture as the model takes it."""
        image = load_image(source, at_least=self._at_least())
        box = crop_box(image.width, image.height, self.scale, self.ratio, generator)
        image = image.crop(box).resize((self.size, self.size), Image.Resampling.BILINEAR)
        if generator.random() < self.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return from_numpy(normalised(image, self.mean, self.std))

    def _at_least(self) -> int:
        """Evaluation sees seven eighths of the short side; a part may be as small as a quarter of it, and must have
        `size` pixels of its own still: a picture decoded any smaller would be blown up again.
        """
        smallest = math.sqrt(self.scale[0] * min(self.ratio[0], 1 / self.ratio[1]))
        return math.ceil(self.size / smallest / DRAFT)


@dataclass(frozen=True)
class RandomMirror:
    """The picture as evaluation sees it, but mirrored, left to right, with probability `flip`."""

    transform: ImageTransform
    flip: float = 0.5

    @property
    def size(self) -> int:
        """The side of the square."""
        return self.transform.size

    def __call__(self, source: Source, generator: np.random.Generator) -> Float[Tensor, "3 {self.size} {self.size}"]:
        """The picture as the model takes it."""
        pixels = self.transform(source)
        return pixels.flip(-1) if generator.random() < self.flip else pixels


Augmentation = RandomCrop | RandomMirror


def crop_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], generator: np.random.Generator
) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random part of a picture.

    Area uniform in `scale`, shape uniform in the logarithm of `ratio`; after ten that do not fit, the middle of the
    picture, as much of it as has an allowed shape.
    """
    for _ in range(_TRIES):
        area = width * height * generator.uniform(*scale)
        shape = math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(generator.integers(width - w + 1)), int(generator.integers(height - h + 1))
            return left, top, left + w, top + h
    w = min(width, max(round(height * ratio[1]), 1))
    h = min(height, max(round(width / ratio[0]), 1))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
