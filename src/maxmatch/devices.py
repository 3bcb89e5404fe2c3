"""The device that a user names, or the best that there is."""

import torch


def chosen_device(name: str | torch.device | None = None) -> torch.device:
    """A device by its name; without one a GPU where there is one, else the CPU. One that is not there is refused."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: expected cpu, cuda, cuda:1 … or mps, got {name!r}.") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {name}: torch sees no GPU here. `maxmatch doctor` says why; cpu works anywhere.")
        count = torch.cuda.device_count()
        if device.index is not None and device.index >= count > 0:
            raise ValueError(f"device {name}: there are {count}, cuda:0 to cuda:{count - 1}. Name one of them.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device {name}: torch sees no Apple GPU here. Leave --device out, or say cpu.")
    return device
