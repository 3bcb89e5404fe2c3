"""Distillation is the divergence between what student and teachers expect, in both directions."""

import math

import pytest
import torch

from maxmatch.losses import distillation, objective


def expected(row, temperature):
    weights = [math.exp(score / temperature) for score in row]
    return [weight / sum(weights) for weight in weights]


def one_way(scores, teachers, temperature):
    """The mean divergence over the rows, as loops over Python floats."""
    total = 0.0
    for i, row in enumerate(scores):
        wanted = [expected(teacher[i], temperature) for teacher in teachers]
        mean = [sum(column) / len(wanted) for column in zip(*wanted, strict=True)]
        total += sum(p * math.log(p / q) for p, q in zip(mean, expected(row, temperature), strict=True))
    return total / len(scores)


def made(count, images=4, captions=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, images, captions, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_agrees_with_a_loop(count, temperature):
    scores, teachers = made(1)[0], made(count, seed=1)
    both = one_way(scores.tolist(), teachers.tolist(), temperature)
    both += one_way(scores.T.tolist(), teachers.mT.tolist(), temperature)
    assert distillation(scores, teachers, temperature).item() == pytest.approx(both, rel=1e-10)


def test_is_zero_and_at_rest_where_the_student_agrees_with_its_teacher():
    scores = made(1)[0].requires_grad_()
    loss = distillation(scores, scores.detach()[None], 0.1)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-12)
    assert scores.grad.abs().max() < 1e-12


def test_gradient_is_right_and_none_flows_to_the_teachers():
    scores, teachers = made(1)[0].requires_grad_(), made(2, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda student: distillation(student, teachers.detach(), 0.5), scores)
    distillation(scores, teachers, 0.5).backward()
    assert teachers.grad is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype):
    scores, teachers = made(1)[0].to(dtype), made(2, seed=1).to(dtype)
    exact = distillation(scores.double(), teachers.double(), 0.05)
    assert distillation(scores, teachers, 0.05).item() == pytest.approx(exact.item(), rel=1e-4)


@pytest.mark.parametrize("teachers", [None, torch.zeros(4, 7), torch.zeros(1, 7, 4), torch.zeros(0, 4, 7)])
def test_scores_of_another_shape_are_refused(teachers, without_shape_checks):
    with pytest.raises(ValueError, match="teachers"):
        distillation(made(1)[0], teachers)


def test_the_objective_adds_it_with_its_weight(tiny_batch):
    scores, positive, images, texts, teachers = tiny_batch
    plain = objective(scores, positive, images, texts)
    taught = objective(scores, positive, images, texts, teachers=teachers, distill_weight=2.0, distill_temperature=0.1)
    assert plain.distillation is None
    assert taught.distillation.item() == pytest.approx(distillation(scores, teachers, 0.1).item())
    assert taught.total.item() == pytest.approx(plain.total.item() + 2 * taught.distillation.item(), rel=1e-6)


@pytest.fixture
def tiny_batch():
    from maxmatch.core.types import Sets

    def sets(count):
        vectors = torch.nn.functional.normalize(torch.randn(count, 2, 8), dim=-1)
        return Sets(vectors, vectors, vectors.mean(1))

    scores = torch.randn(3, 6)
    return scores, torch.arange(3)[:, None] == torch.arange(6) // 2, sets(3), sets(6), torch.randn(2, 3, 6)


def test_pairs_that_a_teacher_does_not_know_are_left_out():
    scores, teachers = made(1)[0], made(2, seed=1)
    alone = distillation(scores[:, 1:], teachers[:, :, 1:], 0.3)
    teachers[1, :, 0] = -torch.inf  # one of two does not know a caption
    scores.requires_grad_()
    loss = distillation(scores, teachers, 0.3)
    assert loss.item() == pytest.approx(alone.item(), rel=1e-9)
    loss.backward()
    assert scores.grad[:, 0].abs().max() == 0
    assert distillation(scores, torch.full_like(teachers, -torch.inf), 0.3).item() == 0
