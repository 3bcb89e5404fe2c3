"""A recipe with three towers, on a table that has a column for each."""

import json

import numpy as np
import pytest
import torch
from small_runs import recipe_for, write_pictures
from tiny_models import tiny_config, with_audio
from typer.testing import CliRunner

from maxmatch import SetEncoder
from maxmatch.cli.main import app
from maxmatch.data.load import load_data
from maxmatch.recipe.schema import Recipe
from maxmatch.training.loop import train
from maxmatch.training.prepare import new_model

PAIRS = [["image", "text"], ["image", "audio"], ["audio", "text"]]


def write_sounds(folder):
    """Features of a sound for each picture of a table, in a column of its own."""
    rows = (folder / "captions.csv").read_text().splitlines()
    generator = np.random.default_rng(1)
    for picture in dict.fromkeys(row.split(",")[0] for row in rows[1:]):
        np.save(folder / f"{picture}.npy", generator.normal(size=(int(generator.integers(2, 6)), 5)))
    heads = ["audio", *(f"{row.split(',')[0]}.npy" for row in rows[1:])]
    (folder / "captions.csv").write_text(
        "\n".join(f"{row},{cell}" for row, cell in zip(rows, heads, strict=True)) + "\n"
    )
    return folder


def three_towers(data):
    config = with_audio(tiny_config("resnet152_bigru", depth=1)).model_dump(mode="json")
    two = recipe_for(data, "resnet152_bigru", epochs=1, batch_size=6, workers=0).model_dump(mode="json")
    objective = two["objective"] | {"pairs": PAIRS}
    return Recipe.model_validate(two | {"model": {"config": config}, "objective": objective})


def test_a_recipe_trains_three_towers_from_a_table(tmp_path):
    recipe = three_towers(write_sounds(write_pictures(tmp_path / "data")))
    found = train(recipe, tmp_path / "run", show_progress=False)
    assert found["rsum"] > 0
    model = SetEncoder.from_pretrained(tmp_path / "run" / "best")
    assert list(model.towers) == ["image", "text", "audio"]
    assert model.encode("audio", [np.ones((4, 5))]).shape == (1, 3, model.dim)
    train_split = load_data(recipe.data, print, model.towers).split("train")
    start = new_model(recipe, train_split, print)
    for name in model.towers:
        before, after = start.tower(name).state_dict(), model.tower(name).state_dict()
        assert any(not torch.equal(before[key], after[key]) for key in before), name
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--split", "val", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["images"] == 6


def test_a_table_without_the_column_of_a_tower_is_refused(tmp_path):
    recipe = three_towers(write_pictures(tmp_path / "data"))
    with pytest.raises(ValueError, match="and audio; found image, caption, split"):
        train(recipe, tmp_path / "run", show_progress=False)


def test_a_sound_that_cannot_be_read_is_left_out_with_its_group(tmp_path, caplog):
    recipe = three_towers(write_sounds(write_pictures(tmp_path / "data")))
    (tmp_path / "data" / "3.png.npy").write_bytes(b"cut")
    train(recipe, tmp_path / "run", show_progress=False)
    assert any("3.png.npy" in record.getMessage() for record in caplog.records)
