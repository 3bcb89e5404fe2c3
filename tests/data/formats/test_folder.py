import numpy as np
import pytest
from sample_splits import picture, sample_splits

from maxmatch.data.dataset import IMAGE, DataError, Items, Split
from maxmatch.data.formats import folder


def test_pictures_are_found_below_in_order_and_what_is_hidden_or_else_is_not(tmp_path):
    names = [
        "b.JPG",
        "a/z.webp",
        "a/b/c.png",
        "d.avif",
        ".hidden.png",
        ".thumbs/d.png",
        "notes.txt",
        "e.jpg.part",
        "._f.jpg",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    split = folder.read(tmp_path)["all"]
    assert list(split.items) == [IMAGE]
    assert list(split[IMAGE].ids) == ["a/b/c.png", "a/z.webp", "b.JPG", "d.avif"]
    assert split[IMAGE].values == [tmp_path / name for name in split[IMAGE].ids]
    assert split[IMAGE].groups.tolist() == [0, 1, 2, 3]


def test_a_folder_without_pictures_is_not_recognised_and_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    assert not folder.recognises(tmp_path)
    assert not folder.recognises(tmp_path / "notes.txt")
    with pytest.raises(DataError, match=r"no pictures in it\. Expected files of these formats: JPEG, PNG"):
        folder.read(tmp_path)


def test_pictures_are_copied_and_read_as_the_same(tmp_path):
    splits = {name: Split({IMAGE: split[IMAGE]}) for name, split in sample_splits().items()}
    folder.write(splits, tmp_path / "data", workers=2)
    items = folder.read(tmp_path / "data")["all"][IMAGE]
    assert [path.read_bytes() for path in items.values] == [
        picture(number, "png" if number % 2 else "jpeg") for number in range(7)
    ]


def test_avif_bytes_become_an_avif_file(tmp_path):
    items = Items([picture(0, "avif")], np.array([0]), ["a"])
    folder.write({"all": Split({IMAGE: items})}, tmp_path / "data")
    assert [path.name for path in folder.read(tmp_path / "data")["all"][IMAGE].values] == ["a.avif"]


def test_captions_are_not_thrown_away(tmp_path):
    with pytest.raises(ValueError, match="a plain folder holds pictures only"):
        folder.write(sample_splits(), tmp_path / "data")
