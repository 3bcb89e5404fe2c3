"""A reader of captions that knows English and geometry, but not `maxmatch`: text -> claims -> true of a scene or not.

It works on the records of metadata.jsonl, and measures places and relations itself.
"""

import math
import re
from dataclasses import dataclass, field
from itertools import permutations

# Every phrase and what it says. One that is not here is not understood, and fails the test.
SAYS: dict[str, tuple[str, str]] = {}
SEVERAL: set[str] = set()  # nouns in the plural
for kind, table in {
    "shape": {  # one, several, one, several, …
        "circle": "circle circles disc discs round-shape round-shapes",
        "square": "square squares block blocks box boxes",
        "triangle": "triangle triangles pyramid pyramids wedge wedges",
        "star": "star stars five-pointed-star five-pointed-stars pentagram pentagrams",
        "heart": "heart hearts valentine valentines love-heart love-hearts",
        "cross": "cross crosses plus-sign plus-signs plus pluses",
        "ring": "ring rings hoop hoops doughnut doughnuts",
        "frame": "frame frames picture-frame picture-frames hollow-square hollow-squares",
        "crescent": "crescent crescents moon moons sickle sickles",
        "diamond": "diamond diamonds rhombus rhombuses lozenge lozenges",
        "arrow": "arrow arrows pointer pointers direction-sign direction-signs",
        "flower": "flower flowers blossom blossoms daisy daisies",
        "anything": "shape shapes thing things object objects figure figures item items",
    },
    "colour": {
        "red": "red crimson scarlet",
        "orange": "orange tangerine apricot",
        "yellow": "yellow golden lemon-yellow",
        "green": "green emerald leaf-green",
        "blue": "blue cobalt ultramarine",
        "purple": "purple violet plum-coloured",
        "pink": "pink rosy salmon-pink",
        "brown": "brown chestnut chocolate-brown",
        "black": "black jet-black ebony",
        "white": "white ivory chalk-white",
        "grey": "grey gray silver",
        "turquoise": "turquoise teal cyan",
    },
    "size": {
        "small": "small little tiny",
        "medium": "medium-sized mid-sized middling",
        "large": "large big huge",
    },
    "texture": {
        "plain": "plain solid unpatterned",
        "striped": "striped stripy banded",
        "dotted": "dotted spotted polka-dotted",
        "checked": "checked chequered checkered",
        "faded": "faded shaded fading",
    },
    "texture after": {
        "plain": "without-any-pattern in-one-tone",
        "striped": "with-stripes with-bands-across",
        "dotted": "with-dots covered-in-spots",
        "checked": "with-a-checked-pattern with-checks-all-over",
        "faded": "with-a-gradient fading-towards-the-bottom",
    },
    "place": {  # row and column
        "0 0": "in-the-top-left-corner at-the-top-left in-the-upper-left",
        "0 1": "at-the-top-in-the-middle at-the-top-centre in-the-middle-of-the-upper-edge",
        "0 2": "in-the-top-right-corner at-the-top-right in-the-upper-right",
        "1 0": "halfway-up-on-the-left in-the-middle-of-the-left-side at-the-centre-left",
        "1 1": "in-the-middle in-the-centre at-the-very-centre-of-the-picture",
        "1 2": "halfway-up-on-the-right in-the-middle-of-the-right-side at-the-centre-right",
        "2 0": "in-the-bottom-left-corner at-the-bottom-left in-the-lower-left",
        "2 1": "at-the-bottom-in-the-middle at-the-bottom-centre in-the-middle-of-the-lower-edge",
        "2 2": "in-the-bottom-right-corner at-the-bottom-right in-the-lower-right",
    },
    "background": {
        "sky": "a-cloudy-sky the-daytime-sky a-bright-sky-with-clouds",
        "night": "a-night-sky the-dark-night a-starry-night",
        "sunset": "a-sunset an-evening-sky the-glow-of-dusk",
        "grass": "a-lawn a-meadow a-field-of-grass",
        "sand": "sand a-sandy-beach a-desert",
        "snow": "snow a-snowy-field falling-snow",
        "water": "water the-sea the-waves-of-a-lake",
        "brick": "a-brick-wall a-wall-of-bricks brickwork",
        "wood": "wooden-boards planks-of-wood a-wooden-floor",
        "paper": "graph-paper a-sheet-of-squared-paper a-page-with-a-grid",
        "cream": "a-cream-wall a-cream-background a-beige-wall",
        "lavender": "a-lavender-wall a-lavender-background a-lilac-wall",
    },
    "relation": {
        "left": "to-the-left-of left-of on-the-left-hand-side-of",
        "right": "to-the-right-of right-of on-the-right-hand-side-of",
        "up": "above over higher-up-than",
        "down": "below under beneath lower-down-than",
        "inside": "inside within enclosed-by surrounded-by",
        "around": "around surrounding enclosing",
        "near": "next-to beside close-to near",
        "larger": "larger-than bigger-than of-greater-size-than",
        "smaller": "smaller-than tinier-than of-lesser-size-than",
        "equal": "as-large-as the-same-size-as just-as-big-as",
    },
    "number": {
        "2": "two a-pair-of a-couple-of",
        "3": "three a-trio-of",
        "4": "four a-quartet-of",
        "5": "five",
        "6": "six",
    },
    "article": {"": "a an the another the-other"},
    "pronoun": {"": "one"},
    "nothing": {
        "": "there-is there-are we-see here-is the-picture-shows one-can-make-out one-can-count that-is one-of-them "
        "among-them including namely and is are both look to-find what-you-see has-its-place looks "
        "just-as as so in-front-of in-front against with behind before the-background-is the-foreground"
    },
}.items():
    for value, phrases in table.items():
        for number, phrase in enumerate(phrases.split()):
            SAYS[phrase.replace("-", " ")] = (kind, value)
            if kind == "shape" and number % 2:
                SEVERAL.add(phrase.replace("-", " "))
_LONGEST = max(len(phrase.split()) for phrase in SAYS)


@dataclass
class Claims:
    """What a caption says. A thing is {attribute: value}."""

    things: list[dict[str, str]] = field(default_factory=list)
    loose: dict[str, str] = field(default_factory=dict)
    """Said of no thing in particular: "both … are striped"."""
    relation: str | None = None
    background: str | None = None
    count: int | None = None
    kind_counted: dict[str, str] | None = None


def read(caption: str) -> Claims:
    """The claims of a caption. Raises KeyError on what it does not understand."""
    words = re.sub(r"[.,:-]", " ", caption.lower()).split()
    claims, pending, start = Claims(), {}, 0
    while start < len(words):
        for length in range(min(_LONGEST, len(words) - start), 0, -1):
            phrase = " ".join(words[start : start + length])
            if phrase in SAYS:
                break
        kind, value = SAYS[phrase]
        start += length
        if kind in ("colour", "size", "texture"):
            assert kind not in pending, f"{kind} said twice: {caption}"
            pending[kind] = value
        elif kind == "shape" or (kind == "pronoun" and pending):
            thing = {**pending, **({"shape": value} if kind == "shape" and value != "anything" else {})}
            pending = {}
            counting = claims.count is not None and claims.kind_counted is None
            assert (phrase in SEVERAL) == counting, f"one or several? {caption}"
            if counting:
                claims.kind_counted = thing
            else:
                claims.things.append(thing)
        elif kind == "texture after":
            last = claims.things[-1] if claims.things else claims.kind_counted
            assert last is not None
            assert "texture" not in last, caption
            last["texture"] = value
        elif kind == "place":
            claims.loose["place"] = value
        elif kind == "number":
            claims.count = int(value)
        elif kind in ("relation", "background"):
            assert getattr(claims, kind) is None, caption
            setattr(claims, kind, value)
        if kind in ("article", "number", "background", "relation"):  # what came before belongs to nothing that follows
            claims.loose.update(pending)
            pending = {}
    claims.loose.update(pending)
    return claims


def is_true(claims: Claims, scene: dict) -> bool:
    """Whether all claims hold at once, for some choice of different things."""
    things = scene["things"]
    if claims.background not in (None, scene["background"]):
        return False
    if claims.count is not None and claims.count != sum(fits(claims.kind_counted or {}, thing) for thing in things):
        return False
    # "two striped shapes, a star and a ring": the star and the ring are among those counted
    # (unless it is the number of all things, of which everything is one).
    common = {**(claims.kind_counted or {}), **claims.loose}
    assert not any(common.get(name, value) != value for said in claims.things for name, value in said.items())
    return any(
        all(fits({**common, **said}, thing) for said, thing in zip(claims.things, chosen, strict=True))
        and (claims.relation is None or stands(claims.relation, *chosen))
        for chosen in permutations(things, len(claims.things))
    )


def fits(said: dict[str, str], thing: dict) -> bool:
    place = f"{math.floor(thing['y'] * 3)} {math.floor(thing['x'] * 3)}"
    return all((place if name == "place" else thing[name]) == value for name, value in said.items())


def stands(relation: str, a: dict, b: dict) -> bool:
    """Measured from the middles and radii alone."""
    ratio = a["radius"] / b["radius"]
    if relation in ("larger", "smaller", "equal"):
        return {"larger": ratio > 1.25, "smaller": ratio < 0.8, "equal": 0.8 < ratio < 1.25}[relation]
    apart = math.dist((a["x"], a["y"]), (b["x"], b["y"]))
    if apart < max(a["radius"], b["radius"]):
        return relation == ("inside" if ratio < 1 else "around")
    if relation == "near":
        return apart <= a["radius"] + b["radius"] + 0.1
    bearing = math.degrees(math.atan2(b["y"] - a["y"], b["x"] - a["x"]))  # 0: b is to the right, 90: b is below
    wanted = {"left": 0, "up": 90, "right": 180, "down": -90}.get(relation)
    return wanted is not None and abs((bearing - wanted + 180) % 360 - 180) <= 45 + 1e-9
