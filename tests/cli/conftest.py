"""What the tests of several verbs use."""

import pytest
from evaluating import save_model
from picture_heap import write_heap
from small_runs import recipe_for, write_data
from tiny_models import saved_model

from maxmatch.recipe.yaml_files import dump_recipe


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a small model that reads pictures and texts."""
    return saved_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data with train and val; two checkpoints, the second of another K and D; and a run with best/ and last/."""
    place = tmp_path_factory.mktemp("evaluate")
    data = write_data(place / "data", train=8, val=16)
    save_model(place / "one", seed=1)
    save_model(place / "two", seed=2, set_size=3, width=10, changed={"similarity": "mil"})
    recipe = recipe_for(data)
    (place / "run").mkdir()
    (place / "run" / "recipe.yaml").write_text(dump_recipe(recipe))
    save_model(place / "run" / "best", seed=3)
    save_model(place / "run" / "last", seed=4)
    return place


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Data to reproduce a table with, and the recipe of a tiny model for them."""
    folder = tmp_path_factory.mktemp("data")
    write_data(folder / "regions", train=16, val=8)
    recipe = recipe_for(folder / "regions", epochs=1, batch_size=8, model={"depth": 1})
    (folder / "tiny.yaml").write_text(dump_recipe(recipe))
    return folder


@pytest.fixture(scope="module")
def heap(tmp_path_factory):
    """A folder of pictures and other things, which of them can be read, and which cannot and why."""
    folder = tmp_path_factory.mktemp("heap")
    return (folder, *write_heap(folder, 60))
