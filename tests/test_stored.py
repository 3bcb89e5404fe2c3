"""What an earlier version wrote still works: a run, an interrupted run, a checkpoint, an index and a feature store.

`tests/stored` was written by 0.1.0.dev0, before the package got its present layout (25ebf7c). Never write it anew:
what users have on their disks does not change either.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from maxmatch import Recipe, SetEncoder, SetIndex
from maxmatch.cli.main import app
from maxmatch.data.features import FeatureStore
from maxmatch.training.loop import train

STORED = Path(__file__).parent / "stored"
EXPECTED = json.loads((STORED / "expected.json").read_text())


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A copy to work in; the stored recipe names its data by a relative path."""
    place = shutil.copytree(STORED, tmp_path / "stored")
    monkeypatch.chdir(place)
    return place


def test_a_stored_checkpoint_makes_the_sets_it_made():
    model = SetEncoder.from_pretrained(STORED / "run" / "best")
    sets = model.encode_texts(EXPECTED["texts"][:1])[0]
    torch.testing.assert_close(sets, torch.tensor(EXPECTED["sets"]), rtol=0, atol=1e-4)


def test_a_stored_run_is_evaluated_to_the_figures_it_had(here):
    result = CliRunner().invoke(app, ["evaluate", "run", "--json", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    [row] = json.loads(result.stdout)["results"]
    assert row["rsum"] == pytest.approx(EXPECTED["done"]["rsum"], rel=0.05)  # two of 24 captions may all but tie


def test_a_finished_run_is_not_trained_again(here):
    recipe = Recipe.load("run/recipe.yaml")
    assert train(recipe, "run", resume=True) == EXPECTED["done"]


def test_an_interrupted_run_is_resumed_to_its_end(here):
    recipe = Recipe.load("interrupted/recipe.yaml")
    saved = Path("interrupted/metrics.jsonl").read_text().splitlines()[:4]  # the state is that after two epochs
    result = train(recipe, "interrupted", resume=True)
    after = Path("interrupted/metrics.jsonl").read_text().splitlines()
    assert after[:4] == saved
    epochs = [record["epoch"] for record in map(json.loads, after) if record["kind"] == "val"]
    assert epochs == [0, 1, 2, 3]
    assert np.isfinite(result["rsum"])


def test_a_stored_index_opens_and_finds_what_it_found(here):
    model = SetEncoder.from_pretrained("run/best")
    with SetIndex.open("index") as index:
        found = index.search(model.encode_texts(EXPECTED["texts"]), k=3, where="number >= 2", model=model)
    for hits, expected in zip(found, EXPECTED["hits"], strict=True):
        assert [hit.score for hit in hits] == pytest.approx([score for _, score, _ in expected], abs=1e-4)
        assert hits[0].id == expected[0][0]
        assert hits[0].metadata == expected[0][2]


def test_a_stored_index_takes_more_items(here):
    model = SetEncoder.from_pretrained("run/best")
    with SetIndex.open("index") as index:
        index.add(["new"], model.encode_texts(["thing1 thing2"]), [{"number": 99}])
        assert len(index) == 13


def test_a_stored_feature_store_opens(here):
    rows = np.load("data/dev_ims.npy")
    store = FeatureStore.open(Path("features"))
    assert len(store) == len(rows)
