"""What a scene is: things over a background, and the words' meanings: sizes, places, relations.

Lengths are parts of the picture's side; x runs to the right, y runs down.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import hypot
from typing import Any

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
    """A picture as it is meant."""

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
    match relation:
        case "left of":
            return right >= max(_APART, abs(down))
        case "right of":
            return -right >= max(_APART, abs(down))
        case "above":
            return down >= max(_APART, abs(right))
        case "below":
            return -down >= max(_APART, abs(right))
        case "next to":
            return hypot(right, down) - a.radius - b.radius <= _NEAR
    return False
