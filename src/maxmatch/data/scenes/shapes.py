"""The outlines of the shapes, as polygons in a circle of radius one around the middle."""

from functools import cache
from math import cos, pi, sin
from typing import NamedTuple

Point = tuple[float, float]


class Outline(NamedTuple):
    """The edge of a shape and, where it is hollow, the edge of the hole."""

    edge: tuple[Point, ...]
    hole: tuple[Point, ...] = ()


@cache
def outline(shape: str) -> Outline:
    """The outline of a shape, upright."""
    match shape:
        case "circle":
            return Outline(_circle(0.92))
        case "square":
            return Outline(_square(0.78))
        case "triangle":
            return Outline(((0.0, -0.98), (0.98, 0.74), (-0.98, 0.74)))
        case "star":
            return Outline(tuple(_polar(1.08 if k % 2 == 0 else 0.46, k / 10) for k in range(10)))
        case "heart":
            return Outline(tuple(_heart(k / 48) for k in range(48)))
        case "cross":
            a, b = 0.3, 0.98
            corners = ((-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a), (-b, -a))
            return Outline((*corners, (-a, -a)))
        case "ring":
            return Outline(_circle(1.0), _circle(0.6))
        case "frame":
            return Outline(_square(0.82), _square(0.51))
        case "crescent":
            # A circle less another that is smaller and further right; their tips meet at these turns.
            outer = [_polar(0.95, 0.3925 + 0.715 * k / 40) for k in range(41)]
            inner = [_polar(0.76, 0.465 + 0.57 * k / 40) for k in range(40, -1, -1)]
            return Outline(tuple((x + 0.18, y) for x, y in outer) + tuple((x + 0.61, y) for x, y in inner))
        case "diamond":
            return Outline(((0.0, -1.05), (0.68, 0.0), (0.0, 1.05), (-0.68, 0.0)))
        case "arrow":
            shaft = ((0.1, -0.3), (0.1, -0.78), (1.05, 0.0), (0.1, 0.78), (0.1, 0.3))
            return Outline(((-1.0, -0.3), *shaft, (-1.0, 0.3)))
        case "flower":
            return Outline(tuple(_polar(0.72 + 0.3 * cos(2 * pi * 6 * k / 96), k / 96) for k in range(96)))
    raise AssertionError(shape)


def _polar(radius: float, turn: float) -> Point:
    """The point this far from the middle, in the direction of a part of a full turn, clockwise from the top."""
    return radius * sin(2 * pi * turn), -radius * cos(2 * pi * turn)


def _circle(radius: float) -> tuple[Point, ...]:
    return tuple(_polar(radius, k / 48) for k in range(48))


def _square(half: float) -> tuple[Point, ...]:
    return ((-half, -half), (half, -half), (half, half), (-half, half))


def _heart(turn: float) -> Point:
    t = 2 * pi * turn
    height = 13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t)
    return sin(t) ** 3 * 0.98, -(height + 2.5) / 15.5
