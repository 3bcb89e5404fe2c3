from datetime import date, datetime

import pytest
from PIL import Image

from maxmatch.search.filters import passes
from maxmatch.search.photos import facts_condition, orientation_of, photo_facts


def test_facts_are_those_of_the_picture_as_it_is_seen(tmp_path):
    notes = Image.Exif()
    notes[0x0112] = 6
    notes.get_ifd(0x8769)[0x9003] = "2024:05:31 18:02:11"
    path = tmp_path / "a" / "b" / "x.jpg"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (60, 40)).save(path, exif=notes)
    facts = photo_facts(path, tmp_path)
    assert facts == {
        "name": "x.jpg",
        "folder": "a/b",
        "taken": "2024-05-31T18:02:11",
        "width": 40,
        "height": 60,
        "orientation": "portrait",
        "bytes": path.stat().st_size,
        "modified": path.stat().st_mtime_ns,
    }


@pytest.mark.parametrize("written", ["0000:00:00 00:00:00", "yesterday", ""])
def test_without_a_sensible_note_the_file_says_when(tmp_path, written):
    notes = Image.Exif()
    notes[0x0132] = written
    path = tmp_path / "x.jpg"
    Image.new("RGB", (60, 40)).save(path, exif=notes)
    facts = photo_facts(path, tmp_path)
    assert facts["taken"] == datetime.fromtimestamp(path.stat().st_mtime).isoformat(timespec="seconds")
    assert facts["folder"] == ""


def test_sides_that_differ_by_little_are_square():
    assert [orientation_of(*size) for size in ((100, 96), (100, 95), (95, 100))] == ["square", "landscape", "portrait"]


def test_a_condition_is_the_conjunction_of_what_is_asked():
    facts = {"folder": "holiday/rome", "taken": "2024-05-31T23:59:59", "orientation": "square"}
    assert facts_condition() is None
    day = date(2024, 5, 31)
    for wanted, passing in [
        ({"folder": "holiday"}, True),
        ({"folder": "holiday/rome"}, True),
        ({"folder": "holiday/ro"}, False),
        ({"folder": "rome"}, False),
        ({"start": day, "end": day}, True),
        ({"start": date(2024, 6, 1)}, False),
        ({"end": date(2024, 5, 30)}, False),
        ({"end": date.max}, True),
        ({"orientation": "square", "folder": "holiday"}, True),
        ({"orientation": "portrait", "folder": "holiday"}, False),
    ]:
        condition = facts_condition(**wanted)
        assert (condition is None or passes(condition, facts)) == passing
