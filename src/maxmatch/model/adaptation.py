"""A trained model adapted: sets in the place of its one vector, and which of its weights learn.

grow_sets       a model of one vector per item becomes one of sets, which start as K copies of that vector
freeze_but      the model that it was stays as it is, but for some blocks, or all of it
add_lora        low-rank adapters (LoRA, of `peft`) beside its linear layers; a checkpoint has them merged
checkpoint_gradients   activations are computed again for the gradient, in the place of being kept
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from maxmatch.model.build import build_head
from maxmatch.model.config import Residual, with_sets
from maxmatch.model.encoder import SetEncoder, Tower
from maxmatch.model.encoders.backbone import stages
from maxmatch.model.layers import ResidualSetHead

Opened = int | Literal["all"] | Sequence[str]
"""What of a model learns: its last n blocks, all of it, or parts by name."""
_ADAPTER = "lora"
_QUERIES_AND_VALUES = ("q_proj", "v_proj", "query", "value")  # as transformers names them


def grow_sets(model: SetEncoder, head: Residual, set_size: int, seed: int) -> SetEncoder:
    """The model with sets of `set_size` vectors in the place of its one, compared by maxmatch. Its parts are those of
    the model that is given. seed: of what is new; torch's global state is not changed.
    """
    assert model.config is not None
    config = with_sets(model.config, head, set_size)
    towers = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, tower in config.towers.items():
            mine = model.tower(name)
            grown: Any = build_head(tower.head, mine.encoder.local_width, config.width, set_size)
            grown.base = mine.head
            towers[name] = Tower(mine.encoder, grown, mine.reader)
    return SetEncoder(towers, config.similarity, config)


def freeze_but(tower: Tower, opened: Opened = ()) -> None:
    """Freeze the model that a tower was before it had sets, but for what is `opened` and for adapters.

    A name is that of a part of the encoder's backbone, or of the encoder. What does not learn stays in evaluation mode,
    without dropout. Of a tower without sets, everything is that model.
    """
    parts = list(_before(tower))
    learning = (
        [parameter for part in parts for parameter in part.parameters()]
        if opened == "all"
        else [parameter for block in _blocks(tower, opened) for parameter in block.parameters()]
    )
    for part in parts:
        part.requires_grad_(False)
    adapters = [value for part in parts for name, value in part.named_parameters() if _adapter(name)]
    for parameter in (*learning, *adapters):
        parameter.requires_grad_(True)
    tower.fixed = [fixed for part in parts for fixed in _without_learning(part)]
    tower.train(tower.training)


def _before(tower: Tower) -> Iterator[nn.Module]:
    assert isinstance(tower.encoder, nn.Module)
    yield tower.encoder
    head = tower.head.base if isinstance(tower.head, ResidualSetHead) else tower.head
    assert isinstance(head, nn.Module)
    yield head


def _blocks(tower: Tower, opened: int | Sequence[str]) -> list[nn.Module]:
    """The parts that are meant. ValueError names one that there is not."""
    encoder: Any = tower.encoder
    backbone: nn.Module = getattr(encoder, "backbone", encoder)
    if isinstance(opened, int):
        found = list(stages(backbone))
        if not 1 <= opened <= len(found):
            raise ValueError(f"train.unfreeze: the backbone has {len(found)} blocks, got {opened}.")
        return found[-opened:]
    named: dict[str, nn.Module] = {**dict(encoder.named_modules()), **dict(backbone.named_modules())}
    for name in opened:
        if name not in named or not name or not any(True for _ in named[name].parameters()):
            near = [other for other in named if other and other.count(".") < 2]
            raise ValueError(
                f"train.unfreeze: no part {name!r} with weights. There are, among others, {', '.join(near[:12])}."
            )
    return [named[name] for name in opened]


def _without_learning(module: nn.Module) -> Iterator[nn.Module]:
    """The largest parts with weights of which none learns."""
    weights = list(module.parameters())
    if weights and not any(weight.requires_grad for weight in weights):
        yield module
    elif weights:
        for child in module.children():
            yield from _without_learning(child)


def add_lora(
    tower: Tower, rank: int, alpha: float, dropout: float = 0.0, targets: Sequence[str] | None = None, seed: int = 0
) -> None:
    """W x becomes W x + (alpha / rank) · B A x for some linear layers of a tower's backbone; A and B of the given rank
    are learned, and B starts at 0. Freeze the rest with `freeze_but`.

    targets: how the names of those layers end; None: those that make queries and values.
    """
    backbone: Any = getattr(tower.encoder, "backbone", tower.encoder)
    layers = [name for name, part in backbone.named_modules() if isinstance(part, nn.Linear)]
    wanted = tuple(targets or _QUERIES_AND_VALUES)
    chosen = [name for name in layers if any(name == one or name.endswith(f".{one}") for one in wanted)]
    if not chosen:
        kinds = sorted({name.rpartition(".")[2] for name in layers})
        raise ValueError(
            f"train.lora.targets: no linear layer of {type(backbone).__name__} has a name that ends in "
            f"{', '.join(wanted)}. There are {', '.join(kinds) or 'none at all'}; or leave its tower out of "
            "train.lora.towers."
        )
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ImportError(f"train.lora needs the package peft: pip install 'maxmatch[lora]' ({error}).") from error
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=chosen)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, backbone, adapter_name=_ADAPTER)


def _adapter(name: str) -> bool:
    return ".lora_" in name


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights by their names without adapters: W + (alpha / rank) · B A in the place of each W that has one."""
    weights = model.state_dict()
    changed: dict[str, Tensor] = {}
    for name, part in model.named_modules():
        if hasattr(part, "get_delta_weight"):
            with torch.no_grad():
                changed[f"{name}.weight"] = part.get_base_layer().weight + part.get_delta_weight(_ADAPTER)
    plain = {name.replace(".base_layer.", "."): value for name, value in weights.items() if not _adapter(name)}
    return plain | changed if changed else weights


def checkpoint_gradients(model: SetEncoder) -> None:
    """Let the backbones of transformers keep no activations within a block, but compute them again: less memory, more
    time. ValueError where there is no such backbone.
    """
    backbones: list[Any] = [getattr(model.tower(name).encoder, "backbone", None) for name in model.towers]
    able = [backbone for backbone in backbones if getattr(backbone, "supports_gradient_checkpointing", False)]
    if not able:
        raise ValueError("train.gradient_checkpointing: only backbones of transformers do so, and the model has none.")
    for backbone in able:
        new = getattr(backbone, "activation_checkpointing_enable", None)  # as newer transformers call it
        (new or backbone.gradient_checkpointing_enable)({"use_reentrant": False})
