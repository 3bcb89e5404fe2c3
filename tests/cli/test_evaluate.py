"""`maxmatch evaluate`: what it measures and prints, and what it refuses."""

import json
import shutil

import numpy as np
import pytest
import torch
from commands import run
from evaluating import results, save_model
from small_runs import write_pictures
from tiny_models import FEATURES, tiny_config

from maxmatch import SetEncoder
from maxmatch.data.load import read_dataset
from maxmatch.evaluation.metrics import retrieval
from maxmatch.model.build import build_model


def expected(folder, data, split="val", similarity=None):
    """The figures from the model's own `encode`, without a loader."""
    model, part = SetEncoder.from_pretrained(folder), read_dataset(data).split(split)
    return retrieval(
        model.encode_images(list(part["image"].values)),
        model.encode_texts(list(part["text"].values)),
        torch.as_tensor(part["image"].groups),
        torch.as_tensor(part["text"].groups),
        similarity or model.similarity_name,
    )


def assert_same(result, figures):
    assert {name: result[name] for name in figures} == pytest.approx(figures)


def test_a_checkpoint_is_measured_with_the_similarity_it_was_trained_with(capsys, place):
    data = results(capsys, place / "two", place / "data")
    assert (data["split"], data["images"], data["captions"]) == ("val", 16, 32)
    (result,) = data["results"]
    assert (result["model"], result["kind"], result["similarity"]) == ("two", "single", "mil")
    assert_same(result, expected(place / "two", place / "data"))
    assert {"image_log_variance", "text_log_variance", "pairing_stability", "slots_used"} <= result.keys()
    for name, (low, high) in result["intervals"].items():
        assert low <= result[name] <= high


def test_without_a_test_split_val_is_taken_with_a_message(capsys, place):
    _, out, err = run(capsys, "evaluate", place / "one", place / "data", "--bootstrap", 0)
    assert "'val'" in err
    assert out.splitlines()[-1] == f"{place / 'data'}, val: 16 images, 32 captions"


def test_of_a_run_the_best_epoch_is_taken_with_the_data_of_its_recipe(capsys, place):
    code, out, err = run(capsys, "evaluate", place / "run", "--json")
    assert code == 0
    assert str(place / "run" / "best") in err
    (result,) = json.loads(out)["results"]
    assert_same(result, expected(place / "run" / "best", place / "data"))


def test_a_split_can_be_chosen_and_captions_be_fewer(capsys, place):
    data = results(capsys, place / "one", place / "data", "--split", "train", "--captions-per-image", 1)
    assert (data["split"], data["images"], data["captions"]) == ("train", 8, 8)


def test_several_similarities_are_measured_from_one_encoding(capsys, place, monkeypatch):
    calls = []
    whole = SetEncoder.forward
    monkeypatch.setattr(SetEncoder, "forward", lambda self, *inputs: calls.append(inputs[0]) or whole(self, *inputs))
    data = results(capsys, place / "one", place / "data", "--similarity", "max", "--similarity", "top_k")
    assert sorted(calls) == ["image", "text"]
    assert [result["similarity"] for result in data["results"]] == ["mil", "top_k"]
    for result in data["results"]:
        assert_same(result, expected(place / "one", place / "data", similarity=result["similarity"]))
    every = results(capsys, place / "one", place / "data", "--similarity", "all", "--bootstrap", 0)
    assert len(every["results"]) == 7


def test_several_models_have_a_line_each_a_test_against_the_first_and_an_ensemble(capsys, place):
    code, out, _ = run(capsys, "evaluate", place / "one", place / "two", place / "data", "--ensemble")
    assert code == 0
    table = out.split("\n\n")[0].splitlines()
    assert "to the first" in table[1]
    assert "ensemble of 2" in table[-1]
    assert "maxmatch + mil" in table[-1]
    data = results(capsys, place / "one", place / "two", place / "data", "--ensemble")
    first, second, both = data["results"]
    assert "against_first" not in first
    assert second["against_first"]["rsum"]["rsum"] == pytest.approx(second["rsum"] - first["rsum"])
    assert 0 < second["against_first"]["rsum"]["p"] <= 1
    assert (both["kind"], both["model"]) == ("ensemble of 2", "one + two")


def test_markdown_and_latex_are_printed(capsys, place):
    _, out, _ = run(capsys, "evaluate", place / "one", place / "data", "--markdown", "--paper", "table:flickr30k")
    assert out.startswith("| model | kind | similarity | image to text R@1 |")
    assert "| paper: MaxMatch | ensemble | Faster R-CNN + BERT |" in out
    _, out, _ = run(capsys, "evaluate", place / "one", place / "data", "--latex")
    assert out.startswith(r"\begin{tabular}{lllrrrrrrrr}")
    assert "95 \\%" in out


def test_a_table_of_the_paper_of_another_protocol_has_no_figures(capsys, place):
    assert results(capsys, place / "one", place / "data", "--paper", "table:mscoco")["notes"] == [
        "paper: table:mscoco has no figures of this protocol"
    ]


def test_sets_that_were_kept_are_measured_without_model_and_data(capsys, place, tmp_path):
    kept = [tmp_path / f"{name}.safetensors" for name in ("one", "two")]
    whole = results(capsys, place / "one", place / "two", place / "data", "--ensemble")
    for file in kept:
        run(capsys, "evaluate", place / file.stem, place / "data", "--save-sets", file)
    again = results(capsys, *kept, "--ensemble")
    assert (again["data"], again["split"]) == (str(place / "data"), "val")
    for old, new in zip(whole["results"], again["results"], strict=True):
        assert_same(new, {key: value for key, value in old.items() if isinstance(value, float)})
        assert new["similarity"] == old["similarity"]
    mixed = results(capsys, kept[0], place / "two", place / "data")
    assert mixed["results"][1]["rsum"] == pytest.approx(whole["results"][1]["rsum"])


def test_the_options_of_the_similarity_are_those_of_training_also_from_a_file(capsys, place, tmp_path):
    changed = {"similarity": "top_k", "similarity_options": {"k": 2}}
    save_model(tmp_path / "model", seed=5, changed=changed)
    file = tmp_path / "model.sets.safetensors"
    direct = results(capsys, tmp_path / "model", place / "data", "--save-sets", file)
    for data in (direct, results(capsys, file)):
        assert [result["similarity"] for result in data["results"]] == ["top_k(k=2)"]
    other = results(capsys, file, "--similarity", "top_k", "--similarity", "maxmatch")
    assert [result["similarity"] for result in other["results"]] == ["top_k(k=2)", "maxmatch"]


def test_pictures_are_read_what_cannot_be_is_named_and_left_out(capsys, tmp_path):
    data = write_pictures(tmp_path / "data", train=2, val=6)
    (data / "4.png").write_bytes(b"no picture")
    save_model(tmp_path / "model", "resnet152_bigru")
    code, out, err = run(capsys, "evaluate", tmp_path / "model", data, "--split", "val", "--json", "--workers", 0)
    assert code == 0, err
    found = json.loads(out)
    assert (found["images"], found["captions"]) == (5, 10)
    (line,) = [line for line in err.splitlines() if "Left out" in line]
    assert "4.png" in line


def test_one_image_with_one_caption_is_measured(capsys, place, tmp_path):
    np.save(tmp_path / "test_ims.npy", np.zeros((1, 2, FEATURES), "float32"))
    (tmp_path / "test_caps.txt").write_text("a dog\n")
    data = results(capsys, place / "one", tmp_path)
    assert (data["split"], data["images"], data["captions"]) == ("test", 1, 1)
    assert data["results"][0]["rsum"] == 600
    assert data["results"][0]["intervals"]["rsum"] == [600, 600]


def test_the_split_of_kept_sets_cannot_be_changed_and_data_is_not_read(capsys, place, tmp_path):
    file = tmp_path / "a.safetensors"
    run(capsys, "evaluate", place / "one", place / "data", "--save-sets", file)
    assert "'val'" in refused(capsys, file, "--split", "test")
    code, _, err = run(capsys, "evaluate", file, place / "data")
    assert code == 0
    assert f"{place / 'data'}: not read" in err


def refused(capsys, *arguments, code=1):
    """The message of a command that prints no result."""
    found, out, err = run(capsys, "evaluate", *arguments)
    assert (found, out) == (code, ""), err
    return " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--json", "--latex"], "--json, --markdown and --latex"),
        (["--similarity", "cosine"], "maxmatch, top_k"),
        (["--ensemble"], "ensemble"),
        (["--save-sets", "a.npy"], ".safetensors"),
        (["--paper", "table:7"], "table:flickr30k"),
        (["--protocol", "flickr"], "'flickr'"),
    ],
)
def test_wrong_use_is_exit_2(capsys, place, options, named):
    assert named in refused(capsys, place / "one", place / "data", *options, code=2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["one"], "DATA"),
        (["data"], "not a model"),
        (["nothing", "data"], "nothing: not a model"),
        (["gone.safetensors"], "gone.safetensors: no such file"),
        (["one/model.safetensors", "data"], "Give its folder"),
        (["one", "data", "--split", "test"], "train, val, not 'test'"),
        (["one", "data", "--protocol", "coco"], "this split has 16"),
    ],
)
def test_what_cannot_be_measured_is_named(capsys, place, monkeypatch, arguments, named):
    monkeypatch.chdir(place)
    assert named in refused(capsys, *arguments)


def test_a_run_without_a_best_epoch_is_refused(capsys, place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run", ignore=shutil.ignore_patterns("best"))
    assert "without best/" in refused(capsys, tmp_path / "run")


def test_runs_of_different_data_need_the_data_to_be_named(capsys, place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "other")
    text = (tmp_path / "other" / "recipe.yaml").read_text().replace(str(place / "data"), "elsewhere")
    (tmp_path / "other" / "recipe.yaml").write_text(text)
    assert "other on elsewhere" in refused(capsys, place / "run", tmp_path / "other")


def test_data_that_a_model_cannot_read_is_refused_with_both_names(capsys, place, tmp_path):
    save_model(tmp_path / "wide", feature_width=FEATURES + 1)
    assert f"wide cannot encode {place / 'data'} (val): " in refused(capsys, tmp_path / "wide", place / "data")
    data = write_pictures(tmp_path / "data", train=2, val=2)
    (data / "captions.csv").unlink()
    save_model(tmp_path / "model", "resnet152_bigru")
    assert f"model cannot encode {data} (all): " in refused(capsys, tmp_path / "model", data)


def test_a_model_of_one_tower_is_refused(capsys, place, tmp_path):
    config = tiny_config("region_bigru")
    alone = config.model_copy(update={"towers": {"image": config.towers["image"]}})
    build_model(alone, {}, seed=0).save_pretrained(tmp_path / "alone")
    assert "alone: has the tower image alone" in refused(capsys, tmp_path / "alone", place / "data")
