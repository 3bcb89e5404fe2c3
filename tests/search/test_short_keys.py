"""Short keys propose candidates: nearly all of the best of what the table holds now, whatever becomes of their file."""

import logging
import shutil
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from made_data import environment
from made_sets import aligned_sets, unit_sets

from maxmatch import SetIndex
from maxmatch.search.engine import CandidateOptions
from maxmatch.search.engines import key_search, numba_keys
from maxmatch.search.engines.lance_search import Nearest
from maxmatch.search.engines.short_keys import read_keys, trained, write_keys
from maxmatch.search.index_folder import KEYS

COUNT = 1_500
SETTINGS = {"train_from": 500, "keys_from": 500}
ALL = {"candidates": 150, "effort": 64.0}


@pytest.fixture(scope="module")
def data():
    return aligned_sets(COUNT, 30)


@pytest.fixture(scope="module")
def _built(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("keys") / "index"
    return _index(folder, data[0]).folder


def _index(folder, items, **options):
    size, width = items.shape[1:]
    index = SetIndex.create(folder, width, size, stability=1.0, **{"settings": SETTINGS, **options})
    index.add([str(n) for n in range(len(items))], items, [{"n": n, "third": n % 3 == 0} for n in range(len(items))])
    return index


@pytest.fixture
def index(_built, tmp_path):
    """An index with keys, which a test may write to."""
    folder = shutil.copytree(_built, tmp_path / "index")
    with SetIndex.open(folder) as index:
        yield index


@pytest.fixture
def by_keys_alone(monkeypatch):
    """Neither the engine's index nor a scan may answer."""

    def other(*arguments, **options):
        raise AssertionError("not by keys")

    monkeypatch.setattr(Nearest, "search", other)
    monkeypatch.setattr("maxmatch.search.set_index.scan", other)
    monkeypatch.setattr("maxmatch.search.rerank.scan", other)


def _same(found, truth):
    for mine, true in zip(found, truth, strict=True):
        assert [hit.id for hit in mine] == [hit.id for hit in true]
        assert [hit.metadata for hit in mine] == [hit.metadata for hit in true]
        np.testing.assert_allclose([hit.score for hit in mine], [hit.score for hit in true], atol=1e-6)


def _keyed(index):
    return index.info()["storage"].get("keys")


# The mathematics of keys.


def _low_rank(count, width=600, rank=40, seed=0):
    random = np.random.default_rng(seed)
    points = random.normal(size=(count, rank)) * np.linspace(2, 0.5, rank)
    vectors = points @ np.linalg.qr(random.normal(size=(width, rank)))[0].T + random.normal(size=width)
    return (vectors + 0.01 * random.normal(size=vectors.shape)).astype(np.float32)


def test_estimates_are_the_inner_products_up_to_rounding():
    vectors = _low_rank(2_000)
    keys = trained(lambda places: vectors[places], len(vectors), 600)
    assert keys.usable
    queries, items = vectors[:5], vectors[1_000:1_200]
    weights = keys.directions.weights(*keys.directions.coordinates(queries))
    each, _ = keys.keyed(items)
    for number, query in enumerate(queries):
        constant = float(query.astype(np.float64) @ keys.directions.mean)
        true = items.astype(np.float64) @ query - constant
        # A byte is off by half a step at most, and the directions keep nearly all.
        most = np.abs(weights.both[number]).sum() / 2 + 0.1 * np.linalg.norm(query)
        assert np.abs(weights.estimates(number, each) - true).max() <= most
        assert np.corrcoef(weights.estimates(number, each), true)[0, 1] > 0.999
        first = each.first.astype(np.int64) @ weights.first[number]
        assert np.corrcoef(first, true)[0, 1] > 0.98


def test_the_cell_of_an_item_is_the_nearest_and_each_item_is_in_one():
    vectors = _low_rank(3_500)
    empty = trained(lambda places: vectors[places], len(vectors), 600)
    each, cells = empty.keyed(vectors)
    coordinates = (vectors - empty.directions.mean) @ empty.directions.basis[:, : empty.directions.first]
    slow = ((coordinates[:, None] - empty.centres) ** 2).sum(2).argmin(1)
    assert (cells == slow).mean() > 0.999  # but for ties by rounding
    keys = empty.holding(np.arange(len(vectors)), each, cells)
    assert sorted(keys.added.tolist()) == list(range(len(vectors)))
    assert np.array_equal(keys.cell_of_each(), cells[keys.added])
    assert np.array_equal(keys.keys.first, each.first[keys.added])
    assert len(keys.centres) == 3


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_the_compiled_code_keeps_the_largest_products(count):
    random = np.random.default_rng(count)
    keys = random.integers(-127, 128, size=(300, 33), dtype=np.int8)
    query = random.integers(-32_767, 32_768, size=33, dtype=np.int16)
    passing = np.sort(random.choice(300, 120, replace=False)).astype(np.int32)
    begins, ends = np.array([5, 60]), np.array([40, 110])
    products, places = np.full(count, -(2**31), np.int32), np.full(count, -1, np.int64)
    numba_keys.keep_best(keys, passing, begins, ends, query, 1000, products, places)
    looked_at = [*passing[5:40], *passing[60:110]]
    slow = sorted(sum(int(a) * int(b) for a, b in zip(keys[place], query, strict=True)) for place in looked_at)
    assert sorted(products.tolist()) == slow[-count:]
    for product, place in zip(products.tolist(), places.tolist(), strict=True):
        assert place - 1000 in looked_at
        assert keys[place - 1000].astype(np.int64) @ query.astype(np.int64) == product


def test_largest_numbers_do_not_overflow():
    keys, query = np.full((1, 256), 127, np.int8), np.full(256, 32_767, np.int16)
    products, places = np.full(1, -(2**31), np.int32), np.full(1, -1, np.int64)
    whole = np.zeros(1, np.int64), np.ones(1, np.int64)
    numba_keys.keep_best(keys, np.zeros(1, np.int32), *whole, query, 0, products, places)
    assert products[0] == 256 * 127 * 32_767


# A search by keys.


@pytest.mark.parametrize("where", [None, "third = true", "n >= 700 AND third = false", "n < 12", "n < 4", "n < 0"])
def test_with_all_effort_the_answer_is_that_of_the_scan(index, data, where, monkeypatch, request):
    truth = index.search(data[1], k=10, where=where, exact=True)
    request.getfixturevalue("by_keys_alone")
    assert _keyed(index) == COUNT
    _same(index.search(data[1], k=10, where=where, **ALL), truth)
    _same(index.search(data[1][:1], k=10, where=where, **ALL), truth[:1])


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"similarity": "paired"}, {"similarity": "chamfer"}])
def test_so_it_is_in_every_kind_of_index(tmp_path, data, options, request):
    with _index(tmp_path / "index", data[0][:700], **options) as index:
        truth = index.search(data[1], k=5, exact=True)
        request.getfixturevalue("by_keys_alone")
        _same(index.search(data[1], k=5, **ALL), truth)


def test_few_more_than_are_wanted_are_read(index, data, by_keys_alone):
    flat = data[1].reshape(len(data[1]), -1).numpy()
    ten = CandidateOptions(wanted=10)
    assert [len(each.ids) for each in index.engine.candidates(flat, 100, options=ten)] == [25] * len(flat)
    assert [len(each.ids) for each in index.engine.candidates(flat, 300, options=ten)] == [50] * len(flat)
    assert [len(each.ids) for each in index.engine.candidates(flat, 12, options=ten)] == [12] * len(flat)
    assert [len(each.ids) for each in index.engine.candidates(flat, 100)] == [100] * len(flat)


def test_metadata_are_read_for_those_who_want_them(index, data, by_keys_alone, monkeypatch):
    read, real = [], Nearest._taken

    def taken(self, numbers, columns):
        read.append("metadata" in columns)
        return real(self, numbers, columns)

    monkeypatch.setattr(Nearest, "_taken", taken)
    found, hits = index.best(data[1], k=5), index.search(data[1], k=5)
    assert read == [False, True]
    assert [each.ids for each in found] == [[hit.id for hit in each] for each in hits]
    assert all(hit.metadata["n"] == int(hit.id) for each in hits for hit in each)


def test_with_little_effort_few_cells_are_looked_at(tmp_path, monkeypatch):
    items, queries = aligned_sets(6_000, 40)
    looked_at = []
    real = numba_keys.keep_best

    def counted(keys, passing, begins, ends, *more):
        looked_at.append(int((ends - begins).sum()))
        real(keys, passing, begins, ends, *more)

    with _index(tmp_path / "index", items) as index:
        truth = index.search(queries, k=10, exact=True)
        monkeypatch.setattr(key_search, "_LOOKED_AT", 2_000)
        monkeypatch.setattr(numba_keys, "keep_best", counted)
        found = index.search(queries, k=10)
        shares = [len({hit.id for hit in a} & {hit.id for hit in b}) / 10 for a, b in zip(found, truth, strict=True)]
        assert np.mean(shares) > 0.6
        assert 2_000 <= np.max(looked_at) < 5_000
        _same(index.search(queries, k=10, effort=4.0), truth)


def test_an_item_unlike_all_others_is_found(tmp_path, request):
    sets = torch.from_numpy(_low_rank(1_200, 512)).reshape(-1, 4, 128)
    sets = torch.nn.functional.normalize(sets, dim=-1)
    odd = unit_sets(20, 4, 128, seed=5)
    with _index(tmp_path / "index", sets) as index:
        request.getfixturevalue("by_keys_alone")
        index.add([f"odd {n}" for n in range(20)], odd)
        for _ in range(2):
            assert [hits[0].id for hits in index.search(odd, k=3)] == [f"odd {n}" for n in range(20)]
            index.compact()  # now they are in the file


# What is written later.


def test_later_items_are_found_and_removed_ones_are_not(index, data, request):
    written = (index.folder / KEYS).stat().st_mtime_ns
    new = unit_sets(12, 4, 16, seed=3)
    index.add([f"new {n}" for n in range(12)], new, [{"n": -1}] * 12)
    index.upsert(["7"], new[:1], [{"n": 7, "third": True}])
    index.remove(["new 3", "20", "21"])
    assert (index.folder / KEYS).stat().st_mtime_ns == written  # so few are not worth a new file
    truth = {where: index.search(data[1], k=10, where=where, exact=True) for where in (None, "third = true", "n = -1")}
    request.getfixturevalue("by_keys_alone")
    for _ in range(2):
        for where, expected in truth.items():
            _same(index.search(data[1], k=10, where=where, **ALL), expected)
        first = [hits[0].id for hits in index.search(new, k=1)]
        assert [name for n, name in enumerate(first) if n != 3] == [f"new {n}" for n in range(12) if n != 3]
        assert [hit.id for hit in index.search(new[:1], k=2)[0]] == ["new 0", "7"]  # equal: in order of addition
        assert _keyed(index) == len(index) == COUNT + 9
        index.compact()
        assert len(read_keys(index.folder / KEYS, 64).added) == COUNT + 9


def test_what_another_process_writes_is_seen(index, data, request):
    request.getfixturevalue("by_keys_alone")
    new = unit_sets(2, 4, 16, seed=4)
    index.search(data[1], where="third = true")
    with SetIndex.open(index.folder) as other:
        other.add(["a", "b"], new, [{"third": True}, {"third": False}])
        assert index.search(new, k=1)[1][0].id == "b"
        assert index.search(new[:1], k=1, where="third = true")[0][0].id == "a"
        other.compact()
        assert index.search(new, k=1)[0][0].id == "a"
        other.remove(["a"])
        assert index.search(new, k=1)[0][0].id != "a"


def test_rows_that_move_while_they_are_looked_for_are_looked_for_anew(index, data, monkeypatch, request):
    truth = index.search(data[1], k=5, exact=True)
    request.getfixturevalue("by_keys_alone")
    index.search(data[1][:1])
    real = Nearest.among

    def among(self, rows, metadata):
        monkeypatch.setattr(Nearest, "among", real)
        with SetIndex.open(index.folder) as other:
            other.add(["x"], unit_sets(1, 4, 16, seed=8))
            other.remove(["x"])
            other.compact()
            other.engine.table.optimize()
        return real(self, rows, metadata)

    monkeypatch.setattr(Nearest, "among", among)
    _same(index.search(data[1], k=5, **ALL), truth)


def test_what_is_replaced_while_a_filter_is_looked_up_is_found_once(index, data, monkeypatch):
    index.search(data[1][:1])
    real = Nearest.numbers

    def numbers(self, where=None):
        if where is not None:
            monkeypatch.setattr(Nearest, "numbers", real)
            with SetIndex.open(index.folder) as other:
                other.upsert(["3"], data[0][3:4], [{"n": 3, "third": True}])
        return real(self, where)

    monkeypatch.setattr(Nearest, "numbers", numbers)
    (hits,) = index.search(data[0][3:4], k=5, where="third = true", **ALL)
    assert [hit.id for hit in hits].count("3") == 1
    assert hits[0].id == "3"


def test_twice_as_many_items_are_trained_for_anew(index, data, monkeypatch):
    assert read_keys(index.folder / KEYS, 64).trained_for == COUNT
    again = torch.flip(data[0], [1])
    index.add([f"again {n}" for n in range(COUNT)], again)
    keys = read_keys(index.folder / KEYS, 64)
    assert keys.trained_for == len(keys.added) == 2 * COUNT


def test_far_behind_the_engines_index_answers_until_the_keys_are_brought_up_to_date(index, data, monkeypatch, request):
    monkeypatch.setattr(key_search, "_BEHIND", 10)
    new = unit_sets(90, 4, 16, seed=6)
    index.add([f"new {n}" for n in range(90)], new, optimise=False)
    assert _keyed(index) is None
    assert index.search(new[:1], k=1)[0][0].id == "new 0"
    index.add(["last"], unit_sets(1, 4, 16, seed=7))  # this brings them up to date
    assert len(read_keys(index.folder / KEYS, 64).added) == COUNT + 91
    request.getfixturevalue("by_keys_alone")
    assert [hits[0].id for hits in index.search(new, k=1)] == [f"new {n}" for n in range(90)]


# The file.


def _cut(path, other):
    path.write_bytes(path.read_bytes()[:-1000])


def _flip(path, other):
    with zipfile.ZipFile(path) as parts:
        middle = parts.getinfo("keys.npy").header_offset + 2_000
    content = bytearray(path.read_bytes())
    content[middle] ^= 64
    path.write_bytes(content)


def _text(path, other):
    path.write_text("no keys")


def _of_another_width(path, other):
    vectors = _low_rank(1_200)
    write_keys(path, trained(lambda places: vectors[places], len(vectors), 600))


def _of_other_vectors(path, other):
    keys = read_keys(path, 64)
    write_keys(path, keys._replace(keys=keys.keys.at(np.random.default_rng(0).permutation(COUNT))))


@pytest.mark.parametrize("damage", [_cut, _flip, _text, _of_another_width, _of_other_vectors])
def test_a_damaged_file_is_not_used_warned_of_once_and_built_again(index, data, damage, caplog, request):
    truth = index.search(data[1], k=10, exact=True)
    damage(index.folder / KEYS, data)
    with SetIndex.open(index.folder) as again, caplog.at_level(logging.WARNING, logger="maxmatch"):
        for _ in range(3):
            _same(again.search(data[1], k=10, candidates=1_000, effort=16.0), truth)
        assert _keyed(again) is None
        assert len(caplog.messages) == 1
        assert str(index.folder / KEYS) in caplog.text
        again.compact()
        request.getfixturevalue("by_keys_alone")
        _same(again.search(data[1], k=10, **ALL), truth)


def test_without_the_file_the_engines_index_answers_and_the_next_write_builds_it(index, data, caplog):
    truth = index.search(data[1], k=10, exact=True)
    (index.folder / KEYS).unlink()
    with caplog.at_level(logging.WARNING, logger="maxmatch"):
        _same(index.search(data[1], k=10, candidates=1_000, effort=16.0), truth)
    assert not caplog.messages
    index.add(["one"], unit_sets(1, 4, 16, seed=3))
    assert _keyed(index) == COUNT + 1


def test_a_file_of_another_index_is_not_used(index, data, tmp_path):
    with _index(tmp_path / "other", data[0]) as other:
        shutil.copy(other.folder / KEYS, index.folder / KEYS)
    assert _keyed(index) is None
    index.compact()
    assert _keyed(index) == COUNT


_KILLED = """
import os, signal, sys
import numpy as np, torch
from maxmatch import SetIndex

def half(file, **parts):
    file.write(b"half of it" * 1_000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

np.savez = half
index = SetIndex.open(sys.argv[1])
index.add(["new"], torch.nn.functional.normalize(torch.ones(1, 4, 16), dim=-1))
index.compact()
"""


def test_a_process_that_is_killed_while_it_writes_the_file_leaves_the_old_one(index, data, request):
    before = (index.folder / KEYS).read_bytes()
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(index.folder)], env=environment(), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (index.folder / KEYS).read_bytes() == before
    truth = index.search(data[1], k=10, exact=True)
    request.getfixturevalue("by_keys_alone")
    _same(index.search(data[1], k=10, **ALL), truth)
    assert index.search(torch.full((1, 4, 16), 0.25), k=1)[0][0].id == "new"
    index.compact()
    assert len(read_keys(index.folder / KEYS, 64).added) == COUNT + 1
    assert not [path for path in index.folder.iterdir() if path.name.endswith(".part")]


def test_where_it_cannot_be_written_items_are_stored_all_the_same(index, monkeypatch, caplog):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(key_search, "write_keys", full)
    monkeypatch.setattr(key_search, "_BEHIND", 1)
    new = unit_sets(100, 4, 16, seed=3)
    with caplog.at_level(logging.WARNING, logger="maxmatch"):
        index.add([f"new {n}" for n in range(100)], new)
    assert "No space left" in caplog.text
    assert index.search(new[:1], k=1)[0][0].id == "new 0"


def test_items_that_differ_in_too_many_directions_have_no_keys(tmp_path, monkeypatch):
    items = unit_sets(1_200, 4, 128)
    with _index(tmp_path / "index", items) as index:
        assert _keyed(index) is None
        assert index.search(items[5:6], k=1)[0][0].id == "5"
        monkeypatch.setattr(key_search, "trained", lambda *_: pytest.fail("tried again"))
        index.add(["one"], unit_sets(1, 4, 128, seed=3))
        index.compact()
        assert index.search(items[5:6], k=1)[0][0].id == "5"


def test_they_can_be_switched_off_and_are_not_made_of_few_items(tmp_path, data):
    for name, first in (("off", None), ("few", 2_000)):
        settings = {"train_from": 500, "keys_from": first}
        with _index(tmp_path / name, data[0], settings=settings) as index:
            assert not (index.folder / KEYS).exists()
            assert len(index.search(data[1], k=3)) == len(data[1])


def test_without_a_compiler_the_engines_index_answers(index, data, monkeypatch):
    monkeypatch.setattr(key_search, "optional_module", lambda name: None)
    with SetIndex.open(index.folder) as again:
        again.add(["one"], unit_sets(1, 4, 16, seed=3))
        assert _keyed(again) is None
        assert again.search(data[1][:1], k=3)[0][0].id == index.search(data[1][:1], k=3)[0][0].id
