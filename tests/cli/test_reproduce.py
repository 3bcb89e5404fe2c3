"""The command from end to end, with tiny models trained in this process."""

import io
import json
from functools import partial

import pytest
from small_runs import command, ended, kill_at, recipe_for, start, write_data

from maxmatch.cli.main import main
from maxmatch.recipe_files import dump_recipe
from maxmatch.reproduce import cell, compare, sweep
from maxmatch.training import update

ROWS = 11


class Done:
    """A process that has ended."""

    def __init__(self, code):
        self.returncode, self.stdin = code, io.BytesIO()

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        return self.returncode


def at_once(job, device):
    """In place of a process of its own, where only the start takes seconds."""
    job.write()
    with cell.alone(job.folder):
        try:
            cell.work(job, device)
        except ValueError as error:
            (job.folder / "log.txt").write_text(f"Traceback\nmaxmatch: {error}\n")
            return Done(1)
    return Done(0)


def in_this_process():
    sweep.start = at_once


def killed_between():
    in_this_process()
    kill_at(compare, "one_line", 3)  # when the third is about to be reported


def killed_within():
    in_this_process()
    kill_at(update, "gradients", 3)  # in the second model


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder / "regions", train=16, val=8)
    recipe = recipe_for(folder / "regions", epochs=1, batch_size=8, model={"depth": 1})
    (folder / "tiny.yaml").write_text(dump_recipe(recipe))
    return folder


def arguments(data, out, *more, target="ablation"):
    said = ["--data", data / "regions", "--base", data / "tiny.yaml", "--out", out, "--device", "cpu", "--jobs", 1]
    return [str(one) for one in ("reproduce", target, *said, *more)]


def run(capsys, *said):
    with pytest.raises(SystemExit) as end:
        main(list(said))
    return end.value.code, capsys.readouterr()


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    """The folder of a sweep, and what it printed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    said = out.parent / "said"
    assert ended(start(partial(command, patch=in_this_process), said, *arguments(data, out))) == 0
    return out, said.read_text()


def figures(out):
    found = {}
    for path in sorted((out / "cells").glob("*/result.json")):
        result = json.loads(path.read_text())
        found[path.parent.name] = result["figures"]
    return found


def test_the_ablation_is_a_table_of_eleven_rows_beside_the_papers(uninterrupted):
    out, said = uninterrupted
    table = (out / "ablation.md").read_text().splitlines()
    rows = [line for line in table if line.startswith(("| MIL", "| Smooth", "| Maximal"))]
    assert len(rows) == ROWS
    assert rows[10].startswith("| Maximal Pair Assignment | ✓ | ✓ | ✓ | ✓ | 446.53 |")
    whole = json.loads((out / "ablation.json").read_text())
    assert [row["paper"]["coco_5k_rsum"] for row in whole["rows"]][:2] == [438.98, 439.57]
    for row, line in zip(whole["rows"], rows, strict=True):
        assert f"{row['ours']['rsum']['mean']:.1f}" in line
        assert {"image_log_variance", "pairing_stability", "slots_used", "text_slot_4_rsum"} <= row["ours"].keys()
    assert "split val (8 images, RSUM" in said  # there is no test split
    assert "changes to the recipe" in said
    files = [str(out / f"ablation{end}") for end in (".md", ".json", "-curves.png")]
    assert f"written to {', '.join(files)}" in said
    assert (out / "ablation-curves.png").stat().st_size > 1000


def test_killed_after_the_second_model_the_sweep_goes_on_repeats_nothing_and_gives_the_same(
    uninterrupted, data, tmp_path
):
    out, said = tmp_path / "out", tmp_path / "said"

    assert ended(start(partial(command, patch=killed_between), said, *arguments(data, out))) == -9
    before = figures(out)
    assert len(before) == 3
    assert not (out / "ablation.md").exists()
    times = {name: (out / "cells" / name / "result.json").stat().st_mtime_ns for name in before}
    assert ended(start(partial(command, patch=in_this_process), said, *arguments(data, out))) == 0
    assert said.read_text().count("(done before)") == 3
    assert {name: (out / "cells" / name / "result.json").stat().st_mtime_ns for name in before} == times
    assert figures(out) == figures(uninterrupted[0])
    assert (out / "ablation.md").read_text() == (uninterrupted[0] / "ablation.md").read_text()


def test_killed_while_it_trains_a_model_goes_on_and_gives_the_same(uninterrupted, data, tmp_path):
    out, said = tmp_path / "out", tmp_path / "said"

    assert ended(start(partial(command, patch=killed_within), said, *arguments(data, out, target="elements"))) == -9
    assert len(figures(out)) == 1
    assert ended(start(partial(command, patch=in_this_process), said, *arguments(data, out, target="elements"))) == 0
    whole = figures(uninterrupted[0])
    assert figures(out) == {name: whole[name] for name in figures(out)}
    assert len(figures(out)) == 3
    assert "image: only slot 4" in said.read_text()


def test_interrupted_it_says_how_to_go_on_and_exits_130(data, tmp_path, capsys, monkeypatch):
    def interrupted(job, device):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "start", interrupted)
    code, said = run(capsys, *arguments(data, tmp_path / "out", target="elements"))
    assert code == 130
    assert f"{tmp_path / 'out'}: interrupted; all models at work are saved. Go on with the same command." in said.err


def test_what_another_table_trained_is_not_trained_again(uninterrupted, data, capsys, monkeypatch):
    monkeypatch.setattr(sweep, "start", None)  # would fail if it were called
    code, said = run(capsys, *arguments(data, uninterrupted[0], "--json", target="tab:5"))
    assert code == 0
    whole = json.loads(said.out)
    assert [row["title"] for row in whole["rows"]] == [{"method": m} for m in ("MIL", "smooth-Chamfer", "MaxMatch")]


def test_a_model_that_fails_is_in_the_table_with_its_reason_and_the_others_too(data, tmp_path, capsys, monkeypatch):
    def failing(job, device):
        if job.recipes[0].model.similarity == "smooth_chamfer":
            job.write()
            (job.folder / "log.txt").write_text("Traceback\nmaxmatch: the features are damaged. Copy them again.\n")
            return Done(1)
        return at_once(job, device)

    monkeypatch.setattr(sweep, "start", failing)
    code, said = run(capsys, *arguments(data, tmp_path / "out", target="elements"))
    assert code == 1
    assert "smooth-Chamfer: failed: the features are damaged. Copy them again." in said.out
    assert "1 of 3 models failed; the same command tries them again" in said.err
    code, said = run(capsys, *arguments(data, tmp_path / "out", "--json", target="elements"))
    rows = json.loads(said.out)["rows"]
    assert [len(row["failed"]) for row in rows] == [0, 1, 0]
    assert [bool(row["ours"]) for row in rows] == [True, False, True]
    monkeypatch.setattr(sweep, "start", at_once)
    code, said = run(capsys, *arguments(data, tmp_path / "out", target="elements"))
    assert code == 0
    assert said.err.count("(done before)") == 2


def test_every_model_of_the_pvse_table_can_be_made_from_a_base_of_our_own(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep, "start", at_once)
    code, said = run(capsys, *arguments(data, tmp_path / "out", "--latex", target="pvse"))
    assert code == 0
    rows = [line for line in said.out.splitlines() if line.endswith(r"\\") and "&" in line][2:]
    names = [row.split(" & ")[0] for row in rows]
    assert names == ["VSE++", "PVSE", "Set Div", "MaxMatch + PVSE", "MaxMatch"]
    assert all(float(row.split(" & ")[6]) > 0 for row in rows)
    one_vector = json.loads((tmp_path / "out" / "pvse.json").read_text())["rows"][0]["ours"]
    assert "image_slot_1_rsum" in one_vector
    assert "image_slot_2_rsum" not in one_vector


def test_several_targets_are_one_sweep_in_which_what_two_need_is_trained_once(data, tmp_path, capsys, monkeypatch):
    trained = []

    def counted(job, device):
        trained.append(job.folder.name)
        if "-k8-" in job.folder.name:
            job.write()
            (job.folder / "log.txt").write_text("Traceback\nmaxmatch: no room for eight.\n")
            return Done(1)
        return at_once(job, device)

    monkeypatch.setattr(sweep, "start", counted)
    out = tmp_path / "out"
    code, said = run(capsys, *arguments(data, out, "tab:5", "train.epochs=1", "heatmap", target="sizes"))
    assert code == 1
    assert len(trained) == len(set(trained)) == 4 + 2  # K = 4 is the third model of the other table
    assert trained[3].startswith("maxmatch-k8-")  # after which the others went on
    first, second, third = said.out.strip().split("\n\n")
    assert first.splitlines()[1].startswith("set size")
    assert "K = 8: failed: no room for eight." in first
    assert second.splitlines()[1].startswith("kept")
    assert third.split() == [str(out / "heatmap.pdf"), str(out / "heatmap.png")]
    assert "1 of 6 models failed" in said.err
    assert (out / "sizes.md").exists()
    assert (out / "elements.json").exists()

    monkeypatch.setattr(sweep, "start", at_once)
    code, said = run(capsys, *arguments(data, out, "elements", "train.epochs=1", "tab:5", "--json", target="sizes"))
    assert code == 0
    assert said.err.count("(done before)") == 5
    whole = json.loads(said.out)
    assert list(whole) == ["sizes", "elements"]
    for name, one in whole.items():
        assert one == json.loads((out / f"{name}.json").read_text())
    rows = whole["sizes"]["rows"]
    assert [row["title"] for row in rows] == [{"set size": f"K = {size}"} for size in (1, 2, 4, 8)]
    for row, size in zip(rows, (1, 2, 4, 8), strict=True):
        assert sum(name.startswith("text_slot_") for name in row["ours"]) == size
        assert row["paper"] == {}
    assert rows[2]["ours"] == whole["elements"]["rows"][2]["ours"]


def test_a_figure_as_json_says_where_its_files_are(uninterrupted, data, capsys):
    code, said = run(capsys, *arguments(data, uninterrupted[0], "--json", target="heatmap"))
    assert code == 0
    files = [str(uninterrupted[0] / f"heatmap.{kind}") for kind in ("pdf", "png")]
    assert json.loads(said.out) == {"target": "heatmap", "label": "fig:heatmap", "files": files}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["ablation"], "--data"),
        (["ablation", "sizse", "--data", "scenes"], "sizes"),
        (["train.epochs=1", "--data", "scenes"], ""),
        (["ablatoin", "--data", "scenes"], "ablation"),
        (["ablation", "--data", "scenes", "--json", "--latex"], "choose one"),
        (["flickr30k", "--data", "resnext=."], "nothing to train"),
        (["wurst"], "wurst"),
        ([], "name one of these"),
    ],
)
def test_wrong_use_is_exit_2(said, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = run(capsys, "reproduce", *said)
    assert code == 2
    assert expected in output.err


def test_the_list_names_targets_and_labels(capsys):
    code, said = run(capsys, "reproduce", "--list")
    assert code == 0
    assert [line.split()[:2] for line in said.out.splitlines()][2:4] == [
        ["ablation", "table_abl"],
        ["elements", "tab:5"],
    ]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("heatmap", ["heatmap.pdf", "heatmap.png"]),
        (
            "fig:tsne",
            [f"tsne-{name}.{kind}" for name in ("mil", "smooth-chamfer", "maxmatch") for kind in ("pdf", "png")],
        ),
    ],
)
def test_figures_are_drawn_from_the_models_of_the_tables(target, expected, uninterrupted, data, capsys, monkeypatch):
    monkeypatch.setattr(sweep, "start", None)  # would fail if it were called
    code, said = run(capsys, *arguments(data, uninterrupted[0], target=target))
    assert code == 0
    assert said.out.split() == [str(uninterrupted[0] / name) for name in expected]
    assert all((uninterrupted[0] / name).stat().st_size > 1000 for name in expected)


def test_the_qualitative_figure_is_a_report_of_each_model(uninterrupted, data, capsys, monkeypatch):
    made = []

    def report(model, split, visible, folder, wanted, *, title, facts, run):
        made.append((model.similarity_name, split.size, visible is split, title, facts["split"], run.parent.name))
        return None, folder / "report.html"

    monkeypatch.setattr("maxmatch.report.making.make_report", report)  # it has tests of its own
    code, said = run(capsys, *arguments(data, uninterrupted[0], target="qualitative"))
    assert code == 0
    folders = [uninterrupted[0] / f"qualitative-{name}" for name in ("smooth-chamfer", "maxmatch")]
    assert said.out.split() == [str(folder / "report.html") for folder in folders]
    assert made == [
        ("smooth_chamfer", 8, True, "smooth-Chamfer", "val", "cells"),
        ("maxmatch", 8, True, "MaxMatch", "val", "cells"),
    ]
