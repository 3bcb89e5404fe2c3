"""A scene as a picture: drawn several times too large and averaged down, so that edges are smooth."""

from functools import cache
from math import cos, radians, sin

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from maxmatch.data.scenes.backgrounds import paint_background
from maxmatch.data.scenes.shapes import Point, outline
from maxmatch.data.scenes.world import COLOURS, Scene, Thing

_OVERSIZE = 3
_HALO = 0.011  # the light rim around things, which keeps them apart from any background
_SHADOW = 0.016
Colour = tuple[int, int, int]


def draw(scene: Scene, size: int, rng: np.random.Generator) -> Image.Image:
    """The picture of a scene, `size` pixels wide and high. The generator scatters the marks of the background."""
    side = size * _OVERSIZE
    canvas = paint_background(scene.background, side, rng)
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
    edge, hole = outline(thing.shape)
    pen.polygon(place(edge), fill=255)
    if hole:
        pen.polygon(place(hole), fill=0)
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
