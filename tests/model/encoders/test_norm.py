import torch
from torch import nn

from maxmatch.model.encoders.vision import MaskedBatchNorm


def _batch():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 7, 3, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 7, generator=generator) < 0.6
    mask[:, 0] = True
    return x, mask


def test_real_features_are_normalised_as_if_there_were_no_padding():
    x, mask = _batch()
    ours, plain = MaskedBatchNorm(3).double(), nn.BatchNorm1d(3).double()
    for _ in range(3):
        torch.testing.assert_close(ours(x, mask)[mask], plain(x[mask]), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.running_mean, plain.running_mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.running_var, plain.running_var, rtol=1e-10, atol=1e-12)
    assert ours.num_batches_tracked == plain.num_batches_tracked
    torch.testing.assert_close(ours.eval()(x, mask)[mask], plain.eval()(x[mask]), rtol=1e-10, atol=1e-12)


def test_gradients_are_those_of_plain_batch_norm_on_the_real_features():
    x, mask = _batch()
    ours, plain = MaskedBatchNorm(3).double(), nn.BatchNorm1d(3).double()
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = torch.randn(int(mask.sum()), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (ours(a, mask)[mask] * weights).sum().backward()
    (plain(b[mask]) * weights).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad, rtol=1e-9, atol=1e-12)


def test_a_plain_batch_norm_can_be_loaded_into_it():
    MaskedBatchNorm(3).load_state_dict(nn.BatchNorm1d(3).state_dict())
