"""A folder of photos and its index: always what is there, nothing read twice, nothing lost."""

import json
import os
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from picture_heap import write_heap
from PIL import Image
from tiny_models import tiny_model

from maxmatch.data.dataset import DataError
from maxmatch.search import photos
from maxmatch.search.filters import passes
from maxmatch.search.photos import facts_condition, open_photos, orientation_of, photo_facts, place_of, sync


def photo(path, seed, size=(40, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(path)


def ids_of(index):
    return sorted(name for found in index.engine.scan(100) for name in found.ids)


@contextmanager
def stopped(what, total):
    """The progress bar of someone who interrupts the first batch."""

    def interrupt(count):
        raise KeyboardInterrupt

    yield interrupt


def totals(seen):
    """A progress bar that notes how much there is to do."""

    @contextmanager
    def noting(what, total):
        seen.append(total)
        yield lambda count: None

    return noting


def test_new_photos_are_added_changed_ones_read_again_and_gone_ones_forgotten(model, tmp_path):
    folder = tmp_path / "pictures"
    for seed, name in enumerate(["a.png", "b.png", "rome/c.png"]):
        photo(folder / name, seed)
    with open_photos(tmp_path / "place", model) as index:
        assert sync(index, model, folder)[:3] == (3, 0, 0)
        assert ids_of(index) == ["a.png", "b.png", "rome/c.png"]
        read = []
        assert sync(index, model, folder, bar=totals(read))[:3] == (0, 0, 0)
        assert read == []
        photo(folder / "b.png", 77)
        (folder / "a.png").unlink()
        photo(folder / "d.png", 5)
        assert sync(index, model, folder)[:3] == (1, 1, 1)
    with open_photos(tmp_path / "place", model) as index:
        assert ids_of(index) == ["b.png", "d.png", "rome/c.png"]
        expected = model.encode_images([folder / "b.png"])[0]
        torch.testing.assert_close(index.fetch(["b.png"])["b.png"], expected)
        (hit,) = index.search(expected[None], k=1)[0]
        assert (hit.id, hit.metadata["folder"], hit.metadata["orientation"]) == ("b.png", "", "landscape")


def test_what_cannot_be_read_is_told_once_and_tried_again_when_it_changes(model, tmp_path):
    good, bad = write_heap(tmp_path / "pictures", 50)
    with open_photos(tmp_path / "place", model) as index:
        done = sync(index, model, tmp_path / "pictures")
        pictures = {name: why for name, why in bad.items() if name.endswith(".jpg")}
        assert {one.id for one in done.unreadable} >= {name for name, why in pictures.items() if why == "empty"}
        assert done.added == len(index) == len(good)
        assert all(bad[one.id] in one.reason for one in done.unreadable)
        again = sync(index, model, tmp_path / "pictures")
        assert again == (0, 0, 0, [])
        mended = done.unreadable[0].id
        photo(tmp_path / "pictures" / mended, 3)
        assert sync(index, model, tmp_path / "pictures")[:3] == (1, 0, 0)
        assert mended in ids_of(index)


def test_a_photo_that_became_unreadable_is_not_found_by_its_old_picture(model, tmp_path):
    folder = tmp_path / "pictures"
    for seed, name in enumerate("abc"):
        photo(folder / f"{name}.png", seed)
    with open_photos(tmp_path / "place", model) as index:
        sync(index, model, folder)
        (folder / "a.png").write_bytes(b"broken")
        done = sync(index, model, folder)
        assert done[:3] == (0, 0, 0)
        assert [one.id for one in done.unreadable] == ["a.png"]
        assert ids_of(index) == ["b.png", "c.png"]
        (folder / "b.png").write_bytes(b"broken")
        with pytest.raises(KeyboardInterrupt):
            sync(index, model, folder, bar=stopped)
        sync(index, model, folder)
        assert ids_of(index) == ["c.png"]


def test_an_interrupted_indexing_resumes_and_reads_nothing_twice(model, tmp_path, monkeypatch):
    for seed in range(9):
        photo(tmp_path / "pictures" / f"{seed}.png", seed)
    monkeypatch.setattr(photos, "_BATCH", 3)

    with open_photos(tmp_path / "place", model) as index, pytest.raises(KeyboardInterrupt):
        sync(index, model, tmp_path / "pictures", bar=stopped)
    with open_photos(tmp_path / "place", model) as index:
        assert len(index) == 3
        read = []
        assert sync(index, model, tmp_path / "pictures", bar=totals(read)).added == read[0] == 6
        assert len(index) == 9


def test_the_place_depends_on_the_folder_and_the_model(model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = tiny_model("resnet152_bigru", seed=1)
    places = {place_of(tmp_path / "a", model), place_of(tmp_path / "b", model), place_of(tmp_path / "a", other)}
    assert len(places) == 3
    assert all(place.is_relative_to(tmp_path / "maxmatch") for place in places)


def test_a_folder_without_photos_is_refused_and_a_broken_note_only_costs_time(model, tmp_path):
    (tmp_path / "empty").mkdir()
    photo(tmp_path / "pictures" / "a.png", 0)
    (tmp_path / "pictures" / "b.png").write_bytes(b"")
    with open_photos(tmp_path / "place", model) as index:
        with pytest.raises(DataError, match="no pictures"):
            sync(index, model, tmp_path / "empty")
        sync(index, model, tmp_path / "pictures")
        note = tmp_path / "place" / photos.UNREADABLE
        assert list(json.loads(note.read_text())) == ["b.png"]
        note.write_text("{")
        assert [one.id for one in sync(index, model, tmp_path / "pictures").unreadable] == ["b.png"]


def test_the_last_photo_is_forgotten_too(model, tmp_path):
    photo(tmp_path / "pictures" / "a.png", 0)
    with open_photos(tmp_path / "place", model) as index:
        sync(index, model, tmp_path / "pictures")
        (tmp_path / "pictures" / "a.png").unlink()
        assert sync(index, model, tmp_path / "pictures") == (0, 0, 1, [])
        assert ids_of(index) == []
        assert index.search(model.encode_texts(["a dog"]))[0] == []
        with pytest.raises(DataError, match="no pictures"):
            sync(index, model, tmp_path / "pictures")


def test_a_disk_that_is_not_mounted_costs_no_index(model, tmp_path):
    for number in range(11):
        photo(tmp_path / "pictures" / f"{number}.png", number)
    with open_photos(tmp_path / "place", model) as index:
        sync(index, model, tmp_path / "pictures")
        (tmp_path / "pictures").rename(tmp_path / "elsewhere")
        (tmp_path / "pictures").mkdir()
        with pytest.raises(DataError, match=r"the index has 11; nothing was removed. Is the disk mounted"):
            sync(index, model, tmp_path / "pictures")
        assert len(ids_of(index)) == 11


def test_a_photo_that_could_not_be_reached_is_tried_again(model, tmp_path, monkeypatch):
    photo(tmp_path / "pictures" / "a.png", 0)
    photo(tmp_path / "pictures" / "b.png", 1)
    hidden = tmp_path / "b.png"
    with open_photos(tmp_path / "place", model) as index:
        states = photos._present(tmp_path / "pictures")
        (tmp_path / "pictures" / "b.png").rename(hidden)
        monkeypatch.setattr(photos, "_present", lambda folder: states)
        assert [one.id for one in sync(index, model, tmp_path / "pictures").unreadable] == ["b.png"]
        hidden.rename(tmp_path / "pictures" / "b.png")
        monkeypatch.undo()
        assert sync(index, model, tmp_path / "pictures").added == 1
        assert ids_of(index) == ["a.png", "b.png"]


def deny(monkeypatch, closed, function):
    """As for a user who may not read a folder; whoever runs the tests may be one who may read everything."""
    real = getattr(os, function)

    def denied(place, *more, **options):
        if closed == (Path(place) if function == "scandir" else Path(place).parent):
            raise PermissionError(13, "Permission denied", str(place))
        return real(place, *more, **options)

    monkeypatch.setattr(os, function, denied)


@pytest.mark.parametrize("function", ["scandir", "stat"])  # a folder that cannot be listed, one that cannot be entered
@pytest.mark.parametrize("others", [0, 1])
def test_photos_in_a_folder_that_cannot_be_read_stay_and_that_is_said_once(
    others, function, model, tmp_path, monkeypatch
):
    folder = tmp_path / "pictures"
    for number in range(3):
        photo(folder / "rome" / "day" / f"{number}.png", number)
    (folder / "rome" / "day" / "broken.png").write_bytes(b"")
    for number in range(others + 1):
        photo(folder / f"other{number}.png", 10 + number)
    with open_photos(tmp_path / "place", model) as index:
        sync(index, model, folder)
        (folder / "other0.png").unlink()
        with monkeypatch.context() as patched:
            deny(patched, folder / "rome" / "day", function)
            done = sync(index, model, folder)
            assert done[:3] == (0, 0, 1)
            (said,) = [one.reason for one in done.unreadable]
            assert f"{folder / 'rome' / 'day'}: cannot be read (Permission denied)" in said
            assert len(ids_of(index)) == 3 + others
            assert sync(index, model, folder) == (0, 0, 0, [])
        (folder / "rome" / "day" / "0.png").unlink()
        assert sync(index, model, folder) == (0, 0, 1, [])
        assert ids_of(index) == [*(f"other{n}.png" for n in range(1, others + 1)), "rome/day/1.png", "rome/day/2.png"]
        with monkeypatch.context() as patched:  # it can be read in between, so it is said anew
            deny(patched, folder / "rome" / "day", function)
            assert len(sync(index, model, folder).unreadable) == 1


def test_where_nothing_can_be_read_the_folder_that_hides_it_is_named(model, tmp_path, monkeypatch):
    photo(tmp_path / "pictures" / "rome" / "0.png", 0)
    deny(monkeypatch, tmp_path / "pictures" / "rome", "scandir")
    with open_photos(tmp_path / "place", model) as index, pytest.raises(DataError, match=r"rome \(Permission denied\)"):
        sync(index, model, tmp_path / "pictures")


def test_a_folder_behind_a_link_that_cannot_be_followed_costs_no_other_photo(model, tmp_path):
    photo(tmp_path / "pictures" / "a.png", 0)
    (tmp_path / "pictures" / "loop").symlink_to("loop")
    with open_photos(tmp_path / "place", model) as index:
        done = sync(index, model, tmp_path / "pictures")
        assert done.added == 1
        assert ["loop" in one.reason for one in done.unreadable] == [True]


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
