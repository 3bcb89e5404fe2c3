import pickle

import numpy as np
import pytest

from maxmatch.data.dataset import Items, Split
from maxmatch.data.load import ArrayFiles, with_arrays


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
