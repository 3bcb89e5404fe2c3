"""Jobs: what is measured of a trained model; many at a time, each in its process, whatever becomes of the others."""

import os
import queue
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from small_runs import recipe_for, write_data

from maxmatch.data.dataset import Dataset
from maxmatch.data.load import load_data
from maxmatch.evaluation import encoding
from maxmatch.evaluation.encoding import encode_items, encode_model
from maxmatch.evaluation.metrics import retrieval
from maxmatch.matching.scoring import score_matrix
from maxmatch.model.encoder import SetEncoder
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.reproduce import worker
from maxmatch.reproduce.targets import ensemble, single
from maxmatch.reproduce.worker import (
    LOG,
    NOT_YET,
    alone,
    data_of,
    end_with_the_parent,
    measure_job,
    read_ranks,
    sweep,
    work,
    write_ranks,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two jobs whose models are trained and measured."""
    folder = tmp_path_factory.mktemp("measure")
    recipe = recipe_for(write_data(folder / "data", val=12), epochs=1)
    made = tuple(single(folder / "cells", recipe.model_copy(update={"seed": seed}), None, "plain") for seed in range(2))
    for job in made:
        work(job, "cpu")
    return made


def encoded(job):
    split = load_data(job.recipes[0].data, print).split("val")
    return encode_items(SetEncoder.from_pretrained(job.folder / "best", "cpu"), split)


def test_a_model_is_measured_whole_and_by_each_slot(trained):
    result, found = trained[0].result(), encoded(trained[0])
    images, texts = found.sets["image"], found.sets["text"]
    groups = found.groups["image"], found.groups["text"]
    figures = result["figures"]
    assert figures["rsum"] == pytest.approx(retrieval(images, texts, *groups)["rsum"])
    for slot in range(4):
        for side, kept in (("image", (images[:, [slot]], texts)), ("text", (images, texts[:, [slot]]))):
            assert figures[f"{side}_slot_{slot + 1}_rsum"] == pytest.approx(retrieval(*kept, *groups)["rsum"])
    assert {"image_log_variance", "text_log_variance", "slots_used", "pairing_stability"} <= figures.keys()
    assert (result["split"], result["images"]) == ("val", 12)
    assert 0 < figures["chance_rsum"] < 600


def test_what_every_query_found_is_kept_and_gives_the_recalls_again(trained):
    result = trained[0].result()
    search = read_ranks(trained[0].folder, result)
    for way, ranks in (("i2t", search.i2t), ("t2i", search.t2i)):
        for level in (1, 5, 10):
            share = sum(rank <= level for rank in ranks.ranks.tolist()) / len(ranks.ranks)
            assert result["figures"][f"{way}_r{level}"] == pytest.approx(100 * share)
    assert search.text_groups.tolist() == encoded(trained[0]).groups["text"].tolist()


def test_all_captions_of_an_image_are_measured_from_one_encoding_and_kept(trained, tmp_path, monkeypatch):
    result, found = trained[0].result(), encoded(trained[0])
    scores = score_matrix(found.sets["image"], found.sets["text"])
    groups, others = found.groups["image"].tolist(), found.groups["text"].tolist()
    places = {}  # of an image's captions in its list; at one score the wrong ones stand first
    for image, row in zip(groups, scores.tolist(), strict=True):
        listed = sorted((-score, other == image) for score, other in zip(row, others, strict=True))
        places[image] = [place for place, (_, true) in enumerate(listed, start=1) if true]
    for depth in (5, 10, 20):
        covered = [sum(place <= depth for place in own) / len(own) for own in places.values()]
        assert result["figures"][f"i2t_coverage_{depth}"] == pytest.approx(100 * statistics.mean(covered))
    precise = [
        sum(nth / place for nth, place in enumerate(own, start=1) if place <= len(own)) / len(own)
        for own in places.values()
    ]
    assert result["figures"]["i2t_map_at_r"] == pytest.approx(100 * statistics.mean(precise))
    for side in ("image", "text"):
        assert result["figures"][f"{side}_bytes_float16"] == found.sets[side][0].numel() * 2
    assert {"slot_variation", "image_content_log_variance"} <= result["figures"].keys()
    search = read_ranks(trained[0].folder, result)
    assert search.pairs.row.tolist() == [groups.index(group) for group in sorted(others)]
    wrong = [places[image][nth] - nth for image in groups for nth in range(len(places[image]))]
    assert sorted(search.pairs.in_row.tolist()) == sorted(wrong)

    times = []
    monkeypatch.setattr(worker, "encode_model", lambda *more, **named: times.append(1) or encode_model(*more, **named))
    again, kept = measure_job(trained[0], "cpu")
    assert times == [1]
    assert again["figures"] == pytest.approx(result["figures"])
    digests = write_ranks(tmp_path, kept)
    assert digests == {name: result[name] for name in ("ranks", "pairs")}


def test_an_ensemble_is_measured_by_the_mean_of_its_members_scores(trained, tmp_path):
    both = ensemble(tmp_path, trained)
    work(both, "cpu")
    sides = [encoded(job) for job in trained]
    scores = torch.stack([score_matrix(one.sets["image"], one.sets["text"]) for one in sides]).mean(0)
    image_groups, text_groups = sides[0].groups["image"], sides[0].groups["text"]
    recalls = []
    for table, rows, columns in ((scores, image_groups, text_groups), (scores.T, text_groups, image_groups)):
        for level in (1, 5, 10):
            hits = 0
            for query in range(len(table)):
                best = max(table[query, place] for place in range(len(columns)) if columns[place] == rows[query])
                wrong = [table[query, place] for place in range(len(columns)) if columns[place] != rows[query]]
                hits += sum(score >= best for score in wrong) < level
            recalls.append(100 * hits / len(table))
    assert both.result()["figures"]["rsum"] == pytest.approx(sum(recalls))
    assert not any("slot" in name for name in both.result()["figures"])
    assert "i2t_map_at_r" in both.result()["figures"]


def test_the_split_is_the_one_asked_for_cocos_the_recipes_or_the_validations(trained, monkeypatch, tmp_path):
    def chosen(*names, asked=None):
        monkeypatch.setattr(encoding, "load_data", lambda *more: Dataset(tmp_path, "x", dict.fromkeys(names, object())))
        return data_of(replace(trained[0], split=asked)).split

    assert chosen("train", "val", "test") == "test"
    assert chosen("train", "val") == "val"
    assert chosen("train", "val", "test", "testall") == "testall"
    assert chosen("train", "val", "test", asked="train") == "train"
    with pytest.raises(ValueError, match="has the splits train, val, not 'test'"):
        chosen("train", "val", asked="test")


# A sweep.


@pytest.fixture
def jobs(tmp_path):
    recipe = load_recipe("scenes", ["data.path=here"])
    return [single(tmp_path, recipe.model_copy(update={"seed": seed}), None, "plain") for seed in range(4)]


@pytest.fixture
def programs(monkeypatch):
    """In place of training: programs by the folder of the job; without one it writes a result. `started`: the seeds of
    those that were started, and how many then ran.
    """
    found, alive = {"started": []}, []

    def start(job, device):
        alive[:] = [process for process in alive if process.poll() is None]
        job.folder.mkdir(exist_ok=True)
        if job.folder not in found:
            job.finish({"figures": {"rsum": float(job.recipes[-1].seed)}, "seconds": 0.0})
        with (job.folder / LOG).open("wb") as log:
            command = [sys.executable, "-S", "-c", found.get(job.folder, "pass")]
            alive.append(subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log))
        found["started"].append((job.recipes[-1].seed, len(alive)))
        return alive[-1]

    monkeypatch.setattr(worker, "start", start)
    monkeypatch.setattr(worker, "_LOOK_EVERY", 0.02)
    return found


def run(jobs, at_once=2, report=lambda job, outcome: None):
    outcomes = sweep(jobs, at_once, None, report)
    return [outcomes[job.folder] for job in jobs]


def test_all_are_done_in_order_and_reported_and_not_done_again(jobs, programs):
    jobs[1].finish({"figures": {"rsum": 7.0}})
    reported = []
    outcomes = run(jobs, report=lambda job, outcome: reported.append(job.folder))
    assert [seed for seed, _ in programs["started"]] == [0, 2, 3]
    assert [outcome.result["figures"]["rsum"] for outcome in outcomes] == [0.0, 7.0, 2.0, 3.0]
    assert [outcome.again for outcome in outcomes] == [False, True, False, False]
    assert sorted(reported) == sorted(job.folder for job in jobs)
    assert all(outcome.again for outcome in run(jobs))
    assert len(programs["started"]) == 3


@pytest.mark.parametrize(("device", "at_once", "apart"), [("cuda:0", 3, 0.2), ("cuda", 1, 0.0), ("cpu", 3, 0.0)])
def test_on_a_gpu_jobs_that_run_at_once_begin_apart(jobs, programs, monkeypatch, device, at_once, apart):
    begun, start = [], worker.start
    monkeypatch.setattr(worker, "start", lambda *given: (begun.append(time.monotonic()), start(*given))[1])
    monkeypatch.setattr(worker, "_APART", apart or 1e9)  # where it must not be waited for: for ever
    sweep(jobs, at_once, device, lambda job, outcome: None)
    assert len(begun) == len(jobs)
    assert all(later - earlier >= apart for earlier, later in pairwise(begun))


def test_with_none_at_once_nothing_is_started_and_what_is_done_is_told(jobs, programs):
    jobs[1].finish({"figures": {"rsum": 7.0}})
    outcomes = run(jobs, at_once=0)
    assert not programs["started"]
    assert [outcome.failure for outcome in outcomes] == [NOT_YET, "", NOT_YET, NOT_YET]
    assert outcomes[1].result["figures"]["rsum"] == 7.0


def test_no_more_than_so_many_run_at_once(jobs, programs):
    programs |= {job.folder: "import time; time.sleep(0.2)" for job in jobs}
    run(jobs, at_once=2)
    assert max(alive for _, alive in programs["started"]) == 2


def test_one_that_fails_tells_why_and_does_not_stop_the_others(jobs, programs, tmp_path):
    expected = {
        "import sys; print('Traceback …\\nmaxmatch: here: no such file.\\nMake it.', file=sys.stderr); sys.exit(1)": (
            "here: no such file."
        ),
        "raise KeyError('x')": "KeyError: 'x'",
        "raise SystemExit(3)": "ended with exit code 3 and no result",
        "pass": "ended with exit code 0 and no result",
        "raise SystemExit(130)": "interrupted; run the command again to resume",
        "raise SystemExit(12)": "the GPU's memory was full, with no other model beside it: try a smaller "
        "train.batch_size, or a larger train.accumulate",
        "import os; os.kill(os.getpid(), 9)": "killed by signal 9, perhaps out of memory: try fewer --jobs",
    }
    recipe = jobs[0].recipes[0]
    bad = [single(tmp_path, recipe.model_copy(update={"seed": 10 + n}), None, "plain") for n in range(len(expected))]
    programs |= {job.folder: program for job, program in zip(bad, expected, strict=True)}
    *failed, good = run([*bad, jobs[0]])
    assert [outcome.failure.split(" (")[0] for outcome in failed] == list(expected.values())
    assert not any(outcome.result for outcome in failed)
    may_end_another_time = [outcome.stopped for outcome in failed]
    assert may_end_another_time == [False] * 4 + [True, False, True]
    assert good.result is not None


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_process_that_finds_the_gpu_full_says_so_by_its_exit_code(jobs, monkeypatch, error):
    def work(job, device):
        try:
            raise error
        finally:  # as a recording does that is cut short
            raise RuntimeError("capturing stream has unjoined work")

    assert process_ends(jobs[0], work, monkeypatch) == 12


def test_another_error_is_not_taken_for_a_full_gpu(jobs, monkeypatch):
    def work(job, device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert process_ends(jobs[0], work, monkeypatch) == 1


def test_a_job_that_another_process_works_at_has_not_failed(jobs, programs, monkeypatch):
    """As where two commands need the same model: of a study, its method waits and is not chosen by fewer trials."""
    monkeypatch.setattr(worker, "_PATIENCE", 0.1)
    with alone(jobs[0].folder):
        code = process_ends(jobs[0], None, monkeypatch)
    reason = "maxmatch: it: another process is writing there. Wait for it."
    programs[jobs[0].folder] = f"import sys; print({reason!r}, file=sys.stderr); sys.exit({code})"
    (outcome,) = run(jobs[:1])
    assert (outcome.result, outcome.stopped) == (None, True)
    assert "another process is writing there" in outcome.failure


def process_ends(job, work, monkeypatch) -> int:
    """The exit code of a process with this work."""
    monkeypatch.setattr(worker, "work", work)
    monkeypatch.setattr(worker, "end_with_the_parent", lambda: None)
    monkeypatch.setattr(worker.sys, "argv", ["worker", str(job.folder)])
    job.write()
    with pytest.raises(SystemExit) as ended:
        worker.main()
    return ended.value.code


def full_at_first(job, kept) -> str:
    """A program that finds the GPU full the first time, and writes a result the second."""
    job.finish({"figures": {"rsum": float(job.recipes[-1].seed)}})
    result, kept, tried = (
        job.folder / "result.json",
        kept / f"{job.folder.name}.json",
        kept / f"{job.folder.name}.tried",
    )
    result.rename(kept)
    return (
        f"import os, pathlib, time; tried = pathlib.Path({str(tried)!r}); time.sleep(0.2)\n"
        f"if tried.exists(): os.rename({str(kept)!r}, {str(result)!r})\n"
        "else: tried.touch(); os._exit(12)"
    )


def test_a_job_that_finds_the_gpu_full_beside_others_is_resumed_with_one_less_at_once(jobs, programs, tmp_path, capsys):
    full, *others = jobs
    programs |= {job.folder: "import time; time.sleep(0.6)" for job in others}
    programs[full.folder] = full_at_first(full, tmp_path)
    assert run(jobs, at_once=3)[0].result["figures"]["rsum"] == 0.0
    seeds, alive = zip(*programs["started"], strict=True)
    assert seeds == (0, 1, 2, 0, 3)
    assert max(alive[:3]) == 3
    assert max(alive[3:]) == 2
    assert "memory was full; it is resumed, with --jobs 2" in capsys.readouterr().out


def test_all_jobs_that_find_the_gpu_full_together_are_resumed(jobs, programs, tmp_path):
    programs |= {job.folder: full_at_first(job, tmp_path) for job in jobs}
    assert [outcome.result["figures"]["rsum"] for outcome in run(jobs, at_once=4)] == [0.0, 1.0, 2.0, 3.0]


def test_a_job_too_large_for_the_gpu_fails_and_the_others_run_at_once_again(jobs, programs):
    large, *others = jobs
    programs |= {job.folder: "import time; time.sleep(0.6)" for job in others}
    programs[large.folder] = "import time; time.sleep(0.2); raise SystemExit(12)"
    outcome = run(jobs, at_once=2)[0]
    assert "train.batch_size" in outcome.failure
    assert not outcome.stopped  # it would find it full another time, too
    assert programs["started"] == [(0, 1), (1, 2), (0, 1), (2, 1), (3, 2)]


def test_an_ensemble_waits_for_its_members_and_is_lost_with_them(jobs, programs, tmp_path):
    both, lost = ensemble(tmp_path, (jobs[0], jobs[1])), ensemble(tmp_path, (jobs[2], jobs[3]))
    programs[jobs[2].folder] = "raise SystemExit(1)"
    outcomes = run([*jobs, both, lost], at_once=4)
    assert [seed for seed, _ in programs["started"]] == [0, 1, 2, 3, 1]
    assert outcomes[-2].result is not None
    assert outcomes[-1].failure == "one of its models failed"


def test_interrupted_it_ends_its_processes_through_their_input(jobs, programs, monkeypatch):
    programs |= {job.folder: "import sys; sys.stdin.read(); sys.stderr.write('saved')" for job in jobs}
    seen = []

    def interrupt(seconds):
        seen.append(seconds)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(worker.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(jobs)
    assert [(job.folder / LOG).read_text() for job in jobs[:2]] == ["saved", "saved"]


def test_a_process_asks_itself_to_stop_when_its_standard_input_ends(monkeypatch):
    """Which it does when the process that started it is gone."""
    asked = queue.Queue()
    monkeypatch.setattr(worker.os, "kill", lambda process, number: asked.put((process, number)))
    before, (reading, writing) = os.dup(0), os.pipe()
    os.dup2(reading, 0)
    try:
        end_with_the_parent()
        os.write(writing, b"still here")
        assert asked.empty()
        os.close(writing)
        assert asked.get(timeout=30) == (os.getpid(), signal.SIGTERM)
    finally:
        os.dup2(before, 0)
        for file in (before, reading):
            os.close(file)


def test_two_processes_do_not_work_in_one_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_PATIENCE", 0.3)
    with (
        alone(tmp_path / "run"),
        pytest.raises(ValueError, match="another process is writing there"),
        alone(tmp_path / "run"),
    ):
        pass
    with alone(tmp_path / "run"):
        pass


def test_a_process_as_users_have_it_fails_with_its_reason(jobs):
    (outcome,) = sweep(jobs[:1], 1, "nonsense", lambda job, outcome: None).values()
    assert "nonsense" in outcome.failure
    assert outcome.failure.endswith(f"({jobs[0].folder / LOG})")
