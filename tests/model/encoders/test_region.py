import pytest
import reference_encoders as reference
import torch

from maxmatch.model.encoders.vision import RegionEncoder
from maxmatch.model.layers import sine_positions


def small_encoder(dtype=torch.float64):
    torch.manual_seed(0)
    encoder = RegionEncoder(feature_width=5, width=6).to(dtype)
    encoder(torch.randn(20, 4, 5, dtype=dtype))  # so that BatchNorm has statistics
    return encoder.eval()


def test_region_encoder_agrees_with_the_reference():
    encoder = small_encoder()
    regions, lengths = torch.randn(3, 4, 5, dtype=torch.float64), [4, 1, 3]
    features = encoder(regions, torch.arange(4) < torch.tensor(lengths)[:, None])
    parameters = {name: value.tolist() for name, value in encoder.state_dict().items()}
    for b, length in enumerate(lengths):
        local, pooled = reference.region(regions[b, :length].tolist(), parameters)
        torch.testing.assert_close(
            features.local[b, :length], torch.tensor(local, dtype=torch.float64), rtol=1e-10, atol=1e-12
        )
        torch.testing.assert_close(
            features.pooled[b], torch.tensor(pooled, dtype=torch.float64), rtol=1e-10, atol=1e-12
        )
    assert features.positions is None


def test_features_of_a_sequence_get_positions():
    mask = torch.arange(4) < torch.tensor([4, 2])[:, None]
    features = RegionEncoder(5, 6, ordered=True)(torch.randn(2, 4, 5), mask)
    assert torch.equal(features.positions, sine_positions(mask, 6))


def test_padding_does_not_move_the_statistics_of_batchnorm():
    torch.manual_seed(0)
    regions = torch.randn(3, 4, 5)
    noisy = torch.cat([regions, 1e3 * torch.randn(3, 2, 5)], 1)
    plain, padded = RegionEncoder(5, 6), RegionEncoder(5, 6)
    padded.load_state_dict(plain.state_dict())
    plain(regions)
    padded(noisy, (torch.arange(6) < 4).expand(3, 6))
    torch.testing.assert_close(padded.mlp[1].running_mean, plain.mlp[1].running_mean)
    torch.testing.assert_close(padded.mlp[1].running_var, plain.mlp[1].running_var)


def test_sizes_are_those_of_the_paper_by_default():
    shapes = {name: tuple(p.shape) for name, p in RegionEncoder().named_parameters() if p.ndim == 2}
    assert shapes == {"fc.weight": (1024, 2048), "mlp.0.weight": (512, 1024), "mlp.3.weight": (1024, 512)}


def test_features_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"expected shape \(items, regions, 5\), got 2×4×7"):
        small_encoder(torch.float32)(torch.randn(2, 4, 7))


def test_an_item_without_regions_is_refused():
    mask = torch.tensor([[True, True], [False, False]])
    with pytest.raises(ValueError, match=r"item \[1\] has no vector left"):
        small_encoder(torch.float32)(torch.randn(2, 2, 5), mask)
