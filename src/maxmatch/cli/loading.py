"""The model that a command names, on the device that it is to work on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from maxmatch.shipped import SHIPPED, shipped_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maxmatch.model import SetEncoder
    from maxmatch.search.identity import Model
    from maxmatch.search.index import SetIndex


Loaded = TypeVar("Loaded", bound="Model")
Runtime = Literal["auto", "torch", "onnx"]
RuntimeOption = Annotated[
    Runtime,
    typer.Option(
        help="What runs the model. auto: onnx where its folder has graphs (maxmatch export --onnx), but torch to read "
        "a folder of photos for the first time where it sees a GPU. Without graphs: torch, words by NumPy if possible."
    ),
]


def load_for_search(name: str, device: str | None, runtime: Runtime = "auto", many: bool = False) -> "Model":
    """A model that encodes queries and photos: by ONNX Runtime where its folder has graphs; else texts in NumPy, where
    it is a model of which that is known, and pictures as `load_model`. So torch, which takes longer to load than a
    search takes, is loaded for new photos only. A device other than the CPU is torch's.

    many: so much is to be encoded that a GPU is worth loading torch for, unless the user says what to take.
    """
    from importlib.util import find_spec

    from maxmatch.onnx_folder import FILE

    folder = Path(_checkpoint(name)).expanduser()
    folder = folder if folder.is_dir() else shipped_model(name) or folder
    if runtime == "auto":
        there = (folder / FILE).is_file() and device in (None, "cpu") and find_spec("onnxruntime") is not None
        if not there and device in (None, "cpu"):
            from maxmatch.quick import quick_encoder

            return quick_encoder(folder, lambda: load_model(name, device)) or load_model(name, device)
        if not there:
            return load_model(name, device)
        if many and device is None and _has_gpu():
            return load_model(name, device)
    elif runtime == "torch":
        return load_model(name, device)
    if device not in (None, "cpu"):
        raise typer.BadParameter(f"--runtime onnx works on the CPU, not on {device}: leave one of the two out")
    from maxmatch.onnx_runtime import OnnxEncoder

    return OnnxEncoder.from_folder(folder)


def _has_gpu() -> bool:
    """Whether torch is installed, and sees a GPU: it alone can tell."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return False
    from maxmatch.devices import chosen_device

    return chosen_device().type != "cpu"


def check_modality(name: str, towers: "Iterable[str]", modality: str | None) -> None:
    """Refuse a model that has no tower for a modality."""
    if modality is not None and modality not in towers:
        raise ValueError(f"{name}: this model reads {', '.join(towers)}, not {modality}. Choose --modality.")


def load_model(name: str, device: str | None, modality: str | None = None) -> "SetEncoder":
    """A model, on a GPU where there is one unless told otherwise. name: a checkpoint's folder, a run's, whose best
    epoch is taken, a model that ships, or a name on the hub. modality: one that it has to have a tower for.
    """
    from maxmatch.devices import chosen_device
    from maxmatch.model import SetEncoder

    model = SetEncoder.from_pretrained(_checkpoint(name), device=chosen_device(device))
    check_modality(name, model.towers, modality)
    return model


def default_model(named_by: str = "--model") -> str:
    """Where the model lies that is taken when none is named."""
    folder = shipped_model(SHIPPED)
    if folder is None:
        raise ValueError(
            f"{SHIPPED}: missing; the model that ships with MaxMatch is not part of this installation. "
            f"Name another one ({named_by}), or install MaxMatch again."
        )
    return str(folder)


def located(name: str) -> str:
    """Where a model is, for a note that others read: the whole path of a folder, or the name of a shipped one, which
    may lie elsewhere tomorrow, or on the hub.
    """
    folder = Path(_checkpoint(name)).expanduser()
    if not folder.is_dir():
        return name
    return folder.name if folder.resolve() == shipped_model(folder.name) else str(folder.resolve())


def _checkpoint(name: str) -> str:
    folder = Path(name).expanduser()
    return str(folder / "best") if (folder / "recipe.yaml").is_file() else name


def _noted(name: str) -> str:
    """What `located` has noted: a shipped model is meant even where a folder of its name lies here."""
    return str(shipped_model(name) or name)


def model_of(
    index: "SetIndex",
    folder: Path,
    name: str | None,
    device: str | None,
    load: "Callable[[str, str | None], Loaded]" = load_model,  # type: ignore[assignment]  # which makes it SetEncoder
) -> "Loaded":
    """The model of an index, where it was when the index was made, or where the user says; another one is refused.
    load: `load_model` or `load_for_search`.
    """
    from maxmatch.search.identity import model_identity
    from maxmatch.search.origin import read_origin

    origin = read_origin(folder.expanduser())
    noted = index.manifest.model
    if name is None and origin is None:
        shipped = shipped_model(SHIPPED)
        found = load(str(shipped), device) if shipped is not None and noted is not None else None
        if found is None or model_identity(found) != noted:
            raise ValueError(f"{folder}: the index does not say which model made its sets. Name it with --model.")
        return found
    wanted = name or (_noted(origin.model) if origin else "")
    try:
        model = load(wanted, device)
    except (OSError, ValueError) as error:
        if name is not None:
            raise
        raise ValueError(
            f"{folder}: the model that made its sets was {wanted}, and cannot be loaded ({error}) "
            "If it has moved, say where it is with --model."
        ) from error
    if noted is not None and model_identity(model) != noted:
        where = f" (then in {origin.model})" if origin and origin.model != wanted else ""
        raise ValueError(
            f"{wanted}: another model than the one that made the sets of {folder}{where}: scores between the two mean "
            "nothing. Name the right one with --model, or encode again with this one."
        )
    return model
