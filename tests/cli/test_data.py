import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from bad_data import BAD, pictures
from commands import run
from made_data import environment, split
from sample_splits import picture, split_of
from tiny_models import tiny_model

from maxmatch.data.dataset import IMAGE
from maxmatch.data.features import FeatureStore
from maxmatch.data.formats import imagefolder, karpathy
from maxmatch.data.load import read_dataset
from maxmatch.data.scenes import generate


@pytest.fixture
def some_data(tmp_path):
    karpathy.write(
        {"train": split_of(0, [5, 5, 2], metadata=False), "val": split_of(3, [5], metadata=False)}, tmp_path / "data"
    )
    return tmp_path / "data"


def test_help_teaches_by_examples(capsys):
    code, out, _ = run(capsys, "data", "--help")
    assert code == 0
    for example in (
        "maxmatch data check ",
        "maxmatch data convert ",
        "maxmatch data features ",
        "maxmatch data scenes ",
    ):
        assert example in out


@pytest.mark.parametrize("name", BAD)
def test_bad_data_is_reported_and_the_exit_code_tells_whether_it_is_usable(name, tmp_path, capsys):
    bad = BAD[name]
    path = bad.make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()  # what other packages say when they write
    code, out, err = run(capsys, "data", "check", path, "--json")
    assert code == (0 if bad.usable else 1)
    assert err == ""
    assert sorted(tmp_path.rglob("*")) == before  # nothing is written
    report = json.loads(out)
    assert report["usable"] == bad.usable
    assert report["splits"] or not bad.usable
    if bad.level is None:
        assert not report["findings"]
        return
    matching = [found for found in report["findings"] if found["level"] == bad.level and bad.text in found["what"]]
    assert len(matching) == 1, report["findings"]  # once, though a reader that gives up says it twice
    assert matching[0]["line"] == bad.line
    assert not bad.file or Path(matching[0]["file"]).name == bad.file
    assert matching[0]["cure"].endswith(".")


@pytest.mark.parametrize("name", ["utf-8, csv", "bom, csv", "cut, karpathy", "zeros"])
def test_check_says_so_to_a_person_too(name, tmp_path, capsys):
    bad = BAD[name]
    code, out, _ = run(capsys, "data", "check", bad.make(tmp_path))
    assert code == (0 if bad.usable else 1)
    said, last = " ".join(out.split()), out.splitlines()[-1]
    if bad.level is None:
        assert last == "Fine."
        return
    assert bad.text in said
    assert f"{bad.file}:{bad.line}: " in said or bad.line is None
    assert " → " in said
    assert last.startswith("Usable: " if bad.usable else "Not usable as it is: ")


def test_check_prints_a_table_that_a_person_can_read(some_data, capsys):
    code, out, _ = run(capsys, "data", "check", some_data)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"{some_data}: karpathy"
    assert lines[2:5] == [
        "split    images  captions  captions per image",
        "train         3        12  2 to 5, 4.00 on average",
        "val           1         5  5",
    ]
    assert lines[6].startswith("words     ")
    size = sum(len(picture(n, kind)) for n, kind in enumerate(["jpeg", "png", "jpeg", "png"]))
    assert lines[7] == f"pictures  2 JPEG, 2 PNG; {size / 1e6:,.1f} MB; decoded to their end"
    assert lines[8] == "          width 4 to 4, median 4; height 4 to 4, median 4"


def test_check_prints_a_few_of_each_kind_and_all_when_asked(tmp_path, capsys):
    pictures(tmp_path, *(f"{n}.png" for n in range(9)))
    rows = "".join(f"{n}.png,one\n../{n}.png,two\n" for n in range(9))
    (tmp_path / "captions.csv").write_text(f"image,caption\n{rows}\n,x\n")
    _, out, _ = run(capsys, "data", "check", tmp_path)
    assert out.count("leaves the folder") == 3
    assert "… and 6 more of this kind (--all shows them)" in out
    assert out.count("→ Move the file into it") == 1
    _, out, _ = run(capsys, "data", "check", tmp_path, "--all")
    assert out.count("leaves the folder") == 9
    assert out.splitlines()[-1] == "Usable: 11 warnings."


def test_convert_says_what_was_written_and_does_nothing_the_second_time(some_data, tmp_path, capsys):
    arguments = ("convert", some_data, tmp_path / "copy", "--to", "webdataset")
    code, out, _ = run(capsys, "data", *arguments)
    assert code == 0
    assert out == f"{tmp_path / 'copy'}: webdataset; train 3 images with 12 captions, val 1 images with 5 captions\n"
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*")}
    code, out, _ = run(capsys, "data", *arguments, "--json")
    assert (code, json.loads(out)["captions"]) == (0, {"train": 12, "val": 5})
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*")} == times
    code, out, err = run(capsys, "data", *arguments, "--split", "val")
    assert (code, out) == (1, "")
    assert "holds something else" in err


def test_convert_says_the_first_problems_on_stderr_and_counts_the_rest(tmp_path, capsys):
    pictures(tmp_path / "in")
    (tmp_path / "in" / "captions.csv").write_text("image,caption\na.png,one\n" + "../b.png,two\n" * 7)
    code, _, err = run(capsys, "data", "convert", tmp_path / "in", tmp_path / "out", "--to", "jsonl")
    assert code == 0
    assert err.count("captions.csv:") == 5
    assert "… and 2 more problems" in err


def test_convert_refuses_in_one_line(some_data, tmp_path, capsys):
    code, out, err = run(capsys, "data", "convert", some_data, tmp_path / "copy", "--to", "precomp")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "Extract them first with: maxmatch data features" in err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_an_interrupted_conversion_ends_with_130_and_resumes(some_data, tmp_path, capsys, monkeypatch):
    def advance(count):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("maxmatch.core.progress.bar", lambda what, total: nullcontext(advance))
        assert run(capsys, "data", "convert", some_data, tmp_path / "copy", "--to", "csv")[0] == 130
    assert not (tmp_path / "copy").exists()
    assert run(capsys, "data", "convert", some_data, tmp_path / "copy", "--to", "csv")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data"]


def test_a_conversion_killed_while_it_runs_resumes(tmp_path, capsys):
    """The command itself, in a process of its own, killed as soon as it has written something."""
    imagefolder.write({"train": split([picture(n) for n in range(100)], 1)}, tmp_path / "data")
    arguments = [sys.executable, "-m", "maxmatch.cli.main", "data", "convert", tmp_path / "data", tmp_path / "copy"]
    process = subprocess.Popen(
        [*arguments, "--to", "csv", "--workers", "1"], env=environment(), stderr=subprocess.DEVNULL
    )
    partial = tmp_path / ".copy.partial" / "images"
    while process.poll() is None and (not partial.is_dir() or len(list(partial.iterdir())) < 5):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "copy").exists()
    kept = {path.name: path.stat().st_ino for path in partial.iterdir() if not path.name.startswith(".")}
    assert run(capsys, "data", "convert", tmp_path / "data", tmp_path / "copy", "--to", "csv")[0] == 0
    found = {path.name: path.stat().st_ino for path in (tmp_path / "copy" / "images").iterdir()}
    assert len(found) == 100
    assert kept.items() <= found.items()


def test_features_are_stored_for_all_splits_by_the_ids_of_the_images(some_data, tmp_path, capsys):
    tiny_model("resnet152_bigru").save_pretrained(tmp_path / "model")
    arguments = ("features", some_data, tmp_path / "store", "--model", tmp_path / "model", "--device", "cpu")
    code, out, err = run(capsys, "data", *arguments, "--dtype", "float32", "--batch-size", 3)
    assert code == 0, err
    assert out == f"{tmp_path / 'store'}: 4 images, 64 × 24 float32 each\n"
    assert "crop 64 px" in err
    ids = [name for part in read_dataset(some_data).splits.values() for name in part[IMAGE].ids]
    assert FeatureStore.open(tmp_path / "store").ids == ids
    (some_data / "images" / "COCO_001.png").write_bytes(b"cut")
    code, out, err = run(
        capsys, "data", *arguments[:2], tmp_path / "other", *arguments[3:], "--split", "train", "--json"
    )
    assert (code, json.loads(out)["images"], json.loads(out)["left_out"]) == (0, 2, 1)
    assert "image 'COCO_001' of the split 'train' is left out" in err


def test_scenes_are_generated_and_counted_and_never_mixed(tmp_path, capsys):
    arguments = ["data", "scenes", tmp_path / "told", "--images", 10, "--seed", 4, "--size"]
    code, out, err = run(capsys, *arguments, 32)
    assert (code, err) == (0, "")  # no terminal, no bar
    assert out == f"{tmp_path / 'told'}: 10 pictures with five captions each (train 8, val 1, test 1)\n"
    generate(tmp_path / "made", 10, seed=4, size=32)
    for path in (tmp_path / "made").rglob("*.*"):
        assert (tmp_path / "told" / path.relative_to(tmp_path / "made")).read_bytes() == path.read_bytes()
    code, _, err = run(capsys, *arguments, 64)
    assert code == 1
    assert "size 32, not 64" in err
    assert run(capsys, *arguments, 8)[0] == 2


def test_wrong_use_ends_with_two(some_data, tmp_path, capsys):
    for arguments in (("check",), ("convert", some_data, tmp_path / "x"), ("features", some_data, tmp_path / "x")):
        assert run(capsys, "data", *arguments)[0] == 2
    assert run(capsys, "data", "convert", some_data, tmp_path / "x", "--to", "csv", "--workers", 0)[0] == 2
