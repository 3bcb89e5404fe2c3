"""A run's folder holds one run, of one recipe."""

import json

import pytest
from small_runs import breaking_at_step, outcome, recipe_for

from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training import loop
from maxmatch.training.loop import train
from maxmatch.training.run import check_folder


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    recipe, run = recipe_for(data, epochs=1), tmp_path_factory.mktemp("finished") / "run"
    return recipe, run, train(recipe, run)


def test_the_folder_holds_the_resolved_recipe_the_result_and_two_checkpoints(finished):
    recipe, run, result = finished
    assert load_recipe(run / "recipe.yaml") == recipe
    assert json.loads((run / "done.json").read_text()) == result
    files = ["best", "done.json", "last", "metrics.jsonl", "recipe.yaml", "states"]
    assert sorted(path.name for path in run.iterdir()) == files


def test_a_folder_with_a_run_is_refused_without_resume_or_with_another_recipe(finished):
    recipe, run, _ = finished
    before = outcome(run)
    with pytest.raises(FileExistsError, match=rf"{run}: .*--resume"):
        train(recipe, run)
    other = load_recipe(run / "recipe.yaml", ["train.lr=0.5"])
    with pytest.raises(ValueError, match="another recipe") as refused:
        train(other, run, resume=True)
    assert f"maxmatch train {run / 'recipe.yaml'} --resume --out {run}" in str(refused.value)
    assert outcome(run) == before


def test_a_finished_run_is_not_done_again(finished, monkeypatch):
    recipe, run, result = finished
    monkeypatch.setattr(loop, "prepare", lambda *arguments: pytest.fail("it began again"))
    assert train(recipe, run, resume=True) == result


def test_files_of_a_run_without_a_recipe_are_not_overwritten(tmp_path):
    recipe = recipe_for("nowhere")
    (tmp_path / "states").mkdir()
    with pytest.raises(FileExistsError, match=r"holds files of a run, but no recipe\.yaml"):
        check_folder(tmp_path, recipe, resume=True)
    (tmp_path / "states").rmdir()
    (tmp_path / "notes.txt").write_text("mine")
    check_folder(tmp_path, recipe, resume=False)


def test_an_error_before_the_first_step_leaves_no_run_and_resume_starts_one(finished, tmp_path):
    recipe, run, _ = finished
    for path, message in ((None, r"data\.path: the recipe"), ("/no/such/folder", "/no/such/folder: no such file")):
        wrong = recipe.model_copy(update={"data": recipe.data.model_copy(update={"path": path})})
        with pytest.raises(ValueError, match=message):
            train(wrong, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with breaking_at_step(2):
        train(recipe, tmp_path / "run", resume=True)
    train(load_recipe(tmp_path / "run" / "recipe.yaml"), tmp_path / "run", resume=True)  # by its own recipe file
    assert outcome(tmp_path / "run")["weights"] == outcome(run)["weights"]
