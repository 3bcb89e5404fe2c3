import pytest
import reference_encoders as reference
import torch
from torch import nn
from torch.testing import assert_close

from maxmatch.model.encoders.vision import MaskedBatchNorm, RegionEncoder
from maxmatch.model.layers import sine_positions


def small_encoder(dtype=torch.float64, **options):
    torch.manual_seed(0)
    encoder = RegionEncoder(feature_width=5, width=6, **options).to(dtype)
    encoder(torch.randn(20, 4, 5, dtype=dtype))  # so that BatchNorm has statistics
    return encoder.eval()


@pytest.mark.parametrize("mlp_reads", ["fc", "input"])
def test_region_encoder_agrees_with_the_reference(mlp_reads):
    encoder = small_encoder(mlp_reads=mlp_reads)
    regions, lengths = torch.randn(3, 4, 5, dtype=torch.float64), [4, 1, 3]
    features = encoder(regions, torch.arange(4) < torch.tensor(lengths)[:, None])
    for place, length in enumerate(lengths):
        expected = reference.region(regions[place, :length].tolist(), reference.parameters_of(encoder), mlp_reads)
        reference.assert_item(features, place, expected)
    assert features.positions is None


def test_features_of_a_sequence_get_positions():
    mask = torch.arange(4) < torch.tensor([4, 2])[:, None]
    features = RegionEncoder(5, 6, ordered=True)(torch.randn(2, 4, 5), mask)
    assert torch.equal(features.positions, sine_positions(mask, 6))


def test_sizes_are_those_of_the_paper_by_default():
    shapes = {name: tuple(p.shape) for name, p in RegionEncoder().named_parameters() if p.ndim == 2}
    assert shapes == {"fc.weight": (1024, 2048), "mlp.0.weight": (512, 1024), "mlp.3.weight": (1024, 512)}


def test_in_vse_infinity_fc_and_mlp_both_read_the_features_and_fc_starts_by_glorots_rule():
    torch.manual_seed(0)
    encoder = RegionEncoder(mlp_reads="input", init="xavier")
    shapes = {name: tuple(p.shape) for name, p in encoder.named_parameters() if p.ndim == 2}
    assert shapes == {"fc.weight": (1024, 2048), "mlp.0.weight": (512, 2048), "mlp.3.weight": (1024, 512)}
    bound = (6 / 3072) ** 0.5
    assert bound * 0.99 < float(encoder.fc.weight.detach().abs().max()) <= bound
    assert not encoder.fc.bias.any()
    assert encoder.mlp[0].bias.any()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("option", ["mlp_reads", "init"])
def test_an_unknown_option_is_refused(option):
    with pytest.raises(ValueError, match=f"{option}: .*'other'"):
        RegionEncoder(5, 6, **{option: "other"})


def test_features_of_another_width_and_items_without_regions_are_refused():
    with pytest.raises(ValueError, match=r"expected shape \(items, regions, 5\), got 2×4×7"):
        small_encoder(torch.float32)(torch.randn(2, 4, 7))
    with pytest.raises(ValueError, match=r"item \[1\] has no vector left"):
        small_encoder(torch.float32)(torch.randn(2, 2, 5), torch.tensor([[True, True], [False, False]]))


def test_masked_batch_norm_is_plain_batch_norm_on_the_real_features():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 7, 3, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 7, generator=generator) < 0.6
    mask[:, 0] = True
    x[~mask] *= 1e3  # padding must not move the statistics
    weights = torch.randn(int(mask.sum()), 3, dtype=torch.float64, generator=generator)
    ours, plain = MaskedBatchNorm(3).double(), nn.BatchNorm1d(3).double()
    ours.load_state_dict(plain.state_dict())
    for _ in range(3):
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        normed, expected = ours(a, mask)[mask], plain(b[mask])
        assert_close(normed, expected, rtol=1e-9, atol=1e-12)
        gradients = torch.autograd.grad((normed * weights).sum(), (a, ours.weight))
        assert_close(
            gradients, torch.autograd.grad((expected * weights).sum(), (b, plain.weight)), rtol=1e-9, atol=1e-9
        )
    assert_close(dict(ours.state_dict()), dict(plain.state_dict()), rtol=1e-10, atol=1e-12)
    assert_close(ours.eval()(x, mask)[mask], plain.eval()(x[mask]), rtol=1e-10, atol=1e-12)
