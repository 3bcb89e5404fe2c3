"""Positions, pooling, slot attention and the heads, compared with plain loops over numbers."""

import pytest
import reference_layers as reference
import torch

from maxmatch.core.types import Features
from maxmatch.model.layers import (
    PIEHead,
    SetHead,
    SlotAttention,
    grid_positions,
    masked_max,
    masked_mean,
    sine_positions,
)


@pytest.mark.parametrize("width", [1, 7, 8, 300])
def test_sequence_positions_agree_with_the_reference(width):
    lengths = [1, 5, 3]
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    positions = sine_positions(mask, width, torch.float64)
    for item, length in zip(positions, lengths, strict=True):
        expected = torch.tensor(reference.sequence_positions(length, width), dtype=torch.float64)
        torch.testing.assert_close(item[:length], expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 7), (2, 5)])
def test_grid_positions_agree_with_the_reference(rows, columns):
    expected = torch.tensor(reference.grid_positions(rows, columns, 10), dtype=torch.float64)
    positions = grid_positions(rows, columns, 10, dtype=torch.float64)
    torch.testing.assert_close(positions, expected, rtol=1e-10, atol=1e-14)


def test_positions_do_not_depend_on_padding():
    alone = sine_positions(torch.ones(1, 4, dtype=torch.bool), 16)
    padded = sine_positions(torch.arange(9)[None] < 4, 16)
    assert torch.equal(alone, padded[:, :4])


def test_places_are_counted_over_real_features_wherever_the_padding_is():
    right = sine_positions(torch.tensor([[True, True, True, False, False]]), 8)
    left = sine_positions(torch.tensor([[False, False, True, True, True]]), 8)
    assert torch.equal(right[:, :3], left[:, 2:])


def test_positions_on_a_grid_need_an_even_width():
    with pytest.raises(ValueError, match="Choose an even width"):
        grid_positions(2, 2, 7)


def test_pooling_agrees_with_loops_over_the_real_features():
    torch.manual_seed(0)
    local = torch.randn(3, 6, 5, dtype=torch.float64)
    mask = torch.rand(3, 6) < 0.6
    mask[:, 0] = True
    largest, mean = masked_max(local, mask), masked_mean(local, mask)
    for b in range(3):
        real = [local[b, n].tolist() for n in range(6) if mask[b, n]]
        for w in range(5):
            channel = [row[w] for row in real]
            assert largest[b, w] == max(channel)
            torch.testing.assert_close(float(mean[b, w]), sum(channel) / len(channel), rtol=1e-12, atol=0)


def test_padding_may_hold_anything():
    local = torch.tensor([[[1.0], [2.0], [torch.nan]], [[-1.0], [-3.0], [torch.inf]]])
    mask = torch.tensor([[True, True, False]] * 2)
    assert masked_max(local, mask).tolist() == [[2.0], [-1.0]]
    assert masked_mean(local, mask).tolist() == [[1.5], [-2.0]]


def test_no_gradient_flows_to_padding():
    local = torch.randn(2, 4, 3, requires_grad=True)
    mask = torch.tensor([[True, True, False, False], [True, False, False, False]])
    (masked_max(local, mask).sum() + masked_mean(local, mask).sum()).backward()
    assert torch.isfinite(local.grad).all()
    assert not local.grad[~mask].any()


def attention_and_inputs(dtype=torch.float64):
    torch.manual_seed(0)
    layer = SlotAttention(width=6, context_width=5, heads=2, head_width=3).eval().to(dtype)
    slots, inputs, positions = torch.randn(2, 3, 6), torch.randn(2, 7, 5), torch.randn(2, 7, 5)
    mask = torch.arange(7) < torch.tensor([7, 4])[:, None]
    return layer, slots.to(dtype), inputs.to(dtype), positions.to(dtype), mask


def test_slot_attention_agrees_with_the_reference():
    layer, slots, inputs, positions, mask = attention_and_inputs()
    taken, weights = layer(slots, layer.context(inputs, mask, positions))
    parameters = {name: value.tolist() for name, value in layer.state_dict().items()}
    for b, length in enumerate([7, 4]):
        real = inputs[b, :length]
        placed = real + positions[b, :length]
        expected, maps = reference.slot_attention(slots[b].tolist(), placed.tolist(), real.tolist(), parameters, 2)
        torch.testing.assert_close(taken[b], torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)
        maps = torch.tensor(maps, dtype=torch.float64)
        torch.testing.assert_close(weights[b, :, :, :length], maps, rtol=1e-10, atol=1e-12)


def test_padding_gets_no_weight_and_the_rest_adds_up_to_one():
    layer, slots, inputs, positions, mask = attention_and_inputs()
    _, weights = layer(slots, layer.context(inputs, mask, positions))
    assert not weights[1, :, :, 4:].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 3, dtype=torch.float64), rtol=1e-6, atol=0)


def test_positions_move_the_weights_but_not_the_values():
    layer, _, inputs, positions, mask = attention_and_inputs()
    plain, placed = layer.context(inputs, mask), layer.context(inputs, mask, positions)
    assert torch.equal(plain.values, placed.values)
    assert not torch.allclose(plain.keys, placed.keys)


def test_a_single_slot_wins_every_input_and_so_takes_their_mean():
    layer, slots, inputs, _, mask = attention_and_inputs()
    _, weights = layer(slots[:, :1], layer.context(inputs, mask))
    uniform = mask[:, None, None] / mask.sum(1)[:, None, None, None]
    torch.testing.assert_close(weights, uniform.to(weights.dtype).expand_as(weights), rtol=1e-6, atol=0)


def test_slot_attention_runs_in_half_precision():
    layer, slots, inputs, positions, mask = attention_and_inputs(torch.float16)
    taken, weights = layer(slots, layer.context(inputs, mask, positions.float()))
    assert taken.dtype == torch.float16
    assert weights.dtype == torch.float32


def small_head(dtype=torch.float64, **options):
    torch.manual_seed(0)
    head = SetHead(5, **{"width": 6, "set_size": 3, "heads": 2, "head_width": 3, "depth": 4, **options})
    for parameter in head.parameters():  # norms start as the identity: move them, so that they matter
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return head.eval().to(dtype)


def features(lengths=(7, 4), placed=True, dtype=torch.float64):
    torch.manual_seed(1)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    local, pooled = torch.randn(*mask.shape, 5, dtype=dtype), torch.randn(len(lengths), 6, dtype=dtype)
    return Features(local, mask, pooled, sine_positions(mask, 5, dtype) if placed else None)


@pytest.mark.parametrize(("context_width", "parameters"), [(1024, 16_795_648), (300, 13_828_696)])
def test_parameters_of_the_image_and_text_modules_are_as_in_setdiv(context_width, parameters):
    head = SetHead(context_width, width=1024, set_size=4, heads=4, head_width=512)
    assert sum(p.numel() for name, p in head.named_parameters() if not name.startswith("pooled_norm")) == parameters


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("set_size", [1, 3])
def test_set_head_agrees_with_the_reference(placed, set_size):
    head, inputs = small_head(set_size=set_size), features(placed=placed)
    sets = head(inputs)
    parameters = {name: value.tolist() for name, value in head.state_dict().items()}
    for b, length in enumerate([7, 4]):
        expected = reference.set_head(
            inputs.local[b, :length].tolist(),
            reference.sequence_positions(length, 5) if placed else None,
            inputs.pooled[b].tolist(),
            parameters,
            heads=2,
            depth=4,
        )
        found = sets.vectors[b], sets.residual[b], sets.attention[b, :, :length]
        for name, mine, theirs in zip(("vectors", "residual", "attention"), found, expected, strict=True):
            theirs = torch.tensor(theirs, dtype=torch.float64)
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")
    assert sets.pooled is inputs.pooled


def test_keys_and_values_computed_once_give_the_same_as_computed_in_every_block():
    head, inputs = small_head(), features()
    slots = head.slots.expand(2, -1, -1)
    for _ in range(head.depth):
        slots, _ = head.block(slots, head.block.context(inputs))
    assert torch.equal(head.residual_norm(slots), head(inputs).residual)


def test_vectors_have_unit_length_and_attention_adds_up_to_one():
    sets = small_head(torch.float32)(features(dtype=torch.float32))
    torch.testing.assert_close(sets.vectors.norm(dim=-1), torch.ones(2, 3))
    torch.testing.assert_close(sets.attention.sum(-1), torch.ones(2, 3))


def test_what_stands_in_the_padding_does_not_matter():
    head, inputs = small_head(), features()
    noisy = inputs.local.masked_fill(~inputs.mask[..., None], 1e3)
    assert torch.equal(
        head(inputs).vectors, head(Features(noisy, inputs.mask, inputs.pooled, inputs.positions)).vectors
    )


def test_without_positions_the_order_of_local_features_is_irrelevant():
    head, inputs = small_head(), features(lengths=(7, 7), placed=False)
    order = torch.randperm(7)
    shuffled = Features(inputs.local[:, order], inputs.mask, inputs.pooled)
    torch.testing.assert_close(head(inputs).vectors, head(shuffled).vectors)


def test_dropout_stands_after_the_activation_and_after_attention():
    places = [name for name, module in SetHead(5, 6, 2, 2, 3).named_modules() if isinstance(module, torch.nn.Dropout)]
    assert places == ["block.attention.output.1", "block.feedforward.3"]


def test_slots_start_from_a_standard_normal():
    torch.manual_seed(0)
    slots = SetHead(8, 1024, 16, 1, 8).slots.detach()
    assert abs(float(slots.mean())) < 0.02
    assert abs(float(slots.std()) - 1) < 0.02


def test_a_head_of_half_precision_gives_unit_vectors_in_float32():
    sets = small_head(torch.float16)(features(dtype=torch.float16))
    torch.testing.assert_close(sets.vectors.norm(dim=-1), torch.ones(2, 3))


def pie_head(dtype=torch.float64):
    torch.manual_seed(0)
    head = PIEHead(context_width=5, width=6, set_size=3).eval()
    for parameter in head.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return head.to(dtype)


def test_pie_head_agrees_with_the_reference():
    head, inputs = pie_head(), features(placed=False)
    sets = head(inputs)
    parameters = {name: value.tolist() for name, value in head.state_dict().items()}
    for b, length in enumerate([7, 4]):
        expected = reference.pie_head(inputs.local[b, :length].tolist(), inputs.pooled[b].tolist(), parameters)
        found = sets.vectors[b], sets.residual[b], sets.attention[b, :, :length]
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, torch.tensor(theirs, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    assert not sets.attention[1, :, 4:].any()
    assert sets.pooled is inputs.pooled


def test_pies_attention_has_half_the_width_of_the_input_and_no_biases():
    names = {name: tuple(p.shape) for name, p in PIEHead(300, 1024, 4).named_parameters()}
    assert names == {
        "attention.0.weight": (150, 300),
        "attention.2.weight": (4, 150),
        "fc.weight": (1024, 300),
        "fc.bias": (1024,),
        "norm.weight": (1024,),
        "norm.bias": (1024,),
    }


@pytest.mark.parametrize("make", [small_head, pie_head])
def test_reordered_slots_give_the_same_vectors_in_another_order(make):
    head, inputs = make(), features()
    before, order = head(inputs), [2, 0, 1]
    head.reorder(order)
    after = head(inputs)
    for name in ("vectors", "residual", "attention"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name)[:, order])
    assert torch.equal(after.pooled, before.pooled)
