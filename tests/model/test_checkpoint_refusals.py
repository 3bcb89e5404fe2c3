"""A checkpoint that is damaged, foreign or newer is refused, and the file is named."""

import json
import os
import pickle
import signal

import pytest
from tiny_models import tiny_model

from maxmatch.model.checkpoint import CheckpointError, load


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def with_set_size(folder, size):
    towers = json.loads((folder / "config.json").read_text())["towers"]
    towers["image"]["set_size"] = size
    change(folder, towers=towers)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *((lambda f, name=name: (f / name).unlink(), name) for name in ("config.json", "tokenizer.json")),
        (lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors is missing"),
        *(
            (lambda f, share=share: cut(f / "model.safetensors", share), r"model\.safetensors: not a complete")
            for share in (0.0, 0.001, 0.5, 0.999)
        ),
        *(
            (lambda f, text=text: (f / "config.json").write_text(text), r"config\.json: not (a check|readable as JSON)")
            for text in ("", "{", "[1]", "\x00", '{"model_type": "bert"}')
        ),
        (lambda f: change(f, schema_version=2, of_tomorrow=True), r"schema version 2.*pip install --upgrade maxmatch"),
        (lambda f: change(f, similarty="mil"), r"config\.json: .*Did you mean 'similarity'"),
        (lambda f: change(f, similarity_options={"alpha": 3}), r"similarity_options\.alpha: maxmatch takes no options"),
        (lambda f: with_set_size(f, 8), r"towers\.image\.head\.slots: 4×16 in the file, 8×16 in the config"),
        (lambda f: change(f, width=32), r"(?s)set size \(K\) or width \(D\).*fc\.bias: 16 in the file, 32 in the con"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_file_is_named(saved, damage, message):
    damage(saved)
    with pytest.raises(CheckpointError, match=message):
        load(saved)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("model.safetensors", r"(?s)does not fit config\.json.*missing in the file.*more"),
        ("tokenizer.json", "or the tokenizer, are of different models"),
    ],
)
def test_a_file_of_another_model_is_refused(saved, tmp_path, file, message):
    other = tiny_model("region_bert").save_pretrained(tmp_path / "other")
    (other / file).rename(saved / file)
    with pytest.raises(CheckpointError, match=message):
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
