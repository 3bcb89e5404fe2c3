"""`maxmatch train`: what it prints, and how it ends."""

import json
import re

import pytest
from commands import run
from small_runs import recipe_for, write_data

from maxmatch.recipe.yaml_files import dump_recipe, list_recipes


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A recipe file for a tiny model, without the place of its data, and that place."""
    place = tmp_path_factory.mktemp("small")
    data = write_data(place / "data")
    recipe = recipe_for(data, epochs=1)
    file = place / "tiny.yaml"
    file.write_text(dump_recipe(recipe.model_copy(update={"data": recipe.data.model_copy(update={"path": None})})))
    return file, data


def test_recipes_are_listed_with_what_they_are(capsys):
    code, out, err = run(capsys, "train", "--list")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == len(list_recipes()) >= 38
    assert any(re.fullmatch(r"coco_region_bigru +MaxMatch with Faster R-CNN .*", line) for line in lines)


def test_without_a_recipe_they_are_listed_too_but_it_is_wrong_use(capsys):
    code, out, err = run(capsys, "train")
    assert code == 2
    assert "coco_region_bigru" in out
    assert "name one of these recipes, or a YAML file" in err


def test_a_dry_run_prints_the_plan_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "train", "f30k_region_bigru", "train.lr=2e-4", "--dry-run")
    assert code == 0
    assert "80 epochs of 145 steps" in out
    assert re.search(r"image\.set_module .* 0\.1 +2e-05", out)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["f30k_region_bigro"], "f30k_region_bigro: no recipe of this name. Did you mean 'f30k_region_bigru'?"),
        (["scenes", "--device", "cuda:99", "data.path=x"], "device cuda:99: "),
        (["scenes", "train.epochz=3"], "train.epochz: unknown key 'epochz'. Did you mean 'epochs'?"),
        (["f30k_region_bigru"], "data.path: the recipe does not say where the data is. Give it: data.path=FOLDER"),
        (["f30k_region_bigru", "data.path=/no/such"], "/no/such: no such file or folder"),
    ],
)
def test_what_is_wrong_with_the_command_is_one_line_and_exit_1(capsys, tmp_path, monkeypatch, arguments, printed):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "train", *arguments)
    assert (code, out) == (1, "")
    (line,) = [line for line in err.splitlines() if line.startswith("maxmatch: ")]
    assert printed in line
    assert not list(tmp_path.iterdir())


def test_a_run_is_written_to_its_folder_and_its_result_to_stdout(capsys, small, tmp_path, monkeypatch):
    file, data = small
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "train", file, f"data.path={data}", "train.epochs=2", "--device", "cpu")
    assert code == 0
    assert re.fullmatch(
        r"runs/tiny/best: epoch [12], RSUM \d+\.\d \(image to text R@1 \d+\.\d, text to image R@1 \d+\.\d\), "
        r"pairing stable in \d+\.\d% of true pairs\n",
        out,
    )
    assert "epoch 2/2" in err
    code, out, err = run(capsys, "train", file, f"data.path={data}", "train.epochs=2")
    assert (code, out) == (1, "")
    assert "maxmatch: runs/tiny: already holds a run." in err
    code, out, err = run(capsys, "train", file, f"data.path={data}", "train.epochs=2", "--resume", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((tmp_path / "runs" / "tiny" / "done.json").read_text())


def test_the_result_has_the_rsum_of_every_similarity_of_the_recipe(capsys, small, tmp_path):
    file, data = small
    similarities = "evaluate.similarities=[maxmatch, top_k]"
    code, out, _ = run(capsys, "train", file, f"data.path={data}", similarities, "--out", tmp_path / "run")
    assert code == 0
    done = json.loads((tmp_path / "run" / "done.json").read_text())
    _, measured, _ = run(capsys, "evaluate", tmp_path / "run", "--split", "val", "--bootstrap", 0, "--json")
    first, other = json.loads(measured)["results"]
    names = [f"{way}_r{level}" for way in ("i2t", "t2i") for level in (1, 5, 10)] + ["rsum"]
    assert {name: done[f"top_k_{name}"] for name in names} == pytest.approx({name: other[name] for name in names})
    assert done["rsum"] == pytest.approx(first["rsum"])
    assert f"top_k RSUM {other['rsum']:.1f}" in out
    assert f"`top_k` {other['rsum']:.1f}" in (tmp_path / "run" / "best" / "README.md").read_text()


def test_without_validation_the_result_has_no_rsum(capsys, small, tmp_path):
    file, _ = small
    data = write_data(tmp_path / "data", val=0)
    code, out, err = run(capsys, "train", file, f"data.path={data}", "--out", tmp_path / "run")
    assert (code, out) == (0, f"{tmp_path / 'run' / 'best'}: epoch 1\n")
    assert "no split 'val'" in err
