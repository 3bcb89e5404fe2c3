"""What `maxmatch evaluate` refuses, and what it says then."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import run
from evaluating import results, save_model
from small_runs import write_pictures
from tiny_models import FEATURES, tiny_config

from maxmatch.model.build import build_model


def refused(capsys, *arguments, code=1):
    found, out, err = run(capsys, "evaluate", *arguments)
    assert (found, out) == (code, "")
    return err


def test_a_folder_that_is_no_model_is_refused_with_what_one_is(capsys, place, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in (tmp_path / "empty", tmp_path / "nothing", place / "data"):
        err = refused(capsys, name, place / "data")
        assert f"{name}: no model. Expected a checkpoint's folder (config.json, model.safetensors), a run's" in err
    assert "no model" in refused(capsys, place / "data")
    assert "gone.safetensors: no such file" in refused(capsys, "gone.safetensors")
    weights = place / "one" / "model.safetensors"
    assert f"the weights of a checkpoint. Give its folder: {place / 'one'}" in refused(capsys, weights, place / "data")


def test_a_run_without_a_best_epoch_is_refused(capsys, place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run", ignore=shutil.ignore_patterns("best"))
    assert "a run without best/" in refused(capsys, tmp_path / "run")


def test_a_checkpoint_without_data_asks_for_it(capsys, place):
    assert "DATA: which data to measure on?" in refused(capsys, place / "one")


def test_runs_of_different_data_ask_which_to_take(capsys, place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "other")
    text = (tmp_path / "other" / "recipe.yaml").read_text().replace(str(place / "data"), "elsewhere")
    (tmp_path / "other" / "recipe.yaml").write_text(text)
    err = refused(capsys, place / "run", tmp_path / "other")
    assert "and other on elsewhere" in err


def test_features_of_another_width_are_refused_with_model_and_data(capsys, place, tmp_path):
    save_model(tmp_path / "wide", feature_width=FEATURES + 1)
    err = refused(capsys, tmp_path / "wide", place / "data")
    assert f"wide cannot encode {place / 'data'} (val): " in err
    assert str(FEATURES) in err


def test_data_without_texts_are_refused(capsys, place, tmp_path):
    store = tmp_path / "store"
    write_pictures(tmp_path / "data", train=2, val=2)
    shutil.copytree(tmp_path / "data", store)
    (store / "captions.csv").unlink()
    save_model(tmp_path / "model", "resnet152_bigru")
    err = refused(capsys, tmp_path / "model", store)
    assert "has no split 'test'; measured on 'all'" in err
    assert f"model cannot encode {store} (all): readers: this data has image, not text." in err


def test_a_model_of_one_tower_is_refused(capsys, place, tmp_path):
    config = tiny_config("region_bigru")
    alone = config.model_copy(update={"towers": {"image": config.towers["image"]}})
    build_model(alone, {}, seed=0).save_pretrained(tmp_path / "alone")
    assert "alone: has the tower image alone; retrieval is between two" in refused(
        capsys, tmp_path / "alone", place / "data"
    )


def test_a_split_that_is_not_there_is_refused_with_those_that_are(capsys, place):
    assert "has the splits train, val, not 'test'" in refused(capsys, place / "one", place / "data", "--split", "test")


def test_one_image_with_one_caption_is_measured(capsys, place, tmp_path):
    tiny = tmp_path / "tiny"
    tiny.mkdir()
    np.save(tiny / "test_ims.npy", np.zeros((1, 2, FEATURES), "float32"))
    (tiny / "test_caps.txt").write_text("a dog\n")
    data = results(capsys, place / "one", tiny)
    assert (data["split"], data["images"], data["captions"]) == ("test", 1, 1)
    assert data["results"][0]["rsum"] == 600
    assert data["results"][0]["intervals"]["rsum"] == [600, 600]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--json", "--latex"], "choose one of --json, --markdown and --latex"),
        (["--similarity", "cosine"], "similarity: expected one of maxmatch, top_k"),
        (["--ensemble"], "ensemble takes two models or more"),
        (["--save-sets", "a.npy"], "expected a name that ends in .safetensors"),
        (["--protocol", "flickr"], "'flickr' is not one of"),
    ],
)
def test_wrong_use_is_said_before_anything_is_done(capsys, place, options, said):
    err = refused(capsys, place / "one", place / "data", *options, code=2)
    assert said in " ".join(err.replace("│", " ").split())


def test_the_protocol_of_coco_is_refused_for_other_sizes(capsys, place):
    err = refused(capsys, place / "one", place / "data", "--protocol", "coco")
    assert "5 folds of 1,000 images, but this split has 16" in err


def test_the_split_of_kept_sets_cannot_be_changed(capsys, place, tmp_path):
    file = tmp_path / "a.safetensors"
    run(capsys, "evaluate", place / "one", place / "data", "--save-sets", file)
    assert "split test: these sets are of 'val'" in refused(capsys, file, "--split", "test")
    code, _, err = run(capsys, "evaluate", file, Path(place / "data"))
    assert code == 0
    assert "not read; files of sets need no data" in err
