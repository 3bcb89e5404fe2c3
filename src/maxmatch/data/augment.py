"""Augmentation: regions and words left out at random; random crops and mirrored pictures, from disk or the device."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor, from_numpy
from torch.nn.functional import grid_sample, interpolate
from torch.utils.data import Dataset

from maxmatch.core.devices import on_device
from maxmatch.core.files import locked, whole, write_whole
from maxmatch.core.progress import map_ahead
from maxmatch.core.types import Batch, Inputs, Phrases
from maxmatch.data.dataset import Items
from maxmatch.model.images import DRAFT, Channels, ImageTransform, Source, load_image, normalised
from maxmatch.model.inputs import FeatureReader, PixelReader, Reader, TextReader, in_processes

_MASKED, _REPLACED = 0.5, 0.1  # of the words that are hit; the rest is deleted
_MASK_TOKENS = ("<mask>", "[MASK]")
_PHRASE_WORDS = 3  # at most
_MOST_PIECES = 8  # of a word
_PHRASE_SEED = 0x5EED  # other draws than those of the words left out


@dataclass(frozen=True)
class WordIds:
    """What the augmentation has to know of a tokenizer.

    mask, padding: their ids; mask is None where there is none. fixed: tokens that are no words and never touched:
    <start>, <end>, [CLS], [SEP], padding. words: what a word may be replaced by, the vocabulary without special tokens.
    readable: of every id, whether it is such a word and has a letter or a digit. continues: of every id, whether it is
    a wordpiece ("##ing") that continues the word before it; None where the tokenizer has none.
    """

    mask: int | None
    padding: int
    fixed: Int[Tensor, " F"]
    words: Int[Tensor, " V"]
    readable: Bool[Tensor, " T"]
    continues: Bool[Tensor, " T"] | None = None

    def starts(self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Where a word begins."""
        word = mask & self.readable[ids]
        return word if self.continues is None else word & ~self.continues[ids]

    def short(self, phrases: Inputs) -> Inputs:
        """Phrases in as few columns as all of them need. Those are not counted, since a GPU would have to be waited
        for: a word that is cut in more than eight pieces may lose some.
        """
        width = _PHRASE_WORDS * (1 if self.continues is None else _MOST_PIECES) + len(self.fixed)
        assert phrases.mask is not None
        return Inputs(phrases.values[:, :width], phrases.mask[:, :width])


def word_ids(tokenizer: Tokenizer, device: torch.device) -> WordIds:
    """The ids of a tokenizer's special tokens and of its words."""
    ids = (tokenizer.token_to_id(token) for token in _MASK_TOKENS)
    mask = next((index for index in ids if index is not None), None)
    padding = int((tokenizer.padding or {}).get("pad_id", 0))
    around = tokenizer.encode("").ids  # nothing but what is put around every text
    special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    vocabulary = tokenizer.get_vocab()
    words = sorted(set(vocabulary.values()) - {*special, *around, padding})
    if not words:
        raise ValueError("the tokenizer's vocabulary has special tokens only. Train it on captions.")
    continues = None
    if prefix := getattr(tokenizer.model, "continuing_subword_prefix", None):
        continues = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool, device=device)
        continues[[index for piece, index in vocabulary.items() if piece.startswith(prefix)]] = True
    readable = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool, device=device)
    chosen = set(words)
    readable[[index for piece, index in vocabulary.items() if index in chosen and any(map(str.isalnum, piece))]] = True
    fixed = torch.tensor(sorted({*around, padding}), device=device)
    return WordIds(mask, padding, fixed, torch.tensor(words, device=device), readable, continues)


def drop_regions(mask: Bool[Tensor, "B N"], p: float, draws: Float[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """The regions that are left when each is dropped with probability p: those whose draw (from 0 to 1) reaches p. Of
    every item that had any, one is left: that with the largest draw.
    """
    largest = draws.masked_fill(~mask, 0.0).amax(1, keepdim=True)
    return mask & (draws >= largest.clamp(max=p))


def drop_words(
    ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"], p: float, known: WordIds, draws: Float[Tensor, "3 B N"]
) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Each word is hit with probability p: of those, half become the mask token, a tenth a random word, and the rest is
    deleted; what follows moves up. The pieces of a word share its fate; a random piece comes in place of each.

    draws: whether a word is hit (below p), what becomes of it, and by which word it is replaced. Where every word
    would be deleted, the one with the largest first draw stays as it is.
    """
    assert known.mask is not None
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
    return _moved_up(ids, mask & ~deleted, known.padding)


def _moved_up(
    ids: Int[Tensor, "B N"], left: Bool[Tensor, "B N"], padding: int
) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """The tokens that are left, without gaps."""
    order = (~left).to(torch.uint8).argsort(dim=1, stable=True)
    left = left.gather(1, order)
    return ids.gather(1, order).masked_fill(~left, padding), left


def words_said(
    ids: Int[Tensor, "C N"], mask: Bool[Tensor, "C N"], groups: Int[Tensor, " C"], known: WordIds
) -> tuple[Bool[Tensor, "C V"], Int[Tensor, " C"]]:
    """Which words the captions of a group say, in the row of its first caption; and that row, of each caption. The last
    column is for what is no word.
    """
    row = (groups[:, None] == groups).to(torch.uint8).argmax(1)
    said = torch.zeros(len(ids), len(known.readable) + 1, dtype=torch.bool, device=ids.device)
    said[row[:, None], _words_or_last(ids, mask, known)] = True
    return said, row


def _words_or_last(ids: Tensor, mask: Tensor, known: WordIds) -> Tensor:
    return torch.where(mask & known.readable[ids], ids, len(known.readable))


def cut_phrases(
    ids: Int[Tensor, "C N"],
    mask: Bool[Tensor, "C N"],
    said: Bool[Tensor, "G V"],
    known: WordIds,
    draws: Float[Tensor, "C N+1"],
) -> tuple[Int[Tensor, "C N"], Bool[Tensor, "C N"]]:
    """A phrase of each caption: a word, the likelier the fewer groups say it, and up to two words before it.

    said: see `words_said`. draws: which word, and how many before it (the last column).
    """
    word = mask & known.readable[ids]
    rarity = (said.any(1).sum() / said.sum(0)).log()  # groups, and groups that say it
    keys = draws[:, :-1].clamp(min=1e-6).log() / rarity[_words_or_last(ids, mask, known)].clamp(min=1e-6)
    number = known.starts(ids, mask).cumsum(1)  # of the word
    last = number.gather(1, keys.masked_fill(~word, -torch.inf).argmax(1, keepdim=True))
    first = last - (draws[:, -1:] * _PHRASE_WORDS).long().clamp(max=_PHRASE_WORDS - 1)
    around = (ids[..., None] == known.fixed).any(-1)
    phrase = word & (number >= first) & (number <= last)
    return _moved_up(ids, mask & (around | phrase), known.padding)


class PhraseMaker:
    """Adds phrases of one to three words, "a red car", which are cut out of captions. They fit all images of the batch
    whose captions say all their words. share: how many, as a share of the captions.
    """

    def __init__(self, share: float, readers: Mapping[str, Reader], device: torch.device) -> None:
        self._share, self._device = share, device
        texts = {name: reader for name, reader in readers.items() if isinstance(reader, TextReader)}
        self._words = {name: word_ids(reader.tokenizer, device) for name, reader in texts.items()}

    def __call__(self, batch: Batch, seed: int | None) -> Batch:
        """The batch with phrases; as it is without a seed."""
        if seed is None:
            return batch
        generator = torch.Generator(self._device).manual_seed(seed ^ _PHRASE_SEED)
        phrases = dict(batch.phrases)
        for name, known in self._words.items():
            values, mask = batch.inputs[name]
            assert mask is not None
            draws = torch.rand((len(mask), mask.shape[1] + 2), generator=generator, device=self._device)
            chosen = draws[:, -1].argsort()[: max(round(self._share * len(mask)), 1)]
            said, row = words_said(values, mask, batch.groups[name], known)
            inputs = Inputs(*cut_phrases(values[chosen], mask[chosen], said, known, draws[chosen, :-1]))
            phrases[name] = Phrases(known.short(inputs), self._fits(batch, name, inputs, said, row))
        return replace(batch, phrases=phrases)

    def _fits(self, batch: Batch, name: str, phrases: Inputs, said: Tensor, row: Tensor) -> dict[str, Tensor]:
        """Of each other modality the items whose captions say all words of a phrase; none for one without words."""
        known, (values, mask) = self._words[name], phrases
        assert mask is not None
        needed = _words_or_last(values, mask, known)
        some = (needed < len(known.readable)).any(1)
        said[:, -1] = True  # what is no word
        fits = {}
        for other in batch.groups.keys() - self._words:
            same = batch.groups[other][:, None] == batch.groups[name]
            theirs = said[row[same.to(torch.uint8).argmax(1)]]
            fits[other] = theirs[:, needed].all(-1) & some & same.any(1, keepdim=True)
        return fits


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
                self._words[modality] = word_ids(reader.tokenizer, device)
                if self._words[modality].mask is None:
                    raise ValueError(
                        f"drop: to leave out words takes a tokenizer with a mask token, one of "
                        f"{', '.join(_MASK_TOKENS)}; this one has none. Train without dropping words, or with another "
                        "tokenizer."
                    )
            elif not isinstance(reader, FeatureReader):
                kind = "no such modality" if reader is None else type(reader).__name__
                raise ValueError(
                    f"drop: only features and texts can be left out in part, but {modality!r} is read by: {kind}."
                )

    def __call__(self, batch: Batch, seed: int | None) -> Batch:
        """The batch with less in it; as it is without a seed."""
        if seed is None:
            return batch
        generator = torch.Generator(self._device).manual_seed(seed)
        inputs = dict(batch.inputs)
        for modality, share in self._drop.items():
            values, mask = inputs[modality]
            assert mask is not None
            if modality in self._words:
                draws = torch.rand((3, *mask.shape), generator=generator, device=self._device)
                inputs[modality] = Inputs(*drop_words(values, mask, share, self._words[modality], draws))
            else:
                draws = torch.rand(mask.shape, generator=generator, device=self._device)
                inputs[modality] = Inputs(values, drop_regions(mask, share, draws))
        return replace(batch, inputs=inputs)


_TRIES = 10
_CHUNK = 64  # pictures on their way to the device at once
_FEW_THREADS, _MANY = 4, 5000  # from more threads and pictures on, processes decode them
_PATIENCE = 3600  # seconds to wait for another process that decodes the same pictures


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
        return math.ceil(self.size / smallest)


@dataclass(frozen=True)
class RandomMirror:
    """The picture as evaluation sees it, but mirrored, left to right, with probability `flip`."""

    transform: ImageTransform
    flip: float = 0.5

    def __call__(self, source: Source, generator: np.random.Generator) -> Float[Tensor, "3 _ _"]:
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


class _Decoded(Dataset[tuple[Tensor, dict[int, str]]]):
    """Pictures as bytes, by the chunk: (pictures, side, side, 3), and why some cannot be read, by their places."""

    def __init__(self, items: Items, look: Callable[[Source], Image.Image], side: int) -> None:
        self.items, self.look, self.side = items, look, side

    def __len__(self) -> int:
        return -(-len(self.items) // _CHUNK)

    def __getitem__(self, number: int) -> tuple[UInt8[Tensor, "_ S S 3"], dict[int, str]]:
        places = range(number * _CHUNK, min((number + 1) * _CHUNK, len(self.items)))
        pixels, failed = np.zeros((len(places), self.side, self.side, 3), np.uint8), {}
        for row, place in enumerate(places):
            try:
                pixels[row] = np.asarray(self.look(self.items.values[place]))
            except (ValueError, OSError) as error:
                failed[place] = str(error)
        return from_numpy(pixels), failed

    def all(self, workers: int) -> Iterator[tuple[Tensor, dict[int, str]]]:
        """All chunks, in order. Many threads wait for Python's lock more than they decode; processes do not."""
        if workers <= _FEW_THREADS or len(self.items) < _MANY:
            yield from map_ahead(self.__getitem__, range(len(self)), workers)
        else:
            yield from in_processes(self, workers)

    def cached(self, folder: Path, workers: int) -> Iterator[tuple[Tensor, dict[int, str]]]:
        """All chunks, in order, from a file in the folder; it is written first where there is none of these files, as
        they are now, in this size. Others who want it meanwhile wait. Pictures that are not files are not cached.
        """
        key = self._key()
        if key is None:
            yield from self.all(workers)
            return
        folder.mkdir(parents=True, exist_ok=True)
        file, notes = folder / f"{key}.npy", folder / f"{key}.json"
        with locked(folder, _PATIENCE):
            if not (file.is_file() and notes.is_file()):
                self._write(file, notes, workers)
        try:
            pixels = np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError) as error:
            raise ValueError(f"{file}: not readable as decoded pictures ({error}). Delete it.") from error
        failed = {int(place): why for place, why in json.loads(notes.read_text(encoding="utf-8")).items()}
        for start in range(0, len(pixels), _CHUNK):
            places = range(start, min(start + _CHUNK, len(pixels)))
            chunk = np.array(pixels[start : places.stop])
            missing = {}
            for place in failed.keys() & places:  # perhaps it can be read by now
                try:
                    chunk[place - start] = np.asarray(self.look(self.items.values[place]))
                except (ValueError, OSError) as error:
                    missing[place] = str(error)
            yield from_numpy(chunk), missing

    def _write(self, file: Path, notes: Path, workers: int) -> None:
        failed: dict[int, str] = {}
        shape = (len(self.items), self.side, self.side, 3)
        with whole(file) as draft:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(draft, header)
            for chunk, missing in self.all(workers):
                draft.write(chunk.numpy().data)
                failed |= missing
        write_whole(notes, json.dumps(failed))

    def _key(self) -> str | None:
        """What the pixels depend on: files, sizes, times, and how they are looked at. None where some are not files."""
        files: list[list[str | int]] = []
        for place in range(len(self.items)):
            value = self.items.values[place]
            if not isinstance(value, str | Path):
                return None
            files.append([str(value)])
            with suppress(OSError):  # what is not there is reported when it is read
                found = os.stat(value)
                files[-1] += [found.st_size, found.st_mtime_ns]
        how = [DRAFT, self.side, self.look.__name__, repr(getattr(self.look, "__self__", None))]
        return hashlib.sha256(json.dumps([how, files]).encode()).hexdigest()[:16]


class ResidentPictures:
    """The pictures of a split as bytes on the device. failed: why some cannot be read, by their places.

    Without crops, exactly what evaluation sees, mirrored or not. For random crops a picture is kept as the square in
    its middle (squashed, where the model squashes), a seventh larger than what the model sees, and the parts are cut
    from that square: what is left and right of it in a wide picture is never seen, as in evaluation.

    cache: a folder where decoded pictures are kept for the next training; None decodes them each time.
    """

    def __init__(
        self, items: Items, reader: PixelReader, augmentation: Augmentation | None, device: torch.device, threads: int,
        cache: Path | None = None,
    ) -> None:  # fmt: skip
        self.augmentation, self.transform = augmentation, reader.transform
        self.failed: dict[int, str] = {}
        cut = isinstance(augmentation, RandomCrop)
        side = self.transform.kept_side if cut else self.transform.size
        chunks = _Decoded(items, self.transform.square if cut else self.transform.seen, side)
        self.pixels = torch.zeros(len(items), side, side, 3, dtype=torch.uint8, device=device)
        filled = 0
        for chunk, failed in chunks.all(threads) if cache is None else chunks.cached(cache, threads):
            self.pixels[filled : filled + len(chunk)] = chunk.to(device)
            filled += len(chunk)
            self.failed |= failed
        self._mean = torch.tensor(self.transform.mean, device=device)[:, None, None]
        self._std = torch.tensor(self.transform.std, device=device)[:, None, None]

    def read(self, places: np.ndarray, seed: int | None = None) -> tuple[Inputs, dict[int, str]]:
        """Pixels (items, 3, size, size), as the network takes them; parts and mirroring depend on seed and place."""
        index = on_device(places, self.pixels.device)
        # Channels stay last in memory: that is how convolutions are fastest.
        pixels = self.pixels.index_select(0, index).movedim(3, 1).float() / 255
        size = self.transform.size
        if seed is not None and self.augmentation is not None:
            wanted = self.augmentation.size if isinstance(self.augmentation, RandomCrop) else size
            pixels = cut_out(pixels, *self._drawn(places, seed), wanted)
        elif isinstance(self.augmentation, RandomCrop) and self.transform.resize == "squash":
            pixels = interpolate(pixels, size=(size, size), mode="bilinear", antialias=True)
        elif isinstance(self.augmentation, RandomCrop):
            first = (pixels.shape[2] - size) // 2
            pixels = pixels[:, :, first : first + size, first : first + size]
        pixels = (pixels - self._mean) / self._std
        return Inputs(pixels.contiguous(memory_format=torch.channels_last), None), {}

    def _drawn(self, places: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The part of each picture, and whether it is mirrored."""
        side = self.pixels.shape[1]
        boxes, mirrored = np.zeros((len(places), 4)), np.zeros(len(places), bool)
        assert self.augmentation is not None
        for row, place in enumerate(places.tolist()):
            generator = np.random.default_rng([seed, place])
            boxes[row] = (0, 0, side, side)
            if isinstance(self.augmentation, RandomCrop):
                boxes[row] = crop_box(side, side, self.augmentation.scale, self.augmentation.ratio, generator)
            mirrored[row] = generator.random() < self.augmentation.flip
        return boxes, mirrored


def cut_out(
    pictures: Float[Tensor, "B C S S"], boxes: np.ndarray, mirrored: np.ndarray, size: int
) -> Float[Tensor, "B C {size} {size}"]:
    """A part of each picture, as a square of `size` pixels, by bilinear interpolation.

    boxes: left, top, right, bottom of each, in pixels.
    """
    box = on_device(boxes.astype(np.float32), pictures.device)
    flip = on_device(mirrored, pictures.device)
    middle = (torch.arange(size, device=pictures.device) + 0.5) / size  # of each pixel, as a share of the part
    across = torch.where(flip[:, None], 1 - middle, middle)
    x = box[:, :1] + across * (box[:, 2:3] - box[:, :1])
    y = box[:, 1:2] + middle * (box[:, 3:] - box[:, 1:2])
    side = pictures.shape[2]
    grid = torch.stack(
        [(2 * x / side - 1)[:, None, :].expand(-1, size, -1), (2 * y / side - 1)[:, :, None].expand(-1, -1, size)], -1
    )
    return grid_sample(pictures, grid, mode="bilinear", padding_mode="border", align_corners=False)
