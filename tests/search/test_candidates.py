"""Search without a scan: what it finds, when it is not used, and how it is measured."""

import logging
import math

import pytest
from made_sets import ENGINES, aligned_sets, unit_sets

from maxmatch import SetIndex, score_matrix, top_hits
from maxmatch.search import verify
from maxmatch.search.engine import Location, proposes
from maxmatch.search.engines.lance import cache_bytes
from maxmatch.search.rerank import Settings, settings_for
from maxmatch.search.verify import measure, standard_error, wilson

_COUNT = 3_000


@pytest.fixture(scope="module")
def data():
    return aligned_sets(_COUNT, 40)


@pytest.fixture(scope="module")
def index(engine, tmp_path_factory, data):
    """An index whose engine proposes candidates."""
    folder = tmp_path_factory.mktemp("candidates") / "index"
    settings = {**ENGINES[engine], **({"train_from": 1_000} if engine == "lance" else {})}
    with SetIndex.create(folder, dim=16, set_size=4, stability=1.0, engine=engine, settings=settings) as index:
        index.add([str(n) for n in range(_COUNT)], data[0], [{"even": n % 2 == 0, "n": n} for n in range(_COUNT)])
        yield index


@pytest.fixture(scope="module")
def few(data, tmp_path_factory):
    """An index of 200 items, for what depends on no engine."""
    folder = tmp_path_factory.mktemp("few") / "index"
    with SetIndex.create(folder, 16, 4, stability=1.0, settings={"train_from": 100}) as index:
        index.add([str(n) for n in range(200)], data[0][:200])
        yield index


def _no_scan(index, monkeypatch):
    def scan(*arguments):
        raise AssertionError("all items were scanned")

    monkeypatch.setattr(index.engine, "scan", scan)


def _recall(found, expected):
    shares = [
        len({hit.id for hit in hits} & {str(place) for place in row}) / len(row)
        for hits, row in zip(found, expected.indices.tolist(), strict=True)
    ]
    return sum(shares) / len(shares)


def test_nearly_all_of_the_best_are_found_without_a_scan(index, data, monkeypatch):
    _no_scan(index, monkeypatch)
    expected = top_hits(data[1], data[0], 10)
    found = index.search(data[1], k=10)
    assert _recall(found, expected) >= 0.95
    assert all(len(hits) == 10 for hits in found)
    scores = score_matrix(data[1], data[0])
    for row, hits in enumerate(found):
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        for hit in hits:
            place = int(hit.id)
            assert hit.score == pytest.approx(float(scores[row, place]), abs=1e-6)
            assert hit.metadata == {"even": place % 2 == 0, "n": place}


def test_one_query_finds_what_it_finds_among_many(index, data):
    together = index.search(data[1][:5], k=3)
    for query, hits in zip(data[1][:5], together, strict=True):
        assert [hit.id for hit in index.search(query[None], k=3)[0]] == [hit.id for hit in hits]


def test_a_filter_comes_before_the_choice_of_candidates(index, data, monkeypatch):
    from maxmatch.search import set_index as module

    monkeypatch.setattr(module, "_SCAN_BELOW", 100)
    expected = top_hits(data[1], data[0][::2], 10)
    with monkeypatch.context() as patch:
        _no_scan(index, patch)
        found = index.search(data[1], k=10, where="even = true")
    assert all(hit.metadata["even"] for hits in found for hit in hits)
    mine = [{hit.metadata["n"] // 2 for hit in hits} for hits in found]
    shares = [len(ids & set(row)) / 10 for ids, row in zip(mine, expected.indices.tolist(), strict=True)]
    assert sum(shares) / len(shares) >= 0.98


def test_where_few_pass_they_are_all_scored(index, data):
    (hits,) = index.search(data[1][:1], k=10, where="n < 7")
    expected = top_hits(data[1][:1], data[0][:7], 7)
    assert [hit.metadata["n"] for hit in hits] == expected.indices[0].tolist()


def test_a_query_with_too_few_candidates_is_answered_by_a_scan(index, data, monkeypatch):
    real = index.engine.candidates
    monkeypatch.setattr(index.engine, "candidates", lambda queries, count, *others: real(queries, 2, *others))
    expected = top_hits(data[1][:3], data[0], 10)
    assert _recall(index.search(data[1][:3], k=10), expected) == 1


def test_so_many_candidates_that_a_scan_is_less_work_are_not_asked_for(index, data, monkeypatch):
    from maxmatch.search import rerank

    monkeypatch.setattr(rerank, "_MANY", 100)
    expected = top_hits(data[1][:2], data[0], 60)
    with monkeypatch.context() as patch:
        patch.setattr(
            index.engine, "candidates", lambda queries, *more: [] if not len(queries) else pytest.fail("asked")
        )
        found = index.search(data[1][:2], k=60, candidates=600)  # of 3,000
    assert _recall(found, expected) == 1
    with monkeypatch.context() as patch:
        _no_scan(index, patch)
        assert len(index.search(data[1][:1], k=20, candidates=200)[0]) == 20


def test_what_is_written_later_is_found_too(index, data, monkeypatch):
    query = unit_sets(1, 4, 16, seed=9)
    index.add(["new"], query)
    with monkeypatch.context() as patch:
        _no_scan(index, patch)
        assert index.search(query)[0][0].id == "new"
        index.remove(["new"])
        assert "new" not in {hit.id for hit in index.search(query)[0]}


def test_unstable_slots_are_answered_by_a_scan_and_the_reason_is_logged_once(data, tmp_path, caplog):
    items, queries = data[0][:120], data[1][:5]
    turned = queries.roll(1, dims=1)  # slot i of a query meets slot i − 1 of its item
    expected = top_hits(turned, items, 5)
    for name, options, message in (
        ("unknown", {}, "not known whether slot i"),
        ("low", {"stability": 0.5}, "in 50% of pairs only"),
        ("mil", {"stability": 1.0, "similarity": "mil"}, "similarity 'mil' is not that of vectors in their order"),
    ):
        index = SetIndex.create(tmp_path / name, dim=16, set_size=4, settings={"train_from": 100}, **options)
        index.add([str(n) for n in range(120)], items)
        assert proposes(index.engine)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="maxmatch"):
            index.search(turned, k=5)
            found = index.search(turned, k=5)
        assert len(caplog.messages) == 1
        assert message in caplog.text
        assert message in str(index.info()["search"])
        if name != "mil":
            assert _recall(found, expected) == 1


def test_paired_slots_need_no_stability_for_candidates(data, tmp_path, monkeypatch):
    items, queries = data[0][:120], data[1][:5]
    for stability in (None, 0.0):
        folder, settings = tmp_path / str(stability), {"train_from": 100}
        with SetIndex.create(folder, 16, 4, similarity="paired", stability=stability, settings=settings) as index:
            index.add([str(n) for n in range(120)], items)
            monkeypatch.setattr("maxmatch.search.set_index._SCAN_BELOW", 0)
            with monkeypatch.context() as patch:
                _no_scan(index, patch)
                found = index.search(queries, k=5, candidates=120, effort=16.0)
            assert _recall(found, top_hits(queries, items, 5, "paired")) == 1


def test_verify_measures_what_a_search_finds_and_what_it_keeps_reaches_the_target(index, data):
    result = index.verify(data[1], target=0.99)
    assert result.reached
    assert result.chosen.real_queries
    assert result.chosen.low <= result.chosen.recall <= result.chosen.high
    kept = [trial for trial in result.trials if trial.settings == (result.chosen.candidates, result.chosen.effort)]
    assert [trial.recall for trial in kept] == [result.chosen.recall]
    with SetIndex.open(index.folder) as again:
        assert again.manifest.tuning == result.chosen
        assert _recall(again.search(data[1], k=10), top_hits(data[1], data[0], 10)) >= 0.99


def _measure(index, queries, monkeypatch, lost, target=0.99):
    """What `measure` chooses where so many queries lose an item with some settings."""
    truth = verify.scan(index.engine, queries, 10, None, index.manifest)

    def found(engine, queries, k, where, manifest, settings):
        return [best._replace(scores=best.scores - (place < lost(settings))) for place, best in enumerate(truth)]

    monkeypatch.setattr(verify, "by_candidates", found)
    return measure(index.engine, queries, 10, index.manifest, target, real_queries=True)


def test_a_recall_at_the_edge_of_the_target_is_not_enough(few, data, monkeypatch):
    """Of 100 queries each setting misses one item of fewer: 10, 5, 2, 1."""
    queries, missed = data[1].repeat(3, 1, 1)[:100].numpy(), {50: 10, 100: 5, 200: 2}
    assert standard_error([0.0] * 5 + [1.0] * 95) == pytest.approx((0.05 * 0.95 / 99) ** 0.5)
    for target, candidates in ((0.9, 100), (0.94, 200), (0.95, 200)):  # 0.9, 0.95 and 0.98 less about 0.03, 0.02, 0.01
        result = _measure(few, queries, monkeypatch, lambda at: missed.get(at[0], 0) if at[1] < 3 else 1, target)
        assert (result.reached, result.chosen.candidates) == (True, candidates)


@pytest.mark.parametrize(
    ("lost", "expected", "trials"),
    [
        (lambda settings: 3 - math.log2(settings.candidates / 50), (400, 1.0, True), 7),  # one, and two for each step
        (lambda settings: 3 - math.log2(settings.effort), (50, 8.0, True), 7),
        (lambda settings: 100, (800, 16.0, False), None),
    ],
    ids=["candidates help", "effort helps", "nothing helps"],
)
def test_whichever_of_candidates_and_effort_helps_is_doubled(few, data, monkeypatch, lost, expected, trials):
    result = _measure(few, data[1][:30].numpy(), monkeypatch, lost)
    assert (result.chosen.candidates, result.chosen.effort, result.reached) == expected
    assert trials in (None, len(result.trials))


def test_with_its_own_items_an_index_chooses_a_hundred_candidates_at_least(few, data):
    chosen = measure(few.engine, data[0][:20].numpy(), 10, few.manifest, 0.1, real_queries=False).chosen
    assert (chosen.candidates, chosen.effort) == (100, 1)


def test_real_queries_decide_whether_a_search_need_not_scan(data, tmp_path, monkeypatch):
    index = SetIndex.create(tmp_path / "index", dim=16, set_size=4, settings={"train_from": 500})
    index.add([str(n) for n in range(1_000)], data[0][:1_000])
    assert index.manifest.tuning is None
    index.verify(data[1])
    assert str(index.info()["search"]).startswith("candidates")
    with monkeypatch.context() as patch:
        _no_scan(index, patch)
        index.search(data[1][:1])
    lost = index.verify(data[1].flip(1), k=2)  # slot i of these meets slot 3 − i
    assert lost.chosen.recall < 0.5
    assert not lost.reached
    assert str(index.info()["search"]).startswith("scans all items: too little was found")


def test_settings_are_as_given_else_as_measured_else_the_defaults(few):
    assert few.manifest.tuning.items == 200
    tuning = few.manifest.tuning.model_copy(update={"candidates": 60, "effort": 2.0, "k": 10})
    assert settings_for(None, 10, None, None) == Settings(100, 1.0)
    assert settings_for(None, 50, None, None) == Settings(500, 1.0)
    assert settings_for(None, 50, None, None, in_memory=True) == Settings(200, 1.0)
    assert settings_for(None, 10, None, None, in_memory=True) == Settings(100, 1.0)
    assert settings_for(tuning, 10, None, None, in_memory=True) == Settings(60, 2.0)
    assert settings_for(tuning, 10, None, None) == Settings(60, 2.0)
    assert settings_for(tuning, 25, None, None) == Settings(180, 2.0)
    assert settings_for(tuning, 5, 7, 0.5) == Settings(7, 0.5)


def test_an_index_over_vectors_of_any_size_fits_into_its_cache(tmp_path):
    place = Location(tmp_path, width=8)
    assert cache_bytes(place) == 512 * 2**20
    files = tmp_path / "items.lance" / "_indices" / "one"
    files.mkdir(parents=True)
    with (files / "auxiliary.idx").open("wb") as file:
        file.truncate(2**30)  # takes no room on the disk
    assert cache_bytes(place) >= 2**30


def test_the_interval_is_wilsons():
    assert wilson(1.0, 100) == pytest.approx((0.9630, 1.0), abs=1e-4)
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_verify_of_an_empty_index_or_with_wrong_wishes_is_refused(tmp_path, data):
    index = SetIndex.create(tmp_path / "index", dim=16, set_size=4)
    with pytest.raises(ValueError, match="nothing to measure"):
        index.verify()
    index.add(["a"], data[0][:1])
    for arguments, message in (({"k": 0}, "k: expected"), ({"target": 1.5}, "target: expected")):
        with pytest.raises(ValueError, match=message):
            index.verify(**arguments)
    assert index.verify().trials == []  # every search scans
