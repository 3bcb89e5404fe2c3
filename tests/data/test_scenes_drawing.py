"""Scenes keep to their own definition, and pictures show them: every thing at its place, in its colour, unhidden."""

import math
from collections import Counter

import numpy as np
import pytest

from maxmatch.data.scenes import Scene, Thing, make_scene
from maxmatch.data.scenes.drawing import draw, second_tone
from maxmatch.data.scenes.world import BACKGROUNDS, COLOURS, COLUMNS, PAINT, ROWS, SHAPES, SIZES, TEXTURES, generator

SIZE = 96


@pytest.fixture(scope="module")
def scenes():
    return [make_scene(3, i) for i in range(300)]


def pixels(scene, size=SIZE):
    return np.asarray(draw(scene, size, generator(3, 0, PAINT))).astype(int)


def reach(thing, size=SIZE):
    """How far each pixel is from the middle of the thing, in its radii."""
    rows, columns = np.mgrid[:size, :size] + 0.5
    return np.hypot(columns / size - thing.x, rows / size - thing.y) / thing.radius


def one(**looks):
    return Scene("cream", (Thing(**{"size": "large", "x": 0.5, "y": 0.5, "radius": 0.2, "turn": 0.0, **looks}),))


def test_every_value_of_every_attribute_occurs_about_as_often(scenes):
    things = [thing for scene in scenes for thing in scene.things]
    for name, values in {
        "shape": SHAPES,
        "colour": COLOURS,
        "size": SIZES,
        "texture": TEXTURES,
        "place": [f"{row} {column}" for row in ROWS for column in COLUMNS],
    }.items():
        counts = Counter(getattr(thing, name) for thing in things)
        assert set(counts) == set(values)
        assert min(counts.values()) > len(things) / len(values) / 2.5, (name, counts)
    assert set(Counter(len(scene.things) for scene in scenes)) == {2, 3, 4, 5, 6}
    assert set(Counter(scene.background for scene in scenes)) == set(BACKGROUNDS)


def test_no_thing_hides_another_or_leaves_the_picture(scenes):
    for scene in scenes:
        for number, thing in enumerate(scene.things):
            assert thing.radius <= min(thing.x, thing.y, 1 - thing.x, 1 - thing.y)
            # It stands clear of the lines between the nine places.
            assert min(abs(length - line) for length in (thing.x, thing.y) for line in (1 / 3, 2 / 3)) > 0.02
            for other in scene.things[:number]:
                apart = math.dist((thing.x, thing.y), (other.x, other.y))
                if thing.inside is None:
                    assert apart > thing.radius + other.radius
                elif other is scene.things[thing.inside]:
                    assert apart == 0
                    assert other.shape in ("ring", "frame")
                    assert thing.radius < 0.5 * other.radius


def test_sizes_are_told_apart_by_their_radii(scenes):
    radii = {size: [t.radius for scene in scenes for t in scene.things if t.size == size] for size in SIZES}
    assert 1.25 * max(radii["small"]) < min(radii["medium"])
    assert 1.2 * max(radii["medium"]) < min(radii["large"])


def test_the_colour_of_a_thing_is_drawn_at_its_place(scenes):
    for scene in scenes[:20]:
        picture = pixels(scene)
        for thing in scene.things:
            own = (np.abs(picture - COLOURS[thing.colour]).max(2) <= 12) & (reach(thing) < 1.1)
            assert own.sum() >= 0.07 * math.pi * (thing.radius * SIZE) ** 2, thing


def test_a_thing_is_drawn_nowhere_but_at_its_place(scenes):
    for scene in scenes[:10]:
        for number, thing in enumerate(scene.things):
            if any(other.inside is not None for other in scene.things):
                continue
            rest = Scene(scene.background, scene.things[:number] + scene.things[number + 1 :])
            changed = np.abs(pixels(scene) - pixels(rest)).max(2) > 0
            assert changed.any()
            assert reach(thing)[changed].max() < 1.2 + 0.05 / thing.radius, thing


def test_colours_are_told_apart_from_all_others():
    for colour, tone in COLOURS.items():
        shown = pixels(one(shape="square", colour=colour, texture="plain"))[SIZE // 2, SIZE // 2]
        assert tuple(shown) == tone
        others = [COLOURS[other] for other in COLOURS if other != colour]
        assert min(np.abs(np.array(other) - shown).sum() for other in others) > 100


@pytest.mark.parametrize("colour", COLOURS)
def test_textures_are_told_apart_at_the_smallest_size(colour):
    """Even when the picture is then shrunk to 64 pixels; plain alone has one tone."""
    first, second = np.array(COLOURS[colour]), np.array(second_tone(colour))
    assert np.abs(first - second).sum() > 150
    shown = {}
    for texture in TEXTURES:
        scene = one(shape="square", colour=colour, texture=texture, size="small", radius=SIZES["small"])
        picture = draw(scene, SIZE, generator(3, 0, PAINT)).resize((64, 64))
        inside = np.asarray(picture).astype(int)[28:36, 28:36]
        shown[texture] = inside
        assert (inside.std((0, 1)).max() > 10) == (texture != "plain"), texture
    for texture, inside in shown.items():
        others = [other for name, other in shown.items() if name != texture]
        assert min(np.abs(other - inside).mean() for other in others) > 8, texture


def test_every_shape_has_its_own_outline():
    masks = {}
    for shape in SHAPES:
        picture = pixels(one(shape=shape, colour="black", texture="plain", size="small", radius=SIZES["small"]))
        masks[shape] = np.abs(picture - COLOURS["black"]).max(2) < 60
    for shape, mask in masks.items():
        for other in SHAPES:
            overlap = (mask & masks[other]).sum() / (mask | masks[other]).sum()
            assert (overlap > 0.8) == (shape == other), (shape, other, overlap)


def test_hollow_things_show_what_is_inside():
    for shape in ("ring", "frame"):
        assert tuple(pixels(one(shape=shape, colour="red", texture="plain"))[SIZE // 2, SIZE // 2]) != COLOURS["red"]


def test_backgrounds_are_told_apart():
    empty = {name: pixels(Scene(name, ())).reshape(-1, 3) for name in BACKGROUNDS}
    looks = {name: np.concatenate([view.mean(0), view.std(0)]) for name, view in empty.items()}
    for name, look in looks.items():
        assert min(np.abs(look - looks[other]).sum() for other in BACKGROUNDS if other != name) > 20, name


@pytest.mark.parametrize("size", [32, 96, 200])
def test_pictures_of_any_size_show_the_same_scene(size, scenes):
    scene = scenes[0]
    large = draw(scene, 192, generator(3, 0, PAINT)).resize((64, 64))
    this = draw(scene, size, generator(3, 0, PAINT))
    assert this.size == (size, size)
    assert this.mode == "RGB"
    assert np.abs(np.asarray(this.resize((64, 64))).astype(int) - np.asarray(large)).mean() < 12


def test_a_scene_depends_on_its_seed_and_number_alone():
    assert make_scene(5, 7) == make_scene(5, 7)
    assert len({make_scene(seed, number) for seed in range(5) for number in range(20)}) == 100
