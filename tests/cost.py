"""What a computation costs."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Cost(TorchDispatchMode):
    """Counts the operations that torch carries out and the entries of the largest tensor they make."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, Tensor):
                self.largest = max(self.largest, made.numel())
        return out
