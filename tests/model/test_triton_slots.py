"""The blocks of a slot head as one function, interpreted on the CPU: the lines in torch and their gradients are the
reference.
"""

import pytest
import torch

from maxmatch.core.types import Features
from maxmatch.model.layers import SetHead, slot_heads, triton_norm, triton_slots
from maxmatch.model.layers.triton_norm import can_norm


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """So that each takes several groups of rows."""
    monkeypatch.setattr(triton_norm, "_PARTS", 2)


@pytest.fixture
def with_kernels(monkeypatch):
    monkeypatch.setattr(slot_heads, "_norm_kernels", lambda x: triton_norm if can_norm(x) else None)
    monkeypatch.setattr(slot_heads, "_slot_kernels", lambda x: triton_slots)


def a_head(dropout=0.0, **options):
    torch.manual_seed(0)
    shape = {"context_width": 12, "width": 24, "set_size": 3, "heads": 2, "head_width": 16, "depth": 2, **options}
    head = SetHead(dropout=dropout, **shape)
    for parameter in head.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))  # biases start at 0, norms as the identity
    return head


def some_features(*lengths, inputs=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    count = inputs or max(lengths)
    local, pooled = (torch.randn(len(lengths), *of, generator=generator) for of in ((count, 12), (24,)))
    return Features(local.requires_grad_(), torch.arange(count) < torch.tensor(lengths)[:, None], pooled, None)


def learned(head, *parts):
    """The sets, and the gradients of all parameters and inputs."""
    head.zero_grad()
    sets = head(*parts)
    (sets.vectors.square() * torch.arange(24.0)).sum().backward()
    inputs = [part.local.grad.clone() for part in parts]
    for part in parts:
        part.local.grad = None
    gradients = [parameter.grad.clone() for parameter in head.parameters()]
    return sets, [sets.vectors, sets.residual, *gradients, *inputs]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"depth": 1}, {"depth": 4, "set_size": 4}, {"set_size": 1, "spare_slots": 2}, {"depth": 3, "heads": 1}],
    ids=str,
)
def test_a_head_gives_the_same_sets_and_learns_the_same_with_the_kernels(request, options, training):
    head, features = a_head(0.0 if training else 0.5, **options), some_features(6, 2, 1)
    head.train(training)
    sets, expected = learned(head, features)
    request.getfixturevalue("with_kernels")
    mine, found = learned(head, features)
    torch.testing.assert_close(mine.attention, sets.attention, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernels", [True, False])
def test_items_in_parts_of_different_lengths_are_what_they_are_alone(request, kernels):
    head, parts = a_head(), (some_features(3, 1, 2), some_features(9, 7, seed=1))
    each = [learned(head, part)[1] for part in parts]
    if kernels:
        request.getfixturevalue("with_kernels")
    sets, (vectors, residual, *gradients) = learned(head, *parts)
    assert sets.attention is None
    torch.testing.assert_close(vectors, torch.cat([one[0] for one in each]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(residual, torch.cat([one[1] for one in each]), rtol=1e-4, atol=1e-5)
    *of_parameters, first, second = gradients
    torch.testing.assert_close(first, each[0][-1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(second, each[1][-1], rtol=1e-4, atol=1e-5)
    for mine, one, other in zip(of_parameters, each[0][2:-1], each[1][2:-1], strict=True):
        torch.testing.assert_close(mine, one + other, rtol=1e-4, atol=2e-5)


@pytest.mark.usefixtures("with_kernels")
def test_every_number_dropped_is_dropped_on_the_way_back_too():
    """With the same seed, a small step along the gradient changes the loss by as much as the gradient says."""
    head, features = a_head(0.4), some_features(5, 2)
    weights = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def loss():
        torch.manual_seed(3)
        return (head(features).vectors.double() * weights).sum()

    head.zero_grad()
    loss().backward()
    for name in (
        "block.feedforward.1.weight",
        "block.feedforward.4.weight",
        "block.attention.output.0.weight",
        "slots",
    ):
        parameter = head.get_parameter(name)
        direction = parameter.grad / parameter.grad.norm()
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * 2e-3)
                values.append(float(loss()))
                parameter.sub_(direction, alpha=sign * 2e-3)
        slope = (values[0] - values[1]) / 4e-3
        assert slope == pytest.approx(float(parameter.grad.norm()), rel=0.02), name


@pytest.mark.usefixtures("with_kernels")
def test_what_needs_no_gradient_is_the_same():
    head, features = a_head().eval(), some_features(5, 2)
    with torch.no_grad():
        alone = head(features)
    assert torch.equal(alone.vectors, head(features).vectors)
    assert torch.equal(alone.attention, head(features).attention)


@pytest.mark.usefixtures("with_kernels")
def test_a_second_pass_through_the_same_graph_has_the_same_gradients():
    head, features = a_head(), some_features(5, 2)
    total = head(features).vectors.pow(3).sum()
    first = torch.autograd.grad(total, list(head.parameters()), retain_graph=True)
    for one, other in zip(first, torch.autograd.grad(total, list(head.parameters())), strict=True):
        assert torch.equal(one, other)


def test_in_mixed_precision_a_heads_sets_are_those_of_float32_to_its_precision(request):
    head, features = a_head(), some_features(6, 2, 1)
    exactly = learned(head, features)[1]
    request.getfixturevalue("with_kernels")
    with torch.autocast("cpu", torch.float16):  # the interpreter has no products in bfloat16
        sets, found = learned(head, features)
    assert sets.residual.dtype == sets.vectors.dtype == torch.float32
    assert (sets.vectors - exactly[0]).norm(dim=2).max() < 0.03
    for mine, theirs in zip(found[2:], exactly[2:], strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine - theirs).norm() < 0.1 * theirs.norm() + 1e-3


@pytest.mark.usefixtures("with_kernels")
def test_a_heads_dropout_follows_torchs_seed_and_is_off_in_evaluation():
    head, features = a_head(0.2), some_features(6, 2, 1)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(head(features).vectors)
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])
    head.eval()
    assert torch.equal(head(features).vectors, head(features).vectors)


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_slots_in_another_precision_stay_in_it(monkeypatch, dtype):
    monkeypatch.setattr(triton_slots, "slot_blocks", None)
    head, features = a_head(), some_features(6, 2)
    sets = head.to(dtype)(Features(features.local.to(dtype), features.mask, features.pooled.to(dtype), None))
    assert sets.residual.dtype == dtype


@pytest.mark.usefixtures("with_kernels")
def test_a_head_whose_heads_do_not_suit_the_kernels_goes_without(monkeypatch):
    monkeypatch.setattr(triton_slots, "slot_blocks", None)
    assert a_head(head_width=12)(some_features(6, 2)).vectors.shape == (2, 3, 24)


def test_on_a_processor_there_are_no_kernels():
    assert slot_heads._slot_kernels(torch.zeros(1)) is None
