"""Measure the best possible R@1 on generated scenes, and how fast they are generated: `python -m benchmarks.scenes`.

With `--sheet FILE`, write a sheet of examples instead (docs/scenes.png).
"""

import re
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from PIL import Image

from maxmatch.data.scenes import Facet, caption_is_true, generate, make_scene
from maxmatch.data.scenes.drawing import draw
from maxmatch.data.scenes.scene_folder import describe
from maxmatch.data.scenes.world import PAINT, generator

_SEED, _SCENES = 1, 1_000


def sheet(path: Path, columns: int = 8, rows: int = 3, size: int = 96, gap: int = 4) -> None:
    """Draw the first scenes of seed 0 side by side."""
    step = size + gap
    paper = Image.new("RGB", (columns * step - gap, rows * step - gap), "white")
    for index in range(columns * rows):
        picture = draw(make_scene(0, index), size, generator(0, index, PAINT))
        paper.paste(picture, (index % columns * step, index // columns * step))
    paper.save(path, optimize=True)


def ceilings() -> None:
    """R@1 of an oracle that knows which captions are true of which images and guesses among those."""
    scenes = [make_scene(_SEED, index) for index in range(_SCENES)]
    rows = [describe(scene, _SEED, index) for index, scene in enumerate(scenes)]
    true_of: list[list[int]] = []
    owners, kinds = [], []
    for index, row in enumerate(rows):
        for record in row["facets"]:
            facet = Facet.from_record(record)
            true_of.append([other for other, scene in enumerate(scenes) if caption_is_true(facet, scene)])
            assert index in true_of[-1]
            owners.append(index)
            kinds.append(facet.kind)
    captions_true = Counter(scene for found in true_of for scene in found)
    print(f"{_SCENES:,} scenes, {len(true_of):,} captions; true of their own image: all")
    print(f"{'captions about':<16}{'share %':>9}{'t2i R@1 %':>11}{'true of no other %':>20}{'of ≤ 1 % of others':>20}")
    for kind in [*sorted(set(kinds)), "all"]:
        found = [len(found) for found, this in zip(true_of, kinds, strict=True) if kind in (this, "all")]
        others = [count - 1 for count in found]
        share, hit = len(found) / len(kinds), mean(1 / count for count in found)
        none, few = mean(count == 0 for count in others), mean(count <= _SCENES / 100 for count in others)
        print(f"{kind:<16}{100 * share:>9.1f}{100 * hit:>11.1f}{100 * none:>20.1f}{100 * few:>20.1f}")
    print(f"i2t R@1 {100 * mean(5 / captions_true[index] for index in range(_SCENES)):.1f} %")
    words = Counter(word for row in rows for text in row["captions"] for word in re.findall(r"[a-z-]+", text.lower()))
    print(f"{len(words)} different words, {sum(words.values()) / len(true_of):.1f} per caption")


def speed() -> None:
    """Generate 2,000 images in one process and in two."""
    from benchmarks.timing import describe_machine  # not above: every started process would load torch

    print(describe_machine())
    for workers in (1, 2):
        with TemporaryDirectory() as place:
            start = time.perf_counter()
            generate(Path(place) / "scenes", 2_000, workers=workers)
            print(f"2,000 images of 96 pixels, {workers} process(es): {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sheet"]:
        sheet(Path(sys.argv[2]))
    else:
        ceilings()
        speed()
