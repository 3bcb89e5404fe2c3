"""An index of sets of any size: searched as the raw sets are, kept as any other, refused by releases before it."""

import json
import pickle

import numpy as np
import pytest
import torch
from reference import random_sets
from reference import scores as reference_scores
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from maxmatch import SetIndex
from maxmatch.core.manifest import load_manifest
from maxmatch.search.index_folder import FILE, FORMAT, IndexFolderError, Manifest, NewerIndexError
from maxmatch.search.query import search_parts
from maxmatch.server.gallery import Gallery

pytestmark = pytest.mark.usefixtures("without_shape_checks")
WIDTH = 8


def ragged(seed: int, sizes: list[int]) -> list[Tensor]:
    """Sets of these sizes."""
    return [random_sets(seed + place, size, WIDTH) for place, size in enumerate(sizes)]


ITEMS = ragged(1, [3, 40, 1, 7, 22, 2, 9, 5, 30, 4])
SMALL = [one[:12] for one in ITEMS]
QUERIES = ragged(60, [2, 11, 1, 6])
IDS = [f"item {place}" for place in range(len(ITEMS))]
METADATA = [{"n": place, "even": place % 2 == 0} for place in range(len(ITEMS))]


@pytest.fixture
def index(tmp_path):
    """One of maxsim, with items."""
    with SetIndex.create(tmp_path / "index", dim=WIDTH, set_size=None, similarity="maxsim") as made:
        made.add(IDS, ITEMS, METADATA)
        yield made


def ranked(name: str, query: Tensor, items: dict[str, Tensor], k: int) -> list[tuple[str, float]]:
    """The k best by the definition, in plain loops; equal ones in their order."""
    scored = [(key, float(reference_scores(name, query[None], one[None]))) for key, one in items.items()]
    return sorted(scored, key=lambda one: -one[1])[:k]


def assert_found(found, name: str, queries, items: dict[str, Tensor], k: int) -> None:
    for hits, query in zip(found, queries, strict=True):
        expected = ranked(name, query, items, k)
        assert [hit.id for hit in hits] == [key for key, _ in expected]
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-5)


@pytest.mark.parametrize(
    "name", ["maxsim", "maxmatch", "chamfer", "mil", "mean", "smooth_chamfer", "top_k", "sinkhorn"]
)
def test_a_search_finds_what_the_definition_ranks_first(name, tmp_path):
    items = dict(zip(IDS, SMALL if name in ("maxmatch", "sinkhorn") else ITEMS, strict=True))
    with SetIndex.create(tmp_path / "index", dim=WIDTH, set_size=None, similarity=name) as made:
        made.add(list(items), list(items.values()), METADATA)
        for exact in (False, True):
            assert_found(made.search(QUERIES, k=4, exact=exact), name, QUERIES, items, 4)
        even = {key: one for key, one in items.items() if int(key[5:]) % 2 == 0}
        assert_found(made.search(QUERIES, k=4, where="even = true"), name, QUERIES, even, 4)
        same = torch.stack([QUERIES[1], QUERIES[1]])  # queries of one size, as of a model that makes sets
        assert_found(made.search(same, k=3), name, same, items, 3)


def test_the_matches_of_maxsim_add_up_to_the_score_and_others_are_one_to_one(index, tmp_path):
    for hits, query in zip(index.search(QUERIES, k=10), QUERIES, strict=True):
        for hit in hits:
            cosines = query @ ITEMS[hit.metadata["n"]].T
            assert [match.query_slot for match in hit.matches] == list(range(len(query)))
            assert [match.item_slot for match in hit.matches] == cosines.argmax(1).tolist()
            assert sum(match.cosine for match in hit.matches) == pytest.approx(hit.score, abs=1e-5)
    with SetIndex.create(tmp_path / "chamfer", dim=WIDTH, set_size=None, similarity="chamfer") as other:
        other.add(IDS, ITEMS, METADATA)
        for hits, query in zip(other.search(QUERIES, k=10), QUERIES, strict=True):
            for hit in hits:
                cosines = (query @ ITEMS[hit.metadata["n"]].T).double().numpy()
                rows, columns = linear_sum_assignment(cosines, maximize=True)
                assert [match[:2] for match in hit.matches] == list(zip(rows, columns, strict=True))
                assert [match.cosine for match in hit.matches] == pytest.approx(cosines[rows, columns], abs=1e-6)


def test_blocks_of_a_few_items_change_nothing(index, monkeypatch):
    items = dict(zip(IDS, ITEMS, strict=True))
    monkeypatch.setattr("maxmatch.search.engines.lance._BLOCK_BYTES", 500)
    assert_found(index.search(QUERIES, k=6), "maxsim", QUERIES, items, 6)
    monkeypatch.setattr("maxmatch.search.engines.lance._MOST_BYTES", 0)  # read from disk every time
    with SetIndex.open(index.folder) as again:
        assert_found(again.search(QUERIES, k=6), "maxsim", QUERIES, items, 6)


def test_items_are_added_replaced_removed_and_there_when_it_is_opened_again(index):
    items = dict(zip(IDS, ITEMS, strict=True))
    new = ragged(200, [6, 33])
    index.upsert(["item 3", "new"], new)
    index.remove(["item 0", "item 8"])
    index.add(["arrays"], [new[0].double().numpy()])
    for key in ("item 0", "item 8", "item 3"):
        del items[key]
    items |= {"item 3": new[0], "new": new[1], "arrays": new[0]}  # equal ones in the order in which they were added
    index.compact()
    index.check_files()
    for opened in (index, SetIndex.open(index.folder), pickle.loads(pickle.dumps(index))):
        assert len(opened) == len(items)
        assert_found(opened.search(QUERIES, k=5), "maxsim", QUERIES, items, 5)
        fetched = opened.fetch(["new", "item 1", "no such item"])
        assert set(fetched) == {"new", "item 1"}
        torch.testing.assert_close(fetched["new"], new[1])
        assert opened.fetch([]) == {}


def test_half_precision_and_parts_of_a_query_and_nothing_at_all(tmp_path):
    with SetIndex.create(tmp_path / "half", dim=WIDTH, set_size=None, similarity="maxsim", dtype="float16") as made:
        assert made.search(QUERIES) == [[]] * 4
        assert made.search([]) == []
        made.add([], [])
        made.add(IDS, ITEMS, METADATA)
        halves = {key: one.half().float() for key, one in zip(IDS, ITEMS, strict=True)}
        assert_found(made.search(QUERIES, k=3), "maxsim", QUERIES, halves, 3)
        hits = search_parts(made, [one.numpy() for one in QUERIES[:2]], [1.0, -0.5], 3)
        total = {
            key: float(reference_scores("maxsim", QUERIES[0][None], one[None]))
            - 0.5 * float(reference_scores("maxsim", QUERIES[1][None], one[None]))
            for key, one in halves.items()
        }
        assert [hit.id for hit in hits] == sorted(total, key=total.get, reverse=True)[:3]
        assert [hit.score for hit in hits] == pytest.approx(sorted(total.values(), reverse=True)[:3], abs=1e-4)


def test_it_scans_and_says_so_and_a_scan_misses_nothing(index):
    facts = index.info()
    assert facts["set_size"] is None
    assert "sets of any size" in facts["search"]
    measured = index.verify(QUERIES, k=3)
    assert (measured.chosen.recall, measured.trials) == (1.0, [])
    assert index.verify(k=2).chosen.recall == 1.0


def test_only_such_an_index_has_the_new_version_which_releases_before_it_refuse(index, tmp_path):
    with SetIndex.create(tmp_path / "fixed", dim=WIDTH, set_size=4) as fixed:
        assert json.loads((fixed.folder / FILE).read_text())["schema_version"] == 1
    path = index.folder / FILE
    assert json.loads(path.read_text())["schema_version"] == 2
    with pytest.raises(NewerIndexError, match=r"schema version 2, .* reads up to 1. Upgrade"):  # as they read it
        load_manifest(path, Manifest, FORMAT, IndexFolderError, "an index", "", 1, too_new=NewerIndexError)
    whole = json.loads(path.read_text())
    for wrong in ({"schema_version": 1}, {"set_size": 4}):
        path.write_text(json.dumps({**whole, **wrong}))
        with pytest.raises(IndexFolderError, match="schema_version"):
            SetIndex.open(index.folder)
    path.write_text(json.dumps({**whole, "schema_version": 1, "set_size": 4}))
    with pytest.raises(ValueError, match=r"vectors of any number of numbers, but index.json has 32"):
        SetIndex.open(index.folder)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([ITEMS[0], ITEMS[1][:0]], "'b': expected vectors"),
        ([ITEMS[0], ITEMS[1][0]], r"'b': expected vectors \(n, 8\).*got .* 8\."),
        ([ITEMS[0], ITEMS[1][:, :7]], "'b': this index holds vectors of width 8, got 7"),
        ([ITEMS[0], 2 * ITEMS[1]], "'b' has vectors of length 2 to 2"),
        ([ITEMS[0], ITEMS[1] * torch.nan], "'b' holds NaN"),
        ([ITEMS[0], np.ones((2, 8), np.int64)], "'b': expected vectors .*int64"),
        ([ITEMS[0]], "2 ids for 1 sets"),
    ],
)
def test_what_is_refused_is_named_and_nothing_is_added(sets, message, index):
    with pytest.raises(ValueError, match=message):
        index.add(["a", "b"], sets)
    assert len(index) == len(ITEMS)


def test_what_needs_sets_of_one_size_is_refused(index, tmp_path):
    with pytest.raises(ValueError, match="sets of any size"):
        Gallery(index, lambda name: None)
    with (
        SetIndex.create(tmp_path / "fixed", dim=WIDTH, set_size=2) as fixed,
        pytest.raises(ValueError, match=r"of unequal size.*set_size=None"),
    ):
        fixed.add(["a", "b"], [one.numpy() for one in ITEMS[:2]])
    for options, message in (
        ({"similarity": "paired"}, "similarity: paired compares sets of one size"),
        ({"similarity": "csd"}, "similarity: csd compares sets of one size"),
        ({"engine": "milvus", "settings": {"uri": "http://localhost:1"}}, "engine: milvus stores sets of one size"),
    ):
        with pytest.raises(ValueError, match=message):
            SetIndex.create(tmp_path / "index", dim=WIDTH, set_size=None, **options)
    with SetIndex.create(tmp_path / "matched", dim=WIDTH, set_size=None) as matched:
        matched.add(["a"], [SMALL[1]])
        with pytest.raises(ValueError, match=r"'b': sets of 40 vectors.*at most 16.*maxsim"):
            matched.add(["b"], [ITEMS[1]])
        with pytest.raises(ValueError, match="at most 16"):
            matched.search([ITEMS[1]])
