"""An index whose items are kept on a device finds what an exact search of the stored items finds."""

import pickle
import sys
import threading
from itertools import chain

import pytest
import torch
from made_sets import unit_sets

from maxmatch import SetIndex
from maxmatch.matching import stored_sets
from maxmatch.search.engines import on_device

QUERIES = unit_sets(5, 4, 32, seed=1)


def fill(folder, sets, **options):
    with SetIndex.create(folder, dim=sets.shape[2], set_size=sets.shape[1], **options) as index:
        names = [f"item {place}" for place in range(len(sets))]
        index.add(names, sets, [{"n": place, "even": place % 2 == 0} for place in range(len(sets))])
    return folder


def check_alike(index, k=10, where=None, tolerance=1e-6):
    """Ids, scores, matches and metadata are those of an exact search."""
    found, expected = index.search(QUERIES, k, where), index.search(QUERIES, k, where, exact=True)
    assert [[hit.id for hit in hits] for hits in found] == [[hit.id for hit in hits] for hits in expected]
    for ours, wanted in zip(chain(*found), chain(*expected), strict=True):
        assert ours.score == pytest.approx(wanted.score, abs=tolerance)
        assert [match[:2] for match in ours.matches] == [match[:2] for match in wanted.matches]
        assert ours.metadata == wanted.metadata
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_hits_are_those_of_an_exact_search_with_filters_too(tmp_path, dtype):
    folder = fill(tmp_path / "index", unit_sets(300, 4, 32), dtype=dtype)
    with SetIndex.open(folder, device="cpu") as index:
        assert len(check_alike(index)[0]) == 10
        for _ in range(2):  # the second time the filter is known
            assert all(hit.metadata["even"] for hit in check_alike(index, 7, "even = true AND n < 200")[0])
        assert len(check_alike(index, 50, "n < 20")[0]) == 20
        assert len(check_alike(index, 400)[0]) == 300


def test_a_filter_for_a_number_is_not_taken_for_one_for_a_boolean(tmp_path):
    with SetIndex.create(tmp_path / "index", dim=32, set_size=4) as index:
        index.add(["yes", "one", "also one"], unit_sets(3, 4, 32), [{"n": True}, {"n": 1}, {"n": 1.0}])
    with SetIndex.open(tmp_path / "index", device="cpu") as index:
        for where, count in (("n = true", 1), ("n = 1", 2), ("n IN (true)", 1), ("n IN (1)", 2)):
            assert len(check_alike(index, where=where)[0]) == count


def test_what_is_written_by_this_index_or_another_is_found_at_the_next_search(tmp_path):
    folder = fill(tmp_path / "index", unit_sets(30, 4, 32))
    with SetIndex.open(folder, device="cpu") as index, SetIndex.open(folder) as other:
        index.add(["query 0"], QUERIES[:1])
        assert check_alike(index)[0][0].id == "query 0"
        other.upsert(["item 3", "query 0"], QUERIES[[1, 2]], [{"n": -1, "even": False}] * 2)
        found = check_alike(index, where="n < 15")
        assert (found[1][0].id, found[2][0].id) == ("item 3", "query 0")
        other.remove(["item 3", "item 7"])
        assert len(check_alike(index, 40)[0]) == 29


def test_equal_scores_come_in_the_order_in_which_items_were_added(tmp_path):
    folder = fill(tmp_path / "index", unit_sets(1, 4, 32).repeat(40, 1, 1))
    with SetIndex.open(folder, device="cpu") as index:
        index.upsert(["item 2"], unit_sets(1, 4, 32), [{"n": 2, "even": True}])  # added anew
        expected = [f"item {place}" for place in range(40) if place != 2]
        assert [hit.id for hit in check_alike(index, 40)[0]] == [*expected, "item 2"]


def test_an_empty_index_and_queries_of_another_size(tmp_path):
    with SetIndex.create(tmp_path / "empty", dim=32, set_size=4):
        pass
    with SetIndex.open(tmp_path / "empty", device="cpu") as index:
        assert index.search(QUERIES) == [[]] * 5
        index.add(["a"], QUERIES[:1])
        assert index.search(QUERIES[:, :2])[0][0].id == "a"


def test_another_process_opens_it_on_the_same_device(tmp_path):
    with SetIndex.open(fill(tmp_path / "index", unit_sets(9, 4, 32)), device="cpu") as index:
        copy = pickle.loads(pickle.dumps(index))
        assert copy.device == "cpu"
        check_alike(copy, 3)


def test_what_cannot_be_kept_on_a_device_is_refused(tmp_path, monkeypatch):
    with SetIndex.create(tmp_path / "any", dim=8, set_size=None):
        pass
    with pytest.raises(ValueError, match="sets of any size"):
        SetIndex.open(tmp_path / "any", device="cpu")
    folder = fill(tmp_path / "index", unit_sets(9, 4, 32))
    with pytest.raises(ValueError, match=r"^device: expected cpu"):
        SetIndex.open(folder, device="attic")
    monkeypatch.setattr(on_device, "chosen_device", torch.device)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 2000))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda _: 0)
    with pytest.raises(ValueError, match=r"9 items take .* and cuda has"):
        SetIndex.open(folder, device="cuda")


def test_no_index_is_left_by_one_that_was_to_be_kept_on_a_device_that_is_not_there(tmp_path):
    for size, options in (
        (4, {"device": "attic"}),
        (4, {"device": "cpu", "device_dtype": "int4"}),
        (None, {"device": "cpu"}),
    ):
        with pytest.raises(ValueError, match="device"):
            SetIndex.create(tmp_path / "index", dim=8, set_size=size, **options)
        assert not (tmp_path / "index").exists()
    SetIndex.create(tmp_path / "index", dim=8, set_size=4, device="cpu").close()


def test_items_are_read_again_once_nobody_searches_those_of_before_where_both_do_not_fit(tmp_path, monkeypatch):
    folder = fill(tmp_path / "index", unit_sets(30, 4, 32))
    with SetIndex.open(folder, device="cpu") as index:
        held = index._on_device
        room = int(1.5 * held._items.sets.nbytes)
        monkeypatch.setattr(on_device, "free_memory_of", lambda _: room - sum(sets.nbytes for sets in held._held))
        index.remove(["item 3"])
        check_alike(index)
        searched = [held._items]  # by another thread
        index.remove(["item 4"])
        threading.Timer(0.1, searched.clear).start()
        check_alike(index)
        assert not searched
        searched = [held._items]
        index.remove(["item 5"])
        monkeypatch.setattr(on_device, "_PATIENCE", 0.0)
        with pytest.raises(ValueError, match=r"27 items take .* and cpu has"):
            index.search(QUERIES)
        searched.clear()
        check_alike(index)


def test_what_others_write_meanwhile_is_read_too_and_reading_has_an_end(tmp_path, monkeypatch):
    folder = fill(tmp_path / "index", unit_sets(30, 4, 32))
    with SetIndex.open(folder, device="cpu") as index, SetIndex.open(folder) as other:
        engine, left = index._on_device._engine, [2]
        scan = engine.scan

        def disturbed(*given, metadata=False, **options):
            if metadata and left[0]:
                left[0] -= 1
                other.add([f"new {left[0]}"], QUERIES[left[0] % 5][None])
            return scan(*given, metadata=metadata, **options)

        monkeypatch.setattr(engine, "scan", disturbed)
        other.remove(["item 3"])
        assert [hits[0].id for hits in index.search(QUERIES[:2], 1)] == ["new 0", "new 1"]
        other.remove(["item 4"])
        left[0] = 100
        with pytest.raises(RuntimeError, match=r"others wrote to it .* 5 times"):
            index.search(QUERIES)
        left[0] = 0
        check_alike(index)


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is made for Linux only")
def test_so_many_hits_are_wanted_that_the_kernel_finds_them():
    from maxmatch.matching.triton_scan import MOST_WANTED

    wanted = [on_device._wanted(k) for k in (1, 10, 20, 128, 129, 240)]
    assert wanted == [17, 26, 40, MOST_WANTED, MOST_WANTED, MOST_WANTED]
    assert [on_device._wanted(k) for k in (241, 300)] == [482, 600]  # more than it finds


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is made for Linux only")
def test_a_gpu_that_is_full_of_items_takes_fewer_queries_at_once(tmp_path, monkeypatch, dtype):
    from maxmatch.matching import triton_scan

    sizes = []

    class Kernels:
        can_scan, scan_bytes = staticmethod(triton_scan.can_scan), staticmethod(triton_scan.scan_bytes)
        most_queries = staticmethod(lambda device: 4)

        @staticmethod
        def best_hits(queries, *given, **options):
            sizes.append(len(queries))
            return triton_scan.best_hits(queries, *given, **options)

    folder = fill(tmp_path / "index", unit_sets(100, 4, 32), dtype="float16")
    with SetIndex.open(folder, "cpu", dtype) as index:
        expected = index.search(QUERIES, 3)
        monkeypatch.setattr(stored_sets, "scans_for", lambda _: Kernels)
        monkeypatch.setattr(stored_sets, "_UNASKED", 0)
        for free, at_once in ((5 * triton_scan.scan_bytes(100, 19), [2, 2, 1]), (0, [1] * 5), (None, [4, 1])):
            monkeypatch.setattr(stored_sets, "free_memory_of", lambda _, free=free: free)
            assert index.search(QUERIES, 3) == expected
            assert sizes == at_once
            sizes.clear()
        monkeypatch.setattr(on_device, "_AGAIN", 16 * 19 * 4 * 32)
        monkeypatch.setattr(on_device, "free_memory_of", lambda _: 32 * 3 * 19 * 4 * 32)
        assert index.search(QUERIES, 3) == expected
        assert sizes == [3, 2]


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is made for Linux only")
def test_the_kernel_of_a_gpu_finds_the_same(tmp_path, monkeypatch, dtype):
    from maxmatch.matching import triton_scan

    folder = fill(tmp_path / "index", unit_sets(100, 4, 32), dtype="float16")
    with SetIndex.open(folder, "cpu", dtype) as index:
        expected = index.search(QUERIES, 3), index.search(QUERIES, 2, "n < 40")
        monkeypatch.setattr(stored_sets, "scans_for", lambda _: triton_scan)
        assert (index.search(QUERIES, 3), index.search(QUERIES, 2, "n < 40")) == expected


def test_integers_on_a_device_give_the_scores_of_what_is_kept(tmp_path, monkeypatch):
    """Made integers here a second time: each number is a multiple of 1/127 of the largest of its vector."""
    monkeypatch.setattr(stored_sets, "_BLOCK", 37 * 4 * 32)  # in blocks
    sets = unit_sets(200, 4, 32)
    scale = sets.abs().amax(-1, keepdim=True) / 127
    kept = (sets / scale).round() * scale
    assert 1e-4 < float((kept - sets).abs().max()) < 0.6 * float(scale.max())
    folder = fill(tmp_path / "index", sets)
    with SetIndex.create(tmp_path / "kept", 32, 4) as exact, SetIndex.open(folder, "cpu", "int8") as index:
        exact.add([f"item {place}" for place in range(200)], kept)
        for ours, wanted in zip(index.search(QUERIES), exact.search(QUERIES, exact=True), strict=True):
            assert [hit.id for hit in ours] == [hit.id for hit in wanted]
            assert [hit.score for hit in ours] == pytest.approx([hit.score for hit in wanted], abs=1e-6)
        assert [[hit.metadata["n"] for hit in hits] for hits in index.search(QUERIES, 9, "n < 5")] != []
        assert all(len(hits) == 5 for hits in index.search(QUERIES, 9, "n < 5"))


def test_more_queries_than_go_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(on_device, "_QUERIES", 2)
    with SetIndex.open(fill(tmp_path / "index", unit_sets(50, 4, 32)), device="cpu") as index:
        check_alike(index)


def test_a_new_index_on_a_device(tmp_path):
    with SetIndex.create(tmp_path / "new", 32, 4, device="cpu", device_dtype="float16") as index:
        assert index.search(QUERIES) == [[]] * 5
        index.add([f"query {n}" for n in range(5)], QUERIES)
        assert [hits[0].id for hits in index.search(QUERIES, 1)] == [f"query {n}" for n in range(5)]
    with pytest.raises(ValueError, match=r"^device_dtype: expected one of .* got 'int4'"):
        SetIndex.open(tmp_path / "new", device="cpu", device_dtype="int4")
