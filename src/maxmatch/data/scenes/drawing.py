"""A scene as a picture: drawn several times too large and averaged down, so that edges are smooth."""

from collections.abc import Callable
from functools import cache, lru_cache
from math import cos, pi, radians, sin

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from maxmatch.data.scenes.world import COLOURS, Scene, Thing

# The outlines of the shapes, as polygons in a circle of radius one around the middle.

Point = tuple[float, float]


def _polar(radius: float, turn: float) -> Point:
    """The point this far from the middle, in the direction of a part of a full turn, clockwise from the top."""
    return radius * sin(2 * pi * turn), -radius * cos(2 * pi * turn)


def _circle(radius: float) -> tuple[Point, ...]:
    return tuple(_polar(radius, k / 48) for k in range(48))


def _square(half: float) -> tuple[Point, ...]:
    return ((-half, -half), (half, -half), (half, half), (-half, half))


def _cross(a: float, b: float) -> tuple[Point, ...]:
    right = ((a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b))
    return ((-a, -b), *right, (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a))


def _crescent() -> tuple[Point, ...]:
    """A circle less another that is smaller and further right; their tips meet at these turns."""
    outer = [_polar(0.95, 0.3925 + 0.715 * k / 40) for k in range(41)]
    inner = [_polar(0.76, 0.465 + 0.57 * k / 40) for k in range(40, -1, -1)]
    return (*((x + 0.18, y) for x, y in outer), *((x + 0.61, y) for x, y in inner))


def _heart(turn: float) -> Point:
    t = 2 * pi * turn
    height = 13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t)
    return sin(t) ** 3 * 0.98, -(height + 2.5) / 15.5


_EDGES: dict[str, tuple[Point, ...]] = {
    "circle": _circle(0.92),
    "square": _square(0.78),
    "triangle": ((0.0, -0.98), (0.98, 0.74), (-0.98, 0.74)),
    "star": tuple(_polar(1.08 if k % 2 == 0 else 0.46, k / 10) for k in range(10)),
    "heart": tuple(_heart(k / 48) for k in range(48)),
    "cross": _cross(0.3, 0.98),
    "ring": _circle(1.0),
    "frame": _square(0.82),
    "crescent": _crescent(),
    "diamond": ((0.0, -1.05), (0.68, 0.0), (0.0, 1.05), (-0.68, 0.0)),
    "arrow": ((-1.0, -0.3), (0.1, -0.3), (0.1, -0.78), (1.05, 0.0), (0.1, 0.78), (0.1, 0.3), (-1.0, 0.3)),
    "flower": tuple(_polar(0.72 + 0.3 * cos(2 * pi * 6 * k / 96), k / 96) for k in range(96)),
}
_HOLES = {"ring": _circle(0.6), "frame": _square(0.51)}


# What is behind the things: quiet enough that every thing stands out.

Colour = tuple[int, int, int]
Pen = ImageDraw.ImageDraw


@lru_cache(maxsize=32)
def _gradient(top: Colour, bottom: Colour, side: int) -> Image.Image:
    ramp = Image.linear_gradient("L").resize((1, side)).resize((side, side))
    return Image.composite(Image.new("RGB", (side, side), bottom), Image.new("RGB", (side, side), top), ramp)


def _clouds(pen: Pen, side: int, rng: np.random.Generator) -> None:
    for x, y, scale in rng.random((4, 3)) * side:
        for shift, lift, radius in ((-0.08, 0.0, 0.05), (0.0, -0.025, 0.07), (0.08, 0.0, 0.045)):
            reach = radius * (side + scale) / 1.4
            _disc(pen, x + shift * side, y + lift * side, reach * 1.3, reach * 0.8, (244, 248, 253))


def _lights(pen: Pen, side: int, rng: np.random.Generator) -> None:
    for x, y, glow in rng.random((45, 3)):
        _disc(pen, x * side, y * side, 0.004 * side, 0.004 * side, (150 + int(90 * glow),) * 2 + (170,))


def _sun(pen: Pen, side: int, rng: np.random.Generator) -> None:
    for y, height in zip(rng.random(5), rng.random(5), strict=True):
        pen.rectangle((0, y * side, side, (y + 0.01 + 0.02 * height) * side), fill=(226, 150, 140))


def _blades(pen: Pen, side: int, rng: np.random.Generator) -> None:
    for x, y, lean in rng.random((150, 3)):
        tip = ((x + 0.02 * (lean - 0.5)) * side, (y - 0.035) * side)
        pen.line((x * side, y * side, *tip), fill=(104, 156, 74), width=max(1, side // 150))


def _grains(pen: Pen, side: int, rng: np.random.Generator) -> None:
    for x, y, kind in rng.random((120, 3)):
        _disc(pen, x * side, y * side, 0.006 * side, 0.005 * side, (198, 168, 116) if kind < 0.6 else (248, 234, 200))


def _flakes(pen: Pen, side: int, rng: np.random.Generator) -> None:
    for x, y, kind in rng.random((60, 3)):
        reach = (0.005 + 0.008 * kind) * side
        _disc(pen, x * side, y * side, reach, reach, (255, 255, 255) if kind < 0.6 else (200, 214, 230))


def _waves(pen: Pen, side: int, rng: np.random.Generator) -> None:
    step, reach = side / 11, side / 14
    for row in range(12):
        start = float(rng.random()) * 2 * reach
        for column in range(-1, 9):
            x = start + (column * 2 - 1) * reach
            box = (x, row * step, x + 2 * reach, row * step + reach)
            pen.arc(box, 20, 160, fill=(134, 184, 210), width=max(1, side // 110))


def _bricks(pen: Pen, side: int, rng: np.random.Generator) -> None:
    height, width, joint = side / 9, side / 5, max(1, side // 90)
    for row in range(9):
        shift = -width / 2 if row % 2 else 0.0
        for column, shade in enumerate(rng.random(6)):
            left, top = shift + column * width, row * height
            tone = (186 + int(20 * shade), 116 + int(18 * shade), 96 + int(14 * shade))
            pen.rectangle((left, top, left + width - joint, top + height - joint), fill=tone)


def _planks(pen: Pen, side: int, rng: np.random.Generator) -> None:
    for plank, (shade, *grain) in enumerate(rng.random((6, 6))):
        left, width = plank * side / 6, side / 6
        tone = (190 + int(26 * shade), 146 + int(26 * shade), 98 + int(24 * shade))
        pen.rectangle((left, 0, left + width, side), fill=tone)
        pen.rectangle((left, 0, left + max(1, side // 110), side), fill=(138, 98, 58))
        for place in grain:
            pen.line((left + place * width, 0, left + place * width, side), fill=(176, 132, 86))


def _grid(pen: Pen, side: int, rng: np.random.Generator) -> None:
    shift = float(rng.random())
    for line in range(13):
        at = (line + shift - 0.5) * side / 12
        pen.line((at, 0, at, side), fill=(158, 190, 226), width=max(1, side // 140))
        pen.line((0, at, side, at), fill=(158, 190, 226), width=max(1, side // 140))


def _disc(pen: Pen, x: float, y: float, wide: float, high: float, fill: Colour) -> None:
    pen.ellipse((x - wide, y - high, x + wide, y + high), fill=fill)


# The colours at the top and at the bottom, and the marks.
_BACKGROUNDS: dict[str, tuple[Colour, Colour, Callable[[Pen, int, np.random.Generator], None] | None]] = {
    "sky": ((140, 190, 240), (214, 234, 250), _clouds),
    "night": ((14, 18, 52), (40, 44, 92), _lights),
    "sunset": ((112, 84, 150), (250, 176, 130), _sun),
    "grass": ((150, 194, 112), (126, 176, 92), _blades),
    "sand": ((236, 216, 168), (222, 196, 142), _grains),
    "snow": ((226, 236, 246), (240, 246, 252), _flakes),
    "water": ((88, 150, 186), (60, 120, 164), _waves),
    "brick": ((214, 206, 196), (204, 196, 186), _bricks),
    "wood": ((206, 166, 118), (206, 166, 118), _planks),
    "paper": ((248, 248, 244), (248, 248, 244), _grid),
    "cream": ((246, 232, 200), (246, 232, 200), None),
    "lavender": ((206, 192, 232), (206, 192, 232), None),
}

_OVERSIZE = 3
_HALO = 0.011  # the light rim around things, which keeps them apart from any background
_SHADOW = 0.016


def draw(scene: Scene, size: int, rng: np.random.Generator) -> Image.Image:
    """The picture of a scene, `size` pixels wide and high. The generator scatters the marks of the background."""
    side = size * _OVERSIZE
    top, bottom, marks = _BACKGROUNDS[scene.background]
    canvas = _gradient(top, bottom, side).copy()
    if marks is not None:
        marks(ImageDraw.Draw(canvas), side, rng)
    for thing in scene.things:
        _paint(canvas, thing, side)
    return canvas.reduce(_OVERSIZE)


def second_tone(colour: str) -> Colour:
    """The colour of stripes, dots and checks on a thing: a pale one, on a pale thing a dark one."""
    tone = COLOURS[colour]
    if colour in ("white", "yellow", "pink"):
        return _mixed(tone, (0, 0, 0) if colour == "white" else (90, 20, 30), 0.5)
    return _mixed(tone, (255, 255, 255), 0.45 if colour == "black" else 0.72)


def _paint(canvas: Image.Image, thing: Thing, side: int) -> None:
    """One thing with its shadow, its rim and its texture."""
    halo, radius = max(1, round(_HALO * side)), thing.radius * side
    reach = round(1.2 * radius) + halo + 1
    mask = _mask(thing, reach, radius)
    wide = _widened(mask, halo)
    left, top = round(thing.x * side) - reach, round(thing.y * side) - reach
    shadow = round(_SHADOW * side)
    faint = Image.new("L", wide.size)
    faint.paste(90, (0, 0), wide)
    canvas.paste((20, 20, 30), (left + shadow, top + shadow), faint)
    canvas.paste((70, 70, 80) if thing.colour == "white" else (255, 255, 255), (left, top), wide)
    canvas.paste(_surface(thing, 2 * reach, side), (left, top), mask)


def _mask(thing: Thing, reach: int, radius: float) -> Image.Image:
    """White where the thing is, in a square around its middle."""
    c, s = cos(radians(thing.turn)) * radius, sin(radians(thing.turn)) * radius

    def place(points: tuple[Point, ...]) -> list[tuple[int, int]]:
        return [(round(reach + c * x - s * y), round(reach + s * x + c * y)) for x, y in points]

    mask = Image.new("L", (2 * reach, 2 * reach))
    pen = ImageDraw.Draw(mask)
    pen.polygon(place(_EDGES[thing.shape]), fill=255)
    if thing.shape in _HOLES:
        pen.polygon(place(_HOLES[thing.shape]), fill=0)
    return mask


def _widened(mask: Image.Image, by: int) -> Image.Image:
    """The mask with a rim added, by shifting it to all sides."""
    for x, y in ((by, 0), (0, by)):
        mask = ImageChops.lighter(
            mask, ImageChops.lighter(ImageChops.offset(mask, x, y), ImageChops.offset(mask, -x, -y))
        )
    return mask


@cache
def _ramp() -> Image.Image:
    """From nothing at the top to everything at the bottom, most of it in the lower half."""
    return (
        Image.linear_gradient("L").resize((1, 256)).point([max(0, min(255, (level - 95) * 2)) for level in range(256)])
    )


def _surface(thing: Thing, width: int, side: int) -> Image.Image | Colour:
    """The colour of the thing, or a square of its texture. Marks grow with the thing, but less than it does."""
    tone, second = COLOURS[thing.colour], second_tone(thing.colour)
    if thing.texture == "plain":
        return tone
    surface = Image.new("RGB", (width, width), tone)
    pen = ImageDraw.Draw(surface)
    step = (0.036 + 0.34 * thing.radius) * side
    marks = [round(k * step) for k in range(int(width / step) + 2)]
    match thing.texture:
        case "striped":
            for start in marks:
                pen.rectangle((0, start, width, start + round(step * 0.42)), fill=second)
        case "dotted":
            dot = round(step * 0.3)
            for row, y in enumerate(marks):
                for x in marks:
                    middle = x + (round(step / 2) if row % 2 else 0)
                    pen.ellipse((middle - dot, y - dot, middle + dot, y + dot), fill=second)
        case "checked":
            half = round(step * 0.62)
            for row in range(0, width, half):
                for column in range(half * (row // half % 2), width, 2 * half):
                    pen.rectangle((column, row, column + half - 1, row + half - 1), fill=second)
        case "faded":
            surface.paste(second, (0, 0), _ramp().resize((1, width)).resize((width, width)))
    return surface


def _mixed(tone: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(tone, other, strict=True))
    return red, green, blue
