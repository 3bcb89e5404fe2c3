import pytest
import reference_layers as reference
import torch

from maxmatch.core.types import Features
from maxmatch.model.layers import SetHead, sine_positions


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


def parameters_without(head, name):
    return sum(p.numel() for n, p in head.named_parameters() if not n.startswith(name))


def test_parameters_of_the_image_module_are_as_in_setdiv():
    head = SetHead(context_width=1024, width=1024, set_size=4, heads=4, head_width=512)
    assert parameters_without(head, "pooled_norm") == 16_795_648


def test_parameters_of_the_text_module_are_as_in_setdiv():
    head = SetHead(context_width=300, width=1024, set_size=4, heads=4, head_width=512)
    assert parameters_without(head, "pooled_norm") == 13_828_696


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


def test_gradients_reach_every_parameter():
    head, inputs = small_head().train(), features()
    (head(inputs).vectors * torch.randn(2, 3, 6)).sum().backward()
    dead = [name for name, p in head.named_parameters() if p.grad is None or not p.grad.any()]
    assert dead == []


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


def test_reordered_slots_give_the_same_vectors_in_another_order():
    head, inputs = small_head(), features()
    before, order = head(inputs), [2, 0, 1]
    head.reorder(order)
    after = head(inputs)
    for name in ("vectors", "residual", "attention"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name)[:, order])
    assert torch.equal(after.pooled, before.pooled)
