"""What a search gives."""

from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import JsonValue


class Match(NamedTuple):
    """A slot of the query, the slot of the item that it was matched with, and their cosine."""

    query_slot: int
    item_slot: int
    cosine: float


@dataclass(frozen=True)
class Hit:
    """An item that was found."""

    id: str
    score: float
    """By the index's similarity."""
    matches: list[Match] = field(default_factory=list)
    """The best one-to-one matching of the query's vectors with the item's, by query slot."""
    metadata: dict[str, JsonValue] = field(default_factory=dict)
