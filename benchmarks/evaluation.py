"""Evaluate a dataset of COCO 5K's size: `python -m benchmarks.evaluation [cpu] [cuda] [--images N]`.

Generated sets of 5,000 images with five captions each, K = 4, D = 1024: scores, ranks in both directions, the five
folds of 1K and 5K, and collapse, compared with the bare matrix product in the same run. Goals: 1.3 × the product on
the CPU; 3 s on a GPU.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.reference import assert_equal, random_sets, scipy_scores
from benchmarks.timing import describe_machine, print_rows, rows_against
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.metrics import FOLDS, EvaluatedModel, Result, collapse, evaluate, scores_of
from maxmatch.evaluation.significance import intervals

_CAPTIONS, _SIZE, _WIDTH = 5, 4, 1024
_GOAL, _SECONDS = 1.3, 3.0
_DRAWS = 1000


def made_split(images: int, device: str) -> EncodedSplit:
    """Captions near their image, so that ranks are neither all first nor at chance level."""
    pictures = random_sets(images, _SIZE, _WIDTH, 1, device)
    texts = random_sets(images * _CAPTIONS, _SIZE, _WIDTH, 2, device)
    for start in range(0, images, 1000):  # in place: two copies of the captions would not fit next to the product
        part = slice(start * _CAPTIONS, (start + 1000) * _CAPTIONS)
        texts[part] += 0.05 * pictures[start : start + 1000].repeat_interleave(_CAPTIONS, 0)
        texts[part] = torch.nn.functional.normalize(texts[part], dim=-1)
    groups = torch.arange(images, device=device)
    return EncodedSplit(
        {"image": pictures, "text": texts}, {"image": groups, "text": groups.repeat_interleave(_CAPTIONS)}
    )


def measured(split: EncodedSplit, max_memory: int = 2**31) -> Result:
    """What `maxmatch evaluate` does after encoding, except for the intervals."""
    images = len(split.groups["image"])
    return evaluate([EvaluatedModel("made", split)], protocol="coco", max_memory=max_memory, fold_size=images // FOLDS)


def naive_recalls(scores: Tensor) -> list[float]:
    """R@1, 5, 10 in both directions by sorting each row and each column."""
    true = np.arange(scores.shape[0])[:, None] == np.arange(scores.shape[1]) // _CAPTIONS
    found = []
    for side, right in ((scores, true), (scores.T, true.T)):
        ranks = []
        for row, answers in zip(side.cpu().numpy(), right, strict=True):
            ranks.append(int(np.argmax(answers[np.argsort(-row, kind="stable")])))
        found += [100 * float(np.mean(np.array(ranks) < level)) for level in (1, 5, 10)]
    return found


def check(device: str) -> None:
    """Compare a small dataset with SciPy's matching and sorted lists, in one matrix and in blocks."""
    split = made_split(100, device)
    images, texts = split.sets["image"], split.sets["text"]
    scores = scores_of([EvaluatedModel("small", split)]).rows(slice(0, 100))
    assert_equal(scores[:20, :100], scipy_scores(images[:20], texts[:100]), 2e-6, "scores")
    result = measured(split)
    names = [f"{way}_r{level}" for way in ("i2t", "t2i") for level in (1, 5, 10)]
    assert np.allclose([result.figures[f"coco_5k_{name}"] for name in names], naive_recalls(scores))
    folds = [naive_recalls(scores[s : s + 20, s * 5 : (s + 20) * 5]) for s in range(0, 100, 20)]
    assert np.allclose([result.figures[f"coco_1k_{name}"] for name in names], np.mean(folds, 0))
    assert measured(split, max_memory=2**15).figures == result.figures
    print(f"{device}: figures equal SciPy's matching and sorted lists, 1K and 5K, whole and in blocks")


def timed(device: str, images: int) -> None:
    """Compare the whole evaluation with the bare product of all vectors, computed slab by slab."""
    split = made_split(images, device)
    memory = Memory(device)
    result = measured(split)
    peak = memory.peak()
    a, b = (split.sets[name].view(-1, _WIDTH) for name in ("image", "text"))
    out = torch.empty(min(len(a), 2048), len(b), device=device)

    def product() -> None:
        for start in range(0, len(a), len(out)):
            part = a[start : start + len(out)]
            torch.mm(part, b.T, out=out[: len(part)])

    member = EvaluatedModel("made", split)
    rows = rows_against(
        product,
        {
            "evaluate: scores, ranks both ways, 1K and 5K, collapse": (partial(measured, split), _GOAL),
            "scores alone": (partial(scores_of, [member]), None),
            "collapse alone": (partial(collapse, member), None),
        },
        "bare product",
        2,
    )
    title = f"intervals of 1K and 5K, {_DRAWS} drawings each"
    rows.append(rows_against(partial(drawn, result), {}, title, 1)[0])
    print_rows(f"{device}, {images:,} × {images * _CAPTIONS:,} sets, K={_SIZE}, D={_WIDTH}, float32", rows)
    if device == "cuda":
        took = rows[1].ms / 1e3
        print(f"  {took:.2f} s, goal ≤ {_SECONDS:g} s {'met' if took <= _SECONDS else 'NOT MET'}")
    print(f"  peak memory besides the sets: {peak:,.0f} MiB, of which {images**2 * _CAPTIONS * 4 / 2**20:,.0f} scores")
    print(f"  RSUM 1K {result.figures['coco_1k_rsum']:.1f}, 5K {result.figures['coco_5k_rsum']:.1f}")


def drawn(result: Result) -> None:
    """The intervals of all metrics."""
    for galleries in result.galleries.values():
        intervals(galleries, _DRAWS, np.random.default_rng(0))


class Memory:
    """The peak memory from here on, minus the memory in use now, in MiB."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated() / 2**20
        else:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: reset the peak to the current use
            self.before = self._highest()

    def peak(self) -> float:
        """The peak since this object was created."""
        now = torch.cuda.max_memory_allocated() / 2**20 if self.device == "cuda" else self._highest()
        return now - self.before

    def _highest(self) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("devices", nargs="*", choices=["cpu", "cuda"], help="default: cpu, and cuda if there is a GPU")
    parser.add_argument("--images", type=int, default=5000, help="a multiple of 5; 5000 as in COCO")
    arguments = parser.parse_args()
    print(describe_machine())
    for chosen in arguments.devices or (["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]):
        check(chosen)
        timed(chosen, arguments.images)
