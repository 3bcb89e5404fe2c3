"""MMD with the kernel exp(−½‖x − y‖), the biased estimate, over all vectors of the two modalities."""

import math

import pytest
import reference_losses as reference
import torch
from reference_losses import cost_of, gradients_are_finite, normal, units
from torch import Tensor

from maxmatch.losses import mmd

SHAPES = [((3, 4, 6), (9, 4, 6)), ((1, 1, 3), (1, 1, 3)), ((5, 1, 2), (2, 3, 2)), ((2, 3, 8), (1, 5, 8))]


def near(point: Tensor, *shape: int, radius: float, seed: int) -> Tensor:
    """Unit vectors at about this distance from a point of the sphere."""
    return torch.nn.functional.normalize(point + radius * units(*shape, seed=seed), dim=-1)


@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
@pytest.mark.parametrize("draw", [units, normal])
def test_agrees_with_loop(a_shape: tuple[int, ...], b_shape: tuple[int, ...], draw) -> None:
    for seed in range(3):
        a, b = draw(*a_shape, seed=seed), draw(*b_shape, seed=seed + 100)
        assert mmd(a, b).item() == pytest.approx(reference.mmd(a, b), rel=1e-10)


def test_value_by_hand() -> None:
    a = torch.tensor([[[0.0, 0.0], [3.0, 4.0]]], dtype=torch.float64)
    b = torch.tensor([[[0.0, 0.0]]], dtype=torch.float64)
    far = math.exp(-2.5)  # ‖(3, 4)‖ = 5, not squared
    assert mmd(a, b).item() == pytest.approx((2 + 2 * far) / 4 + 1 - 2 * (1 + far) / 2)


@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_single_precision_is_enough(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    a, b = units(*a_shape, seed=1).float(), units(*b_shape, seed=2).float()
    single = mmd(a, b)
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(reference.mmd(a.double(), b.double()), abs=1e-5)


@pytest.mark.parametrize("radius", [1e-1, 1e-2, 1e-3, 1e-4])
def test_single_precision_is_enough_where_one_modality_has_collapsed(radius: float) -> None:
    a = near(units(16), 4, 3, 16, radius=radius, seed=1).float()
    b = units(6, 3, 16, seed=2).float()
    assert mmd(a, b).item() == pytest.approx(reference.mmd(a.double(), b.double()), abs=1e-5)


@pytest.mark.parametrize("radius", [1e-1, 1e-2, 1e-3])
def test_collapsed_clouds_still_feel_each_other_in_single_precision(radius: float) -> None:
    """Two clouds about one point: the gradient in single precision points where that in double precision does."""
    point = units(16)
    a, b = (near(point, 4, 3, 16, radius=radius, seed=seed).float() for seed in (1, 2))

    def gradient(a: Tensor, b: Tensor) -> Tensor:
        leaf = a.clone().requires_grad_()
        return torch.autograd.grad(mmd(leaf, b), leaf)[0].double()

    single, exact = gradient(a, b), gradient(a.double(), b.double())
    assert (single - exact).norm() <= 0.01 * exact.norm()


@pytest.mark.parametrize("draw", [units, normal])
def test_gradient_is_right(draw) -> None:
    a, b = draw(2, 2, 4, seed=1).requires_grad_(), draw(3, 2, 4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(mmd, (a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("draw", [units, normal])
def test_identical_clouds_have_no_discrepancy_and_a_finite_gradient(dtype: torch.dtype, draw) -> None:
    for seed in range(5):
        cloud = draw(6, 4, 32, seed=seed).to(dtype)
        assert mmd(cloud, cloud).item() == pytest.approx(0, abs=4 * torch.finfo(dtype).eps)
        assert mmd(cloud, cloud.flip(0, 1)).item() == pytest.approx(0, abs=4 * torch.finfo(dtype).eps)
        assert gradients_are_finite(mmd, cloud, cloud)
        leaf = cloud.clone().requires_grad_()
        mmd(leaf, leaf).backward()
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_duplicates_in_a_cloud_give_a_finite_gradient(dtype: torch.dtype) -> None:
    a, b = units(4, 2, 16, seed=1).to(dtype), units(5, 3, 16, seed=2).to(dtype)
    a[1], a[2, 0] = a[0], a[0, 0]
    b[0, 0] = a[3, 1]
    assert mmd(a, b).item() == pytest.approx(reference.mmd(a.double(), b.double()), abs=1e-5)
    assert gradients_are_finite(mmd, a, b)
    leaf = a.clone().requires_grad_()
    slope = torch.autograd.grad(mmd(leaf, b), leaf)[0]
    assert slope.norm(dim=-1).max() < 1  # rounding at distance 0 makes no slope up
    assert torch.allclose(slope[0], slope[1], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_points_feel_nothing_where_they_coincide_and_half_the_kernel_elsewhere(dtype: torch.dtype) -> None:
    point = units(1, 1, 8).to(dtype)
    assert mmd(point, point).item() == 0
    assert gradients_are_finite(mmd, point, point)
    leaf = (2 * point).requires_grad_()  # 2 − 2·exp(−r/2) has the slope exp(−r/2) in the distance r = 1
    slope = torch.autograd.grad(mmd(leaf, point), leaf)[0]
    assert slope.norm().item() == pytest.approx(math.exp(-0.5), rel=1e-5)


def test_zero_vectors_give_a_finite_gradient() -> None:
    assert mmd(torch.zeros(2, 2, 3), torch.zeros(3, 1, 3)).item() == 0
    assert gradients_are_finite(mmd, torch.zeros(2, 2, 3), torch.zeros(3, 1, 3))
    assert gradients_are_finite(mmd, torch.zeros(2, 2, 3), torch.ones(3, 1, 3))


def test_no_loop_over_items_and_no_tensor_of_differences() -> None:
    costs = []
    for images, captions in ((3, 5), (12, 30)):
        a, b = units(images, 4, 64, seed=1), units(captions, 3, 64, seed=2)
        cost = cost_of(mmd, a, b)
        n = max(images * 4, captions * 3)
        assert cost.largest <= max(n * n, n * 64)
        costs.append(cost.operations)
    assert costs[0] == costs[1]
