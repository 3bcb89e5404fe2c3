"""`maxmatch` with its gradient as one function, as on a GPU; operation by operation it is the reference."""

import sys
from collections.abc import Callable

import pytest
import torch
from reference import axis_sets, random_sets
from torch import Tensor
from torch.testing import assert_close

if sys.platform != "linux":
    pytest.skip("Triton is made for Linux only", allow_module_level=True)

from maxmatch.matching import similarity, trained, triton_backend
from maxmatch.matching.similarity import maxmatch


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Takes the way of a GPU; the shapes of the scores that its kernel made."""
    made = []

    class Kernels:
        @staticmethod
        def block_scores(cosines: Tensor, scores: Tensor) -> None:
            made.append(tuple(scores.shape))
            triton_backend.block_scores(cosines, scores)

        block_gradient = staticmethod(triton_backend.block_gradient)

    monkeypatch.setattr(trained, "kernels_for", lambda _: Kernels)
    return made


def pair(seed: int, width: int = 8, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    a, b = random_sets(seed, 3, 4, width, dtype=dtype), random_sets(seed + 1, 5, 4, width, dtype=dtype)
    return a.requires_grad_(), b.requires_grad_()


def plain(a: Tensor, b: Tensor) -> Tensor:
    return similarity._maxmatch_of(similarity.cosine_planes(a, b))


WEIGHTS = torch.linspace(-1, 2, 15).view(3, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_scores_and_gradients_are_those_of_the_operations_one_by_one(
    dtype: torch.dtype, on_kernels: list[tuple[int, ...]]
) -> None:
    a, b = pair(1, dtype=dtype)
    scores, expected = maxmatch(a, b), plain(a, b)
    assert scores.dtype == torch.float32
    assert_close(scores, expected)
    found = torch.autograd.grad((scores * WEIGHTS).sum(), (a, b))
    assert_close(found, torch.autograd.grad((expected * WEIGHTS).sum(), (a, b)))
    assert [one.dtype for one in found] == [dtype] * 2
    assert on_kernels == [(3, 5)]


def test_of_equal_totals_the_first_matching_has_the_gradient(on_kernels: list[tuple[int, ...]]) -> None:
    a, b = axis_sets(3, 6, 4, 8).requires_grad_(), axis_sets(4, 7, 4, 8).requires_grad_()
    weights = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.grad((maxmatch(a, b) * weights).sum(), (a, b))
    assert_close(found, torch.autograd.grad((plain(a, b) * weights).sum(), (a, b)))
    assert on_kernels == [(6, 7)]


@pytest.mark.parametrize("side", [0, 1])
def test_one_side_alone_may_have_a_gradient(side: int, on_kernels: list[tuple[int, ...]]) -> None:
    sets = pair(5)
    sets[1 - side].requires_grad_(False)
    found = torch.autograd.grad((maxmatch(*sets) * WEIGHTS).sum(), sets[side])
    assert_close(found, torch.autograd.grad((plain(*sets) * WEIGHTS).sum(), sets[side]))
    assert on_kernels == [(3, 5)]


def test_the_gradient_can_be_asked_for_twice(on_kernels: list[tuple[int, ...]]) -> None:
    a, b = pair(7)
    total = (maxmatch(a, b) * WEIGHTS).sum()
    first = torch.autograd.grad(total, (a, b), retain_graph=True)
    assert_close(torch.autograd.grad(total, (a, b)), first)
    assert on_kernels == [(3, 5)]


@pytest.mark.usefixtures("on_kernels")
def test_the_gradient_has_a_gradient() -> None:
    a, b = pair(9)

    def second(function: object) -> tuple[Tensor, ...]:
        first = torch.autograd.grad((function(a, b) * WEIGHTS).sum(), (a, b), create_graph=True)  # type: ignore[operator]
        return torch.autograd.grad(sum((one**2).sum() for one in first), (a, b))

    assert_close(second(maxmatch), second(plain))


@pytest.mark.parametrize("made", [lambda a: a, lambda a: -a.flip(2)])
def test_the_gradient_of_sets_made_from_each_other_has_a_gradient(made: Callable[[Tensor], Tensor]) -> None:
    a, _ = pair(10)

    def both(function: object) -> tuple[Tensor, Tensor]:
        scores = function(a, made(a))  # type: ignore[operator]
        (first,) = torch.autograd.grad(
            (scores * torch.arange(scores.numel()).view_as(scores)).sum(), a, create_graph=True
        )
        return first, torch.autograd.grad((first**2).sum(), a)[0]

    assert_close(both(maxmatch), both(plain))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, where it loads forward mode
def test_other_derivatives_and_other_sets_take_the_other_way(on_kernels: list[tuple[int, ...]]) -> None:
    a, b = pair(11)
    of_a = torch.func.grad(lambda a: (maxmatch(a, b.detach()) * WEIGHTS).sum())(a.detach())
    assert_close(of_a, torch.autograd.grad((plain(a, b) * WEIGHTS).sum(), a)[0])
    forward = torch.func.jvp(lambda a: (maxmatch(a, b) * WEIGHTS).sum(), (a.detach(),), (torch.ones_like(a),))[1]
    assert_close(forward, of_a.sum())
    mask = torch.ones(3, 4, dtype=torch.bool)
    for scores in (maxmatch(a, b, mask), maxmatch(a[:, :3], b[:, :3]), maxmatch(a, b[:, :3])):
        assert scores.requires_grad
    assert maxmatch(a[:0], b).shape == (0, 5)
    with torch.no_grad():
        maxmatch(a, b)
    assert on_kernels == []


def test_autocast_does_not_round_the_products(on_kernels: list[tuple[int, ...]]) -> None:
    a, b = pair(13)
    with torch.autocast("cpu", torch.bfloat16):
        scores = maxmatch(a, b)
        found = torch.autograd.grad((scores * WEIGHTS).sum(), (a, b))
    assert_close(scores, plain(a, b))
    assert_close(found, torch.autograd.grad((plain(a, b) * WEIGHTS).sum(), (a, b)))
    assert on_kernels == [(3, 5)]
