"""`maxmatch evaluate`: what it measures, prints and refuses."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import recipe_for, write_data, write_pictures
from tiny_models import FEATURES, tiny_config, tokenizer_for

from maxmatch import SetEncoder
from maxmatch.build import build_model
from maxmatch.cli.main import main
from maxmatch.data.reading import read_dataset
from maxmatch.evaluation.encoding import load_encoded, save_encoded
from maxmatch.evaluation.retrieval import retrieval
from maxmatch.recipe_files import dump_recipe


def run(capsys, *arguments):
    """The exit code of the command and what it said: the result and the rest."""
    code = 0
    try:
        main(["evaluate", *map(str, arguments)])
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    return code, said.out, said.err


def results(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def save_model(folder, preset="region_bigru", seed=0, changed=None, **options):
    config = tiny_config(preset, **options).model_copy(update=changed)
    build_model(config, {"text": tokenizer_for(config)}, seed=seed).save_pretrained(folder)
    return folder


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


def test_where_there_is_no_test_split_val_is_taken_and_that_is_said(capsys, place):
    _, out, err = run(capsys, place / "one", place / "data", "--bootstrap", 0)
    assert "has no split 'test'; measured on 'val'" in err
    assert out.splitlines()[-1] == f"{place / 'data'}, val: 16 images, 32 captions"


def test_of_a_run_the_best_epoch_is_taken_with_the_data_of_its_recipe_and_both_are_said(capsys, place):
    code, out, err = run(capsys, place / "run", "--json")
    assert code == 0
    assert f"a run; its best epoch is taken ({place / 'run' / 'best'})" in err
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
    code, out, _ = run(capsys, place / "one", place / "two", place / "run", place / "data", "--ensemble")
    assert code == 0
    table = out.split("\n\n")[0].splitlines()
    kinds = [line.split("  ")[1].strip() or line for line in table[3:]]
    assert kinds == ["single", "single", "single", "ensemble of 3"] or "ensemble of 3" in table[-1]
    assert "to the first" in table[1]
    assert "maxmatch + mil" in table[-1]
    data = results(capsys, place / "one", place / "two", place / "data", "--ensemble")
    first, second, both = data["results"]
    assert "against_first" not in first
    assert second["against_first"]["rsum"]["rsum"] == pytest.approx(second["rsum"] - first["rsum"])
    assert 0 < second["against_first"]["rsum"]["p"] <= 1
    assert (both["kind"], both["model"]) == ("ensemble of 2", "one + two")
    sets = [SetEncoder.from_pretrained(place / name) for name in ("one", "two")]
    part = read_dataset(place / "data").split("val")
    scores = sum(
        model.similarity(model.encode_images(list(part["image"].values)), model.encode_texts(list(part["text"].values)))
        for model in sets
    )
    wrong = torch.as_tensor(part["image"].groups)[:, None] != torch.as_tensor(part["text"].groups)
    best = scores.masked_fill(wrong, -torch.inf).amax(1, keepdim=True)
    ranks = 1 + (wrong & (scores >= best)).sum(1)
    assert both["i2t_r5"] == pytest.approx(100 * (ranks <= 5).double().mean().item())


def test_markdown_and_latex_are_printed(capsys, place):
    _, out, _ = run(capsys, place / "one", place / "data", "--markdown", "--paper", "table:flickr30k")
    assert out.startswith("| model | kind | similarity | image to text R@1 |")
    assert "| paper: MaxMatch | ensemble | Faster R-CNN + BERT |" in out
    _, out, _ = run(capsys, place / "one", place / "data", "--latex")
    assert out.startswith(r"\begin{tabular}{lllrrrrrrrr}")
    assert "95 \\%" in out
    _, _, err = run(capsys, place / "one", place / "data", "--paper", "table:7")
    assert "--paper: expected one of table:flickr30k" in err


def test_the_papers_table_of_another_protocol_is_said_to_have_no_figures(capsys, place):
    assert results(capsys, place / "one", place / "data", "--paper", "table:mscoco")["notes"] == [
        "paper: table:mscoco has no figures of this protocol"
    ]


# --- sets in files ---------------------------------------------------------------------------------------------------


def test_sets_that_were_kept_are_measured_without_model_and_data(capsys, place, tmp_path):
    kept = [tmp_path / f"{name}.safetensors" for name in ("one", "two")]
    whole = results(capsys, place / "one", place / "two", place / "data", "--ensemble")
    for file in kept:
        run(capsys, place / file.stem, place / "data", "--save-sets", file)
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


def test_an_ensemble_of_another_order_is_refused(capsys, place, tmp_path):
    file, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    run(capsys, place / "one", place / "data", "--save-sets", file)
    sets = load_encoded(file)
    order = torch.arange(15, -1, -1)
    turned = type(sets)(
        {"image": sets.sets["image"][order], "text": sets.sets["text"]},
        sets.groups,
        {"image": [sets.ids["image"][n] for n in order], "text": sets.ids["text"]},
    )
    save_encoded(turned, other)
    code, out, err = run(capsys, file, other, "--ensemble")
    assert (code, out) == (1, "")
    assert "image 0 is 'dev_0' in a.safetensors and 'dev_15' in b.safetensors" in err


def test_vectors_that_are_no_numbers_are_refused_with_the_name_of_the_item(capsys, place, tmp_path):
    file = tmp_path / "a.safetensors"
    run(capsys, place / "one", place / "data", "--save-sets", file)
    sets = load_encoded(file)
    sets.sets["text"][7, 0] = torch.nan
    save_encoded(sets, file)
    code, out, err = run(capsys, file)
    assert (code, out) == (1, "")
    assert f"a.safetensors: the vectors of text 7 ({sets.ids['text'][7]}) hold NaN" in err


# --- pictures and features -------------------------------------------------------------------------------------------


def test_pictures_are_read_what_cannot_be_is_named_and_left_out(capsys, tmp_path):
    data = write_pictures(tmp_path / "data", train=2, val=6)
    (data / "4.png").write_bytes(b"no picture")
    save_model(tmp_path / "model", "resnet152_bigru")
    code, out, err = run(capsys, tmp_path / "model", data, "--split", "val", "--json", "--workers", 0)
    assert code == 0, err
    found = json.loads(out)
    assert (found["images"], found["captions"]) == (5, 10)
    (line,) = [line for line in err.splitlines() if "Left out" in line]
    assert "4.png" in line


# --- what does not fit -----------------------------------------------------------------------------------------------


def refused(capsys, *arguments, code=1):
    found, out, err = run(capsys, *arguments)
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
    assert "a run without best/: no epoch is done yet" in refused(capsys, tmp_path / "run")


def test_a_checkpoint_without_data_asks_for_it(capsys, place):
    assert "DATA: which data to measure on?" in refused(capsys, place / "one")


def test_runs_of_different_data_ask_which_to_take(capsys, place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "other")
    text = (tmp_path / "other" / "recipe.yaml").read_text().replace(str(place / "data"), "elsewhere")
    (tmp_path / "other" / "recipe.yaml").write_text(text)
    err = refused(capsys, place / "run", tmp_path / "other")
    assert "and other on elsewhere. Say which data to measure on" in err


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
        (["--similarity", "cosine"], "--similarity: expected one of maxmatch, top_k"),
        (["--ensemble"], "--ensemble takes two models or more"),
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
    run(capsys, place / "one", place / "data", "--save-sets", file)
    assert "--split test: these sets are of 'val'" in refused(capsys, file, "--split", "test")
    code, _, err = run(capsys, file, Path(place / "data"))
    assert code == 0
    assert "not read; files of sets need no data" in err
