"""What is behind the things: quiet enough that every thing stands out."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
Pen = ImageDraw.ImageDraw

_TONES: dict[str, tuple[Colour, Colour]] = {  # at the top, at the bottom
    "sky": ((140, 190, 240), (214, 234, 250)),
    "night": ((14, 18, 52), (40, 44, 92)),
    "sunset": ((112, 84, 150), (250, 176, 130)),
    "grass": ((150, 194, 112), (126, 176, 92)),
    "sand": ((236, 216, 168), (222, 196, 142)),
    "snow": ((226, 236, 246), (240, 246, 252)),
    "water": ((88, 150, 186), (60, 120, 164)),
    "brick": ((214, 206, 196), (204, 196, 186)),
    "wood": ((206, 166, 118), (206, 166, 118)),
    "paper": ((248, 248, 244), (248, 248, 244)),
    "cream": ((246, 232, 200), (246, 232, 200)),
    "lavender": ((206, 192, 232), (206, 192, 232)),
}


def paint_background(background: str, side: int, rng: np.random.Generator) -> Image.Image:
    """A square picture of a background."""
    canvas = _gradient(*_TONES[background], side).copy()
    if background in _MARKS:
        _MARKS[background](ImageDraw.Draw(canvas), side, rng)
    return canvas


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


_MARKS: dict[str, Callable[[Pen, int, np.random.Generator], None]] = {
    "sky": _clouds,
    "night": _lights,
    "sunset": _sun,
    "grass": _blades,
    "sand": _grains,
    "snow": _flakes,
    "water": _waves,
    "brick": _bricks,
    "wood": _planks,
    "paper": _grid,
}
