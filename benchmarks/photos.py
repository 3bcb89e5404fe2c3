"""Measure how fast photos are encoded from JPEG files: decoding alone, the network alone, and the whole.

    python -m benchmarks.photos [--sizes 240 500 1600 4000] [--seconds 2]

First the pixels and sets are compared with those of photos read and encoded one by one. The network is that of
`maxmatch-small` with random weights, which does not change the speed. Photos are soft shapes with some texture, about
as many bytes per pixel as photos have; a few different ones, each read many times, so they come from memory, not from
a disk. *Steady* rates leave out the start of the processes, and count the second half of the photos. The bound of the
whole is the slower of decoding with all cores and the network; on a CPU, where they share cores, the sum of both.
"""

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from PIL import Image

import maxmatch
from benchmarks.timing import describe_machine
from maxmatch.core.machine import usable_cores
from maxmatch.core.types import Inputs
from maxmatch.model import inputs
from maxmatch.model.build import build_model
from maxmatch.model.config import ModelConfig
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.hub.preprocessing import processor_transform
from maxmatch.model.inputs import PixelReader, Reader, read_ahead
from maxmatch.model.names import read_config
from maxmatch.model.photo_processes import PhotoProcesses

_CONFIG = Path(maxmatch.__file__).parent / "model" / "shipped" / "maxmatch-small"
_DIFFERENT, _BATCH = 4, 64
_GRAIN = {240: (0.16, 92), 500: (0.16, 92), 1600: (0.12, 90)}  # texture and quality: small photos are sharper
_MOST = 60_000
_WARM = 0.4  # seconds
_AS_CLIP = 1600
_CLIP = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
}


def write_photos(folder: Path, width: int) -> list[str]:
    """A few photos of this width, 4:3."""
    size = (width, width * 3 // 4)
    grain, quality = _GRAIN.get(width, (0.1, 86))
    paths = []
    for number in range(_DIFFERENT):
        generator = np.random.default_rng(number)

        def noise(cell: int, generator: np.random.Generator = generator) -> Image.Image:
            shape = (max(size[1] // cell, 2), max(size[0] // cell, 2), 3)
            return Image.fromarray(generator.integers(0, 256, shape, np.uint8)).resize(size, Image.Resampling.BICUBIC)

        picture = Image.blend(Image.blend(noise(width // 6), noise(16), 0.3), noise(2), grain)
        path = folder / f"{width}-{number}.jpg"
        picture.save(path, quality=quality)
        paths.append(str(path))
    return paths


def make_model(device: torch.device) -> SetEncoder:
    """The image tower of maxmatch-small, random weights."""
    config = read_config(_CONFIG).model_dump()
    config["towers"] = {"image": config["towers"]["image"]}
    config["pairing"] = config["pairing_stability"] = None
    return build_model(ModelConfig.model_validate(config), pretrained=False, seed=0).to(device).eval()


def check(model: SetEncoder, files: Sequence[str]) -> None:
    """The same pixels, to the bit, by threads and by processes, and the same sets but for rounding."""
    reader = _pixels(model)
    plain = torch.stack([reader.read(file) for file in files])
    eight = reader.for_device(torch.device("cuda"))
    many = list(files) * 40
    batches = _batches(len(many))
    for cores in (1, 10_000):  # processes, threads
        with mock.patch.object(inputs, "_MANY_FILES", 1), mock.patch.object(inputs, "_MANY_CORES", cores):
            for batch in read_ahead(eight, many, batches, False):
                found = reader.normalised(batch.inputs.values.to(model.device)).cpu()
                assert torch.equal(found, plain[[place % len(files) for place in batch.places]])
    times = 5 if model.device.type == "cpu" else 150  # on a GPU enough for processes
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        one_by_one = torch.cat([model.encode_images([file], batch_size=1) for file in files])
        together = model.encode_images(list(files) * times)
    assert (together * one_by_one.repeat(times, 1, 1)).sum(-1).min() > 0.9999, "other sets"


def _pixels(model: SetEncoder) -> PixelReader:
    reader = model.tower("image").reader
    assert isinstance(reader, PixelReader)
    return reader


def _batches(count: int) -> list[range]:
    return [range(first, min(first + _BATCH, count)) for first in range(0, count, _BATCH)]


def read_alone(reader: Reader, files: Sequence[str], seconds: float, processes: bool) -> float:
    """Photos per second when nothing is done with them, once processes have started, if they are asked for."""
    many = list(itertools.islice(itertools.cycle(files), _MOST))
    started = [] if processes else [time.perf_counter()]
    ready = PhotoProcesses.ready

    def noted(self: PhotoProcesses) -> bool:
        if found := ready(self):
            started.append(time.perf_counter())
        return found

    cores = mock.patch.object(inputs, "_MANY_CORES", 1 if processes else 10_000)
    with cores, mock.patch.object(PhotoProcesses, "ready", noted):
        found = read_ahead(reader, many, _batches(len(many)), False)
        marks = []
        for _ in found:
            now = time.perf_counter()
            if started and now > started[0] + _WARM:  # all that threads had begun has been read
                marks.append(now)
            if len(marks) > 1 and now > marks[0] + seconds:
                break
        found.close()  # type: ignore[attr-defined]
    return (len(marks) - 1) * _BATCH / (marks[-1] - marks[0]) if len(marks) > 1 else float("nan")


class Before(PixelReader):
    """Pictures normalised here, and stacked by torch."""

    def collate(self, items: Sequence[torch.Tensor]) -> Inputs:
        """The pictures, stacked."""
        return Inputs(torch.stack(list(items)), None)


def network_alone(model: SetEncoder, seconds: float) -> float:
    """Photos per second of pixels that lie in memory, with their way to the device."""
    size = _pixels(model).transform.size
    pixels = np.random.default_rng(0).integers(0, 256, (_BATCH, size, size, 3), np.uint8)

    def encode() -> None:
        if model.device.type == "cpu":  # each thread encodes photos of its own, as those of files
            model.encode_images(list(pixels))
        else:
            model.sets_of("image", Inputs(torch.from_numpy(pixels), None)).cpu()

    with model.evaluating():
        encode()
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            encode()
            count += _BATCH
        return count / (time.perf_counter() - begun)


def whole(model: SetEncoder, files: Sequence[str], count: int) -> tuple[float, float]:
    """Photos per second of `encode_images`, with its start, and steady."""
    many = list(itertools.islice(itertools.cycle(files), count))
    marks = [(0.0, 0)]
    real = model.sets_of

    def timed(modality: str, batch: Inputs) -> torch.Tensor:
        made = real(modality, batch)
        marks.append((time.perf_counter() - begun, marks[-1][1] + len(batch.values)))
        return made

    with mock.patch.object(model, "sets_of", timed):
        begun = time.perf_counter()
        model.encode_images(many, batch_size=_BATCH, show_progress=False)
        taken = time.perf_counter() - begun
    half = next(mark for mark in marks if mark[1] >= count / 2)
    return count / taken, (marks[-1][1] - half[1]) / (marks[-1][0] - half[0])


def on_the_device(files: Sequence[str], seconds: float) -> str:
    """Photos per second of nvJPEG through torchvision, whole photos, nothing resized; or why there is no number."""
    try:
        from torchvision.io import decode_jpeg  # type: ignore[import-not-found]

        data = [torch.from_numpy(np.fromfile(file, np.uint8)) for file in files] * 8
        decode_jpeg(data, device="cuda")
        torch.cuda.synchronize()
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            decode_jpeg(data, device="cuda")
            torch.cuda.synchronize()
            count += len(data)
        return f"{count / (time.perf_counter() - begun):,.0f}"
    except Exception as error:  # whatever a build without it raises
        return f"none ({type(error).__name__}: {str(error).splitlines()[0][:60]})"


def rows(model: SetEncoder, folder: Path, widths: Sequence[int], seconds: float) -> Iterator[str]:
    reader = _pixels(model)
    before, eight = Before(reader.transform), reader.for_device(torch.device("cuda"))
    gpu = model.device.type != "cpu"
    network = network_alone(model, seconds)
    yield f"the network alone: {network:,.0f} photos/s in batches of {_BATCH}"
    for width in widths:
        files = write_photos(folder, width)
        size = sum(Path(file).stat().st_size for file in files) / len(files)
        if width == widths[0]:
            check(model, files)
            yield "pixels equal to the bit by threads and by processes; sets equal"
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds / 4:
            reader.read(files[count % len(files)])
            count += 1
        one = count / (time.perf_counter() - begun)
        yield f"{width} px, {size / 1e3:,.0f} kB:"
        yield f"  decoding, one by one                           {one:10,.0f} photos/s"
        yield f"  decoding, threads, floats (as before)          {read_alone(before, files, seconds / 2, False):10,.0f}"
        yield f"  decoding, threads, eight bits                  {read_alone(eight, files, seconds / 2, False):10,.0f}"
        decoding = read_alone(eight, files, seconds, True)
        yield f"  decoding, processes, eight bits, steady        {decoding:10,.0f}"
        if width == _AS_CLIP:
            clip = PixelReader(processor_transform(_CLIP)).for_device(torch.device("cuda"))
            yield f"  decoding for CLIP (whole, bicubic), processes  {read_alone(clip, files, seconds, True):10,.0f}"
        bound = min(decoding, network) if gpu else 1 / (1 / decoding + 1 / network)
        count = (
            _MOST if math.isnan(bound) else min(max(int(bound * 3 * seconds), 128), _MOST)
        )  # processes that never came
        total, steady = whole(model, files, count)
        yield f"  whole: encode_images, with its start           {total:10,.0f}"
        share = f"bound {bound:,.0f}: {steady / bound:.0%}"
        yield f"  whole: encode_images, steady                   {steady:10,.0f}   {share}"
        if gpu:
            yield f"  decoding alone on the GPU (nvJPEG)             {on_the_device(files, seconds / 4):>10}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[240, 500, 1600, 4000], help="widths in pixels")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    asked = parser.parse_args()
    begun = time.perf_counter()
    print(f"{describe_machine()}, {usable_cores()} cores", flush=True)
    model = make_model(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    with tempfile.TemporaryDirectory() as place:
        for row in rows(model, Path(place), asked.sizes, asked.seconds):
            print(row, flush=True)
    print(f"{time.perf_counter() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
