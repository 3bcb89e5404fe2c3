"""The recipes of VSE++ and VSE∞, their models made small, train by the loop that all recipes train by."""

import json

import pytest
import torch
from small_runs import write_data
from tiny_models import FEATURES

from maxmatch import SetEncoder
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training.loop import train

MODEL = {"width": 32, "word_width": 16, "feature_width": FEATURES, "set_size": 1}
CHANGES = [
    *("data.min_count=1", "data.max_length=24", "data.captions_per_image=null"),
    *("train.epochs=40", "train.batch_size=16", "train.lr=3e-3", "train.validate_every=20", "train.schedule=constant"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"), train=64, val=16, named=4)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("name", "head"), [("f30k_vseinf_region_bigru", "gpo"), ("f30k_vsepp", "global")])
def test_a_run_of_the_recipe_learns_and_its_checkpoint_is_the_model(name, head, data, tmp_path):
    options = json.dumps({**MODEL, "head": head})
    changes = [f"data.path={data}", "model.preset=region_bigru", f"model.options={options}", *CHANGES]
    recipe = load_recipe(name, [*changes, "train.freeze=null"])
    assert recipe.objective == load_recipe(name).objective
    result = train(recipe, tmp_path / "run")
    assert result["rsum"] > 2 * sum(result[f"chance_{way}_r{k}"] for way in ("i2t", "t2i") for k in (1, 5, 10))
    model = SetEncoder.from_pretrained(tmp_path / "run" / "best")
    assert {tower.head.name for tower in model.config.towers.values()} == {head}
    assert (model.set_sizes, model.config.pairing) == ({"image": 1, "text": 1}, [0])
    sets = model.encode_texts(["thing1 thing2", "thing3"])
    torch.testing.assert_close(sets.norm(dim=-1), torch.ones(2, 1))
