"""LanceDB's candidates are named only where they are among the best: no answer may differ for that."""

import struct
from functools import partial

import numpy as np
import pytest
import torch
from made_sets import aligned_sets

from maxmatch import SetIndex
from maxmatch.matching import SIMILARITIES
from maxmatch.search.engine import CandidateOptions, proposes
from maxmatch.search.filters import condition_of
from maxmatch.search.rerank import places_of_best

COUNT = 150
ALL = {"candidates": COUNT, "effort": 16.0}


def _index(folder, items, **options):
    index = SetIndex.create(folder, dim=16, set_size=4, stability=1.0, settings={"train_from": 100}, **options)
    index.add([f"{place:03d}" for place in range(len(items))], items, [{"n": place} for place in range(len(items))])
    assert proposes(index.engine)
    return index


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    """An index that no test writes to."""
    with _index(tmp_path_factory.mktemp("nearest") / "index", aligned_sets(COUNT, 1)[0]) as index:
        yield index


def _said(hits):
    return [(hit.id, hit.metadata, [(match.query_slot, match.item_slot) for match in hit.matches]) for hit in hits]


@pytest.mark.parametrize(
    ("similarity", "dtype", "count"),
    [
        ("maxmatch", "float32", 1),
        ("maxmatch", "float16", 7),
        ("chamfer", "float32", 7),
        ("top_k", "float16", 1),
        ("maxsim", "float32", 1),
        ("paired", "float32", 7),
        ("sinkhorn", "float32", 1),
    ],
)
def test_with_all_items_as_candidates_the_answer_is_that_of_the_scan(tmp_path, monkeypatch, similarity, dtype, count):
    monkeypatch.setattr("maxmatch.search.set_index._SCAN_BELOW", 0)
    items, queries = aligned_sets(COUNT, count)
    with _index(tmp_path / "index", items, similarity=similarity, dtype=dtype) as index:
        for where in (None, "n >= 50"):
            truth = index.search(queries, k=5, where=where, exact=True)
            with monkeypatch.context() as patch:
                patch.setattr(index.engine, "scan", lambda *_: pytest.fail("scanned"))
                found = index.search(queries, k=5, where=where, **ALL)
            for mine, true in zip(found, truth, strict=True):
                assert _said(mine) == _said(true)
                np.testing.assert_allclose([hit.score for hit in mine], [hit.score for hit in true], atol=1e-6)


def test_of_equal_scores_those_added_first_are_named(tmp_path):
    items, queries = aligned_sets(COUNT, 1)
    items[20:60] = queries[0]  # forty that are all the best
    with _index(tmp_path / "index", items) as index:
        index.upsert(["025"], items[25:26])  # which makes it the newest
        found = index.search(queries, k=8, **ALL)[0]
        assert [hit.id for hit in found] == ["020", "021", "022", "023", "024", "026", "027", "028"]


@pytest.mark.parametrize("change", ["replaced", "moved", "removed"])
def test_rows_that_change_between_finding_and_naming_are_looked_for_anew(tmp_path, change):
    items, queries = aligned_sets(COUNT, 3)
    with _index(tmp_path / "index", items) as index, SetIndex.open(tmp_path / "index") as writer:
        best = [hits[0].id for hits in index.search(queries, k=1, **ALL)]

        def meanwhile(vectors):
            if change == "replaced":
                writer.upsert(best, -torch.stack([items[int(name)] for name in best]), [{"n": -1}] * 3)
            elif change == "removed":
                writer.remove(best)
            else:
                writer.remove(["149" if "149" not in best else "148"])
                writer.engine.flush(thorough=True)
                assert writer.engine.table.stats()["fragment_stats"]["num_fragments"] == 1
            return [np.arange(len(each)) for each in vectors]

        found = index.engine.candidates(
            queries.reshape(3, -1).numpy(), COUNT, None, CandidateOptions(16.0, choose=meanwhile)
        )
        for name, each in zip(best, found, strict=True):
            assert len(set(each.ids)) == len(each.ids) == len(writer)
            assert (name in each.ids) == (change != "removed")
            for place, item in enumerate(each.ids):
                sign = -1 if change == "replaced" and item in best else 1
                np.testing.assert_allclose(each.vectors[place], sign * items[int(item)].reshape(-1), atol=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_found_where_nothing_passes_or_nothing_is_wanted(unchanged, count):
    _, queries = aligned_sets(COUNT, count)
    flat = queries.reshape(count, -1).numpy()
    wanted = partial(places_of_best, queries.numpy(), k=5, similarity=SIMILARITIES["maxmatch"])
    for where, choose in (("n > 1000", wanted), (None, lambda vectors: [np.arange(0) for _ in vectors])):
        nothing = unchanged.engine.candidates(flat, 10, condition_of(where), CandidateOptions(choose=choose))
        assert [each.ids for each in nothing] == [[]] * count


def test_what_goes_wrong_while_scoring_is_not_taken_for_damage(unchanged):
    def out_of_memory(vectors):
        raise RuntimeError("can't allocate memory")

    query = aligned_sets(COUNT, 1)[1].reshape(1, -1).numpy()
    with pytest.raises(RuntimeError, match="can't allocate") as raised:
        unchanged.engine.candidates(query, 10, None, CandidateOptions(choose=out_of_memory))
    assert type(raised.value) is RuntimeError


def test_files_are_of_the_format_that_is_read_fast(unchanged):
    for file in (unchanged.folder / "items.lance" / "data").iterdir():
        assert file.read_bytes()[-8:] == struct.pack("<HH", 2, 1) + b"LANC"
