"""Pictures and sounds as a preprocessor_config.json of the hub says, by transformers' own preprocessors."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Shaped
from PIL import Image
from torch import Tensor

from maxmatch.core.types import Inputs
from maxmatch.model.config import InputKind
from maxmatch.model.images import ImageTransform, ResizedMiddle, Source, describe, load_image, whole_or_middle
from maxmatch.model.inputs import PixelReader


@dataclass(frozen=True)
class ProcessorTransform(ImageTransform):
    """Pictures as an image processor of transformers prepares them; they are read as all others (`load_image`)."""

    processor: Any

    def __call__(self, source: Source) -> Tensor:
        """The picture as the model takes it."""
        return torch.from_numpy(self.pixels(source))

    def pixels(self, source: Source) -> Float[np.ndarray, "3 {self.size} {self.size}"]:
        """The picture as the model takes it."""
        eight_bits = self.eight_bits
        if eight_bits is None:
            return np.ascontiguousarray(self._processed(source), np.float32)
        pixels = eight_bits(source)
        return np.stack([values[pixels[..., channel]] for channel, values in enumerate(self.table)])

    @property
    def eight_bits(self) -> Callable[[Source], np.ndarray] | None:
        """The pixels that the processor normalises, without its detours; None where it does more than that."""
        from transformers.image_processing_backends import PilBackend

        own, processor = type(self.processor), self.processor
        steps = ("process_image", "_preprocess", "resize", "center_crop", "rescale", "normalize")
        usual = all(getattr(own, step, None) is getattr(PilBackend, step) for step in steps)
        sides = {name: _side(processor.size, name) for name in ("shortest_edge", "longest_edge", "height", "width")}
        squash = sides["height"] is not None and sides["height"] == sides["width"]
        side = sides["height"] if squash else sides["shortest_edge"]
        known = processor.do_resize and not processor.do_pad and (squash or self.resize == "crop")
        if not (usual and known and side and isinstance(processor.resample, int)) or sides["longest_edge"]:
            return None
        if side < self.size or (side > self.size and not processor.do_center_crop):
            return None
        return ResizedMiddle(self.size, side, squash, int(processor.resample))

    @cached_property
    def table(self) -> Float[np.ndarray, "3 256"]:
        """What a pixel of each channel becomes, by its value: asked of the processor."""
        values = Image.fromarray(np.arange(256, dtype=np.uint8)[None].repeat(3, 0)).convert("RGB")
        as_it_is = {"do_resize": False, "do_center_crop": False, "return_tensors": "np"}
        return np.ascontiguousarray(self.processor(values, **as_it_is)["pixel_values"][0][:, 0], np.float32)

    @property
    def loads(self) -> tuple[str, ...]:
        """None."""
        return ()

    def seen(self, source: Source) -> Image.Image:
        """The part of the picture that the model sees, in the size that it sees."""
        pixels = self._processed(source, do_rescale=False, do_normalize=False)
        return Image.fromarray(np.ascontiguousarray(np.moveaxis(pixels, 0, 2).astype(np.uint8)))

    @property
    def kept_side(self) -> int:
        """The length of the short side before the middle is cropped."""
        size = self.processor.size
        return int(_side(size, "shortest_edge") or _side(size, "height") or self.size)

    def box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The part of a picture of this size that is kept: left, top, right, bottom."""
        side = self.kept_side
        short = min(width, height)
        across, down = (side, side) if self.resize == "squash" else (side * width / short, side * height / short)
        x, y = max(1 - self.size / across, 0) / 2, max(1 - self.size / down, 0) / 2
        return (x * width, y * height, (1 - x) * width, (1 - y) * height)

    def _processed(self, source: Source, **options: bool) -> Shaped[np.ndarray, "3 H W"]:
        """What the processor makes of a picture. It is resized here where the processor would do just that: from array
        to picture and back would take as long again.
        """
        from transformers.image_processing_backends import PilBackend

        picture, processor = whole_or_middle(source, self.resize == "squash"), self.processor
        plain = type(processor).resize is PilBackend.resize and isinstance(processor.resample, int)
        size = resized_size(picture.size, processor.size) if plain and processor.do_resize else None
        if size is not None:
            picture, options = picture.resize(size, processor.resample), {**options, "do_resize": False}
        pixels: np.ndarray = processor(picture, return_tensors="np", **options)["pixel_values"][0]
        return pixels


class PatchTransform(ProcessorTransform):
    """Pictures in their own proportions, as patches (SigLIP 2)."""

    eight_bits = None

    def pixels(self, source: Source) -> Float[np.ndarray, "N P"]:
        """The patches, row by row, with the number of its row behind each: 1 and up, and 0 for padding."""
        made = self.processor(load_image(source), return_tensors="np")
        patches, (rows, columns) = made["pixel_values"][0], made["spatial_shapes"][0]
        row = np.zeros((len(patches), 1), np.float32)
        row[: rows * columns, 0] = np.repeat(np.arange(1, rows + 1), columns)
        return np.concatenate([patches.astype(np.float32), row], 1)

    def seen(self, source: Source) -> Image.Image:
        """There is no one size."""
        raise ValueError("feed: this model sees pictures in their own proportions, not in one size. Use feed: mapped.")


class PatchReader(PixelReader):
    """Pictures as patches, with the row of each in place of a mask."""

    def collate(self, items: Sequence[Tensor]) -> Inputs:
        """The patches (B, N, P), and the row that each is in: 1 and up, and 0 for padding."""
        stacked = torch.stack(list(items))
        return Inputs(stacked[..., :-1].contiguous(), stacked[..., -1].long())

    def blank(self) -> Tensor:
        """One grey patch."""
        transform: Any = self.transform
        size = transform.processor.patch_size
        blank = torch.zeros(transform.processor.max_num_patches, 3 * size**2 + 1)
        blank[0, -1] = 1
        return blank


def processor_transform(options: Mapping[str, Any]) -> ProcessorTransform:
    """The preprocessing that a preprocessor_config.json, or a preprocess_cfg of open_clip, describes."""
    import transformers

    if "resize_mode" in options:
        from maxmatch.model.hub.open_clip_models import open_clip_transform  # which needs this module

        return open_clip_transform(options)
    options = dict(options)
    kind = f"{str(options.pop('image_processor_type', '')).removesuffix('Fast').removesuffix('Pil')}Pil"
    found = getattr(transformers, kind, None) if kind.isidentifier() and "ImageProcessor" in kind else None
    if found is None:
        raise ValueError(f"preprocessor: transformers {transformers.__version__} has no {kind}")
    processor = found(**options)
    mean, std = tuple(processor.image_mean), tuple(processor.image_std)
    if "spatial_shapes" in processor.model_input_names:
        side = processor.patch_size * math.isqrt(processor.max_num_patches)
        return PatchTransform(side, "squash", mean, std, processor)
    size = processor.size if processor.do_resize else {}
    short, height, width = (_side(size, name) for name in ("shortest_edge", "height", "width"))
    if processor.do_center_crop:
        height, width = (_side(processor.crop_size, name) for name in ("height", "width"))
    if height is None or height != width:
        raise ValueError(f"preprocessor: expected square pictures of one size, got {size}")
    return ProcessorTransform(height, "squash" if short is None else "crop", mean, std, processor)


def resized_size(picture: tuple[int, int], size: Any) -> tuple[int, int] | None:
    """The width and height to which a processor resizes a picture; None where its rule is an unusual one."""
    given = {name for name in ("shortest_edge", "longest_edge", "height", "width", "max_height") if _side(size, name)}
    if given == {"height", "width"}:
        return int(_side(size, "width") or 0), int(_side(size, "height") or 0)
    if given != {"shortest_edge"}:
        return None
    short = int(_side(size, "shortest_edge") or 0)
    width, height = picture
    return (short, int(short * height / width)) if width <= height else (int(short * width / height), short)


def _side(size: Any, name: str) -> int | None:
    """A side by its name; None where it is not given."""
    return size.get(name) if isinstance(size, Mapping) else getattr(size, name, None)


class AudioReader:
    """Sounds: .wav files, or arrays of samples at the model's rate, (n,) or (n, channels). Of a long one the beginning
    is heard, as much as the model takes (CLAP: ten seconds).
    """

    reads: ClassVar[InputKind] = "audio"

    def __init__(self, options: Mapping[str, Any]) -> None:
        from transformers import ClapFeatureExtractor

        self.extractor = ClapFeatureExtractor(**{key: options[key] for key in options if "extractor_type" not in key})

    def length(self, item: Any) -> int:
        """All sounds become the same length."""
        return 1

    def read(self, item: Any) -> Float[Tensor, "1 frames bins"]:
        """The spectrogram of a sound."""
        rate: int = self.extractor.sampling_rate
        name = describe(item)
        samples = _wav(Path(item), rate) if isinstance(item, str | Path) else np.asarray(item)
        if samples.ndim == 2:
            samples = samples.mean(1)
        if samples.ndim != 1 or not samples.size or samples.dtype.kind != "f" or not np.isfinite(samples).all():
            raise ValueError(f"{name}: expected a .wav file, or samples from −1 to 1 at {rate:,} Hz in floating point.")
        heard = samples[: self.extractor.nb_max_samples].astype(np.float64)
        made = self.extractor(heard, sampling_rate=rate, return_tensors="pt")
        spectrogram: Tensor = made["input_features"][0].float()
        return spectrogram

    def collate(self, items: Sequence[Tensor]) -> Inputs:
        """The spectrograms, stacked."""
        return Inputs(torch.stack(list(items)), None)


def _wav(path: Path, rate: int) -> np.ndarray:
    """The samples of a .wav file at a rate, from −1 to 1."""
    from scipy.io import wavfile
    from scipy.signal import resample_poly

    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # of notes that are no sound
            own, samples = wavfile.read(path)
    except Exception as error:  # of many kinds, where a file is damaged
        raise ValueError(f"{path}: not a readable .wav file ({error}). Convert it to WAV.") from error
    if samples.dtype.kind != "f":
        unsigned = samples.dtype == np.uint8
        samples = (samples.astype(np.float64) - 128 * unsigned) / (128 if unsigned else np.iinfo(samples.dtype).max + 1)
    shared = math.gcd(own, rate)
    found: np.ndarray = samples if own == rate else resample_poly(samples, rate // shared, own // shared)
    return found
