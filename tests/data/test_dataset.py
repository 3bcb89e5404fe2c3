import pickle
from pathlib import Path

import numpy as np
import pytest

from maxmatch.data.dataset import (
    IMAGE,
    TEXT,
    DataError,
    Dataset,
    Items,
    Problem,
    Split,
    first_of_each,
    give_up,
    report_first,
)
from maxmatch.data.load import ArrayFiles, with_arrays


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


FILE = Path("captions.csv")


def test_the_first_problems_are_printed_and_the_others_counted():
    said = []
    with report_first(said.append) as report:
        for line in range(1, 9):
            report(Problem(FILE, "an empty line", "Remove it.", line))
    assert said[:5] == [f"captions.csv:{line}: an empty line. Remove it." for line in range(1, 6)]
    assert said[5:] == ["… and 3 more problems. `maxmatch data check` lists them all."]


def test_what_is_raised_is_not_printed_as_well():
    said = []
    with pytest.raises(DataError, match="no table"), report_first(said.append) as report:
        give_up(report, Problem(FILE, "no table", "Give one."))
    assert said == []
    with report_first(said.append) as report:
        report(Problem(FILE, "a split is missing", "Fetch it.", fatal=True))
    assert said == ["captions.csv: a split is missing. Fetch it."]


def test_arrays_are_read_when_asked_for(tmp_path):
    paths = [tmp_path / f"{number}.npy" for number in range(3)]
    arrays = [np.full((number + 1, 4), number, np.float32) for number in range(3)]
    files = pickle.loads(pickle.dumps(ArrayFiles(paths)))  # as to a worker
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    assert len(files) == 3
    for position, array in enumerate(arrays):
        assert np.array_equal(files[position], array)
    assert np.array_equal(files[1:][0], arrays[1])


def test_a_file_that_is_no_array_is_named(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"RIFF")
    np.save(tmp_path / "b.npy", np.array([{"an": "object"}]), allow_pickle=True)
    (tmp_path / "c.npy").write_bytes(b"")
    for position, name in enumerate("abc"):
        with pytest.raises(ValueError, match=rf"{name}\.npy"):
            ArrayFiles([tmp_path / f"{one}.npy" for one in "abc"])[position]


def test_only_npy_files_of_other_modalities_are_opened(tmp_path):
    def one(name):
        return Items([tmp_path / name], np.arange(1), [name])

    split = with_arrays(Split({"image": one("a.npy"), "audio": one("b.npy"), "speech": one("c.wav")}))
    assert split["image"].values == [tmp_path / "a.npy"]
    assert split["speech"].values == [tmp_path / "c.wav"]
    assert isinstance(split["audio"].values, ArrayFiles)
    assert split["audio"].ids == ["b.npy"]
