import torch

from maxmatch.model.layers import masked_max, masked_mean


def test_pooling_agrees_with_loops_over_the_real_features():
    torch.manual_seed(0)
    local = torch.randn(3, 6, 5, dtype=torch.float64)
    mask = torch.rand(3, 6) < 0.6
    mask[:, 0] = True
    largest, mean = masked_max(local, mask), masked_mean(local, mask)
    for b in range(3):
        real = [local[b, n].tolist() for n in range(6) if mask[b, n]]
        for w in range(5):
            channel = [row[w] for row in real]
            assert largest[b, w] == max(channel)
            torch.testing.assert_close(float(mean[b, w]), sum(channel) / len(channel), rtol=1e-12, atol=0)


def test_padding_may_hold_anything():
    local = torch.tensor([[[1.0], [2.0], [torch.nan]], [[-1.0], [-3.0], [torch.inf]]])
    mask = torch.tensor([[True, True, False]] * 2)
    assert masked_max(local, mask).tolist() == [[2.0], [-1.0]]
    assert masked_mean(local, mask).tolist() == [[1.5], [-2.0]]


def test_no_gradient_flows_to_padding():
    local = torch.randn(2, 4, 3, requires_grad=True)
    mask = torch.tensor([[True, True, False, False], [True, False, False, False]])
    (masked_max(local, mask).sum() + masked_mean(local, mask).sum()).backward()
    assert torch.isfinite(local.grad).all()
    assert not local.grad[~mask].any()
