import reference_layers as reference
import torch

from maxmatch.model.layers import SlotAttention


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
