"""Time a step of the paper's recipes on generated data of Flickr30k's size: `python -m benchmarks.training [RECIPE …]`.

Prints milliseconds per step including data loading, the lower bound (operations of all matrix products divided by the
rate of a large one), memory, and the time of the whole run on Flickr30k and on COCO. The recorded step is first
compared with the plain one. On a GPU the ten kernels that take most of a step are printed (forty with `--profile`).
`--images=4000` takes less data and `--steps=30` fewer steps. The backbone of `flickr8k_maxmatch` is frozen: its steps
get grids of features.
"""

import gc
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.encoding import matmul_rate
from benchmarks.timing import describe_machine, print_kernels
from maxmatch.core.types import Batch, Inputs
from maxmatch.data.dataset import Items, Split
from maxmatch.data.feed import ResidentFeed
from maxmatch.data.sampler import GroupSampler
from maxmatch.model.build import build_model
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.inputs import FeatureReader
from maxmatch.model.text import word_tokenizer, wordpiece_tokenizer
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training.optim import freeze_for, set_learning_rates
from maxmatch.training.prepare import reads_values
from maxmatch.training.state import new_state
from maxmatch.training.step import RecordedSteps, TrainStep, can_record, criterion_for, make_step, padded

IMAGES, COCO_IMAGES, COCO_EPOCHS, CAPTIONS = 29_000, 113_287, 80, 5
_KERNELS = ("layers.slot_heads._kernels", "encoders.language._gru_kernels")
_WORDS = [f"word{i}" for i in range(8_481)]
_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"p{i}" for i in range(30_517))]


class _Features(Sequence[Any]):
    """Random features of many images, some of them repeated; the values do not change the speed."""

    def __init__(self, count: int, cells: int, width: int, kinds: int = 256) -> None:
        self._kinds = np.random.default_rng(0).normal(size=(kinds, cells, width)).astype(np.float16)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        return self._kinds[place % len(self._kinds)]

    def take(self, places: np.ndarray) -> np.ndarray:
        taken: np.ndarray = self._kinds[places % len(self._kinds)]
        return taken


def _captions(count: int) -> list[str]:
    """Captions as long as Flickr30k's: 12.3 ± 5.2 words, the longest about 40 in a batch."""
    generator = np.random.default_rng(1)
    lengths = np.clip(generator.normal(12.3, 5.2, count).round(), 3, 70).astype(int)
    lengths[generator.random(count) < 0.002] = 38
    words = generator.integers(0, len(_WORDS), lengths.sum())
    ends = np.cumsum(lengths)
    return [" ".join(_WORDS[w] for w in words[e - n : e]) for e, n in zip(ends, lengths, strict=True)]


def _split(images: int, cells: int = 36, width: int = 2048) -> Split:
    texts = _captions(images * CAPTIONS)
    ids = [str(i) for i in range(len(texts))]
    return Split(
        {
            "image": Items(_Features(images, cells, width), np.arange(images), ids[:images]),
            "text": Items(texts, np.arange(len(texts)) // CAPTIONS, ids),
        }
    )


def _model(recipe: Recipe) -> SetEncoder:
    config = recipe.model.resolved()
    transformer = config.towers["text"].encoder.name == "transformer"
    tokenizer = wordpiece_tokenizer(_PIECES) if transformer else word_tokenizer([" ".join(_WORDS)] * 4)
    return build_model(config, {"text": tokenizer}, pretrained=False, seed=0)


def _batches(recipe: Recipe, model: SetEncoder, split: Split, device: str) -> Iterator[Batch]:
    """An endless stream of batches of the recipe; random pixels instead of features if the model reads images."""
    readers = {"image": FeatureReader(split["image"].values[0].shape[1]), "text": model.tower("text").reader}
    share = recipe.train.size_augmentation
    feed = ResidentFeed(split, readers, device, drop=dict.fromkeys(readers, share) if share else None)
    pixels: Tensor | None = None
    if _sees_pixels(recipe):
        size = recipe.train.crop_size or model.tower("image").reader.transform.size  # type: ignore[attr-defined]
        pixels = torch.randn(recipe.train.batch_size, 3, size, size, device=device)
        pixels = pixels.contiguous(memory_format=torch.channels_last)  # as both feeds give them to a GPU
    batch_size = recipe.train.batch_size
    sampler = GroupSampler(split.size // batch_size * batch_size, batch_size, 0)  # full batches only
    for epoch in range(1_000_000):
        for batch in feed.batches(sampler.plans(epoch)):
            if pixels is not None:
                batch = replace(batch, inputs={**batch.inputs, "image": Inputs(pixels, None)})
            yield batch


def _sees_pixels(recipe: Recipe) -> bool:
    """Whether a step runs the network that sees pictures."""
    conv = recipe.model.resolved().towers["image"].encoder.name == "conv"
    return conv and recipe.train.freeze.get("image.backbone") != "always"


def _step(recipe: Recipe, model: SetEncoder, device: str, epoch: int) -> tuple[TrainStep, Any]:
    state = new_state(model, recipe.train)
    precision = torch.bfloat16 if device == "cuda" else None
    criterion = criterion_for(recipe, epoch)
    return make_step(state, criterion, precision=precision, clip=recipe.train.clip), state.adam


def measure(name: str, images: int, steps: int, profiled: bool) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = load_recipe(name)
    epoch = recipe.train.epochs // 2  # past every schedule of the first epochs
    grid = (49, 1280) if recipe.train.freeze.get("image.backbone") == "always" else (36, 2048)
    split = _split(images, *grid)
    model = _model(recipe).to(device).train()
    list(freeze_for(model, recipe.train, epoch))
    batches = _batches(recipe, model, split, device)
    step, adam = _step(recipe, model, device, epoch)
    with FlopCounterMode(display=False) as counter:
        step(next(batches), 0)
    floor = counter.get_total_flops() / matmul_rate(device)
    read = _sees_pixels(recipe) and reads_values(getattr(model.tower("image").encoder, "backbone", None))
    recorded = not read and can_record(recipe.train, recipe.objective.negatives, torch.device(device))
    ways: dict[str, Callable[[], TrainStep]] = {"plain": lambda: step}
    if device == "cuda":
        _check_kernels(recipe, _split(2 * recipe.train.batch_size, *grid), device, epoch)
    if recorded:
        _check_recording(recipe, _split(2 * recipe.train.batch_size, *grid), device, epoch)
        ways["recorded, in turn"] = lambda: _in_turn(RecordedSteps(step))
        ways["recorded"] = lambda: RecordedSteps(step)
    print(f"\n{name}: batches of {recipe.train.batch_size} images, {CAPTIONS * recipe.train.batch_size} captions; "
          f"lower bound {floor:.2f} ms")  # fmt: skip
    for way, make in ways.items():
        function = None
        _forget(device)  # what earlier ways recorded, and their peak
        function = make()
        started = time.perf_counter()
        for seed in range(16 if device == "cuda" else 1):  # each shape is recorded the fourth time it occurs
            set_learning_rates(adam, recipe.train, seed, 145)
            function(next(batches), seed)
        _wait(device)
        warm = time.perf_counter() - started
        started = time.perf_counter()
        for seed in range(steps):
            set_learning_rates(adam, recipe.train, seed, 145)
            terms = function(next(batches), seed)
        _wait(device)
        took = (time.perf_counter() - started) / steps * 1e3
        memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
        flickr, coco = (
            took / 6e4 * epochs * -(-count // recipe.train.batch_size)
            for count, epochs in ((IMAGES, recipe.train.epochs), (COCO_IMAGES, COCO_EPOCHS))
        )
        print(f"  {way:<20}{took:9.2f} ms per step = {took / floor:5.1f} × lower bound, {memory:6.1f} GiB, "
              f"{flickr:7.1f} min for {recipe.train.epochs} epochs, {coco:7.1f} min for {COCO_EPOCHS} of COCO "
              f"(first steps {warm:.1f} s, loss {terms.total:.3f})",
              flush=True)  # fmt: skip
    if device == "cuda":
        assert function is not None
        seeds = itertools.count()
        print_kernels("  a step", lambda: function(next(batches), next(seeds)), 40 if profiled else 10, runs=8)


def _forget(device: str) -> None:
    """So that the peak of memory is that of what follows."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _in_turn(step: TrainStep) -> TrainStep:
    """The step with one thing after the other, towers and losses: none beside another."""

    def one(batch: Batch, seed: int) -> Any:
        with mock.patch("maxmatch.core.devices._side_stream", torch.cuda.current_stream):
            return step(batch, seed)

    return one


def _check_recording(recipe: Recipe, split: Split, device: str, epoch: int) -> None:
    """Check that six steps of equal models on equal batches have the same losses: recorded, in turn, and neither."""
    losses = []
    for way in (lambda step: step, lambda step: _in_turn(RecordedSteps(step)), RecordedSteps):
        model = _model(recipe).to(device).train()
        step, _ = _step(recipe, model, device, epoch)
        function = way(step)
        batch = padded(next(_batches(recipe, model, split, device)))  # dropout depends on the shape
        losses.append([float(function(batch, seed).total) for seed in range(6)])
    for plain, *played in zip(*losses, strict=True):
        assert all(abs(plain - one) < 5e-3 * abs(plain) for one in played), f"recorded steps differ: {losses}"


def _check_kernels(recipe: Recipe, split: Split, device: str, epoch: int) -> None:
    """Check that six steps without dropout have the losses of the lines in torch, of which the kernels are made.
    Where a CNN learns too, one step: its BatchNorm makes much of the smallest difference in the next ones.
    """
    losses, steps = [], 1 if _sees_pixels(recipe) else 6
    for kernels in (True, False):
        model = _model(recipe).to(device).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        step, _ = _step(recipe, model, device, epoch)
        batches = _batches(recipe, model, split, device)
        with ExitStack() as without:
            for name in () if kernels else _KERNELS:
                without.enter_context(mock.patch(f"maxmatch.model.{name}", return_value=None))
            losses.append([float(step(next(batches), seed).total) for seed in range(steps)])
    for one, other in zip(*losses, strict=True):
        assert abs(one - other) < 1e-2 * abs(other), f"the kernels' losses differ: {losses}"
    print(
        f"losses by kernels {losses[0][0]:.4f} … {losses[0][-1]:.4f}, in torch {losses[1][0]:.4f} … {losses[1][-1]:.4f}"
    )


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    print(describe_machine())
    gpu = torch.cuda.is_available()
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    count = next((int(word[9:]) for word in sys.argv if word.startswith("--images=")), IMAGES if gpu else 400)
    steps = next((int(word[8:]) for word in sys.argv if word.startswith("--steps=")), 100 if gpu else 1)
    for recipe_name in names or ["f30k_region_bigru", "f30k_region_bert", "f30k_resnet152_bigru"]:
        measure(recipe_name, count, steps, "--profile" in sys.argv)
