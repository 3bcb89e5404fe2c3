"""The curves of a table's models, from what their runs wrote down."""

import json

from PIL import Image

from maxmatch.core.files import METRICS
from maxmatch.reproduce import compare as module
from maxmatch.reproduce.compare import curves, draw_curves
from maxmatch.reproduce.jobs import Outcome, ReproduceOptions, plan
from maxmatch.reproduce.targets import target_called


def run_of(job, values):
    """The records of a run whose validations gave these values."""
    records = [{"kind": "train", "step": 1, "epoch": 0, "loss": 1.0}]
    records += [{"kind": "val", "step": 9 + n, "epoch": n, "rsum": value} for n, value in enumerate(values)]
    job.folder.mkdir(parents=True)
    (job.folder / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records) + '{"kind": "va')


def made_table(tmp_path, failed=()):
    made = plan(target_called("ablation"), ReproduceOptions(["scenes"], tmp_path, seeds=2))
    for place, job in enumerate(made.jobs):
        run_of(job, [10.0 + place, None, 30.0 + place])
    return made, {
        job.folder: Outcome(None if place in failed else {"figures": {}}) for place, job in enumerate(made.jobs)
    }


def test_each_line_has_a_curve_of_every_seed_that_did_not_fail(tmp_path):
    found = curves(*made_table(tmp_path, failed=[1, 2, 3]))
    assert found["MIL (Div, MMD)"] == [{1: 10.0, 3: 30.0}]
    assert "Smooth-Chamfer (Div, MMD)" not in found
    assert found["Maximal Pair Assignment (Div, MMD, GD, ISD)"] == [{1: 30.0, 3: 50.0}, {1: 31.0, 3: 51.0}]
    assert len(found) == 10


def test_an_ensemble_has_no_curve_and_groups_are_named(tmp_path):
    made = plan(target_called("flickr30k"), ReproduceOptions([f"region={tmp_path}"], tmp_path, seeds=2))
    singles = [job for job in made.jobs if len(job.members) == 1]
    for job in singles:
        run_of(job, [1.0])
    found = curves(made, {job.folder: Outcome({"figures": {}}) for job in made.jobs})
    assert sum(len(seeds) for seeds in found.values()) == len(singles)
    assert "Faster R-CNN + BERT: MaxMatch" in found
    assert not any("†" in name for name in found)


def test_the_picture_lies_beside_the_table_and_is_left_out_where_it_cannot_be_drawn(tmp_path, monkeypatch):
    made, outcomes = made_table(tmp_path)
    path = draw_curves(made, outcomes)
    assert path == tmp_path / "ablation-curves.png"
    with Image.open(path) as picture:
        assert picture.width > 1000
    path.unlink()
    assert draw_curves(made, {folder: Outcome(None) for folder in outcomes}) is None
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert draw_curves(made, outcomes) is None
    assert not path.exists()
