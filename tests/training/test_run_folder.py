"""A run's folder holds one run, of one recipe."""

import json

import pytest
from small_runs import breaking_at_step, outcome, recipe_for

from maxmatch.core.files import locked
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training import loop, state
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
    assert f"train.lr ({recipe.train.lr} there, 0.5 here)" in str(refused.value)
    assert outcome(run) == before


def test_a_finished_run_is_not_done_again(finished, monkeypatch):
    recipe, run, result = finished
    monkeypatch.setattr(loop, "prepare", lambda *arguments: pytest.fail("it began again"))
    assert train(recipe, run, resume=True) == result


def test_files_of_a_run_without_a_recipe_are_not_overwritten(tmp_path):
    recipe = recipe_for("nowhere")
    stored = tmp_path / "states" / "state-0-00000004.safetensors"
    stored.parent.mkdir()
    stored.write_text("")
    with pytest.raises(FileExistsError, match=r"holds files of a run, but no recipe\.yaml"):
        check_folder(tmp_path, recipe, resume=True)
    stored.unlink()
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


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_failed_at_its_first_step_leaves_the_folder_free(finished, tmp_path, resume):
    recipe, run, _ = finished
    with breaking_at_step(1):
        train(load_recipe(run / "recipe.yaml", ["train.lr=0.5"]), tmp_path / "run")
    assert (tmp_path / "run" / "recipe.yaml").exists()
    train(recipe, tmp_path / "run", resume=resume)
    assert load_recipe(tmp_path / "run" / "recipe.yaml") == recipe
    assert outcome(tmp_path / "run") == outcome(run)


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_training_into_a_folder_is_refused_while_the_first_runs(finished, tmp_path, monkeypatch, resume):
    recipe, run, _ = finished
    monkeypatch.setattr(state, "_PATIENCE", 0)
    with breaking_at_step(1):
        train(recipe, tmp_path / "run")
    with locked(tmp_path / "run" / "states"), pytest.raises(ValueError, match="another process"):
        train(recipe, tmp_path / "run", resume=resume)
    train(recipe, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(run)


@pytest.mark.parametrize("resume", [False, True])
def test_of_two_trainings_that_begin_at_once_the_slower_one_is_refused(finished, tmp_path, monkeypatch, resume):
    recipe, run, _ = finished
    prepare = loop.prepare

    def overtaken(*arguments):
        monkeypatch.setattr(loop, "prepare", prepare)
        train(recipe, tmp_path / "run")
        return prepare(*arguments)

    monkeypatch.setattr(loop, "prepare", overtaken)
    with pytest.raises(FileExistsError, match=str(tmp_path / "run")):
        train(recipe, tmp_path / "run", resume=resume)
    assert outcome(tmp_path / "run") == outcome(run)
