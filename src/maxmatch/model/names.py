"""Models by name: which folder a name stands for. Models that ship lie in `maxmatch/model/shipped`."""

from pathlib import Path

SHIPPED = "maxmatch-small"
"""The model that is taken where none is named."""
MODELS = Path(__file__).resolve().parent / "shipped"


def shipped_model(name: str) -> Path | None:
    """The folder of a model that ships, by its name; None for any other name, and where it was not installed."""
    return MODELS / name if name in shipped_names() else None


def shipped_names() -> list[str]:
    """The names of all models that ship."""
    return sorted(path.parent.name for path in MODELS.glob("*/config.json"))
