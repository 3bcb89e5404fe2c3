"""Freezing the backbone of an encoder, wholly or its first stages, and undoing it."""

from collections import deque
from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Encoder = TypeVar("Encoder", bound="Freezable")


class Freezable(nn.Module):
    """An encoder on a backbone. While frozen, parameters get no gradient and BatchNorm keeps its statistics."""

    backbone: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self._frozen: list[nn.Parameter] = []
        self._fixed_norms: list[nn.Module] = []

    def freeze(self: Encoder, through: int | str | None = None) -> Encoder:
        """Freeze the whole backbone, or through a stage and all that comes before it.

        through: how many stages, 0 for only what comes before the first; or the name of the last module to freeze
        ("encoder.stages.2"). Takes the place of an earlier freeze.
        """
        self.unfreeze()
        parameters = (
            list(self.backbone.parameters()) if through is None else _parameters_through(self.backbone, through)
        )
        held = set(parameters)
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.requires_grad_(False)
                parameter.grad = None  # an optimiser would still step along an old one
                self._frozen.append(parameter)
        for module in self.backbone.modules():
            own = set(module.parameters())
            if isinstance(module, _BatchNorm) and (through is None or (own and own <= held)):
                self._fixed_norms.append(module)
        return self.train(self.training)

    def unfreeze(self: Encoder) -> Encoder:
        """Make trainable what `freeze` froze, and nothing else."""
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self._frozen, self._fixed_norms = [], []
        return self.train(self.training)

    def train(self: Encoder, mode: bool = True) -> Encoder:
        """As for any module, but BatchNorm stays in evaluation mode while frozen."""
        super().train(mode)
        for norm in self._fixed_norms:
            norm.eval()
        return self


def _parameters_through(backbone: nn.Module, through: int | str) -> list[nn.Parameter]:
    """The parameters of a module of the backbone and of all that was registered before it."""
    parameters = list(backbone.parameters())
    if isinstance(through, str):
        last = list(_module_named(backbone, through).parameters())[-1]
        return parameters[: _index(parameters, last) + 1]
    stages = _stages(backbone)
    if not 0 <= through <= len(stages):
        raise ValueError(f"through: the backbone has {len(stages)} stages, got {through}.")
    if through == 0:
        return parameters[: _index(parameters, next(stages[0].parameters()))]
    return parameters[: _index(parameters, list(stages[through - 1].parameters())[-1]) + 1]


def _index(parameters: list[nn.Parameter], wanted: nn.Parameter) -> int:
    return next(i for i, parameter in enumerate(parameters) if parameter is wanted)


def _module_named(backbone: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(backbone.named_modules())
    if name not in modules or not any(True for _ in modules[name].parameters()):
        children = ", ".join(name for name, _ in backbone.named_children())
        raise ValueError(f"through: the backbone has no part {name!r} with parameters; its parts are {children}.")
    return modules[name]


def _stages(backbone: nn.Module) -> nn.ModuleList:
    """The stages or layers of a backbone: the list of modules nearest to its root."""
    queue = deque([backbone])
    while queue:
        module = queue.popleft()
        if isinstance(module, nn.ModuleList) and len(module):
            return module
        queue.extend(module.children())
    raise ValueError("through: no list of stages found in the backbone. Name the last module to freeze instead.")
