"""A checkpoint that is damaged, foreign or newer is refused, and the file is named."""

import json
import os
import pickle
import signal

import pytest
from checkpoint_folders import change
from tiny_models import tiny_model

from maxmatch.model.checkpoint import CheckpointError, load


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load(saved)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_weights_cut_short_are_refused(saved, share):
    data = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(saved)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", '{"model_type": "bert"}'])
def test_a_config_that_is_not_ours_is_refused(saved, text):
    (saved / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json: not (a checkpoint of MaxMatch|readable as JSON)"):
        load(saved)


def test_a_newer_schema_is_refused_with_the_cure(saved):
    change(saved, schema_version=2, of_tomorrow=True)
    with pytest.raises(CheckpointError, match=r"schema version 2.*pip install --upgrade maxmatch"):
        load(saved)


def test_an_unknown_key_is_refused_with_a_suggestion(saved):
    change(saved, similarty="mil")
    with pytest.raises(CheckpointError, match=r"config\.json: .*Did you mean 'similarity'"):
        load(saved)


def test_another_set_size_or_width_than_the_weights_is_refused(saved):
    data = json.loads((saved / "config.json").read_text())
    data["towers"]["image"]["set_size"] = 8
    (saved / "config.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=r"towers\.image\.head\.slots: 4×16 in the file, 8×16 in the config"):
        load(saved)
    data["towers"]["image"]["set_size"] = 4
    (saved / "config.json").write_text(json.dumps({**data, "width": 32}))
    with pytest.raises(
        CheckpointError, match=r"(?s)set size \(K\) or width \(D\).*fc\.bias: 16 in the file, 32 in the config"
    ):
        load(saved)


def test_weights_of_another_model_are_refused(saved, tmp_path):
    other = tiny_model("region_bert").save_pretrained(tmp_path / "other")
    (other / "model.safetensors").rename(saved / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"(?s)does not fit config\.json.*missing in the file.*more"):
        load(saved)


def test_another_tokenizer_is_refused(saved, tmp_path):
    other = tiny_model("region_bert").save_pretrained(tmp_path / "other")
    (other / "tokenizer.json").rename(saved / "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"or the tokenizer, are of different models"):
        load(saved)


def test_a_pickle_is_never_read(saved, tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.kill, (os.getpid(), signal.SIGKILL))

    (tmp_path / "model.pt").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError, match=r"model\.pt"):
        load(tmp_path / "model.pt")
    (saved / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(saved)
