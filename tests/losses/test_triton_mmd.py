"""The kernels of MMD, interpreted on the CPU: the formula in double precision and its gradient are the reference."""

from importlib import import_module

import pytest
import torch
from reference_losses import normal, units
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from maxmatch.core import machine
from maxmatch.losses import mmd, triton_mmd
from maxmatch.losses.triton_mmd import discrepancy

# Less and more than a tile of 64 × 128 pairs and than 1024 numbers of a vector; two whole tiles.
SHAPES = [(1, 1, 3), (9, 21, 16), (70, 131, 24), (64, 192, 8), (3, 2, 1100), (150, 1, 5)]
CHOICE = import_module("maxmatch.losses.mmd")  # as an attribute of the package, the name is the function's


def mean_kernel(x: Tensor, y: Tensor) -> Tensor:
    squared = (x[:, None] - y).square().sum(2)
    apart = squared > 0
    return torch.where(apart, (-0.5 * torch.where(apart, squared, 1.0).sqrt()).exp(), 1.0).mean()


def formula(x: Tensor, y: Tensor) -> Tensor:
    return mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)


def with_gradients(function, x: Tensor, y: Tensor, factor: float = 1.0) -> tuple[Tensor, ...]:
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    value = function(x, y)
    return value.detach(), *torch.autograd.grad(factor * value, (x, y))


def assert_as_the_formula(x: Tensor, y: Tensor, share: float = 1e-4, factor: float = 1.0) -> None:
    """The value to rounding, the gradients to this share of the longest gradient of the side."""
    value, *ours = with_gradients(discrepancy, x, y, factor)
    exact, *expected = with_gradients(formula, x.double(), y.double(), factor)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(exact.item(), abs=1e-6)
    longest = max(side.norm(dim=1).max() for side in expected)
    for mine, side in zip(ours, expected, strict=True):
        assert (mine - side).norm(dim=1).max() <= share * longest


@pytest.mark.parametrize("draw", [units, normal])
@pytest.mark.parametrize(("n", "m", "width"), SHAPES)
def test_value_and_gradients_are_those_of_the_formula(n: int, m: int, width: int, draw) -> None:
    assert_as_the_formula(draw(n, width, seed=1).float(), draw(m, width, seed=2).float())


def test_the_gradient_that_arrives_is_multiplied_in() -> None:
    assert_as_the_formula(units(9, 6, seed=1).float(), units(30, 6, seed=2).float(), factor=-3.5)


def test_vectors_that_lie_apart_in_memory_are_read_right() -> None:
    wide, deep = units(20, 24, seed=1).float(), units(8, 40, seed=2).float()
    assert_as_the_formula(wide[:, ::3], deep.T)


def test_equal_vectors_have_kernel_1_and_no_slope() -> None:
    x, y = units(70, 16, seed=1).float(), units(90, 16, seed=2).float()
    x[1], x[69], y[3], y[89] = x[0], x[0], x[5], y[0]
    assert_as_the_formula(x, y)
    value, *ours = with_gradients(discrepancy, x[:1], x[:1].clone())
    assert value == 0
    assert not any(side.any() for side in ours)


def test_a_cloud_and_itself_have_no_discrepancy_and_feel_nothing() -> None:
    x = units(150, 16, seed=1).float()
    assert discrepancy(x, x).item() == pytest.approx(0, abs=1e-6)
    leaf = x.clone().requires_grad_()
    (both,) = torch.autograd.grad(discrepancy(leaf, leaf), leaf)
    assert both.norm(dim=1).max() <= 1e-6
    assert_as_the_formula(x[:100], x[50:])


@pytest.mark.parametrize("radius", [1e-1, 1e-2, 1e-3])
def test_collapsed_clouds_still_feel_each_other(radius: float) -> None:
    point = units(16)
    x, y = ((point + radius * units(count, 16, seed=count)).float() for count in (12, 40))
    assert_as_the_formula(x, y, share=0.01)


def test_a_cloud_in_one_point_has_no_gradient_within() -> None:
    assert_as_the_formula(torch.ones(10, 8) / 8**0.5, units(30, 8, seed=2).float())
    value, *ours = with_gradients(discrepancy, torch.zeros(5, 4), torch.zeros(7, 4))
    assert value.item() == pytest.approx(0, abs=1e-6)
    assert not any(side.any() for side in ours)


def test_a_vector_that_is_not_a_number_makes_the_loss_none() -> None:
    x = units(70, 4).float()
    x[69, 3] = torch.nan
    assert discrepancy(x, units(3, 4).float()).isnan()


def test_mmd_is_the_same_with_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = units(20, 4, 12, seed=1).float(), units(35, 3, 12, seed=2).float()
    plain = with_gradients(mmd, a, b)
    monkeypatch.setattr(CHOICE, "_kernels", lambda x, y: triton_mmd)
    for expected, ours in zip(plain, with_gradients(mmd, a, b), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


def test_only_single_precision_on_a_gpu_takes_the_kernels() -> None:
    single = torch.zeros(2, 3)
    assert CHOICE._kernels(single, single) is None
    with FakeTensorMode():
        single, double = (torch.empty(2, 3, device="cuda", dtype=kind) for kind in (torch.float32, torch.float64))
        assert CHOICE._kernels(single, single) is triton_mmd
        assert CHOICE._kernels(double, double) is None
        assert CHOICE._kernels(single, double) is None


def test_without_triton_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(machine, "import_module", missing)
    assert machine.optional_module.__wrapped__("maxmatch.losses.triton_mmd") is None
