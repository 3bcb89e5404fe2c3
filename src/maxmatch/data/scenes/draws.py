"""Random choices, from uniform numbers alone.

NumPy may change how `choice` or `normal` use a generator. The bits of PCG64 stay, and the uniform numbers made of them:
a scene is the same with every version.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
LAYOUT, WORDS, PAINT = 0, 1, 2
"""What a generator is for: a change to the drawing leaves the captions as they were."""


def generator(seed: int, index: int, purpose: int) -> np.random.Generator:
    """The generator for one purpose of one scene, whatever other scenes there are."""
    return np.random.Generator(np.random.PCG64([seed, index, purpose]))


def between(rng: np.random.Generator, low: float, high: float) -> float:
    """A number from low to high."""
    return low + (high - low) * float(rng.random())


def chance(rng: np.random.Generator, probability: float) -> bool:
    """True with this probability."""
    return bool(rng.random() < probability)


def choose(rng: np.random.Generator, options: Sequence[T]) -> T:
    """One of the options."""
    return options[int(rng.random() * len(options))]


def shuffled(rng: np.random.Generator, options: Sequence[T]) -> list[T]:
    """All options in a random order."""
    keys = rng.random(len(options))
    return [options[int(i)] for i in np.argsort(keys, kind="stable")]
