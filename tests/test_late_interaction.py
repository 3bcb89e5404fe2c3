"""Models with a vector per token: scored, indexed and evaluated as sentence-transformers itself does, and pooled to
slots. On a tiny random BERT: no network.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder import losses
from tiny_multi_vector import multi_vector_model
from torch.nn.functional import normalize
from torch.testing import assert_close

from maxmatch import SetIndex, score_matrix, top_hits
from maxmatch.core.types import Features
from maxmatch.evaluation import evaluate_embeddings, evaluate_scores
from maxmatch.model.layers import masked_mean
from maxmatch.model.slot_pooling import SlotPooling
from maxmatch.sentence_transformers import maxmatch_scores

QUERIES = ["a dog", "a red bus", "snow in the winter", "who plays the drums"]
DOCUMENTS = ["a dog runs on the beach", "two people ride a red bus", "it snows", "a band with a drummer and a singer"]
WIDTH = 16


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """The folder of a model, as `save_pretrained` leaves it and the hub has it."""
    model = multi_vector_model(tmp_path_factory.mktemp("bert"), [*QUERIES, *DOCUMENTS])
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture
def model(saved) -> MultiVectorEncoder:
    return MultiVectorEncoder(str(saved), device="cpu").eval()


def random_tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


# --- scores, index, evaluation ---------------------------------------------------------------------------------------


def test_scores_index_and_figures_are_those_of_the_model_itself(model, tmp_path) -> None:
    queries, documents = model.encode_query(QUERIES), model.encode_document(DOCUMENTS)
    assert len({len(one) for one in documents}) > 1
    expected = model.similarity(queries, documents)
    assert_close(score_matrix(queries, documents, "maxsim"), expected, atol=1e-5, rtol=0)
    with SetIndex.create(tmp_path / "index", dim=documents[0].shape[1], set_size=None, similarity="maxsim") as index:
        index.add(DOCUMENTS, documents, [{"length": len(text)} for text in DOCUMENTS])
        found = index.search(queries, k=2)
    best = expected.topk(2)
    assert [[hit.id for hit in hits] for hits in found] == [[DOCUMENTS[n] for n in row] for row in best.indices]
    assert [[hit.score for hit in hits] for hits in found] == [
        pytest.approx(row.tolist(), abs=1e-4) for row in best.values
    ]
    figures = evaluate_embeddings(queries, documents, range(4), range(4), "maxsim").figures
    assert figures == pytest.approx(evaluate_scores(expected, range(4), range(4)).figures)


@pytest.mark.parametrize("name", ["maxsim", "maxmatch", "chamfer"])
def test_lists_of_unequal_size_are_evaluated_by_any_similarity(name) -> None:
    groups = [0, 1, 2, 0, 1]
    a, b = (
        [random_tokens(size, 6, seed=seed + size) for size in sizes]
        for seed, sizes in ((0, (3, 7, 2)), (40, (5, 1, 9, 2, 4)))
    )
    expected = evaluate_scores(score_matrix(a, b, name), range(3), groups).figures
    assert evaluate_embeddings(a, b, range(3), groups, name).figures == pytest.approx(expected)
    arrays = [one.numpy() for one in b]
    assert evaluate_embeddings(a, arrays, range(3), groups, name).figures == pytest.approx(expected)


# --- learned pooling to slots ----------------------------------------------------------------------------------------


def pooled(pooling: SlotPooling, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return pooling({"token_embeddings": tokens, "attention_mask": mask.long()})["token_embeddings"]


def test_any_number_of_tokens_becomes_k_unit_vectors_whatever_is_masked() -> None:
    pooling = SlotPooling(WIDTH, set_size=5).eval()
    tokens, mask = random_tokens(3, 12, WIDTH), torch.arange(12) < torch.tensor([[12], [4], [1]])
    slots = pooled(pooling, tokens, mask)
    assert slots.shape == (3, 5, WIDTH)
    assert_close(slots.norm(dim=-1), torch.ones(3, 5))
    for other in (torch.nan, 7.0):  # what stands in padding, and how much of it there is
        assert_close(pooled(pooling, tokens.masked_fill(~mask[..., None], other), mask), slots)
    assert_close(pooled(pooling, tokens[1:2, :4], mask[1:2, :4]), slots[1:2])


def test_it_is_the_set_head_on_the_tokens_and_their_mean() -> None:
    pooling = SlotPooling(WIDTH, set_size=3).eval()
    tokens, mask = random_tokens(2, 6, WIDTH), torch.ones(2, 6, dtype=torch.bool)
    expected = pooling.head(Features(tokens, mask, masked_mean(tokens, mask)))
    assert_close(pooled(pooling, tokens, mask), expected.vectors)


def test_the_gradient_reaches_every_slot_every_weight_and_every_real_token() -> None:
    pooling = SlotPooling(WIDTH, set_size=4)
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    tokens = random_tokens(2, 9, WIDTH).requires_grad_()
    slots = pooled(pooling, tokens, mask)
    (slots * random_tokens(2, 4, WIDTH, seed=1)).sum().backward()
    assert bool((pooling.head.slots.grad.abs().sum(1) > 0).all())
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in pooling.parameters())
    assert torch.equal(tokens.grad.abs().sum(2) > 0, mask)


def test_an_item_without_tokens_has_no_slots_and_a_task_that_is_not_pooled_keeps_its_tokens() -> None:
    pooling = SlotPooling(WIDTH, set_size=4, tasks="document").eval()
    tokens, mask = random_tokens(2, 6, WIDTH), torch.tensor([[True] * 6, [False] * 6])
    features = pooling({"token_embeddings": tokens, "attention_mask": mask})
    assert features["attention_mask"].tolist() == [[True] * 4, [False] * 4]
    assert bool(torch.isfinite(features["token_embeddings"]).all())
    kept = pooling({"token_embeddings": tokens, "attention_mask": mask}, task="query")
    assert kept["token_embeddings"] is tokens
    with pytest.raises(ValueError, match="tasks: expected query or document"):
        SlotPooling(WIDTH, tasks=["documents"])


def test_a_model_with_slots_is_trained_saved_loaded_and_searched(model, tmp_path) -> None:
    model.append(SlotPooling(model.get_embedding_dimension(), set_size=4, depth=1))
    loss = losses.MultiVectorMultipleNegativesRankingLoss(
        model, similarity_fct=partial(maxmatch_scores, size=4), scale=20.0
    )
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    columns = [model.preprocess(texts, task=task) for texts, task in ((QUERIES, "query"), (DOCUMENTS, "document"))]
    seen = []
    for _ in range(15):
        adam.zero_grad()
        value = loss([dict(column) for column in columns])
        value.backward()
        seen.append(value.item())
        adam.step()
    assert seen[-1] < 0.5 * seen[0]
    model.eval()
    sets = model.encode_document(DOCUMENTS, convert_to_numpy=True)
    assert [one.shape for one in sets] == [(4, model.get_embedding_dimension())] * 4
    model.save_pretrained(str(tmp_path / "pooled"), safe_serialization=False)
    assert not list((tmp_path / "pooled").glob("*SlotPooling/*.bin"))
    again = MultiVectorEncoder(str(tmp_path / "pooled"), device="cpu", trust_remote_code=True)
    assert isinstance(again[-1], SlotPooling)
    assert again[-1].get_config_dict() == model[-1].get_config_dict()
    for one, two in zip(again.encode_document(DOCUMENTS, convert_to_numpy=True), sets, strict=True):
        assert_close(one, two)
    items = np.stack(sets)
    with SetIndex.create(tmp_path / "index", dim=items.shape[2], set_size=4) as index:  # sets of one size now
        index.add(DOCUMENTS, items)
        asked = np.stack(again.encode_query(QUERIES, convert_to_numpy=True))
        found = index.search(asked, k=1)
    expected = top_hits(asked, items, 1).indices[:, 0]
    assert [hits[0].id for hits in found] == [DOCUMENTS[place] for place in expected]
