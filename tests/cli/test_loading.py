"""The model that a command names."""

import pytest
import torch
from PIL import Image
from tiny_models import tiny_model

from maxmatch.cli import common
from maxmatch.cli.common import load_for_search, load_model, open_folders
from maxmatch.model.names import CheckpointError, name_to_record
from maxmatch.model.onnx_runtime import FILE


def test_a_run_stands_for_its_best_epoch(tmp_path):
    best, last = tiny_model("region_bigru", seed=1), tiny_model("region_bigru", seed=2)
    best.save_pretrained(tmp_path / "run" / "best")
    last.save_pretrained(tmp_path / "run" / "last")
    (tmp_path / "run" / "recipe.yaml").write_text("name: x\n")
    found = load_model(str(tmp_path / "run"), "cpu")
    assert torch.equal(found.encode_texts(["a dog"]), best.encode_texts(["a dog"]))
    assert name_to_record(str(tmp_path / "run")) == str((tmp_path / "run" / "best").resolve())
    with pytest.raises(ValueError, match="reads image, text, not audio"):
        load_model(str(tmp_path / "run" / "last"), "cpu", "audio")


def test_a_run_without_a_finished_epoch_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("name: x\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="run: a run without best/: no epoch has been measured"):
        load_model("run", "cpu")


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """What is taken to run the model of a folder that has graphs: which of the two loaders is asked."""
    (tmp_path / FILE).write_text("{}")
    monkeypatch.setattr(common, "load_model", lambda name, device: "torch")
    monkeypatch.setattr("maxmatch.model.onnx_runtime.OnnxEncoder.from_folder", lambda folder: "onnx")
    return lambda device=None, **options: load_for_search(str(tmp_path), device, **options)


def test_a_query_is_encoded_on_the_cpu_and_many_photos_on_a_gpu_where_there_is_one(taken, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [taken(), taken(many=True), taken("cpu", many=True), taken("cuda")] == ["onnx", "torch", "onnx", "torch"]
    assert taken(runtime="onnx", many=True) == "onnx"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [taken(), taken(many=True)] == ["onnx", "onnx"]


def test_only_the_first_reading_of_a_folder_is_of_many_photos(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "photos" / "a.png")
    model, many = tiny_model("resnet152_bigru"), tiny_model("resnet152_bigru")

    def opened():
        library, used = open_folders(
            [tmp_path / "photos"], "named", None, lambda name, device: model, lambda name, device: many
        )
        library.close()
        return used

    assert opened() is many
    assert opened() is model
