import os

import pytest
from PIL import Image

from maxmatch.model.images import ImageError
from maxmatch.server.pictures import Thumbnails


def picture(path, colour="red", size=(40, 30)):
    Image.new("RGB", size, colour).save(path)
    return path


def test_a_replaced_picture_gets_a_new_thumbnail(tmp_path):
    thumbnails, path = Thumbnails(), picture(tmp_path / "a.png")
    first = thumbnails.make(path, 160)
    assert thumbnails.make(path, 160) is first
    picture(path, "blue")
    os.utime(path, ns=(1, 1))
    assert thumbnails.make(path, 160) != first


def test_the_cache_stays_within_its_bound(tmp_path):
    paths = [picture(tmp_path / f"{place}.png", (place, 0, 0)) for place in range(20)]
    one = len(Thumbnails().make(paths[0], 160))
    thumbnails = Thumbnails(cached_bytes=3 * one + 50)
    for path in paths:
        thumbnails.make(path, 160)
    assert thumbnails._bytes == sum(map(len, thumbnails._known.values())) <= 3 * one + 50
    assert thumbnails._known


def test_missing_and_damaged_pictures_raise(tmp_path):
    with pytest.raises(FileNotFoundError):
        Thumbnails().make(tmp_path / "none.png", 160)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(ImageError):
        Thumbnails().make(tmp_path / "bad.png", 160)
