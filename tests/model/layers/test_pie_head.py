import reference_layers as reference
import torch

from maxmatch.core.types import Features
from maxmatch.model.layers import PIEHead


def head_and_features(dtype=torch.float64):
    torch.manual_seed(0)
    head = PIEHead(context_width=5, width=6, set_size=3).eval()
    for parameter in head.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    mask = torch.arange(7) < torch.tensor([7, 4])[:, None]
    return head.to(dtype), Features(torch.randn(2, 7, 5, dtype=dtype), mask, torch.randn(2, 6, dtype=dtype))


def test_pie_head_agrees_with_the_reference():
    head, inputs = head_and_features()
    sets = head(inputs)
    parameters = {name: value.tolist() for name, value in head.state_dict().items()}
    for b, length in enumerate([7, 4]):
        expected = reference.pie_head(inputs.local[b, :length].tolist(), inputs.pooled[b].tolist(), parameters)
        found = sets.vectors[b], sets.residual[b], sets.attention[b, :, :length]
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, torch.tensor(theirs, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    assert not sets.attention[1, :, 4:].any()
    assert sets.pooled is inputs.pooled


def test_parameters_are_half_the_width_of_the_input_and_without_biases_in_the_attention():
    names = {name: tuple(p.shape) for name, p in PIEHead(300, 1024, 4).named_parameters()}
    assert names == {
        "attention.0.weight": (150, 300),
        "attention.2.weight": (4, 150),
        "fc.weight": (1024, 300),
        "fc.bias": (1024,),
        "norm.weight": (1024,),
        "norm.bias": (1024,),
    }


def test_gradients_reach_every_parameter():
    head, inputs = head_and_features()
    (head(inputs).vectors * torch.randn(2, 3, 6)).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in head.parameters())


def test_reordered_heads_give_the_same_vectors_in_another_order():
    head, inputs = head_and_features()
    before, order = head(inputs), [2, 0, 1]
    head.reorder(order)
    after = head(inputs)
    for name in ("vectors", "residual", "attention"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name)[:, order])
