"""What a model's name means: a folder, a run, a model that ships (in `maxmatch/model/shipped`), or one on the hub."""

import logging
import re
from pathlib import Path

SHIPPED = "maxmatch-small"
"""The model that is used where none is named."""
MODELS = Path(__file__).resolve().parent / "shipped"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FORMAT = "maxmatch.SetEncoder"  # of a checkpoint: what its config.json begins with
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_log = logging.getLogger("maxmatch")


class CheckpointError(ValueError):
    """A folder that is not a checkpoint of MaxMatch, or a damaged one."""


def model_folder(name: str | Path) -> Path:
    """The folder of a model: a local one (`local_model`), or one fetched from the hub, which is logged.

    With HF_HUB_OFFLINE set, only what was fetched before is used.
    """
    folder = local_model(name)
    if folder is not None:
        return folder
    if isinstance(name, Path) or not is_hub_name(name):
        known = ", ".join(shipped_names()) or f"none: this installation lacks {SHIPPED}"
        raise FileNotFoundError(
            f"{name}: no such folder. Give the folder of a checkpoint or a run, a model that ships ({known}), "
            "or 'organisation/name' on the hub."
        )
    return _fetched(name)


def local_model(name: str | Path) -> Path | None:
    """The folder of a model on this machine: a checkpoint's own, a run's best epoch, or that of a model that ships.

    None where the name is none of these. A folder comes before a shipped model of the same name.
    """
    folder = Path(name).expanduser()
    if (folder / "recipe.yaml").is_file():
        best = local_model(folder / "best")
        if best is None:
            raise CheckpointError(f"{folder}: a run without best/: no epoch is done yet. Wait, or resume the run.")
        return best
    if folder.is_dir():
        return folder
    previous = previous_of(folder.resolve())
    if previous.is_dir():
        _log.warning("%s: a save was interrupted while replacing it; loading the previous one.", folder)
        return previous
    if folder.exists():
        raise CheckpointError(f"{folder}: a file. Give the checkpoint's folder; a pickle (.pt, .pth) is never read.")
    return shipped_model(str(name))


def name_to_record(name: str) -> str:
    """A model's name that is still valid elsewhere and later: the full path of a folder, or the name of a shipped
    model, whose folder moves with the installation, or of one on the hub. `recorded_model` reads it.
    """
    folder = local_model(name)
    if folder is None:
        return name
    return folder.name if folder.resolve() == shipped_model(folder.name) else str(folder.resolve())


def recorded_model(name: str) -> str:
    """What `name_to_record` recorded: a shipped model is meant even where a folder of its name exists."""
    return str(shipped_model(name) or name)


def shipped_model(name: str) -> Path | None:
    """The folder of a model that ships; None for any other name, and where it was not installed."""
    return MODELS / name if name in shipped_names() else None


def shipped_names() -> list[str]:
    """The names of all models that ship."""
    return sorted(path.parent.name for path in MODELS.glob(f"*/{CONFIG}"))


def is_hub_name(name: str) -> bool:
    """Whether a name has the form "organisation/name"."""
    return _HUB_NAME.fullmatch(name) is not None


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a config.json of ours."""
    try:
        return f'"{FORMAT}"' in (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def previous_of(folder: Path) -> Path:
    """Where the checkpoint in a folder is while another one replaces it."""
    return folder.with_name(f".{folder.name}.previous")


def _fetched(name: str) -> Path:
    from huggingface_hub import constants, snapshot_download

    offline = bool(constants.HF_HUB_OFFLINE)
    _log.warning("%s: no such folder here; %s", name, "looking in the hub's cache" if offline else "asking the hub")
    try:
        files = [CONFIG, WEIGHTS, CARD, "tokenizer*.json"]
        return Path(snapshot_download(name, allow_patterns=files, local_files_only=offline))
    except Exception as error:  # the hub's client raises its own, and those of what it is built on
        advice = "HF_HUB_OFFLINE is set: unset it to fetch" if offline else "Check the name and the connection"
        raise FileNotFoundError(
            f"{name}: no such folder here, and it could not be fetched from the hub ({type(error).__name__}). {advice}."
        ) from error
