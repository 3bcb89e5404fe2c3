"""The nearest of items in memory are those of the whole matrix of products."""

import numpy as np
import pytest
from made_sets import aligned_sets

from maxmatch import SetIndex
from maxmatch.search.engine import Found, proposes
from maxmatch.search.engines.lance_search import nearest

COUNT = 600
ITEMS, QUERIES = aligned_sets(COUNT, 5)


@pytest.fixture
def index(tmp_path):
    """An index that keeps its items in memory, and could propose candidates by its engine's index."""
    settings = {"train_from": 500}
    with SetIndex.create(tmp_path / "index", dim=16, set_size=4, stability=1.0, settings=settings) as index:
        index.add([f"{place:04d}" for place in range(COUNT)], ITEMS, [{"n": place} for place in range(COUNT)])
        assert proposes(index.engine)
        index.engine.in_memory = True
        yield index


def items_of(vectors, metadata=True):
    names = [f"item {place}" for place in range(len(vectors))]
    texts = [f'{{"of": "{name}"}}' for name in names] if metadata else None
    return Found(names, np.arange(len(names)), vectors, texts)


@pytest.mark.parametrize("count", [1, 9, 39, 40, 99])
def test_they_are_those_of_the_largest_products_with_all_that_belongs_to_them(count):
    generator = np.random.default_rng(count)
    vectors, queries = (generator.normal(size=(n, 6)).astype(np.float32) for n in (40, 5))
    for query, found in zip(queries, nearest(queries, items_of(vectors), count), strict=True):
        expected = set(np.argsort(-(vectors @ query))[:count].tolist())
        assert {f"item {place}" for place in expected} == set(found.ids)
        assert len(found.ids) == min(count, 40)
        assert [f"item {place}" for place in found.added] == found.ids
        assert (found.vectors == vectors[found.added]).all()
        assert found.metadata == [f'{{"of": "{name}"}}' for name in found.ids]


def test_of_no_items_none_is_found_and_metadata_that_are_not_there_are_not_made_up():
    queries = np.ones((2, 6), np.float32)
    assert [found.ids for found in nearest(queries, items_of(np.empty((0, 6), np.float32)), 3)] == [[], []]
    vectors = np.eye(4, 6, dtype=np.float32)
    assert nearest(queries, items_of(vectors, metadata=False), 3)[0].metadata is None


def test_a_search_in_memory_is_exact_up_to_its_candidates_and_never_stale(index):
    found = index.search(QUERIES, k=10, candidates=COUNT)
    for first, second in zip(found, index.search(QUERIES, k=10, exact=True), strict=True):
        assert [(hit.id, hit.metadata) for hit in first] == [(hit.id, hit.metadata) for hit in second]
        assert [hit.score for hit in first] == pytest.approx([hit.score for hit in second], abs=1e-6)
    index.upsert(["0007"], QUERIES[:1], [{"n": -1}])
    assert index.search(QUERIES[:1], k=1)[0][0].metadata == {"n": -1}
    index.remove(["0007"])
    assert index.search(QUERIES[:1], k=1)[0][0].id != "0007"


def test_recall_is_measured_without_items_in_memory(index, monkeypatch):
    seen, candidates = [], type(index.engine).candidates

    def watched(engine, *arguments, **options):
        seen.extend([engine.in_memory] * len(arguments[0]))
        return candidates(engine, *arguments, **options)

    monkeypatch.setattr(type(index.engine), "candidates", watched)
    index.verify(QUERIES)
    assert seen
    assert not any(seen)
    assert index.engine.in_memory


def test_items_in_memory_are_searched_without_the_engine_until_someone_writes(index, monkeypatch):
    first = [[hit.id for hit in hits] for hits in index.search(QUERIES, k=3)]
    with monkeypatch.context() as patch:
        patch.setattr(index.engine._items, "_table", None)
        patch.setattr(index.engine, "table", None)
        assert [[hit.id for hit in hits] for hits in index.search(QUERIES, k=3)] == first
    with SetIndex.open(index.folder) as other:
        other.remove([first[0][0]])
    assert index.search(QUERIES[:1], k=1)[0][0].id == first[0][1]
