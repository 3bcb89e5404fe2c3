"""Scenes by the number: scene i of a seed is the same whatever else is made."""

from math import hypot
from typing import NamedTuple

import numpy as np

from maxmatch.data.scenes.draws import LAYOUT, between, chance, choose, generator, shuffled
from maxmatch.data.scenes.world import BACKGROUNDS, COLOURS, HOLLOW, SHAPES, SIZES, TEXTURES, Scene, Thing

_COUNTS = (2, 3, 3, 3, 4, 4, 4, 5, 5, 6)
_FEW = ("small", "medium", "large", "large")  # many a large one finds no room and is drawn again
_MANY = ("small", "medium", "medium", "large")
_GAP = 0.045  # the least room between two things
_RIM = 0.01  # the least room between a thing and the picture's edge
_CLEAR = 0.03  # how far from the lines between the nine places a thing's middle stays
_MAX_SEED = 2**32


class _Looks(NamedTuple):
    """What a thing looks like before it has a place."""

    shape: str
    colour: str
    texture: str


def make_scene(seed: int, index: int) -> Scene:
    """Scene `index` of a seed."""
    if not 0 <= seed < _MAX_SEED:
        raise ValueError(f"seed: expected 0 to {_MAX_SEED - 1}, got {seed}.")
    rng = generator(seed, index, LAYOUT)
    background = choose(rng, BACKGROUNDS)
    looks = _looks(rng, choose(rng, _COUNTS))
    nested = len(looks) > 2 and chance(rng, 0.35)
    if nested:
        solid = choose(rng, [shape for shape in SHAPES if shape not in HOLLOW])
        looks[0], looks[1] = looks[0]._replace(shape=choose(rng, HOLLOW)), looks[1]._replace(shape=solid)
    things = _placed(rng, looks, nested)
    while things is None:
        things = _placed(rng, looks, nested)
    return Scene(background, tuple(things))


def _looks(rng: np.random.Generator, count: int) -> list[_Looks]:
    """The looks of all things; in every second scene some are of one kind, so that there is something to count."""
    looks = [_Looks(choose(rng, SHAPES), choose(rng, tuple(COLOURS)), choose(rng, TEXTURES)) for _ in range(count)]
    if chance(rng, 0.5):
        members = shuffled(rng, range(count))[: choose(rng, (2, 2, 3, 3, 4))]
        model, alike = looks[members[0]], choose(rng, ("shape", "shape", "colour", "texture", "all"))
        for member in members:
            if alike in ("shape", "all"):
                looks[member] = looks[member]._replace(shape=model.shape)
            if alike in ("colour", "all"):
                looks[member] = looks[member]._replace(colour=model.colour)
            if alike == "texture":
                looks[member] = looks[member]._replace(texture=model.texture)
    return looks


def _placed(rng: np.random.Generator, looks: list[_Looks], nested: bool) -> list[Thing] | None:
    """The things in places where none hides another, or None where one found no room. With `nested`, the second stands
    in the middle of the first.
    """
    things: list[Thing] = []
    cells = shuffled(rng, range(9))
    for number, look in enumerate(looks):
        if nested and number == 1:
            around = things[0]
            things.append(_thing(rng, look, "small", 0.9 * SIZES["small"], around.x, around.y, inside=0))
            continue
        size, scale = choose(rng, _FEW if len(looks) < 5 else _MANY), between(rng, 0.95, 1.05)
        if nested and number == 0:
            size, scale = "large", 1.05
        radius = SIZES[size] * scale
        for cell in cells:
            x, y = between(rng, *_room(radius, cell % 3)), between(rng, *_room(radius, cell // 3))
            if all(hypot(x - other.x, y - other.y) > radius + other.radius + _GAP for other in things):
                break
        else:
            return None
        cells.remove(cell)
        things.append(_thing(rng, look, size, radius, x, y))
    return things


def _room(radius: float, third: int) -> tuple[float, float]:
    """From where to where the middle of a thing can lie in a third of the picture."""
    return max(third / 3 + _CLEAR, radius + _RIM), min((third + 1) / 3 - _CLEAR, 1 - radius - _RIM)


def _thing(
    rng: np.random.Generator, look: _Looks, size: str, radius: float, x: float, y: float, inside: int | None = None
) -> Thing:
    x, y, radius, turn = (round(number, 4) for number in (x, y, radius, between(rng, -12.0, 12.0)))
    return Thing(look.shape, look.colour, size, look.texture, x, y, radius, turn, inside)
