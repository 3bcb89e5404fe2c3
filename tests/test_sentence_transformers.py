"""The matching as a drop-in for the losses of sentence-transformers, on a tiny random BERT: no network."""

from functools import partial
from itertools import permutations
from math import exp

import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder import losses, scoring
from sentence_transformers.multi_vector_encoder.evaluation import MultiVectorRerankingEvaluator
from tiny_multi_vector import multi_vector_model
from torch import Tensor
from torch.nn.functional import normalize

from maxmatch.sentence_transformers import (
    cluster_tokens,
    maxmatch_kd_scores,
    maxmatch_scores,
    maxmatch_scores_pairwise,
    maxmatch_similarity,
)

QUERIES = ["a dog", "a red bus", "snow in winter", "who plays the drums"]
DOCUMENTS = ["a dog runs on the beach", "two people ride a red bus", "it snows all winter", "a band with a drummer"]
OTHERS = ["a cat sleeps on a chair all day long", "a boat", "the sun in summer", "nobody plays a thing here"]


@pytest.fixture
def model(tmp_path) -> MultiVectorEncoder:
    return multi_vector_model(tmp_path, [*QUERIES, *DOCUMENTS, *OTHERS])


def features(model: MultiVectorEncoder, *columns: list[str]) -> list[dict[str, Tensor]]:
    """What a trainer hands to a loss: the queries, then the columns of documents."""
    tasks = ["query", *["document"] * (len(columns) - 1)]
    return [model.preprocess(column, task=task) for column, task in zip(columns, tasks, strict=True)]


def random_tokens(*shape: int, seed: int = 0) -> Tensor:
    return normalize(torch.randn(*shape, 8, generator=torch.Generator().manual_seed(seed)), dim=-1)


def by_trying_all_matchings(a: Tensor, b: Tensor) -> float:
    """mean of exp(c) − 1 over the matching with the largest sum, of two small sets."""
    small, large = sorted((a, b), key=len)
    ways = [
        [float(x @ large[j]) for x, j in zip(small, way, strict=True)]
        for way in permutations(range(len(large)), len(small))
    ]
    return sum(exp(cosine) - 1 for cosine in max(ways, key=sum)) / len(small)


def test_every_query_meets_every_document_in_the_order_of_their_groups() -> None:
    queries, documents = random_tokens(2, 4), random_tokens(3, 2, 5, seed=1)
    queries_mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    documents_mask = (torch.arange(5) < torch.tensor([[5, 3], [1, 4], [2, 5]])[..., None]).long()
    scores = maxmatch_scores(queries, documents, queries_mask=queries_mask, documents_mask=documents_mask)
    expected = [
        [
            by_trying_all_matchings(queries[i][queries_mask[i] == 1], documents[g, n][documents_mask[g, n] == 1])
            for g in range(3)
            for n in range(2)
        ]
        for i in range(2)
    ]
    torch.testing.assert_close(scores, torch.tensor(expected))
    padded = documents.masked_fill(documents_mask[..., None] == 0, 0.0)  # without a mask, zeros are padding
    torch.testing.assert_close(maxmatch_scores(queries, padded, queries_mask), scores)


def test_with_one_token_a_text_it_is_a_function_of_what_colbert_gives() -> None:
    queries, documents = random_tokens(3, 1), random_tokens(3, 2, 1, seed=1)
    for ours, theirs, given in (
        (maxmatch_scores, scoring.colbert_scores, documents),
        (maxmatch_kd_scores, scoring.colbert_kd_scores, documents),
        (maxmatch_scores_pairwise, scoring.colbert_scores_pairwise, documents[:, 1]),
    ):
        torch.testing.assert_close(ours(queries, given), theirs(queries, given).expm1())


def test_own_documents_and_own_pairs_are_parts_of_all_pairs() -> None:
    queries, documents = random_tokens(3, 20), random_tokens(3, 2, 30, seed=1)
    queries_mask = torch.arange(20) < torch.tensor([[20], [3], [9]])
    documents_mask = torch.arange(30) < torch.tensor([[30, 2], [9, 8], [17, 1]])[..., None]
    everything = maxmatch_scores(queries, documents, queries_mask, documents_mask).view(3, 3, 2)
    own = maxmatch_kd_scores(queries, documents, queries_mask, documents_mask)
    torch.testing.assert_close(own, torch.stack([everything[i, i] for i in range(3)]))
    pairs = maxmatch_scores_pairwise(queries, documents[:, 1], queries_mask, documents_mask[:, 1])
    torch.testing.assert_close(pairs, own[:, 1])
    assert maxmatch_scores(queries[:0], documents, queries_mask[:0], documents_mask).shape == (0, 6)
    ragged = [text[mask] for text, mask in zip(documents[:, 1], documents_mask[:, 1], strict=True)]
    torch.testing.assert_close(
        maxmatch_scores_pairwise(list(queries), ragged),
        maxmatch_scores_pairwise(queries, documents[:, 1], None, documents_mask[:, 1]),
    )


def test_the_ranking_loss_falls_and_its_gradient_reaches_all_weights(model: MultiVectorEncoder) -> None:
    loss = losses.MultiVectorMultipleNegativesRankingLoss(
        model, similarity_fct=partial(maxmatch_scores, size=4), scale=20.0
    )
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    seen = []
    for _ in range(8):
        adam.zero_grad()
        value = loss(features(model, QUERIES, DOCUMENTS, OTHERS))
        value.backward()
        seen.append(value.item())
        adam.step()
    assert seen[-1] < 0.5 * seen[0]
    unmoved = {name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert all("pooler" in name or name.endswith("key.bias") for name in unmoved)  # these move no output of BERT's


def test_the_cached_loss_and_the_losses_of_distillation_take_it_too(model: MultiVectorEncoder) -> None:
    model.eval()  # no dropout
    columns = features(model, QUERIES, DOCUMENTS, OTHERS)
    plain = losses.MultiVectorMultipleNegativesRankingLoss(model, similarity_fct=maxmatch_scores, scale=20.0)
    cached = losses.CachedMultiVectorMultipleNegativesRankingLoss(
        model, similarity_fct=maxmatch_scores, scale=20.0, mini_batch_size=2
    )
    torch.testing.assert_close(cached(columns), plain(columns))
    columns = features(model, QUERIES, DOCUMENTS, OTHERS)
    margins = torch.tensor([1.0, 0.5, 0.2, 0.1])
    teacher = torch.stack([margins, torch.zeros(4)], 1)
    for loss, labels in (
        (losses.MultiVectorMarginMSELoss(model, similarity_fct=maxmatch_scores_pairwise), margins),
        (losses.MultiVectorDistillKLDivLoss(model, similarity_fct=maxmatch_kd_scores), teacher),
    ):
        model.zero_grad()
        loss(columns, labels).backward()
        gradient = next(model.parameters()).grad
        assert gradient is not None
        assert bool(gradient.any())


def test_encoded_texts_are_scored_and_reranked_by_it(model: MultiVectorEncoder) -> None:
    queries, documents = model.encode_query(QUERIES), model.encode_document(DOCUMENTS)
    scores = maxmatch_similarity(queries, documents)
    assert scores.shape == (4, 4)
    torch.testing.assert_close(maxmatch_similarity(queries[1], documents), scores[1:2])
    torch.testing.assert_close(scores.diagonal(), maxmatch_scores_pairwise(queries, documents))
    samples = [{"query": query, "positive": [query], "negative": OTHERS} for query in QUERIES]
    evaluator = MultiVectorRerankingEvaluator(samples, similarity_fct=maxmatch_similarity, write_csv=False)
    assert evaluator(model)["mrr@10"] == 1.0  # a text is most like itself


def test_clusters_are_as_many_unit_vectors_as_asked_for_and_clear_bundles_are_found() -> None:
    vectors, real = cluster_tokens(random_tokens(3, 20), 4)
    assert vectors.shape == (3, 4, 8)
    assert bool(real.all())
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3, 4))
    generator = torch.Generator().manual_seed(1)
    directions = torch.eye(8)[:4]
    which = torch.tensor([0, 1, 2, 3] * 6)
    tokens = directions[which] + 0.05 * torch.randn(24, 8, generator=generator)
    vectors, _ = cluster_tokens(tokens[None], 4)
    means = torch.stack([normalize(normalize(tokens, dim=-1)[which == k].sum(0), dim=0) for k in range(4)])
    best = (vectors[0] @ means.T).max(1)
    assert sorted(best.indices.tolist()) == [0, 1, 2, 3]
    torch.testing.assert_close(best.values, torch.ones(4))


def test_an_item_with_few_tokens_keeps_them_in_order_and_equal_ones_become_one() -> None:
    tokens = random_tokens(1, 9)
    mask = torch.tensor([[False, True, False, True, True, False, False, False, False]])
    vectors, real = cluster_tokens(tokens, 4, mask)
    assert real.tolist() == [[True, True, True, False]]
    torch.testing.assert_close(vectors[0, :3], normalize(tokens[mask], dim=-1))
    vectors, real = cluster_tokens(random_tokens(1, 1).expand(1, 12, 8), 4)
    assert int(real.sum()) == 1
    assert bool(torch.isfinite(vectors).all())


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
def test_texts_may_be_arrays_or_lists_of_them() -> None:
    a, b = [random_tokens(1, 12)[0], random_tokens(1, 5)[0]], random_tokens(3, 7)
    expected = maxmatch_similarity(a, b)
    for x, y in (([one.numpy() for one in a], b.numpy()), ([one.tolist() for one in a], b.tolist())):
        torch.testing.assert_close(maxmatch_similarity(x, y), expected, check_dtype=False)
    torch.testing.assert_close(maxmatch_similarity(b[0].numpy(), b), maxmatch_similarity(b[0], b))
    torch.testing.assert_close(maxmatch_kd_scores(b.numpy(), b[:, None].numpy()), maxmatch_kd_scores(b, b[:, None]))
    torch.testing.assert_close(cluster_tokens(b.numpy(), 3), cluster_tokens(b, 3))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "a: expected .*got none"),
        (["a dog"], r"a\[0\]: expected .*numbers"),
        (torch.ones(4), r"a: expected .*\(tokens, width\).*got 4"),
        ([torch.ones(3, 4), torch.ones(4)], r"a\[1\]: expected .*\(tokens, width\).*got 4"),
        ([torch.ones(3, 4), torch.ones(3, 5)], r"a\[1\]: .*width 5.*4"),
    ],
)
def test_what_is_no_encoded_text_is_refused_by_its_place(texts: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        maxmatch_similarity(texts, random_tokens(3, 7))


@pytest.mark.usefixtures("without_shape_checks")
def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(ValueError, match="size: expected at least 1, got 0"):
        cluster_tokens(random_tokens(1, 3), 0)
    with pytest.raises(ValueError, match="at most 16"):
        cluster_tokens(random_tokens(1, 3), 17)
    with pytest.raises(ValueError, match="mask"):
        cluster_tokens(random_tokens(1, 3), 2, torch.zeros(1, 3, dtype=torch.bool))
