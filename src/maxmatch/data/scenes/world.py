"""What a scene is: things over a background; the facets captions speak about; and scenes by number."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import hypot
from typing import Any, NamedTuple, TypeVar

import numpy as np

# Random choices are made from uniform numbers alone. NumPy may change how `choice` or `normal` use a generator. The
# bits of PCG64 stay, and the uniform numbers made of them: a scene is the same with every version.

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


# What a scene is: things over a background, and the words' meanings: sizes, places, relations.
# Lengths are parts of the picture's side; x runs to the right, y runs down.

SHAPES = (
    *("circle", "square", "triangle", "star", "heart", "cross"),
    *("ring", "frame", "crescent", "diamond", "arrow", "flower"),
)
HOLLOW = ("ring", "frame")
"""Shapes that another thing can stand inside of."""
COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (218, 28, 40),
    "orange": (252, 138, 16),
    "yellow": (250, 222, 40),
    "green": (24, 142, 52),
    "blue": (28, 78, 216),
    "purple": (126, 44, 164),
    "pink": (250, 122, 186),
    "brown": (122, 72, 32),
    "black": (22, 22, 28),
    "white": (252, 252, 252),
    "grey": (132, 136, 142),
    "turquoise": (22, 196, 192),
}
SIZES: Mapping[str, float] = {"small": 0.1, "medium": 0.145, "large": 0.2}
"""The radius that goes with each size; a thing's own is up to a twentieth off."""
TEXTURES = ("plain", "striped", "dotted", "checked", "faded")
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")
BACKGROUNDS = (
    *("sky", "night", "sunset", "grass", "sand", "snow"),
    *("water", "brick", "wood", "paper", "cream", "lavender"),
)
DIRECTIONS = ("left of", "right of", "above", "below")
COMPARISONS = ("larger than", "smaller than", "as large as")

_ORDER = {size: number for number, size in enumerate(SIZES)}
_APART = 0.12  # by less than this, one thing is not called left of or above another
_NEAR = 0.1  # the widest gap between things that are next to each other


@dataclass(frozen=True)
class Thing:
    """One thing in a picture."""

    shape: str
    colour: str
    size: str
    texture: str
    x: float
    y: float
    """Where its middle is."""
    radius: float
    turn: float
    """Degrees by which it is turned, to the right where positive."""
    inside: int | None = None
    """The number of the hollow thing around it."""

    @property
    def place(self) -> str:
        """The ninth of the picture that its middle lies in."""
        row, column = (min(int(3 * length), 2) for length in (self.y, self.x))
        return f"{ROWS[row]} {COLUMNS[column]}"


@dataclass(frozen=True)
class Scene:
    """What a picture shows."""

    background: str
    things: tuple[Thing, ...]

    def record(self) -> dict[str, Any]:
        """The scene as it stands in metadata.jsonl, with the place of each thing spelled out."""
        return {
            "background": self.background,
            "things": [{**asdict(thing), "place": thing.place} for thing in self.things],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Scene":
        """The scene that `record` was made of."""
        things = ({name: value for name, value in thing.items() if name != "place"} for thing in record["things"])
        return cls(record["background"], tuple(Thing(**thing) for thing in things))


def holds(relation: str, scene: Scene, first: int, second: int) -> bool:
    """Whether one thing of the scene stands in this relation to another.

    A thing is left of another if that is where it mainly is: further to the left than it is up or down. So of the four
    directions at most one holds. A thing and what is around it are inside and around, and in no other spatial relation.
    """
    a, b = scene.things[first], scene.things[second]
    if relation in COMPARISONS:
        larger = _ORDER[a.size] - _ORDER[b.size]
        return relation == ("larger than" if larger > 0 else "smaller than" if larger < 0 else "as large as")
    if a.inside == second or b.inside == first:
        return relation == ("inside" if a.inside == second else "around")
    right, down = b.x - a.x, b.y - a.y
    if relation == "next to":
        return hypot(right, down) - a.radius - b.radius <= _NEAR
    along, across = (right, down) if relation in ("left of", "right of") else (down, right)
    sign = {"left of": 1, "right of": -1, "above": 1, "below": -1}.get(relation)
    return sign is not None and sign * along >= max(_APART, abs(across))


# What a caption says about a picture, for machines: a facet, and whether it is true of a scene.

KINDS = ("object", "place", "relation", "size", "count", "alike", "background")


@dataclass(frozen=True)
class Description:
    """The properties of one thing that a caption names; None: not named."""

    shape: str | None = None
    colour: str | None = None
    size: str | None = None
    texture: str | None = None
    place: str | None = None

    def record(self) -> dict[str, str]:
        """The properties that are named."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def fits(self, thing: Thing) -> bool:
        """Whether all of it is true of the thing."""
        return (
            self.shape in (None, thing.shape)
            and self.colour in (None, thing.colour)
            and self.size in (None, thing.size)
            and self.texture in (None, thing.texture)
            and self.place in (None, thing.place)
        )


@dataclass(frozen=True)
class Facet:
    """What one caption says. All that is given must hold at once.

    about: there are different things that fit these descriptions, one for each.
    relation: the first of them stands in this relation to the second.
    count, counted: so many things, no more and no fewer, fit this description.
    background: what is behind.
    objects: which things of its own scene are meant, those of `about` first and in their order. Truth does not depend
    on it: a caption may be true of other scenes, and of its own in more than one way.
    """

    kind: str
    objects: tuple[int, ...]
    about: tuple[Description, ...] = ()
    relation: str | None = None
    count: int | None = None
    counted: Description | None = None
    background: str | None = None

    def record(self) -> dict[str, Any]:
        """The facet as it stands in metadata.jsonl. Every record has the same names."""
        about = [description.record() for description in self.about]
        counted = None if self.counted is None else self.counted.record()
        return {**vars(self), "objects": list(self.objects), "about": about, "counted": counted}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Facet":
        """The facet that `record` was made of."""
        about = tuple(Description(**description) for description in record["about"])
        counted = None if record["counted"] is None else Description(**record["counted"])
        return cls(**{**record, "objects": tuple(record["objects"]), "about": about, "counted": counted})


def caption_is_true(facet: Facet, scene: Scene) -> bool:
    """Whether a caption with this facet is true of the scene: the one it was written for, or any other."""
    if facet.background is not None and facet.background != scene.background:
        return False
    if facet.counted is not None and facet.count != sum(facet.counted.fits(thing) for thing in scene.things):
        return False
    relation = facet.relation
    return any(relation is None or holds(relation, scene, *chosen[:2]) for chosen in _fitting(facet.about, scene, ()))


def _fitting(about: tuple[Description, ...], scene: Scene, taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every choice of different things that fit the descriptions."""
    if len(taken) == len(about):
        yield taken
        return
    for number, thing in enumerate(scene.things):
        if number not in taken and about[len(taken)].fits(thing):
            yield from _fitting(about, scene, (*taken, number))


# Scenes by the number: scene i of a seed is the same whatever else is made.

_COUNTS = (2, 3, 3, 3, 4, 4, 4, 5, 5, 6)
_FEW = ("small", "medium", "large", "large")  # large ones often do not fit and are drawn again
_MANY = ("small", "medium", "medium", "large")
_GAP = 0.045  # the least distance between two things
_RIM = 0.01  # the least distance between a thing and the picture's edge
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
    while (things := _placed(rng, looks, nested)) is None:
        pass
    return Scene(background, tuple(things))


def _looks(rng: np.random.Generator, count: int) -> list[_Looks]:
    """The looks of all things; in every second scene some are of one kind, so that there is something to count."""
    looks = [_Looks(choose(rng, SHAPES), choose(rng, tuple(COLOURS)), choose(rng, TEXTURES)) for _ in range(count)]
    if chance(rng, 0.5):
        members = shuffled(rng, range(count))[: choose(rng, (2, 2, 3, 3, 4))]
        model, alike = looks[members[0]], choose(rng, ("shape", "shape", "colour", "texture", "all"))
        same = {name: getattr(model, name) for name in (("shape", "colour") if alike == "all" else (alike,))}
        for member in members:
            looks[member] = looks[member]._replace(**same)
    return looks


def _placed(rng: np.random.Generator, looks: list[_Looks], nested: bool) -> list[Thing] | None:
    """The things in places where none hides another, or None where one does not fit. With `nested`, the second stands
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
