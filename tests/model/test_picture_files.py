"""HEIC, camera RAW and video are read like any photo, under the same limits; without their package, a cure is named."""

import numpy as np
import pytest
from camera_files import TAKEN, dng, halves, heic, video
from PIL import Image

from maxmatch.model import picture_files
from maxmatch.model.images import ImageError, load_image
from maxmatch.model.picture_files import FORMATS, HEIC, RAW, SUFFIXES, VIDEO, is_read, not_read
from maxmatch.search.photos.facts import photo_facts

NEEDED = {HEIC: "pillow_heif", RAW: "rawpy", VIDEO: "av"}


def write(path, picture=None, **options):
    """A file of the kind of its suffix."""
    picture = picture or halves()
    kind = next(name for name, known in FORMATS.items() if path.suffix in known.suffixes)
    pytest.importorskip(NEEDED[kind], reason=f"{kind} files are read by the extra {FORMATS[kind].extra!r}")
    if kind == VIDEO:
        video(path, picture)
    else:
        path.write_bytes(heic(picture) if kind == HEIC else dng(picture, **options))
    return path


@pytest.mark.parametrize("name", ["a.heic", "a.heif", "a.dng", "a.mp4", "a.mov", "a.mkv", "a.avi"])
def test_the_picture_is_the_one_that_was_taken(name, tmp_path):
    picture = halves()
    path = write(tmp_path / name, picture)
    read = load_image(path)
    assert (read.mode, read.size) == ("RGB", picture.size)
    assert np.abs(np.asarray(read, int) - np.asarray(picture, int)).mean() < 6
    facts = photo_facts(path, tmp_path)
    assert (facts["width"], facts["height"], facts["orientation"]) == (96, 64, "landscape")
    if name != "a.avi":  # which holds no date
        assert (facts["taken"], facts["date_from"]) == (TAKEN.isoformat(), "exif")


def test_a_raw_file_is_upright_as_the_camera_was_held(tmp_path):
    path = write(tmp_path / "a.dng", turn=6)
    read = load_image(path)
    assert read.size == (64, 96)
    assert np.asarray(read)[:40].mean((0, 1)).argmax() == 0, "red is on top"
    assert photo_facts(path, tmp_path)["orientation"] == "portrait"


def test_a_heic_file_of_any_name_and_its_bytes_are_read(tmp_path):
    data = write(tmp_path / "a.heic").read_bytes()
    (tmp_path / "b.jpg").write_bytes(data)
    assert load_image(tmp_path / "b.jpg").size == load_image(data).size == (96, 64)


@pytest.mark.parametrize("name", ["a.heic", "a.dng", "a.mp4"])
def test_the_limit_on_pixels_holds_and_damage_is_reported(name, tmp_path):
    path = write(tmp_path / name)
    with pytest.raises(ImageError, match=rf"{name}.*1,000"):
        load_image(path, max_pixels=1000)
    for data in (path.read_bytes()[:200], b"#EXTM3U\nhttp://127.0.0.1:9/a.mp4\n", b""):
        path.write_bytes(data)
        with pytest.raises(ImageError, match=name):
            load_image(path)


def test_a_video_without_a_frame_in_time_is_given_up(tmp_path, monkeypatch):
    path = write(tmp_path / "a.mp4")
    data = path.read_bytes()
    start = data.index(b"mdat") + 4
    path.write_bytes(data[:start] + b"\xff" * 64 + data[start + 64 :])
    monkeypatch.setattr(picture_files, "_SECONDS", -1.0)
    with pytest.raises(ImageError, match=r"a\.mp4"):
        load_image(path)


@pytest.mark.parametrize("kind", [HEIC, RAW, VIDEO])
def test_without_its_package_a_format_names_the_cure(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(picture_files, "find_spec", lambda name: None)
    suffix = FORMATS[kind].suffixes[0]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    assert not is_read(suffix)
    with pytest.raises(ImageError, match=rf"{kind}.*pip install 'maxmatch\[{FORMATS[kind].extra}\]'") as refused:
        load_image(path)
    assert "incomplete" not in str(refused.value)


def test_what_is_not_read_is_counted_by_kind():
    names = [*(f"{n}.HEIC" for n in range(212)), "a/b.cr2", "c.CR2", "d.CR2"]
    assert not_read(names) == "212 HEIC, 3 CR2 not read: pip install 'maxmatch[heic,raw]'"


def test_every_suffix_is_of_one_format_and_pillow_knows_its_own():
    assert sum(len(known.suffixes) for known in FORMATS.values()) == len(SUFFIXES)
    Image.init()
    for name, known in FORMATS.items():
        if known.package is None and name != "AVIF":
            assert {Image.EXTENSION[suffix] for suffix in known.suffixes} == {name}
