"""What a camera, a program or a person wrote into a photo's file: its camera and its place, as texts."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from PIL import Image, ImageFile

_MAKE, _MODEL = 0x010F, 0x0110
_IPTC_PLACE = ((2, 92), (2, 90), (2, 95), (2, 101))  # sublocation, city, province, country


def camera_of(notes: Mapping[int, Any]) -> str | None:
    """The maker and the model by EXIF: "Canon EOS 5D", once where the model names its maker."""
    make, model = text_of(notes.get(_MAKE)), text_of(notes.get(_MODEL))
    if make and model and not model.lower().startswith(make.split()[0].lower()):
        return f"{make} {model}"
    return model or make


def place_of_photo(image: Image.Image) -> str | None:
    """The place that a person or program wrote into the file (IPTC): "Colosseum, Rome, Lazio, Italy". Notes that make
    no sense count as none.
    """
    from PIL import IptcImagePlugin  # here: a search that reads no photo starts sooner

    notes: Mapping[Any, Any] = {}
    with suppress(Exception):  # what damaged notes make Pillow raise has no common class
        notes = (IptcImagePlugin.getiptcinfo(image) if isinstance(image, ImageFile.ImageFile) else None) or {}
    values = (notes.get(key) for key in _IPTC_PLACE)
    parts = [text_of(value) for value in values if isinstance(value, bytes)]
    return ", ".join(dict.fromkeys(part for part in parts if part)) or None


def text_of(value: Any) -> str | None:
    """A note as a text of at most 120 printable characters; None for others and for empty ones."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        return None
    return "".join(one for one in text if one.isprintable()).strip()[:120] or None
