"""Measure how fast the paper's models encode, and the backbone's share of the time: `python -m benchmarks.encoding`.

With `--model FOLDER --photos FOLDER`, measure how fast a checkpoint encodes real files, decoding included, and real
sentences.

Weights are random, which does not change the speed. The *lower bound* of a training step is the operations of its
matrix products divided by the rate that this machine reaches on a large one.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.timing import describe_machine, time_each
from maxmatch.core.types import Features
from maxmatch.model.build import build_model
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.layers import SetHead
from maxmatch.model.presets import PRESETS
from maxmatch.model.text import word_tokenizer, wordpiece_tokenizer

_WORDS = [f"word{i}" for i in range(8_481)]  # the size of Flickr30k's vocabulary
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_CAPTION_LENGTH = 14
_SENTENCE = "a brown dog runs through tall green grass near some old wooden fence"
_PICTURES = (".jpg", ".jpeg", ".png", ".webp")


def _model(name: str) -> SetEncoder:
    pieces = [*_SPECIAL, *(f"p{i}" for i in range(30_522 - len(_SPECIAL)))]
    tokenizer = wordpiece_tokenizer(pieces) if name.endswith("bert") else word_tokenizer([" ".join(_WORDS)] * 4)
    return build_model(PRESETS[name](), {"text": tokenizer}, pretrained=False, seed=0)


def _batches(name: str, images: int, device: str) -> dict[str, Tensor]:
    """A batch of each modality: random pixels or regions, five captions per image."""
    if name.startswith("region"):
        pictures = torch.rand(images, 36, 2048, device=device)
    else:
        side = 512 if name.startswith("resnext") else 224
        pictures = torch.randn(images, 3, side, side, device=device)
    return {"image": pictures, "text": torch.randint(5, 8_000, (5 * images, _CAPTION_LENGTH), device=device)}


def _precision(device: str) -> AbstractContextManager[object]:
    return torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext()


def matmul_rate(device: str) -> float:
    """Operations per millisecond of a large matrix product."""
    size, dtype = (8192, torch.bfloat16) if device == "cuda" else (2048, torch.float32)
    x = torch.randn(size, size, device=device, dtype=dtype)
    (times,) = time_each([lambda: x @ x], 5)
    return 2 * size**3 / statistics.median(times)


def encode(names: list[str]) -> None:
    """Items per second, the backbone's share, and a training step compared with its lower bound."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = 128 if device == "cuda" else 4
    rate = matmul_rate(device)
    print(f"\n{device.upper()}, batches of {images} images and {5 * images} captions, "
          f"matrix product {rate / 1e9:.1f} TFLOP/s")  # fmt: skip
    for name in names:
        model = _model(name).to(device)
        size = sum(p.numel() for p in model.parameters())
        print(f"  {name}: {size:,} parameters, {4 * size / 2**20:,.0f} MiB in float32", flush=True)
        for modality, inputs in _batches(name, images, device).items():
            tower = model.tower(modality).eval()
            with torch.inference_mode(), _precision(device):
                whole, encoder = time_each([lambda t=tower, x=inputs: t(x), lambda t=tower, x=inputs: t.encoder(x)], 5)  # type: ignore[misc]
            tower.train()

            def step(tower: torch.nn.Module = tower, inputs: Tensor = inputs) -> None:
                tower.zero_grad()
                with _precision(device):
                    vectors = tower(inputs).vectors
                vectors.square().sum().backward()

            with FlopCounterMode(display=False) as counter:
                step()
            (training,) = time_each([step], 3)
            share, floor = min(encoder) / min(whole), counter.get_total_flops() / rate
            print(f"    {modality:<6}{len(inputs) / min(whole) * 1e3:12,.0f} items/s, before the head {share:4.0%}; "
                  f"forward + backward {min(training):9.2f} ms = {min(training) / floor:5.1f} × its matrix products",
                  flush=True)  # fmt: skip
        del model


def keys_once() -> None:
    """Compare the set head with one that recomputes keys and values in each of its four blocks."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = 200 if device == "cuda" else 16
    head = SetHead(1024).to(device).eval()
    local = torch.randn(images, 36, 1024, device=device)
    features = Features(local, torch.ones(images, 36, dtype=torch.bool, device=device), local.amax(1))

    def per_block() -> Tensor:
        slots = head.slots.expand(images, -1, -1)
        for _ in range(head.depth):
            slots, _ = head.block(slots, head.block.context(features))
        residual: Tensor = head.residual_norm(slots)
        return residual

    with torch.inference_mode():
        torch.testing.assert_close(head(features).residual, per_block(), rtol=1e-4, atol=1e-4)
        once, each = time_each([lambda: head(features), per_block], 7)
    ratio = statistics.median(e / o for e, o in zip(each, once, strict=True))
    print(f"\n{device.upper()}, set head on {images} × 36 regions: {statistics.median(once):.2f} ms, "
          f"{ratio:.2f} × that with keys and values recomputed in every block")  # fmt: skip


def checkpoint(folder: str, photos: Path, most: int) -> None:
    """Photos and captions per second of a checkpoint on this CPU, and how the time per photo is spent."""
    model = SetEncoder.from_pretrained(folder)
    files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in _PICTURES)[:most]
    if len(files) < 16:
        raise SystemExit(f"{photos}: expected at least 16 images, found {len(files)}.")
    texts = [" ".join(words) for words in itertools.islice(itertools.permutations(_SENTENCE.split()), 1280)]
    one_by_one, together = (model.encode_images(files[:8], batch_size=size) for size in (1, 8))
    torch.testing.assert_close(one_by_one, together, rtol=0, atol=1e-5)
    reader, tower = model.tower("image").reader, model.tower("image")
    pixels = reader.collate([reader.read(file) for file in files[:16]]).values

    def network() -> None:
        with torch.inference_mode():
            tower(pixels)

    def both(work: Callable[[], object], items: int) -> str:
        """Items per second, best of three, and CPU time per item, which other load hardly changes."""
        times = []
        for _ in range(3):
            wall, core = time.perf_counter(), time.process_time()
            work()
            times.append((time.perf_counter() - wall, time.process_time() - core))
        wall, core = (min(column) for column in zip(*times, strict=True))
        return f"{items / wall:9,.1f} per second, {1e3 * core / items:7.2f} ms CPU time each"

    print(f"\n{folder}: {len(files)} photos of {photos}, {torch.get_num_threads()} threads")
    print(f"  photos, from files     {both(lambda: model.encode_images(files), len(files))}", flush=True)
    print(f"    only reading them    {both(lambda: [reader.read(file) for file in files[:64]], len(files[:64]))}")
    print(f"    only the network     {both(network, len(pixels))}")
    print(f"  captions of {len(texts[0].split())} words    {both(lambda: model.encode_texts(texts), len(texts))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", metavar="PRESET", help=", ".join(PRESETS))
    parser.add_argument("--model", help="a checkpoint to measure instead of presets")
    parser.add_argument("--photos", type=Path, help="a folder of images for the checkpoint")
    parser.add_argument("--most", type=int, default=256, help="the maximum number of images")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads for the checkpoint")
    asked = parser.parse_args()
    print(describe_machine())
    if (asked.model is None) != (asked.photos is None):
        parser.error("--model and --photos must be given together.")
    if asked.model is not None:
        torch.set_num_threads(asked.threads)
        checkpoint(asked.model, asked.photos, asked.most)
    else:
        # ResNeXt at 512 pixels takes minutes per step on a CPU, so there it runs only if named.
        usual = [name for name in PRESETS if torch.cuda.is_available() or not name.startswith("resnext")]
        encode(asked.presets or usual)
        keys_once()
