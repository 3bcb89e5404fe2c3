"""What each caption is about, where the data say it: the facets of generated scenes."""

from typing import Any

from maxmatch.data.items import Split
from maxmatch.evaluation.encoding import EncodedSplit


def caption_facets(split: Split, encoded: EncodedSplit, pair: tuple[str, str] = ("image", "text")) -> list[str] | None:
    """The facet (its kind) of each encoded item of the second modality, where the data say it; else None.

    As in generated scenes: `facets` in the metadata of a picture lists them in the order of its captions.
    """
    pictures, captions = split[pair[0]], split[pair[1]]
    metadata = pictures.metadata
    if metadata is None or not any("facets" in known for known in metadata):
        return None
    starts, first = captions.starts, pictures.starts
    kinds: dict[str, str] = {}
    for group in range(split.size):
        place = int(first[group])
        listed = metadata[place].get("facets")
        span = range(int(starts[group]), int(starts[group + 1]))
        if not isinstance(listed, list) or len(listed) < len(span):
            raise ValueError(
                f"{pair[0]} {pictures.ids[place]}: expected `facets`, one for each of its {len(span)} captions, "
                f"got {_shown(listed)}. Generate the scenes again, or remove `facets` everywhere."
            )
        kinds |= {str(captions.ids[number]): _kind(facet) for number, facet in zip(span, listed, strict=False)}
    ids = encoded.ids.get(pair[1], captions.ids)
    return [kinds[str(name)] for name in ids]


def _shown(listed: Any) -> str:
    return f"{len(listed)}" if isinstance(listed, list) else "none"


def _kind(facet: Any) -> str:
    return str(facet["kind"] if isinstance(facet, dict) else facet)
