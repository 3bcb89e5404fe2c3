"""The kernels between a head's products, interpreted on the CPU: the formulas in double precision are the reference."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import gelu, layer_norm

from maxmatch.model.layers import slot_heads, triton_norm
from maxmatch.model.layers.triton_norm import Added, bits_for, parts_for, period_of, seeds, totals

# Rows that are and are not a multiple of four, widths that are and are not powers of two.
SHAPES = [(1, 1, 8), (7, 3, 24), (2, 4, 300), (5, 1, 384), (2, 3, 1024)]
CLOSE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """So that each takes several groups of rows."""
    monkeypatch.setattr(triton_norm, "_PARTS", 2)


class AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, y_bias, weight, bias, epsilon, dtype, dropout, seed):
        rows = x.shape[0] * x.shape[1]
        x = x if period_of(x) < rows else x.contiguous()
        total = x.clone() if y is None else torch.empty(x.shape)
        out, stats = torch.empty(x.shape, dtype=dtype), torch.empty(2, rows)
        bits = bits_for(1, rows, x.shape[2], dropout, x.device)[0]
        added = None if y is None else Added(y.contiguous(), y_bias, dropout, seed, bits)
        triton_norm.add_norm(x, (weight, bias, epsilon), total, out, stats, added)
        ctx.save_for_backward(x if y is None else total, stats, weight, bits)
        ctx.of_y, ctx.dropout = None if y is None else y.dtype, dropout
        return total, out

    @staticmethod
    def backward(ctx, arriving, arriving_out):
        total, stats, weight, bits = ctx.saved_tensors
        to_x = torch.empty(total.shape, dtype=total.dtype)
        to_y = None if ctx.of_y is None else torch.empty(total.shape, dtype=ctx.of_y)
        parts = parts_for(1, stats.shape[1], 2 if to_y is None else 3, total.shape[2], device=total.device)[0]
        triton_norm.add_norm_backwards(
            total, stats, weight, arriving.contiguous(), arriving_out.contiguous(), to_x, parts, to_y, ctx.dropout, bits
        )
        of_weight, of_bias, *of_added = totals(parts)
        return to_x, to_y, of_added[0] if of_added else None, of_weight, of_bias, None, None, None, None


class GeluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, dropout, seed):
        rows, width = x.shape[0] * x.shape[1], x.shape[2]
        x, out = x.contiguous().view(rows, width), torch.empty(rows, width, dtype=x.dtype)
        bits = bits_for(1, rows, width, dropout, x.device)[0]
        triton_norm.gelu_dropout(x, bias, dropout, seed, out, bits)
        ctx.save_for_backward(x, bias, bits)
        ctx.dropout = dropout
        return out

    @staticmethod
    def backward(ctx, arriving):
        x, bias, bits = ctx.saved_tensors
        to_x, parts = torch.empty_like(x), parts_for(1, len(x), x.shape[1], device=x.device)[0]
        triton_norm.gelu_dropout_backwards(x, bias, ctx.dropout, bits, arriving.contiguous(), to_x, parts)
        return to_x.view(-1, 1, x.shape[1]), totals(parts), None, None


def add_norm(x, norm, dtype, product=None, bias=None, dropout=0.0, seed=None):
    return AddNorm.apply(x, product, bias, norm.weight, norm.bias, norm.eps, dtype, dropout, seed)


def gelu_dropout(x, bias, dropout=0.0, seed=None):
    return GeluDropout.apply(x.reshape(-1, 1, x.shape[2]), bias, dropout, seed).view(x.shape)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_norm(width):
    norm = nn.LayerNorm(width, eps=1e-3)
    norm.weight.data, norm.bias.data = drawn(width, seed=8).float(), drawn(width, seed=9).float()
    return norm


def exact(x, product, bias, weight, shift, eps):
    total = x if product is None else x + product + bias
    return total, layer_norm(total, total.shape[-1:], weight, shift, eps)


def assert_close(ours, expected, share):
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.shape == theirs.shape
        assert (mine.double() - theirs).abs().max() <= share * theirs.abs().max()


def doubles(*tensors):
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_sum_its_norm_and_all_gradients_are_those_of_the_formula(shape, adds, dtype):
    x = drawn(*shape, seed=1).float().requires_grad_()
    y = drawn(*shape, seed=2).to(dtype).requires_grad_()
    bias, norm = drawn(shape[2], seed=3).float().requires_grad_(), some_norm(shape[2])
    total, normed = add_norm(x, norm, dtype, y, bias) if adds else add_norm(x, norm, dtype)
    assert (total.dtype, normed.dtype) == (torch.float32, dtype)
    both, weights = ((x, y, bias) if adds else (x,)), (norm.weight, norm.bias)
    arriving = drawn(*shape, seed=4).float(), drawn(*shape, seed=5).to(dtype)
    ours = torch.autograd.grad((total, normed), (*both, *weights), arriving)
    assert [one.dtype for one in ours] == [one.dtype for one in (*both, *weights)]
    precise = doubles(*both, *weights)
    expected = exact(*(precise[:3] if adds else (precise[0], None, None)), *precise[-2:], norm.eps)
    theirs = torch.autograd.grad(expected, precise, [one.double() for one in arriving])
    assert_close((total, normed), expected, CLOSE[dtype])
    assert_close(ours, theirs, CLOSE[dtype])


def test_features_in_half_precision_are_normed_as_their_numbers_and_get_a_gradient_like_them():
    x, norm = drawn(3, 3, 24).to(torch.float16).requires_grad_(), some_norm(24)
    same, normed = add_norm(x, norm, torch.float16)
    assert torch.equal(same, x)
    arriving = drawn(3, 3, 24, seed=1).to(torch.float16)
    (precise,) = doubles(x)
    expected = exact(precise, None, None, norm.weight.double(), norm.bias.double(), norm.eps)[1]
    ours = torch.autograd.grad(normed, (x, norm.weight), arriving)
    assert [one.dtype for one in ours] == [torch.float16, torch.float32]
    assert_close([normed], [expected], CLOSE[torch.float16])
    assert_close(ours[:1], torch.autograd.grad(expected, precise, arriving.double()), CLOSE[torch.float16])


@pytest.mark.parametrize("used", [0, 1])
def test_a_loss_of_one_of_both_has_its_gradient(used):
    x, y, bias, norm = drawn(3, 2, 12, seed=1).float(), drawn(3, 2, 12, seed=2).float(), torch.zeros(12), some_norm(12)
    leaves = [one.requires_grad_() for one in (x, y, bias)]
    (add_norm(x, norm, torch.float32, y, bias)[used] ** 3).sum().backward()
    precise = doubles(*leaves)
    (exact(*precise, norm.weight.double(), norm.bias.double(), norm.eps)[used] ** 3).sum().backward()
    assert_close([one.grad for one in leaves], [one.grad for one in precise], 1e-5)


def test_slots_that_are_repeated_are_read_where_they_lie():
    slots, norm = drawn(3, 12).float().requires_grad_(), some_norm(12)
    x = slots.expand(5, -1, -1)
    total, normed = add_norm(x, norm, torch.float32)
    loss = (total * normed * drawn(5, 3, 12, seed=1)).sum()
    (precise,) = doubles(slots)
    expected = exact(precise.expand(5, -1, -1), None, None, norm.weight.double(), norm.bias.double(), norm.eps)
    theirs = torch.autograd.grad((expected[0] * expected[1] * drawn(5, 3, 12, seed=1)).sum(), precise)
    assert_close(torch.autograd.grad(loss, slots), theirs, 1e-5)
    product, bias = drawn(5, 3, 12, seed=2).float(), drawn(12, seed=3).float()
    total, _ = add_norm(x, norm, torch.float32, product, bias)
    torch.testing.assert_close(total, x + product + bias)


def test_rows_that_lie_apart_in_memory_are_read_right():
    x, product, norm, bias = drawn(6, 4, 10).float(), drawn(4, 6, 10, seed=1).float(), some_norm(10), torch.ones(10)
    expected = add_norm(x, norm, torch.float32, product.transpose(0, 1).contiguous(), bias)
    for mine, theirs in zip(add_norm(x, norm, torch.float32, product.transpose(0, 1), bias), expected, strict=True):
        assert torch.equal(mine, theirs)
    turned = x.transpose(0, 1)
    assert torch.equal(add_norm(turned, norm, torch.float32)[1], add_norm(turned.contiguous(), norm, torch.float32)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 8), (3, 3, 300), (2, 4, 1536), (7, 3, 24)], ids=str)
def test_gelu_and_its_gradients_are_those_of_the_formula(shape, dtype):
    x, bias = (2 * drawn(*shape)).to(dtype).requires_grad_(), drawn(shape[2], seed=1).float().requires_grad_()
    out = gelu_dropout(x, bias)
    assert out.dtype == dtype
    arriving = drawn(*shape, seed=2).to(dtype)
    precise = doubles(x, bias)
    expected = gelu(precise[0] + precise[1])
    assert_close([out], [expected], CLOSE[dtype])
    theirs = torch.autograd.grad(expected, precise, arriving.double())
    assert_close(torch.autograd.grad(out, (x, bias), arriving), theirs, CLOSE[dtype])


def gelu_of(x, bias, p, seed):
    return gelu_dropout(x, bias, p, seed), gelu(x + bias)


def sum_of(x, bias, p, seed):
    return add_norm(torch.zeros_like(x), some_norm(x.shape[2]), torch.float32, x, bias, p, seed)[0], x + bias


@pytest.mark.parametrize("function", [gelu_of, sum_of])
def test_dropout_keeps_a_share_scaled_and_the_gradient_takes_the_same_way(function):
    p, x, bias = 0.3, drawn(40, 3, 200).float().requires_grad_(), drawn(200, seed=1).float().requires_grad_()
    torch.manual_seed(0)
    out, whole = function(x, bias, p, seeds(1, x.device)[0, 1])
    kept = out != 0
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=0.01)  # 24,000 numbers: four deviations
    torch.testing.assert_close(out[kept], (whole / (1 - p))[kept])
    for axis in (0, 1, 2):  # no row, column or slot fares otherwise, and neighbours are independent
        others = tuple({0, 1, 2} - {axis})
        assert (kept.double().mean(others) - 0.7).abs().max() < 0.2
        size = kept.shape[axis]
        both = kept.narrow(axis, 0, size - 1) & kept.narrow(axis, 1, size - 1)
        assert both.double().mean().item() == pytest.approx((1 - p) ** 2, abs=0.02)
    arriving = drawn(*x.shape, seed=2).float()
    ours = torch.autograd.grad(out, (x, bias), arriving)
    theirs = torch.autograd.grad(whole, (x, bias), arriving * kept / (1 - p))
    assert_close(ours, theirs, 1e-5)


def test_the_sum_with_dropout_passes_its_norms_gradient_on_through_the_same_mask():
    x, y, bias, norm = drawn(5, 3, 20).float(), drawn(5, 3, 20, seed=1).float(), torch.ones(20), some_norm(20)
    leaves = [one.requires_grad_() for one in (x, y, bias)]
    total, normed = add_norm(x, norm, torch.float32, y, bias, 0.4, seeds(1, x.device)[0, 0])
    kept = (total - x).detach().abs() > 1e-6
    (total.square() + normed**3).sum().backward()
    a, b, c = precise = doubles(*leaves)
    expected, after = exact(
        a, (b + c) * kept / 0.6, torch.zeros(20).double(), norm.weight.double(), norm.bias.double(), norm.eps
    )
    (expected.square() + after**3).sum().backward()
    assert_close((total, normed), (expected, after), 1e-5)
    assert_close([one.grad for one in leaves], [one.grad for one in precise], 1e-5)


def test_the_same_seed_gives_the_same_masks_and_each_draw_another():
    x, bias = torch.full((6, 4, 32), 3.0), torch.zeros(32)
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        found.append([gelu_dropout(x, bias, 0.5, one) for pair in seeds(2, x.device) for one in pair])
    first, again, other = found
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(first, again, strict=True))
    every = [out.flatten() != 0 for out in (*first, *other)]
    assert len({tuple(one.tolist()) for one in every}) == 8


def test_all_can_be_dropped():
    x = torch.ones(2, 2, 8, requires_grad=True)
    out = gelu_dropout(x, torch.zeros(8), 1.0, seeds(1, x.device)[0, 0])
    assert not out.any()
    assert not torch.autograd.grad(out.sum(), x)[0].any()


@pytest.mark.parametrize(
    ("shape", "dtype", "fits"),
    [
        ((1, 1, 2048), torch.float32, True),
        ((1, 1, 8), torch.bfloat16, True),
        ((1, 1, 2049), torch.float32, False),
        ((1, 1, 8), torch.float64, False),
        ((0, 1, 8), torch.float32, False),
    ],
    ids=str,
)
def test_what_takes_the_kernels_on_a_gpu(shape, dtype, fits):
    assert slot_heads._norm_kernels(torch.empty(shape, dtype=dtype)) is None
    with FakeTensorMode():
        assert slot_heads._norm_kernels(torch.empty(shape, dtype=dtype, device="cuda")) is (
            triton_norm if fits else None
        )
