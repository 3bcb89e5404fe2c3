"""The model that a command names, on the device that it is to work on."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxmatch.model import SetEncoder
    from maxmatch.search.index import SetIndex


def load_model(name: str, device: str | None, modality: str | None = None) -> "SetEncoder":
    """A model, on a GPU where there is one unless told otherwise. name: a checkpoint's folder, a run's, whose best
    epoch is taken, or a name on the hub. modality: one that it has to have a tower for.
    """
    from maxmatch.devices import chosen_device
    from maxmatch.model import SetEncoder

    model = SetEncoder.from_pretrained(_checkpoint(name), device=chosen_device(device))
    if modality is not None and modality not in model.towers:
        raise ValueError(f"{name}: this model reads {', '.join(model.towers)}, not {modality}. Choose --modality.")
    return model


def located(name: str) -> str:
    """Where a model is, for a note that others read: the whole path of a folder, or the name on the hub."""
    folder = Path(_checkpoint(name)).expanduser()
    return str(folder.resolve()) if folder.is_dir() else name


def _checkpoint(name: str) -> str:
    folder = Path(name).expanduser()
    return str(folder / "best") if (folder / "recipe.yaml").is_file() else name


def model_of(index: "SetIndex", folder: Path, name: str | None, device: str | None) -> "SetEncoder":
    """The model of an index, where it was when the index was made, or where the user says; another one is refused."""
    from maxmatch.search.identity import model_identity
    from maxmatch.search.origin import read_origin

    origin = read_origin(folder.expanduser())
    if name is None and origin is None:
        raise ValueError(f"{folder}: the index does not say which model made its sets. Name it with --model.")
    wanted = name or (origin.model if origin else "")
    try:
        model = load_model(wanted, device)
    except (OSError, ValueError) as error:
        if name is not None:
            raise
        raise ValueError(
            f"{folder}: the model that made its sets was {wanted}, and cannot be loaded ({error}) "
            "If it has moved, say where it is with --model."
        ) from error
    noted = index.manifest.model
    if noted is not None and model_identity(model) != noted:
        where = f" (then in {origin.model})" if origin and origin.model != wanted else ""
        raise ValueError(
            f"{wanted}: another model than the one that made the sets of {folder}{where}: scores between the two mean "
            "nothing. Name the right one with --model, or encode again with this one."
        )
    return model
