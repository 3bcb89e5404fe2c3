import json

import pytest
import torch
from small_runs import recipe_for, write_data, write_pictures
from tiny_models import tiny_model

from maxmatch.cli.main import main
from maxmatch.evaluation.report import make_report
from maxmatch.recipe.yaml_files import dump_recipe

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Figures that take no time; those of tests/report are real."""
    monkeypatch.setattr("maxmatch.evaluation.report.figures.render", lambda figure, kind: b"a figure")


@pytest.fixture
def regions(tmp_path):
    """A run of a model of region features, and its data, which has no pictures."""
    data = write_data(tmp_path / "data", train=8, val=12)
    run = tmp_path / "run"
    tiny_model("region_bigru").save_pretrained(run / "best")
    (run / "recipe.yaml").write_text(dump_recipe(recipe_for(data)))
    (run / "metrics.jsonl").write_text(json.dumps({"kind": "val", "step": 3, "epoch": 0, "rsum": 9.0}) + "\n")
    return run


def analyse(capsys, *arguments, code=0):
    """What a command printed on stdout and stderr."""
    with pytest.raises(SystemExit) as end:
        main(["analyse", *map(str, arguments)])
    shown = capsys.readouterr()
    assert (end.value.code or 0) == code, shown.err
    return shown


def test_a_run_says_itself_what_it_was_trained_on(regions, capsys):
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


def test_json_is_what_the_file_says_and_nothing_else_is_on_stdout(regions, capsys, tmp_path):
    shown = analyse(capsys, regions, "--split", "val", "--out", tmp_path / "out", "--json", "--similarity", "mil")
    printed = json.loads(shown.out)
    stored = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert printed.pop("report") == str(tmp_path / "out" / "report.html")
    assert printed == {key: stored[key] for key in printed}
    assert stored["similarity"] == "mil"
    assert stored["facts"]["split"] == "val"
    assert {"projection", "attention"} <= set(stored)


def test_pictures_are_shown_and_looked_at_as_the_model_sees_them(tmp_path, capsys):
    data = write_pictures(tmp_path / "data", train=2, val=6)
    tiny_model("resnet152_bigru").save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    analyse(capsys, tmp_path / "model", data, "--split", "val", "--examples", 2, "--out", out)
    page = (out / "report.html").read_text()
    assert "data:image/jpeg" in page
    assert sorted(file.name for file in (out / "figures").glob("attention-*-image.png")) == [
        "attention-1-image.png",
        "attention-2-image.png",
    ]


def test_a_model_of_one_vector_makes_a_report(tmp_path, capsys):
    data = write_data(tmp_path / "data", train=4, val=5, captions=1)
    tiny_model("region_bigru", set_size=1).save_pretrained(tmp_path / "model")
    shown = analyse(capsys, tmp_path / "model", data, "--split", "val", "--out", tmp_path / "out")
    assert "one vector a set" in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "nowhere"], "has the splits train, val, not 'nowhere'"),
        (["--similarity", "best"], "similarity: expected one of maxmatch, "),
        (["--images", "here"], "takes no such option"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(regions, capsys, arguments, message):
    error = analyse(capsys, regions, *arguments, code=1).err.splitlines()[-1]
    assert error.startswith("maxmatch: ")
    assert message in error
    assert not (regions / "analysis").exists()


def test_a_missing_package_is_reported_before_anything_is_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(make_report, "find_spec", lambda name: None if name == "umap" else object())
    error = analyse(capsys, tmp_path / "no model", "--umap", code=1).err
    assert "pip install 'maxmatch[umap]'" in error
    assert sum("deprecated" in line for line in error.splitlines()) == 1


def test_a_folder_with_figures_of_someone_else_is_left_alone(regions, capsys, tmp_path):
    (tmp_path / "out" / "figures").mkdir(parents=True)
    error = analyse(capsys, regions, "--out", tmp_path / "out", code=1).err
    assert "Choose another --out" in error


def test_help_has_examples(capsys):
    assert "maxmatch analyse runs/demo/scenes-0" in analyse(capsys, "--help").out
