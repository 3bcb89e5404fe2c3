"""What every format is read into: rows of arrays, items picked from them, problems reported."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from made_data import features, mapped, ragged_rows

from maxmatch.data.dataset import (
    IMAGE,
    TEXT,
    DataError,
    Dataset,
    Items,
    LazyItems,
    Problem,
    Rows,
    Split,
    first_of_each,
    give_up,
    pick,
    report_first,
)
from maxmatch.data.load import with_arrays

FILE = Path("captions.csv")


def test_rows_are_those_of_the_array_one_by_one_and_in_batches(tmp_path):
    array = features(7)
    rows = Rows(mapped(tmp_path, array), np.array([5, 0, 3]))
    assert [row.tolist() for row in rows] == [array[n].tolist() for n in (5, 0, 3)]
    values, mask = rows.take([2, 0, 2])
    assert values.tolist() == array[[3, 5, 3]].tolist()
    assert mask.all()
    assert rows[-1].tolist() == array[3].tolist()
    assert rows[1:].take([0, 1]).values.tolist() == array[[0, 3]].tolist()
    assert (rows.counts.tolist(), rows.width) == ([3, 3, 3], 4)
    with pytest.raises(IndexError):
        rows[3]


def test_items_of_different_length_are_padded_and_masked(tmp_path):
    array, counts = features(10)[:, 0], [3, 1, 4, 2]
    rows = ragged_rows(mapped(tmp_path, array), counts, [2, 0, 1, 3])
    parts = np.split(array, np.cumsum(counts)[:-1])
    assert [row.tolist() for row in rows] == [parts[n].tolist() for n in (2, 0, 1, 3)]
    assert (rows.counts.tolist(), rows.width) == ([4, 3, 1, 2], 4)
    values, mask = rows.take([1, 2, 3])
    assert mask.tolist() == [[True] * 3, [True, False, False], [True, True, False]]
    for place, number in enumerate((0, 1, 3)):
        assert values[place, : counts[number]].tolist() == parts[number].tolist()
        assert not values[place, counts[number] :].any()
    assert rows.take([]).values.shape == (0, 0, 4)
    assert [row.tolist() for row in rows[1:3]] == [parts[0].tolist(), parts[1].tolist()]


def test_some_items_are_picked_and_stay_where_they_are(tmp_path):
    class Lazy(Sequence):
        def __init__(self):
            self.read = []

        def __len__(self):
            return 5

        def __getitem__(self, position):
            self.read.append(position)
            return position * 10

    array, where = mapped(tmp_path, features(5)), np.array([3, 1])
    assert pick(["a", "b", "c", "d"], where) == ["d", "b"]
    assert pick(Rows(array, np.arange(5)), where).array is array
    parts = pick(ragged_rows(np.asarray(array)[:, 0], [2, 1, 1, 1], [0, 1, 2, 3]), where)
    assert [len(part) for part in parts] == [1, 1]
    lazy = Lazy()
    picked = pick(lazy, where)
    assert lazy.read == []
    assert (picked[0], picked[1:][0], len(picked)) == (30, 10, 2)
    assert lazy.read == [3, 1]


@pytest.mark.parametrize("order", ["C", "F"])
def test_another_process_gets_the_name_of_the_file_and_not_its_content(tmp_path, order):
    array = np.asarray(features(500, 4, 8), order=order)
    flat = mapped(tmp_path / "flat", array.reshape(-1, 8))
    for rows in (Rows(mapped(tmp_path, array), np.arange(3, 9)), ragged_rows(flat, [20] * 100, range(3, 9))):
        sent = pickle.dumps(rows)
        assert len(sent) < 6_000
        assert [row.tolist() for row in pickle.loads(sent)] == [row.tolist() for row in rows]
    in_memory = Rows(array, np.arange(2))
    assert pickle.loads(pickle.dumps(in_memory)).take([1]).values.tolist() == array[[1]].tolist()
    part = Rows(mapped(tmp_path, array)[100:], np.arange(2))  # only a part of the file: its place cannot be told
    assert pickle.loads(pickle.dumps(part)).take([1]).values.tolist() == array[[101]].tolist()


def test_the_first_captions_of_each_group_are_kept_in_order():
    images = Items([Path("a"), Path("b"), Path("c")], np.arange(3), ["a", "b", "c"])
    words = list("uvwxyz")
    texts = Items(words, np.array([0, 0, 0, 1, 2, 2]), words, [{"n": n} for n in range(6)])
    cut = first_of_each(Dataset(Path("d"), "table", {"train": Split({IMAGE: images, TEXT: texts})}), TEXT, 2)
    kept = cut.split("train")[TEXT]
    assert list(kept.values) == list(kept.ids) == ["u", "v", "x", "y", "z"]
    assert kept.groups.tolist() == [0, 0, 1, 2, 2]
    assert [entry["n"] for entry in kept.metadata] == [0, 1, 3, 4, 5]
    assert cut.split("train")[IMAGE] is images


def test_the_first_problems_are_printed_and_the_others_counted():
    said = []
    with report_first(said.append) as report:
        for line in range(1, 9):
            report(Problem(FILE, "an empty line", "Remove it.", line))
    assert said[:5] == [f"captions.csv:{line}: an empty line. Remove it." for line in range(1, 6)]
    assert len(said) == 6
    assert "3 more problems" in said[5]


def test_what_is_raised_is_not_printed_as_well():
    said = []
    with pytest.raises(DataError, match="no table"), report_first(said.append) as report:
        give_up(report, Problem(FILE, "no table", "Give one."))
    assert said == []
    with report_first(said.append) as report:
        report(Problem(FILE, "a split is missing", "Fetch it.", fatal=True))
    assert said == ["captions.csv: a split is missing. Fetch it."]


def test_arrays_are_read_when_asked_for_and_a_file_that_is_none_is_named(tmp_path):
    paths = [tmp_path / f"{name}.npy" for name in "abcde"]
    split = with_arrays(Split({"audio": Items(paths, np.arange(5), list("abcde"))}))
    files = pickle.loads(pickle.dumps(split["audio"].values))  # as to a worker
    arrays = [np.full((number + 1, 4), number, np.float32) for number in range(2)]
    for path, array in zip(paths, arrays, strict=False):
        np.save(path, array)
    assert np.array_equal(files[0], arrays[0])
    assert np.array_equal(files[1:][0], arrays[1])
    paths[2].write_bytes(b"RIFF")
    np.save(paths[3], np.array([{"an": "object"}]), allow_pickle=True)
    paths[4].write_bytes(b"")
    for position in (2, 3, 4):
        with pytest.raises(ValueError, match=paths[position].name):
            files[position]


def test_only_npy_files_of_other_modalities_are_opened(tmp_path):
    def one(name):
        return Items([tmp_path / name], np.arange(1), [name])

    split = with_arrays(Split({"image": one("a.npy"), "audio": one("b.npy"), "speech": one("c.wav")}))
    assert split["image"].values == [tmp_path / "a.npy"]
    assert split["speech"].values == [tmp_path / "c.wav"]
    assert split["audio"].ids == ["b.npy"]
    assert isinstance(split["audio"].values, LazyItems)
