"""Which model made a set: its name in an index is a hash of its weights, so that no other model's sets come in."""

import hashlib

import torch

from maxmatch.model import SetEncoder


def model_identity(model: SetEncoder | str) -> str:
    """A hash of a model's weights; a string (a hash noted earlier, or the name of a foreign model) is given back."""
    if isinstance(model, str):
        if not model.strip():
            raise ValueError("model: expected a SetEncoder, its hash or a name, got an empty text.")
        return model
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_same_model(known: str | None, model: SetEncoder | str | None) -> None:
    """Refuse the sets of another model than an index was made for. What is not known is not compared."""
    if known is None or model is None:
        return
    given = model_identity(model)
    if given != known:
        raise ValueError(
            f"model: this index holds sets of the model {known[:16]}, got those of {given[:16]}: "
            "their vectors cannot be compared. Encode with that model, or make another index for this one."
        )


def slot_stability(model: SetEncoder) -> float | None:
    """How often slot i meets slot i in a true pair, as measured after training; None where it was not measured.

    0 where the slots meet in another order than their own: a flattened set then is of no use for search.
    """
    if model.config is None or model.config.pairing is None:
        return None
    aligned = model.config.pairing == list(range(len(model.config.pairing)))
    return model.config.pairing_stability if aligned else 0.0
