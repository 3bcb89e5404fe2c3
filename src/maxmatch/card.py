"""The model card that a checkpoint carries as README.md."""

from maxmatch.model import SetEncoder

_CARD = """---
library_name: maxmatch
tags: [maxmatch, cross-modal-retrieval, set-embeddings]
---
# A MaxMatch model

Encodes each item as a set of K unit vectors of width D = {width}. Two sets are compared by `{similarity}`.

| modality | encoder | head | K | parameters |
|---|---|---|---|---|
{towers}

{pairing}

```python
from maxmatch import SetEncoder

model = SetEncoder.from_pretrained("path/to/this/folder")
{usage}
```

{mark}
{notes}
"""
_MARK = "<!-- notes -->"
_NO_NOTES = "What it was trained on, and how well it retrieves, is for its maker to add here."


def notes_of(card: str) -> str:
    """The notes in a card: what stands below their mark, where someone wrote anything."""
    notes = card.partition(_MARK)[2].strip()
    return "" if notes == _NO_NOTES else notes


def model_card(model: SetEncoder, notes: str = "") -> str:
    """What the model is and how to use it, in Markdown. notes: what else is to be said; they are kept when the model is
    read and saved again.
    """
    config = model.config
    assert config is not None
    rows = [
        f"| {name} | {tower.encoder.name} | {tower.head.name} | {tower.set_size} | "
        f"{sum(parameter.numel() for parameter in model.tower(name).parameters()):,} |"
        for name, tower in config.towers.items()
    ]
    usage = [f'{name}s = model.encode("{name}", items)  # (n, {k}, {model.dim})' for name, k in model.set_sizes.items()]
    if len(config.towers) > 1:
        first, second = list(config.towers)[:2]
        usage.append(f"scores = model.similarity({first}s, {second}s)")
    pairing = "Which slots of two modalities meet was not measured."
    if config.pairing is not None:
        met = ", ".join(f"{i}–{j}" for i, j in enumerate(config.pairing) if j >= 0)
        pairing = f"Slots that meet: {met}; so matched in {config.pairing_stability or 0:.0%} of true pairs."
    return _CARD.format(
        width=model.dim,
        similarity=config.similarity,
        towers="\n".join(rows),
        pairing=pairing,
        usage="\n".join(usage),
        mark=_MARK,
        notes=notes.strip() or _NO_NOTES,
    )
