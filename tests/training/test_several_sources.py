"""Several data sets train as one, and each is validated by itself."""

import json

import numpy as np
import pytest
import torch
from small_runs import recipe_for, write_data

from maxmatch.data.dataset import IMAGE, TEXT, without_groups, without_items
from maxmatch.data.load import load_data
from maxmatch.data.sampler import GroupSampler
from maxmatch.evaluation.encoding import data_for, encode_split, find_models
from maxmatch.recipe.schema import Recipe
from maxmatch.training.diagnostics import measures
from maxmatch.training.distributed import Processes
from maxmatch.training.loop import train
from maxmatch.training.prepare import describe, group_weights, prepare

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two data sets of different sizes; one has three captions per image."""
    folder = tmp_path_factory.mktemp("two")
    return [
        str(write_data(folder / "first", train=32, val=12)),
        str(write_data(folder / "second", train=20, val=8, captions=3, seed=1)),
    ]


def recipe_of(paths, data=None, **train):
    whole = recipe_for("unused", **train).model_dump(mode="json")
    return Recipe.model_validate(whole | {"data": whole["data"] | {"path": paths, **(data or {})}})


def everything(split):
    """The values of each group, by the ids of its items."""
    by_group = [{} for _ in range(split.size)]
    for name, items in split.items.items():
        for value, group, one in zip(items.values, items.groups, items.ids, strict=True):
            by_group[group][f"{name} {one}"] = value.tolist() if isinstance(value, np.ndarray) else value
    return by_group


def test_the_groups_of_all_are_kept_together_and_named_by_their_data_set(two):
    together = load_data(recipe_of(two).data, print)
    apart = {path.rsplit("/", 1)[1]: load_data(recipe_of(path).data, print) for path in two}
    for name in ("train", "val"):
        expected, sources = [], []
        for source, dataset in apart.items():
            for group in everything(dataset.split(name)):
                expected.append({key.replace(" ", f" {source}/", 1): value for key, value in group.items()})
                sources.append(source)
        assert everything(together.split(name)) == expected
        assert together.split(name).sources.tolist() == sources


def test_what_is_left_out_of_a_joined_split_leaves_the_others_their_data_set(two):
    split = load_data(recipe_of(two).data, print).split("train")
    fewer = without_groups(split, [0, 33])
    assert fewer.sources.tolist() == ["first"] * 31 + ["second"] * 19
    texts = split[TEXT]
    bare = without_items(split, TEXT, np.flatnonzero(texts.groups == 40))
    assert bare.sources.tolist() == ["first"] * 32 + ["second"] * 19
    assert [one.split("/")[0] for one in bare[IMAGE].ids] == bare.sources.tolist()


def test_each_data_set_is_measured_by_itself_and_their_mean_chooses_the_epoch(two, tmp_path):
    recipe = recipe_of(two, epochs=2)
    result = train(recipe, tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    best = max((one for one in records if one["kind"] == "val"), key=lambda one: one["rsum"])
    assert result["rsum"] == pytest.approx(best["rsum"], abs=1.0)
    for name in ("rsum", "i2t_r1", "t2i_r10"):
        assert best[name] == pytest.approx((best[f"first/{name}"] + best[f"second/{name}"]) / 2, rel=1e-5)
    card = (tmp_path / "run/best/README.md").read_text()
    assert card.index("`val` of first: 12 images") < card.index("`val` of second: 8 images")
    assert "`first` and `second`" in card


def test_a_data_set_is_measured_as_if_it_were_alone(two):
    parts = prepare(recipe_of(two), ALONE, print)
    encoded = encode_split(parts.model, parts.val_feed, parts.val.size, 4)
    both = measures(encoded, (IMAGE, TEXT), "maxmatch", None, parts.val.sources)
    for path in two:
        single = load_data(recipe_of(path).data, print).split("val")
        name = path.rsplit("/", 1)[1]
        images, texts = (parts.model.encode(kind, list(single[kind].values), batch_size=4) for kind in (IMAGE, TEXT))
        scores = parts.model.similarity(images, texts)
        ranks = torch.stack([(row > row[single[TEXT].groups == i].max()).sum() for i, row in enumerate(scores)])
        assert both[f"{name}/i2t_r1"] == pytest.approx(100 * (ranks == 0).float().mean().item(), abs=1e-4)


def test_weights_say_how_often_an_epoch_takes_the_images_of_each(two, tmp_path):
    recipe = recipe_of(two, {"weights": [0.5, 3]}, batch_size=19)
    parts = prepare(recipe, ALONE, print)
    weights = group_weights(recipe.data, parts.train)
    assert weights.tolist() == [0.5] * 32 + [3.0] * 20
    sampler = GroupSampler(parts.train.size, 19, recipe.seed, weights=weights)
    groups = np.concatenate([plan.groups for plan in sampler.plans(0)])
    assert [(groups < 32).sum(), (groups >= 32).sum()] == [16, 60]
    assert "of 4 steps" in describe(recipe)
    train(recipe, tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == 3 * 4


def test_separate_batches_have_images_of_one_data_set(two, tmp_path, monkeypatch):
    seen = []
    plans = GroupSampler.plans

    def watched(self, *args):
        for plan in plans(self, *args):
            seen.append({int(group) // 32 for group in plan.groups})
            yield plan

    monkeypatch.setattr(GroupSampler, "plans", watched)
    for batches in ("separate", "mixed"):
        seen.clear()
        train(recipe_of(two, {"batches": batches}, batch_size=8, epochs=1), tmp_path / batches)
        mixed = sum(len(sources) > 1 for sources in seen)
        assert mixed == 0 if batches == "separate" else mixed > 0  # 32 images are four batches


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"weights": [1.0]}, "2, got 1"),
        ({"features": ["a", "b", "c"]}, "2, got 3"),
        ({"scenes": {"images": 10}}, "scenes"),
        ({"path": []}, "path"),
        ({"path": "one", "weights": [1.0]}, "several"),
    ],
)
def test_options_that_do_not_fit_the_data_sets_are_refused(two, data, why):
    with pytest.raises(ValueError, match=why):
        recipe_of(two, data)


def test_the_same_data_set_twice_is_refused(two):
    with pytest.raises(ValueError, match="twice"):
        load_data(recipe_of([two[0], two[0]]).data, print)


def test_data_sets_of_one_name_are_told_apart_by_the_folder_around_them(tmp_path):
    paths = [str(write_data(tmp_path / name / "data", train=4, val=2)) for name in ("a", "b")]
    assert set(load_data(recipe_of(paths).data, print).split("train").sources) == {"a-data", "b-data"}


def test_evaluation_of_such_a_run_asks_which_data_to_measure_on(two, tmp_path):
    train(recipe_of(two, epochs=1), tmp_path / "run")
    sources = find_models([tmp_path / "run"])
    with pytest.raises(ValueError, match="second"):
        data_for(sources, None, {})
    assert data_for(sources, two[1], {}).path == two[1]
