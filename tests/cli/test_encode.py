import json
from contextlib import nullcontext

import numpy as np
import pytest
from commands import run

from maxmatch.search.shards import read_manifest, read_shard


def test_a_folder_becomes_shards_and_the_same_command_again_does_nothing(heap, model, tmp_path, capsys):
    folder, good, bad = heap
    out = tmp_path / "sets"
    arguments = ("encode", model, folder, "--out", out, "--shard-size", 25, "--batch-size", 7, "--device", "cpu")
    code, said, err = run(capsys, *arguments)
    assert code == 0, err
    assert said == f"{out}: {len(good)} sets 4 × 16 fp16; {len(bad)} left out, see {out / 'skipped.jsonl'}\n"
    assert f"{folder}: 59 items (image, folder), 1 left out" in err
    assert err.count("left out: ") == 5
    assert "more was left out" in err
    manifest = read_manifest(out)
    assert manifest.model == str(model)
    shard = read_shard(out, 0, manifest)
    assert shard.sets.dtype == np.float16
    assert shard.ids[:3] == good[:3]
    code, said, err = run(capsys, *arguments, "--json")
    assert code == 0
    assert "59 of 59 are there already" in err
    known = json.loads(said)
    assert (known["encoded"], known["skipped"], known["dtype"]) == (len(good), len(bad), "float16")


def test_an_interrupted_run_ends_with_130_and_resumes(heap, model, tmp_path, capsys, monkeypatch):
    calls = []

    def advance(count):
        calls.append(count)
        if len(calls) == 3:
            raise KeyboardInterrupt

    arguments = (model, heap[0], "--out", tmp_path / "sets", "--batch-size", 10)
    with monkeypatch.context() as patched:
        patched.setattr("maxmatch.core.progress.bar", lambda what, total: nullcontext(advance))
        patched.setattr("maxmatch.search.encode_files._COMMIT_SECONDS", 0)
        code, _, err = run(capsys, "encode", *arguments)
        assert code == 130
        assert "interrupted; finished work is kept" in err
    code, _, err = run(capsys, "encode", *arguments)
    assert code == 0
    assert "30 of 59 are there already" in err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": "nowhere"}, "nowhere: no such file or folder. Check the path."),
        ({"source": "empty"}, "empty: the folder is empty."),
        ({"model": "nothing"}, "nothing: no such folder"),
        ({"more": ["--modality", "text"]}, "holds pictures, and --modality asks for captions"),
        ({"more": ["--format", "table"]}, "no table of pictures or captions. Give a file that ends in .csv"),
        ({"more": ["--split", "val"]}, "is read whole. Leave it out"),
        ({"out": "mine"}, "holds files, but no shards of sets. Give a new folder"),
    ],
)
def test_bad_input_ends_with_one_and_one_line_with_the_cure(heap, model, tmp_path, capsys, change, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    source = tmp_path / change["source"] if "source" in change else heap[0]
    given = tmp_path / change["model"] if "model" in change else model
    out = tmp_path / change.get("out", "sets")
    code, said, err = run(capsys, "encode", given, source, "--out", out, *change.get("more", []))
    assert (code, said) == (1, "")
    lines = err.splitlines()
    assert words in lines[-1]
    assert all(line.startswith("maxmatch: ") for line in lines)
    assert not (tmp_path / "sets").exists()


def test_where_nothing_can_be_read_it_ends_with_one(model, tmp_path, capsys):
    (tmp_path / "a.jpg").write_text("no picture")
    code, said, err = run(capsys, "encode", model, tmp_path, "--out", tmp_path / "sets")
    assert code == 1
    assert "0 sets" in said
    assert "nothing could be encoded" in err


def test_wrong_use_ends_with_two(model, tmp_path, capsys):
    for arguments in ((), (model,), (model, tmp_path), (model, tmp_path, "--out", tmp_path / "x", "--dtype", "int8")):
        assert run(capsys, "encode", *arguments)[0] == 2
