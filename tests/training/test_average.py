import torch
from tiny_models import tiny_model

from maxmatch.training.optim import Average, with_average


def shaken(model, seed):
    """The model one step on."""
    generator = torch.Generator().manual_seed(seed)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.add_(0.1 * torch.randn(value.shape, generator=generator))
        else:
            value.add_(1)


def test_the_average_is_that_of_a_loop_by_hand():
    model = tiny_model("region_bigru")
    average = Average(model, 0.8)
    expected = {name: value.double() for name, value in model.state_dict().items()}
    for step in range(5):
        shaken(model, step)
        average.update(model)
        for name, value in model.state_dict().items():
            expected[name] = 0.8 * expected[name] + 0.2 * value.double()
    for name, value in average.weights.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=0, atol=1e-5)
    assert average.weights.keys() == {name for name, value in model.state_dict().items() if value.is_floating_point()}
    assert "towers.image.encoder.mlp.1.running_var" in average.weights


def test_the_model_has_the_averaged_weights_for_a_while_and_its_own_to_the_bit_afterwards():
    model = tiny_model("region_bigru")
    average = Average(model, 0.5)
    shaken(model, 0)
    average.update(model)
    shaken(model, 1)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    with with_average(average, model):
        inside = {name: value.clone() for name, value in model.state_dict().items()}
    assert all(torch.equal(inside[name], value) for name, value in average.weights.items())
    assert int(inside["towers.image.encoder.mlp.1.num_batches_tracked"]) == 2
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())
    assert not torch.equal(inside["towers.image.head.slots"], own["towers.image.head.slots"])


def test_without_an_average_the_model_is_as_it_is():
    model = tiny_model("region_bigru")
    slots = model.tower("image").head.slots.clone()
    with with_average(None, model):
        assert torch.equal(model.tower("image").head.slots, slots)


def test_what_never_changes_is_its_own_average_to_the_bit():
    model = tiny_model("region_bigru")
    average = Average(model, 0.999)
    before = {name: value.clone() for name, value in average.weights.items()}
    for _ in range(50):
        average.update(model)
    assert all(torch.equal(before[name], value) for name, value in average.weights.items())
