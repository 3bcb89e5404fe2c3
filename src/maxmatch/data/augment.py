"""Size augmentation: regions and words left out at random, on whatever device the tensors are, without a loop.

The rules are pure functions of uniform draws; `drop_regions` and `drop_words` draw and apply them, and
`SizeAugmentation` does so to a batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from tokenizers import Tokenizer
from torch import Tensor

from maxmatch.readers import FeatureReader, Reader, TextReader
from maxmatch.types import Batch, Inputs

_MASKED, _REPLACED = 0.5, 0.1  # of the words that are hit; the rest is deleted
_MASK_TOKENS = ("<mask>", "[MASK]")


@dataclass(frozen=True)
class WordIds:
    """What the augmentation has to know of a tokenizer.

    mask, padding: their ids. fixed: tokens that are no words and never touched, <start>, <end>, [CLS], [SEP], padding.
    words: what a word may be replaced by, the vocabulary without special tokens. continues: of every id, whether it is
    a wordpiece ("##ing") that goes on with the word before it; None where the tokenizer has none.
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
