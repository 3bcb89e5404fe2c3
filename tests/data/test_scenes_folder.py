"""A folder of scenes is a pure function of its settings: whole, resumable, and never mixed with another."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_data import interrupting
from PIL import Image

from maxmatch.data.dataset import DataError
from maxmatch.data.scenes import generate, make_scene, split_sizes
from maxmatch.data.scenes import scene_folder as writing
from maxmatch.data.scenes.drawing import draw
from maxmatch.data.scenes.scene_folder import VERSION, describe
from maxmatch.data.scenes.world import PAINT, generator


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]


SETTINGS = {"images": 20, "seed": 4, "size": 32}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes") / "made"
    generate(folder, **SETTINGS)
    return folder


def test_every_row_has_its_picture_captions_and_what_they_mean(made):
    assert {path.name for path in made.iterdir()} == {"scenes.json", "metadata.jsonl", "images"}
    assert len(list((made / "images").iterdir())) == len(rows(made)) == 20
    for index, row in enumerate(rows(made)):
        assert row["file_name"] == f"images/{index:06d}.png"
        assert row["image_id"] == f"{index:06d}"
        assert len(row["captions"]) == len(row["facets"]) == 5
        assert {**describe(make_scene(4, index), 4, index), "split": row["split"]} == row
        expected = draw(make_scene(4, index), 32, generator(4, index, PAINT))
        with Image.open(made / row["file_name"]) as picture:
            assert (np.asarray(picture) == np.asarray(expected)).all()


def test_the_same_settings_give_the_same_bytes_however_many_processes_there_are(made, tmp_path):
    generate(tmp_path / "two", **SETTINGS, workers=2)
    assert file_bytes(tmp_path / "two") == file_bytes(made)
    generate(tmp_path / "other", **{**SETTINGS, "seed": 5})
    assert not set(file_bytes(tmp_path / "other").values()) & set(file_bytes(made).values())


def test_a_smaller_folder_is_the_beginning_of_a_larger_one(made, tmp_path):
    generate(tmp_path / "few", **{**SETTINGS, "images": 12})
    assert rows(tmp_path / "few") == rows(made)[:12]
    generate(tmp_path / "few", **SETTINGS)
    assert file_bytes(tmp_path / "few") == file_bytes(made)


def test_seed_zero_is_as_it_was_published():
    """The same words and records for ever. If this must change, raise VERSION: folders of before are then refused."""
    text = json.dumps([describe(make_scene(0, index), 0, index) for index in range(20)], sort_keys=True)
    assert (VERSION, hashlib.sha256(text.encode()).hexdigest()[:16]) == (1, "402ed17b6c562e19")


def test_an_interrupted_run_resumes(made, tmp_path, monkeypatch):
    folder = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        generate(folder, **SETTINGS, advance=interrupting(10))
    assert not (folder / "metadata.jsonl").exists()
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "images").glob("*.png")}
    assert 10 <= len(before) < 20

    drawn = []
    monkeypatch.setattr(writing, "draw", lambda scene, *rest: drawn.append(scene) or draw(scene, *rest))
    generate(folder, **SETTINGS)
    assert file_bytes(folder) == file_bytes(made)
    assert len(drawn) == 20 - len(before)
    assert {name: (folder / "images" / name).stat().st_mtime_ns for name in before} == before


def test_a_picture_that_is_not_whole_is_made_again(made, tmp_path):
    images = shutil.copytree(made, tmp_path / "harmed") / "images"
    whole = (images / "000007.png").read_bytes()
    for number, data in enumerate((whole[:-30], b"", bytes(len(whole)))):
        (images / f"{number:06d}.png").write_bytes(data)
    (images / "000007.png").unlink()
    generate(tmp_path / "harmed", **SETTINGS)
    assert file_bytes(tmp_path / "harmed") == file_bytes(made)


def test_a_write_that_fails_leaves_no_half_picture(tmp_path, monkeypatch):
    def fail(self, file, **options):
        file.write(b"\x89PNG half")
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", fail)
        with pytest.raises(OSError, match="No space"):
            generate(tmp_path / "full", 3, size=32)
    assert not list((tmp_path / "full/images").glob("[!.]*"))
    assert not (tmp_path / "full/metadata.jsonl").exists()
    generate(tmp_path / "full", 3, size=32)
    generate(tmp_path / "whole", 3, size=32)
    assert file_bytes(tmp_path / "full") == file_bytes(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 9}, "seed 4, not 9"),
        ({"size": 64}, "size 32, not 64"),
        ({"splits": {"train": 1.0}}, "splits {'train': 0.8"),
        ({"images": 19}, "holds 20 scenes or more, but 19 are asked for"),
    ],
)
def test_a_folder_of_other_settings_is_refused_and_left_as_it_was(made, change, words):
    before = file_bytes(made)
    with pytest.raises(DataError, match=words) as refusal:
        generate(made, **{**SETTINGS, **change})
    assert str(made) in str(refusal.value)
    assert file_bytes(made) == before


def test_scenes_of_an_older_version_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "VERSION", 0)
    generate(tmp_path / "old", 2, size=32)
    monkeypatch.undo()
    with pytest.raises(DataError, match="version 0, not 1"):
        generate(tmp_path / "old", 2, size=32)


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match="not a folder of scenes"):
        generate(tmp_path, 2)
    with pytest.raises(DataError, match="a file, where a folder is to be made"):
        generate(tmp_path / "thesis.tex", 2)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    for text in ("{", "[]", '{"format": "other"}'):
        (tmp_path / "scenes.json").write_text(text)
        with pytest.raises(DataError, match=r"scenes.json: not the scenes.json of a folder of scenes"):
            generate(tmp_path, 2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"images": 0}, "images: expected at least 1, got 0"),
        ({"size": 8}, "size: expected 32 to 1024 pixels, got 8"),
        ({"seed": -1}, "seed: expected 0 to 4294967295, got -1"),
        ({"splits": {"train": 0.8}}, "splits: expected shares that sum to 1"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(tmp_path, wrong, words):
    with pytest.raises(ValueError, match=words):
        generate(tmp_path / "none", **wrong)
    assert not (tmp_path / "none").exists()


def test_splits_have_their_shares():
    assert split_sizes(2_000) == {"train": 1_600, "val": 200, "test": 200}
    assert split_sizes(7, {"a": 0.5, "b": 0.5}) == {"a": 4, "b": 3}
    assert split_sizes(100, {"b": 0.25, "a": 0.75}) == {"b": 25, "a": 75}
