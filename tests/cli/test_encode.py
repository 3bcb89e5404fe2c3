import json

import numpy as np
import pytest
from commands import run
from PIL import Image
from tiny_models import tiny_model

from maxmatch.model.encoder import SetEncoder
from maxmatch.search.shards import read_manifest, read_shard


def test_help_teaches_by_examples(capsys):
    code, out, _ = run(capsys, "encode", "--help")
    assert code == 0
    assert "Examples:" in out
    assert "maxmatch encode runs/coco/best ~/Pictures --out sets" in out


def test_a_folder_becomes_shards_and_what_is_left_out_is_reported(heap, model, tmp_path, capsys):
    folder, good, bad = heap
    out = tmp_path / "sets"
    code, said, err = run(capsys, "encode", model, folder, "--out", out, "--shard-size", 25, "--device", "cpu")
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


def test_the_same_command_again_does_nothing_and_json_says_all(heap, model, tmp_path, capsys):
    folder, good, bad = heap
    arguments = (model, folder, "--out", tmp_path / "sets", "--dtype", "fp32", "--batch-size", 7, "--json")
    first = json.loads(run(capsys, "encode", *arguments)[1])
    assert (first["encoded"], first["skipped"], first["dtype"]) == (len(good), len(bad), "float32")
    code, said, err = run(capsys, "encode", *arguments)
    assert code == 0
    assert "59 of 59 are there already" in err
    assert json.loads(said) | {"seconds": 0} == first | {"seconds": 0}


def test_an_interrupted_run_ends_with_130_and_resumes(heap, model, tmp_path, capsys, monkeypatch):
    from contextlib import nullcontext

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


def test_captions_are_encoded_with_the_tower_of_texts(model, tmp_path, capsys):
    (tmp_path / "captions.txt").write_text("a dog runs\n\na cat\n")
    code, _, err = run(
        capsys, "encode", model, tmp_path / "captions.txt", "--out", tmp_path / "sets", "--dtype", "fp32"
    )
    assert code == 0, err
    shard = read_shard(tmp_path / "sets", 0, read_manifest(tmp_path / "sets"))
    assert shard.ids == ["1", "3"]
    expected = SetEncoder.from_pretrained(model).encode_texts(["a dog runs", "a cat"])
    np.testing.assert_allclose(shard.sets, expected.numpy(), atol=1e-5)


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
def test_bad_input_ends_with_one_and_one_line_that_says_the_cure(heap, model, tmp_path, capsys, change, words):
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


def test_another_model_in_the_same_folder_is_refused_with_the_cure(heap, model, tmp_path, capsys):
    Image.new("RGB", (30, 30)).save(tmp_path / "a.png")
    assert run(capsys, "encode", model, tmp_path, "--out", tmp_path / "sets")[0] == 0
    tiny_model("resnet152_bigru", seed=2).save_pretrained(tmp_path / "other")
    code, _, err = run(capsys, "encode", tmp_path / "other", tmp_path, "--out", tmp_path / "sets", "--format", "folder")
    assert code == 1
    assert f"holds the sets of another model ({model}, not {tmp_path / 'other'}). Give a new folder with --out" in err


def test_where_nothing_can_be_read_it_ends_with_one(model, tmp_path, capsys):
    (tmp_path / "a.jpg").write_text("no picture")
    code, said, err = run(capsys, "encode", model, tmp_path, "--out", tmp_path / "sets")
    assert code == 1
    assert "0 sets" in said
    assert "nothing could be encoded" in err


def test_wrong_use_ends_with_two(model, tmp_path, capsys):
    for arguments in ((), (model,), (model, tmp_path), (model, tmp_path, "--out", tmp_path / "x", "--dtype", "int8")):
        assert run(capsys, "encode", *arguments)[0] == 2
