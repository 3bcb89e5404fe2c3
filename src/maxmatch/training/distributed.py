"""Several processes, one batch: each encodes its share, all see all sets, gradients are added up.

Every process computes the loss of the whole batch, with gradient through its own sets only. The sum of their gradients
is then that of the whole loss, whatever the loss is: exactly what one process would have computed.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from maxmatch.core.devices import chosen_device
from maxmatch.core.types import Sets


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is, and the device it works on."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and messages."""
        return self.rank == 0


@contextmanager
def processes(device: str | torch.device | None = None) -> Iterator[Processes]:
    """Join the processes that `torchrun` started, or be the only one. device: None takes a GPU if there is one."""
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = chosen_device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", local)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield Processes(0, 1, device)
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(distributed.get_rank(), distributed.get_world_size(), device)
    finally:
        distributed.destroy_process_group()


def several() -> bool:
    """Whether there are other processes."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def gather(mine: Tensor) -> Tensor:
    """The rows of all processes, one after the other; gradients flow to this process's own."""
    if not several():
        return mine
    count = torch.tensor([len(mine)], device=mine.device)
    counts = [torch.empty_like(count) for _ in range(distributed.get_world_size())]
    distributed.all_gather(counts, count)
    lengths = [int(n) for n in counts]
    padded = mine.detach().new_zeros(max(lengths), *mine.shape[1:])
    padded[: len(mine)] = mine.detach()
    parts = [torch.empty_like(padded) for _ in lengths]
    distributed.all_gather(parts, padded)
    rows = [part[:length] for part, length in zip(parts, lengths, strict=True)]
    rows[distributed.get_rank()] = mine
    return torch.cat(rows)


def counted_once(parameter: Tensor) -> Tensor:
    """A parameter of the loss itself. Every process computes the whole loss, so that each takes its share of the
    gradient: added up, they are that of one process.
    """
    if not several():
        return parameter
    fixed = parameter.detach()
    return fixed + (parameter - fixed) / distributed.get_world_size()


def gather_sets(mine: Sets) -> Sets:
    """The sets of all processes."""
    return Sets(gather(mine.vectors), gather(mine.residual), gather(mine.pooled)) if several() else mine


def add_gradients(model: nn.Module) -> None:
    """Add up the gradients of all processes."""
    if not several():
        return
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def same_everywhere(values: Mapping[str, float], device: torch.device) -> dict[str, float]:
    """The first process's figures, in all processes."""
    if not several():
        return dict(values)
    mine = torch.tensor(list(json.dumps(dict(values)).encode()), dtype=torch.uint8, device=device)
    length = torch.tensor([len(mine)], device=device)
    distributed.broadcast(length, 0)
    shared = mine if distributed.get_rank() == 0 else mine.new_empty(int(length))
    distributed.broadcast(shared, 0)
    return dict(json.loads(bytes(shared.tolist())))


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in any process."""
    return not fewest(int(not flag), device)


def fewest(count: int, device: torch.device) -> int:
    """The smallest count that any process has."""
    if not several():
        return count
    least = torch.tensor([count], device=device)
    distributed.all_reduce(least, distributed.ReduceOp.MIN)
    return int(least)


@contextmanager
def first_alone(here: Processes) -> Iterator[None]:
    """The first process runs this before the others, which find what it wrote."""
    if several() and not here.first:
        distributed.barrier()
    yield
    if several() and here.first:
        distributed.barrier()
