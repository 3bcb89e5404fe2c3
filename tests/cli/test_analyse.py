"""`maxmatch analyse`: a report of a run or a checkpoint, its numbers, and what is refused."""

import json

import pytest
from commands import run
from PIL import Image
from small_runs import recipe_for, write_data, write_pictures
from tiny_models import tiny_model

from maxmatch.evaluation import slots
from maxmatch.evaluation.report import figures
from maxmatch.recipe.yaml_files import dump_recipe


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Figures that take no time; those of tests/evaluation are real."""
    monkeypatch.setattr("maxmatch.evaluation.report.figures.render", lambda figure, kind: b"a figure")


@pytest.fixture(scope="module")
def regions(tmp_path_factory):
    """A run of a model of region features, and its data, which has no pictures."""
    folder = tmp_path_factory.mktemp("analyse")
    data = write_data(folder / "data", train=8, val=12)
    tiny_model("region_bigru").save_pretrained(folder / "run" / "best")
    (folder / "run" / "recipe.yaml").write_text(dump_recipe(recipe_for(data)))
    (folder / "run" / "metrics.jsonl").write_text(
        json.dumps({"kind": "val", "step": 3, "epoch": 0, "rsum": 9.0}) + "\n"
    )
    return folder / "run"


def analyse(capsys, *arguments, code=0):
    shown = run(capsys, "analyse", *arguments)
    assert shown.code == code, shown.err
    return shown


def test_a_run_knows_what_it_was_trained_on(regions, capsys):
    shown = analyse(capsys, regions, "--split", "val", "--examples", 2)
    lines = shown.out.splitlines()
    assert lines[0].startswith("RSUM ")
    assert lines[-1] == f"open {regions / 'analysis' / 'report.html'}"
    assert "12 images" in shown.err
    page = (regions / "analysis" / "report.html").read_text()
    assert "What run has learnt" in page
    assert 'id="training"' in page
    assert 'id="attention"' in page  # over regions
    assert "data:image/jpeg" not in page
    assert (regions / "analysis" / "figures" / "training.pdf").exists()


def test_json_is_that_of_the_file_and_nothing_else_is_on_stdout(regions, capsys, tmp_path):
    shown = analyse(
        capsys, regions, "--split", "val", "--out", tmp_path, "--json", "--similarity", "mil", "--examples", 1
    )
    printed = json.loads(shown.out)
    stored = json.loads((tmp_path / "analysis.json").read_text())
    assert printed.pop("report") == str(tmp_path / "report.html")
    assert printed == {key: stored[key] for key in printed}
    assert stored["similarity"] == "mil"
    assert stored["facts"]["split"] == "val"
    assert {"projection", "attention"} <= set(stored)


def test_pictures_are_shown_and_looked_at_as_the_model_sees_them(tmp_path, capsys):
    data = write_pictures(tmp_path / "data", train=2, val=6)
    tiny_model("resnet152_bigru", set_size=1).save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    shown = analyse(capsys, tmp_path / "model", data, "--split", "val", "--examples", 2, "--out", out)
    assert "one vector per set" in shown.out
    assert "data:image/jpeg" in (out / "report.html").read_text()
    names = sorted(file.name for file in (out / "figures").glob("attention-*-image.png"))
    assert names == ["attention-1-image.png", "attention-2-image.png"]


@pytest.mark.parametrize(("resize", "ratio"), [("squash", 4), ("crop", 1)])
def test_what_slots_look_at_is_shown_in_the_photos_own_proportions(resize, ratio, tmp_path, capsys, monkeypatch):
    data = write_pictures(tmp_path / "data", train=1, val=2)
    for path in data.glob("*.png"):
        Image.new("RGB", (400, 100), "red").save(path)
    tiny_model("efficientnet_lite0_bigru", resize=resize).save_pretrained(tmp_path / "model")
    drawn = []
    real = figures.attention_on_picture
    monkeypatch.setattr(figures, "attention_on_picture", lambda *given: drawn.append(given) or real(*given))
    analyse(capsys, tmp_path / "model", data, "--split", "val", "--examples", 1, "--out", tmp_path / "out")
    [(picture, attention)] = drawn
    assert picture.width / picture.height == pytest.approx(ratio, rel=0.02)
    assert attention.shape[1] == attention.shape[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "nowhere"], "has the splits train, val, not 'nowhere'"),
        (["--similarity", "best"], "similarity: expected one of maxmatch, "),
        (["--images", "here"], "takes no such option"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(regions, capsys, tmp_path, arguments, message):
    error = analyse(capsys, regions, "--out", tmp_path / "out", *arguments, code=1).err.splitlines()[-1]
    assert error.startswith("maxmatch: ")
    assert message in error
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_reported_before_anything_is_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(slots, "find_spec", lambda name: None if name == "umap" else object())
    error = analyse(capsys, tmp_path / "no model", "--umap", code=1).err
    assert "pip install 'maxmatch[umap]'" in error
    assert sum("deprecated" in line for line in error.splitlines()) == 1


def test_a_folder_with_figures_of_someone_else_is_left_alone(regions, capsys, tmp_path):
    (tmp_path / "figures").mkdir()
    assert "Choose another --out" in analyse(capsys, regions, "--out", tmp_path, code=1).err


def test_help_has_examples(capsys):
    assert "maxmatch analyse runs/demo/scenes-0" in analyse(capsys, "--help").out
