"""Single pictures: thumbnails of indexed ones, uploads (limited before they are decoded), and why one was found."""

import io
import secrets
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
from PIL import Image, features
from pydantic import BeforeValidator
from torch import Tensor

from maxmatch.matching import SetSimilarity
from maxmatch.matching.assignment import maximal_assignment
from maxmatch.model.encoder import Look, NoAttentionError, SetEncoder
from maxmatch.model.images import ImageError, load_image
from maxmatch.model.inputs import PixelReader, TextReader
from maxmatch.model.picture_files import HEIC, PILLOW_FORMATS, format_of, is_read, opened
from maxmatch.model.text import learned_words
from maxmatch.server.api_schema import Explained, ItemFacts, PairOut, PartExplained, Refusal, SlotsOut, not_found
from maxmatch.server.gallery import Gallery
from maxmatch.server.searcher import QueryTerm, check_slot

Size = Annotated[Literal[160, 320, 640, 1280, 2560], BeforeValidator(int)]  # a parameter of an address arrives as text
"""The longest side of a thumbnail."""
PICTURE_TYPES = ", ".join(f"image/{name.lower()}" for name in (*PILLOW_FORMATS, HEIC))
LARGEST_SIDE = 768
"""Of an upload as it is kept: no model looks more closely."""
DECODING_BYTES = 320_000_000
"""What decoding an upload may take."""
_OF_THE_DECODER = {"WEBP": 12, "AVIF": 6, "HEIF": 6, "TIFF": 4}  # bytes per pixel, beside the picture itself
_THUMBNAIL_BYTES = 96 * 2**20
_DECODED_AT_ONCE = 2  # a large picture takes hundreds of megabytes while it is decoded
_UPLOADS = 24
_DIGITS = 5
_MOST_WORDS = 32  # of a text, tried one by one


class Thumbnails:
    """WebP thumbnails, upright, without EXIF data (place, camera), cached in memory up to a bound."""

    def __init__(self, cached_bytes: int = _THUMBNAIL_BYTES) -> None:
        self._cached_bytes = cached_bytes
        self._known: OrderedDict[tuple[str, int, int, int], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._decoding = threading.Semaphore(_DECODED_AT_ONCE)

    def make(self, path: Path, size: int) -> bytes:
        """The thumbnail of a file as it is now. FileNotFoundError, ImageError."""
        try:
            state = path.stat()
        except OSError as error:
            raise FileNotFoundError(f"{path}: no such file.") from error
        key = (str(path), state.st_mtime_ns, state.st_size, size)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        with self._decoding:
            made = webp(load_image(path, at_least=2 * size), size)
        with self._lock:
            if key not in self._known:
                self._known[key] = made
                self._bytes += len(made)
            while self._bytes > self._cached_bytes and self._known:
                self._bytes -= len(self._known.popitem(last=False)[1])
        return made


def webp(picture: Image.Image, size: int) -> bytes:
    """A picture with this longest side; never enlarged."""
    small = picture.copy()
    small.thumbnail((size, size), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "WEBP", quality=82, method=2)
    return file.getvalue()


@dataclass(frozen=True)
class Upload:
    """An uploaded picture, scaled down and upright, and its set."""

    picture: Image.Image
    vectors: Tensor
    """(K, D)"""


def read_upload(data: bytes, max_pixels: int) -> Image.Image:
    """The picture upright, in RGB, no larger than needed. Refused: other files, damaged or too large pictures."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with _opened(data, max_pixels) as image:
                pixels = image.width * image.height
                if pixels > max_pixels:
                    raise _too_many_pixels(max_pixels)
                needed = decoding_bytes(image)
                if needed > DECODING_BYTES:
                    raise _too_many_pixels(pixels * DECODING_BYTES // needed)
                picture = load_image(image, max_pixels=max_pixels, at_most=LARGEST_SIDE)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise _too_many_pixels(max_pixels) from None
        except (Refusal, MemoryError):
            raise
        except ImageError:
            raise _no_picture("The picture is damaged or cut short.") from None
        except Exception:  # what a damaged file makes Pillow raise has no common class
            raise _no_picture("This file cannot be read as a picture.") from None
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    return picture


def _opened(data: bytes, max_pixels: int) -> AbstractContextManager[Image.Image]:
    if format_of(data) == HEIC:
        return opened(data, max_pixels)
    return Image.open(io.BytesIO(data), formats=PILLOW_FORMATS)


def decoding_bytes(image: Image.Image) -> int:
    """How much memory a picture takes while it is decoded; a JPEG is told to be decoded at reduced size.

    Of a progressive JPEG, all coefficients are in memory, at full size.
    """
    coefficients = 2 * len(image.getbands()) * image.width * image.height if "progressive" in image.info else 0
    image.draft("RGB", (LARGEST_SIDE, LARGEST_SIDE))
    copied = image.mode not in ("L", "RGB", "CMYK")  # before it is made smaller
    per_pixel = 4 * (1 + copied) + _OF_THE_DECODER.get(image.format or "", 0)
    return coefficients + per_pixel * image.width * image.height


class Uploads:
    """The last uploaded pictures, in memory only, under keys that cannot be guessed."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Upload] = OrderedDict()

    def keep(self, upload: Upload) -> str:
        """Its key. The least recently used upload is dropped."""
        key = secrets.token_hex(16)
        self._known[key] = upload
        while len(self._known) > _UPLOADS:
            self._known.popitem(last=False)
        return key

    def get(self, key: str) -> Upload:
        """The upload with this key, while it is kept."""
        found = self._known.get(key)
        if found is None:
            raise not_found("The server no longer has this picture. Upload it again.")
        self._known.move_to_end(key)
        return found


def _too_many_pixels(limit: int) -> Refusal:
    return Refusal(413, "too_large", f"The picture has more than {limit // 1_000_000} million pixels. Make it smaller.")


def _no_picture(what: str) -> Refusal:
    absent = {"AVIF": not features.check("avif"), HEIC: not is_read(".heic")}
    *most, last = (name for name in (*PILLOW_FORMATS, HEIC) if not absent.get(name))
    return Refusal(415, "no_picture", f"{what} Send a {', '.join(most)} or {last} file.")


class ModelView(NamedTuple):
    """What the model sees of a picture, and on which part of it."""

    look: Look
    box: list[float]


def reads_pictures(model: SetEncoder) -> bool:
    """Whether the model reads pictures, rather than features extracted beforehand."""
    return "image" in model.towers and isinstance(model.tower("image").reader, PixelReader)


def vocabulary(model: SetEncoder, most: int) -> list[str]:
    """Frequent words of the captions that the model learned from, where it knows them."""
    reader = model.tower("text").reader if "text" in model.towers else None
    return learned_words(reader.tokenizer, most) if isinstance(reader, TextReader) else []


def explain(
    model: SetEncoder,
    gallery: Gallery,
    uploads: Uploads,
    similarity: SetSimilarity,
    item: ItemFacts,
    parts: Sequence[QueryTerm],
) -> Explained:
    """Compare an item with each part of a query; without parts, only where its slots look."""
    if not reads_pictures(model):
        raise Refusal(422, "no_pictures", "This model reads features, not pictures.")
    if similarity.set_size is not None:
        raise Refusal(422, "no_slots", "This model compares Gaussians: it has no slots that look anywhere.")
    try:
        seen = look_at(
            model, gallery.picture(item.id), (lambda: _asked(model, gallery, uploads, parts)) if parts else None
        )
        explained = [_part(model, gallery, uploads, similarity, seen, part) for part in parts]
    except NoAttentionError as error:
        raise Refusal(422, "no_attention", str(error)) from error
    return Explained(item=item, slots=_slots(seen), parts=explained)


def _asked(model: SetEncoder, gallery: Gallery, uploads: Uploads, parts: Sequence[QueryTerm]) -> Tensor:
    """What a model without attention is asked about: Σ weight · set over the parts of a query, since the cosine with a
    sum is the sum of the cosines.
    """
    total = torch.zeros(())
    for part in parts:
        if part.kind == "text":
            vectors = model.encode_texts([part.value])[0]
        else:
            vectors = model.encode_images([_source(gallery, uploads, part)])[0]
        total = total + part.weight * vectors
    return total


def _source(gallery: Gallery, uploads: Uploads, part: QueryTerm) -> Path | Image.Image:
    return gallery.picture(part.value) if part.kind == "item" else uploads.get(part.value).picture


def look_at(model: SetEncoder, source: Path | Image.Image, against: Callable[[], Tensor] | None = None) -> ModelView:
    """The set of a picture, and where on it each slot looks. against: see `SetEncoder.look`."""
    reader = model.tower("image").reader
    assert isinstance(reader, PixelReader)
    picture = load_image(source, at_least=LARGEST_SIDE)
    left, top, right, bottom = reader.transform.box(picture.width, picture.height)
    box = [left / picture.width, top / picture.height, right / picture.width, bottom / picture.height]
    return ModelView(model.look("image", picture, against), [round(side, _DIGITS) for side in box])


def _part(
    model: SetEncoder, gallery: Gallery, uploads: Uploads, similarity: SetSimilarity, item: ModelView, part: QueryTerm
) -> PartExplained:
    words: list[str] | None = None
    attention: Tensor | None = None
    picture: SlotsOut | None = None
    if part.kind == "text":
        look = model.look("text", part.value, lambda: item.look.vectors)
        label, words, attention = part.value, look.words or [], look.attention
    else:
        seen = look_at(model, _source(gallery, uploads, part), lambda: item.look.vectors)
        look, picture, label = seen.look, _slots(seen), "your picture" if part.kind == "upload" else "that picture"
    slots = list(range(len(look.vectors)))
    if part.slot is not None:
        check_slot(part.slot, len(slots), similarity)
        slots = [part.slot]
    vectors = look.vectors[slots]
    cosines = vectors @ item.look.vectors.T
    chosen = slots if similarity.in_order else maximal_assignment(cosines).tolist()
    pairs = [
        PairOut(query_slot=slot, item_slot=partner, cosine=round(float(cosines[row, partner]), _DIGITS))
        for row, (slot, partner) in enumerate(zip(slots, chosen, strict=True))
        if partner >= 0
    ]
    terms: list[str] | None = None
    effects: list[list[float]] | None = None
    if words is not None:
        matched = dict(zip(slots, chosen, strict=True))
        partners = [
            item.look.vectors[matched[slot]] if matched.get(slot, -1) >= 0 else None
            for slot in range(len(look.vectors))
        ]
        terms, effects = word_effects(model, part.value, partners)
    return PartExplained(
        label=label,
        weight=part.weight,
        score=float(similarity(vectors[None], item.look.vectors[None])),
        query_slots=slots,
        cosines=_rounded(cosines),
        pairs=pairs,
        words=words,
        word_attention=None if attention is None else _rounded(attention[slots]),
        terms=terms,
        word_effects=effects and [effects[slot] for slot in slots],
        picture=picture,
    )


def word_effects(
    model: SetEncoder, text: str, partners: Sequence[Tensor | None]
) -> tuple[list[str], list[list[float]]]:
    """The words of a text, and for each slot by how much its cosine with its partner (D) falls without each of them."""
    words = text.split()[:_MOST_WORDS]
    shorter = [" ".join(words[:place] + words[place + 1 :]) or "." for place in range(len(words))]
    whole, *without = model.encode_texts([text, *shorter], show_progress=False)
    effects = [
        [0.0 if partner is None else round(float((whole[slot] - less[slot]) @ partner), _DIGITS) for less in without]
        for slot, partner in enumerate(partners)
    ]
    return words, effects


def _slots(seen: ModelView) -> SlotsOut:
    attention = seen.look.attention
    grid = attention if attention.ndim == 3 else attention[:, None]
    return SlotsOut(attention=[_rounded(slot) for slot in grid], box=seen.box)


def _rounded(table: Tensor) -> list[list[float]]:
    return [[round(value, _DIGITS) for value in row] for row in table.tolist()]
