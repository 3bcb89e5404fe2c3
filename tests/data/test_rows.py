import pickle
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from made_data import features, run

from maxmatch.data.dataset import RaggedRows, Rows, bad_rows, pick, repeated


@pytest.fixture
def mapped(tmp_path):
    def opened(array):
        np.save(tmp_path / "rows.npy", array)
        return np.load(tmp_path / "rows.npy", mmap_mode="r")

    return opened


def ragged(array, counts, numbers):
    return RaggedRows(array, np.concatenate([[0], np.cumsum(counts)]), np.array(numbers))


def test_rows_are_those_of_the_array_one_by_one_and_in_batches(mapped):
    array = features(7)
    rows = Rows(mapped(array), np.array([5, 0, 3]))
    assert [row.tolist() for row in rows] == [array[n].tolist() for n in (5, 0, 3)]
    assert rows.take([2, 0, 2]).tolist() == array[[3, 5, 3]].tolist()
    assert rows[-1].tolist() == array[3].tolist()
    assert rows[1:].take([0, 1]).tolist() == array[[0, 3]].tolist()
    with pytest.raises(IndexError):
        rows[3]


def test_items_of_different_length_are_padded_and_masked(mapped):
    array, counts = features(10)[:, 0], [3, 1, 4, 2]
    rows = ragged(mapped(array), counts, [2, 0, 1, 3])
    parts = np.split(array, np.cumsum(counts)[:-1])
    assert [row.tolist() for row in rows] == [parts[n].tolist() for n in (2, 0, 1, 3)]
    values, mask = rows.take([1, 2, 3])
    assert mask.tolist() == [[True] * 3, [True, False, False], [True, True, False]]
    for place, number in enumerate((0, 1, 3)):
        assert values[place, : counts[number]].tolist() == parts[number].tolist()
        assert not values[place, counts[number] :].any()
    assert rows.take([]).values.shape == (0, 0, 4)
    assert [row.tolist() for row in rows[1:3]] == [parts[0].tolist(), parts[1].tolist()]


def test_some_items_are_picked_and_stay_where_they_are(mapped):
    class Lazy(Sequence):
        def __init__(self):
            self.read = []

        def __len__(self):
            return 5

        def __getitem__(self, position):
            self.read.append(position)
            return position * 10

    array = mapped(features(5))
    where = np.array([3, 1])
    assert pick(["a", "b", "c", "d"], where) == ["d", "b"]
    assert pick(Rows(array, np.arange(5)), where).array is array
    parts = pick(ragged(np.asarray(array)[:, 0], [2, 1, 1, 1], [0, 1, 2, 3]), where)
    assert [len(part) for part in parts] == [1, 1]
    lazy = Lazy()
    picked = pick(lazy, where)
    assert lazy.read == []
    assert (picked[0], picked[1:][0], len(picked)) == (30, 10, 2)
    assert lazy.read == [3, 1]


@pytest.mark.parametrize("order", ["C", "F"])
def test_another_process_gets_the_name_of_the_file_and_not_its_content(mapped, order):
    array = np.asarray(features(500, 4, 8), order=order)
    for rows in (Rows(mapped(array), np.arange(3, 9)), ragged(mapped(array.reshape(-1, 8)), [20] * 100, range(3, 9))):
        sent = pickle.dumps(rows)
        assert len(sent) < 5_000 if isinstance(rows, Rows) else len(sent) < 6_000
        assert [row.tolist() for row in pickle.loads(sent)] == [row.tolist() for row in rows]
    in_memory = Rows(array, np.arange(2))
    assert pickle.loads(pickle.dumps(in_memory)).take([1]).tolist() == array[[1]].tolist()
    part = Rows(mapped(array)[100:], np.arange(2))  # only a part of the file: its place cannot be told
    assert pickle.loads(pickle.dumps(part)).take([1]).tolist() == array[[101]].tolist()


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
@pytest.mark.parametrize("chunk", [1, 300, 10**9])
def test_bad_rows_are_those_that_numpy_finds(mapped, dtype, chunk):
    array = features(40, 3, 5).astype(dtype)
    array[3, 1, 2], array[10, 0, 0], array[11, 2], array[20], array[30, :2], array[39] = (
        np.nan,
        np.inf,
        -np.inf,
        0,
        0,
        -0.0,
    )
    expected = {
        n: "zero" if not row.any() else f"{(~np.isfinite(row)).any(axis=1).sum()} of 3"
        for n, row in enumerate(array)
        if not row.any() or not np.isfinite(row).all()
    }
    assert set(expected) == {3, 10, 11, 20, 39}
    numbers = np.random.default_rng(0).permutation(40)
    for rows in (
        Rows(mapped(array), numbers),
        Rows(array, numbers),
        ragged(mapped(array.reshape(-1, 5)), [3] * 40, numbers),
    ):
        found = dict(bad_rows(rows, chunk))
        assert list(found) == sorted(expected)
        assert all(expected[n] in what for n, what in found.items())


def test_padding_is_not_taken_for_zeros(mapped):
    array = np.ones((6, 4), np.float32)
    array[4:] = 0
    assert list(bad_rows(ragged(mapped(array), [1, 3, 2], [0, 1, 2]))) == [(2, "all values are zero")]
    array[5, 0] = np.nan
    assert list(bad_rows(ragged(mapped(array), [1, 3, 2], [0, 1, 2]))) == [
        (2, "NaN or infinite values in 1 of 2 features")
    ]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3, 4), (40, 5)])
def test_repeated_rows_are_those_that_a_loop_finds(mapped, shape, order):
    generator = np.random.default_rng(1)
    array = np.repeat(features(20, *shape), generator.integers(1, 4, 20), axis=0)
    array[5:7] = np.nan
    array[12:15] = 0
    array[14, -1, -1] = 1  # differs only at its very end
    array = np.asarray(array, order=order)
    slow = [False, *(here.tobytes() == before.tobytes() for before, here in pairwise(array))]
    assert repeated(mapped(array)).tolist() == slow
    assert repeated(array).tolist() == slow
    rough = repeated(mapped(array), thorough=False)
    assert (rough | ~np.array(slow)).all()


def test_a_large_file_is_looked_through_in_little_memory(tmp_path):
    code = """
import sys
import numpy as np
from made_data import peak_megabytes
from maxmatch.data.dataset import Rows, bad_rows, repeated
np.lib.format.open_memmap(sys.argv[1], "w+", np.float32, (2000, 36, 2048))
array = np.load(sys.argv[1], mmap_mode="r")
before = peak_megabytes()
assert sum(1 for _ in bad_rows(Rows(array, np.arange(len(array))), chunk=2**24)) == len(array)
assert repeated(array).sum() == len(array) - 1
print(peak_megabytes() - before)
"""
    done = run(code, tmp_path / "sparse.npy")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150, "MB, of a file of 590"
