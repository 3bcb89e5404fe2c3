"""The command from end to end, with tiny models trained in this process."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
from reproducing import arguments, in_this_process, run
from small_runs import command, ended, kill_at, start

from maxmatch.reproduce import compare, jobs
from maxmatch.training import step

ROWS = 11


def killed_between():
    in_this_process()
    kill_at(compare, "outcome_line", 3)  # when the third is about to be reported


def killed_within():
    in_this_process()
    kill_at(step, "gradients", 3)  # in the second model


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    """The folder of a sweep, and what it printed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    printed = out.parent / "printed"
    assert ended(start(partial(command, patch=in_this_process), printed, *arguments(data, out))) == 0
    return out, printed.read_text()


def figures(out):
    found = {}
    for path in sorted((out / "cells").glob("*/result.json")):
        result = json.loads(path.read_text())
        found[path.parent.name] = result["figures"]
    return found


def test_the_ablation_is_a_table_of_eleven_rows_beside_the_papers(uninterrupted):
    out, printed = uninterrupted
    table = (out / "ablation.md").read_text().splitlines()
    rows = [line for line in table if line.startswith(("| MIL", "| Smooth", "| Maximal"))]
    assert len(rows) == ROWS
    assert rows[10].startswith("| Maximal Pair Assignment | ✓ | ✓ | ✓ | ✓ | 446.53 |")
    whole = json.loads((out / "ablation.json").read_text())
    assert [row["paper"]["coco_5k_rsum"] for row in whole["rows"]][:2] == [438.98, 439.57]
    for row, line in zip(whole["rows"], rows, strict=True):
        assert f"{row['ours']['rsum']['mean']:.1f}" in line
        assert {"image_log_variance", "pairing_stability", "slots_used", "text_slot_4_rsum"} <= row["ours"].keys()
    assert "split val (8 images, RSUM" in printed  # there is no test split
    assert "changes to the recipe" in printed
    files = [str(out / f"ablation{end}") for end in (".md", ".json", "-curves.png")]
    assert f"written to {', '.join(files)}" in printed
    assert (out / "ablation-curves.png").stat().st_size > 1000


def test_a_sweep_killed_between_models_resumes_and_gives_the_same(uninterrupted, data, tmp_path):
    out, printed = tmp_path / "out", tmp_path / "printed"

    assert ended(start(partial(command, patch=killed_between), printed, *arguments(data, out))) == -9
    before = figures(out)
    assert len(before) == 3
    assert not (out / "ablation.md").exists()
    times = {name: (out / "cells" / name / "result.json").stat().st_mtime_ns for name in before}
    assert ended(start(partial(command, patch=in_this_process), printed, *arguments(data, out))) == 0
    assert printed.read_text().count("(done before)") == 3
    assert {name: (out / "cells" / name / "result.json").stat().st_mtime_ns for name in before} == times
    assert figures(out) == figures(uninterrupted[0])
    assert (out / "ablation.md").read_text() == (uninterrupted[0] / "ablation.md").read_text()


def test_a_sweep_killed_within_a_model_resumes_and_gives_the_same(uninterrupted, data, tmp_path):
    out, printed = tmp_path / "out", tmp_path / "printed"

    assert ended(start(partial(command, patch=killed_within), printed, *arguments(data, out, target="elements"))) == -9
    assert len(figures(out)) == 1
    assert ended(start(partial(command, patch=in_this_process), printed, *arguments(data, out, target="elements"))) == 0
    whole = figures(uninterrupted[0])
    assert figures(out) == {name: whole[name] for name in figures(out)}
    assert len(figures(out)) == 3
    assert "image: only slot 4" in printed.read_text()


def test_interrupted_it_reports_how_to_resume_and_exits_130(data, tmp_path, capsys, monkeypatch):
    def interrupted(job, device):
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "start", interrupted)
    code, printed = run(capsys, *arguments(data, tmp_path / "out", target="elements"))
    assert code == 130
    assert (
        f"{tmp_path / 'out'}: interrupted; all models at work are saved. Resume with the same command." in printed.err
    )


def test_what_another_table_trained_is_not_trained_again(uninterrupted, data, capsys, monkeypatch):
    monkeypatch.setattr(jobs, "start", None)  # would fail if it were called
    code, printed = run(capsys, *arguments(data, uninterrupted[0], "--json", target="tab:5"))
    assert code == 0
    whole = json.loads(printed.out)
    assert [row["title"] for row in whole["rows"]] == [{"method": m} for m in ("MIL", "smooth-Chamfer", "MaxMatch")]


def test_a_figure_as_json_says_where_its_files_are(uninterrupted, data, capsys):
    code, printed = run(capsys, *arguments(data, uninterrupted[0], "--json", target="heatmap"))
    assert code == 0
    files = [str(uninterrupted[0] / f"heatmap.{kind}") for kind in ("pdf", "png")]
    assert json.loads(printed.out) == {"target": "heatmap", "label": "fig:heatmap", "files": files}


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
    monkeypatch.setattr(jobs, "start", None)  # would fail if it were called
    code, printed = run(capsys, *arguments(data, uninterrupted[0], target=target))
    assert code == 0
    assert printed.out.split() == [str(uninterrupted[0] / name) for name in expected]
    assert all((uninterrupted[0] / name).stat().st_size > 1000 for name in expected)


def test_the_qualitative_figure_is_a_report_of_each_model(uninterrupted, data, capsys, monkeypatch):
    made = []

    def report(model, data, out, *, split, title, device, batch_size, say):
        made.append((model.parent.name, data.path, split, title))
        return SimpleNamespace(report=out / "report.html")

    monkeypatch.setattr(compare, "analyse_run", report)  # it has tests of its own
    code, printed = run(capsys, *arguments(data, uninterrupted[0], target="qualitative"))
    assert code == 0
    folders = [uninterrupted[0] / f"qualitative-{name}" for name in ("smooth-chamfer", "maxmatch")]
    assert printed.out.split() == [str(folder / "report.html") for folder in folders]
    regions = str(data / "regions")
    assert made == [("cells", regions, "val", title) for title in ("smooth-Chamfer", "MaxMatch")]
