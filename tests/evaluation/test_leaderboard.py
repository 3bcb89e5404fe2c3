"""The file of results: appended to by several processes, killed at any moment; what may be compared."""

import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import torch
from made_splits import split_of

from maxmatch.core.array_checks import UsageError
from maxmatch.core.files import append_line
from maxmatch.evaluation import evaluate_runs
from maxmatch.evaluation.encoding import save_encoded
from maxmatch.evaluation.leaderboard import (
    append_record,
    compare_records,
    data_digest,
    new_record,
    read_records,
    render_results,
)

FORK = multiprocessing.get_context("fork")


def record(model="m", digest="d", protocol="plain", rsum=100.0):
    data = {"path": "data", "split": "test", "digest": digest, "images": 5, "captions": 25}
    return new_record(model, "identity", "maxmatch", data, protocol, {"rsum": rsum, "i2t_r1": rsum / 6})


def test_what_is_appended_is_read_again_with_versions(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    records = [record("a"), record("b", rsum=200.0)]
    for one in records:
        append_record(path, one)
    assert read_records(path) == records
    assert {"python", "maxmatch", "torch", "numpy"} <= records[0].versions.keys()
    text = render_results(records)
    assert text.index(" b ") < text.index(" a ")  # the best first


def test_the_answers_that_cocos_captions_miss_have_columns_where_they_were_measured():
    figures = {"coco_5k_rsum": 400.0, "cxc_rsum": 432.1, "eccv_i2t_map_at_r": 25.4, "eccv_t2i_map_at_r": 35.6}
    known = new_record("a", "i", "maxmatch", {"digest": "d"}, "coco", figures)
    for shown in ("CxC RSUM", "432.1", "ECCV Caption", "25.4", "35.6"):
        assert shown in render_results([known])
    assert "CxC" not in render_results([record()])


def append_many(path, name, count):
    for number in range(count):
        append_line(path, json.dumps({"who": name, "number": number, "padding": name * 3000}))


def test_processes_that_append_at_once_spoil_no_line(tmp_path):
    path = tmp_path / "results.jsonl"
    workers = [FORK.Process(target=append_many, args=(path, name, 40)) for name in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for name in "abc":
        assert [line["number"] for line in lines if line["who"] == name] == list(range(40))


@pytest.mark.parametrize("after", [1, 6, 15])
def test_a_kill_at_any_moment_loses_at_most_the_line_being_written(tmp_path, after):
    path = tmp_path / "results.jsonl"
    append_record(path, record("first"))
    worker = FORK.Process(target=append_many, args=(path, "x", 10**6))
    worker.start()
    deadline = time.monotonic() + 60
    while path.read_bytes().count(b"\n") < 1 + after and time.monotonic() < deadline:
        pass
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    append_record(path, record("last"))
    assert [one.model for one in read_records(path, lambda line: None)] == ["first", "last"]


def test_a_line_cut_short_is_reported_and_spoils_no_other(tmp_path):
    path = tmp_path / "results.jsonl"
    append_record(path, record("first"))
    with path.open("a") as file:
        file.write('{"format": "maxmatch-res')
    append_record(path, record("second"))
    said = []
    assert [one.model for one in read_records(path, said.append)] == ["first", "second"]
    assert len(said) == 1
    assert f"{path}:2" in said[0]


def test_a_line_of_another_version_is_left_out_and_named(tmp_path):
    path = tmp_path / "results.jsonl"
    append_record(path, record())
    line = json.loads(path.read_text())
    append_line(path, json.dumps({**line, "version": 2}))
    append_line(path, json.dumps({"some": "thing"}))
    said = []
    assert len(read_records(path, said.append)) == 1
    assert "version 2" in said[0]
    assert len(said) == 2


def test_only_results_of_the_same_data_and_protocol_are_compared():
    same = [record("a", rsum=300.0), record("b", rsum=310.5)]
    rows = {row["figure"]: row for row in compare_records(same, [1, 2]).rows}
    assert rows["rsum"]["d1"] == pytest.approx(10.5)
    for other in (record("c", digest="e"), record("c", protocol="coco")):
        with pytest.raises(UsageError, match="not measured on the same data"):
            compare_records([*same, other], [1, 3])
        assert len(render_results([*same, other]).split("\n\n")) == 2
    for numbers in ([1], [1, 3], [0, 1]):
        with pytest.raises(UsageError, match="compare"):
            compare_records(same, numbers)


def test_the_digest_is_of_ids_groups_and_captions_and_of_nothing_else():
    split = split_of(6, 2)
    captions = [f"caption {n}" for n in range(12)]
    whole = data_digest(split, captions)
    assert data_digest(split_of(6, 2, size=2, seed=9), captions) == whole  # another model
    others = [
        data_digest(split, [*captions[:-1], "another"]),
        data_digest(split),
        data_digest(split.only(np.arange(5)), captions[:10]),
        data_digest(split_of(4, 3), captions),
    ]
    assert len({whole, *others}) == 5


def test_an_evaluation_appends_a_line_for_each_model_and_ensemble(tmp_path):
    names = []
    for seed in (0, 1):
        split = split_of(8, 2, seed=seed)
        notes = {"identity": f"model {seed}", "digest": "of the data", "similarity": "maxmatch"}
        save_encoded(type(split)(split.sets, split.groups, split.ids, notes), tmp_path / f"{seed}.safetensors")
        names.append(tmp_path / f"{seed}.safetensors")
    path = tmp_path / "results.jsonl"
    found = evaluate_runs(names, ensemble=True, draws=0, results=path)
    records = read_records(path)
    assert [one.identity for one in records] == ["model 0", "model 1", "model 0 + model 1"]
    assert {one.data["digest"] for one in records} == {"of the data"}
    for one, result in zip(records, found.results, strict=True):
        assert one.figures == pytest.approx(dict(result.figures))
    assert torch.equal(found.encoded[0].groups["image"], torch.arange(8))
