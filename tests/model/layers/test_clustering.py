import pytest
import torch
from torch.nn.functional import normalize

from maxmatch.sentence_transformers import cluster_tokens


def random_tokens(items: int, count: int, width: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(items, count, width, generator=torch.Generator().manual_seed(seed))


def test_every_vector_has_unit_length_and_there_are_as_many_as_asked_for() -> None:
    vectors, real = cluster_tokens(random_tokens(3, 20), 4)
    assert vectors.shape == (3, 4, 8)
    assert bool(real.all())
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3, 4))


def test_bundles_that_are_plain_to_see_are_found() -> None:
    generator = torch.Generator().manual_seed(1)
    directions = torch.eye(8)[:4]
    which = torch.tensor([0, 1, 2, 3] * 6)
    tokens = directions[which] + 0.05 * torch.randn(24, 8, generator=generator)
    vectors, _ = cluster_tokens(tokens[None], 4)
    means = torch.stack([normalize(normalize(tokens, dim=-1)[which == k].sum(0), dim=0) for k in range(4)])
    best = (vectors[0] @ means.T).max(1)
    assert sorted(best.indices.tolist()) == [0, 1, 2, 3]
    torch.testing.assert_close(best.values, torch.ones(4))


def test_an_item_with_few_tokens_keeps_them_in_their_order() -> None:
    tokens = random_tokens(1, 9)
    mask = torch.tensor([[False, True, False, True, True, False, False, False, False]])
    vectors, real = cluster_tokens(tokens, 4, mask)
    assert real.tolist() == [[True, True, True, False]]
    torch.testing.assert_close(vectors[0, :3], normalize(tokens[mask], dim=-1))


@pytest.mark.parametrize("count", [3, 6, 15])
def test_an_item_does_not_depend_on_padding_or_on_its_neighbours(count: int) -> None:
    alone, real_alone = cluster_tokens(random_tokens(1, count), 5)
    batch = random_tokens(4, 30, seed=2)
    batch[1, 7 : 7 + count] = random_tokens(1, count)[0]
    mask = torch.ones(4, 30, dtype=torch.bool)
    mask[1] = False
    mask[1, 7 : 7 + count] = True
    batch[1, ~mask[1]] = torch.nan  # what stands in padding must not matter
    beside, real = cluster_tokens(batch, 5, mask)
    kept = int(real_alone.sum())
    assert int(real[1].sum()) == kept == min(count, 5)
    torch.testing.assert_close(beside[1, :kept], alone[0, :kept])


def test_equal_tokens_become_one_vector_and_no_vector_is_made_of_nothing() -> None:
    vectors, real = cluster_tokens(random_tokens(1, 1).expand(1, 12, 8), 4)
    assert int(real.sum()) == 1
    assert bool(torch.isfinite(vectors).all())


def test_the_gradient_reaches_every_token_and_no_padding() -> None:
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, 10:] = False
    tokens = random_tokens(2, 12).masked_fill(~mask[..., None], torch.nan).requires_grad_()
    vectors, real = cluster_tokens(tokens, 4, mask)
    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(3))
    (vectors * weights)[real].sum().backward()
    assert tokens.grad is not None
    assert torch.equal(tokens.grad.abs().sum(2) > 0, mask)


@pytest.mark.usefixtures("without_shape_checks")
def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(ValueError, match="size: expected at least 1, got 0"):
        cluster_tokens(random_tokens(1, 3), 0)
    with pytest.raises(ValueError, match="at most 16"):
        cluster_tokens(random_tokens(1, 3), 17)
    with pytest.raises(ValueError, match="mask"):
        cluster_tokens(random_tokens(1, 3), 2, torch.zeros(1, 3, dtype=torch.bool))
