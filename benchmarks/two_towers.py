"""Measure how fast a CLIP or SigLIP encodes a folder of JPEGs and captions, against transformers' own loop:
`python -m benchmarks.two_towers`, or `--model vit_b32 vit_l14 siglip2_base`.

The models have their full size and random weights, which does not change the speed. Transformers' loop is that of its
documentation: open the pictures of a batch, processor, model; as many at once as ours takes. Both give the same
scores, which is checked first, with pictures made by Pillow: torchvision, which transformers prefers where
it is installed, resizes them a little differently.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from benchmarks.timing import Work, describe_machine, time_each
from maxmatch import SetEncoder

_SENTENCE = "a small dog runs on the beach near two old people in red while three children watch from an open window"
_WORDS = sorted(set(_SENTENCE.split()))
_GOAL = 1.5
_LONGEST = 64  # tokens of a SigLIP, to which every text is padded


def clip_tokenizer() -> Any:
    """CLIP's, with a vocabulary in which each word is one token."""
    import transformers

    kind: Any = transformers.CLIPTokenizer
    letters = list(pre_tokenizers.ByteLevel.alphabet())
    pieces, merges = [*letters, *(f"{one}</w>" for one in letters)], []
    for word in _WORDS:
        for end in range(2, len(word) + 1):
            last = "</w>" if end == len(word) else ""
            pair = (word[: end - 1], word[end - 1] + last)
            if pair not in merges:
                merges.append(pair)
                pieces.append("".join(pair))
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    return kind(vocab=vocabulary, merges=merges, model_max_length=77)


def siglip_tokenizer() -> Any:
    """A SigLIP's, each word one token."""
    import transformers

    kind: Any = transformers.PreTrainedTokenizerFast
    pieces = ["<pad>", "</s>", "<unk>", *(f"▁{word}" for word in _WORDS)]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(n)) for n, piece in enumerate(pieces)], unk_id=2))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    options = {"pad_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": _LONGEST}
    return kind(tokenizer_object=tokenizer, model_input_names=["input_ids"], **options)


def write_model(folder: Path, name: str) -> Path:
    """A model of full size with random weights, in a folder as the hub has it."""
    import transformers

    if name == "siglip2_base":
        text = {"vocab_size": 256_000, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 1}
        config: Any = transformers.SiglipConfig(text_config=text)
        tokenizer: Any = siglip_tokenizer()
        processor: Any = transformers.SiglipImageProcessorPil(size={"height": 224, "width": 224})
    else:
        tokenizer = clip_tokenizer()
        text = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        vision: dict[str, Any] = {}
        if name == "vit_l14":
            text |= {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
            vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14}
            vision |= {"num_attention_heads": 16}
        width = 768 if name == "vit_l14" else 512
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=width)
        processor = transformers.CLIPImageProcessorPil()
    torch.manual_seed(0)
    auto: Any = transformers.AutoModel
    model = auto.from_config(config).eval()
    for part in (model, tokenizer, processor):
        part.save_pretrained(folder)
    return folder


def write_photos(folder: Path, count: int, side: int) -> list[Path]:
    """JPEGs with the detail of photos: noise at all scales."""
    folder.mkdir()

    def write(number: int) -> Path:
        generator, path = np.random.default_rng(number), folder / f"{number:04d}.jpg"
        width, height = (side, 3 * side // 4) if number % 3 else (3 * side // 4, side)
        picture = Image.new("RGB", (width, height), "grey")
        for scale in (4, 16, 64, 256):
            noise = generator.integers(0, 256, (min(scale, height), min(scale, width), 3), dtype=np.uint8)
            picture = Image.blend(
                picture, Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC), 0.4
            )
        picture.save(path, quality=90)
        return path

    with ThreadPoolExecutor() as threads:
        return list(threads.map(write, range(count)))


def captions(count: int) -> list[str]:
    """Of six to fourteen words."""
    generator = np.random.default_rng(1)
    return [" ".join(generator.choice(_WORDS, generator.integers(6, 15))) for _ in range(count)]


class Transformers:
    """Processor and model in the plainest loop."""

    def __init__(self, folder: Path) -> None:
        import transformers

        pictures: Any = transformers.AutoImageProcessor
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model: Any = transformers.AutoModel.from_pretrained(folder).eval().to(self.device)
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.processor: Any = pictures.from_pretrained(folder)
        self.by_pillow: Any = pictures.from_pretrained(folder, backend="pil")
        fixed = self.model.config.model_type.startswith("siglip")
        self.padding = {"padding": "max_length", "max_length": _LONGEST} if fixed else {"padding": True}

    @torch.no_grad()
    def images(self, paths: list[Path], batch_size: int, by_pillow: bool = False) -> torch.Tensor:
        made, processor = [], self.by_pillow if by_pillow else self.processor
        for start in range(0, len(paths), batch_size):
            pictures = [Image.open(path).convert("RGB") for path in paths[start : start + batch_size]]
            inputs = processor(images=pictures, return_tensors="pt").to(self.device)
            made.append(self.model.get_image_features(**inputs).pooler_output.cpu())
        return torch.nn.functional.normalize(torch.cat(made), dim=-1)

    @torch.no_grad()
    def texts(self, texts: list[str], batch_size: int) -> torch.Tensor:
        made = []
        for start in range(0, len(texts), batch_size):
            inputs = self.tokenizer(
                texts[start : start + batch_size], **self.padding, truncation=True, return_tensors="pt"
            ).to(self.device)
            made.append(self.model.get_text_features(**inputs).pooler_output.cpu())
        return torch.nn.functional.normalize(torch.cat(made), dim=-1)


class Ours:
    """The same by a SetEncoder."""

    def __init__(self, folder: Path) -> None:
        self.model = SetEncoder.from_pretrained(folder, "cuda" if torch.cuda.is_available() else "cpu")

    def images(self, paths: list[Path], batch_size: int) -> torch.Tensor:
        return self.model.encode_images(paths, batch_size=batch_size)[:, 0].cpu()

    def texts(self, texts: list[str], batch_size: int) -> torch.Tensor:
        return self.model.encode_texts(texts, batch_size=batch_size)[:, 0].cpu()


_LOOPS: dict[str, Any] = {"transformers": Transformers, "maxmatch": Ours}


def first_result(loop: str, folder: Path, photo: Path) -> dict[str, float]:
    """In a process of its own: seconds from its start to the first score of a photo and a text, and its memory."""
    options = {"--one": loop, "--folder": str(folder), "--photo": str(photo)}
    command = [sys.executable, "-m", "benchmarks.two_towers", *(word for pair in options.items() for word in pair)]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, **json.loads(done.stdout.splitlines()[-1])}


def one(loop: str, folder: Path, photo: Path) -> None:
    """What `first_result` starts."""
    encoder = _LOOPS[loop](folder)
    score = float(encoder.images([photo], 1)[0] @ encoder.texts(["a dog on the beach"], 1)[0])
    print(json.dumps({"score": score, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def report(what: str, works: list[Work], asked: argparse.Namespace) -> None:
    """Items per second of transformers and of ours, interleaved."""
    theirs, ours = (getattr(asked, what) / min(times) * 1e3 for times in time_each(works, asked.repeats))
    goal = f", goal {_GOAL}" if what == "photos" else ""
    print(f"{what:<9}transformers {theirs:8.1f}/s   maxmatch {ours:8.1f}/s   ratio {ours / theirs:.2f}{goal}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", choices=("vit_b32", "vit_l14", "siglip2_base"), default=["vit_b32"])
    parser.add_argument("--photos", type=int, default=200)
    parser.add_argument("--side", type=int, default=1600, help="the longer side of a photo, in pixels")
    parser.add_argument("--captions", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--no-first", action="store_true", help="do not time the first result of a new process")
    parser.add_argument("--one", choices=_LOOPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--photo", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.one:
        one(asked.one, asked.folder, asked.photo)
        return
    with tempfile.TemporaryDirectory() as place:
        photos, texts = write_photos(Path(place) / "photos", asked.photos, asked.side), captions(asked.captions)
        size = sum(path.stat().st_size for path in photos) / asked.photos / 2**10
        print(f"{describe_machine()}; batches of {asked.batch_size}")
        print(f"{asked.photos} JPEGs of {asked.side} pixels, {size:.0f} KiB each; {asked.captions} captions")
        for name in asked.model:
            compare(name, write_model(Path(place) / name, name), photos, texts, asked)


def compare(name: str, folder: Path, photos: list[Path], texts: list[str], asked: argparse.Namespace) -> None:
    """Check that both loops give the same scores, then time them."""
    both = theirs, ours = Transformers(folder), Ours(folder)
    some, size = (photos[: 2 * asked.batch_size], texts[: 2 * asked.batch_size]), asked.batch_size
    tolerance = 1e-4 if theirs.device == "cuda" else 1e-5  # TF32 in convolutions
    pictures = theirs.images(some[0], size, by_pillow=True), ours.images(some[0], size)
    captioned = theirs.texts(some[1], size), ours.texts(some[1], size)
    scores = [one @ other.T for one, other in zip(pictures, captioned, strict=True)]
    torch.testing.assert_close(*scores, rtol=0, atol=tolerance)
    print(f"\n{name}, random weights; scores equal to {tolerance:g}")
    report("photos", [partial(loop.images, photos, asked.batch_size) for loop in both], asked)
    report("captions", [partial(loop.texts, texts, asked.batch_size) for loop in both], asked)
    del theirs, ours, both
    for loop in () if asked.no_first else _LOOPS:
        found = first_result(loop, folder, photos[0])
        print(
            f"first result, {loop}: {found['seconds']:.1f} s from the start of Python, {found['mib']:.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
