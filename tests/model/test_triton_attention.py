"""The kernels of slot attention, interpreted on the CPU: the lines in torch and their gradients are the reference."""

import pytest
import torch

from maxmatch.core.types import Features
from maxmatch.model.layers import SetHead, SlotAttention, slot_heads, triton_attention
from maxmatch.model.layers.triton_attention import can_attend, shared


def reference(queries, keys, values, mask, scale, epsilon):
    share = (queries @ keys.transpose(-1, -2) * scale).softmax(-2) * mask[:, None, None]
    weights = share / (share.sum(-1, keepdim=True) + epsilon)
    return (weights @ values).transpose(1, 2).flatten(2), weights


def by_kernels(queries, keys, values, mask, scale, epsilon):
    keys, values, sums = shared(keys, values)
    return triton_attention.slot_attention(queries, keys, values, mask, sums, scale, epsilon)


def some_inputs(items, heads, slots, inputs, width, dtype=torch.float32, seed=0):
    """Queries, keys and values as a layer writes them, heads beside each other; the first item has one input."""
    generator = torch.Generator().manual_seed(seed)
    sides = [
        torch.randn(items, count, heads, width, generator=generator).to(dtype).transpose(1, 2).requires_grad_()
        for count in (slots, inputs, inputs)
    ]
    lengths = torch.randint(1, inputs + 1, (items,), generator=generator)
    lengths[0] = 1
    return *sides, torch.arange(inputs) < lengths[:, None]


@pytest.mark.parametrize("of_weights", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 2, 4, 7, 16), (3, 1, 1, 20, 32), (2, 4, 8, 1, 64), (1, 2, 3, 33, 128), (2, 1, 16, 65, 16)], ids=str
)
def test_what_slots_take_their_weights_and_all_gradients_are_those_of_the_formula(shape, of_weights):
    *sides, mask = some_inputs(*shape)
    items, heads, slots, inputs, width = shape
    generator = torch.Generator().manual_seed(1)
    taken_grad = torch.randn(items, slots, heads * width, generator=generator)
    weights_grad = torch.randn(items, heads, slots, inputs, generator=generator)
    found = []
    for function in (reference, by_kernels):
        taken, weights = function(*sides, mask, width**-0.5, 1e-7)
        loss = (taken * taken_grad).sum() + ((weights * weights_grad).sum() if of_weights else 0.0)
        found.append((taken, weights, *torch.autograd.grad(loss, sides)))
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=2e-6)


def test_a_loss_of_the_weights_alone_has_its_gradient():
    *sides, mask = some_inputs(2, 2, 4, 5, 16)
    found = []
    for function in (reference, by_kernels):
        weights = function(*sides, mask, 0.25, 1e-7)[1]
        found.append(torch.autograd.grad(weights.square().sum(), sides[:2]))
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_in_half_precision_the_result_is_that_of_the_same_numbers_to_its_precision():
    *sides, mask = some_inputs(2, 2, 4, 9, 32, torch.float16)
    taken, weights = by_kernels(*sides, mask, 32**-0.5, 1e-7)
    expected, shares = reference(*(side.float() for side in sides), mask, 32**-0.5, 1e-7)
    assert (taken.dtype, weights.dtype) == (torch.float16, torch.float32)
    torch.testing.assert_close(taken.float(), expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(weights, shares, rtol=2e-3, atol=1e-4)


def test_padding_gets_no_weight_and_no_gradient():
    *sides, mask = some_inputs(3, 2, 4, 6, 16)
    taken, weights = by_kernels(*sides, mask, 0.25, 1e-7)
    _, to_keys, to_values = torch.autograd.grad(taken.square().sum(), sides)
    padding = ~mask[:, None].expand(-1, 2, -1)
    assert padding.any()
    assert not weights.transpose(2, 3)[padding].any()
    assert not to_keys[padding].any()
    assert not to_values[padding].any()


def test_the_gradients_of_several_blocks_add_up_also_with_what_others_do_and_in_a_second_pass():
    queries, keys, values, mask = some_inputs(3, 2, 4, 6, 16)
    found = []
    for ours in (False, True):
        k, v, sums = shared(keys, values) if ours else (keys, values, None)
        total = 0.0
        for step in range(3):
            asked = queries * (1 + step)
            if ours:
                taken, _ = triton_attention.slot_attention(asked, k, v, mask, sums, 0.25, 1e-7)
            else:
                taken, _ = reference(asked, k, v, mask, 0.25, 1e-7)
            total = total + (taken * (step - 0.5)).square().sum()
        total = total + (k * v).sum()
        first = torch.autograd.grad(total, (queries, keys, values), retain_graph=True)
        found.append((*first, *torch.autograd.grad(total, (queries, keys, values))))
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "dtype", "fits"),
    [
        ((1, 1, 16, 128, 16), torch.float32, True),
        ((1, 1, 4, 49, 256), torch.bfloat16, True),
        ((1, 1, 17, 8, 16), torch.float32, False),
        ((1, 1, 4, 129, 16), torch.float32, False),
        ((1, 1, 4, 8, 24), torch.float32, False),
        ((1, 1, 4, 8, 8), torch.float32, False),
        ((1, 1, 4, 8, 16), torch.float64, False),
    ],
    ids=str,
)
def test_what_the_kernels_take(shape, dtype, fits):
    queries, keys, *_ = some_inputs(*shape, dtype)
    assert can_attend(queries, keys) is fits


def test_a_head_gives_the_same_sets_and_learns_the_same_with_the_kernels(monkeypatch):
    torch.manual_seed(0)
    head = SetHead(context_width=12, width=32, set_size=3, heads=2, head_width=16, depth=2, dropout=0.0)
    local, pooled = torch.randn(4, 6, 12), torch.randn(4, 32)
    features = Features(local, torch.arange(6) < torch.tensor([[6], [2], [1], [5]]), pooled, None)
    found = []
    for kernels in (None, triton_attention):
        monkeypatch.setattr(slot_heads, "_attention_kernels", lambda keys, kernels=kernels: kernels)
        head.zero_grad()
        sets = head(features)
        (sets.vectors.square() * torch.arange(32.0)).sum().backward()
        found.append([sets.vectors, sets.attention, *(parameter.grad.clone() for parameter in head.parameters())])
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_a_head_whose_heads_do_not_suit_the_kernels_goes_without(monkeypatch):
    monkeypatch.setattr(slot_heads, "_attention_kernels", lambda keys: triton_attention)
    monkeypatch.setattr(triton_attention, "slot_attention", None)
    attention = SlotAttention(width=8, context_width=8, heads=2, head_width=12, dropout=0.0)
    context = attention.context(torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool))
    taken, weights = attention(torch.randn(2, 3, 8), context)
    assert taken.shape == (2, 3, 8)
    assert weights.shape == (2, 2, 3, 5)


def test_on_a_processor_there_are_no_kernels():
    assert slot_heads._attention_kernels(torch.zeros(1)) is None
