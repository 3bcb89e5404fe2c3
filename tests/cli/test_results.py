"""`maxmatch results`, and suites, from the command line."""

import json

import numpy as np
import pytest
from commands import run


@pytest.fixture
def recorded(tmp_path, capsys):
    """Three results of one data set, and one of another."""
    rng = np.random.default_rng(0)
    for name, size in (("one", 6), ("other", 5)):
        groups = {"images": list(range(size)), "texts": list(range(size)), "captions": ["a dog"] * size}
        (tmp_path / f"{name}.json").write_text(json.dumps(groups))
    for number, (groups, size) in enumerate((("one", 6), ("one", 6), ("one", 6), ("other", 5))):
        np.save(tmp_path / f"s{number}.npy", rng.normal(size=(size, size)) + 2 * np.eye(size))
        code, _, err = run(
            capsys, "evaluate", "--scores", tmp_path / f"s{number}.npy", "--groups", tmp_path / f"{groups}.json",
            "--bootstrap", 0, "--results", tmp_path / "results.jsonl",
        )  # fmt: skip
        assert code == 0, err
    return tmp_path / "results.jsonl"


def test_results_are_shown_by_data_and_compared_only_on_the_same(capsys, recorded):
    code, out, err = run(capsys, "results", recorded)
    assert code == 0, err
    assert out.count("RSUM") == 2
    assert out.index("s0.npy") < out.index("s3.npy")
    code, out, _ = run(capsys, "results", recorded, "--compare", 1, "--compare", 3)
    assert code == 0
    assert "s0.npy" in out
    assert "difference" in out
    code, _, err = run(capsys, "results", recorded, "--compare", 1, "--compare", 4)
    assert code == 2
    assert "not measured on the same data" in err
    records = json.loads(run(capsys, "results", recorded, "--json").out)
    assert len({one["data"]["digest"] for one in records}) == 2
    assert len({one["identity"] for one in records}) == 4


def test_data_sets_of_one_size_are_told_apart_by_the_names_of_their_groups(capsys, recorded):
    for name in ("a", "b", "a"):
        groups = [f"{name}{number}.jpg" for number in range(6)]
        (recorded.parent / "named.json").write_text(json.dumps({"images": groups, "texts": groups}))
        command = ["evaluate", "--scores", recorded.parent / "s0.npy", "--groups", recorded.parent / "named.json"]
        assert run(capsys, *command, "--bootstrap", 0, "--results", recorded).code == 0
    assert run(capsys, "results", recorded, "--compare", 5, "--compare", 6).code == 2
    assert run(capsys, "results", recorded, "--compare", 5, "--compare", 7).code == 0


def test_results_of_pmrp_are_compared_with_the_same_labels_alone(capsys, recorded):
    command = ["evaluate", "--scores", recorded.parent / "s0.npy", "--groups", recorded.parent / "one.json"]
    for number in (0, 1, 0):
        shown = {str(n): [(n + number) // 2 % 2] for n in range(6)}
        (recorded.parent / "labels.json").write_text(json.dumps({"names": ["dog", "cat"], "labels": shown}))
        asked = ["--suite", "pmrp", "--labels", recorded.parent / "labels.json", "--bootstrap", 0]
        assert run(capsys, *command, *asked, "--results", recorded).code == 0
    out = run(capsys, "results", recorded).out
    assert out.count("i2t pmrp") == 2  # tables: of each labels file
    assert run(capsys, "results", recorded, "--compare", 5, "--compare", 7).code == 0  # RSUM is that of the same data
    assert run(capsys, "results", recorded, "--compare", 6, "--compare", 8).code == 2
    assert run(capsys, "results", recorded, "--compare", 6, "--compare", 10).code == 0


def test_a_missing_file_and_two_styles_are_refused(capsys, tmp_path, recorded):
    assert run(capsys, "results", tmp_path / "none.jsonl").code == 1
    assert run(capsys, "results", recorded, "--json", "--latex").code == 2


def test_a_suite_without_its_file_is_wrong_use(capsys):
    code, _, err = run(capsys, "evaluate", "maxmatch-small", "--suite", "sugarcrepe")
    assert code == 2
    assert "sugarcrepe" in err


def test_a_page_with_another_suffix_is_refused_before_anything_is_measured(capsys, tmp_path):
    code, _, err = run(capsys, "evaluate", "maxmatch-small", tmp_path, "--page", tmp_path / "page.txt")
    assert code == 2
    assert ".html" in err


def test_pmrp_is_measured_with_labels_and_cxc_is_refused_for_other_data(capsys, tmp_path, recorded):
    labels = {"names": ["dog", "cat"], "labels": {str(n): [n % 2] for n in range(6)}}
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    command = ["evaluate", "--scores", tmp_path / "s0.npy", "--groups", tmp_path / "one.json", "--bootstrap", 0]
    code, out, err = run(capsys, *command, "--suite", "pmrp", "--labels", tmp_path / "labels.json", "--json")
    assert code == 0, err
    (found,) = json.loads(out)["results"]
    assert 0 < found["i2t_pmrp"] <= 100
    assert run(capsys, *command, "--suite", "pmrp").code == 2
    code, _, err = run(capsys, *command, "--suite", "cxc")
    assert code == 1
    assert "coco" in err
