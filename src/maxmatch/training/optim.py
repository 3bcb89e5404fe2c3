"""AdamW with the parameter groups of the paper's recipes, schedules, and the moving average of the weights."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor, nn

from maxmatch.model.encoder import SetEncoder, Tower
from maxmatch.model.encoders.backbone import Freezable
from maxmatch.model.inputs import TextReader
from maxmatch.model.layers import ResidualSetHead
from maxmatch.recipe.schema import Train


@dataclass(frozen=True)
class Group:
    """Parameters with one learning rate."""

    name: str
    """"<tower>.backbone", "<tower>.set_module" or "<tower>.encoder"; "match" of what belongs to no tower."""
    factor: float
    parameters: dict[str, nn.Parameter]
    decays: bool = True
    """Whether weight decay applies."""


def parameter_groups(model: SetEncoder, train: Train) -> list[Group]:
    """Parameters by learning rate. What stays frozen throughout is left out.

    The set module of a tower of pictures or features is its head and what projects into it; that of texts its head.
    Of a tower with sets on a trained model, all of that model is the backbone.
    """
    groups: dict[str, Group] = {}
    for tower in model.towers:
        part = model.tower(tower)
        for name, parameter in part.named_parameters():
            kind = _kind(part, name)
            if (
                train.keeps(tower)
                or not parameter.requires_grad
                or (kind == "backbone" and train.frozen(tower, train.epochs))
            ):
                continue
            group = groups.setdefault(f"{tower}.{kind}", Group(f"{tower}.{kind}", train.lr_factor(tower, kind), {}))
            group.parameters[f"towers.{tower}.{name}"] = parameter
    if model.match is not None:
        named = {f"match.{name}": parameter for name, parameter in model.match.named_parameters()}
        groups["match"] = Group("match", train.lr_factors.get("match", 1.0), named, decays=False)
    return list(groups.values())


def _kind(tower: Tower, name: str) -> Literal["backbone", "set_module", "encoder"]:
    before = ("encoder.", "head.base.") if isinstance(tower.head, ResidualSetHead) else ("encoder.backbone.",)
    if name.startswith(before):
        return "backbone"
    reads_text = isinstance(tower.reader, TextReader)
    return "encoder" if reads_text and not name.startswith("head.") else "set_module"


def optimiser(groups: list[Group], train: Train) -> torch.optim.AdamW:
    """AdamW over the groups. Learning rates are set before each step."""
    device = next(iter(groups[0].parameters.values())).device
    gpu = device.type == "cuda"
    # On a GPU the rate lies there too, so that a recorded step reads it anew.
    options = [
        {
            "params": list(group.parameters.values()),
            "lr": torch.tensor(train.lr * group.factor, device=device) if gpu else train.lr * group.factor,
            "factor": group.factor,
            "weight_decay": train.weight_decay if group.decays else 0.0,
        }
        for group in groups
    ]
    return torch.optim.AdamW(options, amsgrad=train.amsgrad, fused=gpu, capturable=gpu)


def set_learning_rates(adam: torch.optim.Optimizer, train: Train, step: int, steps_per_epoch: int) -> float:
    """Set the learning rates of a step; returns that of a group with factor 1."""
    rate = train.lr * schedule_factor(train, step, steps_per_epoch)
    for group in adam.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * group["factor"])
        else:
            group["lr"] = rate * group["factor"]
    return rate


def schedule_factor(train: Train, step: int, steps_per_epoch: int) -> float:
    """What the learning rate is multiplied by at a step, counted from 0."""
    warmup, schedule = train.warmup(steps_per_epoch), train.schedule
    risen = min(1.0, (step + 1) / warmup) if warmup else 1.0
    if schedule.name == "step":
        passed = step // steps_per_epoch // schedule.every
        return risen * float(schedule.factor ** (passed if schedule.times is None else min(passed, schedule.times)))
    if schedule.name == "cosine":
        return risen * 0.5 * (1 + math.cos(math.pi * step / (train.epochs * steps_per_epoch)))
    if schedule.name == "constant":
        return risen
    assert_never(schedule)


def freeze_for(model: SetEncoder, train: Train, epoch: int) -> Iterator[str]:
    """Freeze and unfreeze backbones for an epoch; yields the names of the towers that are frozen."""
    for name in model.towers:
        encoder = model.tower(name).encoder
        if train.keeps(name):
            model.tower(name).eval().requires_grad_(False)
        elif isinstance(encoder, Freezable) and not model.tower(name).fixed:  # what is fixed does not depend on epochs
            if train.frozen(name, epoch):
                encoder.freeze()
                yield name
            else:
                encoder.unfreeze()


def kept_weights(model: SetEncoder, train: Train) -> list[Tensor]:
    """Copies of the weights of towers that are kept as they are."""
    kept = [model.tower(name) for name in model.towers if train.keeps(name)]
    return [value.clone() for tower in kept for value in tower.state_dict().values()]


def clip_gradients(groups: list[Group], most: float | None) -> torch.Tensor | None:
    """Scale the gradient down to a norm of `most`; its norm before."""
    if most is None:
        return None
    return nn.utils.clip_grad_norm_([p for group in groups for p in group.parameters.values()], most)


class Average:
    """The moving average of the weights, which often validates better than the weights themselves.

    average ← decay · average + (1 − decay) · weights, after each step; BatchNorm's statistics are averaged too.
    """

    def __init__(self, model: SetEncoder, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {name: value.clone() for name, value in _averaged(model).items()}

    @torch.no_grad()
    def update(self, model: SetEncoder) -> None:
        """Take in the weights after a step."""
        torch._foreach_lerp_(list(self.weights.values()), list(_averaged(model).values()), 1 - self.decay)


def _averaged(model: SetEncoder) -> dict[str, Tensor]:
    """What can be averaged: parameters and statistics, not counts."""
    return {name: value.detach() for name, value in model.state_dict().items() if value.is_floating_point()}


def with_average(average: Average | None, model: SetEncoder) -> AbstractContextManager[None]:
    """The model with the averaged weights, if there are any."""
    return nullcontext() if average is None else with_weights(average.weights, model)


@contextmanager
def with_weights(weights: Mapping[str, Tensor], model: SetEncoder) -> Iterator[None]:
    """The model with other weights, inside the `with` block."""
    own = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(weights, strict=False)
    try:
        yield
    finally:
        model.load_state_dict(own)
