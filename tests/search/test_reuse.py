"""Renamed, moved and copied photos keep their sets: nothing is encoded twice."""

import json
import os
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import tiny_model

from maxmatch.core.files import content_hash
from maxmatch.search.photos import reuse
from maxmatch.search.photos import sync as syncing
from maxmatch.search.photos.reuse import HASH
from maxmatch.search.photos.sync import open_photos, sync


class Counting:
    """A model that counts the photos it encodes."""

    def __init__(self, model):
        self.model, self.count = model, 0

    def __getattr__(self, name):
        return getattr(self.model, name)

    def encode_images(self, items, **more):
        self.count += len(items)
        return self.model.encode_images(items, **more)

    def since(self):
        count, self.count = self.count, 0
        return count


@pytest.fixture
def counted(model):
    return Counting(model)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures").mkdir()
    for seed, name in enumerate(["a.png", "b.png", "rome/c.png", "rome/day/d.png"]):
        photo(tmp_path / "pictures" / name, seed)
    return tmp_path / "pictures"


@pytest.fixture
def index(counted, tmp_path):
    with open_photos(tmp_path / "caches" / "one", counted) as index:
        yield index


@pytest.fixture
def synced(index, counted, folder):
    return partial(sync, index, counted, folder)


def photo(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (30, 40, 3), np.uint8)).save(path)


def stored(index):
    """The set and the facts of each photo."""
    sets, facts = {}, {}
    for found in index.engine.scan(100, metadata=True):
        sets |= dict(zip(found.ids, np.array(found.vectors), strict=True))
        facts |= {name: json.loads(text) for name, text in zip(found.ids, found.metadata, strict=True)}
    return sets, facts


def test_a_renamed_file_and_a_renamed_folder_keep_their_sets(synced, index, folder, counted):
    assert (synced().added, counted.since()) == (4, 4)
    before, _ = stored(index)
    (folder / "rome").rename(folder / "roma")
    (folder / "a.png").rename(folder / "z.png")
    done = synced()
    assert (done[:3], done.renamed, counted.since()) == ((0, 0, 0), 3, 0)
    after, facts = stored(index)
    now = {"z.png": "a.png", "b.png": "b.png", "roma/c.png": "rome/c.png", "roma/day/d.png": "rome/day/d.png"}
    assert after.keys() == now.keys()
    for new, old in now.items():
        np.testing.assert_array_equal(after[new], before[old])
        assert (facts[new]["relative_path"], facts[new][HASH]) == (new, content_hash(folder / new))
        assert facts[new]["folder"] == new.rpartition("/")[0]
    assert synced()[:3] == (0, 0, 0)
    assert counted.since() == 0


def test_a_copy_and_a_touched_file_are_not_encoded_but_another_picture_of_the_same_size_is(
    synced, index, folder, counted
):
    for name, colour in (("x.bmp", "red"), ("y.bmp", "blue")):
        Image.new("RGB", (40, 30), colour).save(folder / name)
    synced()
    counted.since()
    shutil.copy(folder / "a.png", folder / "copy.png")
    os.utime(folder / "b.png", (1, 1))
    Image.new("RGB", (40, 30), "green").save(folder / "x.bmp")
    done = synced()
    assert (done[:3], done.taken_over, counted.since()) == ((0, 2, 0), 1, 1)
    sets, facts = stored(index)
    np.testing.assert_array_equal(sets["copy.png"], sets["a.png"])
    assert facts["b.png"]["mtime"] == 1
    expected = counted.model.encode_images([folder / "x.bmp"]).reshape(1, -1)
    torch.testing.assert_close(torch.from_numpy(sets["x.bmp"][None]), expected)


@pytest.mark.parametrize("same_name", [True, False])
def test_photos_of_before_hashes_were_noted_are_known_by_size_time_and_name(
    same_name, synced, index, folder, counted, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(syncing, "_hash", lambda path: None)
        synced()
    assert all(HASH not in facts for facts in stored(index)[1].values())
    counted.since()
    (folder / "a.png").rename(folder / "rome" / ("a.png" if same_name else "other.png"))
    synced()
    assert counted.since() == (0 if same_name else 1)


def test_the_sets_of_another_folder_of_the_same_model_are_taken_over(synced, index, folder, counted, monkeypatch):
    synced()
    counted.since()
    monkeypatch.setattr(reuse, "_WORTH_OPENING", 2)
    moved = folder.rename(folder.with_name("photos"))
    with open_photos(index.folder.parent.with_name("two"), counted) as other:
        done = sync(other, counted, moved)
        assert (done[:3], done.renamed, done.taken_over, counted.since()) == ((0, 0, 0), 0, 4, 0)
        for name, vectors in stored(other)[0].items():
            np.testing.assert_array_equal(vectors, stored(index)[0][name])
    stranger = Counting(tiny_model("resnet152_bigru", seed=2))
    with open_photos(index.folder.parent.with_name("three"), stranger) as other:
        sync(other, stranger, moved)
    assert stranger.since() == 4, "sets of another model mean nothing"


def test_a_kill_between_taking_over_and_forgetting_costs_nothing(synced, index, folder, counted, monkeypatch):
    synced()
    counted.since()
    (folder / "rome").rename(folder / "roma")

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(syncing, "_forget", killed)
        with pytest.raises(KeyboardInterrupt):
            synced()
    assert (synced().removed, counted.since()) == (2, 0)
    assert stored(index)[0].keys() == {"a.png", "b.png", "roma/c.png", "roma/day/d.png"}


def test_what_is_excluded_is_not_encoded_and_what_was_indexed_before_stays(synced, index, folder, counted):
    assert (synced(exclude=["rome", "b.*"]).added, counted.since()) == (1, 1)
    assert synced().added == 3
    counted.since()
    assert synced(exclude=["rome"])[:3] == (0, 0, 0)
    assert len(index) == 4
    assert synced(exclude=["*/day", "*.gif"])[:3] == (0, 0, 0)
    (folder / "rome" / "c.png").unlink()
    assert synced(exclude=["rome/"]).removed == 1
    assert counted.since() == 0


def test_at_most_so_many_are_encoded_and_the_next_call_resumes(synced, index, counted):
    assert (synced(at_most=3).added, synced(at_most=3).added, len(index)) == (3, 1, 4)
    assert counted.since() == 4
