"""What a run writes and prints."""

import json
import sys

import pytest
import torch
from small_runs import recipe_for

from maxmatch.core.files import METRICS, read_metrics
from maxmatch.losses.objective import TERMS, LossTerms
from maxmatch.training.log import TRACKED, LossWindow, RunLog, epoch_line
from maxmatch.training.loop import train


def log_in(folder, records=0, writes=True):
    log = RunLog(folder, recipe_for("nowhere"), writes, show_progress=False)
    log.begin(0, 10, records)
    return log


def strict(line):
    """JSON as every language reads it, without NaN."""
    return json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_record_is_one_line_of_json_with_six_digits(tmp_path):
    with log_in(tmp_path) as log:
        log.record("train", 3, 0, {"loss": 1 / 3, "lr": 1e-12, "nothing": float("nan"), "much": float("inf")})
        log.record("val", 3, 0, {"rsum": 123456.7})
        lines = (tmp_path / METRICS).read_text().splitlines()  # it is there at once
    assert [strict(line) for line in lines] == [
        {"kind": "train", "step": 3, "epoch": 0, "loss": 0.333333, "lr": 1e-12, "nothing": None, "much": None},
        {"kind": "val", "step": 3, "epoch": 0, "rsum": 123457.0},
    ]
    assert log.records == 2
    assert [record["kind"] for record in read_metrics(tmp_path)] == ["train", "val"]
    assert [record["rsum"] for record in read_metrics(tmp_path, "val")] == [123457.0]


def test_on_resuming_the_records_of_steps_that_will_be_repeated_are_cut_off(tmp_path):
    with log_in(tmp_path) as log:
        for step in (1, 2, 3):
            log.record("train", step, 0, {"loss": float(step)})
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"kind": "train", "st')  # killed while writing
    with log_in(tmp_path, records=2) as log:
        assert log.records == 2
        log.record("train", 3, 0, {"loss": 30.0})
    assert [record["loss"] for record in read_metrics(tmp_path)] == [1, 2, 30]
    with log_in(tmp_path, records=9) as log:
        assert log.records == 3
    assert [path.name for path in tmp_path.iterdir()] == [METRICS]


def test_only_the_first_process_prints_and_writes(tmp_path, capsys):
    with log_in(tmp_path, writes=False) as log:
        log.record("train", 1, 0, {"loss": 1.0})
        log.print("hello")
        log.show(0, {"loss": 1.0})
        log.step()
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().err == ""


def test_the_window_gives_the_mean_of_each_term_and_keeps_the_last_triplet_losses():
    window, losses = LossWindow(), [9.0]
    for value in (1.0, 2.0, 6.0):
        window.add(LossTerms(total=torch.tensor(value), triplet=torch.tensor(10 * value)), items=4)
    figures = window.flush(losses, keep=3)
    assert (figures["loss"], figures["triplet"]) == (3.0, 30.0)
    assert list(figures) == ["loss", "triplet", "items_per_second"]
    assert losses == [10.0, 20.0, 60.0]
    assert figures["items_per_second"] == pytest.approx(12 / window.seconds)
    window.add(LossTerms(total=torch.tensor(5.0)), items=4)
    assert window.flush(losses, keep=3)["loss"] == 5.0
    assert losses == [20.0, 60.0, 5.0]


def test_an_epoch_is_one_line_with_loss_rsum_collapse_speed_and_time_left():
    values = {
        "loss": 0.51234, "rsum": 431.25, "i2t_r1": 60.5, "t2i_r1": 44.0, "image_log_variance": -1.234,
        "text_log_variance": -2.5, "slots_used": 1.0, "pairing_stability": 0.97, "items_per_second": 1234.5, "x": 1.0,
    }  # fmt: skip
    assert epoch_line(2, 30, values, 3725.0) == (
        "epoch 3/30  loss 0.5123  RSUM 431.2  i→t R@1 60.5  t→i R@1 44  log var image -1.234  log var text -2.5"
        "  slots used 1  pairing 0.97  items/s 1234  1:02:05 left"
    )
    assert epoch_line(0, 1, {"loss": 2.0}) == "epoch 1/1  loss 2"


def test_losses_and_validation_are_written_to_file_terminal_and_tensorboard(data, tmp_path, capsys):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    run = tmp_path / "run"
    train(recipe_for(data, epochs=2, log_every=2, tensorboard=True), run, show_progress=True)
    records = [strict(line) for line in (run / METRICS).read_text().splitlines()]
    assert [(one["kind"], one["step"], one["epoch"]) for one in records] == [
        ("train", 2, 0),
        ("train", 3, 0),
        ("val", 3, 0),
        ("train", 4, 1),
        ("train", 6, 1),
        ("val", 6, 1),
    ]
    # There is no teacher, there are no phrases, no Gaussians and no matching over captions.
    terms = set(TERMS) - {"distillation", "phrases", "pair_bce", "gaussian_kl", "caption_matching"}
    assert {"loss", *terms, "lr", "items_per_second"} <= records[0].keys()
    found = {"i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum", "chance_rsum"}
    found |= {"image_log_variance", "text_log_variance", "slots_used", "pairing_stability"}
    assert found <= records[2].keys()
    printed = capsys.readouterr().err
    assert "6/6" in printed  # the progress bar
    lines = [line for line in printed.splitlines() if line.startswith("epoch ") and "RSUM" in line]
    assert len(lines) == 2
    for part in ("loss ", "RSUM ", "log var image ", "slots used ", "pairing ", "items/s ", "left"):
        assert part in lines[0]
    (file,) = (run / "tensorboard").iterdir()
    logged = {value.tag: event.step for event in EventFileLoader(str(file)).Load() for value in event.summary.value}
    assert logged["train/loss"] == logged["val/rsum"] == logged["val/image_log_variance"] == 6


def test_a_tracker_that_is_not_installed_is_named_before_anything_is_done(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"train\.tracker: wandb is not installed\. pip install wandb"):
        train(recipe_for(data, tracker="wandb"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


TRACKER = """
calls = []
init = lambda **options: calls.append(("init", options))
log = lambda values: calls.append(("log", values))
finish = lambda: calls.append(("finish", None))
"""


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_tracker_gets_every_record_and_a_resumed_run_continues_in_it(tracker, tmp_path, monkeypatch, capsys):
    (tmp_path / f"{tracker}.py").write_text(TRACKER)
    monkeypatch.syspath_prepend(tmp_path)

    def tracked(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with RunLog(folder, recipe_for("nowhere", tracker=tracker), True, show_progress=False) as log:
            log.begin(0, 10)
            log.record("train", 3, 0, {"loss": 0.5})
        return sys.modules.pop(tracker).calls

    first, again, other = tracked(tmp_path / "run"), tracked(tmp_path / "run"), tracked(tmp_path / "elsewhere" / "run")
    assert [name for name, _ in first] == ["init", "log", "finish"]
    assert first[1][1] == {"train/loss": 0.5, "epoch": 0, "step": 3}
    options = first[0][1]
    assert options["name"] == f"run-{(tmp_path / 'run' / TRACKED).read_text()}"
    assert options["config"]["train"]["epochs"] == 3
    assert options["resume"] == "allow"
    assert ("id" in options) == (tracker == "wandb")
    assert options == again[0][1]
    assert options["name"] != other[0][1]["name"]
    warnings = [line for line in capsys.readouterr().err.splitlines() if "trackio is deprecated" in line]
    assert bool(warnings) == (tracker == "trackio")
