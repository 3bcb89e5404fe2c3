"""A held-out picture that looks like a training picture is found, whatever became of its size, shape and file."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from maxmatch.cli.main import app
from maxmatch.data.load import read_dataset
from maxmatch.data.near_duplicates import near_duplicates, thumbnail


def scene(seed, size=(200, 150)):
    """Some blobs of light, smooth as in a photo."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0 : size[1], 0 : size[0]] / max(size)
    picture = np.zeros((size[1], size[0], 3))
    for _ in range(12):
        cx, cy, width = random.uniform(0, 1), random.uniform(0, 0.75), random.uniform(0.03, 0.2)
        picture += random.uniform(-120, 120, 3) * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / width**2)[..., None]
    return Image.fromarray((picture + 128).clip(0, 255).astype(np.uint8))


def write(folder, pictures):
    """pictures: split and picture by file name."""
    folder.mkdir()
    rows = ["image,caption,split"]
    for name, (split, picture) in pictures.items():
        picture.save(folder / name, **({"quality": 60} if name.endswith("jpg") else {}))
        rows.append(f"{name},a picture,{split}")
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """One data set has a squashed, smaller, compressed copy of a training picture of the other in its validation."""
    folder = tmp_path_factory.mktemp("two")
    first = write(folder / "first", {f"{n}.png": ("train" if n < 8 else "val", scene(n)) for n in range(12)})
    copy = scene(3).resize((90, 90))
    others = {f"{n}.jpg": ("train" if n < 108 else "val", scene(n)) for n in range(100, 112)}
    return first, write(folder / "second", others | {"copy.jpg": ("val", copy)})


def test_the_copy_is_found_and_nothing_else(two):
    datasets = {path.name: read_dataset(path) for path in two}
    (found,) = near_duplicates(datasets, workers=2)
    assert found.held_out[:2] == ("second", "val")
    assert "copy" in found.held_out[2]
    assert found.train[:2] == ("first", "train")
    assert "3" in found.train[2]
    assert found.correlation > 0.98


def test_pictures_of_one_grey_are_like_nothing():
    assert not thumbnail(Image.new("RGB", (40, 30), "grey")).any()


def test_the_command_names_both_and_says_where_there_are_none(two):
    found = CliRunner().invoke(app, ["data", "check", str(two[0]), "--against", str(two[1])])
    assert found.exit_code == 0
    assert "of second (val)" in found.output
    assert "of first (train)" in found.output
    as_json = CliRunner().invoke(app, ["data", "check", str(two[0]), "--against", str(two[1]), "--json"])
    assert len(json.loads(as_json.stdout)["near_duplicates"]) == 1
    alone = CliRunner().invoke(app, ["data", "check", str(two[0]), "--against", str(two[0])])
    assert "No picture held out of training looks like a training picture." in alone.output
