"""From a facet to a sentence, with synonyms and frames chosen at random: one facet has thousands of wordings."""

from collections.abc import Collection, Sequence

import numpy as np

from maxmatch.data.scenes import lexicon
from maxmatch.data.scenes.draws import T, chance, choose
from maxmatch.data.scenes.facets import Description, Facet


def say(facet: Facet, rng: np.random.Generator) -> str:
    """A caption that says the facet and no more."""
    words = _SPEAKERS[facet.kind](facet, rng)
    return words[0].upper() + words[1:] + "."


def _object(facet: Facet, rng: np.random.Generator) -> str:
    (description,) = facet.about
    noun, _ = _word(rng, lexicon.NOUNS[description.shape])
    looks = _joined([adjective for adjective in _adjectives(description, rng).values() if adjective])
    return choose(rng, lexicon.OBJECT_FRAMES).format(a=_phrase(description, rng), noun=noun, looks=looks)


def _place(facet: Facet, rng: np.random.Generator) -> str:
    (description,) = facet.about
    assert description.place is not None
    where = choose(rng, lexicon.PLACE_PHRASES[description.place])
    return choose(rng, lexicon.PLACE_FRAMES).format(a=_phrase(description, rng), where=where)


def _relation(facet: Facet, rng: np.random.Generator) -> str:
    assert facet.relation is not None
    frames = lexicon.RELATION_FRAMES if facet.kind == "relation" else lexicon.SIZE_FRAMES
    a, b = _phrases(facet.about, rng, choose(rng, ("a", "a", "the")))
    return choose(rng, frames).format(a=a, b=b, relation=choose(rng, lexicon.RELATION_PHRASES[facet.relation]))


def _count(facet: Facet, rng: np.random.Generator) -> str:
    assert facet.counted is not None
    assert facet.count is not None
    many = choose(rng, lexicon.COLLECTIVES.get(facet.count, lexicon.NUMBERS[facet.count : facet.count + 1]))
    words = {"n": lexicon.NUMBERS[facet.count], "many": many, "group": _group(facet.counted, rng)}
    count = choose(rng, lexicon.COUNT_FRAMES).format(**words)
    if not facet.about:
        return count
    noun = None if facet.counted.shape is None else "one"
    members = _phrases(facet.about, rng, "a", silent=facet.counted.record(), noun=noun)
    frames = lexicon.ALL_MEMBERS if len(members) == facet.count else lexicon.SOME_MEMBERS
    return choose(rng, frames).format(count=count, a=_joined(members))


def _alike(facet: Facet, rng: np.random.Generator) -> str:
    first, second = facet.about
    name = "colour" if first.colour is not None and first.colour == second.colour else "texture"
    same = _adjectives(Description(**{name: getattr(first, name)}), rng)[name]
    a, b = _phrases(facet.about, rng, choose(rng, ("a", "the")), silent=(name,))
    return choose(rng, lexicon.ALIKE_FRAMES).format(a=a, b=b, same=same)


def _background(facet: Facet, rng: np.random.Generator) -> str:
    assert facet.background is not None
    ground = choose(rng, lexicon.BACKGROUND_PHRASES[facet.background])
    a = _joined(_phrases(facet.about, rng, "a"))
    if facet.count is None:
        return choose(rng, lexicon.BACKGROUND_FRAMES).format(a=a, ground=ground)
    words = {"n": lexicon.NUMBERS[facet.count], "group": _group(Description(), rng), "a": a, "ground": ground}
    return choose(rng, lexicon.NUMBERED_FRAMES).format(**words)


_SPEAKERS = {
    "object": _object,
    "place": _place,
    "relation": _relation,
    "size": _relation,
    "count": _count,
    "alike": _alike,
    "background": _background,
}


def _phrases(
    about: Sequence[Description],
    rng: np.random.Generator,
    article: str,
    silent: Collection[str] = (),
    noun: str | None = None,
) -> list[str]:
    """A phrase for each thing. The second of two that are described alike is "another"."""
    said: list[str] = []
    for number, description in enumerate(about):
        other = {"a": "another", "the": "the other"}[article]
        said.append(_phrase(description, rng, other if description in about[:number] else article, silent, noun))
    return said


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
        noun, _ = _word(rng, lexicon.NOUNS[description.shape])
    return _with_article(article, _around(description, noun, rng, silent))


def _group(description: Description, rng: np.random.Generator) -> str:
    """ "striped blue stars"."""
    _, nouns = _word(rng, lexicon.NOUNS[description.shape])
    return _around(description, nouns, rng)


def _around(description: Description, noun: str, rng: np.random.Generator, silent: Collection[str] = ()) -> str:
    adjectives = {name: word for name, word in _adjectives(description, rng).items() if name not in silent}
    after = ""
    if adjectives.get("texture") and noun != "one" and chance(rng, 0.3):  # not "a one with stripes"
        assert description.texture is not None
        after = choose(rng, lexicon.TEXTURE_PHRASES[description.texture])
        adjectives["texture"] = ""
    return " ".join(word for word in (*adjectives.values(), noun, after) if word)


def _adjectives(description: Description, rng: np.random.Generator) -> dict[str, str]:
    """The adjectives in their English order; "" for what is left open."""
    words = {"size": lexicon.SIZE_WORDS, "texture": lexicon.TEXTURE_WORDS, "colour": lexicon.COLOUR_WORDS}
    said = description.record()
    return {name: _word(rng, table[said[name]]) if name in said else "" for name, table in words.items()}


def _word(rng: np.random.Generator, words: Sequence[T]) -> T:
    """One of several words; the first is as common as all others together."""
    return words[0] if chance(rng, 0.5) else choose(rng, words[1:])


def _with_article(article: str, words: str) -> str:
    if article == "a" and words[0] in "aeiou":
        article = "an"
    return f"{article} {words}"


def _joined(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]
