"""The words and phrases for everything in the world, the common ones first, and the frames of sentences."""

from collections.abc import Mapping

Words = Mapping[str, tuple[str, ...]]

NOUNS: Mapping[str | None, tuple[tuple[str, str], ...]] = {  # one, several; None: whatever its shape
    None: (
        ("shape", "shapes"),
        ("thing", "things"),
        ("object", "objects"),
        ("figure", "figures"),
        ("item", "items"),
    ),
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
