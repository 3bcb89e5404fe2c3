"""A model as a folder that describes itself. Nothing in it is code or a pickle.

    config.json         what the model is made of (`ModelConfig`), pictures' preprocessing and slot pairing included
    model.safetensors   the weights, in float32 or, to halve it, in float16; or word vectors in int8 and all else in
                        float16
    tokenizer.json      of the text tower; with several of them tokenizer.<tower>.json
    README.md           a model card

A save happens completely or not at all: the folder is written under another name and then renamed. Between two renames
the old folder is called `.<name>.previous`, where `load` finds it if the process dies at that moment.
"""

import glob
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from maxmatch import __version__
from maxmatch.core.devices import chosen_device
from maxmatch.core.files import sync, usual_permissions
from maxmatch.core.manifest import manifest_text
from maxmatch.model.adaptation import merged_weights
from maxmatch.model.build import build_model
from maxmatch.model.config import HubText, ModelConfig
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.hub.two_towers import load_two_towers
from maxmatch.model.inputs import TextReader
from maxmatch.model.names import (
    CARD,
    CONFIG,
    FORMAT,
    SCALE,
    WEIGHTS,
    CheckpointError,
    checkpoint_file,
    hub_model_type,
    hub_parts,
    is_checkpoint,
    is_hub_name,
    model_folder,
    previous_of,
    read_config,
    restored,
)
from maxmatch.model.onnx_runtime import FILE as ONNX
from maxmatch.model.own_code import refuse_code_in
from maxmatch.model.text import load_tokenizer, read_tokenizer

__all__ = ["CONFIG", "WEIGHTS", "CheckpointError", "load", "model_card", "notes_of", "push", "save", "tokenizer_names"]

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
_LEAST_SCALE, _MOST_SCALE = torch.finfo(torch.float16).tiny, torch.finfo(torch.float16).max
_MARK = "<!-- notes -->"
_NO_NOTES = "What it was trained on, and how well it retrieves, is for its maker to add here."
_TOKENIZER = re.compile(r"tokenizer(\.\w+)?\.json")


def notes_of(card: str) -> str:
    """The notes in a card: the text below their mark, if someone wrote any."""
    notes = card.partition(_MARK)[2].strip()
    return "" if notes == _NO_NOTES else notes


def model_card(model: SetEncoder, notes: str = "") -> str:
    """What the model is and how to use it, in Markdown. notes: anything else, kept when the model is loaded and saved
    again.
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


def save(model: SetEncoder, folder: str | Path, dtype: torch.dtype | str | None = None, notes: str = "") -> Path:
    """`SetEncoder.save_pretrained`. Other files in the folder stay. notes: put below those that the model already has.

    A model in float16 or int8 has an identity of its own in an index, which stays the same when it is loaded and saved
    again.
    """
    kept_as = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if kept_as not in ("float32", "float16", "int8"):
        raise ValueError(f"dtype: expected float32 (the default), float16 or int8, got {dtype!r}.")
    if model.config is None:
        raise ValueError(
            "this model was put together from towers: without a config it could not be rebuilt. "
            "Build it from a ModelConfig with maxmatch.model.build.build_model."
        )
    folder = Path(folder).expanduser().resolve()
    previous, draft = previous_of(folder), folder.with_name(f".{folder.name}.saving-{os.getpid()}")
    if folder.exists() and not (is_checkpoint(folder) or (folder.is_dir() and not any(folder.iterdir()))):
        raise FileExistsError(f"{folder}: holds files, but not a checkpoint. Choose a new or empty folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        _discard(previous, folder)
    for left_behind in folder.parent.glob(f".{glob.escape(folder.name)}.saving-*"):
        shutil.rmtree(left_behind)
    try:
        draft.mkdir()
        _write(model, draft, kept_as, "\n\n".join(part.strip() for part in (model.notes, notes) if part.strip()))
        if folder.exists():
            os.rename(folder, previous)
        os.rename(draft, folder)
    except BaseException as error:
        if previous.exists() and not folder.exists():
            os.rename(previous, folder)
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError | SafetensorError):  # safetensors has its own for a full or read-only disk
            text = f"{folder}: the checkpoint could not be written ({error}). Free space or permit writing."
            code = getattr(error, "errno", None)
            raise (OSError(text) if code is None else OSError(code, text)) from error
        raise
    sync(folder.parent)
    _discard(previous, folder)
    return folder


def load(folder: str | Path, device: str | torch.device | None = None, allow: Collection[str] = ()) -> SetEncoder:
    """The model of a folder or of a name (`maxmatch.model.names.model_folder`), ready to encode.

    allow: code outside the package that may be imported (`maxmatch.model.own_code`).
    """
    device = None if device is None else chosen_device(device)
    folder = model_folder(folder)
    if hub_model_type(folder) is not None:
        return load_two_towers(folder).to(device).eval()
    config = read_config(folder)
    tokenizers = {}
    for tower, name in tokenizer_names(config).items():
        read = read_tokenizer if isinstance(config.towers[tower].encoder, HubText) else load_tokenizer
        tokenizers[tower] = read(checkpoint_file(folder, name))
    file = checkpoint_file(folder, WEIGHTS)
    try:
        weights = load_file(file)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: not a complete safetensors file ({error}). Copy it again.") from error
    weights = restored(weights)
    try:
        refuse_code_in(folder, config)
        model = build_model(config, tokenizers, pretrained=False, seed=0, allow=allow)
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    _check_fit(model.state_dict(), weights, folder)
    model.load_state_dict(weights)
    if (folder / CARD).is_file():
        model.notes = notes_of((folder / CARD).read_text(encoding="utf-8", errors="replace"))
    return model.to(device).eval()


def push(model: SetEncoder, name: str, private: bool = True) -> str:
    """Upload the model to the Hugging Face Hub as "organisation/name"; its address there."""
    from huggingface_hub import HfApi

    if not is_hub_name(name) or hub_parts(name) != (name, None):
        raise ValueError(f"name: expected 'organisation/name', got {name!r}.")
    hub = HfApi()
    with TemporaryDirectory() as place:
        folder = save(model, Path(place) / "model")
        hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message=f"MaxMatch {__version__}")
    return f"https://huggingface.co/{name}"


def _write(model: SetEncoder, draft: Path, dtype: str, notes: str) -> None:
    """Write all files of a checkpoint, and wait until they are on the disk."""
    assert model.config is not None
    config = model.config.model_copy(update={"weights_dtype": dtype})
    (draft / CONFIG).write_text(manifest_text(config, FORMAT) + "\n", encoding="utf-8")
    (draft / CARD).write_text(model_card(model, notes), encoding="utf-8")
    for tower, name in tokenizer_names(model.config).items():
        reader = model.tower(tower).reader
        assert isinstance(reader, TextReader)
        reader.tokenizer.save(str(draft / name))
    weights = {name: value.detach().cpu().contiguous() for name, value in merged_weights(model).items()}
    tables = {f"{name}.weight" for name, part in model.named_modules() if isinstance(part, torch.nn.Embedding)}
    tables &= weights.keys()
    eight = {name: _in_eight_bits(weights[name]) for name in tables} if dtype == "int8" else {}
    if dtype != "float32":
        weights = {name: _halved(value) for name, value in weights.items()}
    for name, (table, scale) in eight.items():
        weights |= {name: table, name + SCALE: scale}
    with usual_permissions(draft / WEIGHTS):
        save_file(weights, draft / WEIGHTS, metadata={"format": "pt"})
    for path in draft.iterdir():
        sync(path)
    sync(draft)


def _halved(value: Tensor) -> Tensor:
    """In half precision; unchanged if it is not float32, or too large: a variance of BatchNorm may exceed 65504."""
    if value.dtype != torch.float32:
        return value
    half = value.half()
    return half if bool(half.isfinite().all()) else value


def _in_eight_bits(
    table: Float[Tensor, "words width"],
) -> tuple[Int[Tensor, "words width"], Float[Tensor, " words"]]:
    """Each vector as integers from −127 to 127, and what to multiply them by. The products are exact, since a scale has
    no more bits than a float16: a table that was read and is written again stays the same.
    """
    scale = (table.abs().amax(1) / 127).half().float().clamp(_LEAST_SCALE, _MOST_SCALE)
    return (table / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def _discard(previous: Path, folder: Path) -> None:
    """Remove the folder that was replaced, after moving the files of others out of it."""
    if not previous.exists():
        return
    for path in previous.iterdir():
        # Graphs too: they belong to the weights that were replaced.
        ours = path.name in (CONFIG, WEIGHTS, CARD, ONNX) or _TOKENIZER.fullmatch(path.name) or path.suffix == ".onnx"
        if not ours and not (folder / path.name).exists():
            os.rename(path, folder / path.name)
    shutil.rmtree(previous)


def tokenizer_names(config: ModelConfig) -> dict[str, str]:
    """The tokenizer file of each text tower."""
    towers = [name for name, tower in config.towers.items() if tower.reads == "text"]
    return {name: "tokenizer.json" if len(towers) == 1 else f"tokenizer.{name}.json" for name in towers}


def _check_fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse weights whose names or shapes differ from the config's."""
    lines = [
        f"{name}: {_size(found[name])} in the file, {_size(value)} in the config"
        for name, value in expected.items()
        if name in found and found[name].shape != value.shape
    ]
    lines += [f"{name}: missing in the file" for name in expected.keys() - found.keys()]
    lines += [f"{name}: in the file, but not in the model" for name in found.keys() - expected.keys()]
    if lines:
        more = f"\n… and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise CheckpointError(
            f"{folder / WEIGHTS} does not fit {CONFIG}. The two, or the tokenizer, are of different models, or the set "
            "size (K) or width (D) in the config was changed:\n" + "\n".join(lines[:5]) + more
        )


def _size(value: Tensor) -> str:
    return "×".join(map(str, value.shape)) or "one number"
