"""Five facets of a scene, each of another kind, spread over its things."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np

from maxmatch.data.scenes.draws import chance, choose, shuffled
from maxmatch.data.scenes.facets import KINDS, Description, Facet
from maxmatch.data.scenes.world import COMPARISONS, DIRECTIONS, Scene, holds

CAPTIONS = 5
_GROUPS = (("shape",), ("colour",), ("texture",), ("shape", "colour"), ("shape", "texture"))
Used = Counter[int]


def choose_facets(scene: Scene, rng: np.random.Generator) -> list[Facet]:
    """Five facets of different kinds, in a random order. What was told little of is told of first."""
    used: Used = Counter()
    facets: list[Facet] = []
    for kind in shuffled(rng, KINDS):
        facet = _WAYS[kind](scene, rng, used)
        if facet is not None:
            used.update(facet.objects)
            facets.append(facet)
        if len(facets) == CAPTIONS:
            return facets
    raise AssertionError("five kinds are always there to choose from")


def _object(scene: Scene, rng: np.random.Generator, used: Used) -> Facet:
    (thing,) = _least_used(rng, [(i,) for i in range(len(scene.things))], used)
    return Facet("object", (thing,), (_described(scene, thing, rng, {"texture": 1.0, "size": 0.95}),))


def _place(scene: Scene, rng: np.random.Generator, used: Used) -> Facet:
    (thing,) = _least_used(rng, [(i,) for i in range(len(scene.things))], used)
    return Facet("place", (thing,), (_described(scene, thing, rng, {"place": 1.0, "texture": 0.7, "size": 0.3}),))


def _relation(scene: Scene, rng: np.random.Generator, used: Used) -> Facet:
    wanted: tuple[str, ...] = choose(rng, (DIRECTIONS, ("inside", "around"), ("next to",)))
    found = _pairs(scene, wanted) or _pairs(scene, DIRECTIONS)
    pair = _least_used(rng, [(a, b) for a, b, _ in found], used)
    relation = choose(rng, [name for a, b, name in found if (a, b) == pair])
    return Facet("relation", pair, _two(scene, pair, rng, size=0.2), relation=relation)


def _size(scene: Scene, rng: np.random.Generator, used: Used) -> Facet:
    found = _pairs(scene, COMPARISONS)
    pair = _least_used(rng, [(a, b) for a, b, _ in found], used)
    (relation,) = (name for a, b, name in found if (a, b) == pair)
    return Facet("size", pair, _two(scene, pair, rng, size=0.0), relation=relation)


def _count(scene: Scene, rng: np.random.Generator, used: Used) -> Facet | None:
    """So many things of one kind, and more about one or two of them."""
    groups: dict[tuple[int, ...], Description] = {}
    for names in shuffled(rng, _GROUPS):
        for thing in scene.things:
            common = Description(**{name: getattr(thing, name) for name in names})
            members = tuple(i for i, other in enumerate(scene.things) if common.fits(other))
            if len(members) > 1 and common.texture != "plain":
                groups.setdefault(members, common)
    if not groups:
        return None
    members = _least_used(rng, list(groups), used)
    common, members = groups[members], tuple(shuffled(rng, members))
    several = common.shape is None or common.colour is None or chance(rng, 0.3)
    described = {
        thing: _described(scene, thing, rng, {"texture": 0.6, "size": 0.25}, common)
        for thing in members[: 2 if several else 1]
    }
    told = {thing: description for thing, description in described.items() if description != common}
    objects = (*told, *(thing for thing in members if thing not in told))
    return Facet("count", objects, tuple(told.values()), count=len(members), counted=common)


def _alike(scene: Scene, rng: np.random.Generator, used: Used) -> Facet | None:
    """Two things of one colour or one texture."""
    found: dict[tuple[int, ...], Description] = {}
    for name in shuffled(rng, ("colour", "texture")):
        for a, b in permutations(range(len(scene.things)), 2):
            values = {getattr(scene.things[a], name), getattr(scene.things[b], name)}
            if len(values) == 1 and values != {"plain"}:
                found.setdefault((a, b), Description(**{name: values.pop()}))
    if not found:
        return None
    pair = _least_used(rng, list(found), used)
    common = found[pair]
    how_often = {"texture": 0.55, "size": 0.3} if common.texture is None else {"colour": 0.8, "size": 0.3}
    about = tuple(_described(scene, thing, rng, how_often, common) for thing in pair)
    return Facet("alike", pair, about)


def _background(scene: Scene, rng: np.random.Generator, used: Used) -> Facet:
    """What is behind, with one or two of the things before it, or one of them and how many they are."""
    numbered = chance(rng, 0.3)
    count = 1 if numbered or chance(rng, 0.5) else 2
    things = _least_used(rng, list(combinations(range(len(scene.things)), count)), used)
    how_often = {"texture": 0.75 if count == 1 else 0.3, "size": 0.25}
    about = tuple(_described(scene, thing, rng, how_often) for thing in things)
    facet = Facet("background", things, about, background=scene.background)
    if numbered:
        return replace(facet, counted=Description(), count=len(scene.things))
    return facet


_WAYS: dict[str, Callable[[Scene, np.random.Generator, Used], Facet | None]] = {
    "object": _object,
    "place": _place,
    "relation": _relation,
    "size": _size,
    "count": _count,
    "alike": _alike,
    "background": _background,
}


def _pairs(scene: Scene, relations: Sequence[str]) -> list[tuple[int, int, str]]:
    """Every ordered pair of things that stand in one of the relations."""
    pairs = permutations(range(len(scene.things)), 2)
    return [(a, b, name) for a, b in pairs for name in relations if holds(name, scene, a, b)]


def _least_used(rng: np.random.Generator, groups: Sequence[tuple[int, ...]], used: Used) -> tuple[int, ...]:
    """Of the groups that no caption is about yet, or the fewest, one."""
    cost = [sum(used[thing] for thing in group) / len(group) for group in groups]
    return choose(rng, [group for group, this in zip(groups, cost, strict=True) if this == min(cost)])


def _described(
    scene: Scene, number: int, rng: np.random.Generator, how_often: Mapping[str, float], must: Description | None = None
) -> Description:
    """A description of a thing: what must be said, and the rest as often as asked for; shape and colour always, unless
    asked for otherwise. That a thing is plain is seldom said, as people seldom do.
    """
    thing, said = scene.things[number], {} if must is None else must.record()
    for name, probability in {"shape": 1.0, "colour": 1.0, **how_often}.items():
        if getattr(thing, name) == "plain":
            probability *= 0.4
        if chance(rng, probability):
            said[name] = getattr(thing, name)
    return Description(**said)


def _two(scene: Scene, pair: tuple[int, ...], rng: np.random.Generator, size: float) -> tuple[Description, ...]:
    """Two things, of which one may be named without its colour or by its looks alone."""
    vague = choose(rng, pair) if chance(rng, 0.3) else None
    hidden = choose(rng, ("shape", "colour", "colour"))
    return tuple(
        _described(scene, thing, rng, {"texture": 0.55, "size": size, **({hidden: 0.0} if thing == vague else {})})
        for thing in pair
    )
