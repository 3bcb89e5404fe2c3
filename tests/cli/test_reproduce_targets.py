"""What can be reproduced: several tables at once, from a base of one's own, and what is refused."""

import json

import pytest
from reproducing import Done, arguments, at_once, run

from maxmatch.reproduce import jobs, reproduce


def test_a_model_that_fails_is_in_the_table_with_its_reason_and_the_others_too(data, tmp_path, capsys, monkeypatch):
    def failing(job, device):
        if job.recipes[0].model.similarity == "smooth_chamfer":
            job.write()
            (job.folder / "log.txt").write_text("Traceback\nmaxmatch: the features are damaged. Copy them again.\n")
            return Done(1)
        return at_once(job, device)

    monkeypatch.setattr(jobs, "start", failing)
    code, printed = run(capsys, *arguments(data, tmp_path / "out", target="elements"))
    assert code == 1
    assert "smooth-Chamfer: failed: the features are damaged. Copy them again." in printed.out
    assert "1 of 3 models failed; the same command tries them again" in printed.err
    code, printed = run(capsys, *arguments(data, tmp_path / "out", "--json", target="elements"))
    rows = json.loads(printed.out)["rows"]
    assert [len(row["failed"]) for row in rows] == [0, 1, 0]
    assert [bool(row["ours"]) for row in rows] == [True, False, True]
    monkeypatch.setattr(jobs, "start", at_once)
    code, printed = run(capsys, *arguments(data, tmp_path / "out", target="elements"))
    assert code == 0
    assert printed.err.count("(done before)") == 2


def test_a_table_is_reproduced_from_python_with_a_base_of_ones_own(data, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "start", at_once)
    base, lines = str(data / "tiny.yaml"), []
    made = reproduce("pvse", str(data / "regions"), base=base, out=tmp_path, jobs=1, device="cpu", say=lines.append)
    assert (made.models, made.failed) == (5, 0)
    (table,) = made.targets
    assert [row[0] for row in table.table.rows] == ["VSE++", "PVSE", "Set Div", "MaxMatch + PVSE", "MaxMatch"]
    assert all(row["ours"]["rsum"]["mean"] > 0 for row in table.data["rows"])
    one_vector = table.data["rows"][0]["ours"]
    assert "image_slot_1_rsum" in one_vector
    assert "image_slot_2_rsum" not in one_vector
    assert tmp_path / "pvse.json" in table.files
    assert len(lines) == 5


def test_several_targets_are_one_sweep_in_which_what_two_need_is_trained_once(data, tmp_path, capsys, monkeypatch):
    trained = []

    def counted(job, device):
        trained.append(job.folder.name)
        if "-k8-" in job.folder.name:
            job.write()
            (job.folder / "log.txt").write_text("Traceback\nmaxmatch: no room for eight.\n")
            return Done(1)
        return at_once(job, device)

    monkeypatch.setattr(jobs, "start", counted)
    out = tmp_path / "out"
    code, printed = run(capsys, *arguments(data, out, "tab:5", "train.epochs=1", "heatmap", target="sizes"))
    assert code == 1
    assert len(trained) == len(set(trained)) == 4 + 2  # K = 4 is the third model of the other table
    assert trained[3].startswith("maxmatch-k8-")  # after which the others went on
    first, second, third = printed.out.strip().split("\n\n")
    assert first.splitlines()[1].startswith("set size")
    assert "K = 8: failed: no room for eight." in first
    assert second.splitlines()[1].startswith("kept")
    assert third.split() == [str(out / "heatmap.pdf"), str(out / "heatmap.png")]
    assert "1 of 6 models failed" in printed.err
    assert (out / "sizes.md").exists()
    assert (out / "elements.json").exists()

    monkeypatch.setattr(jobs, "start", at_once)
    code, printed = run(capsys, *arguments(data, out, "elements", "train.epochs=1", "tab:5", "--json", target="sizes"))
    assert code == 0
    assert printed.err.count("(done before)") == 5
    whole = json.loads(printed.out)
    assert list(whole) == ["sizes", "elements"]
    for name, one in whole.items():
        assert one == json.loads((out / f"{name}.json").read_text())
    rows = whole["sizes"]["rows"]
    assert [row["title"] for row in rows] == [{"set size": f"K = {size}"} for size in (1, 2, 4, 8)]
    for row, size in zip(rows, (1, 2, 4, 8), strict=True):
        assert sum(name.startswith("text_slot_") for name in row["ours"]) == size
        assert row["paper"] == {}
    assert rows[2]["ours"] == whole["elements"]["rows"][2]["ours"]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (["ablation"], "--data"),
        (["ablation", "sizse", "--data", "scenes"], "sizes"),
        (["train.epochs=1", "--data", "scenes"], ""),
        (["ablatoin", "--data", "scenes"], "ablation"),
        (["ablation", "--data", "scenes", "--json", "--latex"], "choose one"),
        (["wurst"], "wurst"),
        (["flickr30k", "--data", "resnext=."], "nothing to train"),
        ([], "name one of these"),
    ],
)
def test_wrong_use_is_exit_2(printed, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = run(capsys, "reproduce", *printed)
    assert code == 2
    assert expected in output.err


def test_the_list_names_targets_and_labels(capsys):
    code, printed = run(capsys, "reproduce", "--list")
    assert code == 0
    assert [line.split()[:2] for line in printed.out.splitlines()][2:4] == [
        ["ablation", "table_abl"],
        ["elements", "tab:5"],
    ]
