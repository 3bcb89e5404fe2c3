"""What is measured of a trained model is what the tables speak of."""

from dataclasses import replace

import pytest
import torch
from small_runs import recipe_for, write_data

from maxmatch.data.dataset import Dataset
from maxmatch.data.load import load_data
from maxmatch.evaluation import encoding
from maxmatch.evaluation.encoding import encode_items
from maxmatch.evaluation.metrics import retrieval
from maxmatch.matching.scoring import score_matrix
from maxmatch.model.encoder import SetEncoder
from maxmatch.reproduce.jobs import ensemble, single
from maxmatch.reproduce.worker import data_of, read_ranks, work


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measure")
    recipe = recipe_for(write_data(folder / "data", val=12), epochs=1)
    made = tuple(single(folder / "cells", recipe.model_copy(update={"seed": seed}), None, "plain") for seed in range(2))
    for job in made:
        work(job, "cpu")
    return made


def encoded(job):
    split = load_data(job.recipes[0].data, print).split("val")
    return encode_items(SetEncoder.from_pretrained(job.folder / "best", "cpu"), split)


def test_a_model_is_measured_whole_and_by_each_slot(jobs):
    result, found = jobs[0].result(), encoded(jobs[0])
    images, texts = found.sets["image"], found.sets["text"]
    groups = found.groups["image"], found.groups["text"]
    assert result["figures"]["rsum"] == pytest.approx(retrieval(images, texts, *groups)["rsum"])
    for slot in range(4):
        kept = retrieval(images[:, [slot]], texts, *groups)["rsum"]
        assert result["figures"][f"image_slot_{slot + 1}_rsum"] == pytest.approx(kept)
        kept = retrieval(images, texts[:, [slot]], *groups)["rsum"]
        assert result["figures"][f"text_slot_{slot + 1}_rsum"] == pytest.approx(kept)
    assert {"image_log_variance", "text_log_variance", "slots_used", "pairing_stability"} <= result["figures"].keys()
    assert (result["split"], result["images"]) == ("val", 12)
    assert 0 < result["figures"]["chance_rsum"] < 600


def test_what_every_query_found_is_kept_and_gives_the_recalls_again(jobs):
    result = jobs[0].result()
    search = read_ranks(jobs[0].folder, result)
    for way, ranks in (("i2t", search.i2t), ("t2i", search.t2i)):
        for level in (1, 5, 10):
            share = sum(rank <= level for rank in ranks.ranks.tolist()) / len(ranks.ranks)
            assert result["figures"][f"{way}_r{level}"] == pytest.approx(100 * share)
    assert search.text_groups.tolist() == encoded(jobs[0]).groups["text"].tolist()


def test_an_ensemble_is_measured_by_the_mean_of_its_members_scores(jobs, tmp_path):
    both = ensemble(tmp_path, jobs)
    work(both, "cpu")
    sides = [encoded(job) for job in jobs]
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


def test_the_split_is_the_one_asked_for_cocos_the_recipes_or_the_validations(jobs, monkeypatch, tmp_path):
    split = object()

    def chosen(*names, asked=None):
        monkeypatch.setattr(encoding, "load_data", lambda *more: Dataset(tmp_path, "x", dict.fromkeys(names, split)))
        return data_of(replace(jobs[0], split=asked)).split

    assert chosen("train", "val", "test") == "test"
    assert chosen("train", "val") == "val"
    assert chosen("train", "val", "test", "testall") == "testall"
    assert chosen("train", "val", "test", asked="train") == "train"
    with pytest.raises(ValueError, match="has the splits train, val, not 'test'"):
        chosen("train", "val", asked="test")
