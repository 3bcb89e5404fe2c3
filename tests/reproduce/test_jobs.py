"""A finished model is known by what it was made with: never repeated, never mistaken for another."""

import json
from dataclasses import replace

import pytest

from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.reproduce.jobs import JOB, RESULT, ReproduceOptions, ensemble, plan, read_job, single
from maxmatch.reproduce.targets import target_called

CHANGES = [
    "seed=1",
    "train.epochs=3",
    "train.lr=1e-4",
    "objective.gd_weight=0.2",
    "model.similarity=mil",
    "model.config.width=32",
    "data.scenes.images=7",
    "data.min_count=2",
    "evaluate.similarities=[top_k]",
]


def job_for(folder, *changes, split=None, protocol="plain"):
    return single(folder, load_recipe("scenes", ["data.path=here", *changes]), split, protocol)


def test_a_result_is_found_again_and_is_that_of_its_settings_only(tmp_path):
    job = job_for(tmp_path)
    assert job.result() is None
    job.finish({"figures": {"rsum": 1.0}})
    assert job_for(tmp_path).result()["figures"] == {"rsum": 1.0}
    assert not list(job.folder.glob(".*"))


@pytest.mark.parametrize("change", CHANGES)
def test_another_recipe_lies_elsewhere_and_has_no_result(change, tmp_path):
    job, other = job_for(tmp_path), job_for(tmp_path, change)
    assert other.folder != job.folder
    assert other.settings != job.settings
    job.finish({"figures": {"rsum": 1.0}})
    (other.folder).mkdir()
    (other.folder / RESULT).write_text((job.folder / RESULT).read_text())  # as if two digests were the same
    assert other.result() is None


@pytest.mark.parametrize("change", [{"split": "val"}, {"protocol": "auto"}])
def test_measured_otherwise_the_model_stays_and_the_result_does_not(change, tmp_path):
    job, other = job_for(tmp_path), job_for(tmp_path, **change)
    assert other.folder == job.folder
    job.finish({"figures": {}})
    assert other.result() is None


def test_data_elsewhere_is_other_data_but_for_generated_scenes(tmp_path):
    recipe = load_recipe("flickr8k_maxmatch", ["data.path=a"])
    other = load_recipe("flickr8k_maxmatch", ["data.path=b"])
    assert single(tmp_path, recipe, None, "plain").folder != single(tmp_path, other, None, "plain").folder
    moved = single(tmp_path, load_recipe("scenes", ["data.path=there"]), None, "plain")
    assert moved.folder == job_for(tmp_path).folder
    assert moved.settings == job_for(tmp_path).settings


@pytest.mark.parametrize("text", ["", "{", "[]", '{"figures": {}}'])
def test_a_damaged_result_counts_as_none(text, tmp_path):
    job = job_for(tmp_path)
    job.folder.mkdir()
    (job.folder / RESULT).write_text(text)
    assert job.result() is None


def test_the_process_reads_the_job_that_was_written(tmp_path):
    job = job_for(tmp_path, "model.similarity=smooth_chamfer", "model.similarity_options.alpha=8", split="val")
    job.write()
    assert read_job(job.folder) == job
    both = ensemble(tmp_path, (job, job_for(tmp_path, "seed=1", split="val")))
    both.write()
    assert read_job(both.folder) == both
    assert json.loads((both.folder / JOB).read_text())["split"] == "val"


def test_an_ensemble_is_known_by_all_its_members(tmp_path):
    first, second, third = (job_for(tmp_path, f"seed={seed}") for seed in range(3))
    assert ensemble(tmp_path, (first, second)).folder != ensemble(tmp_path, (first, third)).folder
    assert ensemble(tmp_path, (first, second)).settings != first.settings


def test_two_tables_that_need_the_same_model_share_it(tmp_path):
    ablation = plan(target_called("ablation"), ReproduceOptions(["scenes"], tmp_path))
    elements = plan(target_called("elements"), ReproduceOptions(["scenes"], tmp_path))
    assert {job.folder for job in elements.jobs} < {job.folder for job in ablation.jobs}
    coco = plan(target_called("coco"), ReproduceOptions([str(tmp_path)], tmp_path))
    shipped = plan(target_called("ablation"), ReproduceOptions([str(tmp_path)], tmp_path))
    ours = next(one.jobs[0] for one in coco.lines if one.line.recipe == "coco_region_bert" and one.jobs)
    assert shipped.lines[10].jobs[0] == ours


def test_names_say_what_is_trained(tmp_path):
    assert job_for(tmp_path).folder.name.startswith("maxmatch-k4-div-mmd-gd-isd-seed0-")
    pvse = plan(target_called("pvse"), ReproduceOptions(["scenes"], tmp_path)).lines[1]
    assert pvse.jobs[0].folder.name.startswith("mil-pie-k2-div-mmd-seed0-")
    assert replace(job_for(tmp_path), split="x").folder == job_for(tmp_path).folder
