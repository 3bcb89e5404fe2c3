"""What formats of pictures with captions can hold, and the refusal of what they cannot."""

from collections.abc import Collection, Mapping

from maxmatch.data.items import IMAGE, TEXT, Split


def check_pairs(splits: Mapping[str, Split], names: Collection[str], what: str) -> None:
    """Refuse splits of other names, modalities beside pictures and captions, and all but one picture a group.

    what: the format, for the message.
    """
    if not splits:
        raise ValueError(f"{what}: no split to write.")
    for name, split in splits.items():
        if name not in names:
            raise ValueError(f"split {name!r}: {what} knows {', '.join(names)}. Rename it, or leave it out.")
        if not split.size:
            raise ValueError(f"split {name!r} is empty. Leave it out.")
        if set(split.items) != {IMAGE, TEXT}:
            raise ValueError(
                f"split {name!r} has {', '.join(split.items)}: {what} holds {IMAGE} and {TEXT}, both and nothing else. "
                "Choose another format."
            )
        if len(split[IMAGE]) != split.size:
            raise ValueError(
                f"split {name!r} has {len(split[IMAGE])} images in {split.size} groups: {what} holds one a group. "
                "Choose another format."
            )
        for caption, text in zip(split[TEXT].ids, split[TEXT].values, strict=True):
            if not text.strip():
                raise ValueError(f"split {name!r}, caption {caption!r} is empty: leave it out, or write one.")
