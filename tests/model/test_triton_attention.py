"""The kernels of slot attention, interpreted on the CPU: the lines in torch and their gradients are the reference."""

import pytest
import torch

from maxmatch.model.layers.triton_attention import attend, attend_backwards, can_attend, gradients_of_inputs


def reference(queries, keys, values, mask, scale, epsilon):
    share = (queries @ keys.transpose(-1, -2) * scale).softmax(-2) * mask[:, None, None]
    weights = share / (share.sum(-1, keepdim=True) + epsilon)
    return (weights @ values).transpose(1, 2).flatten(2), weights


def by_kernels(queries, keys, values, mask, scale, epsilon):
    items, heads, slots, width = queries.shape
    taken = queries.new_empty(items, slots, heads, width)
    weights = torch.empty(items, heads, slots, keys.shape[2])
    attend(queries, keys, values, mask, taken, scale, epsilon, weights)
    return taken.flatten(2), weights


def gradients(blocks, keys, values, mask, scale, epsilon):
    """Of the queries of each block, and of keys and values. blocks: the queries and the gradient of what is taken."""
    (items, heads, slots, width), inputs = blocks[0][0].shape, keys.shape[2]
    queries = torch.stack([one.transpose(1, 2) for one, _ in blocks]).detach().contiguous()
    arriving = torch.stack([one.view(items, slots, heads, width) for _, one in blocks]).to(queries.dtype)
    to_queries = torch.empty_like(queries)
    to_logits, weights = (queries.new_empty(len(blocks), items, heads, slots, inputs) for _ in range(2))
    for block, asked in enumerate(queries):
        attend_backwards(
            asked.transpose(1, 2), keys, values, mask, arriving[block], to_queries[block], to_logits[block],
            weights[block], scale, epsilon,
        )  # fmt: skip
    return *to_queries.transpose(2, 3), *gradients_of_inputs(queries, arriving, to_logits, weights)


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


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize(
    "shape", [(2, 2, 4, 7, 16), (3, 1, 1, 20, 32), (2, 4, 8, 1, 64), (1, 2, 3, 33, 128), (2, 1, 16, 65, 16)], ids=str
)
def test_what_slots_take_their_weights_and_all_gradients_are_those_of_the_formula(shape, blocks):
    queries, keys, values, mask = some_inputs(*shape)
    items, heads, slots, _, width = shape
    how = (keys, values, mask, width**-0.5, 1e-7)
    generator = torch.Generator().manual_seed(1)
    each = [
        (
            (queries * (1 + number)).detach().requires_grad_(),
            torch.randn(items, slots, heads * width, generator=generator),
        )
        for number in range(blocks)
    ]
    total = 0.0
    for asked, arriving in each:
        taken, weights = by_kernels(asked, *how)
        expected, shares = reference(asked, *how)
        torch.testing.assert_close(taken, expected, rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(weights, shares, rtol=1e-5, atol=2e-6)
        total = total + (expected * arriving).sum()
    expected = torch.autograd.grad(total, (*(asked for asked, _ in each), keys, values))
    for mine, theirs in zip(gradients(each, *how), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=5e-6)


def test_in_half_precision_the_result_is_that_of_the_same_numbers_to_its_precision():
    *sides, mask = some_inputs(2, 2, 4, 9, 32, torch.float16)
    taken, weights = by_kernels(*sides, mask, 32**-0.5, 1e-7)
    expected, shares = reference(*(side.float() for side in sides), mask, 32**-0.5, 1e-7)
    assert (taken.dtype, weights.dtype) == (torch.float16, torch.float32)
    torch.testing.assert_close(taken.float(), expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(weights, shares, rtol=2e-3, atol=1e-4)


def test_padding_gets_no_weight_and_no_gradient():
    queries, keys, values, mask = some_inputs(3, 2, 4, 6, 16)
    taken, weights = by_kernels(queries, keys, values, mask, 0.25, 1e-7)
    _, to_keys, to_values = gradients([(queries, 2 * taken)], keys, values, mask, 0.25, 1e-7)
    padding = ~mask[:, None].expand(-1, 2, -1)
    assert padding.any()
    assert not weights.transpose(2, 3)[padding].any()
    assert not to_keys[padding].any()
    assert not to_values[padding].any()


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
    assert can_attend(queries.shape[2], keys) is fits
