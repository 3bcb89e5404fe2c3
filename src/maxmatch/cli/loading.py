"""The model that a command names, on the device that it is to work on."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxmatch.model import SetEncoder


def load_model(name: str, device: str | None, modality: str | None = None) -> "SetEncoder":
    """A model, on a GPU where there is one unless told otherwise. modality: one that it has to have a tower for."""
    import torch

    from maxmatch.model import SetEncoder

    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model = SetEncoder.from_pretrained(name, device=place)
    if modality is not None and modality not in model.towers:
        raise ValueError(f"{name}: this model reads {', '.join(model.towers)}, not {modality}. Choose --modality.")
    return model


def located(name: str) -> str:
    """Where a model is, for a note that others read: the whole path of a folder, or the name on the hub."""
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.is_dir() else name
