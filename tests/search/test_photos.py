"""A folder of photos and its index: always what is there, nothing read twice, nothing lost."""

import json
import os
import shutil
from contextlib import contextmanager
from datetime import date, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from picture_heap import write_heap
from PIL import Image
from tiny_models import tiny_model

from maxmatch.data.dataset import DataError
from maxmatch.model import picture_files
from maxmatch.search import index_folder
from maxmatch.search.engines.lance_files import reading
from maxmatch.search.filters import passes
from maxmatch.search.index_folder import IndexFolderError
from maxmatch.search.photos import sync as syncing
from maxmatch.search.photos.facts import facts_condition, orientation_of, photo_facts
from maxmatch.search.photos.sync import open_photos, open_synced, place_of, sync


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures").mkdir()
    return tmp_path / "pictures"


@pytest.fixture
def index(model, tmp_path):
    with open_photos(tmp_path / "place", model) as index:
        yield index


@pytest.fixture
def synced(index, model, folder):
    """Brings the index up to date with the folder."""
    return partial(sync, index, model, folder)


def photo(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (30, 40, 3), np.uint8)).save(path)


def ids_of(index):
    return sorted(name for found in index.engine.scan(100) for name in found.ids)


@contextmanager
def interrupted(what, total):
    """The progress bar of someone who interrupts after the first batch."""

    def interrupt(count):
        raise KeyboardInterrupt

    yield interrupt


def test_new_photos_are_added_changed_ones_read_again_and_gone_ones_forgotten(synced, index, model, folder):
    for seed, name in enumerate(["a.png", "b.png", "rome/c.png"]):
        photo(folder / name, seed)
    assert synced()[:3] == (3, 0, 0)
    assert ids_of(index) == ["a.png", "b.png", "rome/c.png"]
    assert synced(bar=interrupted)[:3] == (0, 0, 0), "nothing is read again"
    photo(folder / "b.png", 77)
    (folder / "a.png").unlink()
    photo(folder / "d.png", 5)
    assert synced()[:3] == (1, 1, 1)
    with open_photos(index.folder.parent, model) as again:
        assert ids_of(again) == ["b.png", "d.png", "rome/c.png"]
        expected = model.encode_images([folder / "b.png"])[0]
        torch.testing.assert_close(again.fetch(["b.png"])["b.png"], expected)
        (hit,) = again.search(expected[None], k=1)[0]
        assert (hit.id, hit.metadata["folder"], hit.metadata["orientation"]) == ("b.png", "", "landscape")


def test_what_cannot_be_read_is_reported_once_and_tried_again_when_it_changes(synced, index, folder):
    good, bad = write_heap(folder, 50)
    done = synced()
    empty = {name for name, why in bad.items() if name.endswith(".jpg") and why == "empty"}
    assert {one.id for one in done.unreadable} >= empty
    assert done.added == len(index) == len(good)
    assert all(bad[one.id] in one.reason for one in done.unreadable)
    again = synced()
    assert again[:5] == (0, 0, 0, [], [])
    assert set(again.still) == set(done.unreadable), "what is not reported anew is still known, with its reason"
    photo(folder / done.unreadable[0].id, 3)
    assert synced()[:3] == (1, 0, 0)
    assert done.unreadable[0] not in synced().still
    assert done.unreadable[0].id in ids_of(index)


def test_a_photo_that_became_unreadable_is_not_found_by_its_old_picture(synced, index, folder):
    for seed, name in enumerate("abc"):
        photo(folder / f"{name}.png", seed)
    synced()
    (folder / "a.png").write_bytes(b"broken")
    done = synced()
    assert (done[:3], [one.id for one in done.unreadable]) == ((0, 0, 0), ["a.png"])
    assert ids_of(index) == ["b.png", "c.png"]
    (folder / "b.png").write_bytes(b"broken")
    with pytest.raises(KeyboardInterrupt):
        synced(bar=interrupted)
    synced()
    assert ids_of(index) == ["c.png"]


def test_an_interrupted_indexing_resumes_and_reads_nothing_twice(synced, index, folder, monkeypatch):
    for seed in range(9):
        photo(folder / f"{seed}.png", seed)
    monkeypatch.setattr(syncing, "_BATCH", 3)
    with pytest.raises(KeyboardInterrupt):
        synced(bar=interrupted)
    assert len(index) == 3
    assert synced().added == 6
    assert len(index) == 9


def test_the_place_depends_on_the_folder_and_the_model(model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = tiny_model("resnet152_bigru", seed=2)
    places = {place_of(tmp_path / "a", model), place_of(tmp_path / "b", model), place_of(tmp_path / "a", other)}
    assert len(places) == 3
    assert all(place.is_relative_to(tmp_path / "maxmatch") for place in places)


def test_a_folder_without_photos_is_refused_and_a_broken_note_only_costs_time(synced, index, folder):
    with pytest.raises(DataError, match="no pictures"):
        synced()
    photo(folder / "a.png", 0)
    (folder / "b.png").write_bytes(b"")
    synced()
    note = index.folder.parent / syncing.UNREADABLE
    assert list(json.loads(note.read_text())) == ["b.png"]
    note.write_text("{")
    assert [one.id for one in synced().unreadable] == ["b.png"]


def test_the_last_photo_is_forgotten_too(synced, index, model, folder):
    photo(folder / "a.png", 0)
    synced()
    (folder / "a.png").unlink()
    assert synced()[:5] == (0, 0, 1, [], [])
    assert ids_of(index) == []
    assert index.search(model.encode_texts(["a dog"]))[0] == []
    with pytest.raises(DataError, match="no pictures"):
        synced()


def test_a_disk_that_is_not_mounted_costs_no_index(synced, index, folder):
    for number in range(11):
        photo(folder / f"{number}.png", number)
    synced()
    folder.rename(folder.with_name("elsewhere"))
    folder.mkdir()
    with pytest.raises(DataError, match=r"the index has 11; nothing was removed. Is the disk mounted"):
        synced()
    assert len(ids_of(index)) == 11


def test_a_photo_that_could_not_be_reached_is_tried_again(synced, index, folder, monkeypatch):
    photo(folder / "a.png", 0)
    photo(folder / "b.png", 1)
    states = syncing._present(folder)
    hidden = (folder / "b.png").rename(folder.parent / "b.png")
    monkeypatch.setattr(syncing, "_present", lambda folder: states)
    assert [one.id for one in synced().unreadable] == ["b.png"]
    hidden.rename(folder / "b.png")
    monkeypatch.undo()
    assert synced().added == 1
    assert ids_of(index) == ["a.png", "b.png"]


def test_a_photo_that_may_not_be_read_is_reported_once_and_tried_when_it_may(synced, index, folder, monkeypatch):
    photo(folder / "a.png", 0)
    photo(folder / "b.png", 1)
    closed, real = folder / "b.png", os.access

    def denied(path, *mode):
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return open(path, *mode)

    with monkeypatch.context() as patched:
        patched.setattr(picture_files, "open", denied, raising=False)
        patched.setattr(os, "access", lambda path, mode: Path(path) != closed and real(path, mode))
        (one,) = synced().unreadable
        assert (one.id, ids_of(index)) == ("b.png", ["a.png"])
        assert f"{closed}: cannot be read (Permission denied)" in one.reason
        assert "fetch" not in one.reason
        assert synced(bar=interrupted)[:5] == (0, 0, 0, [], []), "it is not tried again"
    assert synced().added == 1


def test_avif_photos_are_tried_again_once_pillow_can_read_them(synced, index, folder, without_avif):
    photo(folder / "a.avif", 0)
    photo(folder / "b.png", 1)
    with without_avif():
        (one,) = synced().unreadable
        assert (one.id, ids_of(index)) == ("a.avif", ["b.png"])
        assert "Pillow>=11.3" in one.reason
        assert synced(bar=interrupted)[:5] == (0, 0, 0, [], []), "it is not tried again"
    assert synced().added == 1
    assert ids_of(index) == ["a.avif", "b.png"]


def lose_table(index):
    shutil.rmtree(index / "items.lance")


def break_manifest(index):
    (index / "index.json").write_text("{")


def cut_data(index):
    for file in (index / "items.lance" / "data").iterdir():
        os.truncate(file, 100)


@pytest.mark.parametrize("new", [0, 1])  # photos: without any, a good copy in one file may answer
@pytest.mark.parametrize("damage", [lose_table, break_manifest, cut_data])
def test_a_damaged_cache_is_built_anew_and_says_so(damage, new, model, folder, tmp_path):
    place, said = tmp_path / "place", []
    photo(folder / "a.png", 0)
    open_synced(place, model, folder)[0].close()
    damage(place / "index")
    for number in range(new):
        photo(folder / f"new{number}.png", number + 1)
    index, done = open_synced(place, model, folder, say=said.append)
    with index:
        assert len(ids_of(index)) == 1 + new
        torch.testing.assert_close(index.fetch(["a.png"])["a.png"], model.encode_images([folder / "a.png"])[0])
    assert [str(place) in line for line in said] == [True] * (1 if new or damage is not cut_data else 0)
    assert done.added == (1 + new if said else 0)
    index, done = open_synced(place, model, folder, say=said.append)
    index.close()
    assert done[:5] == (0, 0, 0, [], [])


def test_a_cache_is_not_removed_for_what_passes_or_is_newer(model, folder, tmp_path, monkeypatch):
    place, said = tmp_path / "place", []
    photo(folder / "a.png", 0)
    open_synced(place, model, folder)[0].close()
    calls = []

    def replaced_once(*arguments, **options):
        calls.append(1)
        if len(calls) == 1:
            raise IndexFolderError("a file that another process replaced")
        return sync(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("maxmatch.search.photos.sync.sync", replaced_once)
        index, done = open_synced(place, model, folder, say=said.append)
    index.close()
    assert (said, done[:5]) == ([], (0, 0, 0, [], []))
    manifest = place / "index" / "index.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 1', '"schema_version": 9'))
    before = sorted(path for path in place.rglob("*") if path.name != ".lock")
    with pytest.raises(IndexFolderError, match="schema version 9"):
        open_synced(place, model, folder, say=said.append)
    assert sorted(path for path in place.rglob("*") if path.name != ".lock") == before
    assert said == []


@pytest.mark.parametrize(("code", "kind"), [(2, IndexFolderError), (5, OSError), (24, OSError)])
def test_only_files_that_are_missing_or_wrong_are_damage(tmp_path, code, kind):
    with pytest.raises(kind), reading(tmp_path):
        raise RuntimeError(f"LanceError(IO): something (os error {code})")


def test_a_damaged_copy_in_one_file_is_written_again(synced, index, model, folder):
    photo(folder / "a.png", 0)
    synced()
    copy = index.folder / "items.copy.npz"
    good = copy.read_bytes()
    copy.write_bytes(good[:-2000] + bytes(1000) + good[-1000:])
    with open_photos(index.folder.parent, model) as again:
        sync(again, model, folder)
    assert copy.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_searched_as_it_is(synced, index, folder, monkeypatch):
    for name in "abc":
        photo(folder / f"{name}.png", ord(name))
    synced()
    (folder / "a.png").unlink()
    photo(folder / "b.png", 7)
    photo(folder / "d.png", 8)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(index_folder, "locked", full)
        done = synced()
        assert done[:3] == (0, 0, 0)
        (problem,) = done.unreadable
        for fact in ("No space left on device", "2 new or changed", "1 deleted", "XDG_CACHE_HOME"):
            assert fact in problem.reason
        assert ids_of(index) == ["a.png", "b.png", "c.png"]
    assert synced()[:3] == (1, 1, 1)


def test_where_no_cache_can_be_made_the_error_names_another_place(model, folder, tmp_path):
    photo(folder / "a.png", 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="XDG_CACHE_HOME"):
        open_synced(tmp_path / "file" / "place", model, folder)


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
def test_photos_in_a_folder_that_cannot_be_read_stay(others, function, synced, index, folder, monkeypatch):
    day = folder / "rome" / "day"
    for number in range(3):
        photo(day / f"{number}.png", number)
    (day / "broken.png").write_bytes(b"")
    for number in range(others + 1):
        photo(folder / f"other{number}.png", 10 + number)
    synced()
    (folder / "other0.png").unlink()
    with monkeypatch.context() as patched:
        deny(patched, day, function)
        done = synced()
        assert done[:3] == (0, 0, 1)
        (reason,) = [one.reason for one in done.unreadable]
        assert f"{day}: cannot be read (Permission denied)" in reason
        assert len(ids_of(index)) == 3 + others
        assert synced()[:5] == (0, 0, 0, [], []), "it is reported once"
    (day / "0.png").unlink()
    assert synced()[:5] == (0, 0, 1, [], [])
    assert ids_of(index) == [*(f"other{n}.png" for n in range(1, others + 1)), "rome/day/1.png", "rome/day/2.png"]
    with monkeypatch.context() as patched:  # it could be read in between, so it is reported again
        deny(patched, day, function)
        assert len(synced().unreadable) == 1


def test_where_nothing_can_be_read_the_folder_that_hides_it_is_named(synced, folder, monkeypatch):
    photo(folder / "rome" / "0.png", 0)
    deny(monkeypatch, folder / "rome", "scandir")
    with pytest.raises(DataError, match=r"rome \(Permission denied\)"):
        synced()


def test_a_folder_behind_a_link_that_cannot_be_followed_costs_no_other_photo(synced, folder):
    photo(folder / "a.png", 0)
    (folder / "loop").symlink_to("loop")
    done = synced()
    assert done.added == 1
    assert ["loop" in one.reason for one in done.unreadable] == [True]


def test_a_pipe_named_as_a_photo_is_reported_and_not_waited_for(synced, folder):
    photo(folder / "a.png", 0)
    os.mkfifo(folder / "pipe.png")
    done = synced()
    assert done.added == 1
    assert [(one.id, "not a file" in one.reason) for one in done.unreadable] == [("pipe.png", True)]


def test_notes_of_before_reasons_were_kept_are_read(synced, index, folder):
    photo(folder / "a.png", 0)
    (folder / "b.png").write_bytes(b"broken")
    note = index.folder.parent / syncing.UNREADABLE
    synced()
    note.write_text(json.dumps({name: known[:2] for name, known in json.loads(note.read_text()).items()}))
    again = synced()
    assert again.unreadable == [], "it is not tried again"
    assert [one.id for one in again.still] == ["b.png"]


def test_facts_are_those_of_the_picture_as_it_is_seen(tmp_path):
    notes = Image.Exif()
    notes[0x0112], notes[0x010F], notes[0x0110] = 6, "Canon", "Canon EOS 5D"
    notes.get_ifd(0x8769)[0x9003] = "2024:05:31 18:02:11"
    path = tmp_path / "a" / "b" / "x.jpg"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (60, 40)).save(path, exif=notes)
    assert photo_facts(path, tmp_path) == {
        "path": str(path),
        "relative_path": "a/b/x.jpg",
        "name": "x.jpg",
        "folder": "a/b",
        "taken": "2024-05-31T18:02:11",
        "date": "2024-05-31T18:02:11",
        "date_from": "exif",
        "width": 40,
        "height": 60,
        "orientation": "portrait",
        "camera": "Canon EOS 5D",
        "place": None,
        "bytes": path.stat().st_size,
        "size": path.stat().st_size,
        "modified": path.stat().st_mtime_ns,
        "mtime": path.stat().st_mtime,
    }
    for kind in ("png", "webp", "tiff", "avif"):
        Image.new("RGB", (60, 40)).save(tmp_path / f"x.{kind}", exif=notes)
        facts = photo_facts(tmp_path / f"x.{kind}", tmp_path)
        assert (facts["width"], facts["height"], facts["orientation"]) == (40, 60, "portrait"), kind
    sizes = ((100, 96), (100, 95), (95, 100))  # sides that differ by little are square
    assert [orientation_of(*size) for size in sizes] == ["square", "landscape", "portrait"]


@pytest.mark.parametrize("written", ["0000:00:00 00:00:00", "yesterday", ""])
def test_without_a_sensible_note_the_date_is_the_files(tmp_path, written):
    notes = Image.Exif()
    notes[0x0132] = written
    path = tmp_path / "x.jpg"
    Image.new("RGB", (60, 40)).save(path, exif=notes)
    facts = photo_facts(path, tmp_path)
    assert facts["taken"] is None
    assert facts["date"] == datetime.fromtimestamp(path.stat().st_mtime).isoformat(timespec="seconds")
    assert facts["date_from"] == "file"
    assert facts["folder"] == ""


def test_an_index_of_before_gets_the_facts_of_today_and_keeps_its_sets(synced, index, model, folder, monkeypatch):
    photo(folder / "rome" / "a.png", 0)
    old = ("name", "folder", "taken", "width", "height", "orientation", "bytes", "modified")
    with monkeypatch.context() as patched:
        real = syncing._facts
        patched.setattr(syncing, "_facts", lambda *of: {key: value for key, value in real(*of).items() if key in old})
        synced()
    before = index.fetch(["rome/a.png"])["rome/a.png"]
    assert synced(bar=interrupted)[:5] == (0, 0, 0, [], []), "nothing is encoded"
    (hit,) = index.search(before[None], where="relative_path LIKE 'rome/%' AND date_from = 'file' AND size > 0")[0]
    assert hit.metadata == {**photo_facts(folder / "rome" / "a.png", folder), "mtime": hit.metadata["mtime"]}
    torch.testing.assert_close(index.fetch([hit.id])[hit.id], before, rtol=0, atol=0)


def test_a_photo_without_exif_has_no_taken_and_a_filter_on_it_is_no_error(synced, index, folder, model):
    photo(folder / "a.png", 0)
    synced()
    queries = model.encode_texts(["a dog"])
    assert index.search(queries, where="taken >= '2024'") == [[]]
    with pytest.raises(ValueError, match=r"taken.*text"):
        index.search(queries, where="taken >= 2024")
    assert len(index.search(queries, where="date >= '2024'")[0]) == 1


def test_a_condition_is_the_conjunction_of_what_is_asked():
    facts = {"folder": "holiday/rome", "taken": "2024-05-31T23:59:59", "orientation": "square", "camera": "A1"}
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
        ({"camera": "A1", "folder": "holiday"}, True),
        ({"camera": "A"}, False),
        ({"camera": "A1", "place": "Rome"}, False),
    ]:
        condition = facts_condition(**wanted)
        assert (condition is None or passes(condition, facts)) == passing
        dated = {**facts, "taken": None, "date": facts["taken"], "date_from": "file"}
        assert (condition is None or passes(condition, dated)) == passing
