"""What the routes share."""

import asyncio
from dataclasses import dataclass, field

from maxmatch.model import SetEncoder
from maxmatch.search.parts import parse_query
from maxmatch.server.errors import Refusal, not_found
from maxmatch.server.gallery import Gallery, Item
from maxmatch.server.metrics import Metrics
from maxmatch.server.querying import Part, Searcher
from maxmatch.server.schema import Asked, QueryPart
from maxmatch.server.security import Limits
from maxmatch.server.thumbnails import Thumbnails
from maxmatch.server.uploads import Uploads


@dataclass(frozen=True)
class Service:
    """The parts of a running server."""

    gallery: Gallery
    model: SetEncoder
    searcher: Searcher
    uploads: Uploads
    thumbnails: Thumbnails
    metrics: Metrics
    limits: Limits
    one_picture: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Pictures that come are decoded one at a time, so that many at once do not fill the memory."""

    def item(self, key: str) -> Item:
        """The item of a key; refused if there is none."""
        found = self.gallery.find(key)
        if found is None:
            raise not_found("There is no such picture in the index.")
        return found

    def parts(self, asked: Asked) -> list[Part]:
        """A query of GET as parts."""
        if asked.q and asked.q.strip():
            try:
                return [Part("text", text, weight, asked.slot) for text, weight in parse_query(asked.q)]
            except ValueError as error:
                raise Refusal(422, "invalid", str(error)) from None
        if asked.like:
            return [Part("item", self.item(asked.like).id, 1.0, asked.slot)]
        if asked.upload:
            self.uploads.get(asked.upload)
            return [Part("upload", asked.upload, 1.0, asked.slot)]
        return []

    def given_parts(self, given: list[QueryPart]) -> list[Part]:
        """A query of POST as parts."""
        parts = []
        for part in given:
            if part.text is not None:
                parts.append(Part("text", part.text, part.weight, part.slot))
            elif part.like is not None:
                parts.append(Part("item", self.item(part.like).id, part.weight, part.slot))
            else:
                assert part.upload is not None
                self.uploads.get(part.upload)
                parts.append(Part("upload", part.upload, part.weight, part.slot))
        parts = [part for part in parts if part.weight]
        if not any(part.weight > 0 for part in parts):
            raise Refusal(422, "invalid", "parts: expected at least one with a weight above zero.")
        return parts
