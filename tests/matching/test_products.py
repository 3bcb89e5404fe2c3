"""Inner products of many vectors with a few."""

import pytest
import torch

from maxmatch.matching.products import products_with_few


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("many", "few", "width"), [(1, 1, 1), (1000, 1, 96), (257, 7, 33), (3, 32, 1536), (5, 0, 4)])
def test_products_with_few_are_the_inner_products(many, few, width, dtype):
    generator = torch.Generator().manual_seed(many + few)
    a, b = (torch.randn(count, width, generator=generator).to(dtype) for count in (many, few))
    expected = torch.tensor([[float(x.double() @ y.double()) for y in b] for x in a]).reshape(many, few)
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-5, torch.bfloat16: 0.5}[dtype]
    torch.testing.assert_close(products_with_few(a, b).float(), expected.float(), rtol=0.02, atol=tolerance)


def test_products_with_few_without_onednn_are_the_same(monkeypatch):
    a, b = torch.randn(40, 16), torch.randn(3, 16)
    expected = products_with_few(a, b)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    torch.testing.assert_close(products_with_few(a, b), expected)
