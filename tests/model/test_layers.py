"""Positions, pooling, slot attention and the heads, compared with plain loops over numbers."""

from functools import partial

import pytest
import reference_layers as reference
import torch

from maxmatch.core.types import Features
from maxmatch.losses import pvse_diversity
from maxmatch.model.layers import (
    PIEHead,
    SetHead,
    SlotAttention,
    grid_positions,
    masked_max,
    masked_mean,
    sine_positions,
)

LENGTHS = [7, 4]
double = partial(torch.tensor, dtype=torch.float64)
exact = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def numbers(module):
    return {name: value.tolist() for name, value in module.state_dict().items()}


# --- positions and pooling ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 7, 8, 300])
def test_positions_agree_with_the_reference_wherever_the_padding_is(width):
    for length in (1, 5, 3):
        expected = double(reference.sequence_positions(length, width))
        mask = torch.arange(6) < length
        exact(sine_positions(mask[None], width, torch.float64)[0, :length], expected)
        exact(sine_positions(mask.flip(0)[None], width, torch.float64)[0, -length:], expected)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 7), (2, 5)])
def test_positions_on_a_grid_agree_with_the_reference(rows, columns):
    exact(grid_positions(rows, columns, 10, dtype=torch.float64), double(reference.grid_positions(rows, columns, 10)))
    with pytest.raises(ValueError, match="Choose an even width"):
        grid_positions(rows, columns, 7)


def test_pooling_agrees_with_loops_over_the_real_features():
    torch.manual_seed(0)
    local = torch.randn(3, 6, 5, dtype=torch.float64)
    mask = torch.rand(3, 6) < 0.6
    mask[:, 0] = True
    largest, mean = masked_max(local, mask), masked_mean(local, mask)
    for b in range(3):
        real = [local[b, n].tolist() for n in range(6) if mask[b, n]]
        assert largest[b].tolist() == [max(channel) for channel in zip(*real, strict=True)]
        exact(mean[b], double([sum(channel) / len(real) for channel in zip(*real, strict=True)]))


def test_padding_may_hold_anything_and_gets_no_gradient():
    local = torch.tensor([[[1.0], [2.0], [torch.nan]], [[-1.0], [-3.0], [torch.inf]]], requires_grad=True)
    mask = torch.tensor([[True, True, False]] * 2)
    largest, mean = masked_max(local, mask), masked_mean(local, mask)
    assert (largest.tolist(), mean.tolist()) == ([[2.0], [-1.0]], [[1.5], [-2.0]])
    (largest.sum() + mean.sum()).backward()
    assert torch.isfinite(local.grad).all()
    assert not local.grad[~mask].any()


# --- slot attention -------------------------------------------------------------------------------------------------


def attention_and_inputs(dtype=torch.float64):
    torch.manual_seed(0)
    layer = SlotAttention(width=6, context_width=5, heads=2, head_width=3).eval().to(dtype)
    slots, inputs, positions = torch.randn(2, 3, 6), torch.randn(2, 7, 5), torch.randn(2, 7, 5)
    mask = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    return layer, slots.to(dtype), inputs.to(dtype), positions.to(dtype), mask


def test_slot_attention_agrees_with_the_reference_and_padding_gets_no_weight():
    layer, slots, inputs, positions, mask = attention_and_inputs()
    taken, weights = layer(slots, layer.context(inputs, mask, positions))
    for b, length in enumerate(LENGTHS):
        real = inputs[b, :length]
        placed = real + positions[b, :length]
        expected, maps = reference.slot_attention(slots[b].tolist(), placed.tolist(), real.tolist(), numbers(layer), 2)
        exact(taken[b], double(expected))
        exact(weights[b, :, :, :length], double(maps))
        assert not weights[b, :, :, length:].any()


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
    assert (taken.dtype, weights.dtype) == (torch.float16, torch.float32)


# --- heads ----------------------------------------------------------------------------------------------------------


def moved(head, dtype):
    """Norms start as the identity: move them, so that they matter."""
    for parameter in head.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return head.eval().to(dtype)


def set_head(dtype=torch.float64, set_size=3, **options):
    torch.manual_seed(0)
    return moved(SetHead(5, width=6, set_size=set_size, heads=2, head_width=3, depth=4, **options), dtype)


def pie_head(dtype=torch.float64):
    torch.manual_seed(0)
    return moved(PIEHead(context_width=5, width=6, set_size=3), dtype)


def features(placed=True, dtype=torch.float64):
    torch.manual_seed(1)
    mask = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    local, pooled = torch.randn(2, 7, 5, dtype=dtype), torch.randn(2, 6, dtype=dtype)
    return Features(local, mask, pooled, sine_positions(mask, 5, dtype) if placed else None)


def assert_sets(sets, inputs, expected):
    """expected: (local features, pooled feature, length) of one item -> its vectors, residual and attention."""
    for b, length in enumerate(LENGTHS):
        of_item = expected(inputs.local[b, :length].tolist(), inputs.pooled[b].tolist(), length)
        found = sets.vectors[b], sets.residual[b], sets.attention[b, :, :length]
        for mine, theirs in zip(found, of_item, strict=True):
            exact(mine, double(theirs))
        assert not sets.attention[b, :, length:].any()
    assert sets.pooled is inputs.pooled


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("set_size", [1, 3])
def test_set_head_agrees_with_the_reference(placed, set_size):
    head, inputs = set_head(set_size=set_size), features(placed)

    def expected(local, pooled, length):
        positions = reference.sequence_positions(length, 5) if placed else None
        return reference.set_head(local, positions, pooled, numbers(head), heads=2, depth=4)

    assert_sets(head(inputs), inputs, expected)


def test_the_global_feature_for_the_losses_is_taken_before_or_after_its_norm():
    inputs = features()
    before, after = set_head(), set_head(global_feature="normalised")
    assert before(inputs).pooled is inputs.pooled
    for mine, pooled in zip(after(inputs).pooled, inputs.pooled.tolist(), strict=True):
        exact(mine, double(reference.layer_norm(pooled, *numbers(after.pooled_norm).values())))
    assert torch.equal(before(inputs).vectors, after(inputs).vectors)


def test_pie_head_agrees_with_the_reference():
    head, inputs = pie_head(), features(placed=False)
    assert_sets(head(inputs), inputs, lambda local, pooled, _: reference.pie_head(local, pooled, numbers(head)))


@pytest.mark.parametrize("make", [set_head, pie_head])
def test_a_head_of_half_precision_gives_unit_vectors_in_float32(make):
    sets = make(torch.float16)(features(placed=False, dtype=torch.float16))
    torch.testing.assert_close(sets.vectors.norm(dim=-1), torch.ones(2, 3))


@pytest.mark.parametrize("make", [set_head, pie_head])
def test_reordered_slots_give_the_same_vectors_in_another_order(make):
    head, inputs = make(), features()
    before, order = head(inputs), [2, 0, 1]
    head.reorder(order)
    after = head(inputs)
    for name in ("vectors", "residual", "attention"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name)[:, order])
    assert torch.equal(after.pooled, before.pooled)


@pytest.mark.parametrize(("context_width", "parameters"), [(1024, 16_795_648), (300, 13_828_696)])
def test_parameters_of_the_image_and_text_modules_are_as_in_setdiv(context_width, parameters):
    head = SetHead(context_width, width=1024, set_size=4, heads=4, head_width=512)
    assert sum(p.numel() for name, p in head.named_parameters() if not name.startswith("pooled_norm")) == parameters


def test_dropout_follows_activation_and_attention_and_slots_start_normal():
    torch.manual_seed(0)
    head = SetHead(8, 1024, 16, 1, 8)
    places = [name for name, module in head.named_modules() if isinstance(module, torch.nn.Dropout)]
    assert places == ["block.attention.output.1", "block.feedforward.3"]
    slots = head.slots.detach()
    assert abs(float(slots.mean())) < 0.02
    assert abs(float(slots.std()) - 1) < 0.02


def test_a_slot_alone_averages_and_spare_slots_let_it_choose():
    inputs = features()
    alone, shared = set_head(set_size=1), set_head(set_size=1, spare_slots=3)
    uniform = inputs.mask / inputs.mask.sum(1, keepdim=True)
    torch.testing.assert_close(alone.eval()(inputs).attention[:, 0], uniform.double(), rtol=1e-6, atol=1e-6)
    assert (shared.eval()(inputs).attention[:, 0] - uniform).abs().max() > 1e-3


def test_a_set_with_spare_slots_is_part_of_the_larger_set():
    inputs, four, two = features(), set_head(set_size=4).eval(), set_head(set_size=2, spare_slots=2).eval()
    two.load_state_dict(four.state_dict())
    whole, part = four(inputs), two(inputs)
    exact(part.vectors, whole.vectors[:, :2])
    exact(part.attention, whole.attention[:, :2])
    found = torch.autograd.grad(part.vectors.square()[..., 0].sum(), two.slots)[0]
    assert found.abs().amax(1).gt(0).all()  # the spare ones learn what to keep from the others
    two.reorder([1, 0])
    exact(two.slots.detach()[[1, 0, 2, 3]], four.slots.detach())
    exact(two(inputs).vectors, part.vectors.flip(1))


def test_pie_can_start_as_in_pvse_with_glorots_bounds_and_no_bias():
    torch.manual_seed(0)
    head = PIEHead(300, 1024, 4, init="xavier")
    for weight in (layer.weight.detach() for layer in (head.attention[0], head.attention[2], head.fc)):
        bound = (6 / sum(weight.shape)) ** 0.5  # uniform in ±bound, so the deviation is bound/√3
        assert float(weight.abs().max()) <= bound
        assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    assert not head.fc.bias.any()


def test_pie_gives_the_numbers_that_were_computed_by_hand_of_its_definition():
    """Cells e₁, e₂; W takes the coordinates 1 and 2, w_k each one of them; fc is the identity; φ = (1, 0, −1, 0)."""
    head = PIEHead(4, 4, 2).double().eval()
    for weight, value in ((head.attention[0], torch.eye(2, 4)), (head.attention[2], torch.eye(2)), (head.fc, None)):
        weight.weight.data = torch.eye(4, dtype=torch.float64) if value is None else value.double()
    torch.nn.init.zeros_(head.fc.bias)
    cells, pooled = torch.eye(2, 4, dtype=torch.float64)[None], double([[1.0, 0.0, -1.0, 0.0]])
    sets = head(Features(cells, torch.ones(1, 2, dtype=torch.bool), pooled))
    near = partial(torch.testing.assert_close, rtol=0, atol=5.1e-5)
    near(sets.attention[0], double([[0.6817, 0.3183], [0.3183, 0.6817]]))
    near(sets.residual[0], double([[0.6641, 0.5789, 0.5, 0.5], [0.5789, 0.6641, 0.5, 0.5]]))
    near(sets.vectors[0, 0], double([0.7203, 0.0119, -0.6925, -0.0397]))
    near(torch.nn.functional.cosine_similarity(*sets.residual[0], dim=0), double(0.9943))
    near(pvse_diversity(sets.residual), double(0.3515))


@pytest.mark.parametrize(("context_width", "parameters"), [(2048, 4_199_424), (300, 355_572)])
def test_parameters_of_pie_for_images_and_texts_are_as_in_pvse(context_width, parameters):
    assert sum(p.numel() for p in PIEHead(context_width, 1024, 2).parameters()) == parameters


@pytest.mark.usefixtures("without_shape_checks")
def test_an_unknown_option_of_a_head_is_refused():
    with pytest.raises(ValueError, match=r"init: .*'normal'"):
        PIEHead(8, 8, 4, init="normal")
    with pytest.raises(ValueError, match=r"global_feature: .*'pooled'"):
        SetHead(8, 8, 4, global_feature="pooled")
    with pytest.raises(ValueError, match=r"spare_slots: .*-1"):
        SetHead(8, 8, 4, spare_slots=-1)


def test_the_attention_of_pie_has_half_the_width_of_the_input_and_no_biases():
    shapes = {name: tuple(p.shape) for name, p in PIEHead(300, 1024, 4).named_parameters() if "attention" in name}
    assert shapes == {"attention.0.weight": (150, 300), "attention.2.weight": (4, 150)}
