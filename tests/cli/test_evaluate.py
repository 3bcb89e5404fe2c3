"""`maxmatch evaluate`: what it measures and prints, and what it refuses."""

import json
import shutil

import pytest
import torch
from commands import run
from small_runs import recipe_for, write_data, write_pictures
from tiny_models import FEATURES, tiny_config, tokenizer_for

from maxmatch import SetEncoder
from maxmatch.data.load import read_dataset
from maxmatch.evaluation.encoding import EncodedSplit, save_encoded
from maxmatch.evaluation.metrics import retrieval
from maxmatch.matching import SIMILARITIES
from maxmatch.model.build import build_model
from maxmatch.recipe.yaml_files import dump_recipe, load_recipe


def save_model(folder, preset="region_bigru", seed=0, changed=None, **options):
    config = tiny_config(preset, **options).model_copy(update=changed)
    build_model(config, {"text": tokenizer_for(config)}, seed=seed).save_pretrained(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data with train and val; two checkpoints, the second of another K and D, with its sets kept; and a run with best/
    and last/ that held out some words.
    """
    place = tmp_path_factory.mktemp("evaluate")
    data = write_data(place / "data", train=8, val=16)
    save_model(place / "one", seed=1)
    save_model(place / "two", seed=2, set_size=3, width=10, changed={"similarity": "mil"})
    recipe = recipe_for(data)
    held_out = recipe.data.model_copy(update={"hold_out_words": ("thing1", "thing2")})
    (place / "run").mkdir()
    (place / "run" / "recipe.yaml").write_text(dump_recipe(recipe.model_copy(update={"data": held_out})))
    save_model(place / "run" / "best", seed=3)
    save_model(place / "run" / "last", seed=4)
    return place


def results(capsys, *arguments):
    code, out, err = run(capsys, "evaluate", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


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


def test_of_a_run_the_best_epoch_is_taken_with_the_data_of_its_recipe(capsys, place):
    code, out, err = run(capsys, "evaluate", place / "run", "--json")
    assert code == 0
    assert str(place / "run" / "best") in err
    assert "'val'" in err  # for there is no test split
    (result,) = json.loads(out)["results"]
    assert_same(result, expected(place / "run" / "best", place / "data"))


def test_of_a_run_all_similarities_of_its_recipe_are_measured_that_of_training_first(capsys, place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    recipe = load_recipe(place / "run" / "recipe.yaml", ["evaluate.similarities=[top_k, maxmatch, mil]"])
    (tmp_path / "run" / "recipe.yaml").write_text(dump_recipe(recipe))
    found = results(capsys, tmp_path / "run", place / "one", place / "data", "--ensemble", "--bootstrap", 0)["results"]
    assert [(one["model"], one["similarity"]) for one in found] == [
        ("run", "maxmatch"), ("one", "maxmatch"), ("run", "top_k"), ("run", "mil"),
        ("run + one", "maxmatch"),
    ]  # fmt: skip
    for one in (found[0], *found[2:4]):
        assert_same(one, expected(place / "run" / "best", place / "data", similarity=one["similarity"]))
    kept = tmp_path / "kept.safetensors"
    run(capsys, "evaluate", tmp_path / "run", "--save-sets", kept, "--bootstrap", 0)
    assert [one["similarity"] for one in results(capsys, kept)["results"]] == ["maxmatch", "top_k", "mil"]
    (asked,) = results(capsys, tmp_path / "run", "--similarity", "mil", "--bootstrap", 0)["results"]
    assert asked["similarity"] == "mil"


def test_beside_the_papers_rows_it_is_noted_what_a_recipe_of_the_paper_lacks(capsys, place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    recipe = load_recipe(place / "run" / "recipe.yaml").model_copy(update={"name": "f30k_region_bigru"})
    (tmp_path / "run" / "recipe.yaml").write_text(dump_recipe(recipe))
    for paper, count in (("table:flickr30k", 1), ("none", 0)):
        notes = results(capsys, tmp_path / "run", "--paper", paper, "--bootstrap", 0)["notes"]
        assert len([note for note in notes if note.startswith("run: ") and "data.word_vectors" in note]) == count


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
    assert [one["similarity"] for one in every["results"]] == [name for name in SIMILARITIES if name != "csd"]


def test_all_similarities_are_those_that_can_compare_the_sets(capsys, tmp_path):
    sets = {
        name: torch.nn.functional.normalize(torch.randn(6, size, 8), dim=-1)
        for name, size in (("image", 3), ("text", 2))
    }
    groups = torch.arange(6)
    save_encoded(EncodedSplit(sets, {"image": groups, "text": groups}), tmp_path / "sets.safetensors")
    every = results(capsys, tmp_path / "sets.safetensors", "--similarity", "all", "--bootstrap", 0)
    assert {one["similarity"] for one in every["results"]} == set(SIMILARITIES) - {"paired", "csd"}


def test_several_models_and_their_ensemble_are_compared_also_from_kept_sets(capsys, place, tmp_path):
    first, second, both = results(capsys, place / "one", place / "two", place / "data", "--ensemble")["results"]
    assert "against_first" not in first
    assert second["against_first"]["rsum"]["rsum"] == pytest.approx(second["rsum"] - first["rsum"])
    assert 0 < second["against_first"]["rsum"]["p"] <= 1
    assert (both["kind"], both["model"], both["similarity"]) == ("ensemble of 2", "one + two", "maxmatch + mil")
    kept = [tmp_path / f"{name}.safetensors" for name in ("one", "two")]
    for file in kept:
        run(capsys, "evaluate", place / file.stem, place / "data", "--save-sets", file, "--bootstrap", 0)
    again = results(capsys, *kept, "--ensemble")
    assert (again["data"], again["split"]) == (str(place / "data"), "val")
    for old, new in zip((first, second, both), again["results"], strict=True):
        assert_same(new, {key: value for key, value in old.items() if isinstance(value, float)})
        assert new["similarity"] == old["similarity"]
    mixed = results(capsys, kept[0], place / "two", place / "data", "--bootstrap", 0)
    assert mixed["results"][1]["rsum"] == pytest.approx(second["rsum"])
    assert "'val'" in refused(capsys, kept[0], "--split", "test")
    assert "captions" in refused(capsys, kept[0], "--words", "snow", code=2)
    assert "captions_per_image" in refused(capsys, kept[0], "--captions-per-image", 1)
    _, _, err = run(capsys, "evaluate", kept[0], place / "data", "--bootstrap", 0)
    assert f"{place / 'data'}: not read" in err


def test_text_markdown_and_latex_are_printed(capsys, place):
    common = ("evaluate", place / "one", place / "data")
    _, out, _ = run(capsys, *common, "--bootstrap", 0)
    assert out.splitlines()[-1] == f"{place / 'data'}, val: 16 images, 32 captions"
    _, out, _ = run(capsys, *common, "--markdown", "--paper", "table:flickr30k")
    assert out.startswith("| model | kind | similarity | image to text R@1 |")
    assert "| paper: MaxMatch | ensemble | Faster R-CNN + BERT |" in out
    _, out, _ = run(capsys, *common, "--latex")
    assert out.startswith(r"\begin{tabular}{lllrrrrrrrr}")
    assert "95 \\%" in out
    assert results(capsys, place / "one", place / "data", "--paper", "table:mscoco")["notes"] == [
        "paper: table:mscoco has no figures of this protocol"
    ]


def test_all_measures_are_in_the_json_and_in_the_tables_if_asked_for(capsys, place):
    models = (place / "one", place / "two", place / "data")
    first, second = results(capsys, *models, "--bootstrap", 20)["results"]
    names = ("i2t_map_at_r", "i2t_coverage_5", "i2t_hardest_r10", "t2i_hardest_r1")
    assert {*names, "image_content_log_variance", "slot_variation", "text_bytes_float16"} <= first.keys()
    for name in names:
        assert len(second["intervals"][name]) == 2
        difference = second["against_first"][name]
        assert list(difference) == [name, "low", "high", "p"]
        assert difference[name] == pytest.approx(second[name] - first[name])
    _, plain, _ = run(capsys, "evaluate", *models, "--bootstrap", 20)
    _, every, _ = run(capsys, "evaluate", *models, "--bootstrap", 20, "--measures", "all")
    assert "hardest caption" not in plain
    assert "hardest caption" in every
    assert plain == run(capsys, "evaluate", *models, "--bootstrap", 20, "--measures", "rsum")[1]
    first_tables = plain.split("\n\n")
    assert every.split("\n\n")[: len(first_tables) - 1] == first_tables[:-1]
    assert "--measures" in refused(capsys, *models, "--measures", "most", code=2)


def test_the_words_of_a_recipe_or_given_ones_are_measured_apart(capsys, place):
    captions = (place / "data" / "dev_caps.txt").read_text().splitlines()
    met = sum(bool({"thing1", "thing2"} & set(caption.split())) for caption in captions)
    common = (place / "run", place / "one", "--bootstrap", 20)
    found, again = (
        results(capsys, *common, place / "data", *words)["by_words"]
        for words in (["--words-from", place / "run" / "recipe.yaml"], ["--words", "Thing1, thing2"])
    )
    assert found == again
    assert found["words"] == ["thing1", "thing2"]
    first, second = found["results"]
    assert (first["with"]["captions"], first["without"]["captions"]) == (met, len(captions) - met)
    assert second["first_to_this_r10"]["value"] == first["with"]["t2i_r10"] / second["with"]["t2i_r10"]
    assert len(first["with"]["intervals"]["t2i_r10"]) == 2
    _, out, _ = run(capsys, "evaluate", place / "run", "--words", "thing1", "--bootstrap", 0)
    assert "text to image, with the words" in out


@pytest.mark.parametrize(
    ("options", "named", "code"),
    [
        (["--words", " , "], "no words", 2),
        (["--words", "thing1", "--words-from", "flickr8k_held_out"], "one of --words and --words-from", 2),
        (["--words-from", "flickr8k_small"], "no words", 2),
        (["--words", "red bus"], "expected single words", 1),
        (["--words", "pizza"], "has any of the words", 1),
    ],
)
def test_words_that_cannot_be_measured_are_refused(capsys, place, options, named, code):
    assert named in refused(capsys, place / "run", *options, code=code)


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


@pytest.mark.parametrize("verb", ["evaluate", "analyse"])
def test_a_run_that_is_not_there_is_named_rather_than_data_asked_for(verb, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    code, _, error = run(capsys, verb, "runs/nope")
    assert code == 1
    assert "runs/nope: no such folder" in error
