"""`maxmatch reproduce` from end to end: tiny models are trained in this process; killed, it resumes."""

import json
import shutil
from functools import partial
from types import SimpleNamespace

import pytest
from commands import run
from finished_jobs import Ended, at_once, failed, finish, search_of
from small_runs import command, ended, kill_at, recipe_for, start, write_data

from maxmatch.data.load import load_data
from maxmatch.recipe.schema import Data
from maxmatch.recipe.yaml_files import dump_recipe
from maxmatch.reproduce import compare, reproduce, worker
from maxmatch.training import step


def measured(job, device):
    """In place of training: a result as a model of that set size has it."""
    job.write()
    sizes = {name: tower.set_size for name, tower in job.recipes[0].model.resolved().towers.items()}
    figures = {"rsum": 100.0 + job.recipes[0].seed, "i2t_r1": 5.0, "t2i_r1": 4.0, "chance_rsum": 3.0}
    figures |= {"image_log_variance": -1.0, "text_log_variance": -1.0, "slots_used": 1.0, "pairing_stability": 1.0}
    figures |= {f"{name}_slot_{n + 1}_rsum": 9.0 for name, size in sizes.items() for n in range(size)}
    job.finish({"split": "val", "images": 8, "figures": figures, "seconds": 1.0})
    return Ended()


def patched():
    worker.start = at_once


def without_curves():
    """Importing what draws them takes seconds."""
    patched()
    compare.draw_curves = lambda plan, outcomes: None


def killed_between():
    without_curves()
    kill_at(compare, "outcome_line", 2)  # when the second is about to be reported


def killed_within():
    without_curves()
    kill_at(step, "gradients", 3)  # in the second model


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Data, and the recipe of a tiny model for it."""
    folder = tmp_path_factory.mktemp("data")
    write_data(folder / "regions", train=16, val=8)
    recipe = recipe_for(folder / "regions", epochs=1, batch_size=8, model={"depth": 1})
    (folder / "tiny.yaml").write_text(dump_recipe(recipe))
    return folder


def arguments(data, out, *targets):
    common = ["--data", data / "regions", "--base", data / "tiny.yaml", "--out", out, "--device", "cpu", "--jobs", 1]
    return [str(one) for one in ("reproduce", *targets, *common)]


def results(out):
    return {path.parent.name: json.loads(path.read_text()) for path in (out / "cells").glob("*/result.json")}


def figures(out):
    return {name: result["figures"] for name, result in results(out).items()}


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    """The folder of a sweep of three models, and what it printed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    printed = out.parent / "printed"
    assert ended(start(partial(command, patch=patched), printed, *arguments(data, out, "elements"))) == 0
    return out, printed.read_text()


def test_the_table_is_the_papers_with_ours_beside_it(uninterrupted):
    out, printed = uninterrupted
    table = (out / "elements.md").read_text().splitlines()
    assert table[2].startswith("| image: all slots | 438.98 |")
    whole = json.loads((out / "elements.json").read_text())
    assert [row["title"] for row in whole["rows"]] == [{"method": m} for m in ("MIL", "smooth-Chamfer", "MaxMatch")]
    for row in whole["rows"]:
        assert f"{row['ours']['rsum']['mean']:.1f}" in table[2]
        assert {"image_log_variance", "pairing_stability", "slots_used", "text_slot_4_rsum"} <= row["ours"].keys()
    assert "split val (8 images, RSUM" in printed  # there is no test split
    assert "changes to the recipe" in printed
    files = [str(out / f"elements{end}") for end in (".md", ".json", "-curves.png")]
    assert f"written to {', '.join(files)}" in printed
    assert (out / "elements-curves.png").stat().st_size > 1000


@pytest.mark.parametrize("killed", [killed_between, killed_within])
def test_a_killed_sweep_resumes_and_gives_the_same(killed, uninterrupted, data, tmp_path):
    out, printed = tmp_path / "out", tmp_path / "printed"
    assert ended(start(partial(command, patch=killed), printed, *arguments(data, out, "elements"))) == -9
    before = results(out)
    assert len(before) == (2 if killed is killed_between else 1)
    assert not (out / "elements.md").exists()
    assert ended(start(partial(command, patch=without_curves), printed, *arguments(data, out, "elements"))) == 0
    assert printed.read_text().count("(done before)") == len(before)
    after = results(out)
    assert {name: after[name] for name in before} == before  # seconds and all: not done again
    assert figures(out) == figures(uninterrupted[0])
    assert (out / "elements.md").read_text() == (uninterrupted[0] / "elements.md").read_text()


def test_without_jobs_the_table_shows_what_is_done(uninterrupted, data, tmp_path, capsys):
    out = shutil.copytree(uninterrupted[0], tmp_path / "out")
    removed = next((out / "cells").glob("mil*"))
    shutil.rmtree(removed)
    code, printed, err = run(capsys, *arguments(data, out, "elements"), "--jobs", "0")
    assert code == 0
    assert "MIL: not trained yet" in printed
    assert "1 of 3 models are not trained yet" in err
    assert not removed.exists()


def test_interrupted_it_reports_how_to_resume_and_exits_130(data, tmp_path, capsys, monkeypatch):
    def interrupted(job, device):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "start", interrupted)
    code, _, err = run(capsys, *arguments(data, tmp_path / "out", "elements"))
    assert code == 130
    assert f"{tmp_path / 'out'}: interrupted" in err
    assert "Resume with the same command" in err


def test_figures_are_drawn_from_the_models_of_the_tables(uninterrupted, data, capsys, monkeypatch):
    monkeypatch.setattr(worker, "start", None)  # would fail if it were called
    monkeypatch.setattr("maxmatch.evaluation.report.figures.render", lambda figure, kind: kind.encode())
    out, _ = uninterrupted
    code, printed, _ = run(capsys, *arguments(data, out, "heatmap", "fig:tsne"))
    assert code == 0
    names = ["heatmap", *(f"tsne-{name}" for name in ("mil", "smooth-chamfer", "maxmatch"))]
    expected = [out / f"{name}.{kind}" for name in names for kind in ("pdf", "png")]
    assert printed.split() == list(map(str, expected))
    assert [file.read_bytes() for file in expected] == [b"pdf", b"png"] * 4
    code, printed, _ = run(capsys, *arguments(data, out, "heatmap"), "--json")
    files = list(map(str, expected[:2]))
    assert json.loads(printed) == {"target": "heatmap", "label": "fig:heatmap", "files": files}


def test_the_qualitative_figure_is_a_report_of_each_model(uninterrupted, data, capsys, monkeypatch):
    made = []

    def report(model, data, out, *, split, title, device, batch_size, say):
        made.append((model.parent.name, data.path, split, title))
        return SimpleNamespace(report=out / "report.html")

    monkeypatch.setattr(compare, "analyse_run", report)  # it has tests of its own
    code, printed, _ = run(capsys, *arguments(data, uninterrupted[0], "qualitative"))
    assert code == 0
    folders = [uninterrupted[0] / f"qualitative-{name}" for name in ("smooth-chamfer", "maxmatch")]
    assert printed.split() == [str(folder / "report.html") for folder in folders]
    regions = str(data / "regions")
    assert made == [("cells", regions, "val", title) for title in ("smooth-Chamfer", "MaxMatch")]


def test_several_targets_are_one_sweep_and_what_two_need_is_trained_once(data, tmp_path, capsys, monkeypatch):
    trained = []

    def counted(job, device):
        trained.append(job.folder.name)
        return failed(job, "no room for eight. Buy more.") if "-k8-" in job.folder.name else measured(job, device)

    monkeypatch.setattr(worker, "start", counted)
    out = tmp_path / "out"
    code, printed, err = run(capsys, *arguments(data, out, "sizes", "tab:5", "train.epochs=1"))
    assert code == 1
    assert len(trained) == len(set(trained)) == 4 + 2  # K = 4 is the third model of the other table
    assert trained[3].startswith("maxmatch-k8-")  # and the others were trained after it
    first, second = printed.strip().split("\n\n")
    assert first.splitlines()[1].startswith("set size")
    assert "K = 8: failed: no room for eight. Buy more." in first
    assert second.splitlines()[1].startswith("kept")
    assert "1 of 6 models failed; the same command tries those again that it still needs" in err
    rows = json.loads((out / "sizes.json").read_text())["rows"]
    assert [len(row["failed"]) for row in rows] == [0, 0, 0, 1]
    assert [bool(row["ours"]) for row in rows] == [True, True, True, False]
    assert (out / "elements.md").exists()

    monkeypatch.setattr(worker, "start", measured)
    code, printed, err = run(capsys, *arguments(data, out, "sizes", "elements", "tab:5", "train.epochs=1"), "--json")
    assert code == 0
    assert err.count("(done before)") == 5
    whole = json.loads(printed)
    assert list(whole) == ["sizes", "elements"]
    for name, one in whole.items():
        assert one == json.loads((out / f"{name}.json").read_text())
    rows = whole["sizes"]["rows"]
    assert [row["title"] for row in rows] == [{"set size": f"K = {size}"} for size in (1, 2, 4, 8)]
    assert rows[2]["ours"] == whole["elements"]["rows"][2]["ours"]


def test_a_table_is_reproduced_from_python(data, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "start", measured)
    base, lines = str(data / "tiny.yaml"), []
    made = reproduce("pvse", str(data / "regions"), base=base, out=tmp_path, jobs=1, device="cpu", say=lines.append)
    assert (made.models, made.failed) == (5, 0)
    (table,) = made.targets
    methods = ["one vector, triplet loss", "PVSE", "Set Div", "MaxMatch + PVSE", "MaxMatch"]
    assert [row["method"] for row in table.table.rows] == methods
    assert "image_slot_2_rsum" not in table.data["rows"][0]["ours"]  # one vector per set
    assert tmp_path / "pvse.json" in table.files
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["ablation"], "--data"),
        (["ablation", "sizse", "--data", "scenes"], "sizes"),
        (["train.epochs=1", "--data", "scenes"], ""),
        (["ablation", "--data", "scenes", "--json", "--latex"], "choose one"),
        (["wurst"], "wurst"),
        (["flickr30k", "--data", "resnext=."], "nothing to train"),
        ([], "name one of these"),
        (["ablation", "--data", "scenes", "--dry-run"], "study"),
        (["referee", "ablation", "--data", "scenes"], "ablation"),
        (["nowhere.yaml", "--data", "scenes"], "nowhere.yaml"),
        (["one_vector", "--data", "scenes", "--only", "mill"], "'MIL'"),
    ],
)
def test_wrong_use_is_exit_2(given, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "reproduce", *given)
    assert code == 2
    assert expected in err


def test_the_list_names_targets_and_labels(capsys):
    code, printed, _ = run(capsys, "reproduce", "--list")
    assert code == 0
    listed = [line.split()[:2] for line in printed.splitlines()]
    assert listed[2:4] == [["ablation", "table_abl"], ["elements", "tab:5"]]
    assert ["referee", "study"] in listed[-4:]


@pytest.fixture
def study(data, tmp_path):
    """The arguments of a study of two methods."""
    names = load_data(Data(path=str(data / "regions")), print).split("train")["image"].ids
    (tmp_path / "ids.txt").write_text("\n".join(names[:4]))
    goal = {"ours": ["MaxMatch"], "rivals": ["MIL"], "lead": {"rsum": 5, "map_at_r": 2}}
    study = {
        "base": str(data / "tiny.yaml"), "reference": "MaxMatch", "set_aside": "ids.txt",
        "measures": ["rsum", "map_at_r"], "goal": goal,
        "tune": {"train.lr": [1e-3, 2e-3]}, "tuning": {"trials": 2, "images": 8, "epochs": 3},
        "final": {"seeds": 5, "epochs": 7}, "methods": {"MaxMatch": {}, "MIL": {"changes": ["model.similarity=mil"]}},
    }  # fmt: skip
    (tmp_path / "own.yaml").write_text(json.dumps(study))
    given = ["reproduce", tmp_path / "own.yaml", "--data", data / "regions", "--out", tmp_path / "out"]
    return list(map(str, given))


def test_a_study_prints_its_measures_its_tests_and_whether_its_goal_is_met(study, capsys, monkeypatch):
    def made_up(job, device):
        job.write()
        ours = job.recipes[0].model.similarity == "maxmatch"
        finish(job, search_of(0.9 if ours else 0.1, job.recipes[0].seed), job.split)
        return Ended()

    monkeypatch.setattr(worker, "start", made_up)
    code, printed, _ = run(capsys, *study)
    assert code == 0
    blocks = [block.splitlines() for block in printed.split("\n\n")]
    assert [block[0] for block in blocks[1:]] == ["Beyond RSUM", "Against MaxMatch", "Goal: met"]
    assert "RSUM: met by MaxMatch." in blocks[-1]
    code, printed, _ = run(capsys, *study, "--markdown")
    assert "\n\n## Goal: met\n\n| method |" in printed
    code, printed, _ = run(capsys, *study, "--json")
    assert json.loads(printed)["goal"]["met"]


def test_a_study_is_counted_by_a_dry_run_and_not_begun(study, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(worker, "start", None)  # would fail if it were called
    given = [*study, "--dry-run"]
    code, printed, _ = run(capsys, *given, "--json")
    assert code == 0
    phases = json.loads(printed)["phases"]
    counted = {name: (phase["models"], phase["epochs"], phase["images"]) for name, phase in phases.items()}
    assert counted == {"tuning": (4, 12, 96), "finals": (10, 70, 840), "in all": (14, 82, 936)}
    code, printed, err = run(capsys, *given, "--seeds", "2")
    assert code == 0
    assert printed.splitlines()[3].split()[:3] == ["finals", "2", "4"]
    assert "written" not in err
    assert not (tmp_path / "out").exists()
