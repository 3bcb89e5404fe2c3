import numpy as np
import pytest
from made_data import content, features, split

from maxmatch.data.dataset import IMAGE, TEXT, Items, Rows, Split
from maxmatch.data.formats import precomp


@pytest.mark.parametrize("counts", [5, 1, [1, 4, 2, 1, 5, 2]])
def test_what_was_written_reads_as_it_was(tmp_path, counts):
    array = features(6, dtype="float16")
    array[3] = array[2]  # two images alike, one after the other, are still two
    splits = {
        "train": split(array, counts),
        "val": split(list(array), counts, start=100),
        "testall": split(Rows(array, np.arange(6)), counts, ids=[f"im {n}" for n in range(6)]),
    }
    advanced = []
    precomp.write(splits, tmp_path / "copy", advanced.append)
    again = precomp.read(tmp_path / "copy")
    assert {name: content(part) for name, part in again.items()} == {
        name: content(part) for name, part in splits.items()
    }
    assert sum(advanced) == 3 * 6
    assert not list((tmp_path / "copy").glob(".*"))


def test_line_breaks_in_captions_are_written_as_spaces(tmp_path):
    part = split(features(1), 2)
    texts = Items(["a\ndog ", "b"], np.zeros(2, np.int64), ["0", "1"])
    precomp.write({"train": Split({IMAGE: part[IMAGE], TEXT: texts})}, tmp_path)
    assert precomp.read(tmp_path)["train"][TEXT].values == ["a dog", "b"]


class Counting(list):
    """Features that notice how often they are read, and may fail."""

    def __init__(self, values, fails_at=None):
        super().__init__(values)
        self.fails_at, self.read = fails_at, 0

    def __getitem__(self, position):
        self.read += 1
        if position == self.fails_at:
            raise OSError("the disk went away")
        return super().__getitem__(position)


def test_an_interrupted_write_resumes(tmp_path):
    array = features(1000)
    with pytest.raises(OSError, match="the disk went away"):
        precomp.write({"train": split(Counting(array, 700), 5)}, tmp_path)
    assert not precomp.recognises(tmp_path)
    source = Counting(array)
    precomp.write({"train": split(source, 5)}, tmp_path)
    assert source.read < 700
    assert content(precomp.read(tmp_path)["train"]) == content(split(array, 5))
    source = Counting(array)
    precomp.write({"train": split(source, 5)}, tmp_path)
    assert source.read < 50


def test_an_unfinished_write_of_other_data_is_not_resumed(tmp_path):
    with pytest.raises(OSError, match="the disk went away"):
        precomp.write({"train": split(Counting(features(1000, seed=1), 700), 5)}, tmp_path)
    precomp.write({"train": split(features(1000), 5)}, tmp_path)
    assert content(precomp.read(tmp_path)["train"]) == content(split(features(1000), 5))


def test_other_features_are_not_overwritten(tmp_path):
    precomp.write({"train": split(features(9), 5)}, tmp_path)
    for other in (features(9, seed=1), features(8), features(9, dtype="float16"), features(9, regions=2)):
        with pytest.raises(FileExistsError, match="is there and holds something else"):
            precomp.write({"train": split(other, 5)}, tmp_path)
    assert content(precomp.read(tmp_path)["train"]) == content(split(features(9), 5))


def test_what_the_format_cannot_hold_is_refused(tmp_path):
    for values, message in (
        ([b"picture"], r"image '0': expected features.*got bytes. Extract them first"),
        ([np.zeros((2, 2), np.int64)], r"got int64 \(2, 2\)"),
        (
            [np.zeros((2, 2)), np.zeros((3, 2))],
            r"image '1' has features float64 \(3, 2\), those before float64 \(2, 2\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            precomp.write({"train": split(values, 5)}, tmp_path / "copy")
        assert not precomp.recognises(tmp_path / "copy")
    with pytest.raises(ValueError, match="the id 'a\\\\nb' does not fit on a line"):
        precomp.write({"train": split(features(1), 5, ids=["a\nb"])}, tmp_path / "copy")
