"""Who learns how fast and when, against formulas written out by hand."""

import math

import pytest
import torch
from tiny_models import tiny_model
from torch import nn

from maxmatch.recipe.schema import Train
from maxmatch.training.optim import (
    Average,
    Group,
    clip_gradients,
    freeze_for,
    optimiser,
    parameter_groups,
    schedule_factor,
    set_learning_rates,
    with_average,
)


def train_with(**options):
    return Train.model_validate({"epochs": 6, "batch_size": 4, "lr": 0.01, **options})


def rates(train, steps_per_epoch=5):
    return [schedule_factor(train, step, steps_per_epoch) for step in range(train.epochs * steps_per_epoch)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1.0] * 30),
        ({"name": "step", "every": 2, "factor": 0.1}, [1.0] * 10 + [0.1] * 10 + [0.01] * 10),
        ({"name": "step", "every": 2, "factor": 0.1, "times": 1}, [1.0] * 10 + [0.1] * 20),
        ("cosine", [math.cos(math.pi * step / 60) ** 2 for step in range(30)]),
    ],
)
def test_schedules_are_their_formulas(schedule, expected):
    assert rates(train_with(schedule=schedule)) == pytest.approx(expected)


@pytest.mark.parametrize("options", [{"warmup_steps": 4}, {"warmup_epochs": 0.8}])
def test_the_warm_up_rises_in_equal_steps_and_then_the_schedule_applies(options):
    risen = [0.25, 0.5, 0.75, 1.0] + [1.0] * 26
    plain = rates(train_with(schedule="cosine"))
    found = rates(train_with(schedule="cosine", **options))
    assert found == pytest.approx([up * down for up, down in zip(risen, plain, strict=True)])
    assert rates(train_with(schedule="constant", **options)) == pytest.approx(risen)


PARTS = {
    "resnet152_bigru": {
        "image.backbone": ["encoder.backbone."],
        "image.set_module": ["encoder.local_projection", "encoder.pooled_projection", "head."],
        "text.encoder": ["encoder.words.", "encoder.gru."],
        "text.set_module": ["head."],
    },
    "region_bert": {
        "image.set_module": ["encoder.fc.", "encoder.mlp.", "head."],
        "text.backbone": ["encoder.backbone."],
        "text.encoder": ["encoder.projection."],
        "text.set_module": ["head."],
    },
}


@pytest.mark.parametrize("preset", PARTS)
def test_every_parameter_is_in_one_group_and_set_modules_have_the_projection(preset):
    model = tiny_model(preset)
    factors = {"set_module": 0.5, "text.set_module": 0.25, "backbone": 0.125}
    groups = parameter_groups(model, train_with(lr_factors=factors))
    assert {group.name: group.factor for group in groups} == {
        name: {"set_module": 0.25 if name.startswith("text") else 0.5, "backbone": 0.125, "encoder": 1.0}[
            name.split(".")[1]
        ]
        for name in PARTS[preset]
    }
    names = [name for group in groups for name in group.parameters]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    parameters = dict(model.named_parameters())
    for group in groups:
        tower = group.name.split(".")[0]
        for name, parameter in group.parameters.items():
            assert parameters[name] is parameter
            assert name.removeprefix(f"towers.{tower}.").startswith(tuple(PARTS[preset][group.name])), name


def test_the_projection_after_bert_can_share_its_factor_as_in_setdiv():
    model = tiny_model("region_bert")
    for factors, expected in (({}, 1.0), ({"text.encoder": 0.1}, 0.1), ({"encoder": 0.1}, 0.1)):
        groups = parameter_groups(model, train_with(lr_factors={"text.backbone": 0.1, **factors}))
        found = {group.name: group.factor for group in groups}
        assert found == {"image.set_module": 1, "text.backbone": 0.1, "text.encoder": expected, "text.set_module": 1}


def test_a_backbone_that_is_frozen_for_good_is_not_given_to_the_optimiser():
    model = tiny_model("resnet152_bigru")
    groups = parameter_groups(model, train_with(freeze={"image.backbone": "always"}))
    assert [group.name for group in groups] == ["image.set_module", "text.encoder", "text.set_module"]


def test_the_rate_of_a_group_is_its_factor_times_that_of_the_step():
    model = tiny_model("region_bert")
    train = train_with(lr_factors={"set_module": 0.5, "text.backbone": 0.1}, schedule="cosine", weight_decay=0.3)
    groups = parameter_groups(model, train)
    adam = optimiser(groups, train)
    assert isinstance(adam, torch.optim.AdamW)
    for step in (0, 7, 29):
        rate = set_learning_rates(adam, train, step, 5)
        assert rate == pytest.approx(0.01 * math.cos(math.pi * step / 60) ** 2)
        found = [group["lr"] for group in adam.param_groups]
        factors = {"set_module": 0.5, "backbone": 0.1, "encoder": 1.0}
        assert found == pytest.approx([rate * factors[group.name.split(".")[1]] for group in groups])
    assert {group["weight_decay"] for group in adam.param_groups} == {0.3}
    assert {group["betas"] for group in adam.param_groups} == {(0.9, 0.999)}


def test_amsgrad_keeps_the_rate_low_after_a_large_gradient():
    steps = {}
    for amsgrad in (False, True):
        weight = nn.Parameter(torch.zeros(1))
        adam = optimiser([Group("a", 1.0, {"weight": weight})], train_with(amsgrad=amsgrad))
        for number in range(3000):
            weight.grad = torch.full((1,), 100.0 if number == 0 else 0.01)
            before = weight.item()
            adam.step()
        steps[amsgrad] = before - weight.item()
    assert steps[True] < steps[False] / 3


def test_the_gradient_is_clipped_by_its_norm_over_all_groups():
    one, two = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    groups = [Group("a", 1.0, {"one": one}), Group("b", 0.1, {"two": two})]
    for most, factor in ((6.5, 0.5), (20.0, 1.0)):
        one.grad, two.grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
        assert float(clip_gradients(groups, most)) == pytest.approx(13.0)
        assert one.grad.tolist() == pytest.approx([3 * factor, 4 * factor], rel=1e-5)
        assert two.grad.tolist() == pytest.approx([12 * factor], rel=1e-5)
    one.grad = torch.tensor([1e9, 0.0])
    assert clip_gradients(groups, None) is None
    assert float(one.grad[0]) == 1e9


def test_backbones_are_frozen_for_their_epochs_and_no_longer():
    model = tiny_model("resnext101_bert").train()
    train = train_with(freeze={"image.backbone": 2, "text.backbone": "always"})
    image, text = (model.tower(name).encoder for name in ("image", "text"))
    for epoch in (0, 1, 2, 1, 5):
        frozen = list(freeze_for(model, train, epoch))
        assert frozen == (["image", "text"] if epoch < 2 else ["text"])
        assert all(p.requires_grad == (epoch >= 2) for p in image.backbone.parameters())
        assert not any(p.requires_grad for p in text.backbone.parameters())
        norms = [module for module in image.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
        assert norms
        assert all(norm.training == (epoch >= 2) for norm in norms)


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


def test_the_model_has_the_average_for_a_while_and_then_exactly_its_own_weights():
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
