"""A run's folder holds one run, of one recipe."""

import json

import pytest
from small_runs import outcome, recipe_for, write_data

from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training import loop, step
from maxmatch.training.loop import train
from maxmatch.training.run import open_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("finished")
    recipe = recipe_for(write_data(place / "data"), epochs=1)
    return recipe, place / "run", train(recipe, place / "run")


def test_a_folder_with_a_run_is_refused_without_resume(finished):
    recipe, run, _ = finished
    before = outcome(run)
    with pytest.raises(FileExistsError, match=rf"{run}: .*--resume"):
        train(recipe, run)
    assert outcome(run) == before


def test_a_run_of_another_recipe_is_refused(finished):
    _, run, _ = finished
    other = load_recipe(run / "recipe.yaml", ["train.lr=0.5"])
    with pytest.raises(ValueError, match="another recipe") as refused:
        train(other, run, resume=True)
    assert f"maxmatch train {run / 'recipe.yaml'} --resume --out {run}" in str(refused.value)


def test_a_finished_run_is_not_done_again(finished, monkeypatch):
    recipe, run, result = finished
    monkeypatch.setattr(loop, "prepare", lambda *arguments: pytest.fail("it began again"))
    assert train(recipe, run, resume=True) == result


def test_the_folder_holds_the_resolved_recipe_the_result_and_two_checkpoints(finished):
    recipe, run, result = finished
    assert load_recipe(run / "recipe.yaml") == recipe
    assert json.loads((run / "done.json").read_text()) == result
    assert sorted(path.name for path in run.iterdir()) == [
        "best",
        "done.json",
        "last",
        "metrics.jsonl",
        "recipe.yaml",
        "states",
    ]


def test_files_of_a_run_without_a_recipe_are_not_written_over(tmp_path):
    recipe = recipe_for("nowhere")
    (tmp_path / "states").mkdir()
    with pytest.raises(FileExistsError, match=r"holds files of a run, but no recipe\.yaml"):
        open_run(tmp_path, recipe, resume=True)
    (tmp_path / "states").rmdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert open_run(tmp_path, recipe, resume=False).path == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]  # nothing is written by looking


def test_resume_begins_a_run_where_there_is_none(finished, tmp_path):
    recipe, run, _ = finished
    train(recipe, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run")["weights"] == outcome(run)["weights"]


@pytest.mark.parametrize("wrong", [{"path": None}, {"path": "/no/such/folder"}])
def test_what_fails_before_the_first_step_leaves_no_run_behind(finished, tmp_path, wrong):
    """So that the command can be given again, mended."""
    recipe, _, _ = finished
    data = recipe.data.model_copy(update=wrong)
    with pytest.raises(ValueError, match=r"data\.path: the recipe does not say where|/no/such/folder: no such file"):
        train(recipe.model_copy(update={"data": data}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(recipe, tmp_path / "run")


def test_a_run_is_resumed_by_its_own_recipe_file(finished, tmp_path, monkeypatch):
    recipe, run, _ = finished
    with monkeypatch.context() as patched:
        patched.setattr(step, "gradients", lambda *arguments: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            train(recipe, tmp_path / "run")
    train(load_recipe(tmp_path / "run" / "recipe.yaml"), tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run")["weights"] == outcome(run)["weights"]
