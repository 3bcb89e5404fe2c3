"""Pictures: from a file, bytes, a PIL image or an array to normalised pixels. Every error names the picture."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, features

from maxmatch.model.picture_files import MissingReaderError, is_avif, opened

if TYPE_CHECKING:
    import torch

Source = str | Path | bytes | Image.Image | np.ndarray
Channels = tuple[float, float, float]

MAX_PIXELS = 178_956_970  # where Pillow, too, refuses to open a file
_CROP = 0.875  # the share of the short side that a crop keeps: 224 of 256
DRAFT = 1.5  # a JPEG for a model is decoded at no less than this many times its size, so that resizing still averages
_LARGE = 2  # times the wanted size: where resizing takes long
_LONGEST = 8.0  # as wide as high, or as high as wide, a picture is shown
_VERY_LONG = 100  # as long as wide: of longer pictures only the middle is resized, before it is cropped
_ORIENTATION = 0x0112
_BUFFER = re.compile(r" <_io\.\w+ [^>]*>")  # Pillow's name for a nameless buffer
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(ValueError):
    """A picture that cannot be read, or is too large."""


@dataclass(frozen=True)
class ImageTransform:
    """The preprocessing of pictures in evaluation.

    resize: "crop" scales the short side to size/0.875 (256 for 224) and crops the middle; "squash" scales both sides
    to `size`, whatever the shape. Then (pixel − mean)/std per channel, pixels from 0 to 1.
    """

    size: int
    resize: Literal["crop", "squash"]
    mean: Channels
    std: Channels

    def __call__(self, source: Source) -> "torch.Tensor":
        """The picture as the model takes it, (3, size, size)."""
        import torch

        return torch.from_numpy(normalised(self._eight_bits(source), self.mean, self.std))

    @property
    def eight_bits(self) -> Callable[[Source], np.ndarray] | None:
        """What makes of a picture the pixels (size, size, 3) that are then normalised (`table`); it can be pickled, and
        loads no torch but for large pictures. None where there are no such pixels.
        """
        return self._eight_bits if type(self).__call__ is ImageTransform.__call__ else None

    @property
    def loads(self) -> tuple[str, ...]:
        """The modules that `eight_bits` imports where it needs them."""
        return ("torch",) if self.resize == "squash" else ()

    @cached_property
    def table(self) -> Float[np.ndarray, "3 256"]:
        """What a pixel of each channel becomes, by its value."""
        return value_table(self.mean, self.std)

    def _eight_bits(self, source: Source) -> UInt8[np.ndarray, "{self.size} {self.size} 3"]:
        image = load_image(source, at_least=self._needed)
        large = self.resize == "squash" and min(image.size) >= _LARGE * self.size
        return shrunk(image, self.size) if large else np.asarray(self._resized(image))

    def pixels(self, source: Source) -> Float[np.ndarray, "3 {self.size} {self.size}"]:
        """The same as an array, but that of a large picture some pixels are rounded otherwise; needs no torch."""
        return normalised(self.seen(source), self.mean, self.std)

    def seen(self, source: Source) -> Image.Image:
        """The part of the picture that the model sees, in the size that it sees."""
        return self._resized(load_image(source, at_least=self._needed))

    def _resized(self, image: Image.Image) -> Image.Image:
        return image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=self.box(image.width, image.height))

    def unsquashed(self, source: Source) -> Image.Image:
        """What `seen` gives, but in its own proportions, for people to look at: as many pixels, at most 8:1."""
        image = load_image(source, at_least=self._needed)
        left, top, right, bottom = box = self.box(image.width, image.height)
        stretch = min(max((right - left) / (bottom - top), 1 / _LONGEST), _LONGEST) ** 0.5
        size = round(self.size * stretch), round(self.size / stretch)
        return image.resize(size, Image.Resampling.BILINEAR, box=box)

    @property
    def kept_side(self) -> int:
        """The length of the short side before the middle is cropped."""
        return round(self.size / _CROP)

    @property
    def _needed(self) -> int:
        """How long the short side of a decoded picture must be."""
        return math.ceil(DRAFT * (self.size if self.resize == "squash" else self.kept_side))

    def square(self, source: Source) -> Image.Image:
        """The largest square in the middle of the picture, or all of it squashed, `kept_side` pixels long."""
        image = load_image(source, at_least=math.ceil(DRAFT * self.kept_side))
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (0, 0, *image.size) if self.resize == "squash" else (left, top, left + side, top + side)
        return image.resize((self.kept_side, self.kept_side), Image.Resampling.BILINEAR, box=box)

    def box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The part of a picture of this size that is kept: left, top, right, bottom. The rest is never resized, however
        long the picture is.
        """
        if self.resize == "squash":
            return (0.0, 0.0, float(width), float(height))
        short = self.kept_side
        scaled_width = max(short * width // min(width, height), 1)
        scaled_height = max(short * height // min(width, height), 1)
        left, top = round((scaled_width - self.size) / 2), round((scaled_height - self.size) / 2)
        x, y = width / scaled_width, height / scaled_height
        return (left * x, top * y, (left + self.size) * x, (top + self.size) * y)


@dataclass(frozen=True)
class ResizedMiddle:
    """The preprocessing of CLIP and others as far as it has eight bits: all of the picture is resized, then cropped.

    side: the short side after resizing, or both where they are squashed. down: whether a crop's odd pixel is lost at
    the right and bottom; otherwise where Python rounds to.
    """

    size: int
    side: int
    squash: bool
    resample: int
    down: bool = True

    def __call__(self, source: Source) -> UInt8[np.ndarray, "{self.size} {self.size} 3"]:
        """The pixels."""
        image = whole_or_middle(source, self.squash)
        width, height = image.size
        if self.squash:
            size = self.side, self.side
        elif width <= height:
            size = self.side, int(self.side * height / width)
        else:
            size = int(self.side * width / height), self.side
        left, top = ((side - self.size) // 2 if self.down else round((side - self.size) / 2) for side in size)
        cropped = image.resize(size, self.resample).crop((left, top, left + self.size, top + self.size))
        return np.asarray(cropped)


def whole_or_middle(source: Source, squash: bool) -> Image.Image:
    """The picture, not reduced. Of a very long one its middle: only that is left after resizing and cropping."""
    image = load_image(source)
    short = min(image.size)
    if squash or max(image.size) <= _VERY_LONG * short:
        return image
    width, height = (min(side, _VERY_LONG * short) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def normalised(
    image: Image.Image | UInt8[np.ndarray, "height width 3"], mean: Channels, std: Channels
) -> Float[np.ndarray, "3 height width"]:
    """(pixel − mean)/std for each channel, pixels from 0 to 1."""
    pixels = np.array(np.moveaxis(np.asarray(image), 2, 0), np.float32, order="C")
    shift, scale = (np.array(values, np.float32)[:, None, None] for values in (mean, std))
    pixels /= 255
    pixels -= shift
    pixels /= scale
    return pixels


def value_table(mean: Channels, std: Channels) -> Float[np.ndarray, "3 256"]:
    """What `normalised` makes of a pixel of each channel, by its value."""
    return normalised(np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 256, 3), mean, std)[:, 0]


def shrunk(image: Image.Image, size: int) -> UInt8[np.ndarray, "{size} {size} 3"]:
    """What Pillow's bilinear filter makes of an RGB picture, in a third of its time; some pixels differ by 1 of 255."""
    import torch
    from torch.nn.functional import interpolate

    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    small = interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    return small[0].permute(1, 2, 0).numpy()


def load_image(
    source: Source, at_least: int | None = None, max_pixels: int = MAX_PIXELS, at_most: int | None = None
) -> Image.Image:
    """The picture, upright and in RGB, transparent pixels white.

    at_least: the short side that will be needed, with room for resizing. A larger JPEG is decoded at a half, a quarter
    or an eighth of its size, if that is left. A picture of more than `max_pixels` is refused
    before it is decoded. at_most: the longest side that will be needed. A much larger picture is made smaller before
    its colours are converted, which saves memory.
    """
    name = describe(source)
    try:
        if isinstance(source, str | Path) and not Path(source).is_file():
            there = Path(source).exists()
            what = "not a file. Give it a name that is no picture's, or delete it" if there else "no such file"
            raise FileNotFoundError(f"{name}: {what}.")
        with _open(source, name, max_pixels) as image:
            if image.width * image.height > max_pixels:
                raise _too_large(name, f"{image.width}×{image.height}", max_pixels)
            if at_least is not None and image is not source:
                image.draft(None, (at_least, at_least))
            picture = _rgb(image if at_most is None else _reduced(image, at_most))
            turn = _UPRIGHT.get(_orientation(image))  # after decoding, by which Pillow turns a TIFF itself
            colours = image.info.get("icc_profile")
    except (ImageError, MemoryError, FileNotFoundError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, str(error).split("(")[-1].split(" pixels")[0], max_pixels) from error
    except PermissionError as error:
        raise ImageError(f"{name}: cannot be read ({error.strerror}). Allow reading it.") from error
    except Exception as error:  # what a damaged file makes Pillow raise has no common class
        cure = error.cure if isinstance(error, MissingReaderError) else _cure(source)
        raise ImageError(f"{name}: not a readable picture ({reason(error)}). {cure}") from error
    upright = picture if turn is None else picture.transpose(turn)
    # Without EXIF: whoever reads this picture, the model above all, would turn it again.
    upright.info = {} if colours is None else {"icc_profile": colours}
    return upright


def reason(error: Exception) -> str:
    """Pillow's reason why a picture cannot be read, without its name for a nameless buffer."""
    return _BUFFER.sub("", str(error)) or type(error).__name__


def describe(source: object) -> str:
    """A name for a picture in messages: its path, or what it is."""
    if isinstance(source, str | Path):
        return str(source)
    if isinstance(source, Image.Image):
        return getattr(source, "filename", "") or f"PIL image {source.mode} {source.width}×{source.height}"
    if isinstance(source, np.ndarray):
        return f"array {source.dtype} {source.shape}"
    if isinstance(source, bytes):
        return f"{len(source)} bytes"
    return type(source).__name__


@contextmanager
def _open(source: Source, name: str, max_pixels: int) -> Iterator[Image.Image]:
    """The picture; a file is opened, not decoded yet, and closed at the end."""
    if isinstance(source, Image.Image):
        if not (source.width and source.height):
            _refuse(name, "it has no pixels")
        yield source
    elif isinstance(source, np.ndarray):
        yield _from_array(source, name)
    elif isinstance(source, str | Path | bytes):
        with opened(source, max_pixels) as image:
            yield image
    else:
        _refuse(name, "expected a path, bytes, a PIL image or an array (height, width, channels)")


def _from_array(array: np.ndarray, name: str) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or not array.size or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        _refuse(name, "expected (height, width), or (height, width, channels) with 1, 3 or 4 channels")
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    elif array.dtype == np.uint16:
        array = (array // 257).astype(np.uint8)
    elif np.issubdtype(array.dtype, np.floating):
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            _refuse(name, "expected floating-point pixels from 0 to 1; the model normalises them itself")
        array = (array * 255).round().astype(np.uint8)
    elif array.dtype != np.uint8:
        _refuse(name, "expected pixels as uint8, uint16, bool, or floating point from 0 to 1")
    return Image.fromarray(np.ascontiguousarray(array))


def _orientation(image: Image.Image) -> int:
    """How the camera was held, by EXIF; broken EXIF data counts as none."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB. Sixteen bits are scaled to eight; Pillow would clip them at 255."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    elif image.mode == "F":
        values = np.nan_to_num(np.asarray(image))
        image = Image.fromarray((values * (255 if values.max() <= 1 else 1)).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _reduced(image: Image.Image, side: int) -> Image.Image:
    """A whole fraction of the picture's size, no less than twice `side`."""
    factor = max(image.size) // (2 * side)
    averages = image.mode not in ("1", "P", "PA") and not image.mode.startswith("I;")  # Pillow cannot reduce these
    return image.reduce(factor) if factor > 1 and averages else image


def _too_large(name: str, size: str, limit: int) -> ImageError:
    return ImageError(
        f"{name}: {size} pixels, more than the limit of {limit:,}; it may be a decompression bomb, a small file "
        "made to fill the memory. Make the picture smaller first."
    )


def _refuse(name: str, why: str) -> NoReturn:
    raise ImageError(f"{name}: {why}.")


def _cure(source: Source) -> str:
    if isinstance(source, str | Path) and not Path(source).stat().st_size:
        return "The file is empty. Fetch it again."
    if lacks_avif(source):
        return "It is an AVIF picture, and this Pillow has no AVIF support. Run: pip install -U 'Pillow>=11.3'"
    return "The file may be incomplete, or not a picture. Open it in a viewer, or fetch it again."


def lacks_avif(source: Source) -> bool:
    """Whether a file is an AVIF picture and this Pillow was built without AVIF."""
    return not features.check("avif") and is_avif(source)
