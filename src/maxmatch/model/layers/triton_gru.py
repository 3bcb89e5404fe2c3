"""A GRU on the GPU: both directions in one product per step, and a Triton kernel for the gates.

cuDNN's takes each direction by itself and keeps a GPU waiting between small products. `GRUEncoder` chooses this one
where it can; `torch.nn.GRU` is the reference.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from maxmatch.core.devices import on_its_device

_BLOCK = 256  # of the states' width, per program


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 * _sigmoid(2 * x) - 1


@triton.jit
def _at(base, columns, inside):
    return tl.load(base + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _gates(inputs, states, bias, row, columns, inside, WIDTH: tl.constexpr):
    """r, z, n and what the state brings to n, of a row of what inputs and state bring; bias: see `gru_states`."""
    read = row * 3 * WIDTH + columns
    r = _sigmoid(_at(inputs, read, inside) + _at(states, read, inside) + _at(bias, columns, inside))
    read += WIDTH
    z = _sigmoid(_at(inputs, read, inside) + _at(states, read, inside) + _at(bias, WIDTH + columns, inside))
    read += WIDTH
    brought = _at(states, read, inside) + _at(bias, 3 * WIDTH + columns, inside)
    n = _tanh(_at(inputs, read, inside) + _at(bias, 2 * WIDTH + columns, inside) + r * brought)
    return r, z, n, brought


@triton.jit
def _step(
    inputs, states, bias, before, after, length, step, items, gates_stride, states_stride, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """h ← (1 − z) n + z h of one item and direction; an item that has ended keeps its state."""
    item, direction = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    inputs += direction * gates_stride
    states += direction * gates_stride
    here = direction * states_stride + item * WIDTH + columns
    old = tl.load(before + here, mask=inside, other=0.0)
    _, z, n, _ = _gates(inputs, states, bias + direction * 4 * WIDTH, item, columns, inside, WIDTH)
    new = (1 - z) * n + z * old.to(tl.float32)
    reads = step < tl.load(length + item)
    tl.store(after + here, tl.where(reads, new.to(old.dtype), old), mask=inside)


@triton.jit
def _step_back(
    inputs, states, bias, before, length, step, items, direct, product, arriving, to_inputs, to_states, gates_stride,
    states_stride, arriving_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ARRIVES: tl.constexpr,
    FIRST: tl.constexpr,
):  # fmt: skip
    """From the gradient of a step's state to those of its gates. direct: what reaches the state before by z alone."""
    item, direction = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    here = (direction * items + item) * WIDTH + columns
    gradient = tl.load(direct + here, mask=inside, other=0.0)
    if not FIRST:
        gradient += tl.load(product + here, mask=inside, other=0.0).to(tl.float32)
    if ARRIVES:
        there = direction * arriving_stride + item * WIDTH + columns
        gradient += tl.load(arriving + there, mask=inside, other=0.0).to(tl.float32)
    old = tl.load(before + direction * states_stride + item * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    r, z, n, brought = _gates(
        inputs + direction * gates_stride, states + direction * gates_stride, bias + direction * 4 * WIDTH, item,
        columns, inside, WIDTH,
    )  # fmt: skip
    reads = step < tl.load(length + item)
    of_n = tl.where(reads, gradient * (1 - z) * (1 - n * n), 0.0)
    of_z = tl.where(reads, gradient * (old - n) * z * (1 - z), 0.0)
    of_r = of_n * brought * r * (1 - r)
    write = direction * gates_stride + item * 3 * WIDTH + columns
    kind = to_inputs.dtype.element_ty
    tl.store(to_inputs + write, of_r.to(kind), mask=inside)
    tl.store(to_inputs + write + WIDTH, of_z.to(kind), mask=inside)
    tl.store(to_inputs + write + 2 * WIDTH, of_n.to(kind), mask=inside)
    tl.store(to_states + write, of_r.to(kind), mask=inside)
    tl.store(to_states + write + WIDTH, of_z.to(kind), mask=inside)
    tl.store(to_states + write + 2 * WIDTH, (of_n * r).to(kind), mask=inside)
    tl.store(direct + here, tl.where(reads, gradient * z, gradient), mask=inside)


class _States(torch.autograd.Function):
    """Of the input gates and the state's weights (d, 3H, H): the states after each step, or the last.

    gates: (d, N, B, 3H). Where more follow, they continue the last items of the one before: (d, N', B', 3H), B' ≤ B.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, length: Tensor, every: bool, *gates: Tensor) -> Tensor:
        kept, taken = [], 0
        before: Tensor | None = None
        for inputs in gates:
            directions, steps, items, _ = inputs.shape
            width, first = weight.shape[2], len(length) - items
            states = inputs.new_zeros(directions, steps + 1, items, width)
            if before is not None:
                states[:, 0] = before[:, -items:]
            brought = torch.empty_like(inputs)
            for step in range(steps):
                torch.bmm(states[:, step], weight.transpose(1, 2), out=brought[:, step])
                _step[_programs(directions, items, width)](
                    inputs[:, step], brought[:, step], bias, states[:, step], states[:, step + 1], length[first:],
                    taken + step, items, inputs.stride(0), states.stride(0), WIDTH=width, BLOCK=_BLOCK,
                )  # fmt: skip
            kept += [inputs, states, brought]
            before, taken = states[:, -1], taken + steps
        ctx.save_for_backward(weight, bias, length, *kept)
        ctx.every = every
        if every:
            return kept[1][:, 1:]
        last = kept[1][:, -1].clone()
        for states in kept[4::3]:
            last[:, -states.shape[2] :] = states[:, -1]
        return last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias, length, *kept = ctx.saved_tensors
        gradient = gradient.contiguous()
        parts = [kept[at : at + 3] for at in range(0, len(kept), 3)]
        of_gates: list[Tensor] = []
        to_weight, to_bias = torch.zeros_like(weight), torch.zeros_like(bias).flatten(1)
        taken = sum(inputs.shape[1] for inputs, _, _ in parts)
        direct: Tensor | None = None
        product = gradient
        for inputs, states, brought in reversed(parts):
            directions, steps, items, gates = inputs.shape
            width, first, taken = gates // 3, len(length) - items, taken - steps
            shape = (directions, items, width)
            arriving = gradient.new_zeros(shape, dtype=torch.float32)
            if not ctx.every:
                arriving = gradient[:, first:].to(torch.float32, copy=True)  # it is written to
            if direct is not None:  # what reaches these states from the steps that follow
                arriving[:, -direct.shape[1] :] = direct + product.float()
            direct, product = arriving.contiguous(), inputs.new_empty(shape)
            to_inputs, to_states = torch.empty_like(inputs), torch.empty_like(inputs)
            for step in reversed(range(steps)):
                _step_back[_programs(directions, items, width)](
                    inputs[:, step], brought[:, step], bias, states[:, step], length[first:], taken + step, items,
                    direct, product, gradient[:, step] if ctx.every else gradient, to_inputs[:, step],
                    to_states[:, step], inputs.stride(0), states.stride(0), gradient.stride(0), WIDTH=width,
                    BLOCK=_BLOCK, ARRIVES=ctx.every, FIRST=step == steps - 1,
                )  # fmt: skip
                torch.bmm(to_states[:, step], weight, out=product)
            to_weight = to_weight + to_states.flatten(1, 2).transpose(1, 2) @ states[:, :-1].flatten(1, 2)
            to_bias = to_bias + torch.cat([_total(to_inputs), _total(to_states[..., 2 * width :])], 1)
            of_gates.insert(0, to_inputs)
        return to_weight, to_bias.view_as(bias), None, None, *of_gates


def _total(gradient: Tensor) -> Tensor:
    return gradient.sum((1, 2), dtype=torch.float32)


def _programs(directions: int, items: int, width: int) -> tuple[int, int, int]:
    return items, directions, triton.cdiv(width, _BLOCK)


@on_its_device
def gru_states(
    weight: Float[Tensor, "d G H"],
    bias: Float[Tensor, "d 4 H"],
    length: Int[Tensor, " B"],
    inputs: Sequence[Float[Tensor, "d _ _ G"]],
    every: bool = False,
) -> Float[Tensor, "d N B H"] | Float[Tensor, "d B H"]:
    """The states of a GRU that starts at 0, as `torch.nn.GRU` defines them. G = 3H: its gates r, z and n.

        r, z = σ(input + W h + b);   n = tanh(input + b + r · (W h + b'));   h ← (1 − z) n + z h

    weight: W. bias: b of r, z and n, and b'. inputs: what the inputs bring to the gates, without a bias: of all items
    for the first steps, (d, N, B, G); where more follow, of the last of these items for the steps after. every: the
    states after each step, not only the last (inputs: one). After its last input an item keeps its state.
    """
    assert len(inputs) == 1 or not every
    states: Tensor = _States.apply(weight, bias, length, every, *inputs)
    return states
