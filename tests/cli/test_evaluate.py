"""`maxmatch evaluate`: what it measures and prints."""

import json

import pytest
import torch
from commands import run
from evaluating import results, save_model
from small_runs import write_pictures

from maxmatch import SetEncoder
from maxmatch.data.load import read_dataset
from maxmatch.evaluation.encoding import load_encoded, save_encoded
from maxmatch.evaluation.metrics import retrieval


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
    _, out, err = run(capsys, "evaluate", place / "one", place / "data", "--bootstrap", 0)
    assert "has no split 'test'; measured on 'val'" in err
    assert out.splitlines()[-1] == f"{place / 'data'}, val: 16 images, 32 captions"


def test_of_a_run_the_best_epoch_is_taken_with_the_data_of_its_recipe_and_both_are_said(capsys, place):
    code, out, err = run(capsys, "evaluate", place / "run", "--json")
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
    code, out, _ = run(capsys, "evaluate", place / "one", place / "two", place / "run", place / "data", "--ensemble")
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
    _, out, _ = run(capsys, "evaluate", place / "one", place / "data", "--markdown", "--paper", "table:flickr30k")
    assert out.startswith("| model | kind | similarity | image to text R@1 |")
    assert "| paper: MaxMatch | ensemble | Faster R-CNN + BERT |" in out
    _, out, _ = run(capsys, "evaluate", place / "one", place / "data", "--latex")
    assert out.startswith(r"\begin{tabular}{lllrrrrrrrr}")
    assert "95 \\%" in out
    _, _, err = run(capsys, "evaluate", place / "one", place / "data", "--paper", "table:7")
    assert "paper: expected one of table:flickr30k" in err


def test_the_papers_table_of_another_protocol_is_said_to_have_no_figures(capsys, place):
    assert results(capsys, place / "one", place / "data", "--paper", "table:mscoco")["notes"] == [
        "paper: table:mscoco has no figures of this protocol"
    ]


# --- sets in files ---------------------------------------------------------------------------------------------------


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


def test_an_ensemble_of_another_order_is_refused(capsys, place, tmp_path):
    file, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    run(capsys, "evaluate", place / "one", place / "data", "--save-sets", file)
    sets = load_encoded(file)
    order = torch.arange(15, -1, -1)
    turned = type(sets)(
        {"image": sets.sets["image"][order], "text": sets.sets["text"]},
        sets.groups,
        {"image": [sets.ids["image"][n] for n in order], "text": sets.ids["text"]},
    )
    save_encoded(turned, other)
    code, out, err = run(capsys, "evaluate", file, other, "--ensemble")
    assert (code, out) == (1, "")
    assert "image 0 is 'dev_0' in a.safetensors and 'dev_15' in b.safetensors" in err


def test_vectors_that_are_no_numbers_are_refused_with_the_name_of_the_item(capsys, place, tmp_path):
    file = tmp_path / "a.safetensors"
    run(capsys, "evaluate", place / "one", place / "data", "--save-sets", file)
    sets = load_encoded(file)
    sets.sets["text"][7, 0] = torch.nan
    save_encoded(sets, file)
    code, out, err = run(capsys, "evaluate", file)
    assert (code, out) == (1, "")
    assert f"a.safetensors: the vectors of text 7 ({sets.ids['text'][7]}) hold NaN" in err


# --- pictures and features -------------------------------------------------------------------------------------------


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
