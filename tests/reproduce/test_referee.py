"""A study: the same budget for every method, chosen by images that nothing is trained on, frozen, and measured once."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import yaml
from finished_jobs import Ended, at_once, failed, finish, finish_as_before, search_of
from small_runs import recipe_for, write_data

from maxmatch.core.array_checks import UsageError
from maxmatch.core.files import METRICS, read_metrics
from maxmatch.data.dataset import DataError
from maxmatch.data.load import load_data, read_ids
from maxmatch.evaluation.measures import mean_measures
from maxmatch.evaluation.result_tables import render
from maxmatch.evaluation.significance import cohens_d, holm
from maxmatch.recipe.schema import Data
from maxmatch.recipe.yaml_files import RecipeError, dump_recipe, load_recipe
from maxmatch.reproduce import compare, reproduce, worker
from maxmatch.reproduce.study import STUDIES, Measure, StudyPlan, cells_of, draw_trials, is_study, load_study, studies
from maxmatch.reproduce.targets import ReproduceOptions
from maxmatch.reproduce.verdict import called
from maxmatch.training import loop

TRAIN, ASIDE, PART, VAL, EPOCHS, FINAL_EPOCHS, SEEDS, TRIALS = 24, 6, 10, 8, 1, 2, 2, 2
STUDY = {
    "description": "three tiny methods",
    "base": "tiny.yaml",
    "reference": "MaxMatch",
    "measures": ["rsum", "map_at_r", "i2t_hardest_r5"],
    "goal": {"ours": ["MaxMatch"], "rivals": ["MIL"], "lead": {"rsum": 5, "map_at_r": 2}, "at_equal": {"rsum": 1}},
    "set_aside": "ids.txt",
    "tune": {"train.lr": [1e-3, 3e-3]},
    "tuning": {"trials": TRIALS, "images": PART, "epochs": EPOCHS},
    "final": {"seeds": SEEDS, "epochs": FINAL_EPOCHS},
    "methods": {
        "MaxMatch": {},
        "MIL": {"changes": ["model.similarity=mil"], "tune": {"objective.margin": [0.1, 0.2]}},
        "one vector": {"recipe": "single.yaml"},
    },
}
MEASURES, GOAL = ["rsum", "i2t_map_at_r", "i2t_hardest_r5"], STUDY["goal"]


def written(folder, **changed):
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump({**STUDY, **changed}, sort_keys=False))
    return file


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data, recipes, ids and a study beside each other."""
    folder = tmp_path_factory.mktemp("study")
    write_data(folder / "data", train=TRAIN, val=VAL)
    for name, size in (("tiny", 4), ("single", 1)):
        recipe = recipe_for(folder / "data", epochs=9, batch_size=4, model={"set_size": size})
        (folder / f"{name}.yaml").write_text(dump_recipe(recipe))
    names = load_data(Data(path=str(folder / "data")), print).split("train")["image"].ids
    (folder / "ids.txt").write_text("\n".join(names[n] for n in (1, 4, 9, 16, 20, 23)) + "\n")
    written(folder)
    return folder


def run(place, out, study="small.yaml", jobs=1, **more):
    return reproduce(str(place / study), str(place / "data"), out=out, jobs=jobs, device="cpu", **more)


def plan_of(place, out, study="small.yaml"):
    return StudyPlan(load_study(str(place / study)), ReproduceOptions([str(place / "data")], out))


COCO_LIST = STUDIES / "coco_set_aside.txt"


def shipped_plan(name, folder):
    """Of a study that ships, without data that would decide which of its lists is taken."""
    return StudyPlan(load_study(name), ReproduceOptions([str(folder)], folder, changes=[f"data.set_aside={COCO_LIST}"]))


@pytest.fixture(scope="module")
def ran(place, tmp_path_factory):
    """A dry run, a run, and a second run; what was trained on which images, and what was measured."""
    out = tmp_path_factory.mktemp("ran") / "out"
    started, trained, shown, measured = [], [], Counter(), []

    class Counted(loop.GroupSampler):
        def plans(self, epoch, start=0):
            for plan in super().plans(epoch, start):
                shown["images"] += len(plan.groups)
                yield plan
            shown["epochs"] += 1

    def prepared(recipe, *more):
        parts = prepare(recipe, *more)
        trained.append((recipe, set(parts.train["image"].ids), set(parts.val["image"].ids)))
        return parts

    def started_one(job, device):
        started.append(job)
        return at_once(job, device)

    def read(job, *more):
        found = data_of(job, *more)
        measured.append((job.folder, found.split))
        return found

    prepare, data_of = loop.prepare, worker.data_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "start", None)  # would fail if it were called
        dry = run(place, out, dry_run=True)
        assert not out.exists()
        patch.setattr(loop, "GroupSampler", Counted)
        patch.setattr(loop, "prepare", prepared)
        patch.setattr(worker, "data_of", read)
        patch.setattr(worker, "start", started_one)
        first = run(place, out)
        patch.setattr(worker, "start", None)
        again = run(place, out)
    return SimpleNamespace(
        out=out, dry=dry, first=first, again=again, started=started, trained=trained, shown=shown, measured=measured
    )


def test_no_image_that_is_set_aside_is_in_any_training_or_in_the_final_split(place, ran):
    aside = set(read_ids(place / "ids.txt"))
    dataset = load_data(Data(path=str(place / "data")), print)
    everything, val = (set(dataset.split(name)["image"].ids) for name in ("train", "val"))
    assert len(aside) == ASIDE
    sizes = Counter(len(images) for _, images, _ in ran.trained)
    assert sizes == {PART: 3 * TRIALS, TRAIN - ASIDE: 3 * SEEDS}
    for _, images, validated in ran.trained:
        assert images <= everything - aside
        assert validated == aside  # also by which the best epoch is chosen
    assert not aside & val
    assert len({frozenset(images) for _, images, _ in ran.trained if len(images) == PART}) == 1


def test_trials_are_chosen_by_what_is_set_aside_and_val_is_looked_at_once_per_finalist(place, ran):
    plan = plan_of(place, ran.out)
    chosen = plan.read_chosen()
    finals = [job.folder for title in STUDY["methods"] for job in plan.finals(title, chosen[title].changes)]
    assert sorted(folder for folder, split in ran.measured if split == "val") == sorted(finals)
    for title in STUDY["methods"]:
        results = [trial.job.result() for trial in plan.trials(title)]
        assert {(result["split"], result["images"]) for result in results} == {("set_aside", ASIDE)}
        scores = [result["figures"]["rsum"] for result in results]
        assert (chosen[title].score, chosen[title].trial) == (max(scores), 1 + scores.index(max(scores)))
    assert {split for _, split in ran.measured} == {"set_aside", "val"}


def test_every_method_has_the_same_budget(place, ran):
    plan = plan_of(place, ran.out)
    for title in STUDY["methods"]:
        recipes = [trial.job.recipes[0] for trial in plan.trials(title)]
        assert len(recipes) == TRIALS
        assert {(one.train.epochs, one.data.max_images, one.seed) for one in recipes} == {(EPOCHS, PART, 0)}
        finals = [job.recipes[0] for job in plan.finals(title, ())]
        assert [(one.train.epochs, one.data.max_images, one.seed) for one in finals] == [
            (FINAL_EPOCHS, None, seed) for seed in range(SEEDS)
        ]


def test_a_dry_run_trains_nothing_and_counts_what_a_run_then_does(ran):
    assert (ran.dry.models, ran.dry.failed) == (0, 0)
    phases = ran.dry.targets[0].data["phases"]
    assert phases["tuning"]["models"] == 3 * TRIALS
    assert phases["finals"]["models"] == 3 * SEEDS
    assert phases["in all"] == {
        "name": "in all",
        "methods": 3,
        "models": len(ran.started),
        "done": 0,
        "epochs": ran.shown["epochs"],
        "images": ran.shown["images"],
    }
    printed = render(ran.dry.targets[0].table)
    assert "dry run" in printed
    assert ran.first.targets[0].data["budget"]["phases"] == phases


def test_a_second_run_trains_nothing_and_gives_the_same(ran):
    assert ran.first.models == len(ran.started) == 3 * (TRIALS + SEEDS)
    assert ran.again.failed == 0
    for key in ("rows", "tuning"):
        assert ran.again.targets[0].data[key] == ran.first.targets[0].data[key]
    assert ran.again.targets[0].data["budget"]["phases"]["in all"]["done"] == ran.first.models


def test_the_table_has_tuned_values_and_every_measure_that_was_named(ran):
    made = ran.first.targets[0]
    assert made.data["measures"] == MEASURES
    assert (made.data["measure"], made.data["named_late"]) == ("rsum", [])
    lines = (ran.out / "small.md").read_text().splitlines()
    for row, line in zip(made.data["rows"], lines[2:5], strict=True):
        assert row["title"]["method"] in line
        for name in MEASURES:
            assert f"{row['ours'][name]['mean']:.1f} ± {row['ours'][name]['deviation']:.1f}" in line
        assert f"lr {json.dumps(row['chosen']['values']['train.lr'])}" in line
    assert "margin" in lines[3]
    assert json.loads((ran.out / "small.json").read_text()) == json.loads(json.dumps(ran.again.targets[0].data))


def test_tests_against_the_reference_are_by_every_measure_and_corrected_for_all(ran):
    reference, *rivals = ran.first.targets[0].data["rows"]
    assert (reference["against_reference"], reference["tests"]) == (None, {})
    tests = [row["tests"][name] for row in rivals for name in MEASURES]
    for name in ("p", "p_seeds"):  # a p that is not known counts as one that is large
        expected = holm([1.0 if test[name] is None else test[name] for test in tests])
        known = [None if test[name] is None else p for test, p in zip(tests, expected, strict=True)]
        assert [test[f"{name}_holm"] for test in tests] == known
    for row in rivals:
        by_rsum = dict(row["tests"]["rsum"])
        assert row["against_reference"] == {"rsum": by_rsum.pop("difference"), **by_rsum}
        for name, test in row["tests"].items():
            first, own = (one["ours"][name]["seeds"] for one in (reference, row))
            assert test["difference"] == pytest.approx(np.mean(own) - np.mean(first))
            assert test["effect_size"] == cohens_d(first, own)
    (table,) = (one for one in ran.first.targets[0].further if one.title == "Against MaxMatch")
    assert [(row["measure"], row["method"]) for row in table.rows] == [
        (called(name), row["title"]["method"]) for name in MEASURES for row in rivals
    ]
    assert "2 rivals × 3 measures (Holm)" in table.notes[0]
    assert "## Against MaxMatch" in (ran.out / "small.md").read_text()


def test_beyond_rsum_has_all_captions_the_hardest_what_sets_say_and_bytes(place, ran):
    (table,) = (one for one in ran.first.targets[0].further if one.title == "Beyond RSUM")
    shown = {column.name for column in table.columns}
    for depth in (5, 10, 20):
        assert f"i2t_coverage_{depth}" in shown
    assert {"i2t_r_precision", "t2i_hardest_r1", "image_content_log_variance", "slot_variation"} <= shown
    single = load_recipe(str(place / "single.yaml")).model.resolved()
    bytes_of = [row["image_bytes_float16"] for row in table.rows]
    assert bytes_of == [4 * single.width * 2, 4 * single.width * 2, single.width * 2]  # K · D · 2
    assert not table.notes


def test_the_result_says_whether_the_goal_is_met(ran):
    made = ran.first.targets[0]
    goal, last = made.data["goal"], made.further[-1]
    assert [(one["method"], one["measure"]) for one in goal["claims"]] == [
        ("MaxMatch", "rsum"),
        ("MaxMatch", "i2t_map_at_r"),
    ]
    assert goal["tests"]["MaxMatch"]["MIL"]["rsum"]["difference"] == pytest.approx(
        -made.data["rows"][1]["tests"]["rsum"]["difference"]
    )
    assert last.title == ("Goal: met" if goal["met"] else "Goal: not met")
    page = (ran.out / "small.html").read_text()
    assert f"<h2>{last.title}</h2>" in page
    for one in goal["claims"]:
        for why in one["why_not"]:
            assert why in page
            assert why in render(last)


def test_the_page_stands_alone_with_table_curves_and_trials(ran):
    page = (ran.out / "small.html").read_text()
    assert ran.out / "small.html" in ran.first.targets[0].files
    assert 'src="data:image/png;base64,' in page
    assert "http://" not in page.replace("http-equiv", "")
    assert page.count(">chosen<") == 3
    for title in STUDY["methods"]:
        assert f"<h3>{title}</h3>" in page
    scores = [trial["score"] for rows in ran.first.targets[0].data["tuning"].values() for trial in rows]
    assert len(scores) == 3 * TRIALS
    assert all(f"{score:.1f}" in page for score in scores)


def test_curves_of_the_finalists_are_by_epoch_on_the_images_set_aside(place, ran):
    plan = plan_of(place, ran.out)
    job = plan.finals("MIL", plan.read_chosen()["MIL"].changes)[0]
    assert [record["epoch"] for record in read_metrics(job.folder, "val")] == list(range(FINAL_EPOCHS))
    assert (ran.out / "small-curves.png").stat().st_size > 1000


# Without training: results that are made up.


@pytest.fixture
def made_up(monkeypatch):
    """In place of training: how easy it is for a job, or why it fails. started: the jobs."""
    found = SimpleNamespace(easy=lambda job: 0.5, started=[])

    def start(job, device):
        found.started.append(job)
        easy = found.easy(job)
        if isinstance(easy, str):
            return failed(job, easy)
        job.write()
        finish(job, search_of(easy, job.recipes[0].seed), job.split)
        return Ended()

    monkeypatch.setattr(worker, "start", start)
    monkeypatch.setattr(compare, "draw_curves", lambda plan, outcomes: None)
    monkeypatch.setattr("maxmatch.reproduce.referee.draw_curves", lambda plan, outcomes: None)
    return found


def rate(job):
    return job.recipes[0].train.lr


def tuning_only(jobs):
    return [job for job in jobs if job.split == "set_aside"]


def test_what_was_chosen_is_frozen_before_the_finals_and_not_chosen_again(place, tmp_path, made_up):
    plan = plan_of(place, tmp_path)
    present = []

    def easy(job):
        if job.split == "val":
            present.append(plan.chosen_file.exists())
        return 0.9 if rate(job) == 1e-3 else 0.1

    made_up.easy = easy
    run(place, tmp_path)
    assert present == [True] * 3 * SEEDS
    chosen = plan.read_chosen()
    before = plan.chosen_file.read_text()
    assert {one.values["train.lr"] for one in chosen.values()} == {1e-3}
    for title in STUDY["methods"]:  # had they been chosen now, others would be
        for trial in plan.trials(title):
            finish(trial.job, search_of(0.1 if rate(trial.job) == 1e-3 else 0.9, 0), "set_aside")
    made_up.started.clear()
    again = run(place, tmp_path)
    assert not made_up.started
    assert plan.chosen_file.read_text() == before
    assert {row["chosen"]["values"]["train.lr"] for row in again.targets[0].data["rows"]} == {1e-3}


def test_by_hand_the_frozen_values_are_those_of_the_finals(place, tmp_path, made_up):
    run(place, tmp_path)
    plan = plan_of(place, tmp_path)
    chosen = plan.read_chosen()
    (other,) = (one for one in plan.trials("MaxMatch") if list(one.changes) != list(chosen["MaxMatch"].changes))
    update = {"trial": 2, "values": other.values, "changes": other.changes}
    plan.write_chosen({**chosen, "MaxMatch": chosen["MaxMatch"].model_copy(update=update)})
    made_up.started.clear()
    run(place, tmp_path)
    assert [rate(job) for job in made_up.started] == [other.values["train.lr"]] * SEEDS


def test_a_method_that_is_added_later_is_tuned_and_the_others_stay(place, tmp_path, made_up):
    two = {title: STUDY["methods"][title] for title in ("MaxMatch", "MIL")}
    for name in ("data", "ids.txt", "tiny.yaml", "single.yaml"):
        (tmp_path / name).symlink_to(place / name)
    written(tmp_path, methods=two)
    run(tmp_path, tmp_path / "out")
    made_up.started.clear()
    written(tmp_path)
    run(tmp_path, tmp_path / "out")
    assert len(made_up.started) == TRIALS + SEEDS
    assert {tower.set_size for job in made_up.started for tower in job.recipes[0].model.resolved().towers.values()} == {
        1
    }
    assert list(plan_of(tmp_path, tmp_path / "out").read_chosen()) == list(STUDY["methods"])


def test_what_fails_is_reported_and_does_not_stop_the_rest(place, tmp_path, made_up):
    def easy(job):
        recipe = job.recipes[0]
        if recipe.model.similarity == "mil" and job.split == "set_aside":
            return "no room left."
        if "-k1-" in job.folder.name and rate(job) == 1e-3:
            return "it diverged."
        return 0.5

    made_up.easy, said = easy, []
    found = run(place, tmp_path, say=said.append)
    assert found.failed == TRIALS + 1
    assert any("MIL" in line and "not in the finals" in line for line in said)
    (cure,) = (line for line in said if "small-chosen.yaml" in line and "try them again" in line)
    assert "one vector: 1 of its 2 trials" in cure
    first, mil, single = found.targets[0].data["rows"]
    assert mil["chosen"] is None
    assert mil["not_trained"]
    assert len(first["ours"]["rsum"]["seeds"]) == len(single["ours"]["rsum"]["seeds"]) == SEEDS
    assert single["chosen"]["failed"] == 1
    notes = "\n".join(found.targets[0].table.notes)
    assert "one vector: 1 of its 2 trials failed" in notes
    assert "it diverged." in (tmp_path / "small.html").read_text()
    made_up.easy = lambda job: 0.5
    made_up.started.clear()
    assert run(place, tmp_path).failed == 0
    assert len(made_up.started) == TRIALS + SEEDS  # MIL's; what is frozen is not tried again


def test_a_method_with_a_trial_that_was_killed_is_not_frozen_and_is_tried_again(place, tmp_path, made_up, monkeypatch):
    whole = worker.start

    def start(job, device):
        ended = whole(job, device)
        killed = job.recipes[0].model.similarity == "mil" and rate(job) == 1e-3
        if killed:
            (job.folder / "result.json").unlink()
        return Ended(-9) if killed else ended

    with monkeypatch.context() as patch:
        patch.setattr(worker, "start", start)
        said = []
        run(place, tmp_path, say=said.append)
    assert any("MIL" in line and "stopped" in line for line in said)
    made_up.started.clear()
    assert run(place, tmp_path).failed == 0
    assert len(made_up.started) == 1 + SEEDS  # the one that was killed, and then MIL's finals


def test_interrupted_in_the_tuning_nothing_is_frozen_and_the_same_command_resumes(place, tmp_path, made_up):
    def easy(job):
        if len(made_up.started) == 3:
            raise KeyboardInterrupt
        return 0.5

    made_up.easy = easy
    with pytest.raises(KeyboardInterrupt):
        run(place, tmp_path)
    assert not plan_of(place, tmp_path).chosen_file.exists()
    done = [job.folder for job in made_up.started[:2]]
    made_up.easy = lambda job: 0.5
    made_up.started.clear()
    run(place, tmp_path)
    assert not set(done) & {job.folder for job in made_up.started}
    assert len(tuning_only(made_up.started)) == 3 * TRIALS - 2


def test_without_jobs_the_tables_show_what_is_done(place, tmp_path, made_up):
    title = next(iter(STUDY["methods"]))
    plan = plan_of(place, tmp_path)
    for trial in plan.trials(title):
        finish(trial.job, search_of(0.5, 0), "set_aside")
    said = []
    found = run(place, tmp_path, jobs=0, say=said.append).targets[0]
    assert not made_up.started
    assert plan.read_chosen().keys() == {title}
    shown = {row["method"]: row["rsum"] for row in found.table.rows}
    assert shown == {one: "not trained yet" if one == title else "not trained" for one in STUDY["methods"]}
    assert any("not started" in line for line in said)


def test_without_jobs_the_features_of_the_models_need_not_be_there(place, tmp_path, made_up, monkeypatch):
    read, asked = load_data, []

    def load(data, *more):
        asked.append(data.features)
        return read(data.model_copy(update={"features": None}), *more)

    gone = ["data.features=gone"]
    with monkeypatch.context() as patch:
        patch.setattr("maxmatch.reproduce.referee.load_data", load)
        run(place, tmp_path, changes=gone)
    assert set(asked) == {"gone"}
    made_up.started.clear()
    found = run(place, tmp_path, jobs=0, changes=gone)
    assert (found.failed, made_up.started) == (0, [])
    assert {len(row["ours"]["rsum"]["seeds"]) for row in found.targets[0].data["rows"]} == {SEEDS}
    for more in ({}, {"dry_run": True}):
        with pytest.raises(DataError, match="gone"):
            run(place, tmp_path, changes=gone, **more)


def test_only_some_methods_are_tuned_and_trained_and_the_tables_show_the_rest_as_it_was_left(place, tmp_path, made_up):
    dry = run(place, tmp_path, dry_run=True, only=["MIL"]).targets[0]
    assert dry.data["phases"]["in all"]["models"] == TRIALS + SEEDS
    assert any("MIL" in note for note in dry.table.notes)
    first = run(place, tmp_path, only=["MIL"])
    assert (first.models, first.failed, len(made_up.started)) == (TRIALS + SEEDS, 0, TRIALS + SEEDS)
    assert {job.recipes[0].model.similarity for job in made_up.started} == {"mil"}
    assert plan_of(place, tmp_path).read_chosen().keys() == {"MIL"}
    assert [row["rsum"] == "not trained" for row in first.targets[0].table.rows] == [True, False, True]

    made_up.started.clear()
    second = run(place, tmp_path, only=["MaxMatch"])
    assert len(made_up.started) == second.models == TRIALS + SEEDS
    rows = second.targets[0].data["rows"]
    assert [bool(row["ours"]) for row in rows] == [True, True, False]
    against, goal = second.targets[0].further[-2:]
    assert "2 rivals × 3 measures (Holm)" in against.notes[0]  # the family is that of the study
    assert against.notes[1].startswith("Compared: MIL. The other 1 ")
    assert "1 rivals" in goal.notes[-1]
    by = [rows[1]["tests"][name]["p"] for name in MEASURES]
    assert [rows[1]["tests"][name]["p_holm"] for name in MEASURES] == holm([*by, 1.0, 1.0, 1.0])[:3]

    made_up.started.clear()
    whole = run(place, tmp_path)  # what is left
    assert (whole.models, len(made_up.started)) == (TRIALS + 3 * SEEDS, TRIALS + SEEDS)
    assert len(whole.targets[0].further[-2].notes) == 1


def test_what_another_command_chooses_meanwhile_stays_frozen(place, tmp_path, made_up):
    def easy(job):
        if len(made_up.started) == 1:  # the first trial of this command: the other one begins and ends
            run(place, tmp_path, only=["MIL"])
        return 0.5

    made_up.easy = easy
    found = run(place, tmp_path, only=["MaxMatch"])
    assert list(plan_of(place, tmp_path).read_chosen()) == ["MaxMatch", "MIL"]
    assert [bool(row["ours"]) for row in found.targets[0].data["rows"]] == [True, True, False]


def test_an_unknown_method_is_refused_with_near_ones_and_only_is_of_studies(place, tmp_path):
    with pytest.raises(UsageError, match=r"small has no method 'maxmach'.*'MaxMatch'\?"):
        run(place, tmp_path, only=["maxmach"])
    with pytest.raises(UsageError, match=r"'SetDivs'.*MaxMatch, MIL, one vector"):
        run(place, tmp_path, only=["MIL", "SetDivs"])
    with pytest.raises(UsageError, match="study"):
        reproduce("ablation", "scenes", out=tmp_path, only=["MIL"])


def test_finals_of_an_older_version_open_and_are_marked_as_not_measured(place, tmp_path, made_up):
    run(place, tmp_path)
    plan = plan_of(place, tmp_path)
    chosen = plan.read_chosen()
    for title in STUDY["methods"]:  # as it was before: RSUM alone, and no list of measures
        for trial in plan.trials(title):
            finish_as_before(trial.job, search_of(0.5, 0), "set_aside")
        for seed, job in enumerate(plan.finals(title, chosen[title].changes)):
            finish_as_before(job, search_of(0.5, seed), "val")
    old = yaml.safe_load(plan.chosen_file.read_text())
    del old["measures"]
    plan.chosen_file.write_text(yaml.safe_dump(old))
    made_up.started.clear()
    found = run(place, tmp_path).targets[0]
    assert not made_up.started
    assert found.data["named_late"] == MEASURES[1:]
    beyond, against, goal = found.further
    for row in found.table.rows:
        assert row["rsum"] != "not measured"
        assert row["i2t_map_at_r"] == "not measured"
    assert {row["i2t_coverage_10"] for row in beyond.rows} == {row["image_bytes_float16"] for row in beyond.rows}
    assert {row["i2t_coverage_10"] for row in beyond.rows} == {"not measured"}
    assert "result.json" in beyond.notes[0]
    untested = {row["measure"] for row in against.rows if row["difference"] == "not tested"}
    assert untested == {called(name) for name in MEASURES[1:]}
    assert all(called(name) in against.notes[1] for name in MEASURES[1:])
    assert goal.title == "Goal: not met"
    assert "not measured" in (tmp_path / "small.html").read_text()

    job = plan.finals("MIL", chosen["MIL"].changes)[0]
    finish(job, search_of(0.5, 0), "val")  # one of its two models is measured again
    again = run(place, tmp_path).targets[0]
    assert again.table.rows[1]["i2t_map_at_r"] == "not measured"


def linked(place, folder, **changed):
    """The study with some changes, in a folder of its own."""
    for name in ("data", "ids.txt", "tiny.yaml", "single.yaml"):
        (folder / name).symlink_to(place / name)
    return written(folder, **changed)


def test_trials_are_chosen_by_the_first_measure_or_by_the_one_that_is_marked(place, tmp_path, made_up, monkeypatch):
    def start(job, device):
        job.write()
        early = rate(job) == 1e-3  # finds all captions early, but is behind in RSUM
        finish(job, search_of(0.5 if early else 0.7, 0, further=0 if early else 200), job.split)
        return Ended()

    monkeypatch.setattr(worker, "start", start)
    for number, (changed, best) in enumerate(
        [({}, 3e-3), ({"measures": ["map_at_r", "rsum"]}, 1e-3), ({"measure": "map_at_r"}, 1e-3)]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        linked(place, folder, **changed)
        found = run(folder, folder / "out").targets[0].data
        assert {row["chosen"]["values"]["train.lr"] for row in found["rows"]} == {best}
        assert found["measure"] == ("rsum" if number == 0 else "i2t_map_at_r")
    written(folder)  # by RSUM
    with pytest.raises(UsageError, match=r"small-chosen.yaml: was chosen by i2t_map_at_r"):
        run(folder, folder / "out")


def test_trials_that_lack_the_measure_are_named(place, tmp_path, made_up):
    linked(place, tmp_path)
    run(tmp_path, tmp_path / "out")
    plan = plan_of(tmp_path, tmp_path / "out")
    for trial in plan.trials("MaxMatch"):
        finish_as_before(trial.job, search_of(0.5, 0), "set_aside")
    plan.chosen_file.unlink()
    written(tmp_path, measure="map_at_r")
    with pytest.raises(UsageError, match=r"maxmatch-k4.*i2t_map_at_r.*result.json"):
        run(tmp_path, tmp_path / "out")


def test_measures_named_when_values_were_frozen_are_kept_and_later_ones_marked(place, tmp_path, made_up):
    linked(place, tmp_path, measures=["rsum"], goal=None)
    assert run(tmp_path, tmp_path / "out").targets[0].data["named_late"] == []
    late = {**STUDY["methods"], "later": {"changes": ["model.similarity=chamfer"]}}
    written(tmp_path, measures=["rsum", "coverage_10"], goal=None, methods=late)
    for _ in range(2):  # the first of them writes the values of one more method
        found = run(tmp_path, tmp_path / "out").targets[0]
        assert found.data["named_late"] == ["i2t_coverage_10"]
        assert "i→t coverage in 10" in found.further[-1].notes[-1]
    assert found.data["goal"] is None


def test_seeds_base_and_changes_of_the_command_count(place, tmp_path, made_up):
    run(place, tmp_path, seeds=1, base=str(place / "single.yaml"), changes=["train.clip=0.5"])
    finals = [job for job in made_up.started if job.split == "val"]
    assert len(finals) == 2  # MaxMatch and the single vector are now one model, which is trained once
    assert {job.recipes[0].train.clip for job in made_up.started} == {0.5}


# Trials.


def test_trials_begin_with_the_own_values_and_try_all_others_about_equally_often():
    grid = {"a": [1, 2, 3], "b": [0.1, 0.2], "c": ["x", "y"]}
    own = {"a": 1, "b": 0.5, "c": "x"}
    drawn = draw_trials(grid, own, 7, seed=0)
    assert drawn == draw_trials(grid, own, 7, seed=0)
    assert drawn != draw_trials(grid, own, 7, seed=1)
    assert drawn[0] == own
    assert len({json.dumps(one) for one in drawn}) == 7
    for key, values in grid.items():
        times = Counter(one[key] for one in drawn)
        assert set(times) >= set(values)
        assert max(times[value] for value in values) - min(times[value] for value in values) <= 1
    assert len(draw_trials(grid, own, 13, seed=0)) == 13  # all twelve, and its own


def test_the_own_values_are_not_tried_twice_and_too_small_a_grid_is_refused(place, tmp_path):
    assert draw_trials({"a": [1, 2]}, {"a": 2}, 2, seed=0) == [{"a": 2}, {"a": 1}]
    with pytest.raises(ValueError, match="expected 3 trials"):
        draw_trials({"a": [1, 2]}, {"a": 2}, 3, seed=0)
    for name in ("data", "ids.txt", "tiny.yaml", "single.yaml"):
        (tmp_path / name).symlink_to(place / name)
    written(tmp_path, tuning={"trials": 9})
    with pytest.raises(UsageError, match=r"small: MaxMatch: expected 9 trials"):
        run(tmp_path, tmp_path / "out", dry_run=True)


# Files.


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"reference": "SetDiv"}, r"small.yaml:\d+: reference: .*MaxMatch, MIL"),
        ({"tuning": {"trails": 3}}, r"small.yaml:\d+: .*trails.*trials"),
        ({"methods": {"MaxMatch": {}}}, r"small.yaml:\d+: methods"),
        ({"measure": "taste"}, r"small.yaml:\d+: measure"),
        ({"measure": "i2t_r1"}, r"small.yaml:\d+: measure: .*rsum, i2t_map_at_r.*'i2t_r1'"),
        ({"measures": ["rsum", "taste"]}, r"small.yaml:\d+: measures.1"),
        ({"measures": ["rsum", "map_at_r", "i2t_map_at_r"]}, r"small.yaml:\d+: measures: .*once"),
        ({"measures": []}, r"small.yaml:\d+: measures"),
        ({"goal": {**GOAL, "rivals": ["SetDiv"]}}, r"small.yaml:\d+: goal.rivals: .*'SetDiv'"),
        ({"goal": {**GOAL, "ours": ["MIL"]}}, r"small.yaml:\d+: goal.rivals: .*ours"),
        ({"goal": {**GOAL, "lead": {"coverage_10": 2}}}, r"small.yaml:\d+: goal.lead: .*'i2t_coverage_10'"),
        ({"goal": {**GOAL, "lead": {"rsum": -1}}}, r"small.yaml:\d+: goal.lead.rsum"),
        ({"tune": {"train.lr": []}}, r"train.lr: no value"),
    ],
)
def test_a_wrong_study_is_refused_with_the_line(changed, expected, tmp_path):
    with pytest.raises(RecipeError, match=expected):
        load_study(str(written(tmp_path, **changed)))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"final": {"split": "train"}}, "final.split"),
        ({"final": {"split": "set_aside"}}, "final.split"),
        ({"final": {"split": "nowhere"}}, "nowhere"),
        ({"tune": {"train.epochs": [1, 2]}}, "two trials are the same"),
        ({"tune": {"train.lrr": [1, 2]}}, r"small: MaxMatch: .*lrr"),
        ({"set_aside": "none.txt"}, "none.txt"),
    ],
)
def test_what_would_be_unfair_or_fail_is_refused_before_the_first_training(changed, expected, place, tmp_path):
    for name in ("data", "ids.txt", "tiny.yaml", "single.yaml"):
        (tmp_path / name).symlink_to(place / name)
    written(tmp_path, **changed)
    with pytest.raises((ValueError, OSError), match=expected):
        run(tmp_path, tmp_path / "out", dry_run=True)


@pytest.mark.parametrize(
    "changed",
    [
        {"tune": {"train.lr": [1e-3, 3e-3], "objective.isd_margin": [0.3, 0.6]}},
        {"tune": {"train.lr": [1e-3, 3e-3, 1e-2]}, "tuning": {**STUDY["tuning"], "trials": 3}},
        {"tuning": {**STUDY["tuning"], "images": PART + 1}},
        {"set_aside": "other.txt"},
    ],
)
def test_values_that_were_chosen_with_another_grid_budget_or_list_are_refused(changed, place, tmp_path, made_up):
    for name in ("data", "ids.txt", "tiny.yaml", "single.yaml"):
        (tmp_path / name).symlink_to(place / name)
    (tmp_path / "other.txt").write_text("\n".join(read_ids(place / "ids.txt")[1:]))
    written(tmp_path)
    run(tmp_path, tmp_path / "out")
    written(tmp_path, **changed)
    with pytest.raises(UsageError, match=r"small-chosen.yaml: MaxMatch: .*other trials"):
        run(tmp_path, tmp_path / "out", dry_run=True)


def test_a_model_is_known_by_what_is_set_aside_and_not_by_where_the_list_lies(place, tmp_path):
    for name in ("data", "tiny.yaml", "single.yaml"):
        (tmp_path / name).symlink_to(place / name)
    written(tmp_path)

    def folder(ids):
        (tmp_path / "ids.txt").write_text("# again\n" + "\n".join(ids))
        options = ReproduceOptions([str(place / "data")], tmp_path)
        return StudyPlan(load_study(str(tmp_path / "small.yaml")), options).trials("MaxMatch")[0].job.folder

    known = read_ids(place / "ids.txt")
    assert folder(known[::-1]) == plan_of(place, tmp_path).trials("MaxMatch")[0].job.folder
    assert folder(known[1:]) != folder(known)


def sets_aside(folder, lists, *changes):
    """The list that a study of the data takes, and the folder of a model."""
    linked_study = written(folder, set_aside=lists)
    plan = StudyPlan(load_study(str(linked_study)), ReproduceOptions([str(folder / "data")], folder, changes=changes))
    job = plan.finals("MaxMatch", ())[0]
    return Path(job.recipes[0].data.set_aside).name, job.folder


def test_of_several_lists_a_study_takes_the_first_that_has_training_images_of_the_data_only(place, tmp_path):
    linked(place, tmp_path)
    ids = read_ids(place / "ids.txt")
    (tmp_path / "elsewhere.txt").write_text("\n".join([*ids, "nobody"]))
    (tmp_path / "fewer.txt").write_text("\n".join(ids[1:]))
    alone = sets_aside(tmp_path, "ids.txt")
    assert alone[0] == "ids.txt"
    assert sets_aside(tmp_path, ["elsewhere.txt", "ids.txt", "fewer.txt"]) == alone  # and the model is the same one
    assert sets_aside(tmp_path, ["fewer.txt", "ids.txt"])[0] == "fewer.txt"
    (tmp_path / "nobody.txt").write_text("nobody\nnothing\n")
    written(tmp_path, set_aside=["nobody.txt", "elsewhere.txt"])
    with pytest.raises(ValueError, match=r"elsewhere.txt: 1 of its ids, such as nobody.*training images of this data"):
        run(tmp_path, tmp_path / "out", dry_run=True)


def test_a_list_that_the_user_names_is_set_aside_in_place_of_the_studys(place, tmp_path):
    linked(place, tmp_path)
    fewer = tmp_path / "fewer.txt"
    fewer.write_text("\n".join(read_ids(place / "ids.txt")[1:]))
    assert sets_aside(tmp_path, "none.txt", f"data.set_aside={fewer}")[0] == "fewer.txt"
    written(tmp_path)
    dry = run(tmp_path, tmp_path / "out", dry_run=True, changes=[f"data.set_aside={fewer}"])
    assert dry.targets[0].data["set_aside"] == ASIDE - 1


def test_the_studies_that_ship_set_aside_photos_of_coco_or_of_flickr8k():
    assert [len(set(read_ids(STUDIES / f"{name}_set_aside.txt"))) for name in ("coco", "flickr8k")] == [2000, 600]
    for name in studies():
        assert [Path(file).name for file in load_study(name).set_aside] == [
            "coco_set_aside.txt",
            "flickr8k_set_aside.txt",
        ]


def test_a_study_may_name_every_mean_over_queries():
    (literal, *_) = get_args(Measure)
    assert list(get_args(literal)) == ["rsum", *mean_measures([search_of(0.5, 0)])]


def test_without_trials_all_go_into_the_finals_as_they_are(place, tmp_path, made_up):
    for name in ("data", "ids.txt", "tiny.yaml", "single.yaml"):
        (tmp_path / name).symlink_to(place / name)
    written(tmp_path, tune={}, tuning={"trials": 0}, methods={"MaxMatch": {}, "MIL": {"recipe": "single.yaml"}})
    dry = run(tmp_path, tmp_path / "out", dry_run=True).targets[0].data
    assert dry["phases"]["tuning"]["models"] == 0
    found = run(tmp_path, tmp_path / "out").targets[0]
    assert {(job.split, job.recipes[0].train.lr) for job in made_up.started} == {("val", 3e-3)}
    assert len(made_up.started) == 2 * SEEDS
    assert not plan_of(tmp_path, tmp_path / "out").chosen_file.exists()
    assert "stuck" not in {column.name for column in found.table.columns}  # no model has a record
    assert found.data["tuning"] == {"MaxMatch": [], "MIL": []}
    written(tmp_path, tuning={"trials": 0})
    with pytest.raises(RecipeError, match="with no trials nothing is tuned"):
        run(tmp_path, tmp_path / "other")


def test_a_model_is_stuck_whose_last_epoch_has_a_triplet_loss_of_twice_the_margin(place, tmp_path, made_up):
    """Whatever its RSUM. One seed of MaxMatch learns at last; MIL has no record, and the last only of its warm-up."""
    warm = ["objective.mean_negatives_epochs=9"]
    methods = {"MaxMatch": {}, "MIL": {"changes": ["model.similarity=mil"]}, "warm-up": {"changes": warm}}
    linked(place, tmp_path, tune={}, tuning={"trials": 0}, methods=methods, goal=None)
    plan = plan_of(tmp_path, tmp_path / "out")
    for title in ("MaxMatch", "warm-up"):
        for job, last in zip(plan.finals(title, ()), (0.996, 0.9), strict=True):
            level = 2 * job.recipes[0].objective.margin
            epochs = [(0, 1.2), (1, last - 0.1), (1, last + 0.1)]
            records = [{"kind": "train", "step": 5, "epoch": epoch, "triplet": at * level} for epoch, at in epochs]
            job.folder.mkdir(parents=True)
            (job.folder / METRICS).write_text("\n".join(map(json.dumps, records)) + "\n")
    found = run(tmp_path, tmp_path / "out").targets[0]
    assert [row["stuck"] for row in found.table.rows] == [f"1 of {SEEDS} seeds", None, None]
    assert [row["stuck"] for row in found.data["rows"]] == [[True, False], [None] * SEEDS, [None] * SEEDS]
    assert any("2 × margin" in note for note in found.table.notes)


def test_the_dose_of_the_contrastive_term_is_the_same_for_each_similarity(tmp_path):
    plan = shipped_plan("dose", tmp_path)
    recipes = {title: plan.finals(title, ())[0].recipes[0] for title in plan.study.methods}
    doses = {}
    for recipe in recipes.values():
        if not recipe.objective.gd_weight:
            dose = recipe.objective.con_weight, recipe.objective.temperature
            doses.setdefault(recipe.model.similarity, set()).add(dose)
        assert recipe.objective.mean_negatives_epochs == 0
    assert set(doses) == {"maxmatch", "smooth_chamfer", "mil"}
    assert all(doses[name] == {(0, 0.05), (0.001, 0.01), (0.01, 0.05), (0.1, 0.05)} for name in doses)


@pytest.mark.parametrize(
    "name", ["finalists", "finalists_finetuned", "finalists_flickr8k", "hypotheses", "referee", "referee_flickr8k"]
)
def test_a_study_that_ships_names_its_measures_and_its_goal(name):
    study = load_study(name)
    assert study.main == "rsum"
    assert {"rsum", "i2t_map_at_r", "i2t_coverage_10"} <= set(study.measures)
    assert set(study.goal.rivals) == {"MIL", "SetDiv", "fixed pairing"}
    assert study.goal.lead == {"rsum": 5, "i2t_map_at_r": 2, "i2t_coverage_10": 2}
    assert study.goal.at_equal == {"rsum": 1}
    for title in (*study.goal.ours, *study.goal.rivals):
        recipe = load_recipe(study.base, study.methods[title].changes)
        assert (recipe.model.similarity == "maxmatch") == (title in study.goal.ours)


@pytest.mark.parametrize(
    ("name", "reference", "methods"),
    [
        ("referee", "MaxMatch", 16),
        ("hypotheses", "MaxMatch (Div + MMD)", 8),
        pytest.param("referee_flickr8k", "MaxMatch", 16, marks=pytest.mark.slow),
    ],
)
def test_a_study_that_ships_gives_every_method_the_same_budget(name, reference, methods, tmp_path):
    shipped = ["dose", "finalists", "finalists_finetuned", "finalists_flickr8k", "finalists_k8", "hypotheses"]
    assert list(studies()) == [*shipped, "one_vector", "referee", "referee_flickr8k", "referee_rest"]
    assert is_study(name)
    assert not is_study("ablation")
    plan = shipped_plan(name, tmp_path)
    study = plan.study
    assert study.reference == reference
    assert len(study.methods) >= methods
    for title in study.methods:
        trials = plan.trials(title)
        assert len(trials) == study.tuning.trials == 6
        assert len(plan.finals(title, trials[1].changes)) == study.final.seeds
        assert {trial.job.recipes[0].similarities for trial in trials} == {(trials[0].job.recipes[0].model.similarity,)}
        trial, final = trials[0].job.recipes[0], plan.finals(title, ())[0].recipes[0]
        shown = (trial.train.batch_captions or trial.data.captions_per_image) / trial.data.captions_per_image
        assert (trial.train.epochs * shown, final.train.epochs * shown) == (study.tuning.epochs, study.final.epochs)
        assert final.train.early_stop * shown == study.final.early_stop
        assert trial.train.validate_every * shown == final.train.validate_every * shown == 1


def test_a_study_may_extend_another_and_files_lie_beside_the_study_that_names_them(tmp_path):
    (tmp_path / "few").mkdir()
    written(tmp_path / "few")
    (tmp_path / "mine.yaml").write_text("extends: few/small.yaml\ntuning: {epochs: 3}\nmethods: {MIL: {passes: 2}}\n")
    base, mine = load_study(str(tmp_path / "few" / "small.yaml")), load_study(str(tmp_path / "mine.yaml"))
    assert (mine.name, mine.description) == ("mine", "")
    assert (mine.tuning.epochs, mine.methods["MIL"].passes) == (3, 2)
    assert mine.tuning.model_copy(update={"epochs": base.tuning.epochs}) == base.tuning
    assert mine.methods.keys() == base.methods.keys()
    assert (mine.set_aside, mine.base) == (base.set_aside, base.base)  # of the folder `few`
    (tmp_path / "mine.yaml").write_text("extends: few/small.yaml\nset_aside: own.txt\n")
    assert load_study(str(tmp_path / "mine.yaml")).set_aside == (str(tmp_path / "own.txt"),)
    (tmp_path / "mine.yaml").write_text("extends: mine.yaml\n")
    with pytest.raises(RecipeError, match=r"mine.yaml:1: extends: a cycle"):
        load_study(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("extends: nowhere\n")
    with pytest.raises(RecipeError, match=r"mine.yaml:1: extends: nowhere: no such file"):
        load_study(str(tmp_path / "mine.yaml"))


_CHOSEN = {
    "MaxMatch": ("referee", "MaxMatch", 1),
    "MaxMatch (Div + MMD)": ("referee", "MaxMatch (Div + MMD)", 1),
    "MaxMatch (centred GD, ISD; captions)": ("hypotheses", "centred GD, ISD + captions", 1),
    "fixed pairing": ("referee", "fixed pairing", 1),
    "SetDiv": ("referee", "SetDiv", 6),
    "MIL": ("referee", "MIL", 1),
    "one vector, D = 1024": ("referee", "one vector, D = 1024", 4),
}
"""The study, the method and the number of the trial that each finalist was chosen from, as docs/log.md has them."""


def test_the_finalists_are_the_models_of_the_trials_that_were_chosen(tmp_path):
    def plan(name):
        return shipped_plan(name, tmp_path)

    finalists = plan("finalists")
    assert finalists.study.methods.keys() == _CHOSEN.keys()
    for title, (study, method, number) in _CHOSEN.items():
        assert finalists.trials(title) == []
        few, many = plan(study), finalists.finals(title, ())
        assert len(many) == 8
        chosen = few.trials(method)[number - 1]
        assert [job.folder for job in many[:3]] == [job.folder for job in few.finals(method, chosen.changes)]


def test_the_finalists_with_eight_vectors_differ_in_nothing_else(tmp_path):
    four, eight = (shipped_plan(name, tmp_path) for name in ("finalists", "finalists_k8"))
    narrow = ", D = 512"
    assert {title.removesuffix(narrow) for title in eight.study.methods} < four.study.methods.keys()
    for title in eight.study.methods:
        small, large = (
            plan.finals(name, ())[0].recipes[0] for plan, name in ((four, title.removesuffix(narrow)), (eight, title))
        )
        width = 512 if title.endswith(narrow) else 1024
        built = large.model.resolved()
        assert {(tower.set_size, built.width) for tower in built.towers.values()} == {(8, width)}
        assert large.model_copy(update={"model": small.model, "name": small.name}) == small


def test_the_rest_of_the_referee_are_the_models_of_the_only_trials_with_the_values_of_the_log(tmp_path):
    """Of rate, contrastive weight and margin; VSE++ and VSE∞ have no contrastive term."""
    best = {
        "MaxMatch (Div + MMD)": (1e-3, 0.1, 0.2),
        "MaxSim": (1e-3, 0.1, 0.2),
        "Sinkhorn": (1e-3, 0.1, 0.2),
        "one vector, D = 4096": (2e-4, 1.0, 0.1),
        "VSE++": (2e-3, 0, 0.1),
        "VSE∞": (2e-3, 0, 0.1),
    }
    rest, referee = (shipped_plan(name, tmp_path) for name in ("referee_rest", "referee"))
    for key in ("base", "measures", "set_aside", "changes", "final"):
        assert getattr(rest.study, key) == getattr(referee.study, key)
    assert list(rest.study.methods) == list(best)
    for title, values in best.items():
        found = [
            trial.changes
            for trial in referee.trials(title)
            for recipe in trial.job.recipes
            if (recipe.train.lr, recipe.objective.con_weight, recipe.objective.margin) == values
        ]
        (chosen,) = found
        jobs = [[job.folder for job in plan.finals(title, how)] for plan, how in ((rest, ()), (referee, chosen))]
        assert rest.trials(title) == []
        assert jobs[0] == jobs[1]


def test_one_vector_has_the_values_of_its_tuning_and_of_mils_without_and_with_spare_slots(tmp_path):
    ours, finalists = (shipped_plan(name, tmp_path) for name in ("one_vector", "finalists"))

    def first(plan, title):
        return plan.finals(title, ())[0]

    for title, other in (("MaxMatch (Div + MMD)", None), ("MIL", None), ("one vector", "one vector, D = 1024")):
        assert first(ours, title).folder == first(finalists, other or title).folder
    bare, mil, spare = (
        first(ours, title).recipes[0] for title in ("one vector, as MIL", "MIL", "one vector and 3 spare, as MIL")
    )
    assert bare.objective == mil.objective.model_copy(update={"div_weight": 0.0}) == spare.objective
    assert (bare.train, bare.data, bare.model.similarity) == (mil.train, mil.data, "mil")
    assert bare.model.options == {**mil.model.options, "set_size": 1}
    assert spare.model.options == {**bare.model.options, "spare_slots": 3}


def test_a_study_may_have_some_methods_of_another_only(tmp_path):
    written(tmp_path)
    (tmp_path / "mine.yaml").write_text("extends: small.yaml\nonly: [MaxMatch, MIL]\n")
    assert list(load_study(str(tmp_path / "mine.yaml")).methods) == ["MaxMatch", "MIL"]


@pytest.mark.parametrize(
    ("only", "problem"),
    [
        ("[MaxMatch, none]", r"mine.yaml:2: only: expected methods \(.*MIL.*\), got 'none'"),
        ("[MaxMatch]", "mine.yaml:2: only"),
        ("MIL", "mine.yaml:2: only"),
    ],
)
def test_only_names_at_least_two_methods_of_the_study(tmp_path, only, problem):
    written(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"extends: small.yaml\nonly: {only}\n")
    with pytest.raises(RecipeError, match=problem):
        load_study(str(tmp_path / "mine.yaml"))


def test_the_hypotheses_have_the_budget_of_the_referee_and_share_the_models_of_the_methods_that_both_have(tmp_path):
    plans = [shipped_plan(name, tmp_path) for name in ("hypotheses", "referee")]
    ours, referee = (plan.study for plan in plans)
    for key in ("base", "measures", "set_aside", "changes", "tune", "tuning", "final"):
        assert getattr(ours, key) == getattr(referee, key)
    shared = ours.methods.keys() & referee.methods.keys()
    assert shared == {"MaxMatch (Div + MMD)", "fixed pairing", "SetDiv", "MIL"}
    for title in shared:
        assert cells_of(plans[0].trials(title)) == cells_of(plans[1].trials(title))
    for title in ours.methods.keys() - shared:  # the ideas
        for trial in plans[0].trials(title):
            assert trial.job.recipes[0].similarities == ("maxmatch",)


def untuned(folder, name="untuned.yaml", **changed):
    """A study whose methods go into the finals as they are."""
    methods = {title: {key: own[key] for key in own if key != "tune"} for title, own in STUDY["methods"].items()}
    bare = {key: value for key, value in STUDY.items() if key not in ("tune", "tuning")}
    study = {**bare, "tuning": {"trials": 0}, "methods": methods, **changed}
    (folder / name).write_text(yaml.safe_dump(study, sort_keys=False))


def run_both(place, out, *names, **more):
    files = [str(place / f"{name}.yaml") for name in names]
    return reproduce(files, str(place / "data"), out=out, jobs=1, device="cpu", **more)


def test_studies_are_trained_side_by_side_to_the_tables_that_each_has_alone(place, tmp_path, made_up):
    untuned(place)
    names = ("small", "untuned")
    alone = {name: run(place, tmp_path / name, f"{name}.yaml").targets[0] for name in names}
    made_up.started.clear()
    dry = run_both(place, tmp_path / "out", *names, dry_run=True)
    assert [one.name for one in dry.targets] == list(names)
    assert not made_up.started
    found = run_both(place, tmp_path / "out", *names)
    assert found.failed == 0
    folders = [job.folder for job in made_up.started]
    assert len(folders) == len(set(folders)) == found.models  # what both need is trained once
    trials, finals = made_up.started[: 3 * TRIALS], made_up.started[3 * TRIALS :]
    assert {job.split for job in trials} == {"set_aside"}
    assert {job.split for job in finals} == {"val"}
    seeds = [job.recipes[0].seed for job in finals]
    assert seeds == sorted(seeds)  # an interrupted command has as many models of every method
    for one in found.targets:
        assert render(one.table, "markdown") == render(alone[one.name].table, "markdown")
        assert (tmp_path / "out" / f"{one.name}.html").exists()


def test_a_final_that_was_a_trial_as_well_is_measured_on_the_final_split(place, tmp_path, made_up):
    """Also where the trial is one study's and the final another's."""
    long = {"trials": TRIALS, "images": None, "epochs": FINAL_EPOCHS}
    (place / "long.yaml").write_text(yaml.safe_dump({**STUDY, "tuning": long}, sort_keys=False))
    untuned(place)
    made_up.easy = lambda job: 0.2 if job.split == "set_aside" else 0.7
    names = ("long", "untuned")
    alone = {name: run(place, tmp_path / name, f"{name}.yaml").targets[0] for name in names}
    made_up.started.clear()
    found = run_both(place, tmp_path / "out", *names)
    splits = {split: {job.folder for job in made_up.started if job.split == split} for split in ("set_aside", "val")}
    assert splits["set_aside"] & splits["val"]  # or this would test nothing
    for one in found.targets:
        assert one.data["rows"] == [
            {**row, "runs": mine["runs"]}
            for row, mine in zip(alone[one.name].data["rows"], one.data["rows"], strict=True)
        ]
        assert {n for row in one.data["rows"] for n in [len(row["ours"]["rsum"]["seeds"])]} == {SEEDS}
    long = found.targets[0].data
    scores = [trial["score"] for trials in long["tuning"].values() for trial in trials]
    assert len(scores) == 3 * TRIALS
    assert max(scores) < min(row["ours"]["rsum"]["mean"] for row in long["rows"])
    again = run_both(place, tmp_path / "out", *names).targets[0].data["tuning"]
    assert [trial["score"] for trials in again.values() for trial in trials] == scores


def test_studies_whose_finals_are_measured_on_different_splits_are_not_run_together(place, tmp_path):
    untuned(place, final={**STUDY["final"], "split": "train_too"})
    with pytest.raises(UsageError, match=r"val.*--split|--split.*val"):
        run_both(place, tmp_path, "small", "untuned", dry_run=True)
    untuned(place)


def test_studies_of_one_name_are_refused(place, tmp_path):
    (tmp_path / "small.yaml").write_text((place / "small.yaml").read_text())
    for name in ("data", "ids.txt", "tiny.yaml", "single.yaml"):
        (tmp_path / name).symlink_to(place / name)
    files = [str(folder / "small.yaml") for folder in (place, tmp_path)]
    with pytest.raises(UsageError, match="one name"):
        reproduce(files, str(place / "data"), out=tmp_path / "out", device="cpu", dry_run=True)


def test_a_study_is_run_apart_from_tables_and_only_a_study_is_counted_first(place, tmp_path):
    with pytest.raises(UsageError, match="ablation"):
        reproduce([str(place / "small.yaml"), "ablation"], "scenes", out=tmp_path)
    with pytest.raises(UsageError, match="size of a study"):
        run(place, tmp_path, quick=True)
    with pytest.raises(UsageError, match="study"):
        reproduce("ablation", "scenes", out=tmp_path, dry_run=True)
    with pytest.raises(UsageError, match=r"nowhere.yaml: no such file.*referee"):
        load_study("nowhere.yaml")
    (tmp_path / "ablation.yaml").write_text((place / "small.yaml").read_text())
    with pytest.raises(UsageError, match="Rename"):
        load_study(str(tmp_path / "ablation.yaml"))
