"""What a caption says about a picture, for machines: a facet, and whether it is true of a scene."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from maxmatch.data.scenes.world import Scene, Thing, holds

KINDS = ("object", "place", "relation", "size", "count", "alike", "background")


@dataclass(frozen=True)
class Description:
    """What is said of one thing; None is left open."""

    shape: str | None = None
    colour: str | None = None
    size: str | None = None
    texture: str | None = None
    place: str | None = None

    def record(self) -> dict[str, str]:
        """What is said, by name."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}

    def fits(self, thing: Thing) -> bool:
        """Whether all of it is true of the thing."""
        return (
            self.shape in (None, thing.shape)
            and self.colour in (None, thing.colour)
            and self.size in (None, thing.size)
            and self.texture in (None, thing.texture)
            and self.place in (None, thing.place)
        )


@dataclass(frozen=True)
class Facet:
    """What one caption says. All that is given must hold at once.

    about: there are different things that fit these descriptions, one for each.
    relation: the first of them stands in this relation to the second.
    count, counted: so many things, no more and no fewer, fit this description.
    background: what is behind.
    objects: which things of its own scene are meant, those of `about` first and in their order. Truth does not depend
    on it: a caption may be true of other scenes, and of its own in more than one way.
    """

    kind: str
    objects: tuple[int, ...]
    about: tuple[Description, ...] = ()
    relation: str | None = None
    count: int | None = None
    counted: Description | None = None
    background: str | None = None

    def record(self) -> dict[str, Any]:
        """The facet as it stands in metadata.jsonl. Every record has the same names."""
        return {
            "kind": self.kind,
            "objects": list(self.objects),
            "about": [description.record() for description in self.about],
            "relation": self.relation,
            "count": self.count,
            "counted": None if self.counted is None else self.counted.record(),
            "background": self.background,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Facet":
        """The facet that `record` was made of."""
        return cls(
            kind=record["kind"],
            objects=tuple(record["objects"]),
            about=tuple(Description(**description) for description in record["about"]),
            relation=record["relation"],
            count=record["count"],
            counted=None if record["counted"] is None else Description(**record["counted"]),
            background=record["background"],
        )


def caption_is_true(facet: Facet, scene: Scene) -> bool:
    """Whether a caption with this facet is true of the scene: the one it was written for, or any other."""
    if facet.background is not None and facet.background != scene.background:
        return False
    if facet.counted is not None and facet.count != sum(facet.counted.fits(thing) for thing in scene.things):
        return False
    relation = facet.relation
    return any(relation is None or holds(relation, scene, *chosen[:2]) for chosen in _fitting(facet.about, scene, ()))


def _fitting(about: tuple[Description, ...], scene: Scene, taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every choice of different things that fit the descriptions."""
    if len(taken) == len(about):
        yield taken
        return
    for number, thing in enumerate(scene.things):
        if number not in taken and about[len(taken)].fits(thing):
            yield from _fitting(about, scene, (*taken, number))
