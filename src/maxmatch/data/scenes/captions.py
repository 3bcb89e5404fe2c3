"""Five captions of a scene: facets of different kinds, worded with synonyms chosen at random."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations

import numpy as np

from maxmatch.data.scenes.world import (
    COMPARISONS,
    DIRECTIONS,
    KINDS,
    Description,
    Facet,
    Scene,
    T,
    chance,
    choose,
    holds,
    shuffled,
)

# The words and phrases for everything in the world, the common ones first, and the frames of sentences.

Words = Mapping[str, tuple[str, ...]]

NOUNS: Mapping[str | None, tuple[tuple[str, str], ...]] = {  # one, several; None: whatever its shape
    None: tuple((noun, f"{noun}s") for noun in ("shape", "thing", "object", "figure", "item")),
    "circle": (("circle", "circles"), ("disc", "discs"), ("round shape", "round shapes")),
    "square": (("square", "squares"), ("block", "blocks"), ("box", "boxes")),
    "triangle": (("triangle", "triangles"), ("pyramid", "pyramids"), ("wedge", "wedges")),
    "star": (("star", "stars"), ("five-pointed star", "five-pointed stars"), ("pentagram", "pentagrams")),
    "heart": (("heart", "hearts"), ("valentine", "valentines"), ("love heart", "love hearts")),
    "cross": (("cross", "crosses"), ("plus sign", "plus signs"), ("plus", "pluses")),
    "ring": (("ring", "rings"), ("hoop", "hoops"), ("doughnut", "doughnuts")),
    "frame": (("frame", "frames"), ("picture frame", "picture frames"), ("hollow square", "hollow squares")),
    "crescent": (("crescent", "crescents"), ("moon", "moons"), ("sickle", "sickles")),
    "diamond": (("diamond", "diamonds"), ("rhombus", "rhombuses"), ("lozenge", "lozenges")),
    "arrow": (("arrow", "arrows"), ("pointer", "pointers"), ("direction sign", "direction signs")),
    "flower": (("flower", "flowers"), ("blossom", "blossoms"), ("daisy", "daisies")),
}
COLOUR_WORDS: Words = {
    "red": ("red", "crimson", "scarlet"),
    "orange": ("orange", "tangerine", "apricot"),
    "yellow": ("yellow", "golden", "lemon-yellow"),
    "green": ("green", "emerald", "leaf-green"),
    "blue": ("blue", "cobalt", "ultramarine"),
    "purple": ("purple", "violet", "plum-coloured"),
    "pink": ("pink", "rosy", "salmon-pink"),
    "brown": ("brown", "chestnut", "chocolate-brown"),
    "black": ("black", "jet-black", "ebony"),
    "white": ("white", "ivory", "chalk-white"),
    "grey": ("grey", "gray", "silver"),
    "turquoise": ("turquoise", "teal", "cyan"),
}
SIZE_WORDS: Words = {
    "small": ("small", "little", "tiny"),
    "medium": ("medium-sized", "mid-sized", "middling"),
    "large": ("large", "big", "huge"),
}
TEXTURE_WORDS: Words = {
    "plain": ("plain", "solid", "unpatterned"),
    "striped": ("striped", "stripy", "banded"),
    "dotted": ("dotted", "spotted", "polka-dotted"),
    "checked": ("checked", "chequered", "checkered"),
    "faded": ("faded", "shaded", "fading"),
}
TEXTURE_PHRASES: Words = {  # after the noun
    "plain": ("without any pattern", "in one tone"),
    "striped": ("with stripes", "with bands across"),
    "dotted": ("with dots", "covered in spots"),
    "checked": ("with a checked pattern", "with checks all over"),
    "faded": ("with a gradient", "fading towards the bottom"),
}
PLACE_PHRASES: Words = {
    "top left": ("in the top left corner", "at the top left", "in the upper left"),
    "top centre": ("at the top in the middle", "at the top centre", "in the middle of the upper edge"),
    "top right": ("in the top right corner", "at the top right", "in the upper right"),
    "middle left": ("halfway up on the left", "in the middle of the left side", "at the centre left"),
    "middle centre": ("in the middle", "in the centre", "at the very centre of the picture"),
    "middle right": ("halfway up on the right", "in the middle of the right side", "at the centre right"),
    "bottom left": ("in the bottom left corner", "at the bottom left", "in the lower left"),
    "bottom centre": ("at the bottom in the middle", "at the bottom centre", "in the middle of the lower edge"),
    "bottom right": ("in the bottom right corner", "at the bottom right", "in the lower right"),
}
BACKGROUND_PHRASES: Words = {
    "sky": ("a cloudy sky", "the daytime sky", "a bright sky with clouds"),
    "night": ("a night sky", "the dark night", "a starry night"),
    "sunset": ("a sunset", "an evening sky", "the glow of dusk"),
    "grass": ("a lawn", "a meadow", "a field of grass"),
    "sand": ("sand", "a sandy beach", "a desert"),
    "snow": ("snow", "a snowy field", "falling snow"),
    "water": ("water", "the sea", "the waves of a lake"),
    "brick": ("a brick wall", "a wall of bricks", "brickwork"),
    "wood": ("wooden boards", "planks of wood", "a wooden floor"),
    "paper": ("graph paper", "a sheet of squared paper", "a page with a grid"),
    "cream": ("a cream wall", "a cream background", "a beige wall"),
    "lavender": ("a lavender wall", "a lavender background", "a lilac wall"),
}
RELATION_PHRASES: Words = {
    "left of": ("to the left of", "left of", "on the left-hand side of"),
    "right of": ("to the right of", "right of", "on the right-hand side of"),
    "above": ("above", "over", "higher up than"),
    "below": ("below", "under", "beneath", "lower down than"),
    "inside": ("inside", "within", "enclosed by", "surrounded by"),
    "around": ("around", "surrounding", "enclosing"),
    "next to": ("next to", "beside", "close to", "near"),
    "larger than": ("larger than", "bigger than", "of greater size than"),
    "smaller than": ("smaller than", "tinier than", "of lesser size than"),
    "as large as": ("as large as", "the same size as", "just as big as"),
}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
COLLECTIVES: Mapping[int, tuple[str, ...]] = {
    2: ("two", "a pair of", "a couple of"),
    3: ("three", "a trio of"),
    4: ("four", "a quartet of"),
}

OBJECT_FRAMES = (
    *("{a}", "there is {a}", "we see {a}", "the picture shows {a}", "here is {a}", "one can make out {a}"),
    *("the {noun} is {looks}", "we see one {noun} that is {looks}", "one {noun} is {looks}"),
)
PLACE_FRAMES = (
    *("{a} {where}", "{a} is {where}", "{where} there is {a}", "{where} is {a}", "{a} has its place {where}"),
    *("look {where} to find {a}", "what you see {where} is {a}"),
)
RELATION_FRAMES = (
    "{a} {relation} {b}",
    "{a} is {relation} {b}",
    "there is {a} {relation} {b}",
    "we see {a} {relation} {b}",
)
SIZE_FRAMES = ("{a} is {relation} {b}", "{a} looks {relation} {b}", "{a} that is {relation} {b}")
COUNT_FRAMES = ("there are {n} {group}", "{many} {group}", "one can count {n} {group}", "we see {many} {group}")
ALL_MEMBERS = ("{count}, {a}", "{count}: {a}", "{count}, namely {a}")
SOME_MEMBERS = ("{count}, among them {a}", "{count}, including {a}")
ALIKE_FRAMES = (
    *("{a} and {b}, both {same}", "both {a} and {b} are {same}", "{a} is {same} and so is {b}"),
    *("{a} is just as {same} as {b}", "both {a} and {b} look {same}"),
)
BACKGROUND_FRAMES = (
    *("{a} in front of {ground}", "{a} against {ground}", "{ground} with {a} in front", "{ground} behind {a}"),
    *("the background is {ground}, the foreground {a}", "before {ground} we see {a}"),
)
NUMBERED_FRAMES = (
    *("{n} {group} in front of {ground}, one of them {a}", "{ground} behind {n} {group}, among them {a}"),
    *("there are {n} {group} against {ground}, including {a}",),
)


# Five facets of a scene, each of another kind, spread over its things.

CAPTIONS = 5
_GROUPS = (("shape",), ("colour",), ("texture",), ("shape", "colour"), ("shape", "texture"))
Used = Counter[int]


def choose_facets(scene: Scene, rng: np.random.Generator) -> list[Facet]:
    """Five facets of different kinds, in a random order. Things mentioned least come first."""
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


def _single(kind: str, how_often: Mapping[str, float], scene: Scene, rng: np.random.Generator, used: Used) -> Facet:
    """What one thing looks like, or where it is."""
    (thing,) = _least_used(rng, [(i,) for i in range(len(scene.things))], used)
    return Facet(kind, (thing,), (_described(scene, thing, rng, how_often),))


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
    "object": partial(_single, "object", {"texture": 1.0, "size": 0.95}),
    "place": partial(_single, "place", {"place": 1.0, "texture": 0.7, "size": 0.3}),
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


# From a facet to a sentence, with synonyms and frames chosen at random: one facet has thousands of wordings.


def say(facet: Facet, rng: np.random.Generator) -> str:
    """A caption that says the facet and no more."""
    words = _SPEAKERS[facet.kind](facet, rng)
    return words[0].upper() + words[1:] + "."


def _say_object(facet: Facet, rng: np.random.Generator) -> str:
    (description,) = facet.about
    noun, _ = _word(rng, NOUNS[description.shape])
    looks = _joined([adjective for adjective in _adjectives(description, rng).values() if adjective])
    return choose(rng, OBJECT_FRAMES).format(a=_phrase(description, rng), noun=noun, looks=looks)


def _say_place(facet: Facet, rng: np.random.Generator) -> str:
    (description,) = facet.about
    assert description.place is not None
    where = choose(rng, PLACE_PHRASES[description.place])
    return choose(rng, PLACE_FRAMES).format(a=_phrase(description, rng), where=where)


def _say_relation(facet: Facet, rng: np.random.Generator) -> str:
    assert facet.relation is not None
    frames = RELATION_FRAMES if facet.kind == "relation" else SIZE_FRAMES
    a, b = _phrases(facet.about, rng, choose(rng, ("a", "a", "the")))
    return choose(rng, frames).format(a=a, b=b, relation=choose(rng, RELATION_PHRASES[facet.relation]))


def _say_count(facet: Facet, rng: np.random.Generator) -> str:
    assert facet.counted is not None
    assert facet.count is not None
    many = choose(rng, COLLECTIVES.get(facet.count, NUMBERS[facet.count : facet.count + 1]))
    words = {"n": NUMBERS[facet.count], "many": many, "group": _group(facet.counted, rng)}
    count = choose(rng, COUNT_FRAMES).format(**words)
    if not facet.about:
        return count
    noun = None if facet.counted.shape is None else "one"
    members = _phrases(facet.about, rng, "a", silent=facet.counted.record(), noun=noun)
    frames = ALL_MEMBERS if len(members) == facet.count else SOME_MEMBERS
    return choose(rng, frames).format(count=count, a=_joined(members))


def _say_alike(facet: Facet, rng: np.random.Generator) -> str:
    first, second = facet.about
    name = "colour" if first.colour is not None and first.colour == second.colour else "texture"
    same = _adjectives(Description(**{name: getattr(first, name)}), rng)[name]
    a, b = _phrases(facet.about, rng, choose(rng, ("a", "the")), silent=(name,))
    return choose(rng, ALIKE_FRAMES).format(a=a, b=b, same=same)


def _say_background(facet: Facet, rng: np.random.Generator) -> str:
    assert facet.background is not None
    ground = choose(rng, BACKGROUND_PHRASES[facet.background])
    a = _joined(_phrases(facet.about, rng, "a"))
    if facet.count is None:
        return choose(rng, BACKGROUND_FRAMES).format(a=a, ground=ground)
    words = {"n": NUMBERS[facet.count], "group": _group(Description(), rng), "a": a, "ground": ground}
    return choose(rng, NUMBERED_FRAMES).format(**words)


_SPEAKERS = {
    "object": _say_object,
    "place": _say_place,
    "relation": _say_relation,
    "size": _say_relation,
    "count": _say_count,
    "alike": _say_alike,
    "background": _say_background,
}


def _phrases(
    about: Sequence[Description],
    rng: np.random.Generator,
    article: str,
    silent: Collection[str] = (),
    noun: str | None = None,
) -> list[str]:
    """A phrase for each thing. The second of two that are described alike is "another"."""
    other = {"a": "another", "the": "the other"}[article]
    articles = [other if description in about[:number] else article for number, description in enumerate(about)]
    return [_phrase(one, rng, first, silent, noun) for one, first in zip(about, articles, strict=True)]


def _phrase(
    description: Description,
    rng: np.random.Generator,
    article: str = "a",
    silent: Collection[str] = (),
    noun: str | None = None,
) -> str:
    """ "a small striped blue star": a thing with its adjectives, the texture at times after the noun. The place, and
    what is silent, are left out.
    """
    if noun is None:
        noun, _ = _word(rng, NOUNS[description.shape])
    words = _around(description, noun, rng, silent)
    return f"{'an' if article == 'a' and words[0] in 'aeiou' else article} {words}"


def _group(description: Description, rng: np.random.Generator) -> str:
    """ "striped blue stars"."""
    _, nouns = _word(rng, NOUNS[description.shape])
    return _around(description, nouns, rng)


def _around(description: Description, noun: str, rng: np.random.Generator, silent: Collection[str] = ()) -> str:
    adjectives = {name: word for name, word in _adjectives(description, rng).items() if name not in silent}
    after = ""
    if adjectives.get("texture") and noun != "one" and chance(rng, 0.3):  # not "a one with stripes"
        assert description.texture is not None
        after = choose(rng, TEXTURE_PHRASES[description.texture])
        adjectives["texture"] = ""
    return " ".join(word for word in (*adjectives.values(), noun, after) if word)


def _adjectives(description: Description, rng: np.random.Generator) -> dict[str, str]:
    """The adjectives in their English order; "" for what is left open."""
    words = {"size": SIZE_WORDS, "texture": TEXTURE_WORDS, "colour": COLOUR_WORDS}
    said = description.record()
    return {name: _word(rng, table[said[name]]) if name in said else "" for name, table in words.items()}


def _word(rng: np.random.Generator, words: Sequence[T]) -> T:
    """One of several words; the first is as common as all others together."""
    return words[0] if chance(rng, 0.5) else choose(rng, words[1:])


def _joined(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]
