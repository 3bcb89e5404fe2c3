"""Images, captions and sounds in one space: add a third modality with its own encoder to a model of two.

    python examples/three_modalities.py                 # a few minutes on two CPU cores

Each generated scene has an image, five captions and a sound: one note per thing from left to right, with its pitch from
the colour, its overtones from the shape and its loudness from the size, over a drone from the background. One model
learns all three. On unseen scenes, every modality is then used to retrieve every other one.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from maxmatch import Recipe, SetEncoder, similarity
from maxmatch.core.types import Features
from maxmatch.data.dataset import Items, Split
from maxmatch.data.feed import choose_feed
from maxmatch.data.load import load_data
from maxmatch.data.sampler import GroupSampler
from maxmatch.data.scenes.world import BACKGROUNDS, COLOURS, SHAPES, SIZES
from maxmatch.evaluation.encoding import encode_items, readers_for
from maxmatch.evaluation.metrics import chance, retrieval
from maxmatch.model.encoder import Tower
from maxmatch.model.encoders.backbone import mask_for
from maxmatch.model.inputs import FeatureReader
from maxmatch.model.layers import SetHead, masked_max, sine_positions
from maxmatch.training.optim import clip_gradients, optimiser, parameter_groups, set_learning_rates
from maxmatch.training.prepare import new_model
from maxmatch.training.step import Criterion, gradients

PAIRS = [("image", "text"), ("image", "audio"), ("audio", "text")]
ENOUGH = 10  # times chance, in each of the six directions

RATE, NOTE, WINDOW = 8000, 1280, 256  # samples: per second, per note, per spectrum
BANDS = WINDOW // 2  # 31 Hz each


def sound(scene: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """The spectrogram of a scene, (frames, BANDS): the log amplitude of each band, ten frames per note."""
    time = np.arange(NOTE) / RATE
    notes = []
    for thing in sorted(scene["things"], key=lambda thing: thing["x"]):
        pitch = 250 + 40 * list(COLOURS).index(thing["colour"])
        shape = SHAPES.index(thing["shape"]) + 1
        overtones = [1] + [n for bit, n in enumerate((2, 3, 4, 5)) if shape >> bit & 1]
        loudness = (1 + list(SIZES).index(thing["size"])) / 3
        notes.append(loudness * sum(np.sin(2 * np.pi * pitch * n * time) for n in overtones) * np.hanning(NOTE))
    wave = np.concatenate(notes)
    drone = 3500 + 40 * BACKGROUNDS.index(scene["background"])
    wave += 0.5 * np.sin(2 * np.pi * drone * np.arange(len(wave)) / RATE) + rng.normal(0, 0.1, len(wave))
    spectrum = torch.stft(
        torch.from_numpy(wave), WINDOW, WINDOW // 2, window=torch.hann_window(WINDOW).double(), return_complex=True
    )
    return spectrum[:BANDS].abs().log1p().T.numpy().astype(np.float16)


def with_sounds(split: Split, seed: int) -> Split:
    """A split of scenes with a third modality. Items of one group, here one scene, are true pairs."""
    scenes = split["image"]
    assert scenes.metadata is not None
    rng = np.random.default_rng(seed)
    clips = [sound(about["scene"], rng) for about in scenes.metadata]
    return Split({**split.items, "audio": Items(clips, scenes.groups, scenes.ids)})


class SoundEncoder(nn.Module):
    """Two convolutions over time. An encoder needs two widths and a call from inputs and a mask to Features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.local_width = self.width = width
        self.layers = nn.ModuleList(nn.Conv1d(size, width, 5, stride=2, padding=2) for size in (BANDS, width))

    def forward(self, frames: Tensor, mask: Tensor | None = None) -> Features:
        """Features of every fourth frame. Padding is zeroed in each layer, so no clip depends on its batch."""
        mask, hidden = mask_for(frames, mask), frames.transpose(1, 2)
        for layer in self.layers:
            hidden = nn.functional.gelu(layer(hidden.masked_fill(~mask[:, None], 0.0)))
            mask = mask[:, ::2]
        local = hidden.transpose(1, 2)
        return Features(local, mask, masked_max(local, mask), sine_positions(mask, self.width, local.dtype))


def three_towers(recipe: Recipe, train: Split) -> SetEncoder:
    """The recipe's towers for images and texts, and one for sounds."""
    two = new_model(recipe, train, print)
    torch.manual_seed(recipe.seed)
    head = SetHead(two.dim, two.dim, set_size=4, heads=2, head_width=64)
    audio = Tower(SoundEncoder(two.dim), head, FeatureReader(BANDS))
    return SetEncoder({**{name: two.tower(name) for name in two.towers}, "audio": audio})


def train_model(model: SetEncoder, recipe: Recipe, train: Split) -> None:
    """Minimise the sum of the recipe's objective over all pairs of modalities with AdamW."""
    options = recipe.train
    feed = choose_feed(train, readers_for(model, train), model.device, workers=0)
    sampler = GroupSampler(train.size, options.batch_size, recipe.seed)
    groups = parameter_groups(model, options)
    adam = optimiser(groups, options)
    model.train()
    step = 0
    for epoch in range(options.epochs):
        criterion = Criterion(similarity.maxmatch, PAIRS, recipe.objective.keywords(epoch))
        plans, losses = list(sampler.plans(epoch)), []
        for plan, batch in zip(plans, feed.batches(plans), strict=True):
            assert plan.seed is not None
            set_learning_rates(adam, options, step, len(sampler))
            adam.zero_grad()
            losses.append(gradients(model, batch, criterion, plan.seed).total)
            clip_gradients(groups, options.clip)
            adam.step()
            step += 1
        print(f"epoch {epoch + 1}/{options.epochs}: loss {torch.stack(losses).mean():.3f}", file=sys.stderr)


class Direction(NamedTuple):
    """How well one modality retrieves another: R@1 in per cent, and the same by chance."""

    asked_with: str
    found: str
    r1: float
    by_chance: float


def measure(model: SetEncoder, split: Split) -> list[Direction]:
    """All six directions."""
    encoded = encode_items(model, split, workers=0)
    directions = []
    for a, b in PAIRS:
        groups = encoded.groups[a], encoded.groups[b]
        found, lucky = retrieval(encoded.sets[a], encoded.sets[b], *groups), chance(*groups)
        directions.append(Direction(a, b, found["i2t_r1"], lucky["i2t_r1"]))
        directions.append(Direction(b, a, found["t2i_r1"], lucky["t2i_r1"]))
    return directions


def main(arguments: list[str] | None = None) -> int:
    """Train, measure, and report by the exit code whether every direction is well above chance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/three_modalities"), help="folder for the scenes")
    parser.add_argument("--scenes", type=int, default=6000, help="number of scenes; a tenth of them is for testing")
    parser.add_argument("--epochs", type=int, default=5)
    chosen = parser.parse_args(arguments)
    recipe = Recipe.load(
        "scenes",
        [
            f"data.path={json.dumps(str(chosen.out / 'scenes'))}",
            f"data.scenes.images={chosen.scenes}",
            f"train.epochs={chosen.epochs}",
        ],
    )
    data = load_data(recipe.data, lambda line: print(line, file=sys.stderr))
    train, test = with_sounds(data.split("train"), seed=1), with_sounds(data.split("test"), seed=2)
    model = three_towers(recipe, train)
    train_model(model, recipe, train)
    directions = measure(model, test)
    print(f"{test.size} unseen scenes    R@1    chance   ratio")
    for one in directions:
        ratio = f"{one.r1 / one.by_chance:.0f} ×"
        print(f"{one.asked_with:>5} to {one.found:<9} {one.r1:7.2f} % {one.by_chance:6.2f} % {ratio:>7}")
    return 0 if all(one.r1 >= ENOUGH * one.by_chance for one in directions) else 1


if __name__ == "__main__":
    sys.exit(main())
