"""Why an item was found: what the slots of the query and of the item looked at, and which met which."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

from maxmatch.matching.assignment import maximal_assignment
from maxmatch.matching.similarity import SIMILARITIES
from maxmatch.model.encoder import Look, SetEncoder
from maxmatch.model.images import load_image
from maxmatch.model.inputs import PixelReader
from maxmatch.server.api_schema import Explained, ItemFacts, PairOut, PartExplained, Refusal, SlotsOut
from maxmatch.server.gallery import Gallery, Item
from maxmatch.server.pictures import LARGEST_SIDE, Uploads
from maxmatch.server.querying import QueryTerm, check_slot

_DIGITS = 5


class ModelView(NamedTuple):
    """A picture as the model sees it, and the part of it that it sees."""

    look: Look
    box: list[float]


def reads_pictures(model: SetEncoder) -> bool:
    """Whether the model takes pictures; features that were extracted beforehand cannot be had of a new one."""
    return "image" in model.towers and isinstance(model.tower("image").reader, PixelReader)


def explain(
    model: SetEncoder, gallery: Gallery, uploads: Uploads, similarity: str, item: Item, parts: Sequence[QueryTerm]
) -> Explained:
    """An item against each part of a query; without parts, where its slots look."""
    if not reads_pictures(model):
        raise Refusal(422, "no_pictures", "This model reads features, not pictures: there is nothing to look at.")
    seen = look_at(model, gallery.picture(item.id))
    explained = [_part(model, gallery, uploads, similarity, seen, part) for part in parts]
    return Explained(item=ItemFacts(**facts_of(item)), slots=_slots(seen), parts=explained)


def look_at(model: SetEncoder, source: Path | Image.Image) -> ModelView:
    """The set of a picture, and where on it each slot looked."""
    reader = model.tower("image").reader
    assert isinstance(reader, PixelReader)
    picture = load_image(source, at_least=LARGEST_SIDE // 2)
    left, top, right, bottom = reader.transform.box(picture.width, picture.height)
    box = [left / picture.width, top / picture.height, right / picture.width, bottom / picture.height]
    return ModelView(model.look("image", picture), [round(side, _DIGITS) for side in box])


def facts_of(item: Item) -> dict[str, Any]:
    """An item as it goes out: an `ItemFacts`, as plain values, for a page of results has hundreds of them."""
    facts = dict(vars(item))
    facts["version"] = f"{facts.pop('modified') or 0:x}"
    return facts


def _part(
    model: SetEncoder, gallery: Gallery, uploads: Uploads, similarity: str, item: ModelView, part: QueryTerm
) -> PartExplained:
    words: list[str] | None = None
    attention: Tensor | None = None
    picture: SlotsOut | None = None
    if part.kind == "text":
        look = model.look("text", part.value)
        label, words, attention = part.value, look.words or [], look.attention
    else:
        source = gallery.picture(part.value) if part.kind == "item" else uploads.get(part.value).picture
        seen = look_at(model, source)
        look, picture, label = seen.look, _slots(seen), "your picture" if part.kind == "upload" else "that picture"
    slots = list(range(len(look.vectors)))
    if part.slot is not None:
        check_slot(part.slot, len(slots))
        slots = [part.slot]
    vectors = look.vectors[slots]
    cosines = vectors @ item.look.vectors.T
    chosen = maximal_assignment(cosines).tolist()
    pairs = [
        PairOut(query_slot=slot, item_slot=partner, cosine=round(float(cosines[row, partner]), _DIGITS))
        for row, (slot, partner) in enumerate(zip(slots, chosen, strict=True))
        if partner >= 0
    ]
    return PartExplained(
        label=label,
        weight=part.weight,
        score=float(SIMILARITIES[similarity](vectors[None], item.look.vectors[None])),
        query_slots=slots,
        cosines=_rounded(cosines),
        pairs=pairs,
        words=words,
        word_attention=None if attention is None else _rounded(attention[slots]),
        picture=picture,
    )


def _slots(seen: ModelView) -> SlotsOut:
    attention = seen.look.attention
    grid = attention if attention.ndim == 3 else attention[:, None]
    return SlotsOut(attention=[_rounded(slot) for slot in grid], box=seen.box)


def _rounded(table: Tensor) -> list[list[float]]:
    return [[round(value, _DIGITS) for value in row] for row in table.tolist()]
